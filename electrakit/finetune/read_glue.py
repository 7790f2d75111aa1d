"""Reads the sentences and labels of GLUE, from the official TSV files or the layout of the Hugging Face datasets."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.finetune.tasks import Split, Task, plain_name

RELEASED_MRPC = "msr_paraphrase_train.txt"
MRPC_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")
ROW_PROBLEMS = {
    "broken": "with too few columns are left out",
    "empty": "have an empty sentence",
    "undecodable": "are not quite UTF-8",
}

TextRow = tuple[str, Sequence[str]]
"""File and line, for errors; and the fields: the texts and, if there is one, the label."""


@dataclass(frozen=True)
class Examples:
    """The rows of a split. Labels are class numbers, or numbers to predict; None where the file has none."""

    first: list[str]
    second: list[str] | None
    labels: list[float] | None
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first)


def make_examples(task: Task, rows: Iterable[TextRow], has_labels: bool, counts: Counter[str]) -> Examples:
    """Collect the rows of a split. Those with an empty text are added to `counts`."""
    first, second, labels = [], [], []
    for where, fields in rows:
        texts = fields[: len(task.columns)]
        first.append(texts[0])
        second.append(texts[-1])
        counts["empty"] += not all(text.strip() for text in texts)
        if has_labels:
            labels.append(label_number(task, fields[-1], where))
    return Examples(first, second if len(task.columns) > 1 else None, labels if has_labels else None)


def rows_warning(task: Task, split: Split, num_rows: int, what: str) -> tuple[str, ...]:
    """A warning if a file is not as long as the released one."""
    if num_rows == split.num_rows or not split.num_rows:
        return ()
    return (f"{task.title} {split.name} has {num_rows:,} {what}, the released one {split.num_rows:,}",)


def problem_warnings(where: str, counts: Counter[str], what: str = "rows") -> tuple[str, ...]:
    return tuple(
        f"{where}: {counts[name]:,} {what} {problem}" for name, problem in ROW_PROBLEMS.items() if counts[name]
    )


def label_number(task: Task, label: str, where: str) -> float:
    """The number of a label's class, or the number that the label is."""
    label = label.strip()
    if task.labels is not None:
        if label not in task.labels:
            raise UserError(f"{where} has the label {label!r}; known labels are {', '.join(task.labels)}")
        return task.labels.index(label)
    number = finite_number(label)
    if number is None:
        raise UserError(f"{where} has the label {label!r}; a number is needed")
    return number


def finite_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_split(data: str, task: Task, split: Split) -> Examples:
    """The rows of a split. `data`: the folder of all tasks, or `hf:PATH_OR_NAME`."""
    counts: Counter[str] = Counter()
    if data.startswith("hf:"):
        from electrakit.finetune.read_hf import read_hf

        source, rows = read_hf(data[3:], task, split)
    else:
        path = require_file(data, task, split)
        source, rows = str(path), read_tsv(path, task, split, counts)
    examples = make_examples(task, rows, split.has_labels, counts)
    if not len(examples):
        raise UserError(f"{source} has no rows")
    warnings = rows_warning(task, split, len(examples), "rows")
    return replace(examples, warnings=warnings + problem_warnings(f"{task.title} {split.name}", counts))


def has_split(data: str, task: Task, split: Split) -> bool:
    if data.startswith("hf:"):
        from electrakit.finetune.read_hf import has_hf

        return has_hf(data[3:], task, split)
    return find_file(data, task, split) is not None


def find_folder(data: Path, names: tuple[str, ...]) -> Path | None:
    """The folder of a task, in any spelling; `data` may be that folder itself."""
    if not data.is_dir():
        raise UserError(f"the data folder {data} does not exist; electra glue --download {data} fetches GLUE")
    is_the_task = plain_name(data.resolve().name) in {plain_name(name) for name in names}
    return next(iter(folders_named(data, names)), data if is_the_task else None)


def folders_named(data: Path, names: tuple[str, ...]) -> list[Path]:
    """The folders in `data` that have one of these names, in any spelling."""
    wanted = {plain_name(name) for name in names}
    return [folder for folder in sorted(data.iterdir()) if folder.is_dir() and plain_name(folder.name) in wanted]


def find_file(data: str, task: Task, split: Split) -> Path | None:
    """The first of a split's files that is there: in the task's folder, for tasks that predict tokens in `data` itself, too."""
    folder, first = Path(data), task.splits[0].files[0]
    if task.kind == "sentences":
        found = find_folder(folder, split.folders or task.folders)
        places = [found] if found else []
    elif data.startswith("hf:"):
        raise UserError(f"--data {data}: {task.title} is read from its files; name the folder of {first}")
    elif not folder.is_dir():
        raise UserError(f"the data folder {folder} does not exist; it should hold {first}")
    else:
        places = [folder, *folders_named(folder, task.folders)]
    paths = [place / name for name in split.files for place in places]
    return next((path for path in paths if path.is_file()), None)


def require_file(data: str, task: Task, split: Split) -> Path:
    path = find_file(data, task, split)
    if path is not None:
        return path
    where, way_out = data, ""
    if task.kind == "sentences":
        where = str(find_folder(Path(data), split.folders or task.folders) or Path(data) / task.title)
        way_out = f"; electra glue --download {data} fetches GLUE"
    raise UserError(f"{task.title} has no {' or '.join(split.files)} in {where}{way_out}")


def text_lines(path: Path, counts: Counter[str]) -> Iterator[str]:
    """The lines without their line feed. Bytes that are not UTF-8 are replaced, and their lines counted."""
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in content.split(b"\n"):  # not splitlines: a sentence may hold other separators
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            counts["undecodable"] += 1
        yield text


def tsv_lines(path: Path, counts: Counter[str]) -> Iterator[tuple[int, list[str]]]:
    """The number, from 1, and the fields of each line that is not empty. A quote in GLUE's files is an ordinary character."""
    for number, text in enumerate(text_lines(path, counts), 1):
        if line := text.rstrip("\r"):
            yield number, line.split("\t")


def read_tsv(path: Path, task: Task, split: Split, counts: Counter[str]) -> Iterator[TextRow]:
    """The rows of an official file."""
    wanted = (*task.columns, task.label) if split.has_labels else task.columns
    lines = tsv_lines(path, counts)
    header = split.header or tuple(next(lines, (1, wanted))[1])
    if missing := [name for name in wanted if name not in header]:
        raise UserError(f"{path} has no column {missing[0]!r}; its first line has {', '.join(map(repr, header))}")
    places = [header.index(name) for name in wanted]
    mrpc_dev = mrpc_dev_pairs(path) if path.name == RELEASED_MRPC else None
    for number, fields in lines:
        if number == 1 and tuple(fields[: len(header)]) == header:
            continue  # a copy that has the header which the released file lacks
        if len(fields) <= max(places):
            # Test rows are not skipped: each has its place in the submission.
            if task.skips_broken_rows and split.has_labels:
                counts["broken"] += 1
                continue
            raise UserError(
                f"{path} line {number} has {len(fields)} columns, needed are {max(places) + 1}; fix or remove the line"
            )
        if mrpc_dev is not None and (tuple(fields[1:3]) in mrpc_dev) != (split.name == "dev"):
            continue
        yield f"{path} line {number}", [fields[place] for place in places]


def mrpc_dev_pairs(path: Path) -> set[tuple[str, ...]]:
    """The sentence ids of GLUE's dev rows, which are in the training file of MRPC as Microsoft released it."""
    lists = [path.parent / name for name in MRPC_DEV_IDS if (path.parent / name).exists()]
    if not lists:
        raise UserError(
            f"{path} holds training and dev rows of MRPC; the list of GLUE's dev rows, dev_ids.tsv, is not beside it: "
            "electra glue --download fetches it"
        )
    return {tuple(fields[:2]) for _, fields in tsv_lines(lists[0], Counter())}
