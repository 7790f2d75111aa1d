"""kernels.cpp in, functions with gradients out: built once for each kind of processor, kept in the user's cache.

Where it cannot be built, nothing is lost but speed: `load` gives None, and the layers run as plain torch.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SOURCE = Path(__file__).with_name("kernels.cpp")
# no -ffast-math: NaN must stay NaN, and it would change how the whole process rounds
FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
)
SECONDS_TO_BUILD = 600  # at most

Types = tuple[torch.dtype, torch.dtype]
"""Of the residual stream (X), and of all else that is large (Y)."""
VARIANTS: tuple[Types, ...] = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
)
SIGNATURES = {  # in the order of the table in kernels.cpp; tensors of X, Y, F (float32), I (int64), then long, int, float, seed
    "add_norm": "X Y F F F X Y Y F l l f f s i",
    "add_norm_back": "Y X Y F F X Y F l l f s i",
    "gelu": "Y F Y Y F l l f s i",
    "gelu_back": "Y F Y Y F l l f s i",
    "gated_gelu": "Y F Y Y F l l f s i",
    "gated_gelu_back": "Y F Y Y F l l f s i",
    "gated_gelu_dropout": "Y F Y Y F l l f s i",
    "gated_gelu_dropout_back": "Y F Y Y F l l f s i",
    "attention": "Y F I Y Y F l i i f s i",
    "guess": "Y F I F I f F F I I l l i i",
    "guess_back": "Y F I F F F l l i",
}
NUMBERS = {"l": ctypes.c_int64, "i": ctypes.c_int, "f": ctypes.c_float, "s": ctypes.c_uint64}


# Building


def load() -> dict[tuple[Types, str], Any] | None:
    """The kernels of this machine, built if need be; None where that cannot be: see `problem`."""
    return _loaded()[0]


def problem() -> str:
    """Why there are none."""
    return _loaded()[1]


@functools.cache
def _loaded() -> tuple[dict[tuple[Types, str], Any] | None, str]:
    try:
        library = _library()
        names = [(types, name) for types in VARIANTS for name in SIGNATURES]
        table = (ctypes.c_void_p * len(names)).in_dll(library, "kernels")
    except subprocess.CalledProcessError as error:
        return None, (error.stderr.strip().splitlines() or ["the compiler failed"])[-1]
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        return None, " ".join(str(error).split())
    found = {}
    for (types, name), address in zip(names, table, strict=True):
        letters: list[Any] = [NUMBERS.get(letter, ctypes.c_void_p) for letter in SIGNATURES[name].split()]
        found[types, name] = ctypes.CFUNCTYPE(None, *letters)(address)
    return found, ""


def _library() -> ctypes.CDLL:
    """One that is damaged is built again, once."""
    path = _path()
    if path.exists():
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            path.unlink()
    _build(path)
    return ctypes.CDLL(str(path))


def _path() -> Path:
    """Its name says from what, for which torch and which processor. Code is taken from a folder that nobody else can write."""
    recipe = "\0".join((SOURCE.read_text(encoding="utf-8"), torch.__version__, *FLAGS, *_links(), _processor()))
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = folder.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise OSError(f"{folder} is not ours alone: it belongs to another user, or others may write there")
    return folder / f"kernels-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"


def _build(path: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*compiler, *FLAGS, str(SOURCE), *_links(), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS_TO_BUILD)
        made.replace(path)  # whole, also when several processes build at once


def _links() -> tuple[str, ...]:
    """Torch's own library: its matrix products, and its threads."""
    folder = Path(torch.__file__).parent / "lib"
    return f"-L{folder}", f"-Wl,-rpath,{folder}", "-ltorch_cpu"


def cache_folder() -> Path:
    """What would have to be made again is kept here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electrakit"


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(("flags", "Features"))})])


# Calling


def call(name: str, types: Types, *arguments: Any) -> None:
    """Run a kernel, with as many threads as torch has. It sees addresses only, so every type is checked here."""
    kernels = load()
    if kernels is None:
        raise RuntimeError(f"no kernels here: {problem()}")
    tensors = {"X": types[0], "Y": types[1], "F": torch.float32, "I": torch.int64}
    arguments = (*arguments, torch.get_num_threads())
    values = []
    for place, (letter, argument) in enumerate(zip(SIGNATURES[name].split(), arguments, strict=True)):
        if letter not in tensors:
            if isinstance(argument, Tensor):
                raise TypeError(f"{name}: argument {place} is a tensor, wanted a number")
            values.append(argument)
        elif argument is None:
            values.append(None)
        elif argument.dtype != tensors[letter] or argument.device.type != "cpu" or not argument.is_contiguous():
            raise TypeError(
                f"{name}: argument {place} is {argument.dtype} on {argument.device}; wanted {tensors[letter]}"
            )
        else:
            values.append(argument.data_ptr())
    kernels[types, name](*values)


def floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def or_zeros(bias: Tensor | None, size: int) -> Tensor:
    """A loop that asks whether there is a bias runs at a quarter of the speed."""
    return torch.zeros(size, dtype=torch.float32, device="cpu") if bias is None else bias


def sums_by_thread(*shape: int) -> Tensor:
    """0 to begin with: each thread adds up its own."""
    return torch.zeros(torch.get_num_threads(), *shape, dtype=torch.float32, device="cpu")


def seed_of_dropout(rate: float) -> int:
    """From torch's own generator: torch.manual_seed decides it."""
    return int(torch.randint(2**62, (), device="cpu").item()) if rate else 0


class AddNorm(torch.autograd.Function):
    """Stream and inner (N, H) in; stream + dropout(inner + bias), if it is wanted, and its norm out."""

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
        keeps_sum: bool,
    ) -> tuple[Tensor | None, Tensor]:
        types = (stream.dtype, inner.dtype)
        total = torch.empty_like(stream) if keeps_sum else None
        hat, out, inverse = torch.empty_like(inner), torch.empty_like(inner), floats(len(inner))
        sizes = (*inner.shape, epsilon, rate, seed_of_dropout(rate))
        given = (or_zeros(bias, inner.size(1)), gain, or_zeros(shift, inner.size(1)))
        call("add_norm", types, stream, inner, *given, total, hat, out, inverse, *sizes)
        ctx.save_for_backward(hat, inverse, gain)
        ctx.set_materialize_grads(False)
        ctx.types, ctx.rate, ctx.seed = types, rate, sizes[-1]
        ctx.has_bias, ctx.has_shift = bias is not None, shift is not None
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, also: Tensor | None, grad: Tensor | None) -> Any:
        hat, inverse, gain = ctx.saved_tensors
        grad = torch.zeros_like(hat) if grad is None else grad.contiguous()
        also = None if also is None else also.contiguous()
        grad_stream, grad_inner = torch.empty_like(hat, dtype=ctx.types[0]), torch.empty_like(hat)
        sums, sizes = sums_by_thread(3, hat.size(1)), (*hat.shape, ctx.rate, ctx.seed)
        call("add_norm_back", ctx.types, grad, also, hat, gain, inverse, grad_stream, grad_inner, sums, *sizes)
        gains, shifts, biases = sums.sum(0)
        bias, shift = biases if ctx.has_bias else None, shifts if ctx.has_shift else None
        return grad_stream, grad_inner, bias, gains, shift, None, None, None


class Gelu(torch.autograd.Function):
    """gelu(inner + bias); if gated, which has no bias, dropout(the first half's GELU times the second half)."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor, bias: Tensor | None, is_gated: bool, rate: float) -> Tensor:
        if (is_gated and bias is not None) or (rate and not is_gated):
            raise ValueError("a gated GELU has no bias, a plain one no dropout")
        num_rows, width = inner.shape
        out = inner.new_empty(num_rows, width // 2 if is_gated else width)
        ctx.name = ("gated_gelu_dropout" if rate else "gated_gelu") if is_gated else "gelu"
        ctx.sizes = (*out.shape, rate, seed_of_dropout(rate))
        ctx.has_bias, added = bias is not None, or_zeros(bias, out.size(1))
        call(ctx.name, (inner.dtype,) * 2, inner, added, None, out, None, *ctx.sizes)
        ctx.save_for_backward(inner, added)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        inner, added = ctx.saved_tensors
        grad_inner, sums = torch.empty_like(inner), sums_by_thread(grad.size(1))
        call(f"{ctx.name}_back", (inner.dtype,) * 2, inner, added, grad.contiguous(), grad_inner, sums, *ctx.sizes)
        return grad_inner, sums.sum(0) if ctx.has_bias else None, None, None


class Rotate(torch.autograd.Function):
    """Query and key of packed tokens (N, 3 H) turned, in place, by angles with these cosines and sines, float32 (N, 1, 1, D / 2)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cosine: Tensor, sine: Tensor, num_heads: int) -> Tensor:
        ctx.mark_dirty(qkv)
        ctx.save_for_backward(cosine, sine)
        ctx.num_heads = num_heads
        return turn_(qkv, cosine, sine, num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cosine, sine = ctx.saved_tensors
        return turn_(grad.clone(), cosine, -sine, ctx.num_heads), None, None, None


def turn_(qkv: Tensor, cosine: Tensor, sine: Tensor, num_heads: int) -> Tensor:
    """Each pair (i, i + D / 2) of a head is turned."""
    pairs = qkv.view(len(qkv), 3, num_heads, 2, cosine.size(-1))
    first, second = pairs[:, :2].unbind(-2)  # (N, 2, heads, D / 2) each
    turned = torch.addcmul(first * cosine, second, sine, value=-1)
    second.copy_(torch.addcmul(second * cosine, first, sine))
    first.copy_(turned)
    return qkv


class Attention(torch.autograd.Function):
    """Query, key and value of packed tokens (N, 3 H) in, mixed values (N, H) out. Row r has the tokens starts[r] to starts[r + 1]."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor | None, starts: Tensor, num_heads: int, rate: float) -> Tensor:
        num_tokens, width = qkv.shape
        out, logsum = qkv.new_empty(num_tokens, width // 3), floats(num_tokens, num_heads)
        ctx.sizes = (len(starts) - 1, num_heads, width // 3 // num_heads, rate, seed_of_dropout(rate))
        ctx.has_bias, added = bias is not None, or_zeros(bias, width)
        call("attention", (qkv.dtype,) * 2, qkv, added, starts, None, out, logsum, *ctx.sizes)
        ctx.save_for_backward(qkv, added, starts, logsum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        qkv, added, starts, logsum = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        call("attention", (qkv.dtype,) * 2, qkv, added, starts, grad.contiguous(), grad_qkv, logsum, *ctx.sizes)
        return grad_qkv, grad_qkv.sum(0, dtype=torch.float32) if ctx.has_bias else None, None, None, None


class Guess(torch.autograd.Function):
    """Logits (M, V) and a bias in; losses of the targets, best guesses and sampled tokens (M,) out.

    The backward pass writes into the logits, which nobody else may need: they are as large as all else together.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, bias: Tensor, targets: Tensor, draws: Tensor, without: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        size = logits.size(1)
        for ids in (targets, without):
            if ids.numel() and not 0 <= ids.min() <= ids.max() < size:
                raise IndexError(f"a token is not in the vocabulary of {size}: {ids.min()} to {ids.max()}")
        losses, logsum = floats(len(logits)), floats(len(logits))
        best, sampled = torch.empty_like(targets), torch.empty_like(targets)
        results = (losses, logsum, best, sampled)
        sizes = (*logits.shape, len(without))
        call("guess", (logits.dtype,) * 2, logits, bias, targets, draws, without, 1 / temperature, *results, *sizes)
        ctx.logits, ctx.others = logits, (bias, targets, logsum)  # not saved as tensors are: they will change
        ctx.mark_non_differentiable(best, sampled)
        return losses, best, sampled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        if ctx.logits is None:
            raise RuntimeError(
                "a second backward pass needs the logits, which the first used up: compute without kernels"
            )
        logits, ctx.logits = ctx.logits, None
        sums = sums_by_thread(logits.size(1))
        call("guess_back", (logits.dtype,) * 2, logits, *ctx.others, grad.contiguous(), sums, *logits.shape)
        return logits, sums.sum(0), None, None, None, None
