"""Exact match and F1 of SQuAD's scripts: by hand, and against a slow reference."""

import math
import random
import re
import string

import pytest

from electrakit.finetune.tokens.squad_metrics import (
    best_threshold,
    exact_of,
    f1_of,
    first_scores,
    normalise,
    second_scores,
)


def slow_normalise(text):
    kept = [letter for letter in text.lower() if letter not in string.punctuation]
    words = re.split(r"\b(?:a|an|the)\b", "".join(kept))
    return [word for piece in words for word in piece.split()]


def slow_f1(answer, predicted, is_second):
    """Words are crossed out one by one."""
    answer, predicted = slow_normalise(answer), slow_normalise(predicted)
    if is_second and (not answer or not predicted):
        return 1.0 if answer == predicted else 0.0
    left, num_same = list(answer), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            num_same += 1
    return 2 * num_same / (len(answer) + len(predicted)) if num_same else 0.0


def test_answers_are_compared_without_case_punctuation_articles_and_spaces():
    assert normalise("  The U.S.  of an-A! ") == "us of ana"
    assert exact_of(["The Beatles", "Beatles band"], "beatles.") == 1.0
    assert exact_of(["theatre"], "atre") == 0.0
    assert normalise("an’t") == "’t"  # only ASCII punctuation goes, and an apostrophe ends a word


def test_f1_by_hand():
    assert f1_of(["the cat sat"], "a cat", False) == pytest.approx(2 / 3)  # precision 1, recall 1/2
    # two words in common of three and three
    assert f1_of(["x", "big big dog"], "big dog dog", False) == pytest.approx(2 / 3)
    assert f1_of(["cat"], "dog", True) == 0.0
    # the scripts differ where nothing is left
    assert f1_of(["the"], "a", False) == 0.0 and f1_of(["the"], "a", True) == 1.0
    assert f1_of([""], "", True) == 1.0 and f1_of([""], "cat", True) == 0.0


def test_a_fixture_of_the_first_version_by_hand():
    answers = {"a": ["Denver Broncos", "The Denver Broncos"], "b": ["gold", "in gold"], "c": ["1895"]}
    predicted = {"a": "the Denver Broncos", "b": "the golden gold anniversary", "c": "1943"}
    scores = first_scores(answers, predicted)
    assert scores == {"exact": pytest.approx(1 / 3), "f1": pytest.approx((1 + 0.5 + 0) / 3)}


def test_a_fixture_of_the_second_version_by_hand():
    """Sorted by null odds: a (F1 1), d (no answer), b (F1 1/2, not exact), c (no answer). Without answering any: 2 of 4."""
    answers = {"a": ["x"], "b": ["y"], "c": [], "d": []}
    predicted = {"a": "x", "b": "y z w", "c": "v", "d": "u"}
    null_odds = {"a": -3.0, "b": 0.5, "c": 2.0, "d": -1.0}
    scores, threshold = second_scores(answers, predicted, null_odds)
    assert threshold == -3.0
    assert (scores["best_f1"], scores["best_exact"]) == (0.75, 0.75)
    assert (scores["f1"], scores["HasAns_f1"], scores["NoAns_f1"]) == (0.75, 0.5, 1.0)
    scores, _ = second_scores(answers, predicted, null_odds, threshold=1.0)
    assert scores["f1"] == (1 + 0.5 + 1 + 0) / 4
    assert scores["exact"] == (1 + 0 + 1 + 0) / 4
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (0.5, 0.5)


def test_no_question_is_answered_if_that_is_best():
    assert best_threshold({"a": [], "b": []}, {"a": "x", "b": "y"}, {"a": 0.0, "b": 0.0}, {"a": -9.0, "b": 1.0}) == (
        1.0,
        -math.inf,
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_answers_score_as_in_a_slow_reference(seed):
    chance = random.Random(seed)
    words = ["the", "a", "an", "An.", "cat", "Cat!", "dog", "u.s.", "don't", "—", ",", "the-a", ""]

    def text():
        return " ".join(chance.choices(words, k=chance.randint(0, 4)))

    names = [f"q{number}" for number in range(40)]
    answers = {name: [text() + " sun" for _ in range(chance.randint(0, 3))] for name in names}
    if seed % 2:
        answers = {name: [text() for _ in each] for name, each in answers.items()}
    predicted = {name: text() for name in names}
    null_odds = {name: chance.uniform(-5, 5) for name in names}
    known = {name: each or ["sun"] for name, each in answers.items()}
    first = first_scores(known, predicted)
    assert first["f1"] == pytest.approx(
        sum(max(slow_f1(one, predicted[name], False) for one in known[name]) for name in names) / 40
    )
    assert first["exact"] == pytest.approx(
        sum(slow_normalise(predicted[name]) in [slow_normalise(one) for one in known[name]] for name in names) / 40
    )

    def at(threshold, score):
        total = 0.0
        for name in names:
            true = [one for one in answers[name] if slow_normalise(one)] or [""]
            is_empty = null_odds[name] > threshold
            if is_empty:
                total += not answers[name]
            elif not answers[name]:
                total += not predicted[name]  # in the search any text is a wrong answer, even one of articles only
            else:
                total += max(score(one, predicted[name]) for one in true)
        return total / 40

    limits = [-math.inf, *null_odds.values()]
    found, threshold = second_scores(answers, predicted, null_odds)

    def f1(one, said):
        return slow_f1(one, said, True)

    def exact(one, said):
        return float(slow_normalise(one) == slow_normalise(said))

    assert found["best_f1"] == pytest.approx(max(at(limit, f1) for limit in limits))
    assert found["best_exact"] == pytest.approx(max(at(limit, exact) for limit in limits))
    assert at(threshold, f1) == pytest.approx(found["best_f1"])
