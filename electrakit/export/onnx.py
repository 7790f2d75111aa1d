"""Writes a transformers model as ONNX files, fp32 and int8, and measures their size, speed and difference from torch."""

import functools
import importlib.util
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.words import DASH, format_percent
from electrakit.model.huggingface.write_model import MAX_LOGIT_DIFFERENCE

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 18
SECONDS_OF_TIMING, NUM_TIMINGS = 1.0, 30
# Bytes of weights inside a file: protobuf holds no more than two gigabytes.
MAX_INSIDE = 1_900_000_000


@dataclass(frozen=True)
class OnnxMeasurement:
    """Size and speed of an ONNX file, or of torch to compare with."""

    network: str
    file: str
    """Path in the folder of the network; empty for torch itself."""
    num_bytes: int
    milliseconds: float
    """For one row: the quickest of several times, because other programs use the machine too."""
    difference: float | None = None
    """The largest difference of a logit from torch."""
    agreement: float | None = None
    """Share of tokens with the same decision as torch: replaced or not, or the same word."""

    def cells(self) -> list[str]:
        """Megabytes, milliseconds, difference and agreement, for tables."""
        return [
            f"{self.num_bytes / 1e6:,.1f}",
            f"{self.milliseconds:.1f}",
            DASH if self.difference is None else f"{self.difference:.2g}",
            DASH if self.agreement is None else f"{format_percent(self.agreement)} %",
        ]


def require_onnx() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--onnx needs {', '.join(missing)}: pip install 'electrakit[onnx]'")


@torch.no_grad()
def write_onnx(model: Any, folder: Path, inputs: dict[str, Tensor], name: str) -> list[OnnxMeasurement]:
    """Write model.onnx and model_int8.onnx, which take any number of rows and tokens. `inputs` are rows to compare on, (B, T) each."""
    from onnxruntime import quantization

    folder.mkdir(parents=True)
    full, small = folder / "model.onnx", folder / "model_int8.onnx"
    logits = Logits(model.eval())
    with quiet():
        _write_full(logits, full, inputs)
        # Weights of matrix products and embeddings as 8-bit integers; the rest stays as it is.
        quantization.quantize_dynamic(full, small, weight_type=quantization.QuantType.QInt8, per_channel=True)
    one_row = {key: value[:1] for key, value in inputs.items()}
    wanted, is_real = logits(*inputs.values()), inputs["attention_mask"].bool()
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    found = [OnnxMeasurement(name, "", num_bytes, _milliseconds(functools.partial(logits, *one_row.values())))]
    for path in (full, small):
        run = open_onnx(path)
        got = run(inputs)
        difference = (got - wanted)[is_real].abs().max().item()
        if path == full and not difference <= MAX_LOGIT_DIFFERENCE * max(1.0, wanted[is_real].abs().max().item()):
            raise UserError(
                f"onnxruntime computes other logits than torch for the {name}: they differ by {difference:.2g}"
            )
        agreement = (_decisions(got) == _decisions(wanted))[is_real].double().mean().item()
        size = sum(each.stat().st_size for each in folder.glob(f"{path.name}*"))
        time_of_row = _milliseconds(functools.partial(run, one_row))
        found.append(OnnxMeasurement(name, f"onnx/{path.name}", size, time_of_row, difference, agreement))
    return found


class Logits(nn.Module):
    """A model that takes positional inputs in the order of the file and returns its logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **more)[0]


def open_onnx(path: Path) -> Callable[[dict[str, Tensor]], Tensor]:
    """A function of the inputs, on as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, Tensor]) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {key: value.numpy() for key, value in inputs.items()})[0])

    return run


def _write_full(logits: Logits, path: Path, inputs: dict[str, Tensor]) -> None:
    rows, tokens = torch.export.Dim("rows", min=1), torch.export.Dim("tokens", min=2)
    shapes = {key: {0: rows, 1: tokens} for key in inputs}
    is_large = sum(weight.numel() * weight.element_size() for weight in logits.parameters()) > MAX_INSIDE
    program = torch.onnx.export(
        logits,
        tuple(value[:2] for value in inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=["logits"],
        dynamic_shapes=shapes,
        external_data=is_large,
        verbose=False,
    )
    assert program is not None
    program.save(str(path), external_data=is_large)
    _remove_source_notes(path)


def _remove_source_notes(path: Path) -> None:
    """Remove where in the source code each node comes from, with paths of this machine: a tenth of a small file."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    del model.graph.value_info[:]  # these shapes contradict those that quantization infers
    graph = model.graph
    for each in (*graph.node, *graph.input, *graph.output, *graph.initializer, graph, model):
        del each.metadata_props[:]
        each.doc_string = ""
    onnx.save(model, path)


def _decisions(logits: Tensor) -> Tensor:  # (B, T) or (B, T, labels or words) -> (B, T)
    return logits > 0 if logits.ndim == 2 else logits.argmax(-1)


def _milliseconds(run: Callable[[], Any]) -> float:
    run()
    times: list[float] = []
    while len(times) < NUM_TIMINGS and sum(times) < SECONDS_OF_TIMING:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of the exporter and the quantizer, which are for those who write exporters."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
