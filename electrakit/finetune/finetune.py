"""Fine-tunes a model on one task: of GLUE, SQuAD, chunking, or the user's own files; keeps the best run's model."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import load_file

from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.hardware import num_cores
from electrakit.common.move_folder import link_or_copy
from electrakit.common.ownership import WorkFolder, require_apart, whole_folder
from electrakit.common.progress import console
from electrakit.config.corpus import Engine
from electrakit.config.finetune import AUTO, ClassifierHead, FinetuneConfig, Keep, LabelKind, Precision
from electrakit.finetune.classifier import is_older_model
from electrakit.finetune.job import (
    FinetuneJob,
    TaskData,
    announce_preset,
    check_data,
    load_rows,
    make_jobs,
    require_own_files,
    with_preset,
)
from electrakit.finetune.metrics import METRICS
from electrakit.finetune.results import (
    RESULTS_FILE,
    FinetuneResult,
    ScoresBySplit,
    best_results,
    require_no_other_results,
    results_folder,
    summarise,
)
from electrakit.finetune.results_page import task_page
from electrakit.finetune.run_jobs import JobPool, best_job, remove_models
from electrakit.finetune.submission import prediction_lines
from electrakit.finetune.tasks import TOKEN_TASKS, Task, find_task
from electrakit.finetune.tokens.tags import with_labels
from electrakit.finetune.train_job import SCORE_FUNCTIONS, predictions_of
from electrakit.finetune.user_tables import read_user_table, recognise_task


def finetune(
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
    keep: Keep = "best",
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
) -> FinetuneResult:
    """Fine-tune `model`: `finetune("hf/mine", train="train.tsv", dev="dev.tsv", out="runs/mine/my-task")`.

    FinetuneConfig explains each setting. The best run's model is `out/model`; the predictions for a test file are
    `out/test.tsv`, SQuAD's are `out/predictions.json`; `out/results.html` is a page with scores and curves. Returns what is in
    `out/results.json`.
    """
    config = FinetuneConfig(**locals())
    assert config.out is not None
    require_no_other_results("finetune", config.out)
    require_apart(config.out, [config.model, config.data, config.train, config.dev, config.test])
    task_data = find_data(config)
    folder = results_folder("finetune", config.out, prediction_names(task_data))
    folder.require_ours()
    asked, config = config.preset, with_preset(config)
    assert config.model is not None and config.out is not None
    if task_data.location is None:
        console.print(describe_task(task_data.task), markup=False, soft_wrap=True)
    is_single = config.seeds == 1
    jobs = make_jobs(config, task_data, config.out, num_threads=num_cores() if is_single else 1)
    require_own_files(jobs)
    check_data(task_data, config.out, config.seeds)
    announce_preset(asked, config)
    is_in_process = is_single and config.engine == "local"
    with explain_write_errors(config.out), write_lock(config.out), JobPool(config, is_in_process) as pool:
        folder.begin()
        folder.write("config.json", config.to_json())
        runs = pool.results_of({"task": jobs})["task"]
        best = best_job(jobs, runs)
        files = best_results(runs)[0].files
        for name in files:
            if not best.file_path(name).exists():
                raise UserError(
                    f"{best.file_path(name)} is gone; remove {best.result_path} too, and the run is made again"
                )
            folder.write(name, best.file_path(name).read_bytes())
        test_scores = None
        if task_data.names_of("test"):
            pool.ensure_test_predictions([best])
            test_scores = write_test_predictions(best, folder)
        if config.keep != "none":
            pool.ensure_models([best])
            folder.own("model")
            link_model(best, config.out / "model")
        remove_models(jobs, best, config.keep)
        result = summarise(
            FinetuneResult,
            runs,
            model=config.model,
            preset=config.preset,
            task=describe_task(task_data.task),
            files=files,
            test=test_scores,
        )
        folder.write(RESULTS_FILE, result.as_json())
        folder.write("results.html", task_page(result, runs, task_data.known_name or "").encode())
    return result


def find_data(config: FinetuneConfig) -> TaskData:
    """The known task in its folder, or the task that the user's files are."""
    if config.task is not None:
        assert config.data is not None
        task = find_task(config.task, TOKEN_TASKS.values())
        return TaskData(with_labels(config.data, task) if task.kind == "tags" else task, config.data)
    assert config.train is not None and config.out is not None
    name = config.out.resolve().name
    task = recognise_task(read_user_table(config.train), config.text, config.label, config.kind, name)
    files = {"train": config.train, "dev": config.dev, "test": config.test}
    return TaskData(task, files=tuple((name, str(path)) for name, path in files.items() if path is not None))


def prediction_names(data: TaskData) -> list[str]:
    """The files of predictions that may be written."""
    tests = data.names_of("test")
    if data.task.kind != "sentences":
        names = {
            "spans": ("predictions.json", "nbest_predictions.json", "answers.json", "null_odds.json"),
            "tags": ("predictions.txt",),
        }
        return [
            f"{prefix}{name}" for prefix in ("", *(f"{split}_" for split in tests)) for name in names[data.task.kind]
        ]
    if data.location is None:
        return [f"{split}.tsv" for split in tests]
    return [submission for split in tests if (submission := data.task.split(split).submission) is not None]


def describe_task(task: Task) -> str:
    """What is predicted from which columns."""
    if task.kind == "spans":
        return f"spans: the answer to a question in a text{', or that it has none' if task.may_be_unanswerable else ''}"
    if task.kind == "tags":
        return f"tags: {len(task.labels or ())} tags of words: {', '.join(task.labels or ())}"
    if task.labels is None:
        what = f"regression: numbers of {task.label!r}, divided by {task.scale:g} while training"
    else:
        what = f"classification: {len(task.labels)} classes of {task.label!r}: {', '.join(task.labels[:10])}"
        what += ", ..." if len(task.labels) > 10 else ""
    return f"{what}; text is {' and '.join(map(repr, task.columns))}"


def write_test_predictions(job: FinetuneJob, folder: WorkFolder) -> ScoresBySplit:
    """Write the test predictions; return their scores if the file has labels."""
    task, found = job.task, load_file(job.test_path)
    if task.kind != "sentences":
        rows = {name: load_rows(job.data, name, job.model, job.settings.length)[0] for name in found}
        evaluation = SCORE_FUNCTIONS[task.kind](task, rows, found)
        for name, content in evaluation.files.items():
            folder.write(name, content.encode())
        return evaluation.scores
    is_known = job.data.location is not None
    scores: ScoresBySplit = {}
    for split, logits in found.items():
        submission = task.split(split).submission if is_known else None
        folder.write(submission or f"{split}.tsv", ("\n".join(prediction_lines(task, logits)) + "\n").encode())
        labels = None if is_known else job.data.read(split).labels
        if labels is not None:
            predicted = predictions_of(task, logits)
            scores[split] = {metric: METRICS[metric](labels, predicted) for metric in task.metrics}
    return scores


def link_model(job: FinetuneJob, place: Path) -> None:
    """Put the best run's model at a fixed place, by hard links where the file system has them."""
    with whole_folder(place, "model", overwrite=True, is_older=is_older_model) as unfinished:
        shutil.copytree(job.model_path, unfinished, copy_function=link_or_copy, dirs_exist_ok=True)
