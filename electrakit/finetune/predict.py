"""Predicts a file with a fine-tuned model: labels of rows, answers to questions, or tags of words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import WorkFolder, make_way, require_apart, require_free_file
from electrakit.common.progress import console
from electrakit.config.finetune import FinetuneSettings, PredictConfig
from electrakit.finetune.classifier import load_config, load_transformers_tokenizer
from electrakit.finetune.encode import EncodedRows, check_ids, encode, num_positions
from electrakit.finetune.submission import probabilities
from electrakit.finetune.tasks import TOKEN_TASKS, Task
from electrakit.finetune.tokens.read_questions import read_unlabelled
from electrakit.finetune.tokens.span_head import ANSWERABLE_FILE
from electrakit.finetune.tokens.spans import answers_of, as_json, best_texts, ranked
from electrakit.finetune.tokens.tags import OUTSIDE, TagExamples, encode_tags, sentence_lines, tags_of
from electrakit.finetune.tokens.windows import encode_squad
from electrakit.finetune.train_job import choose_device, evaluate, open_finetuned
from electrakit.finetune.user_tables import examples_of, read_user_table

# Ends of the names of transformers classes.
ROWS, SPANS, TAGS = "ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification"
# The labels of a pretrained discriminator, which is a tagger to transformers.
REPLACED_LABELS = {"original", "replaced"}
# Of a model of SQuAD; the last one, of SQuAD 2.0 only.
ANSWER_FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")
# Tokens of a row, if the model has so many positions.
MAX_LENGTH = 512


@dataclass(frozen=True)
class LabelPrediction:
    """The label of a row and its probability, or a number."""

    prediction: str | float
    probability: float | None = None


@dataclass(frozen=True)
class AnswerPrediction:
    """The answer to a question."""

    id: str
    prediction: str
    nbest: list[dict[str, Any]]
    """The best answers with their probabilities, in the format of SQuAD's scripts."""
    null_odds: float | None = None
    """Models of SQuAD 2.0: the higher, the less likely is an answer."""


@dataclass(frozen=True)
class TagPrediction:
    """The tags of a sentence's words."""

    words: list[str]
    tags: list[str]


Prediction = LabelPrediction | AnswerPrediction | TagPrediction


@dataclass(frozen=True)
class FilePredictions:
    """The predictions for a file, as objects and as text."""

    rows: Sequence[Prediction]
    text: str
    """As it is printed, or written to the file that is named."""
    files: dict[str, str] = field(default_factory=dict)
    """As it is written to the folder that is named, if it is more than one file."""

    def write(self, out: Path, overwrite: bool = False) -> None:
        with explain_write_errors(out):
            if not self.files:
                atomic_write(make_way(out, is_table, "predictions", overwrite=overwrite), self.text.encode())
                return
            folder = answers_folder(out)
            out.mkdir(parents=True, exist_ok=True)
            folder.begin()
            for name, content in self.files.items():
                folder.write(name, content.encode())


@dataclass(frozen=True)
class FinetunedModel:
    """A model's folder, config and tokenizer; its weights are loaded when it predicts."""

    place: str
    config: Any
    tokenizer: Any
    device: str | None

    @property
    def notes(self) -> dict[str, Any]:
        """What fine-tuning with electrakit stored in the config: columns, length, threshold."""
        return getattr(self.config, "electrakit", None) or {}

    @property
    def max_length(self) -> int:
        return min(MAX_LENGTH, num_positions(self.config, self.tokenizer))

    @property
    def length(self) -> int:
        """The one that it was fine-tuned with, if that is known."""
        return self.notes.get("length") or self.max_length

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.config.id2label[number] for number in range(self.config.num_labels))

    def logits(self, task: Task, rows: EncodedRows) -> np.ndarray:
        check_ids(rows, self.config, self.place)
        device = choose_device(self.device)
        model = open_finetuned(self.place, task).to(device)
        return evaluate(model, rows, self.tokenizer.pad_token_id, device, FinetuneSettings())


def predict(
    model: str | Path,
    file: str | Path,
    *,
    out: str | Path | None = None,
    text: str | Sequence[str] = (),
    device: str | None = None,
    overwrite: bool = False,
) -> Sequence[Prediction]:
    """Predict a file with a fine-tuned model; write the predictions to `out` if that is named.

    A classifier takes a .tsv, .csv or .jsonl file: the label of each row, with its probability. A model of SQuAD takes a file of SQuAD,
    or a table of questions and contexts: the answer to each question; `out` is a folder. A tagger takes words, one in each line, as in
    CoNLL-2000: the tag of each word.
    """
    return predict_file(PredictConfig(**locals())).rows


def predict_file(settings: PredictConfig) -> FilePredictions:
    """What is predicted depends on the class of the model."""
    place, file, text = settings.model, settings.file, settings.text
    config = load_config(place)
    if not file.is_file():
        raise UserError(f"the file {file} does not exist")
    name = next(iter(config.architectures or []), ROWS)  # a config that names no class is taken for a classifier's
    predictors: dict[str, Callable[[FinetunedModel, Path], FilePredictions]] = {
        ROWS: lambda model, file: predict_labels(model, file, text),
        SPANS: predict_answers,
        TAGS: predict_tags,
    }
    ending = next((ending for ending in predictors if name.endswith(ending)), None)
    if ending is None:
        raise UserError(
            f"{place!r} is of the class {name}, which was not fine-tuned to predict anything; electra finetune does that"
        )
    if ending == TAGS and set(config.id2label.values()) == REPLACED_LABELS:
        raise UserError(
            f"{place!r} tells original tokens from replaced ones, and was not fine-tuned; electra finetune does that"
        )
    if text and ending != ROWS:
        raise UserError(f"{place!r} is of the class {name}, which takes no --text: the layout of its files is fixed")
    if settings.out is not None:
        check_out(settings.out, ending == SPANS, settings.overwrite)
        require_apart(settings.out, [place, file], may_be_inside=False)
    model = FinetunedModel(place, config, load_transformers_tokenizer(place), settings.device)
    predictions = predictors[ending](model, file)
    if settings.out is not None:
        predictions.write(settings.out, settings.overwrite)
    return predictions


def check_out(out: Path, is_folder: bool, overwrite: bool) -> None:
    """Before any work is done."""
    if is_folder:
        if out.suffix or out.is_file():
            raise UserError(f"--out {out}: {', '.join(ANSWER_FILES[:2])} will be written; name a folder for them")
        answers_folder(out).require_ours()
    elif out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file for the predictions")
    else:
        require_free_file(out, is_table, "predictions", overwrite=overwrite)


def answers_folder(out: Path) -> WorkFolder:
    return WorkFolder(out, "predictions", ANSWER_FILES)


def is_table(head: bytes) -> bool:
    """Labels of rows have a header. Tagged words have none, and are not recognised."""
    return head.startswith(b"index\tprediction")


def predict_labels(model: FinetunedModel, file: Path, text: tuple[str, ...]) -> FilePredictions:
    """The label of each row of a table, or a number."""
    table = read_user_table(file)
    columns = tuple(text or model.notes.get("columns", ()) or table.text_columns)
    if not columns or not set(columns) <= set(table.columns):
        wanted = " and ".join(map(repr, columns)) or "text"
        raise UserError(f"{file} has the columns {', '.join(table.columns)}, not {wanted}; name them with --text")
    labels = None if model.config.num_labels == 1 else model.labels
    task = Task("own", "own", (), columns, (), label="", labels=labels)
    examples = examples_of(table, task, needs_labels=False)
    for warning in examples.warnings:
        console.print(warning, style="yellow", markup=False, soft_wrap=True)
    rows = encode(examples, model.tokenizer, model.length)
    logits = model.logits(task, rows).astype(float)
    if labels is None:
        found = [LabelPrediction(round(value, 4)) for value in logits[:, 0].tolist()]
    else:
        best, shares = logits.argmax(-1), probabilities(logits).max(-1).tolist()
        found = [LabelPrediction(labels[place], round(share, 4)) for place, share in zip(best, shares, strict=True)]
    columns = ("prediction",) if labels is None else ("prediction", "probability")
    lines = ["\t".join(["index", *columns])]
    lines += [
        "\t".join([str(index), *(str(getattr(row, name)) for name in columns)]) for index, row in enumerate(found)
    ]
    return FilePredictions(found, "\n".join(lines) + "\n")


def predict_answers(model: FinetunedModel, file: Path) -> FilePredictions:
    """The answer to each question; a model of SQuAD 2.0 gives none above the threshold that was best on its dev file."""
    may_be_unanswerable = (Path(model.place) / ANSWERABLE_FILE).exists()
    task = TOKEN_TASKS["squad2" if may_be_unanswerable else "squad"]
    rows = encode_squad(read_unlabelled(file), model.tokenizer, model.length, False)
    best, null_odds = answers_of(rows, model.logits(task, rows))
    texts, shares = best_texts(best, null_odds, model.notes.get("threshold", 0.0)), ranked(best)
    found = [
        AnswerPrediction(name, text, shares[name], null_odds[name] if may_be_unanswerable else None)
        for name, text in texts.items()
    ]
    files = {"predictions.json": as_json(texts), "nbest_predictions.json": as_json(shares)}
    if may_be_unanswerable:
        files["null_odds.json"] = as_json(null_odds)
    return FilePredictions(found, files["predictions.json"], files)


def predict_tags(model: FinetunedModel, file: Path) -> FilePredictions:
    """The tag of each word: the lines of the file with one more column."""
    sentences, _ = sentence_lines(file)
    words = [[fields[0] for _, fields in lines] for lines in sentences]
    task = replace(TOKEN_TASKS["chunking"], labels=model.labels)
    examples = TagExamples(words, [[OUTSIDE] * len(each) for each in words], model.labels)
    rows = encode_tags(examples, model.tokenizer, model.max_length, False)
    if rows.num_unseen:
        console.print(
            f"{rows.num_unseen:,} words are {OUTSIDE}: the model did not see them", markup=False, style="yellow"
        )
    found = tags_of(task, rows, model.logits(task, rows))
    lines = []
    for sentence, tags in zip(sentences, found, strict=True):
        lines += [" ".join([*fields, tag]) for (_, fields), tag in zip(sentence, tags, strict=True)] + [""]
    predictions = [TagPrediction(each, tags) for each, tags in zip(words, found, strict=True)]
    return FilePredictions(predictions, "\n".join(lines) + "\n")
