"""Chooses the settings of `electra pretrain auto` from time, speed and corpus. Arithmetic only: no torch, nothing is measured here."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, sqrt
from typing import Any

from electrakit.common.words import format_duration, format_number
from electrakit.config.network import NetworkConfig
from electrakit.config.objective import ObjectiveConfig
from electrakit.config.optim import OptimConfig
from electrakit.config.presets import networks
from electrakit.config.pretrain import PretrainConfig, override
from electrakit.model.counts import num_elements, parameter_shapes, useful_flops


@dataclass(frozen=True)
class Size:
    """A body of the ladder, and the peak rate of Muon for it."""

    num_layers: int
    hidden_size: int
    lr: float

    def __str__(self) -> str:
        return f"{self.num_layers} layers of {self.hidden_size}"


# Everything that was chosen by hand. All of it is provisional: docs/log.md has what was measured, at 6 layers of 128 only.
LADDER = (
    Size(6, 128, 1e-2),  # modern_mini
    Size(6, 192, 7e-3),
    Size(8, 256, 5e-3),
    Size(12, 256, 5e-3),  # modern_small
    Size(12, 384, 3e-3),
    Size(12, 512, 2e-3),
    Size(12, 768, 1e-3),
)
TOKENS_PER_PARAMETER = 20  # the largest body that sees so many for each parameter of its layers is taken
GENERATOR_DEPTH = 1 / 3  # of the discriminator's layers
MASK_PROB = 0.25  # the paper's for large; the shallower generator makes up for its cost
ADAM_SHARE = 1 / 10  # of Muon's rate
WARMUP_SHARE = 0.1  # of the steps
SMALLEST_BATCH, LARGEST_BATCH = 16 * 128, 256 * 128  # tokens
SMALLEST_BATCH_SUITS = 1.25e6  # tokens of a run; from there the batch grows with the square root
MANY_EPOCHS, DROPOUT = 4, 0.1  # a text that is seen so often is learned by heart without dropout
TEMPERATURES = 4.0, 2.0  # at the start and at the end, flattened to the frequencies of words
DISC_WEIGHT = 10.0  # of detection: the generator's layers are the discriminator's, and must learn from both
OBJECTIVE = ObjectiveConfig(
    mask_prob=MASK_PROB,
    temperature=TEMPERATURES[0],
    final_temperature=TEMPERATURES[1],
    flatten_to="frequency",
    disc_weight=DISC_WEIGHT,
)
STEPS_SHARE = 0.9  # of the budget, an assumption; validation and checkpoints take the rest
MEASURED_FLOPS = 2e14  # the longest run of this recipe, 4,077 steps of 32 rows: above, the rules extrapolate

LONGEST_BETWEEN_CHECKPOINTS = 1800  # seconds
VALID_ROWS, VALIDATION_SHARE = 256, 0.03  # of the time, at most
VALIDATION_COST = (VALID_ROWS + 3 * 64) / 3  # in rows of training: forward only, and 64 rows of each corruption
DEFAULTS = {"vocab_size": 30_522, "length": 128}  # without shards

ASKED = ("data", "run", "budget", "length", "batch_size", "precision", "plain")
"""The settings that the choice depends on, besides `vocab_size`."""


@dataclass(frozen=True)
class Choice:
    """The settings, and why: one line for each decision."""

    config: PretrainConfig
    reasons: tuple[str, ...]


def choose(
    budget_seconds: float,
    speed_of: Callable[[Size], float],
    num_tokens: int | None = None,
    vocab_size: int = DEFAULTS["vocab_size"],
    length: int = DEFAULTS["length"],
    batch_size: int | None = None,
) -> Choice:
    """The settings for a budget.

    Args:
        budget_seconds: time of the training.
        speed_of: FLOPs per second of useful matrix products (`model.counts.useful_flops`) that a run reaches with a body. Asked from the
            smallest body up, until one is too large for the budget.
        num_tokens: of the corpus, padding included; None: enough for the budget.
        vocab_size: of the tokenizer.
        length: tokens in a row.
        batch_size: rows of a step, if the user has set it.
    """
    speeds: list[float] = []
    seen: list[float] = []  # tokens
    ratios: list[float] = []  # tokens for each parameter
    for size in LADDER:
        speeds.append(speed_of(size))
        seen.append(tokens_in(budget_seconds * speeds[-1], size, vocab_size, length))
        ratios.append(seen[-1] / body_parameters(size))
        if ratios[-1] < TOKENS_PER_PARAMETER:
            break
    place = max(0, sum(ratio >= TOKENS_PER_PARAMETER for ratio in ratios) - 1)
    size, speed = LADDER[place], speeds[place]
    flops = budget_seconds * speed
    why_batch = "it grows with the square root of the tokens" if batch_size is None else "as given"
    batch_size = batch_size or choose_batch_size(seen[place], length)
    steps = max(1, round(seen[place] / (batch_size * length)))
    run_tokens = steps * batch_size * length
    epochs = 0.0 if num_tokens is None else run_tokens / num_tokens
    dropout = DROPOUT if epochs > MANY_EPOCHS else 0.0
    interval = max(1, min(steps // 10, int(steps * LONGEST_BETWEEN_CHECKPOINTS / budget_seconds)))
    when = {
        "log_every": max(1, min(100, steps // 100)),
        "valid_every": max(interval, min(steps, round(VALIDATION_COST / VALIDATION_SHARE / batch_size))),
        "valid_rows": VALID_ROWS,
        "save_every": interval,
        "optim": {"warmup_steps": max(1, round(steps * WARMUP_SHARE))},
    }
    config = override(recipe(size, vocab_size, length, dropout), {"steps": steps, "batch_size": batch_size}, when)
    optim = config.optim
    extrapolates = ", more than was measured: an extrapolation" * (flops > MEASURED_FLOPS)
    reasons = (
        f"budget: {format_duration(budget_seconds)} at {format_number(speed)}FLOP/s are {flops:.3g} FLOPs{extrapolates}",
        f"size: {size}, {format_number(body_parameters(size))} parameters in the layers: {why_this_size(place, ratios)}",
        f"tokens: {format_number(run_tokens)} in {steps:,} steps, {epochs_text(num_tokens, epochs)}",
        f"batch: {batch_size:,} rows of {length:,} tokens; {why_batch}",
        f"rates: Muon {optim.lr:g}, AdamW {optim.adam_lr:g}, for a width of {size.hidden_size}; {optim.warmup_steps:,} steps of warm-up",
        "networks: the generator is the discriminator's lower third; word vectors start from counts of the corpus, and the "
        "first attention heads at neighbouring tokens",
        f"replacements: of {100 * MASK_PROB:g}% of the tokens, sampled at temperature {TEMPERATURES[0]:g}, falling to "
        f"{TEMPERATURES[1]:g}, which flattens to words by their frequency",
        "expect: docs/recipes.md has what was measured; the rules are provisional",
    )
    return Choice(config, reasons)


def recipe(size: Size, vocab_size: int, length: int, dropout: float = 0.0) -> PretrainConfig:
    """What does not depend on the budget."""
    return PretrainConfig(
        **pair(size, vocab_size, length, dropout),
        length=length,
        objective=OBJECTIVE,
        share="layers",
        optim=OptimConfig(name="muon", lr=size.lr, adam_lr=size.lr * ADAM_SHARE),
        init_embeddings="counts",
        init_attention="neighbours",
    )


def pair(size: Size, vocab_size: int, length: int, dropout: float = 0.0) -> dict[str, Any]:
    """The two networks."""
    discriminator = NetworkConfig(
        vocab_size=vocab_size,
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        ffn_size=4 * size.hidden_size,
        num_heads=size.hidden_size // 64,
        max_length=max(512, length),
        dropout=dropout,
        attention_dropout=dropout,
    )
    return networks(discriminator, GENERATOR_DEPTH, "modern")


def tokens_in(flops: float, size: Size, vocab_size: int, length: int) -> float:
    """How many a body sees for these FLOPs."""
    return flops / useful_flops(recipe(size, vocab_size, length)) * length


def body_parameters(size: Size) -> int:
    """Of the layers: tables are looked up, and learn as fast in a large body as in a small one."""
    discriminator = pair(size, **DEFAULTS)["discriminator"]
    return num_elements(parameter_shapes(discriminator, "replaced")["layers"])


def choose_batch_size(run_tokens: float, length: int) -> int:
    """Rows: a power of two of tokens, which grows with the square root of the run's."""
    wanted = SMALLEST_BATCH * sqrt(run_tokens / SMALLEST_BATCH_SUITS)
    tokens = 2 ** round(log2(min(max(wanted, SMALLEST_BATCH), LARGEST_BATCH)))
    return max(1, tokens // length)


def why_this_size(place: int, ratios: list[float]) -> str:
    """Compared with the rule, and with the next one of the ladder."""
    rule = f"{ratios[place]:.3g} tokens for each"
    if ratios[place] < TOKENS_PER_PARAMETER:
        return f"{rule}, less than the {TOKENS_PER_PARAMETER} that are wanted, but it is the smallest"
    if place == len(LADDER) - 1:
        return f"{rule}, at least {TOKENS_PER_PARAMETER} are wanted; it is the largest"
    return f"{rule}, at least {TOKENS_PER_PARAMETER} are wanted; {LADDER[place + 1]} would have {ratios[place + 1]:.3g}"


def epochs_text(num_tokens: int | None, epochs: float) -> str:
    if num_tokens is None:
        return "each seen once: without --data, a corpus that is large enough and its vocabulary and length are assumed"
    text = f"{epochs:.3g} epochs over the corpus of {format_number(num_tokens)}"
    if epochs <= MANY_EPOCHS:
        return f"{text}; no dropout"
    return f"{text}, more than {MANY_EPOCHS}: dropout {DROPOUT:g}; more text would help more"
