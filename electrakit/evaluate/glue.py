"""A model and GLUE in, the table of the papers out: every task, several seeds, MNLI first, the best run's test predictions."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electrakit.engine import Workers
from electrakit.engines import open_workers
from electrakit.errors import UserError, mended_by_user
from electrakit.evaluate.download import download
from electrakit.evaluate.files import write_json
from electrakit.evaluate.job import Job, Source
from electrakit.evaluate.page import page
from electrakit.evaluate.read import has_split, read_split
from electrakit.evaluate.report import markdown, plot_losses, plot_scores
from electrakit.evaluate.results import Result, best_of, summarise_all
from electrakit.evaluate.submission import combine, write_submission
from electrakit.evaluate.tasks import AVERAGED, TASKS, Task, find_task
from electrakit.evaluate.token_tasks import TOKEN_TASKS
from electrakit.evaluate_config import PRESETS, GlueConfig, Size, TuningConfig, files_of, read_preset, size_of
from electrakit.loading import weights_fingerprint
from electrakit.locks import only_writer
from electrakit.progress import console
from electrakit.whole import write_whole

SECONDS_TO_BE_SEEN = 120.0  # network file systems remember for up to a minute that a file is not there


def glue(model: str | Path, **settings: Any) -> dict[str, Any]:
    """Fine-tune `model` on GLUE: `glue("hf/mine", data="glue", seeds=5, out="runs/mine/glue")`.

    Settings are those of GlueConfig. Finished runs in `out` are not run again. Writes results.html, a page with everything,
    results.json, results.md, scores.png, losses.png and submission.zip; returns what is in results.json. With `download="glue"` nothing
    is trained: the data is fetched into that folder.
    """
    config = GlueConfig.of(model, **settings)
    if config.download is not None:
        return {"downloaded": download(config.download, config.tasks)}
    assert config.model is not None and config.data is not None and config.out is not None
    require_place_for("glue", config.out)
    tasks = chosen_tasks(config)
    size = model_size(config.model)
    results: dict[str, Sequence[Result]] = {}
    first, second = phases(config, tasks)
    check_preset(config)
    check_data(config, tasks)
    weights = weights_fingerprint(Path(config.model)) if Path(config.model).is_dir() else None
    with mended_by_user(config.out), only_writer(config.out), runners(config) as run:
        jobs = {task.name: jobs_of(config, task, size, None) for task in first}
        results |= run_all(run, jobs)
        if second:
            begin = best_job(jobs["mnli"], results["mnli"])
            later = {task.name: jobs_of(config, task, size, begin) for task in second}
            results |= run_all(run, later, needed=[begin])
            jobs |= later
        predictions, warnings = predict_tests(run, jobs, results, config.ensemble)
        clean_up(jobs, results, config)
        figures: dict[str, Any] = {
            "model": config.model,
            "weights": weights,
            "preset": config.preset,
            "ensemble": config.ensemble,
        }
        figures |= summarise_all(results)
        for name, more in warnings.items():
            figures["tasks"][name]["warnings"] += more
        figures["ensembles"] = ensembles(results, config.ensemble) if config.ensemble > 1 else {}
        figures["submission"] = write_submission(predictions, config.out / "submission.zip", config.fill)
        write_json(config.out / "results.json", figures)
        write_whole(config.out / "results.md", markdown(figures).encode())
        plot_scores(figures, config.out / "scores.png")
        plot_losses(results, config.out / "losses.png")
        write_whole(config.out / "results.html", page(figures, results).encode())
    return figures


def require_place_for(verb: str, out: Path) -> None:
    """A folder holds the results of one command: those of another would be lost."""
    try:
        before = json.loads((out / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    verbs = {"trials": "search", "average": "glue", "medians": "finetune"}  # by what only their results have
    other = next((name for key, name in verbs.items() if key in before), verb)
    if other != verb:
        raise UserError(f"{out} has the results of electra {other}; use another --out for electra {verb}")


def chosen_tasks(config: GlueConfig) -> list[Task]:
    """The tasks that were asked for; by default those of the average that have data."""
    assert config.data is not None
    asked = [find_task(name) for name in config.tasks] or [
        TASKS[name] for name in AVERAGED if has_split(config.data, TASKS[name], TASKS[name].split("train"))
    ]
    if not asked:
        folder = "glue" if config.data.startswith("hf:") else config.data
        raise UserError(f"{config.data} holds no task of GLUE; electra glue --download {folder} fetches them")
    return [task for task in TASKS.values() if task in asked]


def check_preset(config: TuningConfig) -> None:
    """A file of settings for a task that does not exist would change nothing, and nobody would know."""
    known = (*TASKS, *TOKEN_TASKS)
    for path in files_of(config.preset) if config.preset not in PRESETS else []:
        unknown = [name for name in read_preset(path)["tasks"] if name not in known]
        if unknown:
            raise UserError(f"{path}: there is no task {unknown[0]!r}; there are {', '.join(known)}")


def check_data(config: GlueConfig, tasks: Sequence[Task]) -> None:
    """Read everything once: a damaged line shall not be found after a day of training."""
    assert config.data is not None and config.out is not None
    for task in tasks:
        if not all((config.out / task.name / f"seed_{seed}.json").exists() for seed in range(1, config.seeds + 1)):
            for name in ("train", *task.names_of("dev"), *Source(task, config.data).names_of("test")):
                read_split(config.data, task, task.split(name))


def phases(config: GlueConfig, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """What can be run at once, and what begins with the best MNLI run. MNLI, the longest, stands first."""

    def is_later(task: Task) -> bool:
        return task.start_from is not None or (config.mrpc_from_mnli and task.name == "mrpc")

    has_mnli = config.start == "mnli" and any(task.name == "mnli" for task in tasks)
    if config.mrpc_from_mnli and not has_mnli:
        raise UserError("--mrpc-from-mnli needs MNLI among --tasks, and --start mnli")
    second = [task for task in tasks if has_mnli and is_later(task)]
    first = sorted((task for task in tasks if task not in second), key=lambda task: -task.split("train").num_rows)
    return first, second


def model_size(model: str) -> Size:
    from electrakit.loading import quiet, readable, require_safe

    require_safe(model)
    import transformers

    with quiet(), readable(model):
        return size_of(transformers.AutoConfig.from_pretrained(model, trust_remote_code=False).hidden_size)


def jobs_of(config: GlueConfig, task: Task, size: Size, begin: Job | None) -> list[Job]:
    assert config.model is not None and config.out is not None
    start_name = None if begin is None else f"{begin.task.title}, seed {begin.seed}"
    settings = config.settings(size, task.name, task.epochs, start_name)
    return [
        Job(
            model=config.model,
            source=Source(task, config.data),
            seed=seed,
            settings=settings,
            out=config.out / task.name,
            start_from=None if begin is None else str(begin.model_path),
            start_name=start_name,
            start_stamp=None if begin is None else begin.stamp(),
            device=config.device,
            threads=config.threads or 1,
        )
        for seed in range(1, config.seeds + 1)
    ]


Run = Callable[[Callable[[Job], Any], Sequence[Job]], Iterator[tuple[Job, Any]]]


@contextlib.contextmanager
def runners(config: TuningConfig, is_here: bool = False) -> Iterator[Run]:
    """`run(function, jobs)`: on so many worker processes as asked for, started when there is something to do; one alone is us."""
    is_here = is_here or (config.engine == "local" and (config.workers or num_workers(config)) == 1)
    with contextlib.ExitStack() as stack:
        workers: list[Workers] = []

        def run(function: Callable[[Job], Any], jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
            if is_here:
                return ((job, function(job)) for job in jobs)
            if jobs and not workers:
                workers.append(stack.enter_context(team_of(config)))
            done = workers[0].as_done(function, jobs, Job.describe) if jobs else iter(())
            return seen_here(function, done) if config.engine == "ray" else done

        yield run


def team_of(config: TuningConfig) -> Workers:
    usual = num_workers(config) if config.engine == "local" else 1
    num_threads, uses_gpu = config.threads or 1, config.device != "cpu"
    return open_workers(config.engine, config.workers, usual, tasks_ahead=1, num_cores=num_threads, uses_gpu=uses_gpu)


def seen_here(function: Callable[[Job], Any], done: Iterator[tuple[Job, Any]]) -> Iterator[tuple[Job, Any]]:
    """Another machine has written the files: a shared file system shows them soon, another one never."""
    from electrakit.evaluate.finetune import predict_test

    for job, result in done:
        path = job.test_path if function is predict_test else job.result_path
        deadline = time.monotonic() + SECONDS_TO_BE_SEEN
        while (
            not path.parent.is_dir() or path not in path.parent.iterdir()
        ):  # a listing is fresh where a look may not be
            if time.monotonic() > deadline:
                raise UserError(
                    f"{path} was written on another machine and is not seen here; "
                    "--engine ray needs a file system that all machines share"
                )
            time.sleep(0.5)
        yield job, result


def num_workers(config: TuningConfig) -> int:
    """One for each GPU, or as many as the cores have threads for."""
    import torch

    if config.device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, num_cores() // (config.threads or 1))


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(run: Run, jobs: dict[str, list[Job]], needed: Sequence[Job] = ()) -> dict[str, list[Result]]:
    """The results of all jobs, by task: those that are there, and those that are missing after running them.

    `needed`: runs whose models the missing ones begin with.
    """
    from electrakit.evaluate.finetune import finetune_job

    every = [job for group in jobs.values() for job in group]
    found = {job: job.finished() for job in every}
    missing = [job for job, result in found.items() if result is None]
    if len(missing) < len(every):
        console.print(f"{len(every) - len(missing)} of {len(every)} runs are there already", markup=False)
    with_model(run, needed if missing else ())
    for number, (job, result) in enumerate(run(finetune_job, missing), 1):
        found[job] = job.finished()  # as it was written: the same whether it was there or not
        say(job, result, f"{number} of {len(missing)}")
    return {name: [result for job in group if (result := found[job]) is not None] for name, group in jobs.items()}


def say(job: Job, result: Result, progress: str) -> None:
    score = "undefined" if result["score"] != result["score"] else f"{100 * result['score']:.1f}"
    line = f"{job.describe()}: {result['metric']} {score}, {result['seconds']['all']:,.0f} s ({progress})"
    line += f"; collapsed: {'; '.join(result['collapsed'])}" if result["collapsed"] else ""
    console.print(line, markup=False, soft_wrap=True, style="yellow" if result["collapsed"] else None)


def best_job(jobs: Sequence[Job], results: Sequence[Result]) -> Job:
    seed = best_of(results)[0]["seed"]
    return next(job for job in jobs if job.seed == seed)


def with_model(run: Run, jobs: Sequence[Job], others: Sequence[Job] = ()) -> None:
    """A model that was not kept is trained again: it will be the same. So are those of `others` that it begins with."""
    from electrakit.evaluate.finetune import finetune_job

    missing = [job for job in jobs if not job.model_path.exists()]
    starts = {job.start_from for job in missing}
    if begin := [job for job in others if str(job.model_path) in starts]:
        with_model(run, begin)
    for _ in run(finetune_job, missing):
        pass


def predict_tests(
    run: Run, jobs: dict[str, list[Job]], results: dict[str, Sequence[Result]], ensemble: int
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Of each task's best runs the predictions for its test splits, by the name of the file that is submitted."""
    from safetensors.numpy import load_file

    from electrakit.evaluate.finetune import predict_test

    chosen: list[Job] = []
    for name, group in jobs.items():
        seeds = {result["seed"] for result in best_of(results[name], ensemble)}
        chosen += [job for job in group if job.seed in seeds and job.source.names_of("test")]
    missing = [job for job in chosen if not job.has_test()]
    with_model(run, missing, others=jobs.get("mnli", ()))
    for _ in run(predict_test, missing):
        pass
    predictions: dict[str, np.ndarray] = {}
    warnings: dict[str, list[str]] = {}
    for name in dict.fromkeys(job.task.name for job in chosen):
        of_task = [job for job in chosen if job.task.name == name]
        logits = [load_file(job.test_path) for job in of_task]
        for split in of_task[0].source.names_of("test"):
            predictions[TASKS[name].split(split).submission or ""] = combine(
                TASKS[name], [each[split] for each in logits]
            )
            num_rows, known = len(logits[0][split]), TASKS[name].split(split).num_rows
            if num_rows != known:
                warnings.setdefault(name, []).append(
                    f"{TASKS[name].title} {split} has {num_rows:,} rows, the released one {known:,}"
                )
    return predictions, warnings


def ensembles(results: dict[str, Sequence[Result]], number: int) -> dict[str, float]:
    """Dev scores of the best runs put together."""
    from electrakit.evaluate.finetune import predictions_of
    from electrakit.evaluate.metrics import METRICS

    found = {}
    for name in [name for name in TASKS if name in results]:
        task, best = TASKS[name], best_of(results[name], number)
        scores = []
        for split in best[0]["logits"]:
            together = combine(task, [np.asarray(result["logits"][split], float) for result in best])
            scores.append(METRICS[task.metrics[0]](best[0]["answers"][split], predictions_of(task, together)))
        found[name] = float(np.mean(scores))
    return found


def clean_up(jobs: dict[str, list[Job]], results: dict[str, Sequence[Result]], config: TuningConfig) -> None:
    """Remove the models that are not to be kept."""
    for name, group in jobs.items():
        best = best_of(results[name])[0]["seed"]
        for job in group:
            if config.keep == "none" or (config.keep == "best" and job.seed != best):
                shutil.rmtree(job.model_path, ignore_errors=True)
