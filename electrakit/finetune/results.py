"""The results of fine-tuning: of one run, of all runs of a task, and of GLUE, as they are returned and as files hold them."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from electrakit.common.errors import UserError
from electrakit.common.ownership import WorkFolder
from electrakit.config.base import read_fields
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.tasks import AVERAGED, TASKS

RESULTS_FILE = "results.json"
"""Of each command, in its `out`."""
ScoresBySplit = dict[str, dict[str, float]]
"""By split and metric."""


@dataclass
class EvaluationResult:
    """The scores of some splits, and what helps to understand them."""

    scores: ScoresBySplit = field(default_factory=dict)
    collapsed: list[str] = field(default_factory=list)
    """Signs in the predictions that nothing was learned."""
    answers: dict[str, list[float]] = field(default_factory=dict)
    """By split, as the next three; empty for kinds of tasks that have none."""
    predictions: dict[str, list[float]] = field(default_factory=dict)
    logits: dict[str, list[list[float]]] = field(default_factory=dict)
    threshold: dict[str, float] = field(default_factory=dict)
    """Of the odds that a question has no answer."""
    files: dict[str, str] = field(default_factory=dict)
    """Predictions in formats of other tools: file name and content."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of one run, as `seed_N.json` holds it. What has a default may be missing in files of older versions."""

    identity: dict[str, Any]
    """What decides the result."""
    task: str = ""
    title: str
    seed: int
    model: str = ""
    start_from: str | None
    kind: str = ""
    labels: Sequence[str] | None = None
    metric: str
    score: float | None
    """On dev; None where it is undefined, as a correlation of constant predictions is."""
    scores: ScoresBySplit
    collapsed: list[str]
    """Signs that nothing was learned."""
    num_steps: int = 0
    losses: list[list[float]]
    """Pairs of step and training loss."""
    files: list[str]
    answers: dict[str, list[float]] = field(default_factory=dict)
    """As in EvaluationResult, and the next three; the file has those that are not empty."""
    predictions: dict[str, list[float]] = field(default_factory=dict)
    logits: dict[str, list[list[float]]] = field(default_factory=dict)
    threshold: dict[str, float] = field(default_factory=dict)
    head: str
    warnings: list[str]
    num_parameters: int = 0
    device: str = ""
    seconds: dict[str, float]

    @property
    def score_or_zero(self) -> float:
        """An undefined score counts as 0, and the run is marked as collapsed."""
        return 0.0 if self.score is None else float(self.score)

    @property
    def finite_losses(self) -> list[tuple[float, float]]:
        """The pairs whose loss is a number: files have null for the others."""
        return [(step, loss) for step, loss in self.losses if loss is not None]

    def as_json(self) -> dict[str, Any]:
        optional = ("answers", "predictions", "logits", "threshold")
        return {name: value for name, value in vars(self).items() if value or name not in optional}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        names = {entry.name for entry in fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in names})


REQUIRED = {entry.name for entry in fields(JobResult) if entry.default is MISSING and entry.default_factory is MISSING}


@dataclass(frozen=True, kw_only=True)
class TaskResults:
    """All runs of one task: the dev score is their median, and collapsed runs are part of it."""

    title: str
    metric: str
    median: float
    mean: float
    sd: float | None
    min: float
    max: float
    seeds: list[int]
    scores: list[float]
    """One for each seed."""
    best_seed: int
    collapsed: dict[str, list[str]]
    """Seeds of collapsed runs, and the reasons."""
    num_undefined: int
    """Undefined scores, which count as 0."""
    medians: ScoresBySplit
    start_from: str | None
    """The run whose model training started from; None: the pretrained model."""
    head: str
    settings: FinetuneSettings
    warnings: list[str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FinetuneResult(TaskResults):
    """What `finetune` returns and results.json holds."""

    model: str
    preset: str
    task: str
    """What is predicted from which columns."""
    files: list[str]
    """Files of predictions of the best run."""
    test: ScoresBySplit | None = None
    """Test scores of the best run; None without a test file."""

    def as_json(self) -> dict[str, Any]:
        content = {"model": self.model, "preset": self.preset, "task": self.task} | asdict(self)
        return {name: value for name, value in content.items() if name != "test" or value is not None}


@dataclass(frozen=True, kw_only=True)
class GlueTaskResults(TaskResults):
    """A task of GLUE."""

    released_splits: list[str] | None = None
    """The dev splits with as many rows as were released; None in files of older versions."""

    def is_released(self, split: str) -> bool:
        """Whether the score is one of the released dataset. Older files do not tell: those with warnings count as not."""
        return not self.warnings if self.released_splits is None else split in self.released_splits


@dataclass(frozen=True)
class GlueAverage:
    """The mean of the medians over the eight tasks, or over those that were run. WNLI is never in it."""

    value: float | None = None
    tasks: list[str] = field(default_factory=list)
    is_complete: bool = False
    """Whether it is over all eight tasks."""


@dataclass(frozen=True, kw_only=True)
class GlueResults:
    """What `glue` returns and results.json holds."""

    model: str = ""
    weights: str | None = None
    """A fingerprint of the model's weights; None for a model of the hub."""
    preset: str = ""
    ensemble: int = 1
    tasks: dict[str, GlueTaskResults] = field(default_factory=dict)
    average: GlueAverage = field(default_factory=GlueAverage)
    ensembles: dict[str, float] = field(default_factory=dict)
    """Dev scores of the best runs combined, by task."""
    submission: str = ""
    """What became of submission.zip."""
    downloaded: list[Path] = field(default_factory=list)
    """With `download`: the files, and nothing else is set."""

    @property
    def num_seeds(self) -> int:
        return max((len(task.seeds) for task in self.tasks.values()), default=0)

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "downloaded"}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """What `as_json` gave, of this version or an older one; a ValueError if it is something else."""
        try:
            tasks = {}
            for name, task in content["tasks"].items():
                settings = FinetuneSettings.from_json(FinetuneSettings.known_values(task["settings"]))
                tasks[name] = read_fields(GlueTaskResults, task | {"settings": settings})
            average = read_fields(GlueAverage, content["average"])
            return read_fields(cls, content | {"tasks": tasks, "average": average})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not the results of electra glue") from error


Summary = TypeVar("Summary", bound=TaskResults)


def best_results(results: Sequence[JobResult], number: int = 1) -> list[JobResult]:
    """The runs with the highest dev scores; of equal ones the first seeds."""
    return sorted(results, key=lambda result: (-result.score_or_zero, result.seed))[:number]


def summarise(kind: type[Summary], results: Sequence[JobResult], **more: Any) -> Summary:
    """All runs of a task. `more`: what `kind` has more than TaskResults."""
    results = sorted(results, key=lambda result: result.seed)
    first, scores = results[0], [result.score_or_zero for result in results]
    return kind(
        title=first.title,
        metric=first.metric,
        median=statistics.median(scores),
        mean=statistics.fmean(scores),
        sd=statistics.stdev(scores) if len(scores) > 1 else None,
        min=min(scores),
        max=max(scores),
        seeds=[result.seed for result in results],
        scores=scores,
        best_seed=best_results(results)[0].seed,
        collapsed={str(result.seed): result.collapsed for result in results if result.collapsed},
        num_undefined=sum(result.score is None for result in results),
        medians={
            split: {
                metric: statistics.median(result.scores[split][metric] or 0.0 for result in results)
                for metric in metrics
            }
            for split, metrics in first.scores.items()
        },
        start_from=first.start_from,
        head=first.head,
        settings=FinetuneSettings(**first.identity["settings"]),
        warnings=list(dict.fromkeys(warning for result in results for warning in result.warnings)),
        seconds=sum(result.seconds["all"] for result in results),
        **more,
    )


def summarise_glue(
    by_task: Mapping[str, Sequence[JobResult]], more_warnings: Mapping[str, Sequence[str]]
) -> dict[str, GlueTaskResults]:
    """All tasks in the order of the table. `more_warnings`: by task, added to those of the runs."""
    tasks = {}
    for name in [name for name in TASKS if by_task.get(name)]:
        answers = by_task[name][0].answers
        released = [split for split, each in answers.items() if len(each) == TASKS[name].split(split).num_rows]
        tasks[name] = summarise(GlueTaskResults, by_task[name], released_splits=released)
        tasks[name].warnings.extend(more_warnings.get(name, ()))
    return tasks


def average(medians: Mapping[str, float]) -> GlueAverage:
    """Of the tasks' medians."""
    names = [name for name in AVERAGED if name in medians]
    value = statistics.fmean(medians[name] for name in names) if names else None
    return GlueAverage(value, names, is_complete=len(names) == len(AVERAGED))


def results_folder(verb: str, out: Path, more: Iterable[str] = ()) -> WorkFolder:
    """The folder that finetune, glue or search writes. The files of single runs, seed_*, are recognised by their content.

    more: names of files with predictions.
    """
    names = {
        "finetune": ("model", "results.html"),
        "glue": (*TASKS, "results.md", "results.html", "scores.png", "losses.png", "submission.zip"),
        "search": ("search.db", "trials", "best.json", "results.md"),
    }
    return WorkFolder(out, verb, ("config.json", RESULTS_FILE, *names[verb], *more), is_older=_is_older_folder)


def _is_older_folder(out: Path) -> bool:
    """Whether an earlier version, which wrote no marker, has begun here: its config.json has these settings."""
    try:
        stored = json.loads((out / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(stored, dict) and {"model", "preset", "engine", "keep", "layer_decay", "data"} <= stored.keys()


def require_no_other_results(verb: str, out: Path) -> None:
    """A folder holds the results of one command: those of another would be overwritten."""
    try:
        before = json.loads((out / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    # The key that only the results of this command have.
    verbs = {"trials": "search", "average": "glue", "medians": "finetune"}
    other = next((name for key, name in verbs.items() if key in before), verb)
    if other != verb:
        raise UserError(f"{out} has the results of electra {other}; use another --out for electra {verb}")
