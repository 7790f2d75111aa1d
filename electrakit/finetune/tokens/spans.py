"""Answers of SQuAD as spans of tokens: the loss, the n best answers of a question, their scores and files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.finetune.results import EvaluationResult
from electrakit.finetune.tasks import Task
from electrakit.finetune.tokens.span_head import NUM_STARTS, is_possible
from electrakit.finetune.tokens.squad_metrics import first_scores, second_scores
from electrakit.finetune.tokens.windows import EncodedWindows

# All three are those of the official code.
NUM_BEST = 20
MAX_ANSWER = 30  # tokens
ANSWERABLE_WEIGHT = 0.5  # of the loss of predicting whether there is an answer


def span_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each window (B): logits (B, T, 2 or 3), targets (B, 5) as in Windows."""
    start, end, is_impossible = targets[:, :3].unbind(-1)
    logits = logits.masked_fill(~is_possible(targets, logits.size(1))[..., None], -torch.inf)
    start_loss = nn.functional.cross_entropy(logits[..., 0], start, reduction="none")
    end_loss = nn.functional.cross_entropy(logits[..., 1], end, reduction="none")
    loss = (start_loss + end_loss) / 2
    if task.may_be_unanswerable:
        wanted = is_impossible.to(logits.dtype)
        answerable = nn.functional.binary_cross_entropy_with_logits(logits[:, 0, 2], wanted, reduction="none")
        loss = loss + ANSWERABLE_WEIGHT * answerable
    return loss


@dataclass(frozen=True)
class Answer:
    """A span of a text that may answer a question, as the official code writes it."""

    text: str
    probability: float
    """Among the best answers to the question."""
    start_logit: float
    end_logit: float


def score_spans(task: Task, rows: dict[str, EncodedWindows], logits: dict[str, np.ndarray]) -> EvaluationResult:
    """The scores of the answers, and the files that the official scripts take."""
    evaluation = EvaluationResult()
    for name, windows in rows.items():
        best, null_odds = answers_of(windows, logits[name])
        predicted = best_texts(best)
        answers = {question.id: question.answers for question in windows.questions}
        prefix = "" if name == "dev" else f"{name}_"
        if task.may_be_unanswerable:
            evaluation.scores[name], threshold = second_scores(answers, predicted, null_odds)
            evaluation.threshold = {name: threshold}
            evaluation.files[f"{prefix}answers.json"] = as_json(predicted)
            evaluation.files[f"{prefix}null_odds.json"] = as_json(null_odds)
            predicted = best_texts(best, null_odds, threshold)
        else:
            evaluation.scores[name] = first_scores(answers, predicted)
        evaluation.collapsed += one_answer_reasons(name, predicted, answers)
        evaluation.files[f"{prefix}predictions.json"] = as_json(predicted)
        evaluation.files[f"{prefix}nbest_predictions.json"] = as_json(ranked(best))
    return evaluation


def one_answer_reasons(split: str, predicted: dict[str, str], answers: Mapping[str, Sequence[str]]) -> list[str]:
    """The sign that nothing was learned: all answers are the same, and those of the file are not."""
    if len(set(predicted.values())) != 1 or len({tuple(each) for each in answers.values()}) == 1:
        return []
    same = next(iter(predicted.values()))
    return [f"all {split} answers are {same!r}" if same else f"no {split} question is answered"]


def as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def best_texts(
    best: dict[str, list[Answer]], null_odds: dict[str, float] | None = None, threshold: float = 0.0
) -> dict[str, str]:
    """The best answer to each question; "" where the odds that it has none are above the threshold."""
    odds = null_odds or {}
    return {
        name: answers[0].text if answers and not odds.get(name, -np.inf) > threshold else ""
        for name, answers in best.items()
    }


def ranked(best: dict[str, list[Answer]]) -> dict[str, list[dict[str, Any]]]:
    """The n best answers to each question, for JSON."""
    return {name: [asdict(answer) for answer in answers] for name, answers in best.items()}


def answers_of(windows: EncodedWindows, logits: np.ndarray) -> tuple[dict[str, list[Answer]], dict[str, float]]:
    """For each question its n best answers, the best first, and the odds that it has none (the lowest of its windows)."""
    assert windows.labels is not None
    best: dict[str, list[Answer]] = {}
    null_odds: dict[str, float] = {}
    for place, numbers in groupby(range(len(windows)), windows.question_of.tolist().__getitem__):
        question, spans = windows.questions[place], []
        for number in numbers:
            found = logits[windows.starts[number] : windows.starts[number + 1]]
            first, last = windows.labels[number, 3:]
            inside, shift = found[first : last + 1], int(windows.first_token[number])
            find = beam_spans if logits.shape[1] > NUM_STARTS else best_spans
            spans += [
                (start_logit + end_logit, start + shift, end + shift, start_logit, end_logit)
                for start_logit, end_logit, start, end in find(inside, windows.can_start[number])
            ]
            if logits.shape[1] % 2:  # the last of 3 or 23
                null_odds[question.id] = min(null_odds.get(question.id, np.inf), float(found[0, -1]))
        context, offsets = windows.contexts[question.context], windows.offsets[question.context]
        different: dict[str, list[float]] = {}  # by text: the logits of its ends
        for _, start, end, *ends in sorted(spans, key=lambda span: -span[0]):
            text = context[offsets[start, 0] : offsets[end, 1]].strip()
            if text:
                different.setdefault(text, ends)  # a better span may have the same text
            if len(different) == NUM_BEST:
                break
        scores = np.asarray([sum(ends) for ends in different.values()], np.float64)
        powers = np.exp(scores - scores.max(initial=-np.inf))
        shares = zip((powers / powers.sum()).tolist(), different.items(), strict=True)
        best[question.id] = [Answer(text, share, *ends) for share, (text, ends) in shares]
    return best, null_odds


FoundSpan = tuple[float, float, int, int]
"""The logits of the start and of the end, the first and the last token."""


def best_spans(logits: np.ndarray, can_start: np.ndarray) -> list[FoundSpan]:
    """The spans in a window's text, of the 20 best starts and the 20 best ends."""
    starts = np.argsort(-logits[:, 0], kind="stable")[:NUM_BEST]
    ends = np.argsort(-logits[:, 1], kind="stable")[:NUM_BEST]
    return good_spans(starts, logits[starts, 0], ends, np.tile(logits[ends, 1], (len(starts), 1)), can_start)


def beam_spans(logits: np.ndarray, can_start: np.ndarray) -> list[FoundSpan]:
    """The same from a beam, as `span_head.beam` makes it: each start has its own 20 best ends."""
    found = []
    for start in np.flatnonzero(logits[:, 1] >= 0):
        of_ends = logits[:, 2 + int(logits[start, 1])]
        ends = np.argsort(-of_ends, kind="stable")[:NUM_BEST]
        found += good_spans(np.array([start]), logits[[start], 0], ends, of_ends[None, ends], can_start)
    return found


def good_spans(
    starts: np.ndarray, start_logits: np.ndarray, ends: np.ndarray, end_logits: np.ndarray, can_start: np.ndarray
) -> list[FoundSpan]:
    """Of all pairs of starts (S) and ends (E) those that an answer may be: not too long, and with the most context in this window."""
    lengths = ends[None] - starts[:, None] + 1
    is_good = (lengths >= 1) & (lengths <= MAX_ANSWER) & can_start[starts][:, None]
    return [
        (float(start_logits[a]), float(end_logits[a, b]), int(starts[a]), int(ends[b])) for a, b in np.argwhere(is_good)
    ]
