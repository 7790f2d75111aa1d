"""Logits of windows in, answers out: the loss, the n best spans, the scores and the files of SQuAD."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.evaluate.scored import Scored
from electrakit.evaluate.squad_metrics import first_scores, second_scores
from electrakit.evaluate.tasks import Task
from electrakit.evaluate.windows import Windows

NUM_BEST = 20  # this and the next two are those of the official code
MAX_ANSWER = 30  # tokens
ANSWERABLE_WEIGHT = 0.5  # of the loss whether there is an answer


def span_loss(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each window (B): logits (B, T, 2 or 3), targets (B, 5) as in Windows."""
    start, end, is_impossible, first, last = targets.unbind(-1)
    places = torch.arange(logits.size(1), device=logits.device)
    is_possible = (places >= first[:, None]) & (places <= last[:, None]) | (places == 0)
    logits = logits.masked_fill(~torch.stack([is_possible] * logits.size(-1), -1), -torch.inf)
    losses = [nn.functional.cross_entropy(logits[..., 0], start, reduction="none")]
    losses += [nn.functional.cross_entropy(logits[..., 1], end, reduction="none")]
    loss = (losses[0] + losses[1]) / 2
    if task.may_be_unanswerable:
        wanted = is_impossible.to(logits.dtype)
        answerable = nn.functional.binary_cross_entropy_with_logits(logits[:, 0, 2], wanted, reduction="none")
        loss = loss + ANSWERABLE_WEIGHT * answerable
    return loss


@dataclass(frozen=True)
class Answer:
    """A span of a text that may be what was asked for."""

    text: str
    start_logit: float
    end_logit: float


def score_spans(task: Task, rows: dict[str, Any], logits: dict[str, np.ndarray]) -> Scored:
    """The scores of the answers, and the files that the official scripts take."""
    scored = Scored(is_finite=all(bool(np.isfinite(each).all()) for each in logits.values()))
    for name, windows in rows.items():
        best, null_odds = answers_of(windows, logits[name])
        predicted = best_texts(best)
        answers = {question.name: question.answers for question in windows.questions}
        prefix = "" if name == "dev" else f"{name}_"
        if task.may_be_unanswerable:
            scored.scores[name], threshold = second_scores(answers, predicted, null_odds)
            scored.details["threshold"] = {name: threshold}
            scored.files[f"{prefix}answers.json"] = as_json(predicted)
            scored.files[f"{prefix}null_odds.json"] = as_json(null_odds)
            predicted = best_texts(best, null_odds, threshold)
        else:
            scored.scores[name] = first_scores(answers, predicted)
        scored.collapsed += one_answer_reasons(name, predicted, answers)
        scored.files[f"{prefix}predictions.json"] = as_json(predicted)
        scored.files[f"{prefix}nbest_predictions.json"] = as_json(ranked(best))
    return scored


def one_answer_reasons(split: str, predicted: dict[str, str], answers: Mapping[str, Sequence[str]]) -> list[str]:
    """What about the answers says that nothing was learned: all are the same, and those of the file are not."""
    if len(set(predicted.values())) != 1 or len({tuple(each) for each in answers.values()}) == 1:
        return []
    same = next(iter(predicted.values()))
    return [f"all {split} answers are {same!r}" if same else f"no {split} question is answered"]


def as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def best_texts(
    best: dict[str, list[Answer]], null_odds: dict[str, float] | None = None, threshold: float = 0.0
) -> dict[str, str]:
    """By question: its best answer; none where the odds of having none are above the threshold."""
    odds = null_odds or {}
    return {
        name: answers[0].text if answers and not odds.get(name, -np.inf) > threshold else ""
        for name, answers in best.items()
    }


def ranked(best: dict[str, list[Answer]]) -> dict[str, list[dict[str, Any]]]:
    """By question: the n best answers as the official code has them, with their share among these."""
    return {
        name: [
            {
                "text": answer.text,
                "probability": share,
                "start_logit": answer.start_logit,
                "end_logit": answer.end_logit,
            }
            for answer, share in zip(answers, shares_of(answers), strict=True)
        ]
        for name, answers in best.items()
    }


def shares_of(answers: Sequence[Answer]) -> list[float]:
    """The softmax of their scores."""
    scores = np.asarray([answer.start_logit + answer.end_logit for answer in answers], np.float64)
    powers = np.exp(scores - scores.max(initial=-np.inf))
    return (powers / powers.sum()).tolist()


def answers_of(windows: Windows, logits: np.ndarray) -> tuple[dict[str, list[Answer]], dict[str, float]]:
    """By question: the n best answers, the best first, and how likely it is that there is none (the least of its windows)."""
    assert windows.question_of is not None and windows.labels is not None and windows.first_token is not None
    best: dict[str, list[Answer]] = {}
    null_odds: dict[str, float] = {}
    for place, numbers in groupby(range(len(windows)), windows.question_of.tolist().__getitem__):
        question, spans = windows.questions[place], []
        for number in numbers:
            found = logits[windows.starts[number] : windows.starts[number + 1]]
            first, last = windows.labels[number, 3:]
            inside, shift = found[first : last + 1], int(windows.first_token[number])
            spans += [
                (score, start + shift, end + shift, float(inside[start, 0]), float(inside[end, 1]))
                for score, start, end in best_spans(inside, windows.can_start[number])
            ]
            if logits.shape[1] > 2:
                null_odds[question.name] = min(null_odds.get(question.name, np.inf), float(found[0, 2]))
        context, offsets = windows.contexts[question.context], windows.offsets[question.context]
        different: dict[str, Answer] = {}
        for _, start, end, *ends in sorted(spans, key=lambda span: -span[0]):
            text = context[offsets[start, 0] : offsets[end, 1]].strip()
            if text and text not in different:  # else a better one says the same
                different[text] = Answer(text, *ends)
            if len(different) == NUM_BEST:
                break
        best[question.name] = list(different.values())
    return best, null_odds


def best_spans(logits: np.ndarray, can_start: np.ndarray) -> list[tuple[float, int, int]]:
    """Scores, first and last tokens of the spans in a window's text: of the 20 best beginnings and the 20 best ends."""
    starts = np.argsort(-logits[:, 0], kind="stable")[:NUM_BEST]
    ends = np.argsort(-logits[:, 1], kind="stable")[:NUM_BEST]
    lengths = ends[None] - starts[:, None] + 1
    is_good = (lengths >= 1) & (lengths <= MAX_ANSWER) & can_start[starts][:, None]
    scores = logits[starts, 0][:, None] + logits[ends, 1][None]
    return [(float(scores[a, b]), int(starts[a]), int(ends[b])) for a, b in np.argwhere(is_good)]
