"""SQuAD and CoNLL-2000 in their real layouts, so small that tests take no time."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

from tests.helpers.tiny_glue import WORDS


def squad(num_questions: int = 12, is_second: bool = False, num_words: int = 20, seed: int = 0) -> dict[str, Any]:
    """A question is a word of its text, and the answer what follows it; every third has none in 2.0."""
    chance = random.Random(seed)
    paragraphs = []
    for number in range(num_questions):
        words = chance.sample(WORDS, min(num_words, len(WORDS))) * (-(-num_words // len(WORDS)))
        words = words[:num_words]
        place = chance.randrange(1, min(len(words), len(WORDS)) - 2)
        length = 1 + number % 2
        is_impossible = is_second and number % 3 == 2
        answer = {
            "text": " ".join(words[place : place + length]),
            "answer_start": len(" ".join([*words[:place], ""])),
        }
        entry: dict[str, Any] = {"id": f"q{number}", "question": words[place - 1], "answers": [answer]}
        if is_second:
            entry |= {"is_impossible": is_impossible, "answers": [] if is_impossible else [answer]}
        if is_impossible:
            entry |= {"question": "good bad", "plausible_answers": [answer]}
        paragraphs.append({"context": " ".join(words), "qas": [entry]})
    return {"version": "v2.0" if is_second else "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}


def write_squad(folder: Path, **settings: Any) -> Path:
    """Both files hold the same questions: what is learned can be scored."""
    folder.mkdir(parents=True, exist_ok=True)
    content = squad(**settings)
    version = "v2.0" if settings.get("is_second") else "v1.1"
    for split in ("train", "dev"):
        (folder / f"{split}-{version}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def chunks(num_sentences: int = 16, seed: int = 0) -> str:
    """The tag of a word depends on its last letter, and on whether the word before it is of the same chunk."""
    chance = random.Random(seed)
    kinds = {"l": "NP", "m": "VP", "n": None}
    lines = []
    for _ in range(num_sentences):
        before = None
        for word in chance.choices(WORDS, k=chance.randint(2, 9)):
            kind = kinds[word[-1]]
            tag = "O" if kind is None else f"{'I' if kind == before else 'B'}-{kind}"
            lines.append(f"{word} XX {tag}")
            before = kind
        lines.append("")
    return "\n".join(lines) + "\n"


def write_chunks(folder: Path, names: tuple[str, ...] = ("train.txt", "test.txt"), **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(chunks(**settings), encoding="utf-8")
    return folder


MRQA_HEADER = {"header": {"dataset": "NewsQA", "split": "train"}}


def mrqa_lines(num_questions=12):
    """The questions of the tiny SQuAD in MRQA's layout; the answers of the file are in capitals."""
    found = []
    for number, paragraph in enumerate(squad(num_questions)["data"][0]["paragraphs"]):
        [entry] = paragraph["qas"]
        [answer] = entry["answers"]
        start, text = answer["answer_start"], answer["text"]
        detected = {"text": text, "char_spans": [[start, start + len(text) - 1]], "token_spans": [[0, 0]]}
        asked = {"qid": f"m{number}", "question": entry["question"], "question_tokens": []}
        asked |= {"answers": [text.upper(), "else"], "detected_answers": [detected]}
        found.append({"id": "", "context": paragraph["context"], "context_tokens": [], "qas": [asked]})
    return found


def write_mrqa(path, content, header=MRQA_HEADER):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(map(json.dumps, [header, *content])) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
