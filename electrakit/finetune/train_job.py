"""Trains one fine-tuning job, scores it on dev and writes its result; predicts its test splits."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.json_files import write_json
from electrakit.common.ownership import set_aside
from electrakit.common.workers import WORKER
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import (
    MAX_DIFFERENCE,
    Classifier,
    ModelNotes,
    ModelWithHead,
    load_classifier,
    load_transformers_tokenizer,
    open_classifier,
)
from electrakit.finetune.collapse import loss_reasons, one_class_reasons
from electrakit.finetune.encode import (
    EVALUATION_TOKENS,
    EncodedRows,
    check_ids,
    checked_length,
    collate,
    evaluation_batches,
    training_batches,
)
from electrakit.finetune.job import FinetuneJob, load_rows
from electrakit.finetune.metrics import METRICS
from electrakit.finetune.optimizer import build_optimizer, set_lr
from electrakit.finetune.results import EvaluationResult, JobResult
from electrakit.finetune.speedups import less_work
from electrakit.finetune.tasks import Task
from electrakit.finetune.tokens.model import load_token_model, open_token_model
from electrakit.finetune.tokens.spans import score_spans, span_loss
from electrakit.finetune.tokens.tags import score_tags, tag_loss

CURVE_POINTS = 200


def finetune_job(job: FinetuneJob) -> JobResult:
    """Train, score on dev, write the model and `seed_N.json`; return what that holds."""
    started = time.perf_counter()
    task, settings = job.task, job.settings
    with isolated_randomness(job.seed, job.threads):
        device, tokenizer = choose_device(job.device), load_transformers_tokenizer(job.model)
        classifier, warnings = load_for_training(job)
        length = checked_length(settings.length, classifier.model.config, tokenizer)
        rows: dict[str, EncodedRows] = {}
        for name in ("train", *job.data.names_of("dev")):
            rows[name], more = load_rows(job.data, name, job.model, length)
            check_ids(rows[name], classifier.model.config, job.model)
            warnings += more
        dev = {name: each for name, each in rows.items() if name != "train"}
        classifier.to(device)
        pad_id = tokenizer.pad_token_id
        training_started = time.perf_counter()
        with less_work(classifier, rows, settings.weight_decay > 0, pad_id) as small:
            losses = train_model(classifier, small["train"], job, pad_id, device)
            training_seconds = time.perf_counter() - training_started
            logits = {name: evaluate(classifier, small[name], pad_id, device, settings) * task.scale for name in dev}
        evaluation = SCORE_FUNCTIONS[task.kind](task, dev, logits)
        if job.keeps_model:
            notes: ModelNotes = {"columns": list(task.columns), "length": length, "task": task.name}
            if evaluation.threshold:  # JSON has no infinity
                notes["threshold"] = max(evaluation.threshold["dev"], -1e9)
            with explain_write_errors(job.out):
                classifier.save(job.model_path, tokenizer, task.scale, notes)
            # In bfloat16 the scored logits are rounded, and those of the saved model are not.
            if isinstance(classifier, Classifier) and settings.precision == "fp32":
                warnings += compare_saved(classifier, dev["dev"], logits["dev"], pad_id, device)
    kinds = {"sentences": "regression" if task.is_regression else "classification"}
    metric = task.metrics[0]
    scores = [each[metric] for each in evaluation.scores.values()]
    is_finite = all(np.isfinite(each).all() for each in logits.values())
    result = JobResult(
        identity=job.identity(),
        task=task.name,
        title=task.title,
        seed=job.seed,
        model=job.model,
        start_from=None if job.start is None else job.start.describe(),
        kind=kinds.get(task.kind, task.kind),
        labels=task.labels,
        metric=metric,
        score=float(np.mean(scores)) if is_finite else math.nan,
        scores=evaluation.scores,
        collapsed=evaluation.collapsed + loss_reasons(losses),
        num_steps=len(losses),
        losses=loss_curve(losses),
        files=list(evaluation.files),
        answers=evaluation.answers,
        predictions=evaluation.predictions,
        logits=evaluation.logits,
        threshold=evaluation.threshold,
        head=classifier.head,
        warnings=warnings,
        num_parameters=sum(each.numel() for each in classifier.parameters()),
        device=str(device),
        seconds={"training": training_seconds, "all": time.perf_counter() - started},
    )
    with explain_write_errors(job.out):
        for name, content in evaluation.files.items():
            write_beside(job.file_path(name), content.encode())
        write_json(job.result_path, result.as_json())
    return result


def write_beside(path: Path, content: bytes) -> None:
    """A run that is made again gives the same bytes: others are another's, and are kept."""
    if path.exists() and path.read_bytes() != content:
        set_aside(path)
    atomic_write(path, content)


def load_for_training(job: FinetuneJob) -> tuple[ModelWithHead, list[str]]:
    """The model with a new head, and warnings about it."""
    if job.task.kind == "sentences":
        return load_classifier(job.initial_model, job.task, job.settings.head, job.settings.dropout)
    return load_token_model(job.initial_model, job.task, job.settings), []


def open_finetuned(place: str, task: Task) -> ModelWithHead:
    return open_classifier(place) if task.kind == "sentences" else open_token_model(place, task)


def train_model(
    classifier: nn.Module, rows: EncodedRows, job: FinetuneJob, pad_id: int, device: torch.device
) -> list[float]:
    """The training loop. Returns the loss of every step."""
    settings = job.settings
    num_per_epoch = math.ceil(len(rows) / settings.batch_size)
    num_steps = max(1, round(num_per_epoch * settings.epochs))
    optimizer = build_optimizer(classifier, settings)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    epochs = (training_batches(rows.lengths, settings.batch_size, job.seed, epoch) for epoch in count())
    losses = []
    classifier.train()
    for step, batch in enumerate(islice(chain.from_iterable(epochs), num_steps)):
        inputs = collate(rows, batch, pad_id, device)
        with autocast(settings, device):
            logits = classifier(**inputs)
        loss = LOSS_FUNCTIONS[job.task.kind](job.task, logits.float(), torch.from_numpy(rows.targets(batch)).to(device))
        loss_mean = loss.mean()
        (loss_mean if settings.loss == "mean" else loss.sum()).backward()
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm, foreach=True)
        set_lr(optimizer, settings, step, num_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss_mean.detach())
    return torch.stack(losses).tolist()


def row_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row (B)."""
    if task.is_regression:
        return (logits[:, 0] - targets / task.scale).square()
    return nn.functional.cross_entropy(logits, targets.long(), reduction="none")


@torch.inference_mode()
def evaluate(
    classifier: nn.Module, rows: EncodedRows, pad_id: int, device: torch.device, settings: FinetuneSettings
) -> np.ndarray:
    """The logits of all rows (N, labels), or for token tasks of all their tokens (tokens, labels)."""
    classifier.eval()
    found: dict[int, np.ndarray] = {}
    for batch in evaluation_batches(rows.lengths, EVALUATION_TOKENS[device.type]):
        with autocast(settings, device):
            logits = classifier(**collate(rows, batch, pad_id, device))
        logits = logits.float().cpu().numpy()
        for row, length, each in zip(batch.tolist(), rows.lengths[batch], logits, strict=True):
            found[row] = each[None] if each.ndim == 1 else each[:length]
    return np.concatenate([found[row] for row in range(len(rows))])


def compare_saved(
    classifier: Classifier, rows: EncodedRows, scored: np.ndarray, pad_id: int, device: torch.device
) -> list[str]:
    """Warn if the saved transformers model predicts something else than what was scored; one batch is compared."""
    batch = evaluation_batches(rows.lengths)[-1]
    inputs = classifier.known(collate(rows, batch, pad_id, device))
    with torch.inference_mode():
        logits = classifier.model(**inputs).logits.float().cpu().numpy()
    difference = float(np.abs(logits - scored[batch]).max())
    if difference <= MAX_DIFFERENCE * max(1.0, float(np.abs(scored).max())):
        return []
    return [f"the logits of the saved model differ by {difference:.3g} from those that were scored"]


def score_rows(task: Task, rows: dict[str, EncodedRows], logits: dict[str, np.ndarray]) -> EvaluationResult:
    """The scores of tasks that predict a label or a number for each row."""
    labels = {name: each.labels for name, each in rows.items() if each.labels is not None}
    predictions = {name: predictions_of(task, each) for name, each in logits.items()}
    return EvaluationResult(
        scores={
            name: {metric: METRICS[metric](labels[name], predictions[name]) for metric in task.metrics}
            for name in logits
        },
        collapsed=one_class_reasons(task, predictions, labels),
        answers=rounded(labels),
        predictions=rounded(predictions),
        logits=rounded(logits),
    )


def rounded(values: dict[str, np.ndarray]) -> dict[str, Any]:
    """By split, for JSON."""
    return {name: np.round(each.astype(float), 5).tolist() for name, each in values.items()}


def predictions_of(task: Task, logits: np.ndarray) -> np.ndarray:
    """Class indices, or predicted numbers (N)."""
    return logits[:, 0] if task.is_regression else logits.argmax(-1)


def loss_curve(losses: list[float]) -> list[list[float]]:
    """At most 200 pairs of step and mean loss since the pair before."""
    width = math.ceil(len(losses) / CURVE_POINTS)
    return [
        [min(start + width, len(losses)), round(float(np.mean(losses[start : start + width])), 5)]
        for start in range(0, len(losses), width)
    ]


def predict_test(job: FinetuneJob) -> None:
    """Write the logits of a run's saved model for every test split, beside the model."""
    from safetensors.numpy import save

    with isolated_randomness(job.seed, job.threads):
        device, tokenizer = choose_device(job.device), load_transformers_tokenizer(job.model)
        classifier = open_finetuned(str(job.model_path), job.task).to(device)
        logits: dict[str, np.ndarray] = {}
        for name in job.data.names_of("test"):
            rows, _ = load_rows(job.data, name, job.model, job.settings.length)
            logits[name] = evaluate(classifier, rows, tokenizer.pad_token_id, device, job.settings)
    with explain_write_errors(job.out):
        if job.test_path.exists() and job.test_stamp() is None:
            set_aside(job.test_path)
        atomic_write(job.test_path, save(logits, {"stamp": job.test_identity()}))


LOSS_FUNCTIONS: dict[str, Callable[[Task, Tensor, Tensor], Tensor]] = {
    "sentences": row_loss,
    "spans": span_loss,
    "tags": tag_loss,
}
SCORE_FUNCTIONS: dict[str, Callable[[Task, Any, dict[str, np.ndarray]], EvaluationResult]] = {
    "sentences": score_rows,
    "spans": score_spans,
    "tags": score_tags,
}


def autocast(settings: FinetuneSettings, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")


def choose_device(name: str | None) -> torch.device:
    """By default the GPU of this worker process, or the CPU if torch sees no GPU."""
    if name not in (None, "cpu", "cuda"):
        raise UserError(f"--device {name!r} is not known; use cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get(WORKER, "0"))
    return torch.device("cuda", number % torch.cuda.device_count())


@contextmanager
def isolated_randomness(seed: int, threads: int) -> Iterator[None]:
    """Seeded randomness and a fixed number of threads; the caller's are restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)
