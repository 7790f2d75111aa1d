"""The evidence about a run that the checks use: its curves, the entropies they are compared with, and its age."""

import functools
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from electrakit.common.errors import UserError
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.data.batches import Batches
from electrakit.data.tokenizer_files import load_tokenizer
from electrakit.doctor import limits
from electrakit.doctor.findings import Measure
from electrakit.doctor.measures import row_measures, sample_rows, token_measures, without_special
from electrakit.runs.files import Floats, RunFiles, column

# Rows of the shards for the unigram entropy: it is then within 0.02 nats.
SAMPLE_ROWS = 8_192


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric over the steps where it was finite."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, chosen: slice | np.ndarray) -> "Curve":
        return Curve(self.steps[chosen], self.values[chosen])

    def after(self, step: float) -> "Curve":
        return self[self.steps > step]

    def quarter(self, number: int) -> float:
        """The median of a quarter of the lines, counted from 0."""
        part = np.array_split(self.values, 4)[number]
        return float(np.median(part if len(part) else self.values))

    @property
    def last_quarter(self) -> float:
        return self.quarter(3)

    def thinned(self, most: int) -> "Curve":
        """At most `most` points, each the mean of several lines, so that a log of every step is as smooth as one of every hundredth."""
        size = -(-len(self) // most)
        if size < 2:
            return self
        starts = np.arange(0, len(self), size)
        means = np.add.reduceat(self.values, starts) / np.diff(np.append(starts, len(self)))
        return Curve(self.steps[starts], means)

    def smooth(self, width: int) -> "Curve":
        """Medians of `width` lines, each at the step of its last."""
        if len(self) < width:
            return self[:0]
        return Curve(self.steps[width - 1 :], np.median(sliding_window_view(self.values, width), axis=-1))


@dataclass(frozen=True)
class Evidence:
    """What the checks look at."""

    run: RunFiles
    _curves: dict[tuple[str, str], Curve] = field(default_factory=dict, repr=False, compare=False)

    def curve(self, name: str, split: str = "train") -> Curve:
        """Read once: a log may have a million lines."""
        if (name, split) not in self._curves:
            lines = self.run.train if split == "train" else self.run.valid
            steps, values = np.array([line["step"] for line in lines], int), column(lines, name)
            self._curves[name, split] = Curve(steps, values)[np.isfinite(values)]
        return self._curves[name, split]

    def settled(self, name: str) -> Curve:
        """After the warm-up."""
        return self.curve(name).after(self.warmup)

    def validations(self, name: str) -> np.ndarray:
        """Without the one before the first step."""
        return self.curve(name, "valid").after(0).values

    def latest(self, name: str) -> float | None:
        """The value of the last validation; without one, the median of the log's last quarter."""
        valid, train = self.validations(name), self.curve(name)
        if len(valid):
            return float(valid[-1])
        return train.last_quarter if len(train) else None

    # --- settings ---

    @property
    def kind(self) -> str:
        return self.run.stored.kind

    @property
    def warmup(self) -> int:
        return self.run.stored.warmup_steps

    @property
    def num_steps(self) -> int:
        """The planned steps; for a run with a time budget, those that are done."""
        planned = 0 if self.run.stored.budget else self.run.stored.steps or 0
        return max(self.run.step, planned)

    @property
    def epochs(self) -> float | None:
        """How many times each row was seen."""
        num_rows = self.run.data.rows.get("train")
        return self.run.step * self.run.stored.batch_size / num_rows if num_rows else None

    # --- age ---

    @property
    def num_tokens(self) -> int:
        """Seen so far, padding included."""
        return self.run.step * self.run.tokens_per_step

    @property
    def num_after_warmup(self) -> int:
        return max(0, self.run.step - self.warmup)

    @property
    def is_settled(self) -> bool:
        """Far enough past its warm-up to call a flat loss a plateau."""
        return self.num_after_warmup >= max(limits.SETTLED_STEPS, limits.SETTLED_WARMUPS * self.warmup)

    @property
    def is_old(self) -> bool:
        """Complete, or trained for so long that what it has not learned by now it will not learn."""
        has_seen_enough = self.num_tokens >= limits.OLD_TOKENS or self.num_after_warmup >= limits.OLD_STEPS
        return self.is_settled and (self.run.is_complete or has_seen_enough)

    # --- what the losses are compared with ---

    @cached_property
    def text(self) -> "TextMeasures | None":
        """Measures of the training rows; None if the shards are gone or have changed."""
        if self.run.shards is None:
            return None
        return read_text(self.run.shards, tuple(sorted(self.run.data.files.items())))

    @property
    def unigram_entropy(self) -> float | None:
        """In nats."""
        return None if self.text is None else self.text.unigram_entropy

    @property
    def uniform_entropy(self) -> float | None:
        """The loss of uniform predictions."""
        size = self.run.data.vocab_size
        return math.log(size) if size > 1 else None

    @property
    def copied_share(self) -> float:
        """Share of the chosen tokens that copying the visible ones gets right."""
        if self.kind == "electric":
            return 0.0
        if self.kind != "mlm":
            return 1 - self.run.stored.replace_prob
        return 0.15 if self.run.stored.scheme == "electra" else 0.1

    @property
    def floor(self) -> float | None:
        """The generator's loss if it only knows token frequencies and copies the visible tokens."""
        if self.unigram_entropy is None:
            return None
        if self.kind == "mlm" and self.run.stored.scheme == "bert":
            # A tenth stays as it is and a tenth becomes another token: a model cannot tell which.
            return 0.9 * self.unigram_entropy + 0.2 * math.log(2)
        return (1 - self.copied_share) * self.unigram_entropy

    def base_rate_entropy(self) -> Curve:
        """The discriminator's loss, over the steps, if it only knows how many tokens are replaced."""
        rate = self.settled(self.run.base_rate or "")
        return Curve(rate.steps, entropy(rate.values))


def entropy(rate: Floats) -> Floats:
    """Of a yes-or-no event with this probability, in nats."""
    rate = np.clip(rate, 1e-9, 1 - 1e-9)
    result: Floats = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    return result


class TextMeasures(NamedTuple):
    """Measures of the rows that a run learns from."""

    unigram_entropy: float
    letters_in_a_row: float
    """Share of the words."""


@functools.lru_cache(maxsize=32)
def read_text(shards: Path, files: tuple[tuple[str, str], ...]) -> TextMeasures | None:
    """Measure a sample of the training rows."""
    try:
        batches = Batches(shards, 1024, verify=False)
        if any(dict(files).get(file.name) != file.xxh3_128 for file in batches.files):
            return None
        rows, tokenizer = sample_rows(batches, SAMPLE_ROWS), load_tokenizer(shards / SHARDS_TOKENIZER)
        letters = row_measures(rows, tokenizer)[Measure.LETTERS_IN_A_ROW]
    except (OSError, ValueError, KeyError, UserError):
        return None
    counts = np.bincount(rows.ravel(), minlength=batches.vocab_size)
    measured = token_measures(counts, tokenizer, share_seen=len(rows) / batches.num_rows)[Measure.UNIGRAM_ENTROPY]
    counts = without_special(counts, tokenizer)
    # A sample misses rare tokens: the Miller-Madow correction.
    correction = (np.count_nonzero(counts) - 1) / max(1, 2 * counts.sum())
    return TextMeasures(float(measured + correction), letters)
