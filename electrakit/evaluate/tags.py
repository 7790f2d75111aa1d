"""Files of CoNLL in, tagged words out; logits of tokens in, chunks and their F1 out."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.evaluate.encode import Encoded
from electrakit.evaluate.read import lines_of
from electrakit.evaluate.scored import Scored
from electrakit.evaluate.tasks import Split, Task
from electrakit.evaluate.token_tasks import require_file, rows_warning
from electrakit.evaluate.windows import require_offsets, tokens_of

NO_TAG = -100  # of tokens that are not the first of a word
OUTSIDE = "O"


@dataclass(frozen=True)
class Sentences:
    """A file: the words of each sentence and their tags."""

    words: list[list[str]]
    tags: list[list[str]]
    labels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tagged(Encoded):
    """Sentences as ids, one after the other. Labels are those of tokens (all tokens)."""

    words: tuple[list[str], ...] = ()
    tags: tuple[list[str], ...] = ()
    word_of: np.ndarray | None = None
    """The word that each token is the first of, or -1 (all tokens)."""

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """(B, T), T the longest of the rows."""
        assert self.labels is not None
        lengths = self.lengths[rows]
        targets = np.full((len(rows), lengths.max()), NO_TAG, np.int64)
        for place, row in enumerate(rows):
            targets[place, : lengths[place]] = self.labels[self.starts[row] : self.starts[row + 1]]
        return targets


def read_chunks(data: str, task: Task, split: Split) -> Sentences:
    """A file with a word, anything, and the word's tag in each line, and empty lines between sentences."""
    path = require_file(data, task, split)
    sentences, counts = lines_of_sentences(path)
    words = [[fields[0] for _, fields in lines] for lines in sentences]
    tags = [[checked_tag(fields, path, number) for number, fields in lines] for lines in sentences]
    warnings = rows_warning(task, split, len(words), "sentences")
    if counts["undecodable"]:
        warnings += (f"{task.title} {split.name}: {counts['undecodable']:,} lines are not quite UTF-8",)
    return Sentences(words, tags, task.labels or (), warnings)


def lines_of_sentences(path: Path) -> tuple[list[list[tuple[int, list[str]]]], Counter[str]]:
    """Of each sentence its lines: their numbers and columns; and what was odd."""
    counts: Counter[str] = Counter()
    sentences: list[list[tuple[int, list[str]]]] = [[]]
    before = 0
    for number, columns in lines_of(path, counts):
        fields = " ".join(columns).split()
        if number != before + 1 or not fields:  # empty lines are left out by lines_of
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
    """The task with the tags that its files have: those that only dev has can be counted, though never learned."""
    found: set[str] = {OUTSIDE}
    for name in ("train", "dev"):
        found |= {tag for tags in read_chunks(data, task, task.split(name)).tags for tag in tags}
    return replace(task, labels=(OUTSIDE, *sorted(found - {OUTSIDE}, key=lambda tag: (tag[2:], tag))))


def encode_tags(examples: Sentences, tokenizer: Any, length: int, is_training: bool) -> Tagged:
    """The first token of each word carries its tag. What is longer than `length` is cut: words there are outside of chunks."""
    require_offsets(tokenizer)
    numbers = {label: number for number, label in enumerate(examples.labels)}
    texts, offsets = tokens_of([" ".join(words) for words in examples.words], tokenizer)
    row = tokenizer("a")
    place = row.sequence_ids(0).index(0)
    before, after = row["input_ids"][:place], row["input_ids"][place + row.sequence_ids(0).count(0) :]
    room = length - len(before) - len(after)
    ids, labels, word_of = [], [], []
    for words, tags, text, places in zip(examples.words, examples.tags, texts, offsets, strict=True):
        ends = np.cumsum([len(word) + 1 for word in words])  # of each word and the space after it
        owners = np.searchsorted(ends, np.maximum(places[:room, 1] - 1, 0), side="right")
        is_first = np.diff(owners, prepend=-1) > 0
        firsts = np.where(is_first, owners, -1)
        wanted = np.asarray([numbers.get(tag, NO_TAG) for tag in tags], np.int64)
        ids.append(np.concatenate([before, text[:room], after]).astype(np.int32))
        labels.append(_between(before, np.where(is_first, wanted[owners], NO_TAG), after, NO_TAG))
        word_of.append(_between(before, firsts, after, -1))
    return Tagged(
        ids=np.concatenate(ids),
        segments=None,
        starts=np.concatenate([[0], np.cumsum([len(row) for row in ids])]),
        labels=np.concatenate(labels),
        words=tuple(examples.words),
        tags=tuple(examples.tags),
        word_of=np.concatenate(word_of),
    )


def _between(before: list[int], values: np.ndarray, after: list[int], filling: int) -> np.ndarray:
    return np.concatenate([np.full(len(before), filling), values, np.full(len(after), filling)])


def tag_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row (B); their mean is that of all words. Logits (B, T, labels), targets (B, T)."""
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=NO_TAG, reduction="none")
    num_words = (targets != NO_TAG).sum().clamp(min=1)
    return losses.sum(-1) * len(targets) / num_words


def score_tags(task: Task, rows: dict[str, Any], logits: dict[str, np.ndarray]) -> Scored:
    """Chunk F1, and a file of words, tags and predicted tags that conlleval takes."""
    scored = Scored(is_finite=all(bool(np.isfinite(each).all()) for each in logits.values()))
    for name, sentences in rows.items():
        predicted = tags_of(task, sentences, logits[name])
        scored.scores[name] = chunk_scores(sentences.tags, predicted)
        lines = []
        for words, tags, found in zip(sentences.words, sentences.tags, predicted, strict=True):
            lines += [" ".join(each) for each in zip(words, tags, found, strict=True)] + [""]
        scored.files["predictions.txt" if name == "dev" else f"{name}_predictions.txt"] = "\n".join(lines) + "\n"
        kinds = {tag for found in predicted for tag in found}
        if len(kinds) == 1 and len({tag for tags in sentences.tags for tag in tags}) > 1:
            scored.collapsed.append(f"all {name} predictions are {kinds.pop()!r}")
    return scored


def tags_of(task: Task, sentences: Tagged, logits: np.ndarray) -> list[list[str]]:
    """The predicted tag of each word."""
    assert sentences.word_of is not None and task.labels is not None
    best = logits.argmax(-1)
    found = []
    for number, words in enumerate(sentences.words):
        tags = [OUTSIDE] * len(words)
        for place in range(sentences.starts[number], sentences.starts[number + 1]):
            if sentences.word_of[place] >= 0:
                tags[sentences.word_of[place]] = task.labels[best[place]]
        found.append(tags)
    return found


def chunks_of(tags: list[str]) -> set[tuple[str, int, int]]:
    """Kind, first and last word of each chunk. As in conlleval and seqeval, I-X that follows no X begins a chunk, too."""
    chunks: set[tuple[str, int, int]] = set()
    kind, start = None, 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        goes_on = tag.startswith("I-") and tag[2:] == kind
        if goes_on:
            continue
        if kind is not None:
            chunks.add((kind, start, place - 1))
        kind, start = (None if tag == OUTSIDE else tag[2:]), place
    return chunks


def chunk_scores(answers: tuple[list[str], ...] | list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    """Over the chunks of all sentences; accuracy over the words."""
    num_true = num_found = num_both = num_equal = 0
    for tags, said in zip(answers, predicted, strict=True):
        true, found = chunks_of(tags), chunks_of(said)
        num_true, num_found, num_both = num_true + len(true), num_found + len(found), num_both + len(true & found)
        num_equal += sum(a == b for a, b in zip(tags, said, strict=True))
    precision, recall = num_both / max(1, num_found), num_both / max(1, num_true)
    return {
        "f1": 2 * num_both / max(1, num_true + num_found),
        "precision": precision,
        "recall": recall,
        "accuracy": num_equal / max(1, sum(map(len, answers))),
    }
