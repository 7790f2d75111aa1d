"""The kernels against plain torch: the same numbers, the same gradients, and dropout and sampling that are as random as they should be."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from electrakit.model import kernels
from electrakit.model.parts import rope_tables
from electrakit.objective import corrupt

pytestmark = pytest.mark.skipif(kernels.problem() is not None, reason="no compiler here: the kernels cannot be built")

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
TYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
NUM_TOKENS, WIDTH = 150, 48


def numbers(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(shape) * scale).to(dtype).requires_grad_()


def assert_same(mine, theirs, dtype):
    for one, other in zip(mine, theirs, strict=True):
        one, other = one.detach().double(), other.detach().double()
        assert (one - other).abs().max() <= TOLERANCE[dtype] * (1 + other.abs().max())


def both_gradients(mine, theirs, inputs, dtype):
    """Of the same weighted sum."""
    weights = [torch.randn(one.shape) for one in mine]
    found = [
        torch.autograd.grad(sum((one.double() * w).sum() for one, w in zip(outputs, weights, strict=True)), inputs)
        for outputs in (mine, theirs)
    ]
    assert_same(*found, dtype)


@TYPES
@pytest.mark.parametrize("has_bias", [True, False])
def test_add_and_norm(dtype, has_bias):
    torch.manual_seed(0)
    stream, inner = numbers(NUM_TOKENS, WIDTH, dtype=dtype), numbers(NUM_TOKENS, WIDTH, dtype=dtype)
    gain = numbers(WIDTH)
    bias, shift = (numbers(WIDTH), numbers(WIDTH)) if has_bias else (None, None)
    mine = kernels.AddNorm.apply(stream, inner, bias, gain, shift, 1e-12, 0.0, True)
    total = stream.double() + inner.double() + (0 if bias is None else bias)
    theirs = (
        total,
        F.layer_norm(total, (WIDTH,), gain.double(), None if shift is None else shift.double(), 1e-12),
    )
    assert_same(mine, theirs, dtype)
    inputs = [one for one in (stream, inner, bias, gain, shift) if one is not None]
    both_gradients(mine, theirs, inputs, dtype)


def test_the_stream_may_be_finer_than_the_rest():
    torch.manual_seed(0)
    stream, inner, gain = numbers(9, WIDTH), numbers(9, WIDTH, dtype=torch.bfloat16), numbers(WIDTH)
    total, normed = kernels.AddNorm.apply(stream, inner, None, gain, None, 1e-5, 0.0, True)
    assert (total.dtype, normed.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(total, stream + inner.float())


@TYPES
@pytest.mark.parametrize("is_gated", [False, True])
def test_gelu(dtype, is_gated):
    torch.manual_seed(0)
    inner, bias = numbers(NUM_TOKENS, 2 * WIDTH, dtype=dtype, scale=3), numbers(2 * WIDTH)
    if is_gated:
        value, gate = inner.double().chunk(2, -1)
        mine, theirs, inputs = kernels.Gelu.apply(inner, None, True, 0.0), F.gelu(value) * gate, [inner]
    else:
        mine, theirs = kernels.Gelu.apply(inner, bias, False, 0.0), F.gelu(inner.double() + bias)
        inputs = [inner, bias]
    assert_same([mine], [theirs], dtype)
    both_gradients([mine], [theirs], inputs, dtype)


@TYPES
def test_rotate(dtype):
    torch.manual_seed(0)
    num_heads, half = 2, WIDTH // 2
    qkv = numbers(NUM_TOKENS, 3 * num_heads * WIDTH, dtype=dtype)
    cosine, sine = (each[:, :half].contiguous() for each in rope_tables(NUM_TOKENS, WIDTH, 10_000.0, qkv.device))
    mine = kernels.Rotate.apply(qkv.clone(), cosine, sine, num_heads)
    parts = qkv.double().unflatten(-1, (3, num_heads, WIDTH)).transpose(0, 2)  # (heads, 3, N, D)
    tables = tuple(torch.cat([each, each], -1).double() for each in (cosine, sine))
    turned = torch.cat([exactly_rotated(parts[:, :2], tables), parts[:, 2:]], dim=1)
    theirs = turned.transpose(0, 2).flatten(1)
    assert_same([mine], [theirs], dtype)
    both_gradients([mine], [theirs], [qkv], dtype)


def test_tables_of_other_sizes_are_refused():
    cosine, sine = (each[:, :4].contiguous() for each in rope_tables(5, 8, 10_000.0, torch.device("cpu")))
    qkv = torch.randn(5, 3 * 2 * 8)
    for wrong in [(qkv, cosine, sine, 3), (qkv, cosine[1:], sine, 2), (qkv, cosine[1:], sine[1:], 2)]:
        with pytest.raises(IndexError, match="heads do not fit together"):
            kernels.Rotate.apply(*wrong)


def exactly_rotated(heads, tables):
    first, second = heads.chunk(2, -1)
    return heads * tables[0] + torch.cat([-second, first], -1) * tables[1]


@TYPES
@pytest.mark.parametrize("size", [9, 16, 64, 80])
@pytest.mark.parametrize("lengths", [(1,), (5, 1, 30), (128, 129, 300)], ids=str)
def test_attention(dtype, lengths, size):
    torch.manual_seed(0)
    num_heads = 3
    starts = torch.tensor([0, *np.cumsum(lengths)])
    qkv, bias = numbers(sum(lengths), 3 * num_heads * size, dtype=dtype), numbers(3 * num_heads * size)
    mine = kernels.Attention.apply(qkv, bias, starts, num_heads, 0.0)
    rows = (qkv.double() + bias).split(lengths)
    heads = [row.view(-1, 3, num_heads, size).permute(1, 2, 0, 3) for row in rows]
    theirs = torch.cat([F.scaled_dot_product_attention(*one).transpose(0, 1).flatten(1) for one in heads])
    assert_same([mine], [theirs], dtype)
    both_gradients([mine], [theirs], [qkv, bias], dtype)


def test_attention_to_distances_in_bf16_is_that_in_fp32():
    """At the rounded inputs; test_deberta.py compares fp32 with transformers."""
    torch.manual_seed(0)
    num_heads, size, lengths = 2, 24, (1, 37, 150)
    starts, positions = torch.tensor([0, *np.cumsum(lengths)]), torch.cat([torch.arange(one) for one in lengths])
    inputs = [numbers(sum(lengths), 3 * num_heads * size), numbers(76, 2 * num_heads * size)]
    rounded = [each.detach().bfloat16().requires_grad_() for each in inputs]
    exact = [each.float() for each in rounded]
    rows = torch.arange(-149, 150) // 4 + 38
    mine, theirs = (
        kernels.Attention.apply(qkv, None, starts, num_heads, 0.0, places, rows, positions)
        for qkv, places in (rounded, exact)
    )
    assert_same([mine], [theirs], torch.bfloat16)
    both_gradients([mine], [theirs], rounded, torch.bfloat16)


@TYPES
def test_predict(dtype):
    torch.manual_seed(0)
    logits, bias = numbers(20, 1003, dtype=dtype, scale=3), numbers(1003)
    targets = torch.randint(1003, (20,))
    losses, best, _ = kernels.Predict.apply(logits * 1, bias, targets, torch.rand(20), torch.tensor([0]), 1.0)
    scores = logits.double() + bias
    theirs = F.cross_entropy(scores, targets, reduction="none")
    assert_same([losses], [theirs], dtype)
    assert torch.equal(best, scores.argmax(-1))
    both_gradients([losses], [theirs], [logits, bias], dtype)


@pytest.mark.parametrize(("temperature", "is_flattened"), [(1.0, False), (2.0, False), (1.0, True), (3.0, True)])
def test_samples_have_the_softmax_distribution(temperature, is_flattened):
    torch.manual_seed(0)
    towards = torch.randn(40) if is_flattened else torch.zeros(40)
    scores, num_samples = torch.randn(40), 40_000
    draws = torch.rand(num_samples)
    logits = scores.expand(num_samples, -1).contiguous()
    targets, without = torch.zeros(num_samples, dtype=torch.int64), torch.tensor([3, 7])
    given = towards if is_flattened else None
    _, _, sampled = kernels.Predict.apply(logits, torch.zeros(40), targets, draws, without, temperature, given)
    wanted = (scores - towards) / temperature + towards
    wanted[[3, 7]] = -torch.inf
    shares = wanted.softmax(-1).double().numpy()
    counts = np.bincount(sampled, minlength=40)
    assert counts[3] == counts[7] == 0
    allowed = shares > 0
    wanted_counts = shares[allowed] / shares[allowed].sum() * num_samples
    assert stats.chisquare(counts[allowed], wanted_counts).pvalue > 1e-3


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24])
def test_the_first_and_the_last_draw_find_an_allowed_token(draw):
    logits = torch.zeros(1, 700)
    without = torch.tensor([0, 699])
    target = torch.zeros(1, dtype=torch.int64)
    *_, sampled = kernels.Predict.apply(logits, torch.zeros(700), target, torch.tensor([draw]), without, 1.0)
    assert sampled.item() in ({1} if draw == 0 else range(690, 699))


def test_what_is_not_a_number_stays_so():
    bad = torch.full((2, WIDTH), torch.nan)
    good, one = torch.ones(2, WIDTH), torch.ones(WIDTH)
    assert all(part.isnan().all() for part in kernels.AddNorm.apply(good, bad, None, one, None, 1e-5, 0.0, True))
    assert kernels.Gelu.apply(bad, None, False, 0.0).isnan().all()
    for dtype in TOLERANCE:
        qkv = torch.cat([bad, good, good], 1).to(dtype)
        assert kernels.Attention.apply(qkv, None, torch.tensor([0, 2]), 1, 0.0).isnan().all()
    targets = torch.zeros(2, dtype=torch.int64)
    losses, _, sampled = kernels.Predict.apply(bad, one * 0, targets, torch.rand(2), targets[:0], 1.0)
    assert losses.isnan().all() and (sampled == -1).all()


def test_samples_where_a_forbidden_token_has_almost_all_the_mass():
    torch.manual_seed(0)
    scores = torch.randn(1000)
    scores[2] = 30.0
    draws = torch.rand(500)
    logits = scores.expand(500, -1).contiguous()
    zeros = torch.zeros(500, dtype=torch.int64)
    *_, sampled = kernels.Predict.apply(logits.clone(), torch.zeros(1000), zeros, draws, torch.tensor([2]), 1.0)
    wanted = corrupt.sample(logits[None], draws[None], temperature=1.0, without=(2,))[0]
    assert (sampled == wanted).float().mean() > 0.99


@pytest.mark.parametrize(("targets", "without"), [([8], [0]), ([-1], [0]), ([1], [8])])
def test_tokens_beyond_the_vocabulary_are_refused(targets, without):
    with pytest.raises(IndexError, match="not in the vocabulary of 8"):
        kernels.Predict.apply(
            torch.zeros(1, 8), torch.zeros(8), torch.tensor(targets), torch.zeros(1), torch.tensor(without), 1.0
        )


def test_logits_to_flatten_to_of_another_vocabulary_are_refused():
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(IndexError, match="the vocabulary has 8 tokens"):
        kernels.Predict.apply(torch.zeros(1, 8), torch.zeros(8), zero, torch.zeros(1), zero[:0], 2.0, torch.zeros(7))


def test_types_that_a_kernel_does_not_have_are_refused():
    one = torch.ones(2, 4)
    with pytest.raises(TypeError, match=r"gelu: argument 1 is torch.bfloat16 on cpu; wanted torch.float32"):
        kernels.Gelu.apply(one, torch.ones(4, dtype=torch.bfloat16), False, 0.0)
    with pytest.raises(ValueError, match="a gated GELU has no bias"):
        kernels.Gelu.apply(one, torch.ones(2), True, 0.0)
    with pytest.raises(ValueError, match="a plain one no dropout"):
        kernels.Gelu.apply(one, None, False, 0.1)


def test_the_default_type_of_torch_does_not_matter():
    inner, gain = torch.randn(3, 8), torch.ones(8)
    wanted = kernels.AddNorm.apply(inner, inner, None, gain, None, 1e-5, 0.0, True)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = kernels.AddNorm.apply(inner, inner, None, gain, None, 1e-5, 0.0, True)
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(*pair) for pair in zip(wanted, found, strict=True))


def test_second_derivatives_and_second_passes_are_refused():
    inner = torch.randn(2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(kernels.Gelu.apply(inner, None, False, 0.0).sum(), inner, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        torch.autograd.grad(grad.sum(), inner)
    logits = torch.randn(1, 8, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.int64)
    losses, *_ = kernels.Predict.apply(logits * 1, torch.zeros(8), zero, torch.zeros(1), zero[:0], 1.0)
    losses.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute without kernels"):
        losses.sum().backward()


# Dropout


def kept(seed, rate=0.1, shape=(512, 256)):
    """Which numbers a dropout keeps, seen through the kernel of the norm."""
    torch.manual_seed(seed)
    gain = torch.ones(shape[1])
    total, _ = kernels.AddNorm.apply(torch.zeros(shape), torch.ones(shape), None, gain, None, 1e-5, rate, True)
    return total != 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_has_its_rate(rate):
    is_kept = kept(0, rate)
    sigma = (rate * (1 - rate) / is_kept.numel()) ** 0.5
    assert abs(is_kept.float().mean() - (1 - rate)) < 5 * sigma
    for dim in (0, 1):  # in each row and in each column too
        shares = is_kept.double().mean(dim)
        assert abs(shares - (1 - rate)).max() < 6 * (rate * (1 - rate) / is_kept.size(dim)) ** 0.5


def test_dropout_is_scaled_to_keep_the_mean():
    gain = torch.ones(256)
    total, _ = kernels.AddNorm.apply(torch.zeros(512, 256), torch.ones(512, 256), None, gain, None, 1e-5, 0.1, True)
    assert total.unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
    assert kernels.Gelu.apply(torch.full((512, 512), 30.0), None, True, 0.1).mean().item() == pytest.approx(
        900, rel=0.01
    )


def test_dropout_is_independent_between_steps_rows_and_columns():
    one, other = kept(0).double(), kept(1).double()
    pairs = {
        "calls": (one, other),
        "rows": (one[1:], one[:-1]),
        "columns": (one[:, 1:], one[:, :-1]),
        "far rows": (one[256:], one[:-256]),
    }
    for name, (first, second) in pairs.items():
        correlation = np.corrcoef(first.flatten(), second.flatten())[0, 1]
        assert abs(correlation) < 5 / first.numel() ** 0.5, name


def test_dropout_is_a_function_of_the_seed():
    assert torch.equal(kept(3), kept(3))
    assert not torch.equal(kept(3), kept(4))


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    torch.manual_seed(0)
    stream, gain = torch.zeros(64, 32), torch.ones(32)
    inner = torch.ones(64, 32, requires_grad=True)
    total, _ = kernels.AddNorm.apply(stream, inner, None, gain, None, 1e-5, 0.3, True)
    (grad,) = torch.autograd.grad(total.sum(), inner)
    torch.testing.assert_close(grad, total.detach())  # 1 / (1 - rate) where it is kept, 0 where not


def test_the_layers_of_a_step_drop_independently():
    """Each call draws its own seed: two layers, and the two places in a layer, have nothing to do with one another."""
    torch.manual_seed(0)
    shape, gain = (256, 128), torch.ones(128)
    first, second = (
        kernels.AddNorm.apply(torch.zeros(shape), torch.ones(shape), None, gain, None, 1e-5, 0.1, True)[0] != 0
        for _ in range(2)
    )
    third = kernels.Gelu.apply(torch.full((256, 256), 30.0), None, True, 0.1) != 0
    for one, other in ((first, second), (second, third)):
        assert abs(np.corrcoef(one.flatten(), other.flatten())[0, 1]) < 5 / first.numel() ** 0.5


def test_attention_drops_at_its_rate_in_every_row_and_head():
    """Equal scores and values that pick out the keys show the weights themselves."""
    num_rows, length, num_heads = 6, 32, 4
    torch.manual_seed(0)
    qkv = torch.zeros(num_rows * length, 3, num_heads, length)
    qkv[:, 2] = torch.eye(length).repeat(num_rows, 1)[:, None]
    starts = torch.arange(0, num_rows * length + 1, length)
    weights = kernels.Attention.apply(qkv.flatten(1), None, starts, num_heads, 0.1).view(
        num_rows, length, num_heads, length
    )
    is_kept = weights != 0
    assert weights[is_kept].unique().tolist() == [pytest.approx(1 / 0.9 / length)]
    assert abs(is_kept.double().mean() - 0.9) < 5 * (0.09 / is_kept.numel()) ** 0.5
    by_head = is_kept.permute(0, 2, 1, 3).reshape(num_rows * num_heads, -1).double().numpy()
    correlations = np.corrcoef(by_head) - np.eye(len(by_head))
    assert abs(correlations).max() < 6 / by_head.shape[1] ** 0.5


@pytest.mark.parametrize("kind", ["gelu", "norm"])
def test_gradients_with_dropout_are_those_of_the_same_mask(kind):
    torch.manual_seed(0)
    inner, gain, weights = torch.randn(6, 8, requires_grad=True), torch.ones(8), torch.randn(6, 8)

    def value(numbers):
        torch.manual_seed(1)
        if kind == "gelu":
            return (kernels.Gelu.apply(numbers, None, True, 0.3).double() * weights[:, :4]).sum()
        return (
            kernels.AddNorm.apply(torch.ones(6, 8), numbers, None, gain, None, 1e-5, 0.3, False)[1].double() * weights
        ).sum()

    (grad,) = torch.autograd.grad(value(inner), inner)
    for place in [(0, 1), (3, 7), (5, 2), (2, 5)]:
        step = torch.zeros_like(inner)
        step[place] = 1e-2
        slope = (value(inner.detach() + step) - value(inner.detach() - step)) / 2e-2
        assert grad[place].item() == pytest.approx(slope.item(), abs=2e-3)


def test_gradients_of_attention_with_dropout():
    """By differences: the same seed drops the same, so the function is smooth."""
    torch.manual_seed(0)
    qkv, starts, weights = torch.randn(6, 3 * 8), torch.tensor([0, 2, 6]), torch.randn(6, 8)

    def value(numbers):
        torch.manual_seed(1)
        return (kernels.Attention.apply(numbers, None, starts, 2, 0.3).double() * weights).sum()

    qkv.requires_grad_()
    (grad,) = torch.autograd.grad(value(qkv), qkv)
    for place in [(0, 1), (3, 9), (5, 20), (2, 17)]:
        step = torch.zeros_like(qkv)
        step[place] = 1e-2
        slope = (value(qkv.detach() + step) - value(qkv.detach() - step)) / 2e-2
        assert grad[place].item() == pytest.approx(slope.item(), abs=2e-4)


def test_any_number_of_threads_gives_the_same_dropout_and_almost_the_same_gradients():
    inner, gain = torch.randn(200, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    found, before = [], torch.get_num_threads()
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        torch.manual_seed(0)
        total, normed = kernels.AddNorm.apply(torch.zeros(200, 64), inner, None, gain, None, 1e-5, 0.2, True)
        found.append((total, normed, *torch.autograd.grad(normed.square().sum(), [inner, gain])))
    torch.set_num_threads(before)
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2:], found[1][2:])


# Building


def in_new_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.promise("Environment", "no C++ compiler", "trains without kernels")
@pytest.mark.long
def test_without_a_compiler_nothing_is_lost_but_speed(tmp_path):
    code = """
import torch, electrakit as ek
from electrakit.model.networks import Discriminator, use_kernels
network = Discriminator(ek.presets.tiny().discriminator)
print(use_kernels(network), network(torch.ones(2, 8, dtype=torch.int64)).shape)
"""
    for compiler in ("no-such-compiler", "false"):
        printed = in_new_process(code, CXX=compiler, XDG_CACHE_HOME=str(tmp_path))
        assert printed == "False torch.Size([2, 8])"


@pytest.mark.promise("Environment", "kernels built by several processes at once", "built once, all use them")
@pytest.mark.long
def test_they_are_built_once_and_by_several_processes_at_once(tmp_path):
    code = "from electrakit.model import kernels; print(kernels.problem() is None)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == ["True", "True"]
    (library,) = (tmp_path / "electrakit").glob("*")
    before = library.stat().st_ino
    assert in_new_process(code, XDG_CACHE_HOME=str(tmp_path)) == "True"
    assert library.stat().st_ino == before


@pytest.mark.long
def test_a_damaged_library_is_built_again_and_one_that_is_there_needs_no_compiler(tmp_path):
    code = "from electrakit.model import kernels; print(kernels.problem() is None)"
    assert in_new_process(code, XDG_CACHE_HOME=str(tmp_path)) == "True"
    (library,) = (tmp_path / "electrakit").glob("*")
    assert in_new_process(code, XDG_CACHE_HOME=str(tmp_path), CXX="no-such-compiler") == "True"
    os.truncate(library, 8192)  # as a full disk would leave it
    assert in_new_process(code, XDG_CACHE_HOME=str(tmp_path)) == "True"
