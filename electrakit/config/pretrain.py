"""The settings of a pretraining run."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from electrakit.common.errors import UserError
from electrakit.config.base import Settings, check_positive, may_change
from electrakit.config.network import NetworkConfig
from electrakit.config.objective import ObjectiveConfig
from electrakit.config.optim import OptimConfig

PretrainPrecision = Literal["auto", "fp32", "bf16"]
Share = Literal["nothing", "gdes", "embeddings", "layers", "encoder"]


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """One pretraining run. The defaults are ELECTRA-small's; the functions of electrakit.config.presets are the way to make one."""

    data: Path | None = may_change(None)
    """Folder of shards, made by electra prepare."""
    run: Path | None = may_change(None)
    """Folder to write. A run that was started there is resumed."""
    steps: int = may_change(1_000_000)
    """Optimizer steps. With a budget, the clock decides instead."""
    batch_size: int = 128
    """Rows of an optimizer step, over all processes."""
    micro_batch: int | None = may_change(None)
    """Rows that a process computes at a time; gradients are accumulated. None: as many as fit into memory."""
    length: int = 128
    """Tokens in a row, [CLS] and [SEP] included; must be that of the shards."""
    seed: int = 0
    """Seed of the initial weights, the order of the rows, and the masking."""
    discriminator: NetworkConfig = field(default_factory=NetworkConfig)
    """The network that is kept. With objective `mlm` it is the masked language model itself."""
    generator: NetworkConfig | None = field(
        default_factory=lambda: NetworkConfig(hidden_size=64, ffn_size=256, num_heads=1)
    )
    """The network that samples replacements. None: they are drawn uniformly, or with `ngrams` by counts; `mlm` has none."""
    ngrams: bool = False
    """Sample replacements by counts of neighbouring words too: the generator learns what they leave over. Without one, by them alone."""
    share: Share = "embeddings"
    """Which weights the networks share. `gdes`: the discriminator reads the generator's words plus a difference that it learns (DeBERTaV3);
    `layers`: also the generator's layers, which are the discriminator's first ones."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The training objective."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer."""
    precision: PretrainPrecision = "auto"
    """Precision of matrix products. auto: bf16 where the hardware supports it, else fp32. Weights and optimizer state are in fp32."""
    deterministic: bool = may_change(False)
    """On a GPU: use deterministic operations only, some of which are slower. On a CPU all are deterministic."""
    compile: bool = may_change(False)
    """Compile the step (torch.compile): minutes at the start, faster steps. On a GPU, long runs do so anyway; a CPU has kernels instead."""
    plain: bool = may_change(False)
    """Switch off kernels, compiler and bf16, for comparison."""
    log_every: int = may_change(100)
    """Steps between two lines of the log."""
    valid_every: int = may_change(5_000)
    """Steps between two validations."""
    save_every: int = may_change(5_000)
    """Steps between two checkpoints, at most."""
    save_minutes: float | None = may_change(10.0)
    """Minutes of work between two checkpoints, at most; more if saving would take over 2 % of the time. None: steps alone decide."""
    budget: str | None = may_change(None)
    """Wall-clock time such as 30m, 8h or 2d: the learning rate falls with the clock, and the run ends in time. None: it ends by steps."""
    valid_rows: int = 1024
    """Rows of the valid split in a validation, always the same ones."""
    keep_last: int = may_change(2)
    """Number of the newest checkpoints to keep."""
    keep_at: tuple[str, ...] = may_change(())
    """Checkpoints that are never removed, as parts of the run: 6.25% 12.5% 25% 50% 100%."""
    on_checkpoint: str | None = may_change(None)
    """A shell command to run after each checkpoint; {path} in it is the checkpoint's folder."""
    init_discriminator: str | None = None
    """Start from these weights: a transformers folder, or a name on the Hugging Face hub. Its sizes replace the preset's."""
    init_generator: str | None = None
    """The same for the generator."""
    init_embeddings: Literal["random", "counts"] = "random"
    """`counts`: word vectors from the text's own statistics (SVD of positive PMI), made in seconds, and biases from frequencies."""
    init_attention: Literal["random", "neighbours"] = "random"
    """`neighbours`: four attention heads of a `modern` body begin by looking one and two tokens to the left and to the right."""
    recompute: bool = may_change(False)
    """Gradient checkpointing: activations are recomputed instead of kept. Slower, but needs less memory."""
    fsdp: bool = may_change(False)
    """With several processes: shard weights and optimizer state (FSDP2). For networks that do not fit into one GPU."""
    wandb: str | None = may_change(None)
    """Log to this Weights & Biases project too; needs pip install 'electrakit[wandb]'."""

    def check(self) -> None:
        counts = (
            "steps batch_size micro_batch length log_every valid_every save_every save_minutes valid_rows keep_last"
        )
        check_positive(self.values(*counts.split()))
        if self.plain and self.compile:
            raise UserError("plain switches the compiler off, compile asks for it: leave one out")
        budget, milestones = self.budget_seconds, self.milestones  # both are read: a mistake in either is an error
        if budget is not None and milestones:
            raise UserError(
                f"keep_at {self.keep_at[0]} is a part of the steps, but a run with a budget ends by the clock; leave one out"
            )
        if self.objective.kind == "mlm" and self.generator is not None:
            raise UserError("objective.kind='mlm' has one network, the discriminator's: set generator to None")
        if self.objective.kind == "electric":
            self._check_electric()
        for name, network in self.networks.items():
            if self.length > network.max_length:
                raise UserError(
                    f"length {self.length} is more than {name}.max_length {network.max_length}: "
                    "shorten the rows, or raise it in both networks"
                )
        if self.generator is not None:
            self._check_pair(self.generator, self.discriminator)
        self._check_separate_training()
        if self.ngrams and self.objective.kind == "mlm":
            raise UserError("ngrams are of the generator's samples, and objective.kind='mlm' has none: leave them out")
        if self.objective.flatten_to != "uniform" and self.generator is None and not self.ngrams:
            raise UserError(
                "objective.flatten_to=frequency is of a generator's samples, and there is none: use objective.flatten_to=uniform"
            )
        if self.objective.correct_weight and self.discriminator.body not in ("classic", "modern", "deberta"):
            raise UserError(
                f"objective.correct_weight needs one of our own bodies, discriminator.body is {self.discriminator.body!r}: "
                "use classic, modern or deberta"
            )
        if self.objective.kind == "electra" and self.discriminator.enhanced_mask_decoder:
            raise UserError(
                "discriminator.enhanced_mask_decoder is of a network that predicts words: set generator.enhanced_mask_decoder"
            )
        if self.init_embeddings == "counts" and (place := self.init_discriminator or self.init_generator):
            raise UserError(f"init_embeddings=counts would replace the word table of {place}: leave one of the two out")
        if self.init_attention == "neighbours":
            if place := self.init_discriminator or self.init_generator:
                raise UserError(
                    f"init_attention=neighbours would replace weights of {place}: use init_attention=random"
                )
            for name, network in self.networks.items():
                if network.body != "modern":
                    raise UserError(
                        f"init_attention=neighbours needs RoPE, {name}.body is {network.body!r}: use modern, or init_attention=random"
                    )

    def _check_pair(self, generator: NetworkConfig, discriminator: NetworkConfig) -> None:
        """Everything that building the networks and tying them would refuse."""
        for name in ("vocab_size", "pad_token_id", "sep_token_id"):
            ours, theirs = getattr(generator, name), getattr(discriminator, name)
            if None not in (ours, theirs) and ours != theirs:
                raise UserError(
                    f"generator.{name} is {ours}, discriminator.{name} {theirs}: both networks read the same rows; make them equal"
                )
        has_position_table = generator.body == discriminator.body and generator.body not in ("modern", "deberta")
        must_agree: dict[str, list[str]] = {
            "nothing": [],
            "gdes": ["embedding_size"],
            "embeddings": ["embedding_size", *(["max_length"] if has_position_table else [])],
            "layers": ["body", *SHARED_ENCODER_SIZES],
            "encoder": [
                "body",
                *SHARED_ENCODER_SIZES,
                "enhanced_mask_decoder",
                *(["num_layers"] if generator.body != "albert" else []),
            ],
        }
        what = {"encoder": "the encoder", "layers": "layers"}.get(self.share, "embeddings")
        way_out = "nothing" if self.share in ("embeddings", "gdes") else "embeddings"
        for name in must_agree[self.share]:
            ours, theirs = getattr(generator, name), getattr(discriminator, name)
            if ours != theirs:
                raise UserError(
                    f"cannot share {what}: generator.{name} is {ours}, discriminator.{name} {theirs}; "
                    f"make them equal or use share='{way_out}'"
                )
        if self.share == "gdes" and self.objective.kind != "electra" and discriminator.body in ("bert", "albert"):
            raise UserError(
                f"cannot share embeddings: transformers' {discriminator.body} uses its word table in an output layer too, which "
                "share='gdes' cannot follow; use share='embeddings'"
            )
        if self.share == "layers" and generator.num_layers > discriminator.num_layers:
            raise UserError(
                f"cannot share layers: generator.num_layers is {generator.num_layers}, discriminator.num_layers only "
                f"{discriminator.num_layers}; make the generator shallower or use share='embeddings'"
            )

    def _check_separate_training(self) -> None:
        """Of settings that train generator and discriminator apart."""
        objective = self.objective
        wanted = {
            "optim.decoupled": self.optim.decoupled,
            "objective.adversarial": objective.adversarial,
            "objective.generator_steps": objective.generator_steps is not None,
        }
        for name in (name for name, is_wanted in wanted.items() if is_wanted):
            if self.generator is None:
                raise UserError(f"{name} is of two networks, and there is no generator: leave it out")
            if self.share not in ("nothing", "gdes"):
                raise UserError(
                    f"{name} trains the networks separately, but share={self.share!r} makes weights of both one: "
                    "use share='gdes' or 'nothing'"
                )
        if objective.adversarial and not self.optim.decoupled:
            raise UserError(
                "objective.adversarial: clipped together with the discriminator's, the generator's gradient would vanish: "
                "add optim.decoupled"
            )
        if objective.generator_steps is not None:
            self._check_stages(objective.generator_steps)

    def _check_stages(self, generator_steps: int) -> None:
        if self.budget is not None:
            raise UserError(
                "objective.generator_steps counts steps, but a run with a budget ends by the clock; leave one out"
            )
        if self.fsdp:
            raise UserError("objective.generator_steps copies whole networks, fsdp divides them: leave one out")
        if generator_steps >= self.steps:
            raise UserError(
                f"objective.generator_steps {generator_steps} leaves none of {self.steps} steps to the discriminator: lower it"
            )
        for name in ("body", *SHARED_ENCODER_SIZES, "num_layers"):
            ours, theirs = (getattr(network, name) for network in (self.generator, self.discriminator))
            if ours != theirs:
                raise UserError(
                    f"objective.generator_steps: the discriminator starts from the generator's weights, but generator.{name} is {ours}, "
                    f"discriminator.{name} {theirs}; make them equal"
                )

    def _check_electric(self) -> None:
        """The generator is two towers of our own bodies, which `model.two_tower` builds."""
        if self.generator is None or self.ngrams or self.init_generator is not None:
            what = "init_generator" if self.init_generator else "ngrams" if self.ngrams else "generator=None"
            raise UserError(
                f"{what}: the generator of objective.kind='electric' is a new two-tower model; leave it out"
            )
        if self.share not in ("nothing", "embeddings"):
            raise UserError(f"share={self.share!r}: a two-tower model has other layers; use embeddings or nothing")
        if self.generator.body not in ("classic", "modern"):
            raise UserError(f"generator.body is {self.generator.body!r}: a two-tower model is classic or modern")

    @classmethod
    def unwrap(cls, content: Any, path: Path) -> Any:
        """The config.json of a run also describes its data."""
        is_run = isinstance(content, dict) and content.keys() >= {"settings", "data", "processes"}
        return content["settings"] if is_run else content

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


SHARED_ENCODER_SIZES = (
    *("hidden_size", "ffn_size", "num_heads", "embedding_size", "max_length", "rotary_base"),
    *("position_buckets", "convolution"),
)
"""What two networks that share an encoder have in common, besides its depth. (ALBERT's layers are one, used any number of times.)"""


# Changes


class ChangesBesidesPair(TypedDict, total=False):
    """What every preset takes by name; PretrainConfig explains each."""

    vocab_size: int
    data: str | Path | None
    run: str | Path | None
    steps: int
    batch_size: int
    micro_batch: int | None
    length: int
    seed: int
    discriminator: NetworkConfig | Mapping[str, Any]
    objective: ObjectiveConfig | Mapping[str, Any]
    optim: OptimConfig | Mapping[str, Any]
    precision: PretrainPrecision
    deterministic: bool
    compile: bool
    plain: bool
    log_every: int
    valid_every: int
    save_every: int
    save_minutes: float | None
    budget: str | None
    valid_rows: int
    keep_last: int
    keep_at: Iterable[str]
    on_checkpoint: str | None
    init_discriminator: str | Path | None
    init_generator: str | Path | None
    init_embeddings: Literal["random", "counts"]
    init_attention: Literal["random", "neighbours"]
    recompute: bool
    fsdp: bool
    wandb: str | None


class PretrainChanges(ChangesBesidesPair, total=False):
    """The generator and what it shares, too, which alectra_small has as arguments of its own."""

    generator: NetworkConfig | Mapping[str, Any] | None
    ngrams: bool
    share: Share


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
        config = config.changed(**nested)
    return config


def with_special_ids(config: PretrainConfig, special_ids: Mapping[str, int]) -> PretrainConfig:
    """The config for rows with these ids of [PAD] and [SEP], as the manifest of the shards names them."""
    ids = {"pad_token_id": special_ids["pad"], "sep_token_id": special_ids["sep"]}
    return override(config, dict.fromkeys(config.networks, ids))
