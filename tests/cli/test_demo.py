"""The demo, as `make demo` runs it."""

import io
import re
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from rich.text import Text
from transformers import AutoModelForMaskedLM, AutoTokenizer, ElectraForPreTraining

from electrakit import Batches, load_tokenizer, pretrain
from electrakit.cli.demo import (
    MISPLACED,
    NUM_PREDICTIONS,
    Gap,
    Swap,
    print_predictions,
    print_swaps,
    score_gap,
    write_corpus,
)
from electrakit.data.read import docstrings
from electrakit.playground.open import open_pair
from electrakit.runs.files import read_metrics
from tests.helpers.processes import HANG

# As `python -m electrakit demo`, but the installed packages, thousands of files, are left out of the text, and a step takes 0.25 s of
# the budget, however fast the machine is.
DEMO = """
import itertools, sys, sysconfig, types
stdlib = sysconfig.get_path("stdlib")
sysconfig.get_path = lambda name: stdlib
from electrakit.cli.main import main
from electrakit.train import state
ticks = itertools.count()
state.time = types.SimpleNamespace(monotonic=lambda: next(ticks) / 4)
main(["demo", "--budget", sys.argv[1]])
"""


@pytest.mark.long
def test_the_demo_walks_from_text_to_a_trained_pair_and_a_second_time_does_nothing(tmp_path):
    for number in range(2):
        command = [sys.executable, "-c", DEMO, "15s"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr
        for shown in ("generator: loss", "Return the ____ of the file.", "banana", "electra pretrain auto"):
            assert shown in done.stdout
        assert re.search(
            r"of the banana as a string \. +[0-9.]+%  (not )?higher\n.* of the file as a string", done.stdout
        )
        for number_of_swaps in (3, 5):
            assert re.search(rf"[0-5] of {number_of_swaps} odd words got a higher probability", done.stdout)
        assert ("is there already" in done.stdout and "finished already" in done.stderr) == bool(number)
    assert "electra play demo/hf" in done.stdout and "<svg" in (tmp_path / "demo" / "report.html").read_text()
    assert {"config.json", "model.safetensors", "README.md", "generator"} <= {
        path.name for path in (tmp_path / "demo" / "hf").iterdir()
    }
    batches = Batches(tmp_path / "demo" / "shards", 8)
    assert batches.num_rows > 1000
    assert 5000 < len(load_tokenizer(tmp_path / "demo" / "tokenizer").vocabulary) <= 8000  # less text, fewer pieces
    valid = [line for line in read_metrics(tmp_path / "demo" / "run") if line["split"] == "valid"]
    assert valid[-1]["mlm_loss"] < valid[0]["mlm_loss"]


def test_the_corpus_has_as_much_text_as_wanted_from_mixed_packages_and_is_the_same_each_time(tmp_path, monkeypatch):
    files = []
    for package in "abcd":
        for number in range(40):
            files.append(tmp_path / package / f"{number}.py")
            files[-1].parent.mkdir(exist_ok=True)
            prose = f"This is the text of module number {number} of the package that we call {package}."
            code = "value = 1\n" * (200 if number % 2 else 0)
            files[-1].write_text(
                f'"""{prose}\n\nThis sentence stands in every module and it is kept only once."""\n{code}'
            )
    monkeypatch.setattr(docstrings, "python_files", lambda: files)
    for name, workers in (("one.txt", 1), ("two.txt", 2)):
        write_corpus(tmp_path / name, 2000, workers)
    text = (tmp_path / "one.txt").read_text()
    assert text == (tmp_path / "two.txt").read_text()
    assert 2000 <= len(text.replace("\n", "")) < 2200 and text.count("This sentence stands") == 1
    assert all(f"we call {package}." in text for package in "abcd")
    assert "module number 1 " not in text  # hardly any of that file is prose


def test_misplaced_words_are_as_common_as_the_right_ones():
    """Else the demo would show how well the model knows rare words, and nothing about context."""
    assert sorted(swap.odd for swap in MISPLACED) == sorted(swap.right for swap in MISPLACED)
    assert all(swap.odd != swap.right for swap in MISPLACED)


# What a trained pair says about sentences

SWAPS = [
    Swap("bad {} and more", right="gold", odd="leopard"),
    Swap("{} is good", right="it", odd="sleep"),
    Swap("some gold is {}", right="a", odd="market"),
]


def printed(print_it, *arguments):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=120, highlight=False)
    print_it(*arguments, screen)
    return screen.file.getvalue()


@pytest.mark.parametrize("preset", ["tiny", "modern_tiny"])
def test_predictions_are_those_of_transformers(tiny, preset):
    checkpoint = pretrain(tiny(preset=preset, steps=4)).checkpoint
    text = "bad [MASK] gold and more"
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "generator")
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(checkpoint / "generator").eval()(ids).logits[0]
    best = logits[ids[0] == tokenizer.mask_token_id][0].softmax(-1).topk(NUM_PREDICTIONS)
    tokens = tokenizer.convert_ids_to_tokens(best.indices.tolist())
    wanted = [f"{token} {score:.0%}" for token, score in zip(tokens, best.values.tolist(), strict=True)]
    gaps = [Gap(text, right=(tokens[-1],)), Gap(text, right=("leopard" * 2,))]
    shown, again, last = Text.from_ansi(printed(print_predictions, open_pair(checkpoint), gaps)).plain.splitlines()
    assert shown == again and shown.split() == ["bad", "____", "gold", "and", "more", *" ".join(wanted).split()]
    assert last.startswith("  1 of 2 have a word")


def test_a_score_is_about_the_word_in_the_gap(tiny):
    checkpoint = pretrain(tiny(steps=4)).checkpoint
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "discriminator")
    model = ElectraForPreTraining.from_pretrained(checkpoint / "discriminator").eval()
    for swap in SWAPS:
        for word in (swap.right, swap.odd):
            sentence = swap.sentence.replace("{}", word)
            start = sentence.index(word)
            inputs = tokenizer(sentence, return_tensors="pt", return_offsets_mapping=True)
            offsets = inputs.pop("offset_mapping")[0].tolist()
            is_gap = [start <= first < last <= start + len(word) for first, last in offsets]
            tokens = [token for token, inside in zip(tokenizer.tokenize(sentence), is_gap[1:-1], strict=True) if inside]
            assert "".join(token.removeprefix("##") for token in tokens) == word
            with torch.no_grad():
                scores = model(**inputs).logits[0].sigmoid()
            wanted = scores[torch.tensor(is_gap)].mean().item()
            assert score_gap(open_pair(checkpoint), swap.sentence, word) == pytest.approx(wanted, rel=1e-4)


def test_odd_and_right_stand_one_below_the_other_and_are_counted_as_they_are(tiny):
    pair = open_pair(pretrain(tiny(steps=1)).checkpoint)
    turned = [Swap(swap.sentence, right=swap.odd, odd=swap.right) for swap in SWAPS]
    same = [Swap(swap.sentence, right=swap.odd, odd=swap.odd) for swap in SWAPS]
    num_found = []
    for swaps in (SWAPS, turned, same):
        plain = Text.from_ansi(printed(print_swaps, pair, swaps)).plain.splitlines()
        for swap, odd, right in zip(swaps, plain[::2], plain[1::2], strict=False):
            scores = [score_gap(pair, swap.sentence, word) for word in (swap.odd, swap.right)]
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
    pair = open_pair(pretrain(tiny(steps=1)).checkpoint)
    shown = printed(print_swaps, pair, [Swap("bad {} and", right="a", odd="b")])
    assert "bad \x1b[1;35mb\x1b[0m and" in shown and "bad \x1b[1;36ma\x1b[0m and" in shown  # magenta, cyan
    predicted = printed(print_predictions, pair, [Gap("bad [MASK] gold", right=("a",))])
    assert "\x1b[1;35m____\x1b[0m" in predicted and predicted.count("%") == NUM_PREDICTIONS
