"""The training steps that pretrain_step.py compares: variants of ElectraKit, and other PyTorch code for ELECTRA.

Every step does the same work: the loss of replaced-token detection on ids (B, T), its gradient, clipping, an update by AdamW.
"""

import atexit
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit import presets
from electrakit.common.progress import console
from electrakit.config.network import NetworkConfig
from electrakit.config.pretrain import PretrainConfig, override
from electrakit.model.build import THEIR_NAMES
from electrakit.model.huggingface.names import DEBERTA
from electrakit.model.huggingface.weights import to_transformers
from electrakit.model.networks import Generator, use_kernels
from electrakit.model.tie import tie
from electrakit.objective.build import build_objective
from electrakit.objective.electra import Electra
from electrakit.train.distributed import ProcessGroup, distribute
from electrakit.train.loop import advance, train_step
from electrakit.train.optim import RunOptimizer
from electrakit.train.state import TrainState

SPECIAL = {"pad": 0, "cls": 101, "sep": 102, "mask": 103}
LR = 1e-4
GEN_WEIGHT, DISC_WEIGHT, MASK_PROB, REPLACE_PROB = 1.0, 50.0, 0.15, 0.85

Step = Callable[[Tensor], float]
"""Trains on ids (B, T) and returns the loss."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that all contenders share."""

    size: str = "small"
    length: int = 128
    batch: int = 32
    threads: int = 2
    padding: float = 0.0
    precision: str = "fp32"
    clock: str = "wall"
    """wall, or cpu: CPU time, which other programs on the machine hardly change."""
    attention: str = "sdpa"
    """The attention implementation of transformers; sdpa is its default."""

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16")


# --- ours ------------------------------------------------------------------------------------------------------------


def electra_config(settings: Settings) -> PretrainConfig:
    preset = presets.electra_small if settings.size == "small" else presets.tiny
    return preset(length=settings.length, batch_size=settings.batch)


def without_dropout(settings: Settings) -> PretrainConfig:
    none = {"dropout": 0.0, "attention_dropout": 0.0}
    return override(electra_config(settings), {"discriminator": none, "generator": none})


def gdes(settings: Settings) -> PretrainConfig:
    return override(electra_config(settings), {"share": "gdes"})


def two_tables(settings: Settings) -> PretrainConfig:
    return override(electra_config(settings), {"share": "nothing"})


def masked_lm(settings: Settings) -> PretrainConfig:
    return override(electra_config(settings), {"objective": {"kind": "mlm"}, "generator": None})


def ours(config: PretrainConfig, settings: Settings, group: ProcessGroup, *, how: str = "kernels") -> Step:
    """Our networks: with kernels as in `electra pretrain`, in plain torch, or compiled."""
    objective = build_objective(config, SPECIAL).train()
    if how == "kernels" and not use_kernels(objective):
        raise RuntimeError("the kernels cannot be built here: is there a C++ compiler?")
    if how == "compiled":
        objective.compile()
    return our_step(objective, config, settings, group)


def our_step(objective: nn.Module, config: PretrainConfig, settings: Settings, group: ProcessGroup) -> Step:
    optimizer = RunOptimizer(objective, config.optim)
    module = distribute(objective, group, fsdp=False)

    def step(ids: Tensor) -> float:
        with settings.autocast():
            loss = module(ids).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step(LR, torch.isfinite(norm))
        optimizer.zero_grad()
        return loss.item()

    return step


def whole_loop(config: PretrainConfig, settings: Settings, group: ProcessGroup) -> Step:
    """A step of `electra pretrain`: rows from shards, all metrics, a log line at every step."""
    folder = Path(tempfile.mkdtemp(prefix="pretrain_step"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = [f"w{number}" for number in range(config.discriminator.vocab_size - 5)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    # one document of full rows: padding is skipped and would make the loop look fast
    num_words = 4 * settings.batch * (settings.length - 2)
    (folder / "text.txt").write_text(" ".join(random.Random(0).choices(words, k=num_words)))
    command = [sys.executable, "-m", "electrakit", "prepare", str(folder / "text.txt"), "--out", str(folder / "shards")]
    command += ["--tokenizer", str(folder / "vocab.txt"), "--length", str(settings.length)]
    subprocess.run(command, check=True, capture_output=True)  # in a new process: a worker may not start workers
    never = {"valid_every": 10**9, "save_every": 10**9}
    config = override(
        config,
        {"data": folder / "shards", "run": folder / "run", "precision": settings.precision, "log_every": 1, **never},
    )
    (folder / "run").mkdir()
    console.quiet = True  # only the table is shown
    training = TrainState(config, None, group)

    def step(ids: Tensor) -> float:
        advance(training, budget_used=0.0)
        train_step(training)
        training.progress.step += 1
        loss = training.metrics.sums["loss"].item()  # of this step only, because every step is logged
        training.log.write("train", training.progress.step, training.pop_train_metrics())
        return loss

    return step


def our_objective_around(config: PretrainConfig, settings: Settings, group: ProcessGroup) -> Step:
    """`electrakit.Electra` around a pair of transformers models."""
    generator, discriminator = transformers_pair(config, settings)
    tie(generator, discriminator, share="embeddings")
    electra = Electra(
        generator,
        discriminator,
        mask_token_id=SPECIAL["mask"],
        pad_token_id=SPECIAL["pad"],
        sep_token_id=SPECIAL["sep"],
        mask_ignore_token_ids=[SPECIAL["cls"], SPECIAL["sep"]],
    )
    return our_step(electra.train(), config, settings, group)


# --- others ----------------------------------------------------------------------------------------------------------

CLASSES = {  # transformers classes: config, generator, discriminator
    "classic": ("ElectraConfig", "ElectraForMaskedLM", "ElectraForPreTraining"),
    "bert": ("BertConfig", "BertForMaskedLM", "BertForTokenClassification"),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", "AlbertForTokenClassification"),
    "deberta": (DEBERTA.config_class, DEBERTA.generator_class, DEBERTA.discriminator_class),
}


def transformers_pair(config: PretrainConfig, settings: Settings) -> tuple[Any, Any]:
    assert config.generator is not None
    generator, discriminator = (
        transformers_model(network, place, settings.attention)
        for place, network in enumerate((config.generator, config.discriminator), start=1)
    )
    return generator, discriminator


def transformers_model(network: NetworkConfig, place: int, attention: str) -> Any:
    import transformers

    if network.body == "deberta":
        with torch.device("meta"):
            config = to_transformers(Generator(network)).config
        config.num_labels = 2
        return getattr(transformers, CLASSES["deberta"][place])(config).train()
    sizes = {theirs: getattr(network, ours) for ours, theirs in THEIR_NAMES.items()}
    if network.body != "bert":
        sizes["embedding_size"] = network.embedding_size
    names = CLASSES[network.body]
    config = getattr(transformers, names[0])(**sizes, num_labels=1, attn_implementation=attention)
    return getattr(transformers, names[place])(config).train()


def bert_pair(settings: Settings) -> PretrainConfig:
    return smaller(presets.electra_small_owt(), settings)


def albert_pair(settings: Settings) -> PretrainConfig:
    return smaller(presets.alectra_small(), settings)


def deberta_pair(settings: Settings) -> PretrainConfig:
    """DeBERTaV3's recipe with the sizes of ELECTRA-small; embeddings are shared, as in the peer."""
    config = presets.electra_small("deberta", share="embeddings", objective={"replace_prob": REPLACE_PROB})
    return smaller(config, settings)


def smaller(config: PretrainConfig, settings: Settings) -> PretrainConfig:
    """A config with dropout, for rows of this length; with few layers and words for tests."""
    network: dict[str, Any] = {"dropout": 0.1, "attention_dropout": 0.1, "max_length": max(128, settings.length)}
    if settings.size != "small":
        network |= {"vocab_size": 8_000, "num_layers": 2}
    return override(
        config,
        {"length": settings.length, "batch_size": settings.batch, "discriminator": network, "generator": network},
    )


def their_step(model: nn.Module, loss_of: Callable[[Tensor], Tensor], settings: Settings) -> Step:
    """AdamW with torch's defaults, without weight decay for biases and norms."""
    decays = {name: not name.endswith("bias") and "LayerNorm" not in name for name, _ in model.named_parameters()}
    groups = [
        {"params": [each for name, each in model.named_parameters() if decays[name] == kind], "weight_decay": decay}
        for kind, decay in ((True, 0.01), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, eps=1e-6)

    def step(ids: Tensor) -> float:
        with settings.autocast():
            loss = loss_of(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


class FirstOutput(nn.Module):
    """A transformers model that returns only its logits, as electra-pytorch expects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        return self.model(*arguments, **named)[0]


def electra_pytorch(config: PretrainConfig, settings: Settings, group: ProcessGroup) -> Step:
    """The package from PyPI, used as in its own pretraining script: three embeddings are shared, the output embeddings are not."""
    from electra_pytorch import Electra as TheirElectra

    generator, discriminator = transformers_pair(config, settings)
    ours, theirs = (model.base_model.embeddings for model in (generator, discriminator))
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        setattr(ours, table, getattr(theirs, table))
    electra = TheirElectra(
        FirstOutput(generator),
        FirstOutput(discriminator),
        num_tokens=config.discriminator.vocab_size,
        mask_token_id=SPECIAL["mask"],
        pad_token_id=SPECIAL["pad"],
        mask_prob=MASK_PROB,
        mask_ignore_token_ids=[SPECIAL["cls"], SPECIAL["sep"]],
    )

    def loss_of(ids: Tensor) -> Tensor:
        return electra(ids, attention_mask=(ids != SPECIAL["pad"]).long(), token_type_ids=torch.zeros_like(ids)).loss

    return their_step(electra, loss_of, settings)


def choose(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens are selected (B, T), each independently, and the ids with most of these masked (B, T)."""
    is_special = (ids == SPECIAL["pad"]) | (ids == SPECIAL["cls"]) | (ids == SPECIAL["sep"])
    chosen = torch.bernoulli(torch.full(ids.shape, MASK_PROB).masked_fill(is_special, 0)).bool()
    shown = torch.bernoulli(torch.full(ids.shape, REPLACE_PROB)).bool()
    return chosen, ids.masked_fill(chosen & shown, SPECIAL["mask"])


def tied_pair(config: PretrainConfig, settings: Settings) -> tuple[Any, Any]:
    generator, discriminator = transformers_pair(config, settings)
    generator.base_model.embeddings = discriminator.base_model.embeddings
    generator.tie_weights()
    return generator, discriminator


def plain_transformers(
    config: PretrainConfig, settings: Settings, group: ProcessGroup, *, is_compiled: bool = False
) -> Step:
    """Both models compute their loss from labels; softmax and multinomial sampling at the selected positions."""
    generator, discriminator = tied_pair(config, settings)
    if is_compiled:
        generator.compile()
        discriminator.compile()

    def loss_of(ids: Tensor) -> Tensor:
        attention_mask = (ids != SPECIAL["pad"]).long()
        chosen, masked = choose(ids)
        predicted = generator(masked, attention_mask=attention_mask, labels=ids.masked_fill(~chosen, -100))
        with torch.no_grad():
            samples = torch.multinomial(predicted.logits[chosen].float().softmax(-1), 1).squeeze(-1)
            written = ids.masked_scatter(chosen, samples)
        found = discriminator(written, attention_mask=attention_mask, labels=(written != ids).long())
        return GEN_WEIGHT * predicted.loss + DISC_WEIGHT * found.loss

    return their_step(nn.ModuleList([generator, discriminator]), loss_of, settings)


def transformers_at_masked_positions(config: PretrainConfig, settings: Settings, group: ProcessGroup) -> Step:
    """Logits at all positions, of which only the selected ones get cross-entropy and Gumbel noise, as in richarddwang's code."""
    generator, discriminator = tied_pair(config, settings)
    gumbel = torch.distributions.Gumbel(0.0, 1.0)

    def loss_of(ids: Tensor) -> Tensor:
        attention_mask = ids != SPECIAL["pad"]
        chosen, masked = choose(ids)
        logits = generator(masked, attention_mask=attention_mask.long())[0][chosen].float()
        with torch.no_grad():
            written = ids.clone()
            written[chosen] = (logits + gumbel.sample(logits.shape)).argmax(-1)
        scores = discriminator(written, attention_mask=attention_mask.long())[0]
        is_replaced = (written != ids)[attention_mask].float()
        found = F.binary_cross_entropy_with_logits(scores[attention_mask].float(), is_replaced)
        return GEN_WEIGHT * F.cross_entropy(logits, ids[chosen]) + DISC_WEIGHT * found

    return their_step(nn.ModuleList([generator, discriminator]), loss_of, settings)


# --- the list -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contender:
    key: str
    label: str
    build: Callable[..., Step]
    options: tuple[tuple[str, Any], ...] = ()
    config: Callable[[Settings], PretrainConfig] = electra_config
    is_peer: bool = False
    same_work: bool = True
    """Whether it may be compared with the peers."""
    when: str = "always"
    """always, long (not with --quick), or the option that includes it: all, padding, processes."""
    num_processes: int = 1
    fills_padding: bool = False
    """Whether it has words where the others have padding."""

    def make_step(self, settings: Settings, group: ProcessGroup) -> Step:
        return self.build(self.config(settings), settings, group, **dict(self.options))


LIST = (
    Contender(key="electrakit", label="electrakit", build=ours),
    Contender(key="plain", label="electrakit, plain", build=ours, options=(("how", "plain"),)),
    Contender(key="compiled", label="electrakit, compiled", build=ours, options=(("how", "compiled"),), when="long"),
    Contender(key="no-dropout", label="electrakit, no dropout", build=ours, config=without_dropout, same_work=False),
    Contender(key="mlm", label="electrakit, masked LM only", build=ours, config=masked_lm, same_work=False),
    Contender(key="gdes", label="electrakit, GDES", build=ours, config=gdes, same_work=False, when="all"),
    Contender(
        key="two-tables", label="electrakit, nothing shared", build=ours, config=two_tables, same_work=False, when="all"
    ),
    Contender(key="loop", label="electrakit, loop, every step logged", build=whole_loop),
    Contender(key="filled", label="electrakit, padding computed", build=ours, when="padding", fills_padding=True),
    Contender(key="processes", label="electrakit, 2 processes", build=ours, when="processes", num_processes=2),
    Contender(key="pair", label="electrakit.Electra around transformers", build=our_objective_around),
    Contender(key="electra-pytorch", label="electra-pytorch", build=electra_pytorch, is_peer=True),
    Contender(key="transformers", label="transformers, plain", build=plain_transformers, is_peer=True),
    Contender(
        key="transformers-masked",
        label="transformers, masked positions",
        build=transformers_at_masked_positions,
        is_peer=True,
    ),
    Contender(
        key="transformers-compiled",
        label="transformers, plain, compiled",
        build=plain_transformers,
        options=(("is_compiled", True),),
        is_peer=True,
        when="all",
    ),
    *(
        Contender(key=key, label=label, build=build, config=config, is_peer=is_peer, same_work=False, when="all")
        for kind, config in (("BERT", bert_pair), ("ALBERT", albert_pair))
        for key, label, build, is_peer in (
            (f"pair-{kind.lower()}", f"electrakit.Electra around {kind}", our_objective_around, False),
            (f"electra-pytorch-{kind.lower()}", f"electra-pytorch with {kind}", electra_pytorch, True),
        )
    ),
)
LIST += tuple(
    Contender(key=key, label=label, build=build, options=options, config=deberta_pair, same_work=False, when="all")
    for key, label, build, options in (
        ("deberta", "electrakit, deberta", ours, ()),
        ("deberta-plain", "electrakit, deberta, plain", ours, (("how", "plain"),)),
        ("transformers-deberta", "transformers, DeBERTa", plain_transformers, ()),
    )
)
CONTENDERS = {contender.key: contender for contender in LIST}

RATIOS = (  # label, contender, baseline; "peer" is the fastest of all peers that do the same work
    ("electrakit over the fastest peer", "electrakit", "peer"),
    ("the same, plain", "plain", "peer"),
    ("the same, compiled", "compiled", "peer"),
    ("electrakit.Electra over electra-pytorch, ELECTRA pair", "pair", "electra-pytorch"),
    ("electrakit.Electra over electra-pytorch, BERT pair", "pair-bert", "electra-pytorch-bert"),
    ("electrakit.Electra over electra-pytorch, ALBERT pair", "pair-albert", "electra-pytorch-albert"),
    ("deberta body over transformers' DeBERTa", "deberta", "transformers-deberta"),
    ("the same, plain", "deberta-plain", "transformers-deberta"),
    ("GDES over shared embeddings", "gdes", "electrakit"),
    ("GDES over two word tables", "gdes", "two-tables"),
    ("masked LM alone over both networks of ELECTRA", "mlm", "electrakit"),
    ("the full training loop, every step logged, over the bare step", "loop", "electrakit"),
    ("padding skipped over padding computed", "electrakit", "filled"),
    ("2 processes over 1, the same cores", "processes", "electrakit"),
)
