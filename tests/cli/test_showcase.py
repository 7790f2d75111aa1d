"""What a trained pair says about sentences."""

import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from electrakit import pretrain
from electrakit.cli.showcase import NUM_PREDICTIONS, Showcase, Swap, print_predictions, print_swaps


@pytest.mark.parametrize("preset", ["tiny", "modern_tiny"])
def test_it_answers_as_transformers_does(tiny, preset):
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    run = pretrain(tiny(preset=preset, steps=4))
    showcase = Showcase(run.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint / "generator")
    text = "bad [MASK] gold and more"
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert showcase.encode(text) == ids[0].tolist()
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(run.checkpoint / "generator").eval()(ids).logits[0]
    best = logits[ids[0] == tokenizer.mask_token_id][0].softmax(-1).topk(NUM_PREDICTIONS)
    found = showcase.predictions(text)
    assert [prediction.probability for prediction in found] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [tokenizer.convert_tokens_to_ids(prediction.token) for prediction in found] == best.indices.tolist()
    odd = showcase.replaced("bad gold and more")
    assert [each.token for each in odd] == tokenizer.tokenize("bad gold and more")
    assert all(0 <= each.probability <= 1 for each in odd)


SWAPS = [
    Swap("bad {} and more", right="gold", odd="leopard"),
    Swap("{} is good", right="it", odd="sleep"),
    Swap("some gold is {}", right="a", odd="market"),
]


def printed(print_it, *arguments):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=120, highlight=False)
    print_it(*arguments, screen)
    return screen.file.getvalue()


def test_a_score_is_about_the_word_in_the_gap(tiny):
    showcase = Showcase(pretrain(tiny(steps=1)).checkpoint)
    for swap in SWAPS:
        for word in (swap.right, swap.odd):
            score = showcase.score_gap(swap.sentence, word)
            pieces = score.tokens[score.gap]
            assert "".join(piece.token.removeprefix("##") for piece in pieces) == word
            assert score.tokens == showcase.replaced(swap.sentence.replace("{}", word))
            assert score.probability == pytest.approx(sum(piece.probability for piece in pieces) / len(pieces))


def test_odd_and_right_stand_one_below_the_other_and_are_counted_as_they_are(tiny):
    showcase = Showcase(pretrain(tiny(steps=1)).checkpoint)
    turned = [Swap(swap.sentence, right=swap.odd, odd=swap.right) for swap in SWAPS]
    same = [Swap(swap.sentence, right=swap.odd, odd=swap.odd) for swap in SWAPS]
    num_found = []
    for swaps in (SWAPS, turned, same):
        plain = Text.from_ansi(printed(print_swaps, showcase, swaps)).plain.splitlines()
        for swap, odd, right in zip(swaps, plain[::2], plain[1::2], strict=False):
            scores = [showcase.score_gap(swap.sentence, word).probability for word in (swap.odd, swap.right)]
            is_found = "higher" if scores[0] > scores[1] else "not higher"
            assert odd.split() == [
                *swap.sentence.replace("{}", swap.odd).split(),
                f"{scores[0]:.1%}",
                *is_found.split(),
            ]
            assert right.split() == [*swap.sentence.replace("{}", swap.right).split(), f"{scores[1]:.1%}"]
        assert plain[-1].strip().endswith("odd words got a higher probability than the right word there.")
        num_found.append(int(re.match(r" *(\d) of 3 ", plain[-1])[1]))
    assert num_found[0] + num_found[1] == 3 and num_found[2] == 0


def test_the_words_in_question_are_in_colour(tiny):
    showcase = Showcase(pretrain(tiny(steps=1)).checkpoint)
    shown = printed(print_swaps, showcase, [Swap("bad {} and", right="a", odd="b")])
    assert "bad \x1b[1;35mb\x1b[0m and" in shown and "bad \x1b[1;36ma\x1b[0m and" in shown  # magenta, cyan
    guessed = printed(print_predictions, showcase, ["bad [MASK] gold"])
    assert "\x1b[1;35m____\x1b[0m" in guessed and guessed.count("%") == NUM_PREDICTIONS
