"""Reads the user's own TSV, CSV and JSONL files, and recognises from their columns and labels what is to be predicted."""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.config.finetune import LabelKind
from electrakit.finetune.read_glue import (
    Examples,
    finite_number,
    label_number,
    make_examples,
    problem_warnings,
    text_lines,
    tsv_lines,
)
from electrakit.finetune.tasks import Task

TEXT_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence",),
    ("text",),
    ("review",),
    ("content",),
)
LABEL_COLUMNS = ("label", "labels", "gold_label", "class", "category", "score", "target", "rating", "is_duplicate")
JSON_LINES = "JSON lines are wanted: one object in each line, no array around them"
MANY_VALUES = 20  # integers with more different values than this are measurements, not classes


@dataclass(frozen=True)
class UserTable:
    """The columns of a file, and its rows: the place of each, for errors, and its fields by column."""

    path: Path
    columns: tuple[str, ...]
    rows: list[tuple[str, dict[str, str]]]
    warnings: tuple[str, ...] = ()

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Those whose names say that they are the sentences; empty if there are none."""
        return next((columns for columns in TEXT_COLUMNS if set(columns) <= set(self.columns)), ())


def read_user_table(path: Path) -> UserTable:
    """Read a file by its suffix: .tsv or .txt (no quoting), .csv (with quoting), .jsonl; the first line names the columns."""
    readers = {".tsv": _tsv_rows, ".txt": _tsv_rows, ".csv": _csv_rows, ".jsonl": _json_rows, ".json": _json_rows}
    if path.suffix.lower() not in readers:
        raise UserError(f"{path} ends in {path.suffix or 'nothing'!r}; known are {', '.join(readers)}")
    if not path.is_file():
        raise UserError(f"the file {path} does not exist")
    counts: Counter[str] = Counter()
    rows = list(readers[path.suffix.lower()](path, counts))
    if not rows:
        raise UserError(f"{path} has no rows")
    return UserTable(path, tuple(rows[0][1]), rows, problem_warnings(path.name, counts))


def _tsv_rows(path: Path, counts: Counter[str]) -> Iterator[tuple[str, dict[str, str]]]:
    return _named(path, tsv_lines(path, counts))


def _csv_rows(path: Path, counts: Counter[str]) -> Iterator[tuple[str, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # a text may be longer than the 128 kB that the module reads by default
    reader = csv.reader(io.StringIO("\n".join(text_lines(path, counts)), newline=""), strict=True)
    try:
        yield from _named(path, ((reader.line_num, row) for row in reader if row))
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: {error}; is it CSV with quotes? .tsv has none") from None


def _named(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[str, dict[str, str]]]:
    _, header = next(rows, (0, []))
    if len(header) == 1 and any(mark in header[0] for mark in "\t;,|"):
        mark = "commas" if path.suffix.lower() == ".csv" else "tabs"
        raise UserError(f"{path}: its first line is one column, {header[0]!r}; {mark} between the columns are wanted")
    if len(set(header)) < len(header):
        raise UserError(f"{path} has two columns of the same name: {', '.join(header)}")
    for number, fields in rows:
        if len(fields) != len(header):
            raise UserError(
                f"{path} line {number} has {len(fields)} columns, its first line {len(header)}: {', '.join(header)}"
            )
        yield f"{path} line {number}", dict(zip(header, fields, strict=True))


def _json_rows(path: Path, counts: Counter[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for number, line in enumerate(text_lines(path, counts), 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}; {JSON_LINES}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where} is not a JSON object with named fields; {JSON_LINES}")
        texts = {name: "" if value is None else value for name, value in row.items()}
        yield where, {name: text if isinstance(text, str) else json.dumps(text) for name, text in texts.items()}


def recognise_task(
    train: UserTable, text: Sequence[str] | None, label: str | None, kind: LabelKind | None, name: str
) -> Task:
    """The task of a training file: its columns by their names, its kind by the labels."""
    columns = tuple(text or train.text_columns)
    if not columns:
        raise UserError(
            f"{train.path} has the columns {', '.join(train.columns)}; name the columns of the sentences with --text"
        )
    if len(columns) > 2:
        raise UserError(f"--text names {len(columns)} columns; a model takes one or two sentences")
    label = label or next((column for column in LABEL_COLUMNS if column in train.columns), None)
    if label is None:
        raise UserError(
            f"{train.path} has the columns {', '.join(train.columns)}; name the column of the label with --label"
        )
    values = [field_of(where, row, label).strip() for where, row in train.rows]
    if "" in values:
        where, _ = train.rows[values.index("")]
        raise UserError(f"{where} has no label; remove the row, or fill in its {label!r}")
    task = Task(name, name, (), columns, (), label=label, labels=None, metrics=("spearman", "pearson"))
    if (kind or label_kind(values)) == "regression":
        numbers = [label_number(task, value, where) for (where, _), value in zip(train.rows, values, strict=True)]
        return replace(task, scale=max(map(abs, numbers)) or 1.0)
    labels = tuple(sorted(set(values), key=_sort_key))
    if len(labels) < 2:
        raise UserError(f"{train.path}: all rows have the label {labels[0]!r}; there is nothing to learn")
    return replace(task, labels=labels, metrics=("accuracy", "f1", "matthews")[: 3 if len(labels) == 2 else 1])


def label_kind(values: Sequence[str]) -> LabelKind:
    """Numbers with fractions, or many different ones, make a regression; all else is classification."""
    numbers = [finite_number(value) for value in values]
    if None in numbers:
        return "classification"
    has_fractions = any(not float(number or 0).is_integer() for number in numbers)
    return "regression" if has_fractions or len(set(numbers)) > MANY_VALUES else "classification"


def _sort_key(label: str) -> tuple[float, str]:
    """Numbers in their order, before all else."""
    number = finite_number(label)
    return (math.inf if number is None else number, label)


def field_of(where: str, row: dict[str, str], column: str) -> str:
    if column not in row:
        raise UserError(f"{where} has no column {column!r}; it has {', '.join(row)}")
    return row[column]


def examples_of(table: UserTable, task: Task, needs_labels: bool = True) -> Examples:
    """The rows of a user's file. A test file may lack labels, or the values in their column."""
    has_labels = task.label != "" and any(row.get(task.label, "").strip() for _, row in table.rows)
    has_labels = has_labels or needs_labels
    columns = (*task.columns, task.label) if has_labels else task.columns
    rows = ((where, [field_of(where, row, column) for column in columns]) for where, row in table.rows)
    counts: Counter[str] = Counter()
    examples = make_examples(task, rows, has_labels, counts)
    return replace(examples, warnings=table.warnings + problem_warnings(table.path.name, counts))
