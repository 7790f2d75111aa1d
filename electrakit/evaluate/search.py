"""A model and a task in, good settings out: a search with Optuna that can be killed at any moment, and ends the same.

What is tried next depends on --seed and on the trials of earlier rounds only: not on workers, engine or interruptions.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from electrakit.errors import UserError, mended_by_user
from electrakit.evaluate.files import write_json
from electrakit.evaluate.glue import Run, require_place_for, run_all, runners
from electrakit.evaluate.job import Job, difference
from electrakit.evaluate.report import DASH, percent
from electrakit.evaluate.results import Result, summarise
from electrakit.evaluate.tune import in_words, jobs_of, source_of
from electrakit.evaluate_config import BEST, FinetuneSettings
from electrakit.locks import only_writer
from electrakit.progress import console
from electrakit.search_config import SearchConfig
from electrakit.whole import write_whole

NAME = "search"  # of Optuna's study in search.db
NUM_RANDOM = 10  # trials before Optuna begins to prefer what is near the good ones: its own default


def search(model: str | Path, **settings: Any) -> dict[str, Any]:
    """Search for good settings: `search("hf/mine", task="rte", data="glue", trials=20, out="runs/mine/search/rte")`.

    Settings are those of SearchConfig. The same call goes on with a search that was stopped. Writes best.json, a preset for `glue`
    and `finetune`, results.json, results.md and search.db; returns what is in results.json.
    """
    config = SearchConfig.of(model, **settings)
    optuna = import_optuna()
    assert config.model is not None and config.out is not None
    require_place_for("search", config.out)
    source = source_of(config)
    threads = config.threads or 1  # trials run side by side, also where each has one seed
    first = [replace(job, keeps_model=False, threads=threads) for job in jobs_of(config, source)]
    with mended_by_user(config.out), only_writer(config.out), runners(config) as run:
        study = open_study(config, first[0])
        number = 0
        while number < config.trials:
            last = min(number + config.together, config.trials)
            for missing in range(len(study.get_trials(deepcopy=False)), last):
                choose(study, config, first[0].settings, missing, number)
            trials = [each for each in study.get_trials() if number <= each.number < last]
            unfinished = [each for each in trials if each.state == optuna.trial.TrialState.RUNNING]
            if unfinished:
                run_round(run, study, config, first, unfinished)
            number = last
        figures = results_of(study, config, first, in_words(source))
        write_json(config.out / BEST, preset_of(figures, source.data is not None, first[0].task.name))
        write_json(config.out / "results.json", figures)
        write_whole(config.out / "results.md", markdown(figures).encode())
    if all(len(trial["collapsed"]) == len(trial["scores"]) for trial in figures["trials"]):
        line = f"every trial collapsed: the settings in {config.out / BEST} are no better than others"
        console.print(line, markup=False, soft_wrap=True, style="yellow")
    return figures


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("electra search needs Optuna: pip install 'electrakit[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(config: SearchConfig, job: Job) -> Any:
    """What was tried so far, if it was the same search."""
    optuna = import_optuna()
    assert config.out is not None
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{(config.out / 'search.db').resolve()}",
            study_name=NAME,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            load_if_exists=True,
        )
        before = study.user_attrs.get("identity")
    except Exception as error:  # of SQLAlchemy, SQLite or alembic
        said = str(error).splitlines()[0]
        raise UserError(f"{config.out / 'search.db'} cannot be used: {said}; name another --out") from None
    identity = job.identity() | {"searched": {name: list(values) for name, values in config.searched().items()}}
    identity |= {"seed": config.seed, "seeds": config.seeds, "together": config.together, "prune": config.prune}
    if before is None:
        study.set_user_attr("identity", identity)
    elif before != identity:
        raise UserError(f"{config.out} is a search with {difference(before, identity)}; use another --out")
    return study


def choose(study: Any, config: SearchConfig, usual: FinetuneSettings, number: int, first: int) -> None:
    """Note what trial `number` tries, in one transaction. It knows the scores of the trials before `first` only.

    The very first trial is the preset itself, if that lies within what is searched.
    """
    optuna = import_optuna()
    distributions = {
        name: optuna.distributions.FloatDistribution(*values, log=True)
        if name == "lr"
        else optuna.distributions.CategoricalDistribution(values)
        for name, values in config.searched().items()
    }
    preset = {name: getattr(usual, name) for name in distributions}
    if number == 0 and all(is_within(name, preset[name], values) for name, values in config.searched().items()):
        chosen = preset
    else:
        sampler = optuna.samplers.TPESampler(
            seed=(config.seed * 1_000_003 + number) % 2**32, n_startup_trials=NUM_RANDOM
        )
        dry = optuna.create_study(direction="maximize", sampler=sampler)  # in memory
        for trial in study.get_trials():
            if trial.number >= first:  # of this round: what is tried is known, how it ends is not
                trial.state, trial.values, trial.datetime_complete = optuna.trial.TrialState.RUNNING, None, None
                trial.intermediate_values = {}
            dry.add_trial(trial)
        chosen = dry.ask(distributions).params
    running = optuna.trial.TrialState.RUNNING
    study.add_trial(optuna.trial.create_trial(state=running, params=chosen, distributions=distributions))


def is_within(name: str, value: float, values: Sequence[float]) -> bool:
    return values[0] <= value <= values[-1] if name == "lr" else value in values


def run_round(run: Run, study: Any, config: SearchConfig, first: Sequence[Job], trials: Sequence[Any]) -> None:
    """Run the trials of a round side by side, and note their scores when all are done. Finished runs are not run again."""
    optuna = import_optuna()
    jobs = {each.number: jobs_of_trial(config, first, each) for each in trials}
    results: dict[int, list[Result]] = {each.number: [] for each in trials}
    pruned: set[int] = set()
    stages = [range(place, place + 1) for place in range(config.seeds)] if config.prune else [range(config.seeds)]
    for places in stages:
        going = {
            str(number): [group[place] for place in places] for number, group in jobs.items() if number not in pruned
        }
        for name, found in run_all(run, going).items():
            results[int(name)] += found
        if config.prune and places.stop < config.seeds:
            for each in trials:
                if each.number not in pruned:
                    trial = optuna.trial.Trial(study, each._trial_id)
                    if places.stop not in each.intermediate_values:
                        trial.report(summarise(results[each.number])["median"], step=places.stop)
                    if trial.should_prune():
                        pruned.add(each.number)
    for each in trials:
        figures = summarise(results[each.number])
        if each.number in pruned:
            study.tell(each.number, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(each.number, figures["median"])
        tried = ", ".join(f"{name} {value:.3g}" for name, value in each.params.items())
        end = "; no more seeds" if each.number in pruned else ""
        end += "; collapsed" if figures["collapsed"] else ""
        line = f"trial {each.number + 1} of {config.trials}: {figures['metric']} {percent(figures['median'])}; {tried}{end}"
        console.print(line, markup=False, soft_wrap=True)


def jobs_of_trial(config: SearchConfig, first: Sequence[Job], trial: Any) -> list[Job]:
    settings = replace(first[0].settings, **trial.params)
    return [replace(job, settings=settings, out=folder_of(config, trial.number)) for job in first]


def folder_of(config: SearchConfig, number: int) -> Path:
    assert config.out is not None
    return config.out / "trials" / f"{number + 1:04d}"


def results_of(study: Any, config: SearchConfig, first: Sequence[Job], task: str) -> dict[str, Any]:
    """All trials, the best first; of equal ones the earlier."""
    optuna = import_optuna()
    trials = []
    for trial in study.get_trials():
        if not trial.state.is_finished():  # a longer search was killed in its next round
            continue
        is_pruned = trial.state == optuna.trial.TrialState.PRUNED
        results = [result for job in jobs_of_trial(config, first, trial) if (result := job.finished()) is not None]
        if not results or (len(results) < len(first) and not is_pruned):
            raise UserError(
                f"{folder_of(config, trial.number)} lacks results of a trial that was finished; "
                f"put it back, or remove {config.out} and search anew"
            )
        figures = summarise(results)
        trials.append(
            {"number": trial.number + 1, "tried": trial.params, "is_pruned": is_pruned}
            | {name: figures[name] for name in ("median", "min", "max", "scores", "collapsed", "seconds")}
        )
    trials.sort(key=lambda trial: (trial["is_pruned"], -trial["median"], trial["number"]))
    return {
        "model": config.model,
        "task": first[0].task.title if config.task else task,
        "metric": first[0].task.metrics[0],
        "preset": config.preset,
        "seeds": config.seeds,
        "settings": asdict(replace(first[0].settings, **trials[0]["tried"])),
        "trials": trials,
    }


def preset_of(figures: dict[str, Any], is_of_glue: bool, task: str) -> dict[str, Any]:
    """What `--preset best.json` reads: the settings of one task of GLUE, or of whatever files they are used for."""
    best = figures["trials"][0]
    about = (
        f"electra search of {figures['model']} on {figures['task']}: trial {best['number']} of {len(figures['trials'])}"
    )
    about += f", {figures['metric']} {percent(best['median'])} on dev"
    settings = figures["settings"]
    return {"about": about} | ({"tasks": {task: settings}} if is_of_glue else {"settings": settings})


def markdown(figures: dict[str, Any]) -> str:
    lines = [f"# Search: {figures['model']} on {figures['task']}", ""]
    lines += [
        f"{figures['metric']} × 100 on dev, the median of {figures['seeds']}; the best is chosen on dev, so it flatters.",
        "",
    ]
    header, rows = table_of(figures)
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def table_of(figures: dict[str, Any], num_rows: int | None = None) -> tuple[list[str], list[list[str]]]:
    names = list(figures["trials"][0]["tried"])
    spread = ["min", "max"] if figures["seeds"] > 1 else []
    header = ["trial", *(name.replace("_", " ") for name in names), figures["metric"], *spread, "notes"]
    rows = []
    for trial in figures["trials"][:num_rows]:
        notes = ["no more seeds"] * trial["is_pruned"] + ["collapsed"] * bool(trial["collapsed"])
        cells = [str(trial["number"]), *(f"{trial['tried'][name]:.3g}" for name in names)]
        cells += [percent(trial[name]) for name in ("median", *spread)]
        rows.append([*cells, ", ".join(notes) or DASH])
    return header, rows
