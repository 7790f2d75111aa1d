"""A TSV, CSV or JSONL file of one's own in, sentences and labels out; what is predicted is recognised."""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electrakit.errors import UserError
from electrakit.evaluate.read import Examples, lines_of, text_lines
from electrakit.evaluate.tasks import Task
from electrakit.evaluate_config import Kind

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
MANY_VALUES = 20  # whole numbers with more different values than this are taken to be measured, not classes


@dataclass(frozen=True)
class Table:
    """A file: its columns, and its rows with their line numbers."""

    path: Path
    columns: tuple[str, ...]
    rows: list[tuple[int, dict[str, str]]]
    warnings: tuple[str, ...] = ()


def read_table(path: Path) -> Table:
    """A file by its ending: .tsv or .txt (no quoting), .csv (with quoting), .jsonl; the first line names the columns."""
    readers = {".tsv": _tsv_rows, ".txt": _tsv_rows, ".csv": _csv_rows, ".jsonl": _json_rows, ".json": _json_rows}
    if path.suffix.lower() not in readers:
        raise UserError(f"{path} ends in {path.suffix or 'nothing'!r}; known are {', '.join(readers)}")
    if not path.is_file():
        raise UserError(f"the file {path} does not exist")
    counts: Counter[str] = Counter()
    rows = list(readers[path.suffix.lower()](path, counts))
    if not rows:
        raise UserError(f"{path} has no rows")
    columns = tuple(rows[0][1])
    warnings = [f"{path.name}: {counts['undecodable']:,} rows are not quite UTF-8"] if counts["undecodable"] else []
    return Table(path, columns, rows, tuple(warnings))


def _tsv_rows(path: Path, counts: Counter[str]) -> Iterator[tuple[int, dict[str, str]]]:
    yield from _named(path, lines_of(path, counts))


def _csv_rows(path: Path, counts: Counter[str]) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # a text may be longer than the 128 kB that the module reads by default
    reader = csv.reader(io.StringIO("\n".join(text_lines(path, counts)), newline=""), strict=True)
    try:
        yield from _named(path, ((reader.line_num, row) for row in reader if row))
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: {error}; is it CSV with quotes? .tsv has none") from None


def _named(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, str]]]:
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
        yield number, dict(zip(header, fields, strict=True))


def _json_rows(path: Path, counts: Counter[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text_lines(path, counts), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path} line {number} is not JSON: {error}; {JSON_LINES}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path} line {number} is not a JSON object with named fields; {JSON_LINES}")
        yield number, {name: _as_text(value) for name, value in row.items()}


def _as_text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def recognise(train: Table, text: Sequence[str] | None, label: str | None, kind: Kind | None, name: str) -> Task:
    """The task that a training file describes: its columns by name, its labels by what stands there."""
    columns = tuple(text) if text else next((one for one in TEXT_COLUMNS if set(one) <= set(train.columns)), None)
    if columns is None:
        raise UserError(
            f"{train.path} has the columns {', '.join(train.columns)}; say with --text which are the sentences"
        )
    if len(columns) > 2:
        raise UserError(f"--text names {len(columns)} columns; a model takes one or two sentences")
    label = label or next((one for one in LABEL_COLUMNS if one in train.columns), None)
    if label is None:
        raise UserError(f"{train.path} has the columns {', '.join(train.columns)}; say with --label which is the label")
    values = [_field(train, number, row, label).strip() for number, row in train.rows]
    if "" in values:  # not a class: somebody has forgotten it
        raise UserError(
            f"{train.path} line {train.rows[values.index('')][0]} has no label; remove the row, or say its {label!r}"
        )
    if (kind or kind_of(values)) == "regression":
        numbers = [_number(train, number, value) for (number, _), value in zip(train.rows, values, strict=True)]
        scale = max(map(abs, numbers)) or 1.0
        return _task(name, columns, label, None, scale, ("spearman", "pearson"))
    labels = tuple(sorted(set(values), key=_sorting))
    if len(labels) < 2:
        raise UserError(f"{train.path}: all rows have the label {labels[0]!r}; there is nothing to learn")
    return _task(
        name, columns, label, labels, 1.0, ("accuracy", "f1", "matthews") if len(labels) == 2 else ("accuracy",)
    )


def _task(name: str, columns: tuple[str, ...], label: str, labels: Any, scale: float, metrics: tuple[str, ...]) -> Task:
    return Task(name, name, (), columns, (), label=label, labels=labels, scale=scale, metrics=metrics)


def kind_of(values: Sequence[str]) -> Kind:
    """Numbers with fractions, or many different ones, are predicted as numbers; all else are classes."""
    numbers = [_float(value) for value in values]
    if not all(number is not None for number in numbers):
        return "classification"
    has_fractions = any(not float(number or 0).is_integer() for number in numbers)
    return "regression" if has_fractions or len(set(numbers)) > MANY_VALUES else "classification"


def _float(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _sorting(label: str) -> tuple[float, str]:
    number = _float(label)
    return (math.inf if number is None else number, label)


def _number(table: Table, line: int, value: str) -> float:
    number = _float(value)
    if number is None:
        raise UserError(f"{table.path} line {line} has the label {value!r}; a number is needed")
    return number


def _field(table: Table, line: int, row: dict[str, str], column: str) -> str:
    if column not in row:
        raise UserError(f"{table.path} line {line} has no column {column!r}; it has {', '.join(row)}")
    return row[column]


def examples_of(table: Table, task: Task, needs_labels: bool = True) -> Examples:
    """The rows of a file of one's own. A test file may have labels or not, or a column for them with nothing in it."""
    texts: tuple[list[str], ...] = tuple([] for _ in task.columns)
    has_labels = task.label != "" and any(row.get(task.label, "").strip() for _, row in table.rows)
    labels: list[float] | None = [] if needs_labels or has_labels else None
    num_empty = 0
    for line, row in table.rows:
        values = [_field(table, line, row, column) for column in task.columns]
        num_empty += not all(value.strip() for value in values)
        for column, value in zip(texts, values, strict=True):
            column.append(value)
        if labels is None:
            continue
        value = _field(table, line, row, task.label).strip()
        if task.labels is None:
            labels.append(_number(table, line, value))
        elif value in task.labels:
            labels.append(task.labels.index(value))
        else:
            raise UserError(
                f"{table.path} line {line} has the label {value!r}; the training file has {', '.join(task.labels)}"
            )
    warnings = list(table.warnings)
    if num_empty:
        warnings.append(f"{table.path.name}: {num_empty:,} rows have an empty sentence")
    return Examples(texts[0], texts[1] if len(texts) > 1 else None, labels, str(table.path), tuple(warnings))
