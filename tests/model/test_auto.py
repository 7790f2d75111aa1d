"""The choice of `electra pretrain auto`: it fits the budget, grows with it, and says why."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit.common.errors import UserError
from electrakit.common.words import format_number
from electrakit.config.pretrain import PretrainConfig
from electrakit.model.auto import (
    DROPOUT,
    LADDER,
    LARGEST_BATCH,
    MANY_EPOCHS,
    SMALLEST_BATCH,
    TOKENS_PER_PARAMETER,
    WARMUP_SHARE,
    body_parameters,
)
from electrakit.model.counts import num_muon_parameters, useful_flops
from tests.helpers.steady_speed import choose

SPEEDS = st.floats(1e9, 1e15)
BUDGETS = st.floats(60, 30 * 86_400)
CORPORA = st.none() | st.integers(10_000, 10**12)
VOCABULARIES = st.integers(100, 130_000)
LENGTHS = st.sampled_from([32, 64, 100, 128, 512, 1024])


@settings(max_examples=40, deadline=None)
@given(BUDGETS, SPEEDS, CORPORA, VOCABULARIES, LENGTHS)
def test_the_work_fits_the_budget_and_the_body_its_rule(seconds, speed, num_tokens, vocab_size, length):
    config = choose(seconds, speed, num_tokens, vocab_size, length).config
    flops = useful_flops(config) * config.batch_size * config.steps
    one_step = useful_flops(config) * config.batch_size
    assert flops == pytest.approx(seconds * speed, rel=0.1, abs=one_step)  # a step is not divided
    sizes = [(size.num_layers, size.hidden_size) for size in LADDER]
    place = sizes.index((config.discriminator.num_layers, config.discriminator.hidden_size))
    ratio = config.num_tokens / body_parameters(LADDER[place])
    assert place == 0 or ratio >= 0.9 * TOKENS_PER_PARAMETER or config.steps < 10
    assert config.length == length and config.discriminator.vocab_size == vocab_size
    assert config.optim.warmup_steps == max(1, round(WARMUP_SHARE * config.steps)) and config.save_every <= config.steps
    num_validations = config.steps // config.valid_every  # one of them may be the last step's, which every run has
    assert (num_validations - 1) * config.valid_rows / 3 <= 0.031 * config.batch_size * config.steps
    assert SMALLEST_BATCH - length <= config.batch_size * length <= LARGEST_BATCH
    has_dropout = num_tokens is not None and config.num_tokens > MANY_EPOCHS * num_tokens
    assert config.discriminator.dropout == config.discriminator.attention_dropout == (DROPOUT if has_dropout else 0)


@settings(max_examples=40, deadline=None)
@given(BUDGETS, st.floats(1, 100), SPEEDS, CORPORA)
def test_more_time_never_gives_a_smaller_body_or_batch_and_more_tokens_for_the_same_body(
    seconds, factor, speed, num_tokens
):
    less, more = (choose(time, speed, num_tokens).config for time in (seconds, seconds * factor))
    ours, theirs = ((each.discriminator.num_layers, each.discriminator.hidden_size) for each in (less, more))
    assert ours <= theirs
    assert less.num_tokens * useful_flops(less) <= more.num_tokens * useful_flops(more) * 1.1 or more.steps < 10
    if ours == theirs:
        one_step = more.batch_size * more.length
        assert less.num_tokens <= more.num_tokens + one_step and less.batch_size <= more.batch_size


def test_time_and_speed_count_as_their_product_and_the_choice_is_always_the_same():
    assert choose(3600, 1e11, 10**7) == choose(3600, 1e11, 10**7)
    slow, fast = choose(36_000, 1e11).config, choose(3600, 1e12).config
    assert replace(slow, valid_every=fast.valid_every, save_every=fast.save_every) == fast


def test_the_ladder_grows_and_its_parameters_are_those_of_the_layers():
    sizes = [body_parameters(size) for size in LADDER]
    assert sizes == sorted(set(sizes))
    config = choose(60, 1e9).config
    assert num_muon_parameters(config) == sizes[0]  # the generator has layers of these


def test_the_reasons_name_the_numbers():
    choice = choose(8 * 3600, 60e9, num_tokens=5_000_000, vocab_size=8_000)
    config, text = choice.config, "\n".join(choice.reasons)
    words = ["8 h 0 min", "60 GFLOP/s", "1.73e+15", "extrapolation", "6 layers of 192", "8 layers of 256 would have"]
    words += [f"{config.steps:,} steps", f"{config.batch_size} rows of 128", f"{config.num_tokens / 5e6:.3g} epochs"]
    words += [f"Muon {config.optim.lr:g}", f"AdamW {config.optim.adam_lr:g}", "dropout 0.1", "more text"]
    for each in words:
        assert each in text
    assert "extrapolation" not in choose(600, 60e9).reasons[0]
    assert "smallest" in choose(60, 1e9).reasons[1] and "largest" in choose(1e6, 1e15).reasons[1]
    assert "assumed" in choose(60, 1e9).reasons[2]


def test_a_batch_that_is_given_is_taken_and_leaves_the_tokens():
    ours, theirs = choose(3600, 60e9), choose(3600, 60e9, batch_size=16)
    assert theirs.config.batch_size == 16 and "as given" in theirs.reasons[3]
    assert theirs.config.num_tokens == pytest.approx(ours.config.num_tokens, rel=0.01)
    with pytest.raises(UserError, match="batch_size must be above 0"):
        choose(3600, 60e9, batch_size=-1)


@pytest.mark.parametrize("budget", ["3m", "10m", "30m", "1h", "2h", "8h", "1d", "7d"])
@pytest.mark.parametrize("gigaflops", [60, 350])
def test_the_tables_of_the_documentation_are_what_is_chosen(budget, gigaflops):
    whole = (Path(__file__).parents[2] / "docs/recipes.md").read_text(encoding="utf-8")
    text = whole.partition(f"At {gigaflops} GFLOP/s")[2].partition("\nAt ")[0]
    config = choose(PretrainConfig(budget=budget).budget_seconds, gigaflops * 1e9, vocab_size=8_000).config
    body = f"{config.discriminator.num_layers} × {config.discriminator.hidden_size}"
    seen = f"{format_number(config.num_tokens)} | {config.batch_size} | {config.steps:,}"
    assert f"| {budget} | {body} | {seen} | {config.optim.lr:g} |" in text
