"""Signals of every kind to export: the earlier one stays, and nothing half written is left."""

import os

import pytest
from transformers import AutoModel

import electrakit as ek
from electrakit.common import atomic
from electrakit.train.signals import SIGNALS
from tests.helpers.command_line import electra


@pytest.mark.promise("Models", "signals of every kind to export", "the earlier export stays", cases=len(SIGNALS))
@pytest.mark.long
def test_a_stopped_export_leaves_the_earlier_one(tiny, tmp_path, monkeypatch, capsys):
    run = ek.pretrain(tiny("run", steps=1, valid_every=100))
    ek.export(run.path, tmp_path / "hf")
    before = {path: path.read_bytes() for path in (tmp_path / "hf").rglob("*") if path.is_file()}
    put_folder = atomic.put_folder
    for number in SIGNALS:

        def stopped(*places, number=number):
            os.kill(os.getpid(), number)
            put_folder(*places)

        monkeypatch.setattr(atomic, "put_folder", stopped)
        assert electra("export", run.path, "--out", tmp_path / "hf", "--overwrite") == 128 + number
        assert "stopped" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in (tmp_path / "hf").rglob("*") if path.is_file()} == before
        assert not list(tmp_path.glob(".hf*"))
    monkeypatch.undo()
    assert electra("export", run.path, "--out", tmp_path / "hf", "--overwrite") == 0
    assert AutoModel.from_pretrained(tmp_path / "hf").num_parameters() > 0
