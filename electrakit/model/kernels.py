"""Compile kernels.cpp for this CPU, cache it for the user, and wrap its kernels as autograd functions.

Where it cannot be compiled, only speed is lost: `problem` says why, and the layers run as plain torch.
"""

import contextlib
import ctypes
import functools
import os
import platform
import shlex
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from electrakit.common.code_cache import load_library
from electrakit.common.errors import one_line

SOURCE = Path(__file__).with_name("kernels.cpp")
# No -ffast-math: NaN must stay NaN, and it would change rounding in the whole process.
FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
)
BUILD_TIMEOUT = 600  # seconds

Types = tuple[torch.dtype, torch.dtype]
"""The dtypes of the residual stream (X), and of the other large tensors (Y)."""
VARIANTS: tuple[Types, ...] = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
)
# In the order of the table in kernels.cpp. Tensors are of dtype X, Y, F (float32), I (int64) or W (int32); numbers are long, int,
# float or a seed.
SIGNATURES = {
    "add_norm": "X Y F F F X Y Y F l l f f s i",
    "add_norm_back": "Y X Y F F X Y F l l f s i",
    "gelu": "Y F Y Y F l l f s i",
    "gelu_back": "Y F Y Y F l l f s i",
    "gated_gelu": "Y F Y Y F l l f s i",
    "gated_gelu_back": "Y F Y Y F l l f s i",
    "gated_gelu_dropout": "Y F Y Y F l l f s i",
    "gated_gelu_dropout_back": "Y F Y Y F l l f s i",
    "rotate": "Y F F l l l f i",
    "attention": "Y F I Y Y F l i i f s Y I I F l l i",
    "predict": "Y F I F I F f F F I I l l i i",
    "predict_back": "Y F I F F F l l i",
    "add_gains": "I I I W F F f F l l i",
}
NUMBERS = {"l": ctypes.c_int64, "i": ctypes.c_int, "f": ctypes.c_float, "s": ctypes.c_uint64}


# Building


def problem() -> str | None:
    """Why there are no kernels here; None if there are. The first call compiles them."""
    return _load_kernels()[1]


@functools.cache
def _load_kernels() -> tuple[dict[tuple[Types, str], Any], str | None]:
    """The kernels by the types and the name; or none, and why."""
    try:
        library = _library()
        names = [(types, name) for types in VARIANTS for name in SIGNATURES]
        table = (ctypes.c_void_p * len(names)).in_dll(library, "kernels")
    except subprocess.CalledProcessError as error:
        return {}, (error.stderr.strip().splitlines() or ["the compiler failed"])[-1]
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        return {}, one_line(error)
    found = {}
    for (types, name), address in zip(names, table, strict=True):
        letters: list[Any] = [NUMBERS.get(letter, ctypes.c_void_p) for letter in SIGNATURES[name].split()]
        found[types, name] = ctypes.CFUNCTYPE(None, *letters)(address)
    return found, None


def _library() -> ctypes.CDLL:
    """From the user's cache, or compiled now. The recipe is the source, flags, torch version and CPU."""
    recipe = "\0".join((SOURCE.read_text(encoding="utf-8"), torch.__version__, *FLAGS, *_links(), _processor()))

    def build(made: Path) -> None:
        compiler = shlex.split(os.environ.get("CXX") or "g++")
        command = [*compiler, *FLAGS, str(SOURCE), *_links(), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT)

    return load_library("kernels", recipe, build)


def _links() -> tuple[str, ...]:
    """Link to torch's library, for its sgemm and its OpenMP threads."""
    folder = Path(torch.__file__).parent / "lib"
    return f"-L{folder}", f"-Wl,-rpath,{folder}", "-ltorch_cpu"


def _processor() -> str:
    """The CPU features that -march=native depends on."""
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(("flags", "Features"))})])


# Calling


def call(name: str, types: Types, *arguments: Any) -> None:
    """Run a kernel with torch's number of threads. It gets bare pointers, so every dtype is checked here."""
    kernels, why_none = _load_kernels()
    if why_none is not None:
        raise RuntimeError(f"no kernels here: {why_none}")
    tensors = {"X": types[0], "Y": types[1], "F": torch.float32, "I": torch.int64, "W": torch.int32}
    arguments = (*arguments, torch.get_num_threads())
    values = []
    for place, (letter, argument) in enumerate(zip(SIGNATURES[name].split(), arguments, strict=True)):
        wanted = tensors.get(letter)
        if wanted is None or argument is None:
            is_right = not isinstance(argument, Tensor)
        else:
            is_right = argument.dtype == wanted and argument.device.type == "cpu" and argument.is_contiguous()
        if not is_right:
            what = f"{argument.dtype} on {argument.device}"
            raise TypeError(f"{name}: argument {place} is {what}; wanted {wanted or 'a number'}")
        values.append(argument.data_ptr() if isinstance(argument, Tensor) else argument)
    kernels[types, name](*values)


def floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def or_zeros(bias: Tensor | None, size: int) -> Tensor:
    """A kernel loop that tests for a missing bias runs at a quarter of the speed."""
    return torch.zeros(size, dtype=torch.float32, device="cpu") if bias is None else bias


def thread_sums(*shape: int) -> Tensor:
    """Zeros, one accumulator for each thread."""
    return torch.zeros(torch.get_num_threads(), *shape, dtype=torch.float32, device="cpu")


def dropout_seed(rate: float) -> int:
    """From torch's generator, so that torch.manual_seed makes it reproducible."""
    return int(torch.randint(2**62, (), device="cpu").item()) if rate else 0


class AddNorm(torch.autograd.Function):
    """stream + dropout(inner + bias), None unless `needs_sum`, and its layer norm; all (N, H)."""

    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        inner: Tensor,
        bias: Tensor | None,
        gain: Tensor,
        shift: Tensor | None,
        epsilon: float,
        rate: float,
        needs_sum: bool,
    ) -> tuple[Tensor | None, Tensor]:
        types = (stream.dtype, inner.dtype)
        total = torch.empty_like(stream) if needs_sum else None
        normed, out, inverse = torch.empty_like(inner), torch.empty_like(inner), floats(len(inner))
        sizes = (*inner.shape, epsilon, rate, dropout_seed(rate))
        given = (or_zeros(bias, inner.size(1)), gain, or_zeros(shift, inner.size(1)))
        call("add_norm", types, stream, inner, *given, total, normed, out, inverse, *sizes)
        ctx.save_for_backward(normed, inverse, gain)
        ctx.set_materialize_grads(False)
        ctx.types, ctx.rate, ctx.seed = types, rate, sizes[-1]
        ctx.has_bias, ctx.has_shift = bias is not None, shift is not None
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sum: Tensor | None, grad: Tensor | None) -> Any:
        normed, inverse, gain = ctx.saved_tensors
        grad = torch.zeros_like(normed) if grad is None else grad.contiguous()
        grad_sum = None if grad_sum is None else grad_sum.contiguous()
        grad_stream, grad_inner = torch.empty_like(normed, dtype=ctx.types[0]), torch.empty_like(normed)
        sums, sizes = thread_sums(3, normed.size(1)), (*normed.shape, ctx.rate, ctx.seed)
        call("add_norm_back", ctx.types, grad, grad_sum, normed, gain, inverse, grad_stream, grad_inner, sums, *sizes)
        gains, shifts, biases = sums.sum(0)
        bias, shift = biases if ctx.has_bias else None, shifts if ctx.has_shift else None
        return grad_stream, grad_inner, bias, gains, shift, None, None, None


class Gelu(torch.autograd.Function):
    """gelu(inner + bias), or if gated, without bias: dropout(gelu(first half) * second half)."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor, bias: Tensor | None, is_gated: bool, rate: float) -> Tensor:
        if (is_gated and bias is not None) or (rate and not is_gated):
            raise ValueError("a gated GELU has no bias, a plain one no dropout")
        num_rows, width = inner.shape
        out = inner.new_empty(num_rows, width // 2 if is_gated else width)
        ctx.name = ("gated_gelu_dropout" if rate else "gated_gelu") if is_gated else "gelu"
        ctx.sizes = (*out.shape, rate, dropout_seed(rate))
        ctx.has_bias, added = bias is not None, or_zeros(bias, out.size(1))
        call(ctx.name, (inner.dtype,) * 2, inner, added, None, out, None, *ctx.sizes)
        ctx.save_for_backward(inner, added)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        inner, added = ctx.saved_tensors
        grad_inner, sums = torch.empty_like(inner), thread_sums(grad.size(1))
        call(f"{ctx.name}_back", (inner.dtype,) * 2, inner, added, grad.contiguous(), grad_inner, sums, *ctx.sizes)
        return grad_inner, sums.sum(0) if ctx.has_bias else None, None, None


class Rotate(torch.autograd.Function):
    """RoPE on query and key of packed tokens (N, 3 H), in place. Cosine and sine are float32 (N, D / 2)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cosine: Tensor, sine: Tensor, num_heads: int) -> Tensor:
        if qkv.shape != (len(cosine), 6 * num_heads * cosine.size(1)) or sine.shape != cosine.shape:
            shapes = ", ".join(str(tuple(each.shape)) for each in (qkv, cosine, sine))
            raise IndexError(f"qkv, cosine and sine of {num_heads} heads do not fit together: {shapes}")
        ctx.mark_dirty(qkv)
        ctx.save_for_backward(cosine, sine)
        ctx.num_heads = num_heads
        call("rotate", (qkv.dtype,) * 2, qkv, cosine, sine, len(qkv), num_heads, cosine.size(1), 1.0)
        return qkv

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cosine, sine = ctx.saved_tensors
        turned = grad.clone(memory_format=torch.contiguous_format)
        call("rotate", (grad.dtype,) * 2, turned, cosine, sine, len(grad), ctx.num_heads, cosine.size(1), -1.0)
        return turned, None, None, None


class Attention(torch.autograd.Function):
    """Attention of packed tokens: qkv (N, 3 H) -> (N, H). Row r has the tokens from starts[r] up to starts[r + 1].

    With `places`, queries and keys (R, 2 H) of distances, scores are the sum of three products. `rows` (2 T - 1,) has the row of each
    distance from -(T - 1) up, in ascending order, and `positions` (N,) are those of the tokens.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bias: Tensor | None,
        starts: Tensor,
        num_heads: int,
        rate: float,
        places: Tensor | None = None,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        num_tokens, width = qkv.shape
        out, logsum = qkv.new_empty(num_tokens, width // 3), floats(num_tokens, num_heads)
        ctx.sizes = (len(starts) - 1, num_heads, width // 3 // num_heads, rate, dropout_seed(rate))
        ctx.has_bias, added = bias is not None, or_zeros(bias, width)
        ctx.more_sizes = (0, 0)
        if places is not None and rows is not None and positions is not None:
            ctx.more_sizes = (len(places), len(rows) // 2)
            if not 0 <= rows[0] <= rows[-1] < len(places) or (num_tokens and 2 * positions.max() >= len(rows)):
                raise IndexError(f"{len(places)} places for {len(rows)} distances in rows up to {positions.max() + 1}")
            places, rows = places.contiguous(), rows.contiguous()
        given = (places, rows, positions, None, *ctx.more_sizes)
        call("attention", (qkv.dtype,) * 2, qkv, added, starts, None, out, logsum, *ctx.sizes, *given)
        ctx.save_for_backward(qkv, added, starts, logsum, places, rows, positions)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        qkv, added, starts, logsum, places, rows, positions = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        sums = None if places is None else thread_sums(*places.shape)
        given = (places, rows, positions, sums, *ctx.more_sizes)
        call("attention", (qkv.dtype,) * 2, qkv, added, starts, grad.contiguous(), grad_qkv, logsum, *ctx.sizes, *given)
        grad_places = None if sums is None else sums.sum(0).to(qkv.dtype)
        grad_bias = grad_qkv.sum(0, dtype=torch.float32) if ctx.has_bias else None
        return grad_qkv, grad_bias, None, None, None, grad_places, None, None


def check_tokens(vocab_size: int, *tokens: Tensor) -> None:
    for ids in tokens:
        if ids.numel() and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise IndexError(f"a token is not in the vocabulary of {vocab_size}: {ids.min()} to {ids.max()}")


class Predict(torch.autograd.Function):
    """Cross-entropy of the targets, argmax, and a sampled token (M,) from logits (M, V) and a bias.

    A temperature flattens the distribution to the uniform one, or to that of the logits `towards` (V,).

    The backward pass overwrites the logits, so nothing else may use them: they are as large as all other tensors together.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        bias: Tensor,
        targets: Tensor,
        draws: Tensor,
        without: Tensor,
        temperature: float,
        towards: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        size = logits.size(1)
        check_tokens(size, targets, without)
        if towards is not None and towards.shape != (size,):
            raise IndexError(f"the logits to flatten to are {tuple(towards.shape)}, the vocabulary has {size} tokens")
        losses, logsum = floats(len(logits)), floats(len(logits))
        best, sampled = torch.empty_like(targets), torch.empty_like(targets)
        results = (losses, logsum, best, sampled)
        sizes = (*logits.shape, len(without))
        inputs = (logits, bias, targets, draws, without, towards, 1 / temperature)
        call("predict", (logits.dtype,) * 2, *inputs, *results, *sizes)
        # Not save_for_backward: the backward pass changes the logits.
        ctx.logits = logits
        ctx.others = (bias, targets, logsum)
        ctx.mark_non_differentiable(best, sampled)
        return losses, best, sampled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        if ctx.logits is None:
            raise RuntimeError("the first backward pass overwrote the logits: for a second one compute without kernels")
        logits, ctx.logits = ctx.logits, None
        sums = thread_sums(logits.size(1))
        call("predict_back", (logits.dtype,) * 2, logits, *ctx.others, grad.contiguous(), sums, *logits.shape)
        return logits, sums.sum(0), *[None] * 5


class Likelihood(torch.autograd.Function):
    """The sum of the targets' cross-entropies, from states (M, E), a word table (V, E) and a bias (V,).

    And without a gradient, (M,) each: the cross-entropies, the argmax, a sampled token, and its log-probability. Tokens of `without` are
    never sampled.

    The logits are computed for a block of states at a time, and their gradient right after them: because the result is a sum, it is
    known but for a factor. So no (M, V) tensor is kept, and none is computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        table: Tensor,
        bias: Tensor,
        targets: Tensor,
        draws: Tensor,
        without: Tensor,
        max_logits: int,
        needs_gradient: bool,
    ) -> tuple[Tensor, ...]:
        check_tokens(len(table), targets, without)
        losses, logsum, log_sampled, ones = (*(floats(len(states)) for _ in range(3)), torch.ones(len(states)))
        best, sampled = torch.empty_like(targets), torch.empty_like(targets)
        grad_states, grad_table = torch.empty_like(states), torch.zeros_like(table)
        sums, block = thread_sums(len(table)), max(1, max_logits // len(table))
        for first in range(0, len(states), block):
            part = slice(first, first + block)
            logits = F.linear(states[part], table)
            types, given = (logits.dtype,) * 2, (logits, bias, targets[part])
            results = (losses[part], logsum[part], best[part], sampled[part])
            call("predict", types, *given, draws[part], without, None, 1.0, *results, *logits.shape, len(without))
            found = sampled[part].clamp(min=0)  # -1 for NaN
            log_sampled[part] = logits.gather(1, found[:, None])[:, 0].float() + bias[found] - logsum[part]
            if needs_gradient:
                call("predict_back", types, *given, logsum[part], ones[part], sums, *logits.shape)
                grad_states[part] = logits @ table.to(logits.dtype)
                grad_table += logits.mT @ states[part].to(logits.dtype)
        ctx.gradients = (grad_states, grad_table, sums.sum(0))
        ctx.mark_non_differentiable(losses, best, sampled, log_sampled)
        return losses.sum(), losses, best, sampled, log_sampled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        return *(grad * each for each in ctx.gradients), *[None] * 5
