"""The settings of a pretraining run: frozen dataclasses, JSON in and out. Nothing here needs torch."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from electrakit.errors import UserError
from electrakit.network_config import NetworkConfig
from electrakit.values import change_fields, read_value

Share = Literal["nothing", "embeddings", "encoder"]
Kind = Literal["electra", "mlm", "replace_mlm", "all_tokens_mlm"]
Optimizer = Literal["official_adam", "adamw", "lamb", "muon"]
Schedule = Literal["official", "linear", "cosine", "cosine_restarts", "constant"]
Precision = Literal["auto", "fp32", "bf16"]

DISC_WEIGHTS = {"electra": 50.0, "replace_mlm": 1.0, "all_tokens_mlm": 7.0}
"""Of the discriminator's loss beside the generator's, by kind of objective. The first is the paper's; it gives none for the others."""


def num_slots(num_tokens: int, rate: float) -> int:
    """K, the most positions chosen in a row of T tokens: 19 for 128 tokens at .15."""
    return min(num_tokens, max(1, int((rate + 0.005) * num_tokens)))


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is learned. The defaults are ELECTRA's."""

    kind: Kind = "electra"
    """`electra` finds replaced tokens, `mlm` is BERT's objective, `replace_mlm` and `all_tokens_mlm` are the paper's two in between."""
    mask_prob: float = 0.15
    """Share of a row's real tokens that is chosen."""
    replace_prob: float = 0.85
    """Share of the chosen tokens that the generator sees as [MASK]; the others it sees as they are."""
    scheme: Literal["bert", "electra"] = "bert"
    """What `mlm` shows at the chosen tokens: bert 80 % [MASK], 10 % random, 10 % unchanged; electra 85 % [MASK], 15 % unchanged."""
    temperature: float = 1.0
    """Of the generator's distribution when replacements are sampled."""
    disallow_correct: bool = False
    """Never sample the original token."""
    loss_on: Literal["all", "masked"] = "all"
    """Where the discriminator is scored: at all real tokens, or (ELECTRA-15 %) at the chosen ones only."""
    gen_weight: float = 1.0
    """Weight of the generator's loss."""
    disc_weight: float | None = None
    """Weight of the discriminator's loss. None: 50 for electra, 1 for replace_mlm, 7 for all_tokens_mlm."""
    official: bool = False
    """Choose positions with replacement, as google-research/electra does (about 8 % fewer are masked); for comparison."""
    whole_words: bool = False
    """Choose whole words instead of single tokens."""

    def __post_init__(self) -> None:
        _check_rates(self, "mask_prob", "replace_prob")
        if self.mask_prob == 0:
            raise UserError("objective.mask_prob is 0: nothing would be learned; the paper has 0.15")
        if not self.temperature > 0:
            raise UserError(f"objective.temperature must be above 0, got {self.temperature}; 1 is the paper's")
        if min(self.gen_weight, self.disc_weight or 0) < 0:
            raise UserError(
                f"weights must not be negative: gen_weight is {self.gen_weight}, disc_weight {self.disc_weight}"
            )
        if self.official and self.whole_words:
            raise UserError("objective.official chooses tokens one by one: drop it, or drop objective.whole_words")

    @property
    def resolved_disc_weight(self) -> float:
        """The weight that is used: as set, or that of the kind."""
        return DISC_WEIGHTS.get(self.kind, 0.0) if self.disc_weight is None else self.disc_weight


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How weights are changed. The defaults are those of ELECTRA-small."""

    name: Optimizer = "official_adam"
    """`official_adam` has no bias correction; `adamw` has it; `lamb` scales each layer's step; `muon` turns matrices, AdamW the rest."""
    lr: float = 5e-4
    """The highest learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """How long the two averages of the gradient remember."""
    eps: float = 1e-6
    """Added to the denominator."""
    weight_decay: float = 0.01
    """Decoupled, on all but biases and norms."""
    max_grad_norm: float | None = 1.0
    """Longer gradients are cut to this length. None: they are not."""
    schedule: Schedule = "official"
    """How the learning rate falls after the warm-up; `official` is linear and already falls during it."""
    warmup_steps: int = 10_000
    """Steps in which the learning rate rises from 0."""
    num_cycles: int = 4
    """How often `cosine_restarts` falls."""

    def __post_init__(self) -> None:
        _check_positive(self, "lr", "eps")
        _check_rates(self, "weight_decay")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optim.betas must be from 0 to below 1, got {self.betas}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UserError(f"optim.max_grad_norm must be above 0, got {self.max_grad_norm}; None switches it off")
        if self.warmup_steps < 0:
            raise UserError(f"optim.warmup_steps must be 0 or more, got {self.warmup_steps}")
        if self.num_cycles < 1:
            raise UserError(f"optim.num_cycles must be 1 or more, got {self.num_cycles}")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One pretraining run. The defaults are ELECTRA-small's; the functions of electrakit.presets are the way to make one."""

    data: Path | None = None
    """Folder of shards, made by electra prepare."""
    run: Path | None = None
    """Folder to write. A started run is gone on with."""
    steps: int = 1_000_000
    """Updates of the weights. With a budget, the clock decides instead."""
    batch_size: int = 128
    """Rows of an update, over all processes."""
    micro_batch: int | None = None
    """Rows of a process that go through the networks at a time; gradients add up. None: as many as fit into memory."""
    length: int = 128
    """Tokens in a row, [CLS] and [SEP] included: that of the shards."""
    seed: int = 0
    """Decides the first weights, the order of the rows, and what is masked."""
    discriminator: NetworkConfig = field(default_factory=NetworkConfig)
    """The network that is kept. With the objective `mlm` it is the masked language model itself."""
    generator: NetworkConfig | None = field(
        default_factory=lambda: NetworkConfig(hidden_size=64, ffn_size=256, num_heads=1)
    )
    """The network that makes replacements. None: they are drawn uniformly; `mlm` has none."""
    share: Share = "embeddings"
    """Which weights the two networks have in common."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What is learned."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """How weights are changed."""
    precision: Precision = "auto"
    """Of the matrix products: bf16 where the machine has instructions for it, else fp32. Weights and optimizer are always in fp32."""
    deterministic: bool = False
    """On a GPU: only operations that give the same bits each time, some of them slower. On a CPU all are."""
    compile: bool = False
    """Compile the step: minutes at the start, faster after it. On a GPU, long runs do so by themselves; a CPU has kernels instead."""
    plain: bool = False
    """Switch off what makes a run fast: kernels, compiler, bf16. For comparison."""
    log_every: int = 100
    """Steps between two lines of the log."""
    valid_every: int = 5_000
    """Steps between two validations."""
    save_every: int = 5_000
    """Steps between two checkpoints."""
    budget: str | None = None
    """Wall-clock time such as 30m, 8h or 2d: the learning rate falls with the clock, and the run ends in time. None: it ends by steps."""
    valid_rows: int = 1024
    """Rows of the valid split that a validation reads, always the same ones."""
    keep_last: int = 2
    """Newest checkpoints that are kept."""
    keep_at: tuple[str, ...] = ()
    """Checkpoints that are kept for good, as parts of the run: 6.25% 12.5% 25% 50% 100%."""
    on_checkpoint: str | None = None
    """A shell command that is run after each checkpoint; {path} in it is the checkpoint's folder."""
    init_discriminator: str | None = None
    """Start from these weights: a transformers folder, or a name on the Hugging Face hub. Its sizes replace the preset's."""
    init_generator: str | None = None
    """The same for the generator."""
    recompute: bool = False
    """Gradient checkpointing: activations are computed twice instead of kept. Slower, for large networks and little memory."""
    fsdp: bool = False
    """With several processes: each keeps a part of weights and optimizer only (FSDP2). For networks that do not fit into one GPU."""
    wandb: str | None = None
    """Log to this Weights & Biases project too; needs pip install 'electrakit[wandb]'."""

    def __post_init__(self) -> None:
        _check_positive(self, "steps", "batch_size", "length", "log_every", "valid_every", "save_every")
        _check_positive(self, "valid_rows", "keep_last")
        if self.micro_batch is not None:
            _check_positive(self, "micro_batch")
        if self.plain and self.compile:
            raise UserError("plain switches the compiler off, compile asks for it: leave one out")
        budget, milestones = self.budget_seconds, self.milestones  # both are read, so that a mistake in either is told
        if budget is not None and milestones:
            raise UserError(
                f"keep_at {self.keep_at[0]} is a part of the steps, but a run with a budget ends by the clock; leave one out"
            )
        if self.fsdp and self.optim.name in ("lamb", "muon"):
            raise UserError(
                f"fsdp cuts matrices into pieces, optim.name={self.optim.name!r} needs them whole; use adamw or official_adam"
            )
        if self.objective.kind == "mlm" and self.generator is not None:
            raise UserError("objective.kind='mlm' has one network, the discriminator's: set generator to None")
        for name, network in self.networks.items():
            if self.length > network.max_length:
                raise UserError(
                    f"length {self.length} is more than {name}.max_length {network.max_length}: "
                    "shorten the rows, or raise it in both networks"
                )
        if self.generator is not None:
            self._check_pair(self.generator, self.discriminator)

    def _check_pair(self, generator: NetworkConfig, discriminator: NetworkConfig) -> None:
        """Everything that building the networks and tying them would refuse."""
        for name in ("vocab_size", "pad_token_id", "sep_token_id"):
            ours, theirs = getattr(generator, name), getattr(discriminator, name)
            if None not in (ours, theirs) and ours != theirs:
                raise UserError(
                    f"generator.{name} is {ours}, discriminator.{name} {theirs}: both networks read the same rows; make them equal"
                )
        is_one_body = generator.body == discriminator.body
        must_agree: dict[str, list[str]] = {
            "nothing": [],
            "embeddings": ["embedding_size", *(["max_length"] if is_one_body and generator.body != "modern" else [])],
            "encoder": ["body", *ENCODER_SIZES, *(["num_layers"] if generator.body != "albert" else [])],
        }
        what = "the encoder" if self.share == "encoder" else "embeddings"
        way_out = "embeddings" if self.share == "encoder" else "nothing"
        for name in must_agree[self.share]:
            ours, theirs = getattr(generator, name), getattr(discriminator, name)
            if ours != theirs:
                raise UserError(
                    f"cannot share {what}: generator.{name} is {ours}, discriminator.{name} {theirs}; "
                    f"make them equal or use share='{way_out}'"
                )

    @property
    def networks(self) -> dict[str, NetworkConfig]:
        """By the name of their field, those that there are."""
        pair = {"generator": self.generator, "discriminator": self.discriminator}
        return {name: network for name, network in pair.items() if network is not None}

    @property
    def budget_seconds(self) -> float | None:
        """The budget as a number."""
        if self.budget is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd])", self.budget)
        if match is None or not float(match[1]):
            raise UserError(f"budget is {self.budget!r}; write a number and s, m, h or d, such as 30m")
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]

    @property
    def milestones(self) -> list[int]:
        """The steps of keep_at."""
        steps = []
        for part in self.keep_at:
            match = re.fullmatch(r"(\d+(?:\.\d+)?)%", part)
            if match is None or not 0 < float(match[1]) <= 100:
                raise UserError(f"keep_at has {part!r}; write parts of the run such as 6.25% or 100%")
            steps.append(max(1, round(self.steps * float(match[1]) / 100)))
        return steps

    @property
    def num_tokens(self) -> int:
        """Tokens seen in the whole run, padding included."""
        return self.steps * self.batch_size * self.length


ENCODER_SIZES = ("hidden_size", "ffn_size", "num_heads", "embedding_size", "max_length", "rotary_base")
"""What twins that share an encoder have in common, besides its depth. (ALBERT's layers are one, used any number of times.)"""


# Changes


def override(config: PretrainConfig, *changes: Mapping[str, Any]) -> PretrainConfig:
    """The config with changes by field name, one set after the other; those of a part as a dict: `{"optim": {"lr": 1e-3}}`.

    One name more than the fields is known: `vocab_size`, which both networks must have in common.
    """
    for change in changes:
        nested = {name: value for name, value in change.items() if name != "vocab_size"}
        if "vocab_size" in change:
            for name in config.networks:
                if isinstance(given := nested.get(name, {}), Mapping):
                    nested[name] = {"vocab_size": change["vocab_size"], **given}
        config = change_fields(config, nested)
    return config


def with_special_ids(config: PretrainConfig, special_ids: Mapping[str, int]) -> PretrainConfig:
    """The config for rows with these ids of [PAD] and [SEP], as the manifest of the shards names them."""
    ids = {"pad_token_id": special_ids["pad"], "sep_token_id": special_ids["sep"]}
    return override(config, dict.fromkeys(config.networks, ids))


# JSON


def to_json(config: PretrainConfig) -> dict[str, Any]:
    """Plain values only, as they stand in config.json."""
    return json.loads(json.dumps(asdict(config), default=str))


def from_json(values: Mapping[str, Any]) -> PretrainConfig:
    """What `to_json` gave: every key must be there, and no other."""
    return read_value(PretrainConfig, values)


def load_config(path: str | Path) -> PretrainConfig:
    """Read a config.json."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        # The config.json of a run has more in it.
        return from_json(values.get("settings", values) if isinstance(values, dict) else values)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def save_config(config: PretrainConfig, path: str | Path) -> None:
    """Write a config.json."""
    Path(path).write_text(json.dumps(to_json(config), indent=2) + "\n", encoding="utf-8")


# Checks


def _check_positive(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise UserError(f"{name} must be above 0, got {getattr(config, name)}")


def _check_rates(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"{name} is {getattr(config, name)}: it is a rate, from 0 to 1")
