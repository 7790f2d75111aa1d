"""Questions and texts in, rows "[CLS] question [SEP] window of the text [SEP]" out."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from electrakit.errors import UserError
from electrakit.evaluate.encode import ROWS_AT_ONCE, Encoded
from electrakit.evaluate.squad import Question, Questions

STRIDE = 128  # tokens between the beginnings of two windows; this and the next are those of the official code
MAX_QUESTION = 64  # tokens
MIN_WINDOW = 8


@dataclass(frozen=True)
class Windows(Encoded):
    """Windows, one after the other. Labels (N, 5): first and last token of the answer (0 and 0 if there is none in the window),
    whether the question has no answer, first and last token of the window's text."""

    questions: tuple[Question, ...] = ()
    contexts: tuple[str, ...] = ()
    question_of: np.ndarray | None = None
    """The number of each window's question (N)."""
    first_token: np.ndarray | None = None
    """Of the window in the text's tokens (N)."""
    offsets: tuple[np.ndarray, ...] = ()
    """Of each text: where its tokens begin and end in it (tokens, 2)."""
    can_start: tuple[np.ndarray, ...] = ()
    """Of each window: from which of its text's tokens an answer may begin: those with more context here than elsewhere."""


@dataclass(frozen=True)
class Frame:
    """What a tokenizer puts around two texts, and the segments that it gives them."""

    before: list[int]
    between: list[int]
    after: list[int]
    segments: tuple[int, int, int, int, int] | None

    @property
    def num_special(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


def frame_of(tokenizer: Any) -> Frame:
    """Learned from a pair of texts."""
    require_offsets(tokenizer)
    row = tokenizer("a", "b")
    owners, ids = row.sequence_ids(0), row["input_ids"]
    first, second = owners.index(0), owners.index(1)
    end_of_first, end_of_second = first + owners.count(0), second + owners.count(1)
    segments = row.get("token_type_ids")
    places = (0, first, end_of_first, second, end_of_second)
    return Frame(
        before=ids[:first],
        between=ids[end_of_first:second],
        after=ids[end_of_second:],
        segments=tuple(segments[min(place, len(ids) - 1)] for place in places) if segments else None,
    )


def require_offsets(tokenizer: Any) -> None:
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} does not say where its tokens stand in a text; the model needs a tokenizer.json"
        )


def encode_squad(examples: Questions, tokenizer: Any, length: int, is_training: bool) -> Windows:
    """Each text in windows that begin 128 tokens apart; a question is cut to 64 tokens."""
    frame = frame_of(tokenizer)
    max_question = min(MAX_QUESTION, (length - frame.num_special) // 2)
    if max_question < MIN_WINDOW // 2:
        raise UserError(f"--length {length} leaves no room for a question and a text; use --length 32 or more")
    texts, offsets = tokens_of(examples.contexts, tokenizer)
    asked, _ = tokens_of([question.text for question in examples.questions], tokenizer)
    ids: list[np.ndarray] = []
    segments: list[np.ndarray] = []
    labels, question_of, first_tokens, can_start = [], [], [], []
    for number, question in enumerate(examples.questions):
        words, text = asked[number][:max_question], texts[question.context]
        room = length - frame.num_special - len(words)
        windows = windows_of(len(text), room)
        span = span_of(question, offsets[question.context])
        shift = len(frame.before) + len(words) + len(frame.between)
        for place, (start, end) in enumerate(windows):
            ids.append(
                np.concatenate([frame.before, words, frame.between, text[start:end], frame.after]).astype(np.int32)
            )
            if frame.segments is not None:
                counts = (len(frame.before), len(words), len(frame.between), end - start, len(frame.after))
                segments.append(np.repeat(np.asarray(frame.segments, np.uint8), counts))
            answer = (0, 0)
            if span is not None and start <= span[0] and span[1] < end:
                answer = (span[0] - start + shift, span[1] - start + shift)
            labels.append((*answer, not question.answers, shift, shift + end - start - 1))
            question_of.append(number)
            first_tokens.append(start)
            if not is_training:
                can_start.append(most_context(windows, place))
    return Windows(
        ids=np.concatenate(ids),
        segments=np.concatenate(segments) if segments else None,
        starts=np.concatenate([[0], np.cumsum([len(row) for row in ids])]),
        labels=np.asarray(labels, np.int64),
        questions=tuple(examples.questions),
        contexts=tuple(examples.contexts),
        question_of=np.asarray(question_of),
        first_token=np.asarray(first_tokens),
        offsets=tuple(offsets),
        can_start=tuple(can_start),
    )


def tokens_of(texts: list[str], tokenizer: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ids of each text without special tokens, and where they begin and end in it."""
    ids, offsets = [], []
    for start in range(0, len(texts), ROWS_AT_ONCE):
        rows = tokenizer(
            texts[start : start + ROWS_AT_ONCE],
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        ids += [np.asarray(row, np.int32) for row in rows["input_ids"]]
        offsets += [np.asarray(row, np.int32).reshape(-1, 2) for row in rows["offset_mapping"]]
    return ids, offsets


def windows_of(num_tokens: int, room: int) -> list[tuple[int, int]]:
    """Beginnings and ends: `room` tokens each, 128 apart, or half a window if that is less."""
    step = STRIDE if room > STRIDE else max(1, room // 2)
    windows = [(0, min(room, num_tokens))]
    while windows[-1][1] < num_tokens:
        start = windows[-1][0] + step
        windows.append((start, min(start + room, num_tokens)))
    return windows


def span_of(question: Question, offsets: np.ndarray) -> tuple[int, int] | None:
    """The first and last token of the answer."""
    if not question.answers or not len(offsets):
        return None
    answer = question.answers[0]
    start = question.start + len(answer) - len(answer.lstrip())
    end = question.start + len(answer.rstrip())
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def most_context(windows: list[tuple[int, int]], place: int) -> np.ndarray:
    """Which tokens of a window (tokens) have the most context in it: the shorter of what is left and right of them."""
    start, end = windows[place]
    tokens = np.arange(start, end)
    best_score, best = np.full(len(tokens), -np.inf), np.full(len(tokens), place)
    for number, (other_start, other_end) in enumerate(windows):
        if other_end <= start or other_start >= end:
            continue
        score = np.minimum(tokens - other_start, other_end - 1 - tokens) + 0.01 * (other_end - other_start)
        score = np.where((tokens >= other_start) & (tokens < other_end), score, -np.inf)
        best = np.where(score > best_score, number, best)
        best_score = np.maximum(score, best_score)
    return best == place
