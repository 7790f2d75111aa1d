"""Checks of a run: each function looks at one kind of problem and yields what it finds in the evidence."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from electrakit.doctor import limits, problems
from electrakit.doctor.evidence import Curve, Evidence
from electrakit.doctor.findings import Finding, Level
from electrakit.runs import layout

# --- generator ---


def generator_loss(evidence: Evidence) -> Iterator[Finding]:
    """A loss that has hardly moved, or that stays at what token frequencies and copying alone reach."""
    run, loss = evidence.run, evidence.settled("mlm_loss")
    if not evidence.is_settled or len(loss.values) < limits.FEWEST_LINES:
        return
    now = f"generator loss {loss.last:.2f} at step {run.step:,}"
    if (share := has_hardly_moved(evidence)) is not None:
        way = (
            f"{share:.0%} of the way from a uniform prediction ({evidence.uniform_entropy:.2f}) to the unigram entropy"
        )
        yield problems.LR_TOO_LOW.found("serious", f"{now}, after {way}; highest rate {highest_rate(evidence):.2g}")
    elif evidence.is_old and is_without_context(evidence) and not discriminator_learns(evidence):
        then = f"{loss.quarter(1):.2f} at step {loss.steps[len(loss.steps) * 3 // 8]:,}"
        seen = f"{now} ({tokens_seen(evidence)}), {then}; {describe_baseline(evidence)}"
        if is_constant(evidence):
            yield problems.LR_TOO_HIGH.found("serious", f"{seen}; AUC .500: every token gets the same score")
        elif is_plateau(loss):
            means = f"{problems.AT_UNIGRAM_ENTROPY.means} {cause_of_plateau(evidence)}".strip()
            yield problems.AT_UNIGRAM_ENTROPY.found("serious", seen, means=means)


def describe_baseline(evidence: Evidence) -> str:
    """Describe what the loss is compared with."""
    accuracy = evidence.settled("gen_acc")
    reached = f"; accuracy {accuracy.last:.3f}" if len(accuracy.values) else ""
    if evidence.unigram_entropy is None or evidence.floor is None:
        return f"the shards are gone: judged by the accuracy, of which {evidence.copied_share:.2f} is copied{reached}"
    return f"unigram entropy {evidence.unigram_entropy:.2f}, with the shown tokens copied {evidence.floor:.2f}{reached}"


def tokens_seen(evidence: Evidence) -> str:
    return f"{evidence.run.step * evidence.run.tokens_per_step / 1e6:,.1f} M tokens"


def cause_of_plateau(evidence: Evidence) -> str:
    """The likeliest cause, or an empty string."""
    if evidence.letters is not None and evidence.letters >= limits.LETTERS:
        return f"Here it is the text: {evidence.letters:.0%} of the words in its shards are single letters in a row."
    if evidence.run.step * evidence.run.tokens_per_step < limits.OLD_TOKENS:
        return "This run was short: too few steps come first among the causes."
    return ""


def is_plateau(loss: Curve) -> bool:
    return loss.quarter(1) - loss.last < limits.PLATEAU * loss.quarter(1)


def is_without_context(evidence: Evidence) -> bool:
    """Whether the generator is no better than token frequencies and copying."""
    loss, accuracy = evidence.settled("mlm_loss"), evidence.settled("gen_acc")
    if not len(loss.values):
        return False
    if evidence.floor is not None:
        return loss.last >= limits.AT_FLOOR * evidence.floor
    copied = evidence.copied_share
    return bool(len(accuracy.values)) and accuracy.last < copied + (1 - copied) * limits.HIDDEN_ACCURACY


def is_constant(evidence: Evidence) -> bool:
    """Whether the discriminator gives every token the same score: its output does not depend on its input."""
    values = evidence.curve("disc_auc", "valid").after(0).values[-2:]
    return len(values) == 2 and bool((np.abs(values - 0.5) < limits.CONSTANT).all())


def discriminator_learns(evidence: Evidence) -> bool:
    """If it does, the text has context, and the generator only needs more time."""
    auc = auc_of(evidence)
    return auc is not None and auc > limits.AUC_OF_LEARNING


def has_hardly_moved(evidence: Evidence) -> float | None:
    """The share of the way to the unigram entropy, if it is small and the loss is still falling; else None."""
    loss, start = evidence.curve("mlm_loss"), evidence.uniform_entropy
    if start is None or not len(loss.values):
        return None
    goal = limits.ENTROPY_OF_TEXT * start if evidence.unigram_entropy is None else evidence.unigram_entropy
    is_continued = any(evidence.run.settings.get(name) for name in ("init_generator", "init_discriminator"))
    if is_continued or goal > 0.97 * start:
        return None  # it started from other weights, or has nothing to gain
    share = (start - loss.last) / (start - goal)
    return max(0.0, share) if share < limits.HARDLY_MOVED and loss.last <= 1.02 * loss.values.min() else None


def highest_rate(evidence: Evidence) -> float:
    rates = evidence.curve("lr").values
    return float(rates.max()) if len(rates) else math.nan


def generator_too_strong(evidence: Evidence) -> Iterator[Finding]:
    accuracy = evidence.settled("sampled_acc")
    if len(accuracy.values) < limits.FEWEST_LINES or (level := level_of(accuracy.last, limits.TOO_STRONG)) is None:
        return
    rate, chosen = evidence.settled("replaced_rate"), evidence.setting("objective", "mask_prob", 0.15)
    seen = f"sampled accuracy {accuracy.last:.2f} up to step {evidence.run.step:,}"
    if len(rate.values):
        seen += f": {chosen:.0%} of the tokens are chosen, {rate.last:.1%} are replaced by another"
    yield problems.GENERATOR_TOO_STRONG.found(level, seen)


# --- discriminator ---


def discriminator(evidence: Evidence) -> Iterator[Finding]:
    """A loss at the entropy of the base rate, or above it with one answer for every token."""
    shares = shares_of_base_rate(evidence)
    if len(shares.values) < limits.FEWEST_LINES or not evidence.is_settled or has_hardly_moved(evidence) is not None:
        return
    answer, auc = one_answer(evidence), auc_of(evidence)
    parts = [
        f"loss {evidence.settled('disc_loss').last:.3f}",
        f"entropy of the base rate {evidence.base_rate_entropy().last:.3f}",
        "" if auc is None else f"AUC {auc:.3f}",
        "" if answer is None else f"it says {answer} of nearly every token",
        f"at step {evidence.run.step:,}, {evidence.num_after_warmup:,} steps after the warm-up",
    ]
    seen = ", ".join(filter(None, parts))
    if answer is not None and shares.last >= limits.WORSE_THAN_BASE_RATE:
        yield problems.ONE_ANSWER.found("serious", seen)
    elif evidence.is_old and is_at_base_rate(evidence):
        why = "" if is_constant(evidence) else cause_of_plateau(evidence)
        yield problems.AT_BASE_RATE.found("serious", seen, means=f"{problems.AT_BASE_RATE.means} {why}".strip())


def shares_of_base_rate(evidence: Evidence) -> Curve:
    """The discriminator's loss as a multiple of the base rate's entropy: at 1 it knows nothing but that rate."""
    loss, entropy = evidence.settled("disc_loss"), evidence.base_rate_entropy()
    if evidence.kind != "electra" or len(loss.values) != len(entropy.values):
        return Curve(loss.steps[:0], loss.values[:0])
    return Curve(loss.steps, loss.values / np.maximum(entropy.values, 1e-6))


def is_at_base_rate(evidence: Evidence) -> bool:
    shares, auc = shares_of_base_rate(evidence), auc_of(evidence)
    if not len(shares.values) or shares.last < limits.AT_BASE_RATE:
        return False
    return auc < limits.AUC_OF_CHANCE if auc is not None else shares.quarter(1) - shares.last < limits.PLATEAU


def auc_of(evidence: Evidence) -> float | None:
    """The median of the last three validations."""
    values = evidence.curve("disc_auc", "valid").after(0).values
    return float(np.median(values[-3:])) if len(values) else None


def one_answer(evidence: Evidence) -> str | None:
    recall, precision = evidence.settled("disc_recall"), evidence.settled("disc_precision")
    rate = evidence.settled("replaced_rate")
    if not len(recall.values) or not len(precision.values) or not len(rate.values):
        return None
    if recall.last < limits.ONE_ANSWER:
        return "'original'"
    return "'replaced'" if recall.last > 1 - limits.ONE_ANSWER and precision.last < 1.05 * rate.last else None


# --- stability ---


def instability(evidence: Evidence) -> Iterator[Finding]:
    """Spikes, divergence, losses that are not finite; and whether they began right after a short warm-up."""
    troubles = [trouble for find in (spikes, rise, not_finite) if (trouble := find(evidence)) is not None]
    findings = [finding for _, finding in troubles]
    if troubles and any(finding.level != "info" for finding in findings):
        first, end = min(step for step, _ in troubles), evidence.warmup + limits.RIGHT_AFTER * evidence.num_steps
        is_short = evidence.warmup < min(limits.ENOUGH_WARMUP, limits.SHORT_WARMUP * evidence.num_steps)
        if is_short and first <= end:
            seen = f"{evidence.warmup:,} of {evidence.num_steps:,} steps, to a rate of {highest_rate(evidence):.2g}"
            findings.append(
                problems.WARMUP_TOO_SHORT.found("warning", f"{seen}; trouble began at about step {first:,}")
            )
    yield from findings


def spikes(evidence: Evidence) -> tuple[int, Finding] | None:
    """Lines of the log far above those around them, measured against the noise there and in the whole run."""
    every = evidence.settled("loss")
    loss = every.thinned(limits.MOST_LINES)
    if len(loss.values) < limits.FEWEST_LINES:
        return None
    windows = sliding_window_view(np.pad(loss.values, (0, 2), "reflect"), 9)  # the last two lines are judged later
    around = np.delete(windows, 4, axis=1)
    steps, values = loss.steps[4:-2], windows[:, 4]
    usual = np.maximum(np.median(around, axis=1), 1e-6)
    nearby = 1.4826 * np.median(np.abs(around - usual[:, None]), axis=1) / usual
    noise = np.maximum(nearby, 1.4826 * np.median(np.abs(values / usual - 1)))
    heights = values / usual
    places = np.flatnonzero(heights > 1 + np.maximum(limits.SPIKE - 1, limits.SPIKE_DEVIATIONS * noise))
    if not len(places):
        return None
    top = places[np.argmax(heights[places])]
    if len(places) < max(limits.FEWEST_SPIKES, limits.SPIKES * len(loss.values)) and heights[top] < limits.GREAT_SPIKE:
        return None
    highest = f"the highest at step {steps[top]:,}: {values[top]:.2f}, around it {usual[top]:.2f}"
    return int(steps[places[0]]), problems.SPIKES.found(
        "warning", f"{len(places)} in {len(every.values):,} lines; {highest}"
    )


def rise(evidence: Evidence) -> tuple[int, Finding] | None:
    """A rise of the generator's loss, for good or for a while. The discriminator's also rises when the generator gets better."""
    name = "mlm_loss" if len(evidence.curve("mlm_loss").values) else "loss"
    smooth = evidence.curve(name).thinned(limits.MOST_MEANS).smooth(5)
    if len(smooth.values) < limits.FEWEST_LINES:
        return None
    nothing = evidence.uniform_entropy if name == "mlm_loss" else None
    values = np.concatenate([[math.inf if nothing is None else nothing], smooth.values])  # where every run starts
    steps = np.concatenate([[0], smooth.steps])
    lowest = np.minimum.accumulate(values)
    with np.errstate(invalid="ignore"):
        rises = np.where(values - lowest > limits.LOST_NATS, values / np.maximum(lowest, 1e-6), 1.0)
    top = int(np.argmax(rises))
    best = int(np.argmin(values[: top + 1]))
    what = "generator loss" if name == "mlm_loss" else "loss"
    seen = f"{what} {values[best]:.2f} at step {steps[best]:,}, {values[top]:.2f} at step {steps[top]:,}, {values[-1]:.2f} now"
    if rises[-1] >= limits.LOST:
        return int(steps[best]), problems.DIVERGED.found("serious", seen)
    if rises[top] >= limits.LOST:
        seen += f"; the highest rate was {highest_rate(evidence):.2g}"
        return int(steps[best]), problems.LR_TOO_HIGH.found("warning", seen)
    return None


def not_finite(evidence: Evidence) -> tuple[int, Finding] | None:
    skipped = evidence.curve("num_skipped")
    num_skipped = max([*skipped.values[-1:], evidence.run.progress.num_skipped])
    num_returns = evidence.run.progress.num_returns
    if not num_skipped and not num_returns:
        return None
    level = "serious" if num_returns else level_of(num_skipped / max(1, evidence.run.step), limits.SKIPPED) or "info"
    where = skipped.steps[skipped.values > 0]
    first = int(where[0]) if len(where) else evidence.run.step
    seen = f"{num_skipped:.0f} of {evidence.run.step:,} steps were left out, the first by step {first:,}"
    seen += "; the run went back to a checkpoint" if num_returns else ""
    return first, problems.NOT_FINITE.found(level, seen)


def clipping(evidence: Evidence) -> Iterator[Finding]:
    longest, norm = evidence.setting("optim", "max_grad_norm", None), evidence.settled("grad_norm")
    if longest is None or len(norm.values) < limits.FEWEST_LINES or not evidence.is_settled:
        return
    if has_hardly_moved(evidence) is not None:
        return  # gradients are large at first
    share = float((norm.values > limits.CLIPPED * longest).mean())
    if share >= limits.CLIPPED_LINES:
        seen = f"in {share:.0%} of the lines above {limits.CLIPPED * longest:g}, in the median {np.median(norm.values):.3g}"
        yield problems.ALWAYS_CLIPPED.found("warning", f"{seen}; optim.max_grad_norm is {longest:g}")


# --- weights, validation, speed ---


def sharing(evidence: Evidence) -> Iterator[Finding]:
    """Whether the two networks of the newest checkpoint have the same word embeddings."""
    share, checkpoint = evidence.run.settings.get("share"), evidence.run.checkpoint
    if share not in ("embeddings", "encoder") or not evidence.run.settings.get("generator") or checkpoint is None:
        return
    tables = [word_table(checkpoint / name / layout.WEIGHTS_FILE) for name in ("generator", "discriminator")]
    if tables[0] is None or tables[1] is None or np.array_equal(tables[0], tables[1]):
        return
    seen = f"share is {share!r}, but in {checkpoint.name} the word tables "
    if tables[0].shape == tables[1].shape:
        away = float(np.abs(tables[0] - tables[1]).mean() / max(1e-12, np.abs(tables[1]).mean()))
        yield problems.NOT_SHARED.found("serious", f"{seen}differ by {away:.0%} of their size")
    else:
        yield problems.NOT_SHARED.found("serious", f"{seen}have the sizes {tables[0].shape} and {tables[1].shape}")


def word_table(path: Path) -> np.ndarray | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = [name for name in file.keys() if name.endswith(("word_embeddings.weight", "tok_embeddings.weight"))]  # noqa: SIM118  # it has no __iter__
            return file.get_tensor(names[0]) if names else None
    except (OSError, SafetensorError, TypeError):  # being written or removed, damaged, or of a type numpy does not know
        return None


def overfitting(evidence: Evidence) -> Iterator[Finding]:
    """Of the generator or the discriminator, whichever is worse."""
    names = {"mlm_loss": "generator loss", "disc_loss": "discriminator loss"}
    share, seen = max([validation_gap(evidence, name, label) for name, label in names.items()])
    if (level := level_of(share, limits.OVERFIT)) is None:
        return
    epochs = evidence.epochs
    seen = seen if epochs is None else f"{seen}; each row was seen {epochs:.1f} times"
    if epochs is not None and epochs < limits.SEEN_OFTEN:
        means = "Rows were seen once or twice only, too rarely to memorise them: are there copies in the text, "
        means += "or is the validation text of another kind? Run electra doctor on the shards."
        yield problems.OVERFITTING.found(level, seen, means=means)
    else:
        yield problems.OVERFITTING.found(level, seen)


def validation_gap(evidence: Evidence, name: str, label: str) -> tuple[float, str]:
    """How far validation rose above its best while training fell, as a share; 0 if that may be chance. Medians of three validations."""
    valid, train = evidence.curve(name, "valid"), evidence.curve(name)
    smooth = valid.smooth(3)
    if len(smooth.values) < 2:
        return 0.0, ""
    first = int(np.argmin(smooth.values))  # of the three best in a row
    best, end = float(smooth.values[first]), float(smooth.values[-1])
    then = train.between(valid.steps[first], valid.steps[first + 2]).values
    now = train.between(valid.steps[-3], valid.steps[-1]).values
    if best <= 0 or valid.values[0] <= best or not len(then) or not len(now):
        return 0.0, ""  # it never fell, or there are no training lines to compare with
    was, is_now = float(np.median(then)), float(np.median(now))
    noise = float(np.median(np.abs(np.diff(valid.values[first:]))))
    is_apart = end > (1 + limits.OVERFIT["warning"]) * is_now
    if is_now > limits.STILL_FALLING * was or not is_apart or end - best < limits.NOISE_FACTOR * noise:
        return 0.0, ""
    seen = f"{label} in validation {best:.3g} at step {valid.steps[first + 1]:,}, {end:.3g} at step {valid.steps[-1]:,}"
    return end / best - 1, f"{seen}; in training {was:.3g}, then {is_now:.3g}"


def speed(evidence: Evidence) -> Iterator[Finding]:
    rate = evidence.curve("tokens_per_second")
    rate = Curve(rate.steps[2:], rate.values[2:])  # the first steps fill caches and compile graphs
    if len(rate.values) < limits.FEWEST_TIMES:
        return
    before, now = float(np.median(rate.values[: len(rate.values) // 2])), rate.last
    if now < limits.SLOWER * before:
        smooth = rate.smooth(5)
        slow = np.flatnonzero(smooth.values >= (1 + limits.SLOWER) / 2 * before)
        since = int(smooth.steps[min(len(smooth.steps) - 1, slow[-1] + 1 if len(slow) else 0)])
        seen = (
            f"{before:,.0f} tokens per second in the first half of the run, {now:,.0f} now, since about step {since:,}"
        )
        yield problems.SLOWER.found("warning", seen)


# --- age ---


def youth(evidence: Evidence) -> Iterator[Finding]:
    """A run that has learned too little so far to be judged."""
    run = evidence.run
    has_learned = [not is_without_context(evidence)] if len(evidence.settled("mlm_loss").values) else []
    has_learned += [not is_at_base_rate(evidence)] if len(shares_of_base_rate(evidence).values) else []
    if (
        evidence.is_old
        or (has_learned and all(has_learned))
        or (evidence.is_settled and has_hardly_moved(evidence) is not None)
    ):
        return
    metrics = {"generator loss": "mlm_loss", "discriminator loss": "disc_loss", "AUC": "disc_auc"}
    values = [f"{label} {value:.3g}" for label, name in metrics.items() if (value := evidence.latest(name)) is not None]
    seen = f"step {run.step:,}, {evidence.num_after_warmup:,} after the warm-up of {evidence.warmup:,}; {tokens_seen(evidence)}"
    advice = "It is over already: to learn more, it needs more --steps." if run.is_complete else problems.YOUNG.advice
    yield problems.YOUNG.found("info", "; ".join([seen, ", ".join(values)]) if values else seen, advice=advice)


def completeness(evidence: Evidence) -> Iterator[Finding]:
    run = evidence.run
    if run.is_complete:
        return
    budget = run.settings.get("budget")
    seen = f"step {run.step:,} of {f'what {budget} allow' if budget else f'{evidence.num_steps:,}'}"
    log = run.path / layout.METRICS_FILE
    if log.exists():
        seen += f"; the log was written {ago(time.time() - log.stat().st_mtime)} ago"
    yield problems.INCOMPLETE.found("info", seen)


def ago(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} seconds"


def level_of(value: float, thresholds: Mapping[Level, float]) -> Level | None:
    """The worst level whose threshold is reached."""
    return next((level for level in ("serious", "warning") if value >= thresholds[level]), None)


RUN_CHECKS: list[Callable[[Evidence], Iterator[Finding]]] = [
    *(instability, generator_loss, discriminator, generator_too_strong, sharing),
    *(overfitting, clipping, speed, youth, completeness),
]
