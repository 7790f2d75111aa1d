"""One model, one task, one seed: trained, scored, written."""

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

from electrakit.engine import WORKER
from electrakit.errors import UserError, mended_by_user
from electrakit.evaluate.classifier import MAX_DIFFERENCE, Classifier, load_classifier, load_tokenizer
from electrakit.evaluate.encode import (
    EVALUATION_TOKENS,
    Encoded,
    collate,
    evaluation_batches,
    longest,
    training_batches,
)
from electrakit.evaluate.faster import less_work
from electrakit.evaluate.files import write_json
from electrakit.evaluate.job import Job, load_rows
from electrakit.evaluate.metrics import METRICS
from electrakit.evaluate.optim import build_optimizer, set_lr
from electrakit.evaluate.scored import Scored
from electrakit.evaluate.spans import score_spans, span_loss
from electrakit.evaluate.tags import score_tags, tag_loss
from electrakit.evaluate.tasks import Task
from electrakit.evaluate.token_model import TokenModel, load_token_model, open_token_model
from electrakit.evaluate_config import FinetuneSettings
from electrakit.whole import write_whole

CURVE_POINTS = 200
NOT_FALLING = 0.98  # of the first tenth's loss: if the last tenth's is more, nothing was learned
NEARLY_ALL = 0.95  # of the predictions are one class, and no more are right than with one class for all: the same
MOST_LABELS = 0.9  # where more of the labels are that class, nearly all of the predictions may be, too


def finetune_job(job: Job) -> dict[str, Any]:
    """Train, score on dev, write `seed_N.json` and the model; return what was written."""
    started = time.perf_counter()
    with alone(job.seed, job.threads):
        device = device_of(job.device)
        tokenizer = load_tokenizer(job.model)
        kind = KINDS[job.task.kind]
        classifier, notes = kind.load(job)
        length = longest(job.settings.length, classifier.model.config, tokenizer)
        train, warnings = load_rows(job.source, "train", job.model, length)
        dev = {}
        for name in job.source.names_of("dev"):
            dev[name], more = load_rows(job.source, name, job.model, length)
            warnings += more
        classifier.to(device)
        pad_id = tokenizer.pad_token_id
        training_started = time.perf_counter()
        with less_work(classifier, {"train": train, **dev}, job.settings.weight_decay > 0, pad_id) as rows:
            losses = train_model(classifier, rows["train"], job, pad_id, device)
            training_seconds = time.perf_counter() - training_started
            logits = {name: evaluate(classifier, rows[name], pad_id, device, job.settings) for name in dev}
        logits = {name: each * job.task.scale for name, each in logits.items()}
        scored = kind.score(job.task, dev, logits)
        result = describe_result(job, losses, scored) | {
            "head": classifier.head,
            "warnings": [*notes, *warnings],
            "num_parameters": sum(each.numel() for each in classifier.parameters()),
            "device": str(device),
        }
        if job.keeps_model:
            about = {"columns": list(job.task.columns), "length": length, "task": job.task.name}
            if "threshold" in scored.details:  # above which a question has no answer; JSON knows no infinity
                about["threshold"] = max(scored.details["threshold"]["dev"], -1e9)
            with mended_by_user(job.out):
                classifier.save(job.model_path, tokenizer, job.task.scale, about)
            if (
                isinstance(classifier, Classifier) and job.settings.precision == "float32"
            ):  # else what was scored is rounded, and what is saved is not
                first = next(iter(logits.values()))
                result["warnings"] += compare_saved(classifier, next(iter(dev.values())), first, pad_id, device)
    result["seconds"] = {"training": training_seconds, "all": time.perf_counter() - started}
    with mended_by_user(job.out):
        for name, content in scored.files.items():
            write_whole(job.file_path(name), content.encode())
        write_json(job.result_path, result)
    return result


def train_model(classifier: nn.Module, rows: Encoded, job: Job, pad_id: int, device: torch.device) -> list[float]:
    """The loop: the loss of every step."""
    settings = job.settings
    kind = KINDS[job.task.kind]
    num_per_epoch = math.ceil(len(rows) / settings.batch_size)
    num_steps = max(1, round(num_per_epoch * settings.epochs))
    optimizer = build_optimizer(classifier, settings)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    losses = []
    classifier.train()
    for step, batch in enumerate(batches_of(rows, settings.batch_size, job.seed, num_steps)):
        inputs = collate(rows, batch, pad_id, device)
        with precision(settings, device):
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


def batches_of(rows: Encoded, batch_size: int, seed: int, num_steps: int) -> Iterator[np.ndarray]:
    step, epoch = 0, 0
    while step < num_steps:
        for batch in training_batches(rows.lengths, batch_size, seed, epoch)[: num_steps - step]:
            yield batch
            step += 1
        epoch += 1


def loss_of(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row (B)."""
    if task.is_regression:
        return (logits[:, 0] - targets / task.scale).square()
    return nn.functional.cross_entropy(logits, targets.long(), reduction="none")


@torch.inference_mode()
def evaluate(
    classifier: nn.Module, rows: Encoded, pad_id: int, device: torch.device, settings: FinetuneSettings
) -> np.ndarray:
    """The logits of all rows (N, labels), or of all their tokens (tokens, labels)."""
    classifier.eval()
    found: np.ndarray | None = None
    for batch in evaluation_batches(rows.lengths, EVALUATION_TOKENS.get(device.type, EVALUATION_TOKENS["cpu"])):
        with precision(settings, device):
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
    classifier: Classifier, rows: Encoded, scored: np.ndarray, pad_id: int, device: torch.device
) -> list[str]:
    """What is saved must say what was scored: the plain transformers model, on one batch."""
    batch = evaluation_batches(rows.lengths)[-1]
    inputs = collate(rows, batch, pad_id, device)
    known = {name: value for name, value in inputs.items() if name in classifier.known_inputs}
    with torch.inference_mode():
        logits = classifier.model(**known).logits.float().cpu().numpy()
    difference = float(np.abs(logits - scored[batch]).max())
    if difference <= MAX_DIFFERENCE * max(1.0, float(np.abs(scored).max())):
        return []
    return [f"the logits of the saved model differ by {difference:.3g} from those that were scored"]


def score_rows(task: Task, rows: dict[str, Encoded], logits: dict[str, np.ndarray]) -> Scored:
    """The scores of what was predicted for each row."""
    labels = {name: each.labels for name, each in rows.items() if each.labels is not None}
    predictions = {name: predictions_of(task, each) for name, each in logits.items()}
    return Scored(
        is_finite=all(bool(np.isfinite(each).all()) for each in logits.values()),
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


def describe_result(job: Job, losses: list[float], scored: Scored) -> dict[str, Any]:
    """The scores of a run, and what it takes to see why."""
    metric = job.task.metrics[0]
    score = float(np.mean([each[metric] for each in scored.scores.values()])) if scored.is_finite else math.nan
    kinds = {"sentences": "regression" if job.task.is_regression else "classification"}
    return {
        "identity": job.identity(),
        "task": job.task.name,
        "title": job.task.title,
        "seed": job.seed,
        "model": job.model,
        "start_from": job.start_name or job.start_from,
        "kind": kinds.get(job.task.kind, job.task.kind),
        "labels": job.task.labels,
        "metric": metric,
        "score": score,
        "scores": scored.scores,
        "collapsed": scored.collapsed + loss_reasons(losses),
        "num_steps": len(losses),
        "losses": curve(losses),
        "files": list(scored.files),
        **scored.details,
    }


def predictions_of(task: Task, logits: np.ndarray) -> np.ndarray:
    """Class numbers, or numbers (N)."""
    return logits[:, 0] if task.is_regression else logits.argmax(-1)


def one_class_reasons(task: Task, predictions: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> list[str]:
    """What about the predictions says that nothing was learned; empty if nothing does."""
    reasons = []
    for name, predicted in predictions.items():
        if task.is_regression and np.std(predicted) < 1e-3 * max(1e-9, np.std(labels[name])):
            reasons.append(f"all {name} predictions are {np.mean(predicted):.3g}")
        elif task.labels and len(set(labels[name].tolist())) > 1:
            reasons += _one_class(task.labels, name, predicted.astype(int), labels[name].astype(int))
    return reasons


def _one_class(names: tuple[str, ...], split: str, predicted: np.ndarray, labels: np.ndarray) -> list[str]:
    said, wanted = np.bincount(predicted, minlength=len(names)), np.bincount(labels, minlength=len(names))
    top, num_rows = int(said.argmax()), len(predicted)
    if said[top] == num_rows:
        return [f"all {split} predictions are {names[top]!r}"]
    is_better = (predicted == labels).sum() > wanted.max()
    if said[top] < NEARLY_ALL * num_rows or wanted[top] > MOST_LABELS * num_rows or is_better:
        return []
    return [f"{said[top]:,} of {num_rows:,} {split} predictions are {names[top]!r}, no better than one answer for all"]


def loss_reasons(losses: list[float]) -> list[str]:
    """What about the losses says it."""
    reasons = []
    tenth = max(1, len(losses) // 10)
    first, last = float(np.mean(losses[:tenth])), float(np.mean(losses[-tenth:]))
    if not math.isfinite(last):
        reasons.append("the training loss is not a number")
    elif len(losses) >= 10 and last > NOT_FALLING * first:
        reasons.append(f"the training loss did not fall: {first:.3f}, then {last:.3f}")
    return reasons


def curve(losses: list[float]) -> list[list[float]]:
    """Pairs of step and loss, 200 at the most: the mean of the steps since the pair before."""
    width = math.ceil(len(losses) / CURVE_POINTS)
    pieces = [losses[start : start + width] for start in range(0, len(losses), width)]
    ends = np.cumsum([len(piece) for piece in pieces])
    return [[int(end), round(float(np.mean(piece)), 5)] for end, piece in zip(ends, pieces, strict=True)]


def predict_test(job: Job) -> None:
    """The kept model of a run on every test split that is there: logits, written beside it."""
    from safetensors.numpy import save

    with alone(job.seed, job.threads):
        device, tokenizer = device_of(job.device), load_tokenizer(job.model)
        classifier = KINDS[job.task.kind].open(str(job.model_path), job.task).to(device)
        logits: dict[str, np.ndarray] = {}
        for name in job.source.names_of("test"):
            rows, _ = load_rows(job.source, name, job.model, job.settings.length)
            logits[name] = evaluate(classifier, rows, tokenizer.pad_token_id, device, job.settings)
    with mended_by_user(job.out):
        write_whole(job.test_path, save(logits, {"stamp": job.test_stamp()}))


def open_classifier(place: str) -> Classifier:
    """A finished classifier, of ours or of others."""
    import transformers

    from electrakit.loading import quiet, readable, require_safe

    require_safe(place)
    with quiet(), readable(place):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            place, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    return Classifier(model, "transformers").eval()


@dataclass(frozen=True)
class Kind:
    """What differs between tasks that predict something of a row, a span of it, or a tag of each word."""

    load: Callable[[Job], tuple[Classifier | TokenModel, list[str]]]
    open: Callable[[str, Task], Classifier | TokenModel]
    loss: Callable[[Task, Tensor, Tensor], Tensor]
    score: Callable[[Task, dict[str, Any], dict[str, np.ndarray]], Scored]


def load_for_rows(job: Job) -> tuple[Classifier, list[str]]:
    return load_classifier(job.start_from or job.model, job.task, job.settings.head, job.settings.dropout)


def load_for_tokens(job: Job) -> tuple[TokenModel, list[str]]:
    return load_token_model(job.start_from or job.model, job.task)


KINDS: dict[str, Kind] = {
    "sentences": Kind(load_for_rows, lambda place, _: open_classifier(place), loss_of, score_rows),
    "spans": Kind(load_for_tokens, open_token_model, span_loss, score_spans),
    "tags": Kind(load_for_tokens, open_token_model, tag_loss, score_tags),
}


def precision(settings: FinetuneSettings, device: torch.device) -> Any:
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16")


def device_of(name: str | None) -> torch.device:
    """By default the GPU of this worker process, if there are any."""
    if name not in (None, "cpu", "cuda"):
        raise UserError(f"--device {name!r} is not known; use cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get(WORKER, "0"))
    return torch.device("cuda", number % torch.cuda.device_count())


@contextmanager
def alone(seed: int, threads: int) -> Iterator[None]:
    """Chance by the seed and a fixed number of threads; both as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)
