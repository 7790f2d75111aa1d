"""Reads the questions of MRQA's files (Fisch et al. 2019): a header, then a text and its questions in each line, as .jsonl or .jsonl.gz."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.finetune.tokens.squad import JsonObject, SquadExamples, SquadQuestion, unique


def read_mrqa(path: Path, is_training: bool = False, has_answers: bool = True) -> SquadExamples:
    """All questions and texts of a file, in their order.

    A training question has the first answer that was found in the text, as it stands there; others have all answers of the file.
    """
    found: list[tuple[str, SquadQuestion]] = []
    contexts: list[str] = []
    for line in lines_of(path):
        contexts.append(line.field("context", str))
        for entry in line.objects("qas"):
            answers, start = answers_in(entry, contexts[-1], is_training) if has_answers else ((), 0)
            name, text = entry.field("qid", str), entry.field("question", str)
            found.append((entry.where, SquadQuestion(name, text, len(contexts) - 1, answers, start)))
    if not found:
        raise UserError(f"{path} has no questions")
    return SquadExamples(unique(found), contexts)


def is_mrqa(path: Path) -> bool:
    """A .jsonl file may also be a table of questions: MRQA's has a header, or at least lists of questions."""
    if path.suffix == ".gz":
        return True
    if path.suffix != ".jsonl":
        return False
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        first = json.loads(file.readline())
        return isinstance(first, dict) and bool({"header", "qas"} & first.keys())
    return False


def lines_of(path: Path) -> Iterator[JsonObject]:
    """The objects of a file without its header."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                content = json.loads(line) if line.strip() else {"header": None}
                if not isinstance(content, dict):
                    raise UserError(f"{path} line {number} is {content!r:.40}, not an object with named fields")
                if "header" not in content:
                    yield JsonObject(path, f"line {number}", content, "MRQA")
    except UserError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged after line {number}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} line {number} is not JSON: {error}") from None


def answers_in(entry: JsonObject, context: str, is_training: bool) -> tuple[tuple[str, ...], int]:
    """The answers to a question, and where the first begins in the text."""
    start, end = first_span(entry, len(context))
    if is_training:
        return (context[start : end + 1],), start  # the end of a span of MRQA is its last character
    texts = entry.field("answers", list)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{entry.where}: 'answers' is {texts!r:.40}; it must be a list of texts")
    return tuple(texts), start


def first_span(entry: JsonObject, num_characters: int) -> tuple[int, int]:
    for answer in entry.objects("detected_answers"):
        for span in answer.field("char_spans", list):
            is_span = isinstance(span, list) and len(span) == 2 and all(isinstance(place, int) for place in span)
            if not is_span or not 0 <= span[0] <= span[1] < num_characters:
                raise UserError(f"{answer.where}: 'char_spans' has {span!r:.40}, which is no part of the text")
            return span[0], span[1]
    raise UserError(f"{entry.where} has no span in 'detected_answers'; every question of MRQA has one")
