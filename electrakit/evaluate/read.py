"""A folder of GLUE in, sentences and labels out: the official TSV files, or the layout of the Hugging Face datasets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electrakit.errors import UserError
from electrakit.evaluate.tasks import Split, Task, plain

RELEASED_MRPC = "msr_paraphrase_train.txt"
MRPC_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")


@dataclass(frozen=True)
class Examples:
    """Rows of a split. Labels are class numbers, or numbers to predict; None where the file has none."""

    first: list[str]
    second: list[str] | None
    labels: list[float] | None
    source: str
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first)


@dataclass
class Reading:
    """What is gathered while a split is read."""

    task: Task
    source: str
    has_labels: bool
    texts: tuple[list[str], ...] = ()
    labels: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.texts = tuple([] for _ in self.task.columns)

    def add(self, values: list[str], label: float | None) -> None:
        for column, value in zip(self.texts, values, strict=True):
            column.append(value)
        self.counts["empty"] += not all(value.strip() for value in values)
        if label is not None:
            self.labels.append(label)

    def finish(self, num_expected: int | None, expected: str) -> Examples:
        num_rows = len(self.texts[0])
        if not num_rows:
            raise UserError(f"{self.source} has no rows")
        warnings = []
        if num_expected not in (None, num_rows):
            warnings.append(f"{expected} has {num_rows:,} rows, the released one {num_expected:,}")
        if self.counts["broken"]:
            warnings.append(f"{expected}: {self.counts['broken']:,} rows with too few columns are left out")
        if self.counts["empty"]:
            warnings.append(f"{expected}: {self.counts['empty']:,} rows have an empty sentence")
        if self.counts["undecodable"]:
            warnings.append(f"{expected}: {self.counts['undecodable']:,} rows are not quite UTF-8")
        second = self.texts[1] if len(self.texts) > 1 else None
        labels = self.labels if self.has_labels else None
        return Examples(self.texts[0], second, labels, self.source, tuple(warnings))


def read_split(data: str, task: Task, split: Split) -> Examples:
    """The rows of a split. `data`: the folder of all tasks, or `hf:PATH_OR_NAME`."""
    if data.startswith("hf:"):
        from electrakit.evaluate.read_hf import read_hf

        return read_hf(data[3:], task, split)
    path = find_file(Path(data), task, split)
    if path is None:
        names = " or ".join(split.files)
        folder = find_folder(Path(data), split.folders or task.folders) or Path(data) / task.title
        raise UserError(f"{task.title} has no {names} in {folder}; electra glue --download {data} fetches GLUE")
    return read_tsv(path, task, split)


def has_split(data: str, task: Task, split: Split) -> bool:
    if data.startswith("hf:"):
        from electrakit.evaluate.read_hf import has_hf

        return has_hf(data[3:], task, split)
    return find_file(Path(data), task, split) is not None


def find_folder(data: Path, names: tuple[str, ...]) -> Path | None:
    """The folder of a task, in whatever spelling; `data` may be that folder itself."""
    if not data.is_dir():
        raise UserError(f"the data folder {data} does not exist; electra glue --download {data} fetches GLUE")
    wanted = {plain(name) for name in names}
    found = [folder for folder in sorted(data.iterdir()) if folder.is_dir() and plain(folder.name) in wanted]
    if not found and plain(data.resolve().name) in wanted:
        return data
    return found[0] if found else None


def find_file(data: Path, task: Task, split: Split) -> Path | None:
    folder = find_folder(data, split.folders or task.folders)
    paths = [folder / name for name in split.files] if folder else []
    return next((path for path in paths if path.exists()), None)


def text_lines(path: Path, counts: Counter[str]) -> Iterator[str]:
    """The lines as text, without their line feed; those that are not UTF-8 are read as well as can be, and counted."""
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in content.split(b"\n"):  # not splitlines: other separators may stand in a sentence
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            counts["undecodable"] += 1
        yield text


def lines_of(path: Path, counts: Counter[str]) -> Iterator[tuple[int, list[str]]]:
    """Line numbers from 1, and fields. A quote in a TSV file of GLUE is a quote: nothing is quoted by it."""
    for number, text in enumerate(text_lines(path, counts), 1):
        if line := text.rstrip("\r"):
            yield number, line.split("\t")


def read_tsv(path: Path, task: Task, split: Split) -> Examples:
    """An official file, row by row."""
    has_labels = split.name == "train" or split.name.startswith("dev")
    reading = Reading(task, str(path), has_labels)
    wanted = (*task.columns, task.label) if has_labels else task.columns
    header, places = split.header, places_of(split.header, wanted, path) if split.header else []
    is_dev = mrpc_dev_rows(path) if path.name == RELEASED_MRPC else None
    for number, fields in lines_of(path, reading.counts):
        if not header:
            header, places = tuple(fields), places_of(tuple(fields), wanted, path)
            continue
        if split.header and number == 1 and tuple(fields[: len(header)]) == header:
            continue  # somebody gave it the header that the released file lacks
        if len(fields) <= max(places):
            if task.skips_broken_rows and has_labels:  # of test rows each has its place in the submission
                reading.counts["broken"] += 1
                continue
            raise UserError(
                f"{path} line {number} has {len(fields)} columns, needed are {max(places) + 1}; mend or remove the line"
            )
        if is_dev is not None and is_dev(fields) != (split.name == "dev"):
            continue
        values = [fields[place] for place in places]
        label = number_of(task, values.pop(), f"{path} line {number}") if has_labels else None
        reading.add(values, label)
    return reading.finish(split.num_rows, f"{task.title} {split.name}")


def places_of(header: tuple[str, ...], wanted: tuple[str, ...], path: Path) -> list[int]:
    missing = [name for name in wanted if name not in header]
    if missing:
        raise UserError(f"{path} has no column {missing[0]!r}; its first line has {', '.join(map(repr, header))}")
    return [header.index(name) for name in wanted]


def number_of(task: Task, label: str, where: str) -> float:
    """The label as a number: which class, or the number itself."""
    label = label.strip()
    if task.labels is not None:
        if label not in task.labels:
            raise UserError(f"{where} has the label {label!r}; {task.title} has {', '.join(task.labels)}")
        return task.labels.index(label)
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise UserError(f"{where} has the label {label!r}; {task.title} needs a number")
    return value


def mrpc_dev_rows(path: Path) -> Any:
    """MRPC as Microsoft released it has no dev rows: GLUE names those of the training file by the ids of their sentences."""
    lists = [path.parent / name for name in MRPC_DEV_IDS if (path.parent / name).exists()]
    if not lists:
        raise UserError(
            f"{path} holds training and dev rows of MRPC; the list of GLUE's dev rows, dev_ids.tsv, is not beside it: "
            "electra glue --download fetches it"
        )
    pairs = {tuple(fields[:2]) for _, fields in lines_of(lists[0], Counter())}
    return lambda fields: tuple(fields[1:3]) in pairs
