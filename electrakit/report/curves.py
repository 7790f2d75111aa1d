"""The charts of the report and what each shows; the curves of a run, with as many points as can be seen."""

import math
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from electrakit.runs.files import Floats, RunFiles, column

NumberFormat = Literal["nats", "percent", "number", "rate", "count"]
ChartGroup = Literal["generator", "discriminator", "corruptions", "training"]
GROUPS: dict[ChartGroup, str] = {
    "generator": "Generator",
    "discriminator": "Discriminator",
    "corruptions": "AUC on fixed corruptions",
    "training": "Training",
}
"""And their titles."""

MOST_BUCKETS, FEWEST_BUCKETS, BUCKETS_OF_ALL_RUNS = 600, 120, 2400
"""A curve has up to three points in a bucket: a screen cannot show more."""


@dataclass(frozen=True)
class Chart:
    """How one metric of the log is shown and explained."""

    key: str
    """Its name in metrics.jsonl."""
    group: ChartGroup
    title: str
    format: NumberFormat
    shows: str
    healthy: str
    """How it looks in a good run."""
    can_log: bool = False
    """Whether a logarithmic axis makes sense."""
    is_log: bool = False
    """Whether it starts with one."""
    baseline: Literal["entropy", "majority", "chance"] | None = None
    """The dotted line: what is reached without having learned anything."""
    only_if_positive: bool = False
    """Shown only if it is ever above 0."""
    unit: str = ""
    can_smooth: bool = True
    """False for values that are computed, not measured."""
    only_at_validations: bool = False
    """Whether training does not log it."""

    @property
    def short_title(self) -> str:
        """Under the title of its group."""
        title = self.title.removeprefix(f"{GROUPS[self.group]} ")
        return title[:1].upper() + title[1:]

    @property
    def full_title(self) -> str:
        """With where it is measured."""
        return f"{self.title} (validation)" if self.only_at_validations else self.title


CHARTS = (
    Chart(
        *("mlm_loss", "generator", "Generator loss", "nats"),
        "Mean cross-entropy of the words that were masked. Lower is better.",
        "Starts near the logarithm of the vocabulary's size, falls fast to about 7, stays there for a while (it has learned how "
        "frequent words are), then falls on slowly. ELECTRA-Small's ends near 3.3 after a million steps.",
        unit="nats",
        can_log=True,
    ),
    Chart(
        *("gen_acc", "generator", "Generator accuracy", "percent"),
        "How often the generator's best prediction is the masked word.",
        "Rises over the whole run. A few per cent means that it always predicts the most frequent word; ELECTRA-Small ends near 45 %.",
    ),
    Chart(
        *("sampled_acc", "generator", "Sampled accuracy", "percent"),
        "How often the word that was drawn from the generator is the original one: such a word counts as original, not as replaced.",
        "Rises slowly and stays below the accuracy. Far above a half, the generator is too strong and leaves too little to find.",
    ),
    Chart(
        *("disc_loss", "discriminator", "Discriminator loss", "nats"),
        "How wrong the discriminator is about which tokens were replaced, as a mean over the tokens where it is scored. Lower is better.",
        "Soon falls below the dotted line, which is the loss of always predicting the share of replaced tokens, and stays below. "
        "On the line it has learned nothing yet. ELECTRA-Small ends near 0.16. It may rise a little while the generator improves.",
        unit="nats",
        can_log=True,
        baseline="entropy",
    ),
    Chart(
        *("disc_acc", "discriminator", "Discriminator accuracy", "percent"),
        "Share of the tokens that the discriminator classifies correctly.",
        "Above the dotted line, which is the accuracy of calling every token original. Because most tokens are, this metric is high "
        "from the start and says little alone: look at the AUC.",
        baseline="majority",
    ),
    Chart(
        *("disc_auc", "discriminator", "Discriminator AUC", "number"),
        "How often the discriminator finds a replaced token more suspicious than an original one. Measured at validations.",
        "0.5 (dotted) is chance, 1 is perfect. It leaves 0.5 once the generator's replacements make sense; ELECTRA-Small ends near 0.93.",
        baseline="chance",
        only_at_validations=True,
    ),
    Chart(
        *("disc_recall", "discriminator", "Recall of replaced tokens", "percent"),
        "Share of the replaced tokens that the discriminator finds.",
        "Near 0 at first, then rises. Staying at 0 means that it calls every token original; 100 % that it calls every token replaced.",
    ),
    Chart(
        *("disc_precision", "discriminator", "Precision of “replaced”", "percent"),
        "Of the tokens that the discriminator calls replaced, the share that really are.",
        "Well above the replaced rate. It is noisy while the discriminator hardly ever calls a token replaced.",
    ),
    Chart(
        *("auc_frequency", "corruptions", "Words by frequency", "number"),
        "How often the discriminator finds a changed word more suspicious than an unchanged one, where words were changed to others "
        "drawn by their frequency. No network makes these rows: they are the same for every run on these shards.",
        "0.5 (dotted) is chance, 1 is perfect. The first of the three to rise: a word that no neighbour expects is enough.",
        unit="AUC",
        baseline="chance",
        only_at_validations=True,
    ),
    Chart(
        *("auc_neighbours", "corruptions", "Words that fit their neighbours", "number"),
        "The same, where words were changed to others that were often seen between the same two neighbours: only wider context tells.",
        "Rises last and least. Near 0.5, the discriminator knows words and their neighbours, but no sentences.",
        unit="AUC",
        baseline="chance",
        only_at_validations=True,
    ),
    Chart(
        *("auc_swapped", "corruptions", "Swapped neighbours", "number"),
        "The same, where two words side by side have changed places: how frequent a word is says nothing, its order does.",
        "Rises as soon as the discriminator reads the order of words.",
        unit="AUC",
        baseline="chance",
        only_at_validations=True,
    ),
    Chart(
        *("loss", "training", "Total loss", "nats"),
        "What is minimised: the generator's loss plus the discriminator's times its weight (50 in the paper).",
        "Falls quickly, then slowly. ELECTRA-Small: 17 after 12 thousand steps, 15 after 60, 13 after 200, 11 after a million.",
        can_log=True,
    ),
    Chart(
        *("replaced_rate", "training", "Replaced tokens", "percent"),
        "Share of all tokens that were really exchanged for another word: what there is to be found.",
        "Starts at the share that is masked (15 %) and falls slowly as the generator is right more often. "
        "Far below 5 % there is little left to learn from.",
    ),
    Chart(
        *("lr", "training", "Learning rate", "rate"),
        "How far each step moves the weights.",
        "Rises during the warm-up, then falls to zero at the end, as the schedule says.",
        can_log=True,
        can_smooth=False,
    ),
    Chart(
        *("grad_norm", "training", "Gradient norm", "number"),
        "Length of the gradient before it is clipped: how strongly the batch pulls at the weights.",
        "High at first, then calm. Single peaks are clipped and harmless; a norm that keeps rising announces divergence.",
        can_log=True,
        is_log=True,
    ),
    Chart(
        *("tokens_per_second", "training", "Speed", "count"),
        "Tokens that go through training in a second, padding included, without the time for validations and checkpoints.",
        "A flat line. A drop means that something else uses the machine, or that reading the data cannot keep up.",
        unit="tokens a second",
    ),
    Chart(
        *("mfu", "training", "Model FLOPs utilisation", "percent"),
        "Share of what the processor could compute at most that goes into the model's matrix products.",
        "A flat line; 30 to 60 % is good on a GPU, and small networks reach less.",
    ),
    Chart(
        *("num_skipped", "training", "Skipped steps", "count"),
        "Steps so far without an update, because the loss or the gradient was not finite.",
        "0. A few are forgiven; many mean that the learning rate is too high or the precision too low.",
        only_if_positive=True,
        can_smooth=False,
    ),
)


class Clock(TypedDict):
    """When steps were done."""

    step: list[float | None]
    seconds: list[float | None]


Points = list[list[float | None]]
"""Steps, and values."""


class TrainCurve(TypedDict):
    """A metric of the log."""

    mean: list[float | None]
    """One for each bucket of lines."""
    raw: Points | None
    """Points that keep the outline of all lines; None where every line is a bucket."""


class RunCurves(TypedDict):
    """Everything that the script draws of a run, as JSON."""

    tokens_per_step: int
    clock: Clock
    at: list[float | None] | None
    """The steps of the means; None where every line is a bucket."""
    train: dict[str, TrainCurve]
    valid: dict[str, Points]
    base_rate: str | None


def curves(run: RunFiles, num_buckets: int) -> RunCurves:
    steps, num_lines = column(run.train, "step"), len(run.train)
    edges = bucket_edges(num_lines, num_buckets)
    has_all_lines = len(edges) - 1 == num_lines
    shown_times = np.union1d(np.maximum(edges[1:] - 1, 0), [0]).astype(int) if num_lines else np.zeros(0, int)
    seconds = column(run.train, "seconds")
    train: dict[str, TrainCurve] = {}
    for chart in CHARTS:
        values = column(run.train, chart.key)
        if not np.isfinite(values).any() or (chart.only_if_positive and not np.nanmax(values) > 0):
            continue
        raw = None if has_all_lines else outline(steps, values, edges)
        train[chart.key] = {"mean": plain(bucket_means(values, edges)), "raw": raw}
    return {
        "tokens_per_step": run.tokens_per_step,
        "clock": {"step": plain(steps[shown_times]), "seconds": plain(seconds[shown_times], 8)},
        "at": None if has_all_lines else plain(bucket_means(steps, edges), 8),
        "train": train,
        "valid": {chart.key: points for chart in CHARTS if (points := validations(run, chart.key, num_buckets))},
        "base_rate": run.base_rate,
    }


def validations(run: RunFiles, key: str, num_buckets: int) -> Points | None:
    steps, values = column(run.valid, "step"), column(run.valid, key)
    known = np.isfinite(values)
    return outline(steps[known], values[known], bucket_edges(int(known.sum()), num_buckets)) if known.any() else None


def buckets_for(num_runs: int) -> int:
    """For each of so many runs: the more there are, the coarser, so that the page stays small."""
    return max(FEWEST_BUCKETS, min(MOST_BUCKETS, BUCKETS_OF_ALL_RUNS // max(1, num_runs)))


# Fewer points


def bucket_edges(num_points: int, num_buckets: int) -> NDArray[np.int64]:
    """Where buckets of about the same size begin, and the end. Up to three points a bucket are left alone: one bucket each."""
    if num_points <= 3 * num_buckets:
        return np.arange(num_points + 1)
    return np.linspace(0, num_points, num_buckets + 1).astype(np.int64)


def outline(steps: Floats, values: Floats, edges: NDArray[np.int64]) -> Points:
    chosen = min_max(values, edges)
    return [plain(steps[chosen]), plain(values[chosen])]


def min_max(values: Floats, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the lowest and the highest value of each bucket, and of the first and last value; an empty bucket keeps a gap."""
    chosen = {0, len(values) - 1} if len(values) else set()
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[start:end]
        if np.isfinite(part).any():
            chosen |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
        else:
            chosen.add(start)
    return np.array(sorted(chosen), dtype=np.int64)


def bucket_means(values: Floats, edges: NDArray[np.int64]) -> Floats:
    """Mean of the known values of each bucket; NaN where there are none."""
    if len(edges) < 2:
        return np.zeros(0)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), edges[:-1])
    counts = np.add.reduceat(known.astype(np.float64), edges[:-1])
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


# Numbers


def plain(values: Floats, digits: int = 5) -> list[float | None]:
    """For JSON, as short as possible: integers as such, others with so many digits, missing ones as None."""
    return [None if math.isnan(value) else _short(value, digits) for value in values.tolist()]


def _short(value: float, digits: int) -> float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{digits}g}")
