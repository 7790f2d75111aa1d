"""The doctor's result, measures and findings, and how it is printed."""

import re
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

Level = Literal["serious", "warning", "info"]
COLOURS: dict[Level, str] = {"serious": "red", "warning": "yellow", "info": "cyan"}

# The measures that are plain numbers; all others are shares and printed in percent.
NUMBERS = (
    *("documents", "words", "words per document", "rows", "tokens", "tokens per document", "tokens per word"),
    *("tokens per vocabulary entry", "unigram entropy (nats)"),
    *("steps", "tokens seen", "times each row was seen", "generator loss (nats)", "discriminator loss (nats)"),
    *("with shown tokens copied (nats)", "entropy of the base rate (nats)", "discriminator AUC", "tokens per second"),
)


@dataclass(frozen=True)
class Finding:
    """Something to know about a corpus, shards or a run."""

    level: Level
    """`serious` ruins a run, a `warning` costs quality or time, `info` is nothing wrong."""
    title: str
    """The same for every finding of this problem."""
    seen: str
    """The evidence: numbers, and the steps of a run."""
    means: str
    advice: str

    @property
    def slug(self) -> str:
        """The anchor of its section in docs/troubleshooting.md."""
        return slug(self.title)


@dataclass
class Examination:
    """What was examined, its measures, and the problems found."""

    what: str
    measures: dict[str, float]
    findings: list[Finding] = field(default_factory=list)
    not_checked: tuple[str, ...] = ()
    """Measures that need a tokenizer, where none was given."""
    parts: list["Examination"] = field(default_factory=list)
    """One for each run, if several were examined; `findings` are then those of all."""

    @property
    def is_serious(self) -> bool:
        return any(finding.level == "serious" for finding in self.findings)


def slug(title: str) -> str:
    """The anchor that GitHub and mkdocs give a heading."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


def format_measure(measure: str, value: float) -> str:
    """Format the value of a measure."""
    if measure in NUMBERS:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return "< 0.01 %" if 0 < value < 0.0001 else f"{100 * value:.3g} %"


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
    for name, value in examination.measures.items():
        screen.print(f"  {name:<31} {format_measure(name, value):>14}")
    if examination.not_checked:
        screen.print(f"  not checked: {', '.join(examination.not_checked)}; --tokenizer adds these", soft_wrap=True)
    for finding in examination.findings:
        colour = COLOURS[finding.level]
        screen.print(
            f"\n[{colour} bold]{finding.level}: {finding.title}[/]  [dim]{escape(finding.seen)}", soft_wrap=True
        )
        screen.print(Padding(escape(finding.means), (0, 0, 0, 2)))
        screen.print(Padding(f"[bold]What to do:[/] {escape(finding.advice)}", (0, 0, 0, 2)))
    if all(finding.level == "info" for finding in examination.findings):
        screen.print("[green]Nothing wrong was found.")
    if "unigram entropy (nats)" in examination.measures and "generator loss (nats)" not in examination.measures:
        entropy = examination.measures["unigram entropy (nats)"]
        screen.print(
            f"\nThe unigram entropy is {entropy:.2f} nats: a generator that knows nothing but how frequent each token is has this "
            f"loss, and {0.85 * entropy:.2f} if it also copies the 15 % of the chosen tokens that it is shown. It must get below both."
        )
