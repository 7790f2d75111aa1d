"""The packed layout computes what the padded layout computes."""

from dataclasses import replace

import pytest
import torch

from electrakit import presets
from electrakit.model import kernels, layouts
from electrakit.model.layouts import PackedTokens, PaddedTokens, segment_ids
from electrakit.model.networks import Discriminator, Generator, use_kernels
from electrakit.model.ngrams import WEIGHTS, Neighbours, NGrams
from electrakit.objective.build import build_objective

needs_kernels = pytest.mark.skipif(
    kernels.problem() is not None, reason="no compiler here: the kernels cannot be built"
)
SPECIAL_IDS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def rows_of(lengths, num_tokens=32):
    torch.manual_seed(0)
    ids = torch.randint(5, 8_000, (len(lengths), num_tokens))
    ids[:, 0] = SPECIAL_IDS["cls"]
    for row, length in zip(ids, lengths, strict=True):
        row[length // 2] = row[length - 1] = SPECIAL_IDS["sep"]
        row[length:] = SPECIAL_IDS["pad"]
    return ids


ROWS = {
    "full": rows_of([32, 32, 32]),
    "padded": rows_of([32, 3, 17]),
    "holes": torch.tensor([[1, 0, 7, 8, 0, 2], [1, 9, 0, 0, 2, 0]]),
    "a row of padding": torch.tensor([[1, 7, 8, 2], [0, 0, 0, 0]]),
}


def network_of(kind, body, **changes):
    torch.manual_seed(0)
    config = presets.tiny(body).discriminator
    return kind(replace(config, sep_token_id=2, **NO_DROPOUT, **changes)).train()


@needs_kernels
@pytest.mark.parametrize("body", ["classic", "modern", "deberta"])
@pytest.mark.parametrize("rows", ROWS)
def test_hidden_states_and_gradients(body, rows):
    ids = ROWS[rows]
    network = network_of(Discriminator, body)
    is_real = ids != 0
    found = []
    for with_kernels in (False, True):
        if with_kernels:
            assert use_kernels(network)
        network.zero_grad()
        hidden, logits = network.hidden(ids), network(ids)
        torch.manual_seed(1)
        ((hidden * torch.randn(hidden.size(-1)))[is_real].sum() + logits[is_real].sum()).backward()
        gradients = [parameter.grad.clone() for parameter in network.parameters()]
        found.append((hidden[is_real], logits[is_real], *gradients))
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-5 * (1 + other.norm())


@needs_kernels
@pytest.mark.parametrize("body", ["classic", "modern", "deberta"])
def test_word_logits_at_positions_and_everywhere(body):
    ids, positions = ROWS["padded"], torch.tensor([[1, 30], [1, 2], [5, 16]])
    network = network_of(Generator, body)
    plain = network(ids, positions), network(ids)[ids != 0]
    use_kernels(network)
    fast = network(ids, positions), network(ids)[ids != 0]
    torch.testing.assert_close(plain, fast, rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("body", ["classic", "modern", "deberta"])
@pytest.mark.parametrize("kind", ["electra", "mlm", "replace_mlm", "all_tokens_mlm"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_objective_has_the_same_loss(body, kind, precision):
    changes = {"generator": None} if kind == "mlm" else {"generator": NO_DROPOUT}
    config = presets.tiny(body, objective={"kind": kind}, discriminator=NO_DROPOUT, **changes)
    torch.manual_seed(0)
    objective = build_objective(config, SPECIAL_IDS).train()
    keys = torch.randint(2**31, (3, 2))
    found = []
    for with_kernels in (False, True):
        if with_kernels:
            use_kernels(objective)
        objective.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            output = objective(ROWS["padded"], keys)
        output.loss.backward()
        found.append((output, [parameter.grad.clone() for parameter in objective.parameters()]))
    (plain, plain_gradients), (fast, fast_gradients) = found
    tolerance = 1e-4 if precision == "fp32" else 1e-2
    assert fast.mlm_loss.item() == pytest.approx(plain.mlm_loss.item(), rel=tolerance)
    if precision == "fp32":  # in bf16 another token may be sampled
        assert torch.equal(fast.corrupted, plain.corrupted)
    if torch.equal(fast.corrupted, plain.corrupted):
        assert fast.loss.item() == pytest.approx(plain.loss.item(), rel=tolerance)
        for one, other in zip(fast_gradients, plain_gradients, strict=True):
            assert (one - other).norm() <= 20 * tolerance * other.norm() + 1e-6


@needs_kernels
@pytest.mark.parametrize("body", ["classic", "modern", "deberta"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_batch_of_nothing_but_padding(body, precision):
    config = presets.tiny(body)
    objective = build_objective(config, SPECIAL_IDS)
    use_kernels(objective)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        output = objective(torch.zeros(3, 32, dtype=torch.int64))
    output.loss.backward()
    assert output.loss.item() == 0


@needs_kernels
@pytest.mark.parametrize("change", ["double", "bfloat16", "fp16 autocast", "tracing"])
def test_what_the_kernels_cannot_do_is_done_by_torch(change):
    network = network_of(Discriminator, "classic").eval()
    use_kernels(network)
    ids = ROWS["padded"]
    if change in ("double", "bfloat16"):
        getattr(network, change)()
    assert network.can_use_kernels(ids) is (change in ("fp16 autocast", "tracing"))
    if change == "tracing":
        traced = torch.jit.trace(network, ids, check_trace=False)
        torch.testing.assert_close(traced(ids)[ids != 0], network(ids)[ids != 0], rtol=1e-4, atol=1e-5)
    else:
        with torch.autocast("cpu", torch.float16, enabled=change == "fp16 autocast"):
            assert network(ids).isfinite().all()


@needs_kernels
def test_hooks_of_a_generator_are_called():
    config = presets.tiny()
    objective = build_objective(config, SPECIAL_IDS)
    use_kernels(objective)
    calls = []
    objective.generator.register_forward_hook(lambda *_: calls.append(1))
    objective(ROWS["padded"])
    assert calls == [1]


@needs_kernels
def test_dropout_is_on_in_training_only_and_follows_the_seed():
    network = Discriminator(replace(presets.tiny().discriminator, sep_token_id=2))
    use_kernels(network)

    def run(seed):
        torch.manual_seed(seed)
        return network(ROWS["full"])

    assert torch.equal(run(0), run(0)) and not torch.equal(run(0), run(1))
    network.eval()
    assert torch.equal(run(0), run(1))


@needs_kernels
def test_recomputed_activations_are_dropped_the_same():
    network = Discriminator(replace(presets.tiny().discriminator, sep_token_id=2)).train()
    use_kernels(network)
    found = []
    for recompute in (False, True):
        network.body.recompute = recompute
        network.zero_grad()
        torch.manual_seed(0)
        network(ROWS["padded"]).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in network.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@needs_kernels
def test_cheap_dropout_of_the_embeddings():
    tokens = PackedTokens.of(ROWS["full"], 0, 2)
    torch.manual_seed(0)
    dropped = tokens.dropout(torch.ones(4_000, 64), 0.1)
    share = (dropped == 0).double().mean().item()
    assert abs(share - 0.1) < 5 * (0.09 / dropped.numel()) ** 0.5
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.9, rel=1e-4)]
    assert torch.equal(tokens.dropout(dropped, 0.0), dropped)


@pytest.mark.parametrize("rows", ROWS)
def test_packed_tokens_are_the_padded_ones_without_padding(rows):
    ids = ROWS[rows]
    packed, padded = PackedTokens.of(ids, 0, 2), PaddedTokens.of(ids, 0, 2)
    assert torch.equal(packed.ids, ids[ids != 0])
    assert torch.equal(packed.segments, padded.segments[ids != 0])
    assert torch.equal(packed.to_padded(packed.ids), ids)
    assert (packed.starts.diff() == (ids != 0).sum(-1)).all()


@needs_kernels
@pytest.mark.parametrize("rows", ROWS)
def test_in_bf16_tokens_are_padded_to_a_multiple_and_nothing_reads_the_padding(rows):
    ids = ROWS[rows]
    with torch.autocast("cpu", torch.bfloat16):
        packed = PackedTokens.of(ids, 0, 2)
    plain = PackedTokens.of(ids, 0, 2)
    assert packed.num_real == len(plain.ids) and len(packed.ids) == packed.starts[-1] == -(-len(plain.ids) // 256) * 256
    hidden = torch.randn(len(packed.ids), 8)
    hidden[packed.num_real :] = torch.nan
    assert torch.equal(packed.to_padded(hidden), plain.to_padded(hidden[: plain.num_real]))
    positions = torch.arange(ids.size(1)).expand_as(ids)
    assert torch.equal(packed.gather(hidden, positions), plain.gather(hidden[: plain.num_real], positions))
    assert len(packed.gather_counted(hidden, positions, ids != 0)) % 64 == 0


CORRECTED = {"objective": {"kind": "electra", "correct_weight": 1.0, "flatten_to": "frequency", "temperature": 2.0}}
PADDED_IN_BF16 = [
    *(("modern", {"objective": {"kind": kind}}) for kind in ("electra", "replace_mlm", "all_tokens_mlm")),
    *((body, CORRECTED) for body in ("classic", "modern", "deberta")),
    ("modern", {"ngrams": True}),
    ("modern", {"objective": {"kind": "mlm"}, "generator": None}),
]


@needs_kernels
@pytest.mark.parametrize("rows", ["padded", "a row of padding", "a multiple"])
@pytest.mark.parametrize(("body", "changes"), PADDED_IN_BF16, ids=str)
def test_padding_in_bf16_changes_no_loss_and_gradients_only_by_rounding(body, changes, rows, monkeypatch):
    ids = rows_of([32] * 8) if rows == "a multiple" else ROWS[rows]
    config = presets.tiny(body, vocab_size=8_000, **changes)
    keys = torch.randint(2**31, (len(ids), 2))
    found = []
    for multiples in ((256, 64), (1, 1)):
        monkeypatch.setattr(layouts, "TOKENS_MULTIPLE", multiples[0])
        monkeypatch.setattr(layouts, "CHOSEN_MULTIPLE", multiples[1])
        torch.manual_seed(0)
        ngrams = often_followed_by_the_next_number(8_000) if config.ngrams else None
        objective = build_objective(config, SPECIAL_IDS, None, ngrams, torch.zeros(8_000)).train()
        assert use_kernels(objective)
        with torch.autocast("cpu", torch.bfloat16):
            output = objective(ids, keys)
        output.loss.backward()
        measured = [output.loss, output.mlm_loss, output.disc_loss, output.gen_acc, output.disc_acc, output.corrupted]
        found.append((measured, [parameter.grad for parameter in objective.parameters()]))
    for one, other in zip(*(measured for measured, _ in found), strict=True):
        assert one is other is None or (one.isfinite().all() and torch.equal(one, other))
    for one, other in zip(*(gradients for _, gradients in found), strict=True):  # sums over more tokens
        assert one is other is None or (one - other).norm() <= 1e-2 * other.norm()


def often_followed_by_the_next_number(vocab_size):
    rows = torch.arange(vocab_size + 1)
    after = Neighbours(rows, (rows[1:] % vocab_size).int(), torch.full((vocab_size,), 900).int())
    nothing = Neighbours(torch.zeros_like(rows), torch.zeros(0).int(), torch.zeros(0).int())
    places = {sign * distance: nothing for distance in WEIGHTS for sign in (-1, 1)} | {-1: after}
    return NGrams(torch.full((vocab_size,), 1000), places, SPECIAL_IDS["pad"])


def test_segments():
    ids = torch.tensor([[1, 7, 2, 8, 2, 0]])
    assert segment_ids(ids, ids != 0, 2).tolist() == [[0, 0, 0, 1, 1, 0]]
    assert segment_ids(ids, ids != 0, None).tolist() == [[0, 0, 0, 0, 0, 0]]
