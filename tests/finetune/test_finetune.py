"""The user's own files: fine-tuned, predicted, in Python and on the command line."""

import inspect
import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import torch
import transformers

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.config.finetune import FinetuneConfig, GlueConfig, PredictConfig, SearchConfig
from electrakit.config.network import NetworkConfig
from electrakit.finetune.finetune import find_data
from electrakit.finetune.job import announce_preset, make_jobs, with_preset
from electrakit.model.networks import Discriminator
from tests.helpers.command_line import electra
from tests.helpers.tiny_glue import VOCABULARY, WORDS, write_glue, write_model, write_tokenizer
from tests.helpers.tiny_models import tiny_discriminator

FAST = {"epochs": 30, "batch_size": 8, "length": 32, "lr": 3e-3, "layer_decay": 1.0, "device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    write_model(folder / "model")
    rows = [(WORDS[number], "good" if number % 2 else "bad", number) for number in range(24)]
    lines = [f"{word} {sign}\t{'yes' if sign == 'good' else 'no'}" for word, sign, _ in rows]
    (folder / "train.tsv").write_text("text\tanswer\n" + "\n".join(lines) + "\n")
    (folder / "test.csv").write_text('text,answer\n"bal, good",yes\n"dem ""bad""",no\n')
    scores = [
        json.dumps({"sentence1": word, "sentence2": sign, "score": 10.5 if sign == "good" else -3.0})
        for word, sign, _ in rows
    ]
    (folder / "scores.jsonl").write_text("\n".join(scores))
    return folder


def test_a_small_encoder_gets_the_small_preset_and_is_told(folder, tmp_path, capsys):
    files = {"train": folder / "train.tsv", "dev": folder / "train.tsv"}
    config = FinetuneConfig(model=str(folder / "model"), **files)
    resolved = with_preset(config)
    assert resolved.preset == "small_budget"
    announce_preset("small_budget", resolved)  # it was asked for
    assert not capsys.readouterr().err
    announce_preset(config.preset, resolved)
    assert "preset small_budget: hidden size 32" in capsys.readouterr().err
    paper = FinetuneConfig(model=str(folder / "model"), preset="paper", **files)
    assert with_preset(paper) is paper
    write_model(tmp_path / "large", hidden_size=256)
    large = with_preset(FinetuneConfig(model=str(tmp_path / "large"), **files))
    assert large.preset == "paper"
    announce_preset("auto", large)
    assert "preset" not in capsys.readouterr().err


@pytest.mark.parametrize(("family", "head"), [("electra", "official"), ("modernbert", "mean")])
def test_the_small_preset_reads_the_mean_where_transformers_can(folder, tmp_path, family, head):
    model = str(write_model(tmp_path / family, family))
    config = FinetuneConfig(
        model=model, preset="small_budget", train=folder / "train.tsv", dev=folder / "train.tsv", label="answer"
    )
    assert [job.settings.head for job in make_jobs(config, find_data(config), tmp_path)] == [head]


def test_classes_are_learned_kept_by_name_and_predicted(folder, tmp_path, capsys):
    result = ek.finetune(
        folder / "model",
        train=folder / "train.tsv",
        dev=folder / "train.tsv",
        test=folder / "test.csv",
        label="answer",
        out=tmp_path / "mine",
        **FAST,
    )
    assert result.median == 1.0
    assert result.task == "classification: 2 classes of 'answer': no, yes; text is 'text'"
    assert result.test["test"]["accuracy"] == 1.0
    assert (tmp_path / "mine" / "test.tsv").read_text() == "index\tprediction\n0\tyes\n1\tno\n"
    text = (tmp_path / "mine" / "results.html").read_text()
    assert "classification: 2 classes of &#39;answer&#39;: no, yes" in text and "test, the best run" in text
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "mine" / "model")
    assert model.config.id2label == {0: "no", 1: "yes"}
    found = ek.predict(tmp_path / "mine" / "model", folder / "test.csv", out=tmp_path / "predicted.tsv", device="cpu")
    assert [row.prediction for row in found] == ["yes", "no"]
    assert all(row.probability > 0.8 for row in found)
    assert (tmp_path / "predicted.tsv").read_text().splitlines()[1].startswith("0\tyes\t0.")
    (tmp_path / "numbered.csv").write_text(',text\n0,"bal, good"\n1,dem\n')  # as pandas writes it
    assert ek.predict(tmp_path / "mine" / "model", tmp_path / "numbered.csv", device="cpu")[0] == found[0]
    assert electra("predict", tmp_path / "mine" / "model", folder / "test.csv", "--out", tmp_path / "mine") == 2
    assert "mine is a folder; name a file for the predictions" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "odd.tsv").write_bytes(b"text\ncaf\xe9\n")
    electra("predict", tmp_path / "mine" / "model", tmp_path / "odd.tsv")
    assert "odd.tsv: 1 rows are not quite UTF-8" in capsys.readouterr().err
    electra("predict", tmp_path / "mine" / "model", folder / "test.csv")
    assert capsys.readouterr().out == (tmp_path / "predicted.tsv").read_text()
    assert electra("predict", tmp_path / "mine" / "model", folder / "train.tsv", "--text", "nothing") == 2
    assert "has the columns text, answer, not 'nothing'; name them with --text" in capsys.readouterr().err


@pytest.mark.long
def test_an_exported_deberta_discriminator_learns_too(folder, tmp_path):
    config = NetworkConfig(
        body="deberta",
        vocab_size=len(VOCABULARY),
        num_layers=2,
        hidden_size=32,
        embedding_size=32,
        ffn_size=64,
        num_heads=2,
        max_length=64,
        position_buckets=16,
        convolution=3,
    )
    torch.manual_seed(0)
    ek.to_transformers(Discriminator(config)).save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    result = ek.finetune(
        tmp_path / "model",
        train=folder / "train.tsv",
        dev=folder / "train.tsv",
        label="answer",
        out=tmp_path / "mine",
        **FAST,
    )
    assert result.median == 1.0
    found = ek.predict(tmp_path / "mine" / "model", folder / "train.tsv", device="cpu")
    assert [row.prediction for row in found] == ["no", "yes"] * 12


@pytest.mark.long
def test_numbers_are_learned_in_their_own_units(folder, tmp_path):
    scores = folder / "scores.jsonl"
    result = ek.finetune(folder / "model", train=scores, dev=scores, out=tmp_path / "mine", **{**FAST, "epochs": 60})
    assert result.task.startswith("regression: numbers of 'score', divided by 10.5")
    assert result.medians["dev"]["pearson"] > 0.95
    found = ek.predict(tmp_path / "mine" / "model", scores, device="cpu")
    assert found[1].prediction == pytest.approx(10.5, abs=2.5)
    assert found[0].prediction == pytest.approx(-3, abs=2.5)


def test_several_seeds_keep_the_best_and_are_not_run_again(folder, tmp_path):
    settings = {"train": folder / "train.tsv", "dev": folder / "train.tsv", "label": "answer", "out": tmp_path / "out"}
    settings |= {**FAST, "epochs": 1, "seeds": 2, "workers": 1}
    result = ek.finetune(folder / "model", **settings)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed_*.json")}
    assert ek.finetune(folder / "model", **settings).scores == result.scores
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed_*.json")} == before
    assert (tmp_path / "out" / "model" / "model.safetensors").exists()
    with pytest.raises(UserError, match=r"out has the results of electra finetune; use another --out for electra glue"):
        ek.glue(folder / "model", data=folder, out=tmp_path / "out")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "results.json").write_text('{"tasks": {}, "average": {}}')
    with pytest.raises(UserError, match=r"table has the results of electra glue"):
        ek.finetune(folder / "model", **settings | {"out": tmp_path / "table"})


def test_a_discriminator_of_pretraining_does_not_predict(tmp_path, capsys):
    """It is a tagger to transformers, and would say "original" of every word."""
    tiny_discriminator("bert", id2label={0: "original", 1: "replaced"}).save_pretrained(tmp_path / "pretrained")
    write_tokenizer(tmp_path / "pretrained")
    (tmp_path / "words.txt").write_text("bal\nbel\n")
    assert electra("predict", tmp_path / "pretrained", tmp_path / "words.txt") == 2
    assert "was not fine-tuned; electra finetune does that" in capsys.readouterr().err


def test_a_task_of_glue_from_the_command_line(folder, tmp_path, capsys, monkeypatch):
    """Without --out in runs/MODEL/TASK."""
    monkeypatch.chdir(tmp_path)
    write_glue(folder / "glue", num_train=16)
    arguments = ["finetune", folder / "model", "--task", "RTE", "--data", folder / "glue"]
    assert electra(*arguments, "--epochs", 1, "--length", 32, "--threads", 1) == 0
    said = capsys.readouterr().out
    assert "dev: accuracy" in said and "RTE train has 16 rows" in said
    assert "runs/model/rte: model/, RTE.tsv, config.json, results.html, results.json\n" in said
    assert len((tmp_path / "runs" / "model" / "rte" / "RTE.tsv").read_text().splitlines()) == 10
    kept = ["--keep", "none", "--out", "no_model"]
    assert electra(*arguments, *kept, "--epochs", 1, "--length", 32, "--threads", 1) == 0
    assert "no_model: RTE.tsv, config.json, results.html, results.json\n" in capsys.readouterr().out


def test_files_of_ones_own_are_named_by_their_file_or_folder():
    files = {"train": "data/reviews/train.tsv", "dev": "data/reviews/dev.tsv"}
    assert FinetuneConfig(model="hf/mine", **files).out == Path("runs/mine/reviews")
    assert SearchConfig(model="hf/mine", **files).out == Path("runs/mine/reviews/search")
    assert FinetuneConfig(model="hf/mine/", **{**files, "train": "Films.jsonl"}).out == Path("runs/mine/films")
    assert FinetuneConfig(model="hf/mine", **files, out="x").out == Path("x")


@pytest.mark.parametrize(
    ("function", "config"),
    [(ek.finetune, FinetuneConfig), (ek.glue, GlueConfig), (ek.search, SearchConfig), (ek.predict, PredictConfig)],
)
def test_the_arguments_are_the_settings_with_their_defaults(function, config):
    parameters = inspect.signature(function).parameters.values()
    found = {each.name: MISSING if each.default is each.empty else each.default for each in parameters}
    wanted = {each.name: each.default for each in fields(config)}
    assert found | {"model": None} == wanted | {"model": None}


def test_the_tokenizer_of_another_model_is_refused(tmp_path, folder):
    model = write_model(tmp_path / "model", vocab_size=20)  # the tokenizer has more
    files = {"train": folder / "train.tsv", "dev": folder / "train.tsv", "label": "answer"}
    with pytest.raises(UserError, match=r"tokenizer of .*model gives the id \d+, but the model has 20 embeddings"):
        ek.finetune(model, **files, out=tmp_path / "x", **FAST)


def test_mistakes_are_one_line(folder, tmp_path, capsys):
    files = ["--train", folder / "train.tsv", "--dev", folder / "train.tsv"]
    assert electra("finetune", folder / "model", *files, "--out", tmp_path) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "name the column of the label with --label" in said
    assert electra("predict", folder / "model", folder / "nothing.tsv") == 2
    assert "nothing.tsv does not exist" in capsys.readouterr().err
    assert electra("predict", folder / "model", folder / "train.tsv") == 2
    assert "is of the class ElectraModel, which was not fine-tuned to predict anything" in capsys.readouterr().err
    with pytest.raises(UserError, match="name either --train and --dev"):
        ek.finetune(folder / "model", out=tmp_path / "x")
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"hf:.* holds no task of GLUE; electra glue --download glue fetches them"):
        ek.glue(folder / "model", data=f"hf:{tmp_path / 'none'}", out=tmp_path / "x")
    with pytest.raises(UserError, match="needs --data"):
        ek.finetune(folder / "model", task="rte", out=tmp_path / "x")
