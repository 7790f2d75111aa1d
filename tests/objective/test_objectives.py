"""What each objective computes, compiled, in bf16 and on any number of processes, and that it learns."""

import copy
import inspect
import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.model.huggingface.adapt import as_generator
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.two_tower import TwoTower
from electrakit.objective.electra import Electra
from electrakit.objective.electric import Electric
from electrakit.objective.mlm import AllTokensMLM, MaskedLM, ReplaceMLM, mix
from electrakit.objective.output import EvaluationSums, Output, area_under_curve, sortable
from electrakit.objective.randomness import row_keys
from tests.helpers.tiny_rows import CLS, MASK, PAD, SEP, SIZE, TOKENS, VOCAB, rows

torch.set_num_threads(1)
OBJECTIVES = {
    "electra": lambda **more: Electra(Generator(SIZE), Discriminator(SIZE), **TOKENS, **more),
    "electra_15": lambda **more: Electra(Generator(SIZE), Discriminator(SIZE), loss_on="masked", **TOKENS, **more),
    "official": lambda **more: Electra(Generator(SIZE), Discriminator(SIZE), official=True, **TOKENS, **more),
    "adversarial": lambda **more: Electra(Generator(SIZE), Discriminator(SIZE), adversarial=True, **TOKENS, **more),
    "uniform": lambda **more: Electra("uniform", Discriminator(SIZE), **TOKENS, **more),
    "whole words": lambda **more: Electra(
        Generator(SIZE), Discriminator(SIZE), is_continuation=torch.arange(VOCAB) % 3 == 0, **TOKENS, **more
    ),
    "masked_lm": lambda **more: MaskedLM(Generator(SIZE), **TOKENS, **more),
    "replace_mlm": lambda **more: ReplaceMLM(Generator(SIZE), Generator(SIZE), **TOKENS, **more),
    "all_tokens_mlm": lambda **more: AllTokensMLM(Generator(SIZE), Generator(SIZE), **TOKENS, **more),
    "electric": lambda **more: Electric(TwoTower(SIZE), Discriminator(SIZE), **TOKENS, **more),
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def build(name: str, **more) -> nn.Module:
    torch.manual_seed(0)
    return OBJECTIVES[name](**more)


# What is computed


def test_the_signature_has_all_arguments_of_electra_pytorch():
    """Of its version 0.1.2. discr_dim and discr_layer are None here when off; mask_token_id has no default."""
    parameters = inspect.signature(Electra).parameters
    theirs = {
        "mask_prob": 0.15,
        "replace_prob": 0.85,
        "random_token_prob": 0.0,
        "pad_token_id": 0,
        "disc_weight": 50.0,
        "gen_weight": 1.0,
        "temperature": 1.0,
        "num_tokens": None,
    }
    assert {name: parameters[name].default for name in theirs} == theirs
    assert {"discr_dim", "discr_layer", "mask_token_id", "mask_ignore_token_ids"} <= set(parameters)
    assert list(parameters)[:2] == ["generator", "discriminator"]
    assert Output._fields[:7] == (
        "loss",
        "mlm_loss",
        "disc_loss",
        "gen_acc",
        "disc_acc",
        "disc_labels",
        "disc_predictions",
    )


def test_losses_are_means_over_chosen_positions_and_real_tokens():
    electra, ids = build("electra", gen_weight=2.0, disc_weight=3.0).eval(), rows()
    out = electra(ids, row_keys(0, 0, range(6)))
    draws = electra.masking.draws(ids, row_keys(0, 0, range(6)))
    positions, counts, originals, inputs, *_ = electra.masking(ids, draws)
    logits = electra.generator(inputs, positions)
    mlm_loss = F.cross_entropy(logits[counts], originals[counts])
    disc_logits = electra.discriminator(out.corrupted)
    disc_loss = F.binary_cross_entropy_with_logits(disc_logits[ids != PAD], out.disc_labels[ids != PAD].float())
    torch.testing.assert_close(out.mlm_loss, mlm_loss)
    torch.testing.assert_close(out.disc_loss, disc_loss)
    torch.testing.assert_close(out.loss, 2 * mlm_loss + 3 * disc_loss)
    assert out.gen_acc.item() == pytest.approx((logits.argmax(-1) == originals)[counts].float().mean().item())
    predictions, labels = disc_logits[ids != PAD] > 0, out.disc_labels[ids != PAD]
    assert out.disc_acc.item() == pytest.approx((predictions == labels).float().mean().item())
    assert out.disc_precision.item() == pytest.approx((labels[predictions]).float().mean().item())
    assert out.disc_recall.item() == pytest.approx((predictions[labels]).float().mean().item())
    assert out.replaced_rate.item() == pytest.approx(labels.float().mean().item())


def test_electra_15_scores_the_chosen_positions_only():
    electra, ids = build("electra_15").eval(), rows()
    out = electra(ids, row_keys(0, 0, range(6)))
    logits = electra.discriminator(out.corrupted).gather(-1, out.positions)[out.counts]
    labels = out.disc_labels.gather(-1, out.positions)[out.counts]
    torch.testing.assert_close(out.disc_loss, F.binary_cross_entropy_with_logits(logits, labels.float()))
    assert out.is_scored.sum() == out.counts.sum() < out.attended.sum()


def test_the_discriminator_reads_samples_in_the_original_rows_not_in_the_masked_ones():
    electra = build("electra")
    nn.init.constant_(electra.generator.output_bias[MASK], -1e4)  # untrained, it would sample [MASK] now and then
    out = electra(rows(), row_keys(0, 0, range(6)))
    assert not (out.corrupted == MASK).any()
    is_chosen = torch.zeros_like(rows()).scatter_add(-1, out.positions, out.counts.long()) > 0
    assert torch.equal(out.corrupted[~is_chosen], rows()[~is_chosen])


def test_the_discriminator_sends_no_gradient_to_the_generator():
    electra = build("electra", gen_weight=0.0)
    electra(rows()).loss.backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in electra.generator.parameters())
    assert any(parameter.grad.any() for parameter in electra.discriminator.parameters())


def test_a_uniform_generator_has_no_network_and_no_loss():
    electra = build("uniform")
    out = electra(rows())
    assert out.mlm_loss is None and out.gen_acc is None and "mlm_loss" not in out.metrics
    torch.testing.assert_close(out.loss, 50 * out.disc_loss)
    assert not torch.isin(out.corrupted[rows() != SEP], torch.tensor([SEP])).any()


def test_disallow_correct_replaces_every_chosen_token():
    for name in ("electra", "uniform"):
        out = build(name, disallow_correct=True)(rows())
        assert out.sampled_acc == 0 and out.disc_labels.sum() == out.counts.sum()


def test_a_low_temperature_samples_the_most_likely_token():
    out = build("electra", temperature=1e-4).eval()(rows())
    assert out.sampled_acc == out.gen_acc


@every_objective
def test_rows_of_nothing_but_padding_give_no_loss_and_no_nan(name):
    objective, ids = build(name), torch.full((2, 40), PAD)
    out = objective(ids)
    out.loss.backward()
    assert out.loss == 0
    assert all(parameter.grad.isfinite().all() for parameter in objective.parameters() if parameter.grad is not None)


@every_objective
def test_padding_changes_nothing(name):
    objective = build(name).eval()
    short, keys = rows()[:, :40], row_keys(0, 0, range(6))
    long = torch.cat([short, torch.full((6, 1), PAD)], -1)  # 41 tokens have as many positions to choose as 40
    torch.testing.assert_close(objective(short, keys).loss, objective(long, keys).loss, rtol=1e-5, atol=1e-6)


@every_objective
def test_ids_of_any_integer_type_are_the_same_ids(name):
    objective, keys = build(name).eval(), row_keys(0, 0, range(6))
    wanted = objective(rows(), keys)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        out = objective(rows().to(dtype), keys)
        assert torch.equal(out.corrupted, wanted.corrupted) and out.loss == wanted.loss
    for wrong in (rows().float(), rows()[0], rows() > 3):
        with pytest.raises(UserError, match=r"ids are torch.\w+ \(.*\); wanted integers"):
            objective(wrong, keys)


@pytest.mark.parametrize("name", ["electra", "replace_mlm", "all_tokens_mlm", "masked_lm"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_make_the_loss_nan_and_write_nothing(name, value):
    """Id 0 would be written as if it had been sampled; a finite loss would hide it."""
    objective = build(name)
    nn.init.constant_((objective.model if name == "masked_lm" else objective.generator).output_bias[9:], value)
    out = objective(rows())
    assert out.loss.isnan() and out.mlm_loss.isnan()
    if name != "masked_lm":
        assert torch.equal(out.corrupted, rows()) and not out.disc_labels.any()
        without = build(name, gen_weight=0.0)
        nn.init.constant_(without.generator.output_bias, value)
        assert without(rows()).loss.isnan()


def test_the_average_of_micro_batches_weights_them_and_not_their_tokens():
    electra, keys = build("electra").eval(), row_keys(0, 0, range(6))
    full = rows().masked_fill(rows() == PAD, 7)
    halves = [electra(full[part], keys[part]).loss for part in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(sum(halves) / 2, electra(full, keys).loss)  # full rows: the loss of the whole
    short, whole = rows(), electra(rows(), keys)
    parts = [electra(short[part], keys[part]) for part in (slice(0, 3), slice(3, 6))]
    tokens = [part.attended.sum() for part in parts]
    by_tokens = sum(part.disc_loss * count for part, count in zip(parts, tokens, strict=True)) / sum(tokens)
    torch.testing.assert_close(by_tokens, whole.disc_loss)  # else: the loss of the whole is weighted by tokens
    assert sum(part.disc_loss for part in parts) / 2 != whole.disc_loss


# Randomness


@every_objective
def test_draws_that_do_not_fit_the_rows_are_named(name):
    objective, ids = build(name), rows()
    keys = row_keys(0, 0, range(6))
    for wrong in (keys[:5], keys[:, :1], keys.int(), keys.float()):
        with pytest.raises(UserError, match=r"draws are torch.\w+ \(.*\); wanted the keys of 6 rows, int64 \(6, 2\)"):
            objective(ids, wrong)
    draws = objective.masking.draws(ids, keys)
    assert torch.equal(objective.eval()(ids, draws).corrupted, objective(ids, keys).corrupted)
    with pytest.raises(UserError, match=r"draws.priority is \(6, 40\); wanted \(6, 39\)"):
        objective(ids[:, :39], draws)
    with pytest.raises(UserError, match=r"draws.sample is \(6, 5\); wanted \(6, 6\)"):
        objective(ids, draws._replace(sample=draws.sample[:, :5]))


@every_objective
def test_a_row_is_corrupted_the_same_way_on_any_number_of_workers(name):
    objective, ids = build(name).eval(), rows(12)
    whole = objective(ids, row_keys(0, 3, range(12)))
    for order in (list(range(12)), [7, 3, 11, 0, 1, 2, 4, 5, 6, 8, 9, 10]):
        parts = [objective(ids[order[i : i + 4]], row_keys(0, 3, order[i : i + 4])) for i in range(0, 12, 4)]
        assert torch.equal(torch.cat([part.corrupted for part in parts]), whole.corrupted[order])
    assert not torch.equal(objective(ids, row_keys(0, 4, range(12))).corrupted, whole.corrupted)


@every_objective
def test_without_draws_torchs_seed_decides(name):
    objective, ids = build(name), rows()
    torch.manual_seed(7)
    first, second = objective(ids), objective(ids)
    torch.manual_seed(7)
    again = objective(ids)
    assert torch.equal(first.corrupted, again.corrupted) and first.loss == again.loss
    assert not torch.equal(first.corrupted, second.corrupted)


# Relatives


def test_masked_lm_shows_80_10_10_or_85_15():
    ids = rows(400)
    for scheme, (mask_share, random_share) in {"bert": (0.8, 0.1), "electra": (0.85, 0.0)}.items():
        out = build("masked_lm", scheme=scheme)(ids, row_keys(0, 0, range(400)))
        seen, originals = (each.gather(-1, out.positions)[out.counts] for each in (out.corrupted, ids))
        is_random = (seen != MASK) & (seen != originals)
        assert (seen == MASK).float().mean().item() == pytest.approx(mask_share, abs=0.03)
        assert is_random.float().mean().item() == pytest.approx(random_share, abs=0.02)
        assert not torch.isin(seen[is_random], torch.tensor([PAD, CLS, SEP, MASK])).any()


def test_random_token_prob_is_a_share_of_the_chosen_positions():
    """As there: first the random tokens, then [MASK] at replace_prob of the other chosen positions."""
    ids = rows(400)
    electra = build("electra", random_token_prob=0.2, replace_prob=0.5)
    positions, counts, originals, inputs, *_ = electra.masking(
        ids, electra.masking.draws(ids, row_keys(0, 0, range(400)))
    )
    seen = inputs.gather(-1, positions)[counts]
    is_random = (seen != MASK) & (seen != originals[counts])
    assert is_random.float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert (seen == MASK).float().mean().item() == pytest.approx(0.4, abs=0.03)


def test_replace_mlm_predicts_the_originals_from_rows_without_masks():
    objective, ids = build("replace_mlm").eval(), rows()
    nn.init.constant_(objective.generator.output_bias[MASK], -1e4)
    out = objective(ids)
    assert not (out.corrupted == MASK).any()
    logits = objective.discriminator(out.corrupted, out.positions)[out.counts]
    originals = ids.gather(-1, out.positions)[out.counts]
    torch.testing.assert_close(out.disc_loss, F.cross_entropy(logits, originals))
    torch.testing.assert_close(out.loss, out.mlm_loss + out.disc_loss)


def test_all_tokens_mlm_mixes_the_copy_and_the_softmax(monkeypatch):
    objective, ids = build("all_tokens_mlm").eval(), rows()
    out = objective(ids, row_keys(0, 0, range(6)))
    probabilities = objective.discriminator(out.corrupted).double().softmax(-1)  # (B, T, V)
    gates = objective.gate(objective.discriminator.hidden(out.corrupted)).double().sigmoid()  # (B, T, 1)
    mixture = gates * F.one_hot(out.corrupted, VOCAB) + (1 - gates) * probabilities
    torch.testing.assert_close(mixture.sum(-1), torch.ones_like(ids, dtype=torch.float64))
    losses = -mixture.gather(-1, ids.unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(out.disc_loss.double(), losses[ids != PAD].mean(), rtol=1e-5, atol=1e-6)
    assert torch.equal(out.disc_predictions, (gates.squeeze(-1) < 0.5) & (ids != PAD))
    out.loss.backward()
    gradients = [parameter.grad.clone() for parameter in objective.parameters()]
    objective.zero_grad()
    monkeypatch.setattr(AllTokensMLM, "MAX_LOGITS", 7 * VOCAB)
    objective(ids, row_keys(0, 0, range(6))).loss.backward()
    for before, parameter in zip(gradients, objective.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, before, rtol=1e-4, atol=1e-5)


def test_the_copy_gate_is_safe_at_both_ends():
    gates = torch.tensor([200.0, -200.0, 200.0, -200.0], requires_grad=True)
    predicted = torch.tensor([-1.0, -1.0, -300.0, -300.0], requires_grad=True)
    mixed = mix(gates, torch.tensor([True, True, False, False]), predicted)
    mixed.sum().backward()
    torch.testing.assert_close(mixed, torch.tensor([0.0, -1.0, -500.0, -300.0]))
    assert gates.grad.isfinite().all() and predicted.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_copy_gate_begins_as_the_official_codes_output_layers_do(dtype):
    objective = AllTokensMLM(Generator(SIZE).to(dtype), Generator(SIZE).to(dtype), **TOKENS)
    limit = math.sqrt(6 / (SIZE.hidden_size + 1))  # glorot
    assert 0.8 * limit < objective.gate.weight.abs().max() <= 1.01 * limit and not objective.gate.bias.any()
    assert {parameter.dtype for parameter in objective.parameters()} == {dtype}
    out = objective(rows())
    out.loss.backward()
    assert out.loss.dtype == torch.float32 and out.loss.isfinite()


def test_all_tokens_mlm_takes_a_transformers_model():
    from transformers import BertConfig, BertForMaskedLM

    size = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(**size, intermediate_size=32, max_position_embeddings=64))
    objective = AllTokensMLM(Generator(SIZE), model, **TOKENS)
    objective(rows()).loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())
    adapter = as_generator(model, sep_token_id=SEP)
    assert AllTokensMLM(Generator(SIZE), adapter, **TOKENS).discriminator is adapter
    with pytest.raises(UserError, match="needs the hidden states of its discriminator, and Embedding"):
        AllTokensMLM(Generator(SIZE), nn.Embedding(VOCAB, VOCAB), **TOKENS)


# Evaluation


def test_sums_over_batches_and_workers_equal_one_batch():
    electra, ids = build("electra").eval(), rows(24)
    whole = EvaluationSums().add(electra(ids, row_keys(0, 0, range(24)))).result()
    workers = [EvaluationSums(), EvaluationSums()]
    for worker, first, end in ((0, 0, 3), (1, 3, 11), (0, 11, 24)):
        workers[worker].add(electra(ids[first:end], row_keys(0, 0, range(first, end))))
    assert (workers[0] + workers[1]).result() == pytest.approx(whole, rel=1e-6)
    for ours, theirs in zip(workers[0].tensors(), workers[1].tensors(), strict=True):
        ours += theirs  # what all_reduce does
    assert workers[0].result() == pytest.approx(whole, rel=1e-6)
    out = electra(ids, row_keys(0, 0, range(24)))
    scored = out.is_scored.flatten()
    exact = roc_auc_score(out.disc_labels.flatten()[scored], out.disc_logits.flatten()[scored])
    assert whole.pop("disc_auc") == pytest.approx(exact, abs=1e-3)
    assert whole == pytest.approx({name: out.metrics[name].item() for name in whole}, rel=1e-5)
    assert {"mlm_loss", "disc_loss", "gen_acc", "sampled_acc", "disc_acc", "disc_precision", "replaced_rate"} <= set(
        whole
    )


@pytest.mark.parametrize("official", [False, True])  # True: a position may be chosen twice, and is predicted twice
def test_so_do_those_of_predictions_at_chosen_positions(official):
    objective, ids = build("replace_mlm", official=official).eval(), rows(24)
    sums = EvaluationSums()
    for first, end in ((0, 3), (3, 24)):
        sums.add(objective(ids[first:end], row_keys(0, 0, range(first, end))))
    assert sums.result() == pytest.approx(
        EvaluationSums().add(objective(ids, row_keys(0, 0, range(24)))).result(), rel=1e-6
    )


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 1e4])
@pytest.mark.parametrize("shift", [0.0, 0.3, 3.0])
def test_the_area_under_the_curve_equals_scikit_learns(scale, shift):
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(20_000, generator=generator) < 0.1
    logits = (torch.randn(20_000, generator=generator) + shift * labels - 2) * scale
    logits[::7] = logits[0]  # ties
    places = sortable(logits, 20) + labels * 2**20
    found = area_under_curve(torch.bincount(places, minlength=2**21).view(2, -1))
    assert found == pytest.approx(roc_auc_score(labels, logits), abs=1e-4)


def test_sortable_numbers_are_in_the_order_of_the_floats():
    values = torch.tensor([-torch.inf, -1e30, -2.0, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0, 1.001, 2.0, torch.inf])
    places = sortable(values, 20)
    assert places.tolist() == sorted(places.tolist()) and len(places.unique()) == len(values) - 1
    assert places.min() >= 0 and places.max() < 2**20


@every_objective
def test_every_objective_can_be_evaluated(name):
    result = EvaluationSums().add(build(name).eval()(rows(60))).result()
    assert result and all(math.isfinite(value) for value in result.values())
    assert ("disc_auc" in result) == (name not in ("masked_lm", "replace_mlm"))


# Compiler and precision


@pytest.mark.long
@every_objective
def test_the_whole_step_is_one_graph(name):
    objective, ids, keys = build(name).eval(), rows(), row_keys(0, 0, range(6))
    plain = copy.deepcopy(objective)
    out, plain_out = torch.compile(objective, fullgraph=True, backend="aot_eager")(ids, keys), plain(ids, keys)
    out.loss.backward()
    plain_out.loss.backward()
    assert torch.equal(out.corrupted, plain_out.corrupted)
    for metric, value in plain_out.metrics.items():
        torch.testing.assert_close(out.metrics[metric], value)
    for one, other in zip(objective.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_training_mode_with_fresh_draws_is_one_graph_that_is_compiled_once():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(build("electra").train(), fullgraph=True, backend=counter)
    losses = [step(rows(seed=seed)).loss for seed in range(3)]
    losses[-1].backward()
    assert counter.frame_count == 1 and len({loss.item() for loss in losses}) == 3


@every_objective
def test_bf16_autocast_keeps_losses_in_float32(name):
    objective, ids, keys = build(name).eval(), rows(), row_keys(0, 0, range(6))
    with torch.autocast("cpu", torch.bfloat16):
        out = objective(ids, keys)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, objective(ids, keys).loss, rtol=0.02, atol=0.02)


@every_objective
def test_a_copy_is_a_whole_one(name):
    """No closure over the original's weights: a copy of it trains itself."""
    objective = build(name).eval()
    clone = copy.deepcopy(objective)
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.fill_(torch.nan)
    assert clone(rows()).loss.isfinite()


# Any models


def tiny_reformer(**more):
    from reformer_pytorch import ReformerLM

    return ReformerLM(num_tokens=200, emb_dim=16, dim_head=8, depth=1, max_seq_len=128, bucket_size=16, **more)


README_SETTINGS = {"mask_token_id": 2, "pad_token_id": 0, "mask_prob": 0.15, "mask_ignore_token_ids": []}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("usage", ["a layer is intercepted", "with an adapter"])
def test_the_usage_of_electra_pytorchs_readme_runs(usage):
    """electra-pytorch's usage, with small networks: discr_dim and discr_layer, or nn.Sequential(discriminator, nn.Linear)."""
    torch.manual_seed(0)
    generator = tiny_reformer(dim=16, heads=2, ff_mult=2)
    intercepts = usage == "a layer is intercepted"
    discriminator = tiny_reformer(dim=32, heads=4, ff_mult=4, return_embeddings=not intercepts)
    generator.token_emb = discriminator.token_emb
    generator.pos_emb = discriminator.pos_emb
    if intercepts:
        trainer = Electra(generator, discriminator, discr_dim=32, discr_layer="reformer", **README_SETTINGS)
    else:
        trainer = Electra(generator, nn.Sequential(discriminator, nn.Linear(32, 1)), **README_SETTINGS)
    data = torch.randint(0, 200, (2, 128))
    results = trainer(data)
    results.loss.backward()
    assert results.loss.isfinite() and generator.token_emb.weight.grad.any()
    assert results.disc_labels.shape == results.disc_predictions.shape == (2, 128)


@every_objective
def test_sep_is_that_of_the_networks_if_nothing_is_said(name):
    """Networks and objective must not disagree about where a segment ends: [SEP] would be sampled, and move the end."""
    tokens = {key: value for key, value in TOKENS.items() if key != "sep_token_id"}
    objective = {
        "masked_lm": lambda: MaskedLM(Generator(SIZE), **tokens),
        "replace_mlm": lambda: ReplaceMLM(Generator(SIZE), Generator(SIZE), **tokens),
        "all_tokens_mlm": lambda: AllTokensMLM(Generator(SIZE), Generator(SIZE), **tokens),
        "uniform": lambda: Electra("uniform", Discriminator(SIZE), **tokens),
    }.get(name, lambda: Electra(Generator(SIZE), Discriminator(SIZE), **tokens))()
    assert objective.masking.special.sep == SEP
    with pytest.raises(UserError, match="was built with sep_token_id=3, but sep_token_id=5"):
        build_with = {**TOKENS, "sep_token_id": 5}
        MaskedLM(Generator(SIZE), **build_with) if name == "masked_lm" else Electra(
            "uniform", Discriminator(SIZE), **build_with
        )


def test_vocabularies_that_do_not_fit_are_named():
    small = replace(SIZE, vocab_size=VOCAB - 1)
    with pytest.raises(UserError, match="the generator has a vocabulary of 60, the discriminator one of 59"):
        Electra(Generator(SIZE), Discriminator(small), **TOKENS)
    with pytest.raises(UserError, match="the generator has a vocabulary of 60, the discriminator one of 59"):
        ReplaceMLM(Generator(SIZE), Generator(small), **TOKENS)
    assert Electra(Generator(small), Discriminator(SIZE), **TOKENS)  # rows of a table that are never used do no harm


def test_settings_that_cannot_work_are_named():
    pair = Generator(SIZE), Discriminator(SIZE)
    for wrong, message in (
        ({"mask_token_id": VOCAB}, "mask_token_id has 60, which is not in the vocabulary of 60 tokens"),
        ({"mask_ignore_token_ids": [-1]}, "mask_ignore_token_ids has -1, which is not in the vocabulary"),
        ({"num_tokens": 4}, "mask_token_id has 4, which is not in the vocabulary of 4"),
        ({"temperature": 0}, "temperature must be above 0, got 0"),
        ({"loss_on": "some"}, "loss_on is 'some'"),
        ({"disc_weight": -1}, "disc_weight -1"),
        ({"mask_token_id": PAD}, "both 0"),
        ({"replace_prob": 85}, "replace_prob must be a rate from 0 to 1, got 85"),
    ):
        with pytest.raises(UserError, match=message):
            Electra(*pair, **{**TOKENS, **wrong})
    with pytest.raises(UserError, match="num_tokens"):
        Electra("uniform", nn.Sequential(nn.Embedding(9, 1)), **TOKENS)
    with pytest.raises(UserError, match="'unifrom'"):
        Electra("unifrom", Discriminator(SIZE), **TOKENS)
    with pytest.raises(UserError, match="scheme is 'roberta'"):
        MaskedLM(Generator(SIZE), scheme="roberta", **TOKENS)


# Learning


@pytest.mark.long
def test_a_tiny_pair_learns_a_few_rows_by_heart():
    """The generator's loss goes towards 0 and the discriminator's AUC towards 1."""
    torch.manual_seed(0)
    size = replace(
        SIZE, hidden_size=64, ffn_size=128, embedding_size=64, max_length=32, dropout=0.0, attention_dropout=0.0
    )
    generator, discriminator = Generator(size), Discriminator(size)
    generator.body.embeddings = discriminator.body.embeddings
    # Warm: it keeps making mistakes that can be found.
    electra = Electra(generator, discriminator, temperature=2.0, **TOKENS)
    ids, num_steps = rows(4, 32).repeat(4, 1), 600
    optimizer = torch.optim.AdamW(electra.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 30) * (1 - step / num_steps))
    before = evaluate(electra, ids)
    for step in range(num_steps):
        electra(ids, row_keys(0, step, range(16))).loss.backward()
        nn.utils.clip_grad_norm_(electra.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    after = evaluate(electra, ids)
    assert before["mlm_loss"] > 3.5 and before["disc_auc"] < 0.7
    assert after["mlm_loss"] < 0.1 and after["disc_auc"] > 0.99, after


def evaluate(objective: nn.Module, ids: torch.Tensor) -> dict[str, float]:
    sums = EvaluationSums()
    objective.eval()
    with torch.no_grad():
        for step in range(20):
            sums.add(objective(ids, row_keys(1, step, range(len(ids)))))
    objective.train()
    return sums.result()
