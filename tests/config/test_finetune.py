"""Settings of fine-tuning: what identifies a result does not change from version to version."""

import json

import pytest

from electrakit.config.finetune import FinetuneConfig, FinetuneSettings, GlueConfig, lmtuners

BEFORE = {  # as earlier versions wrote it into the results of runs
    "lr": 0.0003,
    "epochs": 3,
    "batch_size": 32,
    "length": 128,
    "warmup": 0.1,
    "layer_decay": 0.8,
    "top_layer_power": 1,
    "weight_decay": 0.0,
    "dropout": 0.1,
    "max_grad_norm": 1.0,
    "loss": "mean",
    "adam": "corrected",
    "head": "official",
    "precision": "float32",
}


def test_a_result_of_an_earlier_version_stays_valid():
    """Not only equal: fingerprints are made of the text."""
    settings = lmtuners("small", "cola", 3, None)  # what `paper` was before it had the authors' Adam
    assert json.dumps(settings.identity()) == json.dumps(BEFORE)
    assert FinetuneSettings.from_json(BEFORE) == settings
    assert settings.precision == "fp32"
    assert FinetuneSettings(precision="bfloat16").identity()["precision"] == "bfloat16"


@pytest.mark.parametrize(("old", "new"), [("float32", "fp32"), ("bfloat16", "bf16")])
def test_precisions_are_spelt_as_in_pretraining_and_the_older_names_are_taken(old, new, tmp_path):
    config = GlueConfig(model="m", data="g", out="o", precision=old)
    assert config == GlueConfig(model="m", data="g", out="o", precision=new)
    assert config.settings("small", "rte", 10).precision == config.to_json()["precision"] == new
    (tmp_path / "best.json").write_text(json.dumps({"settings": {"precision": old}}))
    files = {"train": "a.tsv", "dev": "b.tsv", "preset": str(tmp_path / "best.json")}
    assert FinetuneConfig(model="m", **files).settings("small", "", 3).precision == new
