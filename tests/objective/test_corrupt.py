"""Choosing, masking, sampling and writing tokens, and the random numbers for that: rules, edges and distributions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electrakit.common.errors import UserError
from electrakit.objective import corrupt
from electrakit.objective.corrupt import SpecialTokens
from electrakit.objective.masking import Masking, is_continuation_table
from electrakit.objective.randomness import Draws, draw, fresh_keys, row_keys, threefry, to_unit_interval

torch.set_num_threads(1)
PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 50
SPECIAL = SpecialTokens(pad=PAD, mask=MASK, never_masked=(CLS, SEP))
ALMOST_ONE = 1 - 2.0**-24


def priority_of(ids: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return draw(row_keys(seed, 0, range(len(ids))), ids.size(1), 1).priority


def full_rows(num_rows: int, length: int = 128) -> torch.Tensor:
    ids = torch.randint(5, VOCAB, (num_rows, length), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


rows_of_ids = st.integers(1, 40).flatmap(
    lambda length: st.lists(
        st.lists(st.sampled_from([PAD, CLS, SEP, MASK, *range(5, 12)]), min_size=length, max_size=length),
        min_size=1,
        max_size=4,
    )
)


# Choose


def test_128_tokens_have_19_positions_to_choose():
    assert corrupt.max_chosen(128, 0.15) == 19 and corrupt.max_chosen(512, 0.25) == 130
    assert corrupt.max_chosen(1, 0.15) == 1 and corrupt.max_chosen(4, 1.0) == 4


@pytest.mark.parametrize("rate", [0.15, 0.25, 0.4])
@pytest.mark.parametrize("length", [32, 128, 512])
def test_the_number_of_positions_follows_the_official_rule(rate, length):
    num_real = torch.arange(1, length + 1)
    ids = (torch.arange(length) < num_real[:, None]).long() * 7
    # In fp32, as there: 190 * .15 rounds to 29.
    products = np.arange(1, length + 1, dtype=np.float32) * np.float32(rate)
    wanted = [max(1, min(int((rate + 0.005) * length), int(product))) for product in products.round()]
    assert corrupt.num_to_choose(ids != PAD, rate).squeeze(-1).tolist() == wanted


@settings(max_examples=200, deadline=None)
@given(rows_of_ids, st.sampled_from([0.15, 0.5, 1.0]), st.integers(0, 9))
def test_chosen_positions_are_candidates_and_none_comes_twice(rows, rate, seed):
    ids = torch.tensor(rows)
    positions, counts = corrupt.choose_positions(ids, ids != PAD, SPECIAL, rate, priority_of(ids, seed))
    assert positions.shape == counts.shape == (len(ids), corrupt.max_chosen(ids.size(1), rate))
    for row, places, is_used in zip(rows, positions.tolist(), counts.tolist(), strict=True):
        assert len(set(places)) == len(places)
        used = [place for place, yes in zip(places, is_used, strict=True) if yes]
        candidates = [place for place, token in enumerate(row) if token not in (PAD, CLS, SEP, MASK)]
        assert set(used) <= set(candidates)
        wanted = max(1, min(len(places), round(sum(token != PAD for token in row) * rate)))
        assert len(used) == min(len(candidates), wanted)


@settings(max_examples=100, deadline=None)
@given(rows_of_ids, st.sampled_from(["choose_positions", "choose_with_replacement", "choose_words"]))
def test_positions_that_do_not_count_change_nothing(rows, choose):
    ids = torch.tensor(rows)
    more = (torch.arange(VOCAB) % 2 == 1,) if choose == "choose_words" else ()
    positions, counts = getattr(corrupt, choose)(ids, ids != PAD, SPECIAL, 0.5, priority_of(ids), *more)
    tokens = torch.full_like(positions, 49)
    write = corrupt.write_averages if choose == "choose_with_replacement" else corrupt.write
    written = write(ids, positions, tokens, counts)
    is_chosen = corrupt.is_chosen(ids, positions, counts)
    assert torch.equal(written, torch.where(is_chosen, 49, ids))
    assert not (is_chosen & ~corrupt.can_be_chosen(ids, ids != PAD, SPECIAL)).any()


def test_rows_of_padding_and_special_tokens_stay_as_they_are():
    ids = torch.tensor([[PAD] * 20, [CLS, SEP] + [PAD] * 18, [CLS] + [MASK] * 18 + [SEP]])
    for choose in (corrupt.choose_positions, corrupt.choose_with_replacement):
        positions, counts = choose(ids, ids != PAD, SPECIAL, 0.15, priority_of(ids))
        assert not counts.any()
        assert torch.equal(corrupt.write(ids, positions, torch.full_like(positions, 9), counts), ids)


def test_padding_does_not_move_the_choice():
    """Highest numbers first: what a row is padded to changes which tokens are candidates, not their priority."""
    short = full_rows(5, 40)
    long = torch.cat([short, torch.zeros(5, 24, dtype=torch.long)], -1)
    numbers = priority_of(long)
    first, counts = corrupt.choose_positions(short, short != PAD, SPECIAL, 0.15, numbers[:, :40])
    second, more_counts = corrupt.choose_positions(long, long != PAD, SPECIAL, 0.15, numbers)
    assert first[counts].tolist() == second[more_counts].tolist()


def test_equal_priorities_fall_the_same_way_everywhere():
    ids = full_rows(1, 64)
    positions, _ = corrupt.choose_positions(ids, ids != PAD, SPECIAL, 0.15, torch.zeros(1, 64))
    assert positions.tolist() == [list(range(1, 10))]


def test_duplicates_are_written_as_the_floor_of_their_average():
    ids = torch.tensor([[10, 11, 12, 13]])
    positions, tokens = torch.tensor([[1, 1, 2, 3]]), torch.tensor([[20, 25, 30, 40]])
    counts = torch.tensor([[True, True, True, False]])
    assert corrupt.write_averages(ids, positions, tokens, counts).tolist() == [[10, 22, 30, 13]]


# Whole words


def words_of(ids: list[int], is_continuation: torch.Tensor) -> list[list[int]]:
    words: list[list[int]] = []
    for place, token in enumerate(ids):
        if token in (PAD, CLS, SEP, MASK):
            continue
        goes_on = is_continuation[token] and words and words[-1][-1] == place - 1
        words[-1].append(place) if goes_on else words.append([place])
    return words


@settings(max_examples=200, deadline=None)
@given(rows_of_ids, st.sampled_from([0.15, 0.5]), st.integers(0, 5))
def test_words_are_chosen_whole_and_within_the_count(rows, rate, seed):
    ids, is_continuation = torch.tensor(rows), torch.arange(VOCAB) % 3 == 0
    priority = priority_of(ids, seed)
    positions, counts = corrupt.choose_words(ids, ids != PAD, SPECIAL, rate, priority, is_continuation)
    wanted = corrupt.num_to_choose(ids != PAD, rate).squeeze(-1).tolist()
    for number, row in enumerate(rows):
        chosen = set(positions[number][counts[number]].tolist())
        assert len(chosen) == counts[number].sum() <= wanted[number]
        words = words_of(row, is_continuation)
        for word in words:
            assert not chosen & set(word) or chosen >= set(word)
        assert chosen <= {place for word in words for place in word}
        if any(len(word) <= wanted[number] for word in words):
            assert chosen


def test_without_continuations_words_are_tokens():
    ids = full_rows(50)
    by_word = corrupt.choose_words(
        ids, ids != PAD, SPECIAL, 0.15, priority_of(ids), torch.zeros(VOCAB, dtype=torch.bool)
    )
    by_token = corrupt.choose_positions(ids, ids != PAD, SPECIAL, 0.15, priority_of(ids))
    assert all(torch.equal(a, b) for a, b in zip(by_word, by_token, strict=True))


def test_whole_words_fill_the_count_and_miss_no_place():
    ids, is_continuation = full_rows(4000), torch.arange(VOCAB) % 3 == 0
    positions, counts = corrupt.choose_words(ids, ids != PAD, SPECIAL, 0.15, priority_of(ids), is_continuation)
    assert counts.float().sum(-1).mean() > 18.9  # of 19
    hits = corrupt.is_chosen(ids, positions, counts).float().mean(0)[1:-1]
    assert hits.min() > 0.12 and hits.max() < 0.18


def test_the_table_of_continuations_is_read_from_a_vocabulary():
    table = is_continuation_table({"[PAD]": 0, "un": 1, "##able": 2, "##": 3, "#": 4}, vocab_size=6)
    assert table.tolist() == [False, False, True, True, False, False]


# Show


def shares(seen: torch.Tensor, tokens: torch.Tensor) -> dict[str, float]:
    is_mask, is_own = seen == MASK, seen == tokens
    return {
        "mask": is_mask.float().mean().item(),
        "own": is_own.float().mean().item(),
        "random": (~is_mask & ~is_own).float().mean().item(),
    }


def test_the_generator_reads_masks_and_never_a_random_token():
    tokens, numbers = torch.randint(5, VOCAB, (1000, 19)), torch.rand(1000, 19)
    found = shares(corrupt.mask_tokens(tokens, SPECIAL, numbers, 0.85), tokens)
    assert found["mask"] == pytest.approx(0.85, abs=0.01) and found["random"] == 0


def test_bert_has_80_percent_masks_and_10_random():
    tokens, numbers = torch.full((2000, 19), 7), torch.rand(2000, 19)
    random_tokens = corrupt.uniform_tokens(torch.rand(2000, 19), VOCAB, (*SPECIAL.never_chosen, 7))
    found = shares(corrupt.mask_tokens(tokens, SPECIAL, numbers, 0.8, 0.1, random_tokens), tokens)
    assert found == pytest.approx({"mask": 0.8, "own": 0.1, "random": 0.1}, abs=0.01)


def test_uniform_tokens_are_uniform_and_never_what_is_excluded():
    numbers = draw(row_keys(0, 0, range(400)), 1, 200).token
    own = torch.randint(5, 20, (400, 200), generator=torch.Generator().manual_seed(0))
    tokens = corrupt.uniform_tokens(numbers, 20, (PAD, SEP, MASK))
    counts = torch.bincount(tokens.flatten(), minlength=20)
    assert counts[[PAD, SEP, MASK]].sum() == 0
    assert stats.chisquare(np.delete(counts.numpy(), [PAD, SEP, MASK])).pvalue > 0.01
    others = corrupt.uniform_tokens(numbers, 20, (PAD, SEP, MASK), own)
    assert not (others == own).any() and not np.isin(others, [PAD, SEP, MASK]).any()
    at_nine = torch.bincount(others[own == 9], minlength=20).numpy()
    assert stats.chisquare(np.delete(at_nine, [PAD, SEP, MASK, 9])).pvalue > 0.01
    ends = corrupt.uniform_tokens(torch.tensor([0.0, ALMOST_ONE]), 20, (0, 19))
    assert ends.tolist() == [1, 18]


# Sample


def chi_square(samples: torch.Tensor, probabilities: torch.Tensor) -> float:
    counts = torch.bincount(samples.flatten(), minlength=len(probabilities)).double()
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    return stats.chisquare(counts[possible], probabilities[possible].double() * samples.numel()).pvalue


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("vocab", [50, 700])
def test_samples_follow_the_softmax(vocab, temperature):
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0))
    numbers = draw(row_keys(0, 0, range(200)), 1, 500).sample
    samples = corrupt.sample(logits.expand(200, 500, vocab), numbers, temperature=temperature)
    assert chi_square(samples, (logits.double() / temperature).softmax(-1)) > 0.01


@pytest.mark.parametrize("temperature", [1.0, 3.0, 1e6])
def test_a_temperature_flattens_to_the_distribution_that_is_given(temperature):
    logits, frequencies = torch.randn(2, 300, generator=torch.Generator().manual_seed(0)).unbind()
    numbers = draw(row_keys(0, 0, range(200)), 1, 500).sample
    settings = {"temperature": torch.tensor(temperature), "towards": frequencies}
    samples = corrupt.sample(logits.expand(200, 500, 300), numbers, **settings)
    wanted = (logits.double() - frequencies) / temperature + frequencies  # at 1 the logits, far above 1 the frequencies
    assert chi_square(samples, wanted.softmax(-1)) > 0.01


def test_samples_leave_out_what_is_forbidden():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    numbers = draw(row_keys(1, 0, range(200)), 1, 500).sample
    samples = corrupt.sample(
        logits.expand(200, 500, 50), numbers, without=(0, 3), not_these=torch.full((200, 500), int(logits.argmax()))
    )
    logits[[0, 3, int(logits.argmax())]] = -torch.inf
    assert chi_square(samples, logits.double().softmax(-1)) > 0.01


@pytest.mark.parametrize("vocab", [1, 255, 256, 257, 3000])
def test_samples_equal_a_plain_search_in_double_precision(vocab):
    generator = torch.Generator().manual_seed(vocab)
    logits, numbers = torch.randn(7, 11, vocab, generator=generator) * 5, torch.rand(7, 11, generator=generator)
    before = logits.clone()
    sums = logits.double().softmax(-1).cumsum(-1)
    plain = (sums <= numbers.double().unsqueeze(-1)).sum(-1)
    assert torch.equal(corrupt.sample(logits, numbers), plain)
    assert torch.equal(logits, before)


def test_blocks_do_not_change_the_samples(monkeypatch):
    logits, numbers, own = torch.randn(7, 11, 300), torch.rand(7, 11), torch.randint(300, (7, 11))
    at_once = corrupt.sample(logits, numbers, not_these=own)
    monkeypatch.setattr(corrupt, "MAX_LOGITS", 1000)
    assert torch.equal(corrupt.sample(logits, numbers, not_these=own), at_once)
    monkeypatch.setattr(corrupt, "MAX_LOGITS", 1)
    assert torch.equal(corrupt.sample(logits, numbers, not_these=own), at_once)


@pytest.mark.parametrize("number", [0.0, 2.0**-24, 0.5, ALMOST_ONE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_samples_are_possible_at_both_ends(number, dtype):
    """Flat, peaked, huge and infinite logits: never an id of probability 0, never one beyond the vocabulary."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 1, 1000, generator=generator) * torch.logspace(-3, 4, 200)[:, None, None]
    logits[0], logits[1], logits[2, 0, 2:] = 0, -1e4, -torch.inf
    logits = logits.to(dtype)
    samples = corrupt.sample(
        logits, torch.full((200, 1), number), without=(0, 999), not_these=torch.full((200, 1), 500)
    )
    assert samples.min() > 0 and samples.max() < 999 and not (samples == 500).any()
    logits = logits.float().index_fill(-1, torch.tensor([0, 999, 500]), -torch.inf)
    probabilities = (logits - logits.amax(-1, keepdim=True)).exp()
    assert (probabilities.gather(-1, samples.unsqueeze(-1)) > 0).all()


def test_the_last_token_is_reached_and_forbidden_neighbours_are_not():
    logits = torch.zeros(1, 2, 512)
    logits[..., 256:] = -torch.inf
    assert corrupt.sample(logits, torch.tensor([[0.0, ALMOST_ONE]])).tolist() == [[0, 255]]
    assert corrupt.sample(logits, torch.tensor([[0.0, ALMOST_ONE]]), without=(0, 255)).tolist() == [[1, 254]]


def test_no_gradient_goes_through_samples():
    logits = torch.randn(2, 3, 9, requires_grad=True)
    assert not corrupt.sample(logits, torch.rand(2, 3)).requires_grad


# Randomness


def test_threefry_gives_the_published_numbers():
    """The known answers of Random123 1.09 (kat_vectors, threefry2x32 20)."""
    ones, pi = (0xFFFFFFFF, 0xFFFFFFFF), (0x243F6A88, 0x85A308D3)
    assert threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    assert threefry(ones, ones) == (0x1CB996FC, 0xBB002BE7)
    assert threefry((0x13198A2E, 0x03707344), pi) == (0xC4923A9C, 0x483DF7A0)
    as_tensors = threefry((torch.tensor(0x13198A2E), torch.tensor(0x03707344)), tuple(map(torch.tensor, pi)))
    assert tuple(map(int, as_tensors)) == (0xC4923A9C, 0x483DF7A0)


def test_uniform_numbers_are_in_the_half_open_interval():
    ends = to_unit_interval(torch.tensor([0, 0xFFFFFFFF]))
    assert ends.tolist() == [0.0, ALMOST_ONE] and ends.dtype == torch.float32


@pytest.mark.parametrize("kind", Draws._fields)
def test_every_kind_of_draw_is_uniform(kind):
    numbers = getattr(draw(row_keys(3, 5, range(500)), 128, 100), kind).double().numpy()
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 0.01
    counts = np.histogram(numbers.ravel(), 256, (0, 1))[0]
    assert stats.chisquare(counts).pvalue > 0.01
    low_bits = (numbers.ravel() * 2**24).astype(np.int64) % 256
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > 0.01


def test_rows_steps_seeds_and_kinds_are_independent():
    """Correlation of neighbours over 64,000 numbers: its standard error is .004."""
    base = draw(row_keys(0, 0, range(500)), 128, 128)
    others = {
        "next row": draw(row_keys(0, 0, range(1, 501)), 128, 128).priority,
        "next step": draw(row_keys(0, 1, range(500)), 128, 128).priority,
        "next seed": draw(row_keys(1, 0, range(500)), 128, 128).priority,
        "step and row swapped": draw(torch.cat([row_keys(0, row, [0]) for row in range(500)]), 128, 128).priority,
        "next place": base.priority.roll(1, -1),
        **{kind: getattr(base, kind) for kind in ("mask", "token", "sample")},
    }
    others["step and row swapped"][0] = torch.rand(128)  # row 0 of step 0 is itself
    for name, numbers in others.items():
        correlation = np.corrcoef(base.priority.flatten(), numbers.flatten())[0, 1]
        assert abs(correlation) < 0.016, name
        joint = np.histogram2d(base.priority.flatten().numpy(), numbers.flatten().numpy(), 16, [[0, 1], [0, 1]])[0]
        assert stats.chisquare(joint.ravel()).pvalue > 1e-3, name


def test_keys_of_neighbouring_rows_steps_and_seeds_are_all_different():
    keys = torch.cat([row_keys(seed, step, range(100)) for seed in (0, 1, -1, 2**32) for step in (0, 1, 2**32, 10**6)])
    keys = torch.cat([keys, row_keys(0, 0, [2**32, 2**40, 2**62])])
    assert len(keys.unique(dim=0)) == len(keys)


def test_a_row_draws_the_same_on_any_number_of_workers_and_in_any_order():
    whole = draw(row_keys(0, 9, range(12)), 64, 9)
    parts = [draw(row_keys(0, 9, rows), 64, 9) for rows in (range(5), [11, 5], torch.arange(6, 11))]
    order = [*range(5), 11, 5, *range(6, 11)]
    for kind in Draws._fields:
        together = torch.cat([getattr(part, kind) for part in parts])
        assert torch.equal(together, getattr(whole, kind)[order])


def test_a_number_does_not_depend_on_the_length_of_the_row():
    short, long = draw(row_keys(0, 0, [4]), 64, 9), draw(row_keys(0, 0, [4]), 128, 19)
    assert torch.equal(short.priority, long.priority[:, :64]) and torch.equal(short.sample, long.sample[:, :9])


def test_fresh_keys_come_from_torchs_generator():
    torch.manual_seed(5)
    first = fresh_keys(3, torch.device("cpu"))
    assert not torch.equal(first, fresh_keys(3, torch.device("cpu")))
    torch.manual_seed(5)
    assert torch.equal(first, fresh_keys(3, torch.device("cpu")))


@pytest.mark.long
def test_compiled_corruption_equals_the_eager_one():
    """By inductor, the real compiler: integer arithmetic is where it could differ."""

    def corruption(ids, keys, logits):
        draws = draw(keys, ids.size(1), corrupt.max_chosen(ids.size(1), 0.15))
        positions, counts = corrupt.choose_positions(ids, ids != PAD, SPECIAL, 0.15, draws.priority)
        samples = corrupt.sample(logits, draws.sample, without=(PAD,), not_these=ids.gather(-1, positions))
        return *draws, positions, corrupt.write(ids, positions, samples, counts)

    arguments = (full_rows(4, 64), row_keys(0, 0, range(4)), torch.randn(4, 9, VOCAB))
    compiled = torch.compile(corruption, fullgraph=True)(*arguments)
    for one, other in zip(compiled, corruption(*arguments), strict=True):
        assert torch.equal(one, other)


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mask_prob": 1.5}, "mask_prob must be a rate from 0 to 1, got 1.5"),
        ({"mask_prob": 0}, "mask_prob is 0"),
        ({"random_share": 0.1}, "num_tokens"),
        ({"official": True, "is_continuation": torch.zeros(9, dtype=torch.bool)}, "whole words"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(UserError, match=message):
        Masking(SPECIAL, **{"mask_prob": 0.15, "mask_share": 0.85, **wrong})
