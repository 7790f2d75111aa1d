"""Cuts the texts of SQuAD into windows, and encodes each as "[CLS] question [SEP] window of the text [SEP]"."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from electrakit.common.errors import UserError
from electrakit.finetune.encode import EncodedRows, starts_of, tokenize
from electrakit.finetune.tokens.squad import SquadExamples, SquadQuestion

STRIDE = 128  # tokens between the starts of two windows, and tokens of a question: as in the official code
MAX_QUESTION = 64
MIN_WINDOW = 8


@dataclass(frozen=True, kw_only=True)
class EncodedWindows(EncodedRows):
    """The windows of all questions as rows (N).

    Labels (N, 5): first and last token of the answer (0 and 0 if the window does not hold it), whether the question has no answer,
    first and last token of the window's text.
    """

    questions: tuple[SquadQuestion, ...]
    contexts: tuple[str, ...]
    question_of: np.ndarray
    """The number of each window's question (N)."""
    first_token: np.ndarray
    """Where each window begins in the tokens of its text (N)."""
    offsets: tuple[np.ndarray, ...]
    """For each text: where its tokens begin and end in it (tokens, 2)."""
    can_start: tuple[np.ndarray, ...]
    """For each window: the tokens of its text at which an answer may begin, those with more context here than in other windows."""

    def more_inputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Where the text is; and in training where the answer begins, which its end depends on in `joint_prediction`."""
        return {"windows": self.targets(rows)}


@dataclass(frozen=True)
class TextFrame:
    """The special tokens that a tokenizer puts before, between and after one or two texts."""

    special: list[list[int]]
    segments: list[int] | None
    """Of the special tokens and texts in their order."""

    @property
    def num_special(self) -> int:
        return sum(map(len, self.special))

    def around(self, *texts: np.ndarray, filling: int | None = None) -> np.ndarray:
        """The texts with the special tokens, or with `filling` in their places."""
        return np.concatenate(self._parts(texts, filling)).astype(np.int32)

    def segments_around(self, *texts: np.ndarray) -> np.ndarray:
        assert self.segments is not None
        return np.repeat(np.asarray(self.segments, np.uint8), [len(part) for part in self._parts(texts)])

    def _parts(self, texts: tuple[np.ndarray, ...], filling: int | None = None) -> list[Any]:
        special = [ids if filling is None else [filling] * len(ids) for ids in self.special]
        parts: list[Any] = [special[0]]
        for text, ids in zip(texts, special[1:], strict=True):
            parts += [text, ids]
        return parts


def frame_of(tokenizer: Any, num_texts: int) -> TextFrame:
    """Learned from an example."""
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} does not give the offsets of its tokens; the model needs a tokenizer.json"
        )
    row = tokenizer(*["a", "b"][:num_texts])
    owners, ids = row.sequence_ids(0), row["input_ids"]
    special, places, end = [], [], 0
    for number in range(num_texts):
        start = owners.index(number)
        special.append(ids[end:start])
        places += [end, start]
        end = start + owners.count(number)
    types = row.get("token_type_ids")
    segments = [types[min(place, len(ids) - 1)] for place in (*places, end)] if types else None
    return TextFrame([*special, ids[end:]], segments)


def encode_squad(examples: SquadExamples, tokenizer: Any, length: int, is_training: bool) -> EncodedWindows:
    """Each text in windows that begin 128 tokens apart; a question is cut to 64 tokens."""
    frame = frame_of(tokenizer, 2)
    max_question = min(MAX_QUESTION, (length - frame.num_special) // 2)
    if max_question < MIN_WINDOW // 2:
        raise UserError(f"--length {length} leaves no room for a question and a text; use --length 32 or more")
    texts, offsets = tokens_and_offsets(examples.contexts, tokenizer)
    question_tokens, _ = tokens_and_offsets([question.text for question in examples.questions], tokenizer)
    ids, segments, labels, question_of, first_tokens, can_start = [], [], [], [], [], []
    for number, question in enumerate(examples.questions):
        words, text = question_tokens[number][:max_question], texts[question.context]
        windows = windows_of(len(text), length - frame.num_special - len(words))
        span = span_of(question, offsets[question.context])
        shift = len(frame.special[0]) + len(words) + len(frame.special[1])
        for start, end in windows:
            ids.append(frame.around(words, text[start:end]))
            if frame.segments is not None:
                segments.append(frame.segments_around(words, text[start:end]))
            answer = (0, 0)
            if span is not None and start <= span[0] and span[1] < end:
                answer = (span[0] - start + shift, span[1] - start + shift)
            labels.append((*answer, not question.answers, shift, shift + end - start - 1))
            question_of.append(number)
            first_tokens.append(start)
        if not is_training:
            can_start += most_context(windows)
    return EncodedWindows(
        ids=np.concatenate(ids),
        segments=np.concatenate(segments) if segments else None,
        starts=starts_of(ids),
        labels=np.asarray(labels, np.int64),
        questions=tuple(examples.questions),
        contexts=tuple(examples.contexts),
        question_of=np.asarray(question_of),
        first_token=np.asarray(first_tokens),
        offsets=tuple(offsets),
        can_start=tuple(can_start),
    )


def tokens_and_offsets(texts: list[str], tokenizer: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The ids of each text without special tokens, and where its tokens begin and end in it (tokens, 2)."""
    columns = tokenize(tokenizer, [texts], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = [each.reshape(-1, 2) for each in columns["offset_mapping"]]
    return columns["input_ids"], [without_spaces(text, each) for text, each in zip(texts, offsets, strict=True)]


def without_spaces(text: str, offsets: np.ndarray) -> np.ndarray:
    """The offsets without the space before a word, which belongs to its token in some tokenizers."""
    is_space = np.array([*map(str.isspace, text), False])
    places = np.where(is_space, len(text), np.arange(len(text) + 1))
    following = np.minimum.accumulate(places[::-1])[::-1]  # the next character that is no space
    return np.stack([np.minimum(following[offsets[:, 0]], offsets[:, 1]), offsets[:, 1]], 1)


def windows_of(num_tokens: int, room: int) -> list[tuple[int, int]]:
    """Starts and ends: `room` tokens each, 128 apart, or half a window if that is less."""
    step = STRIDE if room > STRIDE else max(1, room // 2)
    windows = [(0, min(room, num_tokens))]
    while windows[-1][1] < num_tokens:
        start = windows[-1][0] + step
        windows.append((start, min(start + room, num_tokens)))
    return windows


def span_of(question: SquadQuestion, offsets: np.ndarray) -> tuple[int, int] | None:
    """The first and last token of the answer."""
    if not question.answers or not len(offsets):
        return None
    answer = question.answers[0]
    start = question.start + len(answer) - len(answer.lstrip())
    end = question.start + len(answer.rstrip())
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def most_context(windows: list[tuple[int, int]]) -> list[np.ndarray]:
    """For each window: which of its tokens have the most context in it, the shorter of what is left and right of them."""
    num_tokens = windows[-1][1]
    best_score, best = np.full(num_tokens, -np.inf), np.zeros(num_tokens, np.int64)  # of the windows so far
    for number, (start, end) in enumerate(windows):
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * (end - start)
        is_better = score > best_score[start:end]
        best_score[start:end][is_better] = score[is_better]
        best[start:end][is_better] = number
    return [best[start:end] == number for number, (start, end) in enumerate(windows)]
