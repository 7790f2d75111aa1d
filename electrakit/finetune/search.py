"""Searches for good fine-tuning settings with Optuna; a search that was killed continues and ends the same.

What is tried next depends on --seed and on the trials of earlier rounds only: not on workers, engine or interruptions.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError, explain_write_errors, first_line
from electrakit.common.ownership import require_apart
from electrakit.common.progress import console
from electrakit.common.words import DASH, format_percent
from electrakit.config.corpus import Engine
from electrakit.config.finetune import (
    AUTO,
    BEST,
    ClassifierHead,
    FinetuneSettings,
    Keep,
    LabelKind,
    Precision,
    SearchConfig,
)
from electrakit.finetune.finetune import describe_task, find_data
from electrakit.finetune.job import FinetuneJob, announce_preset, check_data, difference, make_jobs, with_preset
from electrakit.finetune.results import (
    RESULTS_FILE,
    JobResult,
    TaskResults,
    require_no_other_results,
    results_folder,
    summarise,
)
from electrakit.finetune.run_jobs import JobPool
from electrakit.finetune.table import Column, ScoreRow, ScoreTable

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

# Of Optuna's study in search.db.
STUDY_NAME = "search"
# Trials before Optuna begins to prefer what is near the good ones: its own default.
NUM_RANDOM = 10


@dataclass(frozen=True)
class SearchTrial:
    """The settings that were tried, and the dev scores of their runs as in TaskResults."""

    number: int
    tried: dict[str, Any]
    """The settings by name."""
    is_pruned: bool
    median: float
    min: float
    max: float
    scores: list[float]
    collapsed: dict[str, list[str]]
    seconds: float

    @property
    def notes(self) -> list[str]:
        return ["no more seeds"] * self.is_pruned + ["collapsed"] * bool(self.collapsed)


@dataclass(frozen=True)
class SearchResult:
    """What `search` returns and results.json holds."""

    model: str
    task: str
    metric: str
    preset: str
    seeds: int
    settings: FinetuneSettings
    """The best ones."""
    trials: list[SearchTrial]
    """The best first; of equal ones the earlier. Pruned ones last."""


def search(
    model: str | Path,
    *,
    out: str | Path | None = None,
    preset: str = AUTO,
    workers: int | None = None,
    engine: Engine = "local",
    threads: int | None = None,
    device: str | None = None,
    lr: float | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    length: int | None = None,
    warmup: float | None = None,
    layer_decay: float | None = None,
    weight_decay: float | None = None,
    head: ClassifierHead | None = None,
    precision: Precision | None = None,
    keep: Keep = "none",
    train: str | Path | None = None,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    text: str | Sequence[str] = (),
    label: str | None = None,
    kind: LabelKind | None = None,
    task: str | None = None,
    data: str | Path | None = None,
    seeds: int = 1,
    joint_prediction: bool = False,
    answerable_uses_start_logits: bool = False,
    trials: int = 20,
    lrs: Sequence[float] = (1e-5, 1e-3),
    epochs_tried: Sequence[float] = (2, 3, 5, 10),
    batch_sizes: Sequence[int] = (16, 32, 64),
    layer_decays: Sequence[float] = (0.7, 0.8, 0.9, 1.0),
    together: int = 4,
    seed: int = 0,
    prune: bool = False,
) -> SearchResult:
    """Search for good settings: `search("hf/mine", task="rte", data="glue", trials=20, out="runs/mine/search/rte")`.

    SearchConfig explains each setting. The same call continues a search that was stopped. Writes best.json, a preset for `glue`
    and `finetune`, results.json, results.md and search.db; returns what is in results.json.
    """
    config = SearchConfig(**locals())
    require_optuna()
    assert config.out is not None
    require_no_other_results("search", config.out)
    require_apart(config.out, [config.model, config.data, config.train, config.dev])
    folder = results_folder("search", config.out)
    folder.require_ours()
    task_data = find_data(config)
    asked, config = config.preset, with_preset(config)
    assert config.model is not None and config.out is not None
    jobs = [replace(job, keeps_model=False) for job in make_jobs(config, task_data, config.out)]
    check_data(task_data, config.out, config.seeds)
    announce_preset(asked, config)
    with explain_write_errors(config.out), write_lock(config.out), JobPool(config) as pool:
        folder.begin()
        folder.write("config.json", config.to_json())
        folder.own("trials")
        (config.out / "trials").mkdir(exist_ok=True)
        folder.own("search.db")
        study = open_study(config, jobs[0])
        for first in range(0, config.trials, config.together):
            last = min(first + config.together, config.trials)
            for missing in range(len(study.get_trials(deepcopy=False)), last):
                choose(study, config, jobs[0].settings, missing, first)
            unfinished = [each for each in study.get_trials()[first:last] if not each.state.is_finished()]
            if unfinished:
                run_round(pool, study, config, jobs, unfinished)
        result = collect_results(study, config, jobs)
        folder.write(BEST, make_preset(result, task_data.known_name))
        folder.write(RESULTS_FILE, asdict(result))
        folder.write("results.md", search_markdown(result).encode())
    if all(len(trial.collapsed) == len(trial.scores) for trial in result.trials):
        line = f"every trial collapsed: the settings in {config.out / BEST} are no better than others"
        console.print(line, markup=False, soft_wrap=True, style="yellow")
    return result


def require_optuna() -> None:
    try:
        import optuna
    except ImportError:
        raise UserError("electra search needs Optuna: pip install 'electrakit[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(config: SearchConfig, job: FinetuneJob) -> "Study":
    """The trials so far. Those of another search are an error."""
    import optuna

    path = job.out / "search.db"
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{path.resolve()}",
            study_name=STUDY_NAME,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            load_if_exists=True,
        )
        before = study.user_attrs.get("identity")
    except Exception as error:  # of SQLAlchemy, SQLite or alembic
        raise UserError(f"{path} cannot be used: {first_line(error)}; name another --out") from None
    identity = job.identity() | {"searched": {name: list(values) for name, values in config.searched().items()}}
    identity |= {"seed": config.seed, "seeds": config.seeds, "together": config.together, "prune": config.prune}
    if before is None:
        study.set_user_attr("identity", identity)
    elif before != identity:
        raise UserError(f"{job.out} is a search with {difference(before, identity)}; use another --out")
    return study


def choose(study: "Study", config: SearchConfig, usual: FinetuneSettings, number: int, first: int) -> None:
    """Store what trial `number` tries, in one transaction. It knows the scores of the trials before `first` only.

    The very first trial is the preset itself, if that is within what is searched.
    """
    import optuna

    running, searched = optuna.trial.TrialState.RUNNING, config.searched()
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(low=values[0], high=values[1], log=True)
        if name == "lr"
        else optuna.distributions.CategoricalDistribution(values)
        for name, values in searched.items()
    }
    chosen = {name: getattr(usual, name) for name in searched}
    if number > 0 or not all(is_within(name, chosen[name], values) for name, values in searched.items()):
        seed = (config.seed * 1_000_003 + number) % 2**32
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_RANDOM)
        in_memory = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in study.get_trials():
            if trial.number >= first:  # of this round: its settings are known, its score is not
                trial.state, trial.values, trial.datetime_complete = running, None, None
                trial.intermediate_values = {}
            in_memory.add_trial(trial)
        chosen = in_memory.ask(distributions).params
    study.add_trial(optuna.trial.create_trial(state=running, params=chosen, distributions=distributions))


def is_within(name: str, value: float, values: Sequence[float]) -> bool:
    return values[0] <= value <= values[-1] if name == "lr" else value in values


def run_round(
    pool: JobPool,
    study: "Study",
    config: SearchConfig,
    jobs: Sequence[FinetuneJob],
    trials: Sequence["FrozenTrial"],
) -> None:
    """Run the trials of a round side by side, and store their scores when all are done. Finished runs are not run again."""
    import optuna

    trial_jobs = {each.number: jobs_of_trial(jobs, each) for each in trials}
    results: dict[int, list[JobResult]] = {each.number: [] for each in trials}
    pruned: set[int] = set()
    # With pruning one seed of all trials after the other, else all seeds at once.
    width = 1 if config.prune else config.seeds
    for start in range(0, config.seeds, width):
        running = {number: group[start : start + width] for number, group in trial_jobs.items() if number not in pruned}
        for number, found in pool.results_of(running).items():
            results[number] += found
        num_seeds = start + width
        for each in trials if num_seeds < config.seeds else ():
            if each.number not in pruned:
                trial = optuna.trial.Trial(study, each._trial_id)
                if num_seeds not in each.intermediate_values:
                    trial.report(summarise(TaskResults, results[each.number]).median, step=num_seeds)
                if trial.should_prune():
                    pruned.add(each.number)
    for each in trials:
        done = summarise_trial(each, results[each.number], each.number in pruned)
        if done.is_pruned:
            study.tell(each.number, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(each.number, done.median)
        tried = ", ".join(f"{name} {value:.3g}" for name, value in done.tried.items())
        score = f"{jobs[0].task.metrics[0]} {format_percent(done.median)}"
        line = "; ".join([f"trial {done.number} of {config.trials}: {score}", tried, *done.notes])
        console.print(line, markup=False, soft_wrap=True)


def jobs_of_trial(jobs: Sequence[FinetuneJob], trial: "FrozenTrial") -> list[FinetuneJob]:
    settings, folder = replace(jobs[0].settings, **trial.params), f"trials/{trial.number + 1:04d}"
    return [replace(job, settings=settings, out=job.out / folder) for job in jobs]


def summarise_trial(trial: "FrozenTrial", results: Sequence[JobResult], is_pruned: bool) -> SearchTrial:
    summary = vars(summarise(TaskResults, results))
    scores = {entry.name: summary[entry.name] for entry in fields(SearchTrial) if entry.name in summary}
    return SearchTrial(number=trial.number + 1, tried=trial.params, is_pruned=is_pruned, **scores)


def collect_results(study: "Study", config: SearchConfig, jobs: Sequence[FinetuneJob]) -> SearchResult:
    assert config.model is not None
    trials = []
    for trial in study.get_trials():
        if not trial.state.is_finished():  # a longer search was killed in its next round
            continue
        is_pruned, trial_jobs = trial.state.name == "PRUNED", jobs_of_trial(jobs, trial)
        results = [result for job in trial_jobs if (result := job.finished()) is not None]
        if not results or (len(results) < len(jobs) and not is_pruned):
            raise UserError(
                f"{trial_jobs[0].out} lacks results of a trial that was finished; "
                f"put it back, or remove {config.out} and search anew"
            )
        trials.append(summarise_trial(trial, results, is_pruned))
    trials.sort(key=lambda trial: (trial.is_pruned, -trial.median, trial.number))
    task = jobs[0].task
    return SearchResult(
        model=config.model,
        task=task.title if config.task else describe_task(task),
        metric=task.metrics[0],
        preset=config.preset,
        seeds=config.seeds,
        settings=replace(jobs[0].settings, **trials[0].tried),
        trials=trials,
    )


def make_preset(result: SearchResult, task: str | None) -> dict[str, Any]:
    """What `--preset best.json` reads: the settings of one known task, or of whatever files they are used for."""
    best, settings = result.trials[0], asdict(result.settings)
    about = f"electra search of {result.model} on {result.task}: trial {best.number} of {len(result.trials)}"
    about += f", {result.metric} {format_percent(best.median)} on dev"
    return {"about": about} | ({"settings": settings} if task is None else {"tasks": {task: settings}})


def search_markdown(result: SearchResult) -> str:
    """results.md."""
    lines = [
        f"# Search: {result.model} on {result.task}",
        f"{result.metric} × 100 on dev, the median of {result.seeds}; the best is chosen on dev, so it flatters.",
        trials_table(result).markdown(),
    ]
    return "\n\n".join(lines) + "\n"


def trials_table(result: SearchResult) -> ScoreTable:
    """The best trials first."""
    has_spread = result.seeds > 1
    names = list(result.trials[0].tried)
    rows = []
    for trial in result.trials:
        scores = [trial.median, *([trial.min, trial.max] if has_spread else [])]
        cells = [str(trial.number), *(f"{trial.tried[name]:.3g}" for name in names), *map(format_percent, scores)]
        cells.append(", ".join(trial.notes) or DASH)
        rows.append(ScoreRow(cells))
    tried, spread = [name.replace("_", " ") for name in names], ["min", "max"] if has_spread else []
    return ScoreTable(list(map(Column, ["trial", *tried, result.metric, *spread, "notes"])), rows)
