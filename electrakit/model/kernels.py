"""kernels.cpp in, functions with gradients out: built once for each machine, kept in the user's cache.

Where there is no compiler, nothing is lost but speed: `load` gives None, and the layers run as plain torch.
"""

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.cpp")
# no -ffast-math: NaN must stay NaN, and it would change how the whole process rounds
FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
)
SIGNATURES = {  # in the order of the table in kernels.cpp: pointer, long, int, float, seed
    "add_norm": "ppppppppp ll ff s i",
    "add_norm_back": "pppppppp ll f s i",
    "gelu": "ppppp ll i f s i",
    "gelu_back": "ppppp ll i f s i",
    "attention": "pppppp l iii f s i",
    "guess": "ppppp f pppp ll i i",
    "guess_back": "pppppp ll i",
}
LETTERS = {
    "p": ctypes.c_void_p,
    "l": ctypes.c_int64,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
    "s": ctypes.c_uint64,
}
# types of the residual stream and of all else
VARIANTS = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
)

Types = tuple[torch.dtype, torch.dtype]


@functools.cache
def load() -> dict[tuple[Types, str], Any] | None:
    """The kernels of this machine, built if need be; None where that cannot be."""
    try:
        library = ctypes.CDLL(str(built()))
    except (OSError, subprocess.SubprocessError):
        return None
    names = [(types, name) for types in VARIANTS for name in SIGNATURES]
    table = (ctypes.c_void_p * len(names)).in_dll(library, "kernels")
    return {
        (types, name): ctypes.CFUNCTYPE(None, *(LETTERS[letter] for letter in SIGNATURES[name].replace(" ", "")))(
            address
        )
        for (types, name), address in zip(names, table, strict=True)
    }


def call(name: str, types: Types, *arguments: Any) -> None:
    """Run a kernel, with as many threads as torch has: tensors go by their address, None as null."""
    kernels = load()
    assert kernels is not None
    kernels[types, name](*map(address_of, arguments), torch.get_num_threads())


def address_of(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    assert argument.is_contiguous() and argument.device.type == "cpu"
    return argument.data_ptr()


def built() -> Path:
    """The shared library; its name says from what, for which processor and by which compiler."""
    compiler = os.environ.get("CXX", "g++")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    torch_folder = Path(torch.__file__).parent / "lib"
    links = (f"-L{torch_folder}", f"-Wl,-rpath,{torch_folder}", "-ltorch_cpu")
    recipe = "\0".join((SOURCE.read_text(encoding="utf-8"), version, torch.__version__, *FLAGS, *links, processor()))
    name = f"kernels-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    path = cache_folder() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            subprocess.run([compiler, *FLAGS, str(SOURCE), *links, "-o", str(made)], capture_output=True, check=True)
            made.replace(path)  # whole, also when several processes build at once
    return path


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "electrakit"


def processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(("flags", "Features"))})])


def seed_of_dropout(rate: float) -> int:
    """From torch's own generator: torch.manual_seed decides it."""
    return int(torch.randint(2**62, ()).item()) if rate else 0


class AddNorm(torch.autograd.Function):
    """Stream and inner (N, H) in; stream + dropout(inner + bias) and its norm out."""

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
    ) -> tuple[Tensor, Tensor]:
        types = (stream.dtype, inner.dtype)
        total, hat, out = torch.empty_like(stream), torch.empty_like(inner), torch.empty_like(inner)
        inverse = torch.empty(len(inner))
        sizes = (*inner.shape, epsilon, rate, seed_of_dropout(rate))
        call("add_norm", types, stream, inner, bias, gain, shift, total, hat, out, inverse, *sizes)
        ctx.save_for_backward(hat, inverse, gain)
        ctx.set_materialize_grads(False)
        ctx.types, ctx.rate, ctx.seed = types, rate, sizes[-1]
        ctx.has_bias, ctx.has_shift = bias is not None, shift is not None
        return total, out

    @staticmethod
    def backward(ctx: Any, also: Tensor | None, grad: Tensor | None) -> Any:
        hat, inverse, gain = ctx.saved_tensors
        grad = torch.zeros_like(hat) if grad is None else grad.contiguous()
        grad_stream, grad_inner = torch.empty(hat.shape, dtype=ctx.types[0]), torch.empty_like(hat)
        partial = torch.zeros(torch.get_num_threads(), 3, hat.size(1))
        also = None if also is None else also.contiguous()
        sizes = (*hat.shape, ctx.rate, ctx.seed)
        call("add_norm_back", ctx.types, grad, also, hat, gain, inverse, grad_stream, grad_inner, partial, *sizes)
        gains, shifts, biases = partial.sum(0)
        bias, shift = biases if ctx.has_bias else None, shifts if ctx.has_shift else None
        return grad_stream, grad_inner, bias, gains, shift, None, None


class Gelu(torch.autograd.Function):
    """dropout(gelu(inner + bias)); if gated, of the first half's GELU times the second half."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor, bias: Tensor | None, is_gated: bool, rate: float) -> Tensor:
        num_rows, width = inner.shape
        out = inner.new_empty(num_rows, width // 2 if is_gated else width)
        ctx.sizes = (*out.shape, is_gated, rate, seed_of_dropout(rate))
        call("gelu", (inner.dtype,) * 2, inner, bias, None, out, None, *ctx.sizes)
        ctx.save_for_backward(inner, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inner, bias = ctx.saved_tensors
        grad_inner, partial = torch.empty_like(inner), torch.zeros(torch.get_num_threads(), grad.size(1))
        call("gelu_back", (inner.dtype,) * 2, inner, bias, grad.contiguous(), grad_inner, partial, *ctx.sizes)
        return grad_inner, None if bias is None else partial.sum(0), None, None


class Attention(torch.autograd.Function):
    """Query, key and value of packed tokens (N, 3 H) in, mixed values (N, H) out."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, bias: Tensor | None, starts: Tensor, longest: int, num_heads: int, rate: float
    ) -> Tensor:
        num_tokens, width = qkv.shape
        out, logsum = qkv.new_empty(num_tokens, width // 3), torch.empty(num_tokens, num_heads)
        ctx.sizes = (len(starts) - 1, longest, num_heads, width // 3 // num_heads, rate, seed_of_dropout(rate))
        call("attention", (qkv.dtype,) * 2, qkv, bias, starts, None, out, logsum, *ctx.sizes)
        ctx.save_for_backward(qkv, bias, starts, logsum)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        qkv, bias, starts, logsum = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        call("attention", (qkv.dtype,) * 2, qkv, bias, starts, grad.contiguous(), grad_qkv, logsum, *ctx.sizes)
        return grad_qkv, None if bias is None else grad_qkv.sum(0, dtype=torch.float32), None, None, None, None


class Guess(torch.autograd.Function):
    """Logits (M, V) and a bias in; losses of the targets, best guesses and sampled tokens (M,) out. The logits are used up."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, bias: Tensor, targets: Tensor, draws: Tensor, without: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses, logsum = torch.empty(len(logits)), torch.empty(len(logits))
        best, sampled = torch.empty_like(targets), torch.empty_like(targets)
        results = (losses, logsum, best, sampled)
        sizes = (*logits.shape, len(without))
        call("guess", (logits.dtype,) * 2, logits, bias, targets, draws, without, 1 / temperature, *results, *sizes)
        ctx.logits, ctx.others = (
            logits,
            (bias, targets, logsum),
        )  # not saved as tensors are: they change in the backward pass
        ctx.mark_non_differentiable(best, sampled)
        return losses, best, sampled

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        logits, ctx.logits = ctx.logits, None
        partial = torch.zeros(torch.get_num_threads(), logits.size(1))
        call("guess_back", (logits.dtype,) * 2, logits, *ctx.others, grad.contiguous(), partial, *logits.shape)
        return logits, partial.sum(0), None, None, None, None
