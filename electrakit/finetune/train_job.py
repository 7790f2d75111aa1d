"""Trains one fine-tuning job, scores it on dev and writes its result; predicts its test splits."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.json_files import write_json
from electrakit.common.workers import WORKER
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import (
    MAX_DIFFERENCE,
    Classifier,
    ModelWithHead,
    load_classifier,
    load_tokenizer,
    open_classifier,
)
from electrakit.finetune.collapse import loss_reasons, one_class_reasons
from electrakit.finetune.encode import (
    EVALUATION_TOKENS,
    EncodedRows,
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
    with isolated_randomness(job.seed, job.threads):
        device = choose_device(job.device)
        tokenizer = load_tokenizer(job.model)
        kind = TASK_KINDS[job.task.kind]
        classifier, notes = kind.load(job)
        length = checked_length(job.settings.length, classifier.model.config, tokenizer)
        train, warnings = load_rows(job.data, "train", job.model, length)
        dev = {}
        for name in job.data.names_of("dev"):
            dev[name], more = load_rows(job.data, name, job.model, length)
            warnings += more
        classifier.to(device)
        pad_id = tokenizer.pad_token_id
        training_started = time.perf_counter()
        with less_work(classifier, {"train": train, **dev}, job.settings.weight_decay > 0, pad_id) as rows:
            losses = train_model(classifier, rows["train"], job, pad_id, device)
            training_seconds = time.perf_counter() - training_started
            logits = {name: evaluate(classifier, rows[name], pad_id, device, job.settings) for name in dev}
        logits = {name: each * job.task.scale for name, each in logits.items()}
        evaluation = kind.score(job.task, dev, logits)
        all_warnings = [*notes, *warnings]
        if job.keeps_model:
            about = {"columns": list(job.task.columns), "length": length, "task": job.task.name}
            if "threshold" in evaluation.details:
                # Above it a question has no answer; JSON has no infinity.
                about["threshold"] = max(evaluation.details["threshold"]["dev"], -1e9)
            with explain_write_errors(job.out):
                classifier.save(job.model_path, tokenizer, job.task.scale, about)
            # In bfloat16 the scored logits are rounded, and those of the saved model are not.
            if isinstance(classifier, Classifier) and job.settings.precision == "fp32":
                first = next(iter(logits.values()))
                all_warnings += compare_saved(classifier, next(iter(dev.values())), first, pad_id, device)
    kinds = {"sentences": "regression" if job.task.is_regression else "classification"}
    metric = job.task.metrics[0]
    scores = [each[metric] for each in evaluation.scores.values()]
    is_finite = all(np.isfinite(each).all() for each in logits.values())
    result = JobResult(
        identity=job.identity(),
        task=job.task.name,
        title=job.task.title,
        seed=job.seed,
        model=job.model,
        start_from=None if job.start is None else job.start.describe(),
        kind=kinds.get(job.task.kind, job.task.kind),
        labels=job.task.labels,
        metric=metric,
        score=float(np.mean(scores)) if is_finite else math.nan,
        scores=evaluation.scores,
        collapsed=evaluation.collapsed + loss_reasons(losses),
        num_steps=len(losses),
        losses=loss_curve(losses),
        files=list(evaluation.files),
        details=evaluation.details,
        head=classifier.head,
        warnings=all_warnings,
        num_parameters=sum(each.numel() for each in classifier.parameters()),
        device=str(device),
        seconds={"training": training_seconds, "all": time.perf_counter() - started},
    )
    with explain_write_errors(job.out):
        for name, content in evaluation.files.items():
            atomic_write(job.file_path(name), content.encode())
        write_json(job.result_path, result.as_json())
    return result


def train_model(
    classifier: nn.Module, rows: EncodedRows, job: FinetuneJob, pad_id: int, device: torch.device
) -> list[float]:
    """The training loop. Returns the loss of every step."""
    settings = job.settings
    kind = TASK_KINDS[job.task.kind]
    num_per_epoch = math.ceil(len(rows) / settings.batch_size)
    num_steps = max(1, round(num_per_epoch * settings.epochs))
    optimizer = build_optimizer(classifier, settings)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    losses = []
    classifier.train()
    for step, batch in enumerate(batches_of(rows, settings.batch_size, job.seed, num_steps)):
        inputs = collate(rows, batch, pad_id, device)
        with autocast(settings, device):
            logits = classifier(**inputs)
        loss = kind.loss(job.task, logits.float(), torch.from_numpy(rows.targets(batch)).to(device))
        loss_mean = loss.mean()
        (loss_mean if settings.loss == "mean" else loss.sum()).backward()
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm, foreach=True)
        set_lr(optimizer, settings, step, num_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss_mean.detach())
    return torch.stack(losses).tolist()


def batches_of(rows: EncodedRows, batch_size: int, seed: int, num_steps: int) -> Iterator[np.ndarray]:
    step, epoch = 0, 0
    while step < num_steps:
        for batch in training_batches(rows.lengths, batch_size, seed, epoch)[: num_steps - step]:
            yield batch
            step += 1
        epoch += 1


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
    found: np.ndarray | None = None
    for batch in evaluation_batches(rows.lengths, EVALUATION_TOKENS.get(device.type, EVALUATION_TOKENS["cpu"])):
        with autocast(settings, device):
            logits = classifier(**collate(rows, batch, pad_id, device))
        logits = logits.float().cpu().numpy()
        if found is None:
            found = np.empty((len(rows) if logits.ndim == 2 else len(rows.ids), logits.shape[-1]), np.float32)
        if logits.ndim == 2:
            found[batch] = logits
            continue
        for row, each in zip(batch, logits, strict=True):
            start, end = rows.starts[row], rows.starts[row + 1]
            found[start:end] = each[: end - start]
    assert found is not None
    return found


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
        details={
            what: {name: np.round(each.astype(float), 5).tolist() for name, each in values.items()}
            for what, values in {"answers": labels, "predictions": predictions, "logits": logits}.items()
        },
    )


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
        device, tokenizer = choose_device(job.device), load_tokenizer(job.model)
        classifier = TASK_KINDS[job.task.kind].open(str(job.model_path), job.task).to(device)
        logits: dict[str, np.ndarray] = {}
        for name in job.data.names_of("test"):
            rows, _ = load_rows(job.data, name, job.model, job.settings.length)
            logits[name] = evaluate(classifier, rows, tokenizer.pad_token_id, device, job.settings)
    with explain_write_errors(job.out):
        atomic_write(job.test_path, save(logits, {"stamp": job.test_identity()}))


@dataclass(frozen=True)
class TaskKind:
    """What differs between tasks that predict a label of a row, a span of it, or a tag of each word."""

    load: Callable[[FinetuneJob], tuple[ModelWithHead, list[str]]]
    open: Callable[[str, Task], ModelWithHead]
    loss: Callable[[Task, Tensor, Tensor], Tensor]
    score: Callable[[Task, dict[str, Any], dict[str, np.ndarray]], EvaluationResult]


def load_for_rows(job: FinetuneJob) -> tuple[ModelWithHead, list[str]]:
    return load_classifier(job.initial_model, job.task, job.settings.head, job.settings.dropout)


def load_for_tokens(job: FinetuneJob) -> tuple[ModelWithHead, list[str]]:
    return load_token_model(job.initial_model, job.task)


TASK_KINDS: dict[str, TaskKind] = {
    "sentences": TaskKind(load_for_rows, lambda place, _: open_classifier(place), row_loss, score_rows),
    "spans": TaskKind(load_for_tokens, open_token_model, span_loss, score_spans),
    "tags": TaskKind(load_for_tokens, open_token_model, tag_loss, score_tags),
}


def autocast(settings: FinetuneSettings, device: torch.device) -> Any:
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
