"""Test predictions in, the zip that the GLUE server takes out: all eleven files, or none."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from electrakit.evaluate.tasks import TASKS, Split, Task
from electrakit.whole import write_whole

FILES: dict[str, tuple[Task, Split]] = {
    split.submission: (task, split) for task in TASKS.values() for split in task.splits if split.submission
}
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same predictions are the same bytes


def combine(task: Task, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Runs' predictions averaged: probabilities of classes (N, labels), or numbers (N, 1)."""
    if task.is_regression:
        return np.mean(logits, axis=0)
    powers = [np.exp(each - each.max(-1, keepdims=True)) for each in logits]
    return np.mean([each / each.sum(-1, keepdims=True) for each in powers], axis=0)


def lines_of(task: Task, scores: np.ndarray) -> list[str]:
    """A header and a line for each row, spelled as the server wants it."""
    if task.labels is None:
        values = np.clip(scores[:, 0], *task.limits) if task.limits else scores[:, 0]
        said = [f"{value:.3f}" if task.limits else f"{value:.6g}" for value in values]
    else:
        said = [task.labels[number] for number in scores.argmax(-1)]
    return ["index\tprediction", *(f"{index}\t{label}" for index, label in enumerate(said))]


def filled(task: Task, num_rows: int) -> list[str]:
    """The first label in every row: for a task that was not run."""
    return lines_of(
        task, np.eye(1, len(task.labels or "0")).repeat(num_rows, 0) * (0.0 if task.labels is None else 1.0)
    )


def write_submission(predictions: dict[str, np.ndarray], path: Path, fill: bool) -> str:
    """Write the zip; say in a sentence what was done. `predictions`: file name -> scores (N, labels)."""
    missing = [name for name in FILES if name not in predictions]
    if not predictions:
        path.unlink(missing_ok=True)
        return "No submission.zip: there are no test files."
    if missing and not fill:
        path.unlink(missing_ok=True)
        return f"No submission.zip: {', '.join(missing)} missing; the server wants all files. --fill fills them with one label."
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (task, split) in FILES.items():
            lines = lines_of(task, predictions[name]) if name in predictions else filled(task, split.num_rows)
            archive.writestr(zipfile.ZipInfo(name, LONG_AGO), "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)
    write_whole(path, content.getvalue())
    wrong = [
        f"{name} has {len(predictions[name]):,} rows instead of {split.num_rows:,}"
        for name, (_, split) in FILES.items()
        if name in predictions and len(predictions[name]) != split.num_rows
    ]
    said = "submission.zip is written"
    said += f", {', '.join(missing)} filled with one label: their scores mean nothing" if missing else ""
    return said + (f". The server will refuse it: {'; '.join(wrong)}." if wrong else ".")
