"""A file of SQuAD in, questions out; the files of other people are checked place by place."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from electrakit.errors import UserError
from electrakit.evaluate.own import read_table
from electrakit.evaluate.tasks import Split, Task
from electrakit.evaluate.token_tasks import require_file, rows_warning


@dataclass(frozen=True)
class Question:
    """A question about a text."""

    name: str
    """Its id in the file."""
    text: str
    context: int
    """The number of the text."""
    answers: tuple[str, ...] = ()
    """None if it cannot be answered, or nobody has said how."""
    start: int = 0
    """Where the first answer begins in the text."""


@dataclass(frozen=True)
class Questions:
    """A file."""

    questions: list[Question]
    contexts: list[str]
    warnings: tuple[str, ...] = ()


def read_squad(data: str, task: Task, split: Split) -> Questions:
    """The questions of a split. Training questions whose answer does not stand where the file says are left out."""
    path = require_file(data, task, split)
    questions, contexts = _read(path, lambda entry, where, context: _question(path, entry, where, context, task))
    warnings = rows_warning(task, split, len(questions), "questions")
    kept = [each for each in questions if split.name != "train" or _stands(each, contexts[each.context])]
    if not kept:
        raise UserError(f"{path}: no answer stands where the file says")
    if len(kept) < len(questions):
        num_lost = len(questions) - len(kept)
        warnings += (f"{task.title} {split.name}: {num_lost:,} answers do not stand where the file says: left out",)
    return Questions(kept, contexts, warnings)


def read_asked(path: Path) -> Questions:
    """Questions to be answered, whether the file knows the answers or not: of SQuAD, or a table with a question and a context."""
    if path.suffix.lower() == ".json":
        return Questions(*_read(path, partial(_asked, path)))
    table = read_table(path)
    missing = {"question", "context"} - set(table.columns)
    if missing:
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}, not {missing.pop()!r}; a question and its context are needed"
        )
    numbers: dict[str, int] = {}
    questions, names = [], set()
    for place, (line, row) in enumerate(table.rows):
        for name in ("question", "context"):
            if name not in row:
                raise UserError(f"{path} line {line} has no {name!r}")
        question = Question(
            row.get("id", str(place)), row["question"], numbers.setdefault(row["context"], len(numbers))
        )
        if question.name in names:
            raise UserError(f"{path} line {line}: the id {question.name!r} was there before")
        names.add(question.name)
        questions.append(question)
    return Questions(questions, list(numbers), table.warnings)


def _read(path: Path, question_of: Callable[[Any, str, int], Question]) -> tuple[list[Question], list[str]]:
    """All questions and texts of a file of SQuAD, in their order."""
    questions: list[Question] = []
    contexts: list[str] = []
    names: set[str] = set()
    for article_place, article in _each(path, _parsed(path), "data", "", dict):
        for place, paragraph in _each(path, article, "paragraphs", article_place, dict):
            contexts.append(_field(path, paragraph, "context", place, str))
            for where, entry in _each(path, paragraph, "qas", place, dict):
                question = question_of(entry, where, len(contexts) - 1)
                if question.name in names:
                    raise UserError(f"{path} {where}: the id {question.name!r} was there before")
                names.add(question.name)
                questions.append(question)
    if not questions:
        raise UserError(f"{path} has no questions")
    return questions, contexts


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def _question(path: Path, entry: Any, where: str, context: int, task: Task) -> Question:
    answers = [
        (_field(path, answer, "text", place, str), _field(path, answer, "answer_start", place, int))
        for place, answer in _each(path, entry, "answers", where, dict)
    ]
    is_impossible = entry.get("is_impossible", not answers)
    if not isinstance(is_impossible, bool):
        raise UserError(f"{path} {where}: 'is_impossible' is {is_impossible!r}; it must be true or false")
    if is_impossible and not task.may_be_unanswerable:
        raise UserError(f"{path} {where} has no answer: SQuAD 1.1 has none of these; use --task squad2")
    if is_impossible == bool(answers):
        raise UserError(f"{path} {where} has {len(answers)} answers, and 'is_impossible' is {is_impossible}")
    return Question(
        name=_field(path, entry, "id", where, str),
        text=_field(path, entry, "question", where, str),
        context=context,
        answers=tuple(text for text, _ in answers),
        start=answers[0][1] if answers else 0,
    )


def _asked(path: Path, entry: Any, where: str, context: int) -> Question:
    return Question(_field(path, entry, "id", where, str), _field(path, entry, "question", where, str), context)


def _stands(question: Question, context: str) -> bool:
    """Whether the answer is where the file says, or there is none to be anywhere."""
    if not question.answers:
        return True
    answer = question.answers[0]
    return bool(answer.strip()) and context[question.start : question.start + len(answer)].lower() == answer.lower()


def _field(path: Path, holder: Any, name: str, where: str, wanted: type) -> Any:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, wanted) or isinstance(value, bool):
        spoken = {str: "text", int: "number", list: "list", dict: "object"}[wanted]
        raise UserError(f"{path} {where or 'at the top'} has no {spoken} {name!r}; is it a file of SQuAD?")
    return value


def _each(path: Path, holder: Any, name: str, where: str, wanted: type) -> list[tuple[str, Any]]:
    """The entries of a list with their places, as in data[3].paragraphs[0].qas[1]."""
    places = [
        (f"{where}.{name}[{number}]".lstrip("."), entry)
        for number, entry in enumerate(_field(path, holder, name, where, list))
    ]
    for place, entry in places:
        if not isinstance(entry, wanted):
            raise UserError(f"{path} {place} is {entry!r:.40}, not an object with named fields")
    return places
