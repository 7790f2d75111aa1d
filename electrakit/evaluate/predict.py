"""A fine-tuned model and a file in, what the model says about it out: labels of rows, answers to questions, tags of words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from electrakit.errors import UserError, mended_by_user
from electrakit.evaluate.own import TEXT_COLUMNS, examples_of, read_table
from electrakit.evaluate.spans import answers_of, as_json, best_texts, ranked
from electrakit.evaluate.squad import read_asked
from electrakit.evaluate.tags import OUTSIDE, Sentences, encode_tags, lines_of_sentences, tags_of
from electrakit.evaluate.tasks import Task
from electrakit.evaluate.token_tasks import TOKEN_TASKS
from electrakit.evaluate.windows import encode_squad
from electrakit.evaluate_config import FinetuneSettings
from electrakit.progress import console
from electrakit.whole import write_whole

ROWS, SPANS, TAGS = (
    "ForSequenceClassification",
    "ForQuestionAnswering",
    "ForTokenClassification",
)  # ends of architectures
REPLACED = {"original", "replaced"}  # the labels of a discriminator of pretraining, which is a tagger to transformers
LONGEST = 512  # tokens of a row, if the model can


@dataclass(frozen=True)
class Predicted:
    """What a model says about a file."""

    rows: list[dict[str, Any]]
    text: str
    """As it is printed, or written to the file that is named."""
    files: dict[str, str] = field(default_factory=dict)
    """As it is written to the folder that is named, if it is more than one file."""


@dataclass(frozen=True)
class Opened:
    """A model, what it was told when it was trained, and where it runs."""

    place: str
    config: Any
    tokenizer: Any
    device: str | None

    @property
    def notes(self) -> dict[str, Any]:
        return getattr(self.config, "electrakit", None) or {}

    @property
    def longest(self) -> int:
        from electrakit.evaluate.encode import num_positions

        return min(LONGEST, num_positions(self.config, self.tokenizer))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.config.id2label[number] for number in range(self.config.num_labels))

    def logits(self, kind: str, task: Task, rows: Any) -> np.ndarray:
        from electrakit.evaluate.finetune import KINDS, device_of, evaluate

        device = device_of(self.device)
        model = KINDS[kind].open(self.place, task).to(device)
        return evaluate(model, rows, self.tokenizer.pad_token_id, device, FinetuneSettings())


def predict(
    model: str | Path,
    file: str | Path,
    *,
    out: str | Path | None = None,
    text: str | Sequence[str] = (),
    device: str | None = None,
) -> list[dict[str, Any]]:
    """What a fine-tuned model says about a file; written to `out` if that is named.

    A classifier takes a .tsv, .csv or .jsonl file: the label of each row, with its probability. A model of SQuAD takes a file of SQuAD,
    or a table of questions and contexts: the answer to each question; `out` is a folder. A tagger takes words, one in each line, as in
    CoNLL-2000: the tag of each word.
    """
    text = (text,) if isinstance(text, str) else tuple(text)
    found = predicted(str(model), Path(file), text, device)
    if out is not None:
        write(found, Path(out))
    return found.rows


def predicted(place: str, file: Path, text: tuple[str, ...], device: str | None) -> Predicted:
    """By the kind of the model."""
    import transformers

    from electrakit.evaluate.classifier import load_tokenizer
    from electrakit.loading import quiet, readable, require_safe

    require_safe(place)
    with quiet(), readable(place):
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    if not file.is_file():
        raise UserError(f"the file {file} does not exist")
    name = next(iter(config.architectures or []), ROWS)  # who does not say what it is, is taken for a classifier
    ways: dict[str, Callable[[Opened, Path], Predicted]] = {
        ROWS: lambda opened, file: label(opened, file, text),
        SPANS: answer,
        TAGS: tag,
    }
    way = next((way for ending, way in ways.items() if name.endswith(ending)), None)
    if way is None:
        raise UserError(
            f"{place!r} is of the class {name}, which was not fine-tuned to predict anything; electra finetune does that"
        )
    if way is tag and set(config.id2label.values()) == REPLACED:
        raise UserError(
            f"{place!r} tells original tokens from replaced ones, and was not fine-tuned; electra finetune does that"
        )
    if text and not name.endswith(ROWS):
        raise UserError(
            f"{place!r} is of the class {name}, which takes no --text: its files have a layout of their own"
        )
    return way(Opened(place, config, load_tokenizer(place), device), file)


def write(found: Predicted, out: Path) -> None:
    with mended_by_user(out):
        if not found.files and out.is_dir():
            raise UserError(f"--out {out} is a folder; name a file for the predictions")
        if not found.files:
            write_whole(out, found.text.encode())
            return
        if out.suffix or out.is_file():
            raise UserError(f"--out {out}: {', '.join(found.files)} will be written; name a folder for them")
        for name, content in found.files.items():
            write_whole(out / name, content.encode())


def label(opened: Opened, file: Path, text: tuple[str, ...]) -> Predicted:
    """The label of each row of a table, or a number."""
    from electrakit.evaluate.encode import encode

    table = read_table(file)
    known = next((one for one in TEXT_COLUMNS if set(one) <= set(table.columns)), ())
    columns = tuple(text or opened.notes.get("columns", ()) or known)
    if not columns or not set(columns) <= set(table.columns):
        wanted = " and ".join(map(repr, columns)) or "text"
        raise UserError(f"{file} has the columns {', '.join(table.columns)}, not {wanted}; name them with --text")
    labels = None if opened.config.num_labels == 1 else opened.labels
    task = Task("own", "own", (), columns, (), label="", labels=labels)
    length = opened.notes.get("length") or opened.longest
    examples = examples_of(table, task, needs_labels=False)
    for warning in examples.warnings:
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
    rows = encode(examples, opened.tokenizer, length)
    found = [_said(labels, each) for each in opened.logits("sentences", task, rows).astype(float)]
    lines = ["\t".join(["index", *found[0]])]
    lines += ["\t".join([str(index), *map(str, row.values())]) for index, row in enumerate(found)]
    return Predicted(found, "\n".join(lines) + "\n")


def _said(labels: tuple[str, ...] | None, logits: np.ndarray) -> dict[str, Any]:
    if labels is None:
        return {"prediction": round(float(logits[0]), 4)}
    powers = np.exp(logits - logits.max())
    return {"prediction": labels[int(logits.argmax())], "probability": round(float(powers.max() / powers.sum()), 4)}


def answer(opened: Opened, file: Path) -> Predicted:
    """The answer to each question; none where the model of SQuAD 2.0 says so, at the threshold that was best on its dev file."""
    from electrakit.evaluate.token_model import ANSWERABLE_FILE

    may_be_unanswerable = (Path(opened.place) / ANSWERABLE_FILE).exists()
    task = TOKEN_TASKS["squad2" if may_be_unanswerable else "squad"]
    rows = encode_squad(read_asked(file), opened.tokenizer, opened.notes.get("length") or opened.longest, False)
    best, null_odds = answers_of(rows, opened.logits("spans", task, rows))
    texts, shares = best_texts(best, null_odds, opened.notes.get("threshold", 0.0)), ranked(best)
    found: list[dict[str, Any]] = [
        {"id": name, "prediction": text, "nbest": shares[name]} for name, text in texts.items()
    ]
    files = {"predictions.json": as_json(texts), "nbest_predictions.json": as_json(shares)}
    if may_be_unanswerable:
        found = [row | {"null_odds": null_odds[row["id"]]} for row in found]
        files["null_odds.json"] = as_json(null_odds)
    return Predicted(found, files["predictions.json"], files)


def tag(opened: Opened, file: Path) -> Predicted:
    """The tag of each word: the lines of the file with one more column."""
    sentences, _ = lines_of_sentences(file)
    words = [[fields[0] for _, fields in lines] for lines in sentences]
    task = replace(TOKEN_TASKS["chunking"], labels=opened.labels)
    examples = Sentences(words, [[OUTSIDE] * len(each) for each in words], opened.labels)
    rows = encode_tags(examples, opened.tokenizer, opened.longest, False)
    assert rows.word_of is not None
    num_unseen = sum(map(len, words)) - int((rows.word_of >= 0).sum())
    if num_unseen:
        console.print(f"{num_unseen:,} words are {OUTSIDE}: the model did not see them", markup=False, style="yellow")
    found = tags_of(task, rows, opened.logits("tags", task, rows))
    lines = []
    for sentence, tags in zip(sentences, found, strict=True):
        lines += [" ".join([*fields, said]) for (_, fields), said in zip(sentence, tags, strict=True)] + [""]
    said = [{"words": each, "tags": tags} for each, tags in zip(words, found, strict=True)]
    return Predicted(said, "\n".join(lines) + "\n")
