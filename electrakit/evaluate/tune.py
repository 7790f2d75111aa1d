"""A model and one task in, the fine-tuned model out: a task of GLUE, SQuAD, chunking, or files of one's own."""

import os
import shutil
from pathlib import Path
from typing import Any

from electrakit.errors import UserError, mended_by_user
from electrakit.evaluate.files import write_json
from electrakit.evaluate.glue import (
    best_job,
    check_preset,
    clean_up,
    model_size,
    num_cores,
    require_place_for,
    run_all,
    runners,
    with_model,
)
from electrakit.evaluate.job import Job, Source, load_rows
from electrakit.evaluate.metrics import METRICS
from electrakit.evaluate.own import read_table, recognise
from electrakit.evaluate.page import page_of_task
from electrakit.evaluate.results import summarise
from electrakit.evaluate.submission import lines_of
from electrakit.evaluate.tags import with_labels
from electrakit.evaluate.tasks import Task, find_task
from electrakit.evaluate.token_tasks import TOKEN_TASKS
from electrakit.evaluate_config import FinetuneConfig
from electrakit.locks import only_writer
from electrakit.progress import console
from electrakit.whole import whole_or_nothing, write_whole


def finetune(model: str | Path, **settings: Any) -> dict[str, Any]:
    """Fine-tune `model`: `finetune("hf/mine", train="train.tsv", dev="dev.tsv", out="runs/mine/my-task")`.

    Settings are those of FinetuneConfig. The best run's model is `out/model`; the predictions for a test file are
    `out/test.tsv`, SQuAD's are `out/predictions.json`; `out/results.html` is a page with scores and curves. Returns what is in
    `out/results.json`.
    """
    config = FinetuneConfig.of(model, **settings)
    assert config.model is not None and config.out is not None
    require_place_for("finetune", config.out)
    source = source_of(config)
    if source.data is None:
        console.print(in_words(source), markup=False, soft_wrap=True)
    jobs = jobs_of(config, source)
    is_here = config.seeds == 1 and config.engine == "local"
    with mended_by_user(config.out), only_writer(config.out), runners(config, is_here) as run:
        results = run_all(run, {"task": jobs})["task"]
        best = best_job(jobs, results)
        figures: dict[str, Any] = {
            "model": config.model,
            "preset": config.preset,
            "task": in_words(source),
        } | summarise(results)
        figures["files"] = next(each for each in results if each["seed"] == best.seed)["files"]
        for name in figures["files"]:
            if not best.file_path(name).exists():
                raise UserError(
                    f"{best.file_path(name)} is gone; remove {best.result_path} too, and the run is made again"
                )
            write_whole(config.out / name, best.file_path(name).read_bytes())
        if source.names_of("test"):
            if not best.has_test():
                from electrakit.evaluate.finetune import predict_test

                with_model(run, [best])
                list(run(predict_test, [best]))
            figures["test"] = write_predictions(best, config.out)
        if config.keep != "none":
            with_model(run, [best])
            put_model(best, config.out / "model")
        clean_up({"task": jobs}, {"task": results}, config)
        write_json(config.out / "results.json", figures)
        name = source.task.name if config.task else ""  # a task of their own may be called rte, too
        write_whole(config.out / "results.html", page_of_task(figures, results, name).encode())
    return figures


def source_of(config: FinetuneConfig) -> Source:
    if config.task is not None:
        assert config.data is not None
        task = find_task(config.task, TOKEN_TASKS.values())
        return Source(with_labels(config.data, task) if task.kind == "tags" else task, config.data)
    assert config.train is not None and config.out is not None
    task = recognise(read_table(config.train), config.text, config.label, config.kind, plain_name(config.out))
    named = {"train": config.train, "dev": config.dev, "test": config.test}
    return Source(task, files=tuple((name, str(path)) for name, path in named.items() if path is not None))


def plain_name(out: Path) -> str:
    return out.resolve().name


def in_words(source: Source) -> str:
    """What was recognised, for the user to see."""
    task = source.task
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


def jobs_of(config: FinetuneConfig, source: Source) -> list[Job]:
    assert config.model is not None and config.out is not None
    task = source.task
    check_preset(config)
    name = task.name if config.task else ""  # a task of their own may be called rte, too
    settings = config.settings(model_size(config.model), name, task.epochs, length=length_for(config.model, task))
    threads = config.threads or (num_cores() if config.seeds == 1 else 1)
    return [
        Job(config.model, source, seed, settings, config.out, device=config.device, threads=threads)
        for seed in range(1, config.seeds + 1)
    ]


def length_for(model: str, task: Task) -> int:
    """Of SQuAD's windows: the task's, or as many tokens as the model has positions for."""
    if task.kind == "sentences":
        return task.length
    import transformers

    from electrakit.evaluate.classifier import load_tokenizer
    from electrakit.evaluate.encode import num_positions
    from electrakit.loading import quiet, readable

    with quiet(), readable(model):
        config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
    return min(task.length, num_positions(config, load_tokenizer(model)))


def write_predictions(job: Job, out: Path) -> dict[str, Any]:
    """The test predictions as a table, and their score if the file has labels."""
    from safetensors.numpy import load_file

    from electrakit.evaluate.finetune import KINDS, predictions_of

    if job.task.kind != "sentences":
        found = load_file(job.test_path)
        rows = {name: load_rows(job.source, name, job.model, job.settings.length)[0] for name in found}
        scored = KINDS[job.task.kind].score(job.task, rows, found)
        for name, content in scored.files.items():
            write_whole(out / name, content.encode())
        return scored.scores
    scores: dict[str, Any] = {}
    for split, logits in load_file(job.test_path).items():
        name = f"{split}.tsv" if job.source.data is None else job.task.split(split).submission or f"{split}.tsv"
        write_whole(out / name, ("\n".join(lines_of(job.task, logits)) + "\n").encode())
        labels = job.source.read(split).labels if job.source.data is None else None
        if labels is not None:
            predicted = predictions_of(job.task, logits)
            scores[split] = {metric: METRICS[metric](labels, predicted) for metric in job.task.metrics}
    return scores


def put_model(job: Job, place: Path) -> None:
    """The best run's model under a name that is always the same; its files are shared where the file system can."""
    with whole_or_nothing(place) as unfinished:
        shutil.copytree(job.model_path, unfinished, copy_function=link_or_copy, dirs_exist_ok=True)


def link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
