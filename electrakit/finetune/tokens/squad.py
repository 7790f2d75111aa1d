"""Reads the questions of SQuAD's files; what is wrong in a file is reported with its place."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from electrakit.common.errors import UserError
from electrakit.finetune.tasks import Task

JSON_TYPES = {str: "text", int: "number", list: "list"}


@dataclass(frozen=True)
class SquadQuestion:
    """A question about a text."""

    id: str
    text: str
    context: int
    """The number of the text."""
    answers: tuple[str, ...] = ()
    """Empty if the question cannot be answered, or the file has no answers."""
    start: int = 0
    """Where the first answer begins in the text."""


@dataclass(frozen=True)
class SquadExamples:
    """The questions and texts of a file."""

    questions: list[SquadQuestion]
    contexts: list[str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class JsonObject:
    """An object of a JSON file that knows its place, such as data[3].paragraphs[0].qas[1]."""

    path: Path
    place: str
    content: Any
    format: str = "SQuAD"

    @property
    def where(self) -> str:
        return f"{self.path} {self.place or 'at the top'}"

    def field(self, name: str, wanted: type) -> Any:
        value = self.content.get(name) if isinstance(self.content, dict) else None
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise UserError(f"{self.where} has no {JSON_TYPES[wanted]} {name!r}; is it a file of {self.format}?")
        return value

    def objects(self, name: str) -> Iterator[Self]:
        """The objects of a list."""
        for number, content in enumerate(self.field(name, list)):
            entry = type(self)(self.path, f"{self.place}.{name}[{number}]".lstrip("."), content, self.format)
            if not isinstance(content, dict):
                raise UserError(f"{entry.where} is {content!r:.40}, not an object with named fields")
            yield entry


def read_squad_json(path: Path, task: Task | None = None) -> SquadExamples:
    """All questions and texts of a file of SQuAD, in their order; without a task, the answers are not read."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    found: list[tuple[str, SquadQuestion]] = []
    contexts: list[str] = []
    for article in JsonObject(path, "", content).objects("data"):
        for paragraph in article.objects("paragraphs"):
            contexts.append(paragraph.field("context", str))
            for entry in paragraph.objects("qas"):
                answers, start = answers_in(entry, task) if task else ((), 0)
                name, text = entry.field("id", str), entry.field("question", str)
                found.append((entry.where, SquadQuestion(name, text, len(contexts) - 1, answers, start)))
    if not found:
        raise UserError(f"{path} has no questions")
    return SquadExamples(unique(found), contexts)


def unique(found: Iterable[tuple[str, SquadQuestion]]) -> list[SquadQuestion]:
    """Questions with their places -> the questions, if no id is there twice."""
    questions: dict[str, SquadQuestion] = {}
    for where, question in found:
        if question.id in questions:
            raise UserError(f"{where}: the id {question.id!r} was there before")
        questions[question.id] = question
    return list(questions.values())


def answers_in(entry: JsonObject, task: Task) -> tuple[tuple[str, ...], int]:
    """The answers to a question, and where the first begins in the text."""
    answers = [(answer.field("text", str), answer.field("answer_start", int)) for answer in entry.objects("answers")]
    is_impossible = entry.content.get("is_impossible", not answers)
    if not isinstance(is_impossible, bool):
        raise UserError(f"{entry.where}: 'is_impossible' is {is_impossible!r}; it must be true or false")
    if is_impossible and not task.may_be_unanswerable:
        raise UserError(f"{entry.where} has no answer: SQuAD 1.1 has none of these; use --task squad2")
    if is_impossible == bool(answers):
        raise UserError(f"{entry.where} has {len(answers)} answers, and 'is_impossible' is {is_impossible}")
    return tuple(text for text, _ in answers), answers[0][1] if answers else 0


def is_in_place(question: SquadQuestion, context: str) -> bool:
    """Whether the answer, if there is one, is where the file says."""
    if not question.answers:
        return True
    answer = question.answers[0]
    return bool(answer.strip()) and context[question.start : question.start + len(answer)].lower() == answer.lower()
