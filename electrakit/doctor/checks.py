"""Checks of a run: each function looks at one kind of problem and yields what it finds in the evidence."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from electrakit.common.words import format_duration, format_number, format_share
from electrakit.doctor import limits, problems
from electrakit.doctor.evidence import Curve, Evidence
from electrakit.doctor.findings import Finding
from electrakit.runs import layout

# --- generator ---


def generator_loss(evidence: Evidence) -> Iterator[Finding]:
    """A loss that has hardly moved, or that stays at what token frequencies and copying alone reach."""
    loss = evidence.settled("mlm_loss")
    if not evidence.is_settled or len(loss) < limits.FEWEST_LINES:
        return
    if evidence.settled("reward"):  # it is trained to deceive, not to predict
        return
    before, auc = loss.quarter(1), recent_auc(evidence)
    now = f"generator loss {loss.last_quarter:.2f} at step {evidence.run.step:,}"
    if (share := has_hardly_moved(evidence)) is not None:
        way = f"{format_share(share)} of the way from a uniform prediction ({evidence.uniform_entropy:.2f})"
        rate = f"highest rate {highest_rate(evidence):.2g}"
        yield problems.LR_TOO_LOW.found("serious", f"{now}, after {way} to the unigram entropy; {rate}")
    elif evidence.is_old and is_without_context(evidence) and (auc is None or auc <= limits.AUC_OF_LEARNING):
        seen = f"{now} ({format_number(evidence.num_tokens)} tokens), {before:.2f} at step {loss.steps[len(loss) * 3 // 8]:,}"
        seen += f"; {describe_baseline(evidence)}"
        if is_constant(evidence):
            yield problems.LR_TOO_HIGH.found("serious", f"{seen}; AUC .500: every token gets the same score")
        elif before - loss.last_quarter < limits.PLATEAU * before:
            means = f"{problems.AT_UNIGRAM_ENTROPY.means} {cause_of_plateau(evidence)}".strip()
            yield problems.AT_UNIGRAM_ENTROPY.found("serious", seen, means=means)


def describe_baseline(evidence: Evidence) -> str:
    """What the loss is compared with."""
    accuracy = evidence.settled("gen_acc")
    reached = f"; accuracy {accuracy.last_quarter:.3f}" if accuracy else ""
    if evidence.unigram_entropy is None or evidence.floor is None:
        return f"the shards are gone: judged by the accuracy, of which {evidence.copied_share:.2f} is copied{reached}"
    return f"unigram entropy {evidence.unigram_entropy:.2f}, with the shown tokens copied {evidence.floor:.2f}{reached}"


def cause_of_plateau(evidence: Evidence) -> str:
    """The likeliest cause, or an empty string."""
    letters = 0.0 if evidence.text is None else evidence.text.letters_in_a_row
    if letters >= limits.LETTERS:
        return f"Here it is the text: {format_share(letters)} of the words in its shards are single letters in a row."
    if evidence.num_tokens < limits.OLD_TOKENS:
        return "This run was short: too few steps come first among the causes."
    return ""


def is_without_context(evidence: Evidence) -> bool:
    """Whether the generator is no better than token frequencies and copying."""
    loss, accuracy, copied = evidence.settled("mlm_loss"), evidence.settled("gen_acc"), evidence.copied_share
    if not loss:
        return False
    if evidence.floor is not None:
        return loss.last_quarter >= limits.AT_FLOOR * evidence.floor
    return bool(accuracy) and accuracy.last_quarter < copied + (1 - copied) * limits.HIDDEN_ACCURACY


def is_constant(evidence: Evidence) -> bool:
    """Whether the discriminator gives every token the same score: its output does not depend on its input."""
    values = evidence.validations("disc_auc")[-2:]
    return len(values) == 2 and bool((np.abs(values - 0.5) < limits.CONSTANT).all())


def has_hardly_moved(evidence: Evidence) -> float | None:
    """The share of the way to the unigram entropy, if it is small and the loss is still falling; else None."""
    loss, start = evidence.curve("mlm_loss"), evidence.uniform_entropy
    if start is None or not loss:
        return None
    goal = limits.ENTROPY_OF_TEXT * start if evidence.unigram_entropy is None else evidence.unigram_entropy
    if evidence.run.stored.is_continued or goal > 0.97 * start:
        return None  # it started from other weights, or has nothing to gain
    share = (start - loss.last_quarter) / (start - goal)
    return max(0.0, share) if share < limits.HARDLY_MOVED and loss.last_quarter <= 1.02 * loss.values.min() else None


def highest_rate(evidence: Evidence) -> float:
    rates = evidence.curve("lr").values
    return float(rates.max()) if len(rates) else math.nan


def generator_too_strong(evidence: Evidence) -> Iterator[Finding]:
    accuracy = evidence.settled("sampled_acc")
    if len(accuracy) < limits.FEWEST_LINES or (level := limits.TOO_STRONG.level(accuracy.last_quarter)) is None:
        return
    rate, chosen = evidence.settled("replaced_rate"), evidence.run.stored.mask_prob
    seen = f"sampled accuracy {accuracy.last_quarter:.2f} up to step {evidence.run.step:,}"
    if rate:
        replaced = format_share(rate.last_quarter)
        seen += f": {format_share(chosen)} of the tokens are chosen, {replaced} are replaced by another"
    yield problems.GENERATOR_TOO_STRONG.found(level, seen)


# --- discriminator ---


def discriminator(evidence: Evidence) -> Iterator[Finding]:
    """A loss at the entropy of the base rate, or above it with one answer for every token."""
    shares = shares_of_base_rate(evidence)
    if len(shares) < limits.FEWEST_LINES or not evidence.is_settled or has_hardly_moved(evidence) is not None:
        return
    answer, auc = one_answer(evidence), recent_auc(evidence)
    parts = [
        f"loss {evidence.settled('disc_loss').last_quarter:.3f}",
        f"entropy of the base rate {evidence.base_rate_entropy().last_quarter:.3f}",
        "" if auc is None else f"AUC {auc:.3f}",
        "" if answer is None else f"it says {answer} of nearly every token",
        f"at step {evidence.run.step:,}, {evidence.num_after_warmup:,} steps after the warm-up",
    ]
    seen = ", ".join(filter(None, parts))
    if answer is not None and shares.last_quarter >= limits.WORSE_THAN_BASE_RATE:
        yield problems.ONE_ANSWER.found("serious", seen)
    elif evidence.is_old and is_at_base_rate(evidence):
        why = "" if is_constant(evidence) else cause_of_plateau(evidence)
        yield problems.AT_BASE_RATE.found("serious", seen, means=f"{problems.AT_BASE_RATE.means} {why}".strip())


def shares_of_base_rate(evidence: Evidence) -> Curve:
    """The discriminator's loss as a multiple of the base rate's entropy: at 1 it knows nothing but that rate."""
    loss, entropy = evidence.settled("disc_loss"), evidence.base_rate_entropy()
    if len(loss) != len(entropy):  # there is no base rate: other objectives
        return loss[:0]
    return Curve(loss.steps, loss.values / np.maximum(entropy.values, 1e-6))


def is_at_base_rate(evidence: Evidence) -> bool:
    shares, auc = shares_of_base_rate(evidence), recent_auc(evidence)
    if not shares or shares.last_quarter < limits.BASE_RATE_SHARE:
        return False
    return auc < limits.AUC_OF_CHANCE if auc is not None else shares.quarter(1) - shares.last_quarter < limits.PLATEAU


def recent_auc(evidence: Evidence) -> float | None:
    """The median of the last three validations."""
    values = evidence.validations("disc_auc")
    return float(np.median(values[-3:])) if len(values) else None


def one_answer(evidence: Evidence) -> str | None:
    recall, precision = evidence.settled("disc_recall"), evidence.settled("disc_precision")
    rate = evidence.settled("replaced_rate")
    if not recall or not precision or not rate:
        return None
    if recall.last_quarter < limits.ONE_ANSWER_RECALL:
        return "'original'"
    finds_all = recall.last_quarter > 1 - limits.ONE_ANSWER_RECALL
    return "'replaced'" if finds_all and precision.last_quarter < 1.05 * rate.last_quarter else None


# --- stability ---


def instability(evidence: Evidence) -> Iterator[Finding]:
    """Spikes, divergence, losses that are not finite; and whether they began right after a short warm-up."""
    troubles = [trouble for find in (spikes, rise, not_finite) if (trouble := find(evidence)) is not None]
    findings = [finding for _, finding in troubles]
    if any(finding.level != "info" for finding in findings):
        first, end = min(step for step, _ in troubles), evidence.warmup + limits.RIGHT_AFTER * evidence.num_steps
        is_short = evidence.warmup < min(limits.ENOUGH_WARMUP, limits.SHORT_WARMUP * evidence.num_steps)
        if is_short and first <= end:
            seen = f"{evidence.warmup:,} of {evidence.num_steps:,} steps, to a rate of {highest_rate(evidence):.2g}"
            seen += f"; trouble began at about step {first:,}"
            findings.append(problems.WARMUP_TOO_SHORT.found("warning", seen))
    yield from findings


def spikes(evidence: Evidence) -> tuple[int, Finding] | None:
    """Lines of the log far above those around them, measured against the noise there and in the whole run."""
    every = evidence.settled("loss")
    loss = every.thinned(limits.MOST_LINES)
    if len(loss) < limits.FEWEST_LINES:
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
    if len(places) < max(limits.FEWEST_SPIKES, limits.SPIKES_SHARE * len(loss)) and heights[top] < limits.GREAT_SPIKE:
        return None
    highest = f"the highest at step {steps[top]:,}: {values[top]:.2f}, around it {usual[top]:.2f}"
    seen = f"{len(places)} in {len(every):,} lines; {highest}"
    return int(steps[places[0]]), problems.SPIKES.found("warning", seen)


def rise(evidence: Evidence) -> tuple[int, Finding] | None:
    """A rise of the generator's loss, for good or for a while. The discriminator's also rises when the generator gets better."""
    name = "mlm_loss" if evidence.curve("mlm_loss") else "loss"
    smooth = evidence.curve(name).thinned(limits.MOST_MEANS).smooth(5)
    if len(smooth) < limits.FEWEST_LINES:
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
    level = "serious" if num_returns else limits.SKIPPED_SHARE.level(num_skipped / max(1, evidence.run.step)) or "info"
    where = skipped.steps[skipped.values > 0]
    first = int(where[0]) if len(where) else evidence.run.step
    seen = f"{num_skipped:.0f} of {evidence.run.step:,} steps were left out, the first by step {first:,}"
    seen += "; the run went back to a checkpoint" if num_returns else ""
    return first, problems.NOT_FINITE.found(level, seen)


def clipping(evidence: Evidence) -> Iterator[Finding]:
    longest, norm = evidence.run.stored.max_grad_norm, evidence.settled("grad_norm")
    if longest is None or len(norm) < limits.FEWEST_LINES or not evidence.is_settled:
        return
    if has_hardly_moved(evidence) is not None:
        return  # gradients are large at first
    share = float((norm.values > limits.CLIPPED * longest).mean())
    if share >= limits.CLIPPED_LINES:
        seen = f"in {format_share(share)} of the lines above {limits.CLIPPED * longest:g}, in the median {np.median(norm.values):.3g}"
        yield problems.ALWAYS_CLIPPED.found("warning", f"{seen}; optim.max_grad_norm is {longest:g}")


# --- weights, validation, speed ---


def sharing(evidence: Evidence) -> Iterator[Finding]:
    """Whether the two networks of the newest checkpoint have the same word embeddings."""
    share, checkpoint = evidence.run.stored.share, evidence.run.checkpoint
    if share not in ("embeddings", "layers", "encoder") or not evidence.run.stored.generator or checkpoint is None:
        return
    tables = [word_table(checkpoint / name / layout.WEIGHTS_FILE) for name in ("generator", "discriminator")]
    if tables[0] is None or tables[1] is None or np.array_equal(tables[0], tables[1]):
        return
    seen = f"share is {share!r}, but in {checkpoint.name} the word tables "
    if tables[0].shape == tables[1].shape:
        away = float(np.abs(tables[0] - tables[1]).mean() / max(1e-12, np.abs(tables[1]).mean()))
        seen += f"differ by {format_share(away)} of their size"
    else:
        seen += f"have the sizes {tables[0].shape} and {tables[1].shape}"
    yield problems.NOT_SHARED.found("serious", seen)


def word_table(path: Path) -> np.ndarray | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names: list[str] = list(file.keys())
            tables = [name for name in names if name.endswith(("word_embeddings.weight", "tok_embeddings.weight"))]
            return file.get_tensor(tables[0]) if tables else None
    except (OSError, SafetensorError, TypeError):  # being written or removed, damaged, or of a type numpy does not know
        return None


def overfitting(evidence: Evidence) -> Iterator[Finding]:
    """Of the generator or the discriminator, whichever is worse."""
    names = {"mlm_loss": "generator loss", "disc_loss": "discriminator loss"}
    share, seen = max(validation_gap(evidence, name, label) for name, label in names.items())
    if (level := limits.OVERFIT.level(share)) is None:
        return
    epochs, means = evidence.epochs, None
    if epochs is not None:
        seen += f"; each row was seen {epochs:.1f} times"
        if epochs < limits.SEEN_OFTEN:
            means = "Rows were seen once or twice only, too rarely to memorise them: are there copies in the text, "
            means += "or is the validation text of another kind? Run electra doctor on the shards."
    yield problems.OVERFITTING.found(level, seen, means=means)


def validation_gap(evidence: Evidence, name: str, label: str) -> tuple[float, str]:
    """How far validation rose above its best while training fell, as a share; 0 if that may be chance. Medians of three validations."""
    valid, train = evidence.curve(name, "valid"), evidence.curve(name)
    smooth = valid.smooth(3)
    if len(smooth) < 2:
        return 0.0, ""
    first = int(np.argmin(smooth.values))  # of the three best in a row
    best, end = float(smooth.values[first]), float(smooth.values[-1])
    then = train[(train.steps > valid.steps[first]) & (train.steps <= valid.steps[first + 2])]
    now = train[(train.steps > valid.steps[-3]) & (train.steps <= valid.steps[-1])]
    if best <= 0 or valid.values[0] <= best or not then or not now:
        return 0.0, ""  # it never fell, or there are no training lines to compare with
    was, is_now = float(np.median(then.values)), float(np.median(now.values))
    noise = float(np.median(np.abs(np.diff(valid.values[first:]))))
    is_apart = end > (1 + limits.OVERFIT.warning) * is_now
    if is_now > limits.STILL_FALLING * was or not is_apart or end - best < limits.NOISE_FACTOR * noise:
        return 0.0, ""
    seen = f"{label} in validation {best:.3g} at step {valid.steps[first + 1]:,}, {end:.3g} at step {valid.steps[-1]:,}"
    return end / best - 1, f"{seen}; in training {was:.3g}, then {is_now:.3g}"


def speed(evidence: Evidence) -> Iterator[Finding]:
    rate = evidence.curve("tokens_per_second")[2:]  # the first steps fill caches and compile graphs
    if len(rate) < limits.FEWEST_TIMES:
        return
    before, now = float(np.median(rate.values[: len(rate) // 2])), rate.last_quarter
    if now < limits.SLOWER_SHARE * before:
        smooth = rate.smooth(5)
        fast = np.flatnonzero(smooth.values >= (1 + limits.SLOWER_SHARE) / 2 * before)
        since = int(smooth.steps[min(len(smooth) - 1, fast[-1] + 1 if len(fast) else 0)])
        seen = f"{before:,.0f} tokens per second in the first half of the run, {now:,.0f} now"
        yield problems.SLOWER.found("warning", f"{seen}, since about step {since:,}")


# --- age ---


def youth(evidence: Evidence) -> Iterator[Finding]:
    """A run that has learned too little so far to be judged."""
    has_learned = [not is_without_context(evidence)] if evidence.settled("mlm_loss") else []
    has_learned += [not is_at_base_rate(evidence)] if shares_of_base_rate(evidence) else []
    is_stuck = evidence.is_settled and has_hardly_moved(evidence) is not None
    if evidence.is_old or is_stuck or (has_learned and all(has_learned)):
        return
    run = evidence.run
    metrics = {"generator loss": "mlm_loss", "discriminator loss": "disc_loss", "AUC": "disc_auc"}
    values = [f"{label} {value:.3g}" for label, name in metrics.items() if (value := evidence.latest(name)) is not None]
    seen = f"step {run.step:,}, {evidence.num_after_warmup:,} after the warm-up of {evidence.warmup:,}"
    seen += f"; {format_number(evidence.num_tokens)} tokens" + (f"; {', '.join(values)}" if values else "")
    advice = "It is over already: to learn more, it needs more --steps." if run.is_complete else None
    yield problems.YOUNG.found("info", seen, advice=advice)


def completeness(evidence: Evidence) -> Iterator[Finding]:
    run = evidence.run
    if run.is_complete:
        return
    budget = run.stored.budget
    seen = f"step {run.step:,} of {f'what {budget} allow' if budget else f'{evidence.num_steps:,}'}"
    log = run.path / layout.METRICS_FILE
    if log.exists():
        seen += f"; the log was written {format_duration(max(0.0, time.time() - log.stat().st_mtime))} ago"
    yield problems.INCOMPLETE.found("info", seen)


RUN_CHECKS: list[Callable[[Evidence], Iterator[Finding]]] = [
    *(instability, generator_loss, discriminator, generator_too_strong, sharing),
    *(overfitting, clipping, speed, youth, completeness),
]
