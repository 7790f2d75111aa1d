"""The doctor's result, measures and findings, and how it is printed."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from electrakit.common.words import format_share

Level = Literal["serious", "warning", "info"]
COLOURS: dict[Level, str] = {"serious": "red", "warning": "yellow", "info": "cyan"}
"""The worst first."""


class Measure(StrEnum):
    """What is measured in a corpus, in shards or in a run, by the name that is printed; a share is printed in percent."""

    kind: Literal["number", "share"]

    def __new__(cls, label: str, kind: Literal["number", "share"]) -> "Measure":
        measure = str.__new__(cls, label)
        measure._value_, measure.kind = label, kind
        return measure

    # Of documents and rows.
    DOCUMENTS = "documents", "number"
    WORDS = "words", "number"
    ROWS = "rows", "number"
    WORDS_PER_DOCUMENT = "words per document", "number"
    TOKENS_PER_DOCUMENT = "tokens per document", "number"
    SHORT_DOCUMENTS = "short documents", "share"
    DUPLICATE_DOCUMENTS = "duplicate documents", "share"
    DUPLICATE_ROWS = "duplicate rows", "share"
    PADDING = "padding", "share"
    ROWS_MOSTLY_PADDING = "rows mostly padding", "share"
    TOKENS_LOST = "tokens lost", "share"
    # Of the text in them.
    SINGLE_LETTERS = "single-letter words", "share"
    LETTERS_IN_A_ROW = "letters in a row", "share"
    OVERLONG_WORDS = "text in overlong words", "share"
    SYMBOLS = "symbols and digits", "share"
    CODE = "code punctuation", "share"
    WORDS_SEEN_ONCE = "words seen once", "share"
    # Of their tokens.
    TOKENS = "tokens", "number"
    TOKENS_PER_WORD = "tokens per word", "number"
    TOKENS_PER_ENTRY = "tokens per vocabulary entry", "number"
    CONTINUED_WORDS = "words of several tokens", "share"
    UNKNOWN_TOKENS = "[UNK] tokens", "share"
    UNUSED_VOCABULARY = "unused vocabulary", "share"
    UNIGRAM_ENTROPY = "unigram entropy (nats)", "number"
    # Of runs.
    STEPS = "steps", "number"
    TOKENS_SEEN = "tokens seen", "number"
    EPOCHS = "times each row was seen", "number"
    GENERATOR_LOSS = "generator loss (nats)", "number"
    LOSS_WITHOUT_CONTEXT = "with shown tokens copied (nats)", "number"
    GENERATOR_ACCURACY = "generator accuracy", "share"
    SAMPLED_ACCURACY = "sampled accuracy", "share"
    REPLACED_RATE = "replaced rate", "share"
    DISCRIMINATOR_LOSS = "discriminator loss (nats)", "number"
    BASE_RATE_ENTROPY = "entropy of the base rate (nats)", "number"
    DISCRIMINATOR_AUC = "discriminator AUC", "number"
    DISCRIMINATOR_RECALL = "discriminator recall", "share"
    SPEED = "tokens per second", "number"


Measures = dict[Measure, float]


class Thresholds(NamedTuple):
    """Values from which on something is a warning, or serious. If the serious one is the lower, low values are bad."""

    warning: float
    serious: float = math.inf

    @property
    def is_low_bad(self) -> bool:
        return self.serious < self.warning

    def level(self, value: float) -> Level | None:
        sign = -1 if self.is_low_bad else 1
        if sign * value >= sign * self.serious:
            return "serious"
        return "warning" if sign * value >= sign * self.warning else None


@dataclass(frozen=True)
class Finding:
    """Something to know about a corpus, shards or a run."""

    level: Level
    """`serious` ruins a run, a `warning` costs quality or time, `info` is nothing wrong."""
    title: str
    """The same for every finding of this problem, and the heading of its section in docs/troubleshooting.md."""
    seen: str
    """The evidence: numbers, and the steps of a run."""
    means: str
    advice: str


@dataclass
class Examination:
    """What was examined, its measures, and the problems found."""

    what: str
    measures: Measures
    findings: list[Finding] = field(default_factory=list)
    not_checked: tuple[Measure, ...] = ()
    """Measures that need a tokenizer, where none was given."""
    advice: str = ""
    """Which tokenizer suits the text."""
    parts: list["Examination"] = field(default_factory=list)
    """One for each run, if several were examined; `findings` are then those of all."""

    @property
    def is_serious(self) -> bool:
        return any(finding.level == "serious" for finding in self.findings)


def format_measure(measure: Measure, value: float) -> str:
    if measure.kind == "share":
        return format_share(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def print_findings(examination: Examination) -> int:
    """Print an examination; returns the exit code, 1 if a finding is serious."""
    screen = Console(highlight=False)
    for number, part in enumerate(examination.parts or [examination]):
        if number:
            screen.print()
        _print_one(part, screen)
    return 1 if examination.is_serious else 0


def _print_one(examination: Examination, screen: Console) -> None:
    screen.print(examination.what, style="bold", markup=False, soft_wrap=True)
    for measure, value in examination.measures.items():
        screen.print(f"  {measure:<31} {format_measure(measure, value):>14}")
    if examination.not_checked:
        screen.print(f"  not checked: {', '.join(examination.not_checked)}; --tokenizer adds these", soft_wrap=True)
    for finding in examination.findings:
        head = f"\n[{COLOURS[finding.level]} bold]{finding.level}: {finding.title}[/]  [dim]{escape(finding.seen)}"
        screen.print(head, soft_wrap=True)
        screen.print(Padding(escape(finding.means), (0, 0, 0, 2)))
        screen.print(Padding(f"[bold]What to do:[/] {escape(finding.advice)}", (0, 0, 0, 2)))
    if all(finding.level == "info" for finding in examination.findings):
        screen.print("[green]Nothing wrong was found.")
    if examination.advice:
        screen.print(f"\n{examination.advice}.", markup=False, soft_wrap=True)
    entropy = examination.measures.get(Measure.UNIGRAM_ENTROPY)
    if entropy is not None and Measure.GENERATOR_LOSS not in examination.measures:
        screen.print(
            f"\nThe unigram entropy is {entropy:.2f} nats: a generator that knows nothing but how frequent each token is has this "
            f"loss, and {0.85 * entropy:.2f} if it also copies the 15 % of the chosen tokens that it is shown. It must get below both."
        )
