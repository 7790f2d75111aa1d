"""Exact match and F1 of answers, 0 to 1, as SQuAD's two evaluation scripts define them."""

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_of(answers: Sequence[str], predicted: str) -> float:
    """1 if the prediction is one of the answers."""
    return float(normalise(predicted) in {normalise(answer) for answer in answers})


def f1_of(answers: Sequence[str], predicted: str, is_second: bool) -> float:
    """F1 of the words, with the best matching answer. Where both are empty, 1.1 scores 0, and 2.0 (`is_second`) 1."""
    return max(_f1(normalise(answer).split(), normalise(predicted).split(), is_second) for answer in answers)


def _f1(answer: list[str], predicted: list[str], is_second: bool) -> float:
    if is_second and not (answer and predicted):
        return float(answer == predicted)
    num_same = (Counter(answer) & Counter(predicted)).total()
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(answer)
    return 2 * precision * recall / (precision + recall)


def first_scores(answers: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> dict[str, float]:
    """SQuAD 1.1: the scores of the predicted answers."""
    return {
        "exact": _mean([exact_of(each, predicted[name]) for name, each in answers.items()]),
        "f1": _mean([f1_of(each, predicted[name], False) for name, each in answers.items()]),
    }


def second_scores(
    answers: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    null_odds: Mapping[str, float],
    threshold: float | None = None,
) -> tuple[dict[str, float], float]:
    """SQuAD 2.0: the scores, and the threshold of the best F1.

    A question whose null odds are above a threshold is taken to have no answer. `best_exact` and `best_f1` are at their best
    thresholds, all other scores at `threshold`, by default that of the best F1.
    """
    exact, f1 = {}, {}
    for name, each in answers.items():
        true = [answer for answer in each if normalise(answer)] or [""]
        exact[name], f1[name] = exact_of(true, predicted[name]), f1_of(true, predicted[name], True)
    best_exact, _ = best_threshold(answers, predicted, exact, null_odds)
    best_f1, best = best_threshold(answers, predicted, f1, null_odds)
    limit = best if threshold is None else threshold
    found = {"best_f1": best_f1, "best_exact": best_exact}
    for metric, scores in {"f1": f1, "exact": exact}.items():
        at_limit = {
            name: (float(not answers[name]) if null_odds[name] > limit else score) for name, score in scores.items()
        }
        found[metric] = _mean(list(at_limit.values()))
        found[f"HasAns_{metric}"] = _mean([score for name, score in at_limit.items() if answers[name]])
        found[f"NoAns_{metric}"] = _mean([score for name, score in at_limit.items() if not answers[name]])
    return found, limit


def best_threshold(
    answers: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    scores: Mapping[str, float],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """The best score, and the null odds up to which questions are answered for it; -inf: none is."""
    score = best = float(sum(not each for each in answers.values()))
    threshold = -math.inf
    for name in sorted(answers, key=lambda name: null_odds[name]):
        score += scores[name] if answers[name] else -float(bool(predicted[name]))
        if score > best:
            best, threshold = score, null_odds[name]
    return best / len(answers), threshold


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
