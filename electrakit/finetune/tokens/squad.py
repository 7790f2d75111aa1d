"""Reads the questions of SQuAD's files; what is wrong in a file is reported with its place."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from electrakit.common.errors import UserError
from electrakit.finetune.read_glue import rows_warning
from electrakit.finetune.tasks import Split, Task
from electrakit.finetune.tokens.tasks import require_file
from electrakit.finetune.user_tables import field_of, read_table

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

    def field(self, name: str, wanted: type) -> Any:
        value = self.content.get(name) if isinstance(self.content, dict) else None
        if not isinstance(value, wanted) or isinstance(value, bool):
            where = self.place or "at the top"
            raise UserError(f"{self.path} {where} has no {JSON_TYPES[wanted]} {name!r}; is it a file of SQuAD?")
        return value

    def objects(self, name: str) -> list[Self]:
        """The objects of a list."""
        found = [
            type(self)(self.path, f"{self.place}.{name}[{number}]".lstrip("."), content)
            for number, content in enumerate(self.field(name, list))
        ]
        for each in found:
            if not isinstance(each.content, dict):
                raise UserError(f"{self.path} {each.place} is {each.content!r:.40}, not an object with named fields")
        return found


def read_squad(data: str, task: Task, split: Split) -> SquadExamples:
    """The questions of a split. Training questions whose answer is not where the file says are left out."""
    path = require_file(data, task, split)
    found = read_json(path, lambda entry, context: labelled_question(entry, context, task))
    warnings = rows_warning(task, split, len(found.questions), "questions")
    kept = [one for one in found.questions if split.name != "train" or is_in_place(one, found.contexts[one.context])]
    if not kept:
        raise UserError(f"{path}: no answer stands where the file says")
    if num_lost := len(found.questions) - len(kept):
        warnings += (f"{task.title} {split.name}: {num_lost:,} answers do not stand where the file says: left out",)
    return SquadExamples(kept, found.contexts, warnings)


def read_unlabelled(path: Path) -> SquadExamples:
    """Questions without answers, from a file of SQuAD or a table with a question and a context in each row."""
    if path.suffix.lower() == ".json":
        return read_json(path, unlabelled_question)
    table = read_table(path)
    missing = {"question", "context"} - set(table.columns)
    if missing:
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}, not {missing.pop()!r}; a question and its context are needed"
        )
    contexts: dict[str, int] = {}
    found = []
    for number, (line, row) in enumerate(table.rows):
        text, context = (field_of(table, line, row, column) for column in ("question", "context"))
        question = SquadQuestion(row.get("id", str(number)), text, contexts.setdefault(context, len(contexts)))
        found.append((f"line {line}", question))
    return SquadExamples(unique(path, found), list(contexts), table.warnings)


def read_json(path: Path, question_of: Callable[[JsonObject, int], SquadQuestion]) -> SquadExamples:
    """All questions and texts of a file of SQuAD, in their order."""
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
            found += [(entry.place, question_of(entry, len(contexts) - 1)) for entry in paragraph.objects("qas")]
    if not found:
        raise UserError(f"{path} has no questions")
    return SquadExamples(unique(path, found), contexts)


def unique(path: Path, found: Iterable[tuple[str, SquadQuestion]]) -> list[SquadQuestion]:
    """Questions with their places in the file -> the questions, if no id is there twice."""
    questions: dict[str, SquadQuestion] = {}
    for where, question in found:
        if question.id in questions:
            raise UserError(f"{path} {where}: the id {question.id!r} was there before")
        questions[question.id] = question
    return list(questions.values())


def unlabelled_question(entry: JsonObject, context: int) -> SquadQuestion:
    return SquadQuestion(entry.field("id", str), entry.field("question", str), context)


def labelled_question(entry: JsonObject, context: int, task: Task) -> SquadQuestion:
    answers = [(answer.field("text", str), answer.field("answer_start", int)) for answer in entry.objects("answers")]
    is_impossible = entry.content.get("is_impossible", not answers)
    where = f"{entry.path} {entry.place}"
    if not isinstance(is_impossible, bool):
        raise UserError(f"{where}: 'is_impossible' is {is_impossible!r}; it must be true or false")
    if is_impossible and not task.may_be_unanswerable:
        raise UserError(f"{where} has no answer: SQuAD 1.1 has none of these; use --task squad2")
    if is_impossible == bool(answers):
        raise UserError(f"{where} has {len(answers)} answers, and 'is_impossible' is {is_impossible}")
    texts = tuple(text for text, _ in answers)
    return replace(unlabelled_question(entry, context), answers=texts, start=answers[0][1] if answers else 0)


def is_in_place(question: SquadQuestion, context: str) -> bool:
    """Whether the answer, if there is one, is where the file says."""
    if not question.answers:
        return True
    answer = question.answers[0]
    return bool(answer.strip()) and context[question.start : question.start + len(answer)].lower() == answer.lower()
