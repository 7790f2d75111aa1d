"""ONNX files: the logits of torch, for any number of rows and tokens, and honest measurements of them."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import electrakit as ek
from electrakit.export.onnx import OnnxMeasurement, open_onnx, write_onnx
from electrakit.model.huggingface.weights import to_transformers
from electrakit.model.networks import Discriminator
from tests.helpers.tiny_models import our_config, tiny_discriminator, tiny_pretraining_electra


def rows(num_rows: int, length: int, has_segments: bool) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 100, (num_rows, length), generator=torch.Generator().manual_seed(length))
    ids[-1, length // 2 :] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    return inputs | ({"token_type_ids": torch.zeros_like(ids)} if has_segments else {})


def check(model: Any, folder: Path, has_segments: bool) -> list[OnnxMeasurement]:
    """Write, and compare at other numbers of rows and tokens than those it was written with."""
    found = write_onnx(model, folder / "onnx", rows(4, 16, has_segments), "discriminator")
    run = open_onnx(folder / "onnx" / "model.onnx")
    for num_rows, length in ((1, 9), (5, 30)):
        inputs = rows(num_rows, length, has_segments)
        is_real = inputs["attention_mask"].bool()
        with torch.no_grad():
            torch.testing.assert_close(run(inputs)[is_real], model(**inputs).logits[is_real], atol=1e-5, rtol=1e-4)
    return found


@pytest.mark.long
def test_the_files_say_what_torch_says_whatever_the_shape(tmp_path):
    torch_itself, full, small = check(
        tiny_pretraining_electra(hidden_size=128, vocab_size=2000, num_hidden_layers=1), tmp_path, True
    )
    assert (torch_itself.file, full.file, small.file) == ("", "onnx/model.onnx", "onnx/model_int8.onnx")
    assert full.difference < 1e-5 and full.agreement == 1.0
    assert 0 < small.difference < 0.5 and small.agreement > 0.9  # it is rounded, and that is said
    assert small.num_bytes < full.num_bytes and full.num_bytes == (tmp_path / "onnx" / "model.onnx").stat().st_size
    assert min(one.milliseconds for one in (torch_itself, full, small)) > 0
    assert {path.name for path in (tmp_path / "onnx").iterdir()} == {"model.onnx", "model_int8.onnx"}
    for path in (tmp_path / "onnx").iterdir():
        assert b"/modeling_" not in path.read_bytes()  # nothing of the machine that wrote it


@pytest.mark.long
def test_a_model_without_segments_too(tmp_path):
    check(tiny_discriminator("modernbert", num_hidden_layers=1), tmp_path, has_segments=False)


@pytest.mark.long
def test_the_deberta_body(tmp_path):
    torch.manual_seed(0)
    network = Discriminator(our_config(body="deberta", embedding_size=32, num_layers=1, position_buckets=8))
    check(to_transformers(network.eval()), tmp_path, has_segments=False)


@pytest.mark.long
def test_export_writes_them_for_both_networks_and_the_card_shows_them(tiny, tmp_path, capsys):
    from electrakit.cli.main import main

    sizes = {"num_layers": 1}
    run = ek.pretrain(tiny(steps=1, save_every=1, discriminator=sizes, generator=sizes))
    with pytest.raises(SystemExit) as stop:
        main(["export", str(run.path), "--out", str(tmp_path / "hf"), "--onnx"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for name in (
        "onnx/model.onnx",
        "onnx/model_int8.onnx",
        "generator/onnx/model.onnx",
        "generator/onnx/model_int8.onnx",
    ):
        assert (tmp_path / "hf" / name).exists() and name in printed
    assert "agreement" in printed and "torch, generator" in printed
    assert "| `onnx/model_int8.onnx` |" in (tmp_path / "hf" / "README.md").read_text()


def test_without_the_packages_the_extra_is_named(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "onnxruntime" else find(name, *more)
    )
    with pytest.raises(ek.UserError, match=r"--onnx needs onnxruntime: pip install 'electrakit\[onnx\]'"):
        ek.export(tmp_path, tmp_path / "hf", onnx=True)


@pytest.mark.long
def test_a_file_that_says_something_else_is_refused(tmp_path, monkeypatch):
    """As if the exporter had got a layer wrong."""
    model = tiny_discriminator("bert", num_hidden_layers=1)
    export = torch.onnx.export

    def export_another(logits: Any, *args: Any, **settings: Any) -> Any:
        other = copy.deepcopy(logits)
        other.model.classifier.bias.data += 1
        return export(other, *args, **settings)

    monkeypatch.setattr(torch.onnx, "export", export_another)
    with pytest.raises(ek.UserError, match="onnxruntime computes other logits than torch for the it: they differ by 1"):
        write_onnx(model, tmp_path / "onnx", rows(2, 8, True), "it")
