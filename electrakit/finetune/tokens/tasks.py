"""The tasks that predict tokens: the answers of SQuAD are spans of a text, chunks are tags of its words."""

from dataclasses import replace
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.finetune.read_glue import folders_named
from electrakit.finetune.tasks import Split, Task

SQUAD = Task(
    "squad",
    "SQuAD 1.1",
    ("squad", "squad1", "squadv1", "squad11"),
    ("question", "context"),
    (
        Split("train", ("train-v1.1.json", "train.json"), 87_599, "train"),
        Split("dev", ("dev-v1.1.json", "dev.json"), 10_570, "validation"),
    ),
    label="answer",
    labels=None,
    metrics=("f1", "exact"),
    epochs=2,
    kind="spans",
    length=512,
)
SQUAD2 = replace(
    SQUAD,
    name="squad2",
    title="SQuAD 2.0",
    folders=("squad2", "squadv2", "squad20", "squad"),
    splits=(
        Split("train", ("train-v2.0.json", "train.json"), 130_319, "train"),
        Split("dev", ("dev-v2.0.json", "dev.json"), 11_873, "validation"),
    ),
    metrics=("best_f1", "best_exact", "f1", "exact"),
    may_be_unanswerable=True,
)
CHUNKING = Task(
    "chunking",
    "Chunking",
    ("chunking", "chunk", "conll2000"),
    ("words",),
    (
        Split("train", ("train.txt",), 8_936, "train"),
        Split("dev", ("dev.txt", "test.txt"), 2_012, "validation"),
        Split("test", ("test.txt",), 2_012, "test", submission="test.txt"),
    ),
    label="chunk",
    labels=(),  # read from the files
    metrics=("f1", "precision", "recall", "accuracy"),
    kind="tags",
)
TOKEN_TASKS: dict[str, Task] = {task.name: task for task in (SQUAD, SQUAD2, CHUNKING)}


def find_token_file(data: str, task: Task, split: Split) -> Path | None:
    """A file in the folder `data` itself, or in a folder of the task's name in it."""
    folder = Path(data)
    if data.startswith("hf:"):
        raise UserError(
            f"--data {data}: {task.title} is read from its files; name the folder of {task.splits[0].files[0]}"
        )
    if not folder.is_dir():
        raise UserError(f"the data folder {folder} does not exist; it should hold {task.splits[0].files[0]}")
    places = (folder, *folders_named(folder, task.folders))
    paths = [place / name for name in split.files for place in places]
    return next((path for path in paths if path.is_file()), None)


def require_file(data: str, task: Task, split: Split) -> Path:
    path = find_token_file(data, task, split)
    if path is None:
        raise UserError(f"{task.title} has no {' or '.join(split.files)} in {data}")
    return path
