"""Logits of windows in, answers out: the loss, the n best spans, the scores and the files of SQuAD."""

import json
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


def score_spans(task: Task, rows: dict[str, Any], logits: dict[str, np.ndarray]) -> Scored:
    """The scores of the answers, and the files that the official scripts take."""
    scored = Scored(is_finite=all(bool(np.isfinite(each).all()) for each in logits.values()))
    for name, windows in rows.items():
        best, null_odds = answers_of(windows, logits[name])
        predicted = {question: texts[0] if texts else "" for question, texts in best.items()}
        answers = {question.name: question.answers for question in windows.questions}
        prefix = "" if name == "dev" else f"{name}_"
        if task.may_be_unanswerable:
            scored.scores[name], threshold = second_scores(answers, predicted, null_odds)
            scored.details["threshold"] = {name: threshold}
            scored.files[f"{prefix}answers.json"] = as_json(predicted)
            scored.files[f"{prefix}null_odds.json"] = as_json(null_odds)
            predicted = {key: "" if null_odds[key] > threshold else text for key, text in predicted.items()}
        else:
            scored.scores[name] = first_scores(answers, predicted)
        scored.files[f"{prefix}predictions.json"] = as_json(predicted)
        if len(predicted) > 1 and len(set(predicted.values())) == 1 and len(set(answers.values())) > 1:
            scored.collapsed.append(f"all {name} predictions are {next(iter(predicted.values()))!r}")
    return scored


def as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def answers_of(windows: Windows, logits: np.ndarray) -> tuple[dict[str, list[str]], dict[str, float]]:
    """By question: the n best answers, the best first, and how likely it is that there is none (the least of its windows)."""
    assert windows.question_of is not None and windows.labels is not None and windows.first_token is not None
    spans: dict[int, list[tuple[float, int, int]]] = {}
    null_odds: dict[str, float] = {}
    for number, place in enumerate(windows.question_of.tolist()):
        found = logits[windows.starts[number] : windows.starts[number + 1]]
        first, last = windows.labels[number, 3:]
        shift = int(windows.first_token[number])
        spans.setdefault(place, []).extend(
            (score, start + shift, end + shift)
            for score, start, end in best_spans(found[first : last + 1], windows.can_start[number])
        )
        if logits.shape[1] > 2:
            question = windows.questions[place].name
            null_odds[question] = min(null_odds.get(question, np.inf), float(found[0, 2]))
    best: dict[str, list[str]] = {}
    for place, question in enumerate(windows.questions):
        context, offsets = windows.contexts[question.context], windows.offsets[question.context]
        ordered = sorted(spans[place], key=lambda span: -span[0])
        texts = (context[offsets[start, 0] : offsets[end, 1]].strip() for _, start, end in ordered)
        best[question.name] = [text for text in dict.fromkeys(texts) if text][:NUM_BEST]
    return best, null_odds


def best_spans(logits: np.ndarray, can_start: np.ndarray) -> list[tuple[float, int, int]]:
    """Scores, first and last tokens of the spans in a window's text: of the 20 best beginnings and the 20 best ends."""
    starts = np.argsort(-logits[:, 0], kind="stable")[:NUM_BEST]
    ends = np.argsort(-logits[:, 1], kind="stable")[:NUM_BEST]
    lengths = ends[None] - starts[:, None] + 1
    is_good = (lengths >= 1) & (lengths <= MAX_ANSWER) & can_start[starts][:, None]
    scores = logits[starts, 0][:, None] + logits[ends, 1][None]
    return [(float(scores[a, b]), int(starts[a]), int(ends[b])) for a, b in np.argwhere(is_good)]
