"""Makes submission.zip for the GLUE server of test predictions: all eleven files, or no zip."""

import io
import zipfile
from collections.abc import Sequence

import numpy as np

from electrakit.finetune.tasks import TASKS, Split, Task

SUBMISSION_FILES: dict[str, tuple[Task, Split]] = {
    split.submission: (task, split) for task in TASKS.values() for split in task.splits if split.submission
}
# A fixed date: the same predictions are the same bytes.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def combine(task: Task, logits: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of several runs' predictions: class probabilities (N, labels), or numbers (N, 1)."""
    return np.mean(logits if task.is_regression else list(map(probabilities, logits)), axis=0)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def prediction_lines(task: Task, scores: np.ndarray) -> list[str]:
    """A header and a line for each row, in the format of the GLUE server."""
    if task.labels is None:
        values = np.clip(scores[:, 0], *task.limits) if task.limits else scores[:, 0]
        labels = [f"{value:.3f}" if task.limits else f"{value:.6g}" for value in values]
    else:
        labels = [task.labels[number] for number in scores.argmax(-1)]
    return ["index\tprediction", *(f"{index}\t{label}" for index, label in enumerate(labels))]


def make_submission(predictions: dict[str, np.ndarray], fill: bool) -> tuple[bytes | None, str]:
    """The zip, or None, and a sentence on it. `predictions`: file name -> scores (N, labels)."""
    missing = [name for name in SUBMISSION_FILES if name not in predictions]
    if not predictions:
        return None, "No submission.zip: there are no test files."
    if missing and not fill:
        why = f"{', '.join(missing)} missing; the server wants all files. --fill fills them with one label."
        return None, f"No submission.zip: {why}"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (task, split) in SUBMISSION_FILES.items():
            scores = predictions.get(name)
            if scores is None:  # the first label, or 0, in every row
                scores = np.zeros((split.num_rows, len(task.labels or "0")))
            lines = prediction_lines(task, scores)
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)
    wrong = [
        f"{name} has {len(predictions[name]):,} rows instead of {split.num_rows:,}"
        for name, (_, split) in SUBMISSION_FILES.items()
        if name in predictions and len(predictions[name]) != split.num_rows
    ]
    done = "submission.zip is written"
    done += f", {', '.join(missing)} filled with one label: their scores mean nothing" if missing else ""
    return content.getvalue(), done + (f". The server will refuse it: {'; '.join(wrong)}." if wrong else ".")
