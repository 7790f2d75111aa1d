"""A file of SQuAD in, questions out; the files of other people are checked place by place."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electrakit.errors import UserError
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
    answers: tuple[str, ...]
    """None if it cannot be answered."""
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
    content = _parsed(path)
    questions: list[Question] = []
    contexts: list[str] = []
    names: set[str] = set()
    num_lost = 0
    for article_place, article in _each(path, content, "data", "", dict):
        for place, paragraph in _each(path, article, "paragraphs", article_place, dict):
            context = _field(path, paragraph, "context", place, str)
            contexts.append(context)
            for where, entry in _each(path, paragraph, "qas", place, dict):
                question = _question(path, entry, where, len(contexts) - 1, task)
                if question.name in names:
                    raise UserError(f"{path} {where}: the id {question.name!r} was there before")
                names.add(question.name)
                if split.name == "train" and question.answers and not _stands(question, context):
                    num_lost += 1
                    continue
                questions.append(question)
    if not questions:
        raise UserError(f"{path} has no questions")
    warnings = rows_warning(task, split, len(questions) + num_lost, "questions")
    if num_lost:
        warnings += (f"{task.title} {split.name}: {num_lost:,} answers do not stand where the file says: left out",)
    return Questions(questions, contexts, warnings)


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


def _stands(question: Question, context: str) -> bool:
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
