"""Tags of words: read CoNLL's files, encode their sentences, and score the predicted chunks."""

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.finetune.encode import EncodedRows, starts_of
from electrakit.finetune.read_glue import problem_warnings, require_file, rows_warning, tsv_lines
from electrakit.finetune.results import EvaluationResult
from electrakit.finetune.tasks import Split, Task
from electrakit.finetune.tokens.windows import frame_of, tokens_and_offsets

NO_TAG = -100  # the label of tokens that are not the first of a word
OUTSIDE = "O"


@dataclass(frozen=True)
class TagExamples:
    """The words of each sentence of a file, and their tags."""

    words: list[list[str]]
    tags: list[list[str]]
    labels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EncodedSentences(EncodedRows):
    """Sentences as rows of ids. Each token has a label (all tokens)."""

    words: tuple[list[str], ...]
    tags: tuple[list[str], ...]
    word_of: np.ndarray
    """The word that each token is the first of, or -1 (all tokens)."""

    @property
    def num_unseen(self) -> int:
        """Words that no token stands for: those past the row's length, and those that the tokenizer drops."""
        return sum(map(len, self.words)) - int((self.word_of >= 0).sum())

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """The labels of a batch (B, T)."""
        assert self.labels is not None
        return self.padded(self.labels, rows, NO_TAG)


def read_chunks(data: str, task: Task, split: Split) -> TagExamples:
    """Read a file whose lines begin with a word and end with its tag, with empty lines between sentences."""
    path = require_file(data, task, split)
    sentences, counts = sentence_lines(path)
    words = [[fields[0] for _, fields in lines] for lines in sentences]
    tags = [[checked_tag(fields, path, number) for number, fields in lines] for lines in sentences]
    warnings = rows_warning(task, split, len(words), "sentences")
    warnings += problem_warnings(f"{task.title} {split.name}", counts, "lines")
    return TagExamples(words, tags, task.labels or (), warnings)


def sentence_lines(path: Path) -> tuple[list[list[tuple[int, list[str]]]], Counter[str]]:
    """The lines of each sentence, as number and fields, and the counts of `tsv_lines`."""
    counts: Counter[str] = Counter()
    sentences: list[list[tuple[int, list[str]]]] = [[]]
    before = 0
    for number, columns in tsv_lines(path, counts):
        fields = " ".join(columns).split()
        if number != before + 1 or not fields:  # tsv_lines leaves out empty lines
            sentences.append([])
        before = number
        if fields and fields[0] != "-DOCSTART-":
            sentences[-1].append((number, fields))
    sentences = [lines for lines in sentences if lines]
    if not sentences:
        raise UserError(f"{path} has no sentences")
    return sentences, counts


def checked_tag(fields: list[str], path: Path, number: int) -> str:
    if len(fields) < 2:
        raise UserError(f"{path} line {number} has one column, {fields[0]!r}; needed are a word and its tag")
    tag = fields[-1]
    if tag == OUTSIDE or (tag[:2] in ("B-", "I-") and len(tag) > 2):
        return tag
    raise UserError(f"{path} line {number} has the tag {tag!r}; tags are O, B-... and I-... (IOB2)")


def with_labels(data: str, task: Task) -> Task:
    """The task with the tags of its files. Tags that only dev has are scored, though they cannot be learned."""
    found: set[str] = {OUTSIDE}
    for name in ("train", "dev"):
        found |= {tag for tags in read_chunks(data, task, task.split(name)).tags for tag in tags}
    return replace(task, labels=(OUTSIDE, *sorted(found - {OUTSIDE}, key=lambda tag: (tag[2:], tag))))


def encode_tags(examples: TagExamples, tokenizer: Any, length: int, is_training: bool) -> EncodedSentences:
    """The first token of each word has its tag. Words beyond `length` are cut; their predicted tag is O."""
    frame = frame_of(tokenizer, 1)
    numbers = {label: number for number, label in enumerate(examples.labels)}
    texts, offsets = tokens_and_offsets([" ".join(words) for words in examples.words], tokenizer)
    room = length - frame.num_special
    ids, labels, word_of = [], [], []
    for words, tags, text, places in zip(examples.words, examples.tags, texts, offsets, strict=True):
        ends = np.cumsum([len(word) + 1 for word in words])  # of each word and the space after it
        owners = np.searchsorted(ends, np.maximum(places[:room, 1] - 1, 0), side="right")
        is_first = np.diff(owners, prepend=-1) > 0
        wanted = np.asarray([numbers.get(tag, NO_TAG) for tag in tags])
        ids.append(frame.around(text[:room]))
        labels.append(frame.around(np.where(is_first, wanted[owners], NO_TAG), filling=NO_TAG))
        word_of.append(frame.around(np.where(is_first, owners, -1), filling=-1))
    return EncodedSentences(
        ids=np.concatenate(ids),
        segments=None,
        starts=starts_of(ids),
        labels=np.concatenate(labels),
        words=tuple(examples.words),
        tags=tuple(examples.tags),
        word_of=np.concatenate(word_of),
    )


def unseen_warning(task: Task, name: str, rows: EncodedSentences, length: int) -> tuple[str, ...]:
    if not rows.num_unseen:
        return ()
    num_words = sum(map(len, rows.words))
    effect = "not learned from" if name == "train" else f"predicted as {OUTSIDE}"
    return (f"{task.title} {name}: {rows.num_unseen:,} of {num_words:,} words are cut at {length} tokens and {effect}",)


def tag_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row (B); their mean is that of all words. Logits (B, T, labels), targets (B, T)."""
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=NO_TAG, reduction="none")
    num_words = (targets != NO_TAG).sum().clamp(min=1)
    return losses.sum(-1) * len(targets) / num_words


def score_tags(task: Task, rows: dict[str, EncodedSentences], logits: dict[str, np.ndarray]) -> EvaluationResult:
    """Chunk F1, and a file of words, tags and predicted tags that conlleval takes."""
    evaluation = EvaluationResult()
    for name, sentences in rows.items():
        predicted = tags_of(task, sentences, logits[name])
        evaluation.scores[name] = chunk_scores(sentences.tags, predicted)
        lines = []
        for words, tags, found in zip(sentences.words, sentences.tags, predicted, strict=True):
            lines += [" ".join(each) for each in zip(words, tags, found, strict=True)] + [""]
        evaluation.files["predictions.txt" if name == "dev" else f"{name}_predictions.txt"] = "\n".join(lines) + "\n"
        kinds = {tag for found in predicted for tag in found}
        if len(kinds) == 1 and len({tag for tags in sentences.tags for tag in tags}) > 1:
            evaluation.collapsed.append(f"all {name} predictions are {kinds.pop()!r}")
    return evaluation


def tags_of(task: Task, sentences: EncodedSentences, logits: np.ndarray) -> list[list[str]]:
    """The predicted tag of each word."""
    assert task.labels is not None
    best = logits.argmax(-1)
    predicted = [[OUTSIDE] * len(words) for words in sentences.words]
    for number, tags in enumerate(predicted):
        for place in range(sentences.starts[number], sentences.starts[number + 1]):
            if sentences.word_of[place] >= 0:
                tags[sentences.word_of[place]] = task.labels[best[place]]
    return predicted


def chunks_of(tags: list[str]) -> set[tuple[str, int, int]]:
    """The kind, first and last word of each chunk. As in conlleval and seqeval, an I-X after no X begins a chunk."""
    chunks: set[tuple[str, int, int]] = set()
    kind, start = None, 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        if tag.startswith("I-") and tag[2:] == kind:
            continue
        if kind is not None:
            chunks.add((kind, start, place - 1))
        kind, start = (None if tag == OUTSIDE else tag[2:]), place
    return chunks


def chunk_scores(answers: Sequence[list[str]], predicted: Sequence[list[str]]) -> dict[str, float]:
    """Over the chunks of all sentences; accuracy over the words."""
    num_true = num_found = num_both = num_equal = 0
    for tags, predicted_tags in zip(answers, predicted, strict=True):
        true, found = chunks_of(tags), chunks_of(predicted_tags)
        num_true, num_found, num_both = num_true + len(true), num_found + len(found), num_both + len(true & found)
        num_equal += sum(map(operator.eq, tags, predicted_tags))
    return {
        "f1": 2 * num_both / max(1, num_true + num_found),
        "precision": num_both / max(1, num_found),
        "recall": num_both / max(1, num_true),
        "accuracy": num_equal / max(1, sum(map(len, answers))),
    }
