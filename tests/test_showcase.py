"""What a trained pair says about sentences."""

import io

import pytest
from rich.console import Console

from electrakit import pretrain
from electrakit.train.showcase import GUESSES, Showcase, print_guesses, print_oddness


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
    best = logits[ids[0] == tokenizer.mask_token_id][0].softmax(-1).topk(GUESSES)
    found = showcase.guesses(text)
    assert [guess.score for guess in found] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [tokenizer.convert_tokens_to_ids(guess.token) for guess in found] == best.indices.tolist()
    odd = showcase.oddness("bad gold and more")
    assert [each.token for each in odd] == tokenizer.tokenize("bad gold and more")
    assert all(0 <= each.score <= 1 for each in odd)


def test_the_oddest_token_stands_out(tiny):
    showcase = Showcase(pretrain(tiny(steps=1)).checkpoint)
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=120)
    print_oddness(showcase, ["bad gold and more"], screen)
    print_guesses(showcase, ["bad [MASK] gold"], screen)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("\x1b[1;37;41m") == 1  # bold white on red
    assert "____" in shown and "%" in shown
