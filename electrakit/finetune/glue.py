"""Fine-tunes a model on GLUE: every task with several seeds, MNLI first, then the table and the test predictions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import require_apart
from electrakit.common.safe_load import weights_fingerprint
from electrakit.config.corpus import Engine
from electrakit.config.finetune import AUTO, ClassifierHead, GlueConfig, Keep, Precision, Start
from electrakit.finetune.download import download as download_glue
from electrakit.finetune.job import (
    FinetuneJob,
    TaskData,
    announce_preset,
    check_data,
    make_jobs,
    require_own_files,
    with_preset,
)
from electrakit.finetune.metrics import METRICS
from electrakit.finetune.read_glue import has_split, rows_warning
from electrakit.finetune.results import (
    RESULTS_FILE,
    GlueResults,
    JobResult,
    average,
    best_results,
    require_no_other_results,
    results_folder,
    summarise_glue,
)
from electrakit.finetune.results_page import glue_page
from electrakit.finetune.run_jobs import JobPool, best_job, remove_models
from electrakit.finetune.submission import combine, make_submission
from electrakit.finetune.table import glue_markdown, plot_losses, plot_scores
from electrakit.finetune.tasks import AVERAGED, TASKS, Task, find_task
from electrakit.finetune.train_job import predictions_of


def glue(
    model: str | Path | None = None,
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
    keep: Keep = "best",
    data: str | Path | None = None,
    tasks: str | Sequence[str] = (),
    seeds: int = 5,
    start: Start = "mnli",
    mrpc_from_mnli: bool = False,
    ensemble: int = 1,
    fill: bool = False,
    download: str | Path | None = None,
) -> GlueResults:
    """Fine-tune `model` on GLUE: `glue("hf/mine", data="glue", seeds=5, out="runs/mine/glue")`.

    GlueConfig explains each setting. Finished runs in `out` are not run again. Writes results.html, a page with everything,
    results.json, results.md, scores.png, losses.png and submission.zip; returns what is in results.json. With `download="glue"` nothing
    is trained: the data is fetched into that folder.
    """
    config = with_preset(GlueConfig(**locals()))
    if config.download is not None:
        return GlueResults(downloaded=download_glue(config.download, config.tasks))
    assert config.model is not None and config.data is not None and config.out is not None
    require_no_other_results("glue", config.out)
    require_apart(config.out, [config.model, config.data])
    folder = results_folder("glue", config.out)
    folder.require_ours()
    chosen = choose_tasks(config)
    first, second = phases(config, chosen)
    jobs = jobs_of_tasks(config, first)
    for task in chosen:
        check_data(TaskData(task, config.data), config.out / task.name, config.seeds)
    require_own_files([job for group in jobs.values() for job in group])
    announce_preset(preset, config)
    weights = weights_fingerprint(Path(config.model)) if Path(config.model).is_dir() else None
    with explain_write_errors(config.out), write_lock(config.out), JobPool(config) as pool:
        folder.begin()
        folder.write("config.json", config.to_json())
        for task in chosen:
            folder.own(task.name)
            (config.out / task.name).mkdir(exist_ok=True)
        by_task = pool.results_of(jobs)
        if second:
            best_mnli = best_job(jobs["mnli"], by_task["mnli"])
            later = jobs_of_tasks(config, second, best_mnli)
            by_task |= pool.results_of(later)
            jobs |= later
        predictions, warnings = predict_tests(pool, jobs, by_task, config.ensemble)
        for name, group in jobs.items():
            remove_models(group, best_job(group, by_task[name]), config.keep)
        summaries = summarise_glue(by_task, warnings)
        content, about_submission = make_submission(predictions, config.fill)
        if content is None:
            folder.remove("submission.zip")
        else:
            folder.write("submission.zip", content)
        results = GlueResults(
            model=config.model,
            weights=weights,
            preset=config.preset,
            ensemble=config.ensemble,
            tasks=summaries,
            average=average({name: task.median for name, task in summaries.items()}),
            ensembles=ensemble_scores(by_task, config.ensemble) if config.ensemble > 1 else {},
            submission=about_submission,
        )
        folder.write(RESULTS_FILE, results.as_json())
        folder.write("results.md", glue_markdown(results).encode())
        folder.write("scores.png", plot_scores(results))
        folder.write("losses.png", plot_losses(by_task))
        folder.write("results.html", glue_page(results, by_task).encode())
    return results


def choose_tasks(config: GlueConfig) -> list[Task]:
    """The tasks that were asked for; by default those of the average that have data."""
    assert config.data is not None
    asked = [find_task(name) for name in config.tasks] or [
        TASKS[name] for name in AVERAGED if has_split(config.data, TASKS[name], TASKS[name].split("train"))
    ]
    if not asked:
        folder = "glue" if config.data.startswith("hf:") else config.data
        raise UserError(f"{config.data} holds no task of GLUE; electra glue --download {folder} fetches them")
    return [task for task in TASKS.values() if task in asked]


def phases(config: GlueConfig, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """The tasks that can run at once, and those that start from the best MNLI run. MNLI, the longest, comes first."""

    def starts_from_mnli(task: Task) -> bool:
        return task.start_from is not None or (config.mrpc_from_mnli and task.name == "mrpc")

    has_mnli = config.start == "mnli" and any(task.name == "mnli" for task in tasks)
    if config.mrpc_from_mnli and not has_mnli:
        raise UserError("--mrpc-from-mnli needs MNLI among --tasks, and --start mnli")
    second = [task for task in tasks if has_mnli and starts_from_mnli(task)]
    first = sorted((task for task in tasks if task not in second), key=lambda task: -task.split("train").num_rows)
    return first, second


def jobs_of_tasks(
    config: GlueConfig, tasks: Sequence[Task], start: FinetuneJob | None = None
) -> dict[str, list[FinetuneJob]]:
    """By task, one for each seed. `start`: the run whose model they start from."""
    assert config.out is not None
    return {task.name: make_jobs(config, TaskData(task, config.data), config.out / task.name, start) for task in tasks}


def predict_tests(
    pool: JobPool, jobs: Mapping[str, Sequence[FinetuneJob]], by_task: Mapping[str, Sequence[JobResult]], ensemble: int
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """The test predictions of each task's best runs, by the name of the submitted file; and warnings, by task."""
    chosen: dict[str, list[FinetuneJob]] = {}
    for name, group in jobs.items():
        seeds = {result.seed for result in best_results(by_task[name], ensemble)}
        chosen[name] = [job for job in group if job.seed in seeds and job.data.names_of("test")]
    pool.ensure_test_predictions([job for group in chosen.values() for job in group])
    predictions: dict[str, np.ndarray] = {}
    warnings: dict[str, list[str]] = defaultdict(list)
    for name, best in chosen.items():
        task, logits = TASKS[name], [load_file(job.test_path) for job in best]
        for split in best[0].data.names_of("test") if best else ():
            predictions[task.split(split).submission or ""] = combine(task, [each[split] for each in logits])
            warnings[name] += rows_warning(task, task.split(split), len(logits[0][split]), "rows")
    return predictions, warnings


def ensemble_scores(by_task: Mapping[str, Sequence[JobResult]], number: int) -> dict[str, float]:
    """Dev scores of the best runs combined, by task."""
    found = {}
    for name in [name for name in TASKS if name in by_task]:
        task, best = TASKS[name], best_results(by_task[name], number)
        scores = []
        for split, answers in best[0].answers.items():
            combined = combine(task, [np.asarray(result.logits[split], float) for result in best])
            scores.append(METRICS[task.metrics[0]](answers, predictions_of(task, combined)))
        found[name] = float(np.mean(scores))
    return found
