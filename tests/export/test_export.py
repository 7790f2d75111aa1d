"""Export: transformers loads the trained weights; the folder is written atomically, with a correct model card."""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch import nn

import electrakit as ek
from electrakit.cli.main import main
from electrakit.common.safe_load import weights_fingerprint
from electrakit.config.outputs import ExportConfig
from electrakit.config.pretrain import override
from electrakit.export.card import draw_losses
from electrakit.export.card_facts import facts_of_run
from electrakit.export.export import find_checkpoint, require_kept
from electrakit.export.networks import load_networks
from electrakit.finetune.read_glue import read_split
from electrakit.finetune.results import GlueResults, JobResult, average, summarise_glue
from electrakit.finetune.tasks import TASKS
from electrakit.model.huggingface.write_model import outputs
from electrakit.report.scores import flops_of
from electrakit.runs.files import PretrainRun, read_run
from electrakit.train.checkpoint import write_manifest
from tests.helpers.tiny_models import Wordwise, tiny_discriminator, tiny_generator

SMALL = {"num_layers": 1, "hidden_size": 32, "ffn_size": 64, "num_heads": 2, "embedding_size": 32}
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "README.md"}
FILES |= {"training.png"}
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
CLASSES = {  # of transformers: discriminator, generator, classifier
    "tiny": ("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForSequenceClassification"),
    "modern_tiny": (
        "ModernBertForTokenClassification",
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
    ),
    "deberta_mini": (
        "DebertaV2ForTokenClassification",
        "DebertaV2ForMaskedLM",
        "DebertaV2ForSequenceClassification",
    ),
    "electra_small_owt": ("BertForTokenClassification", "BertForMaskedLM", "BertForSequenceClassification"),
    "alectra_small": ("AlbertForTokenClassification", "AlbertForMaskedLM", "AlbertForSequenceClassification"),
    "electra_albert_generator": ("BertForTokenClassification", "AlbertForMaskedLM", "BertForSequenceClassification"),
    "mlm_small": ("ElectraForMaskedLM", None, "ElectraForSequenceClassification"),
    "electric_small": ("ElectraForPreTraining", None, "ElectraForSequenceClassification"),
    "all_tokens_mlm": ("ElectraForMaskedLM", "ElectraForMaskedLM", "ElectraForSequenceClassification"),
}
Made = Callable[..., PretrainRun]


@pytest.fixture(scope="module")
def made(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """`made("tiny")`: a run of four steps, each preset trained once."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}

    def made(preset: str = "tiny") -> PretrainRun:
        if preset not in runs:
            settings = {"length": 32, "vocab_size": 120, "steps": 4, "batch_size": 8, "micro_batch": 8, "log_every": 1}
            settings |= {"valid_every": 2, "save_every": 2, "valid_rows": 16, "precision": "fp32"}
            config = getattr(ek.presets, preset)(data=shards, run=folder / preset)
            networks = dict.fromkeys(config.networks, SMALL)
            runs[preset] = ek.pretrain(override(config, settings, networks, {"optim": {"warmup_steps": 1}}))
        return runs[preset]

    return made


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    """The folder of a run that a test may damage."""
    return Path(shutil.copytree(made("tiny").path, tmp_path / "copy"))


def code_of(card: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)


def open_checked(name: str, place: Path, **settings: Any) -> tuple[Any, set[str]]:
    """With the class of that name: the model, and what is missing of it."""
    model, info = getattr(transformers, name).from_pretrained(place, output_loading_info=True, **settings)
    return model.eval(), set(info["missing_keys"])


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.promise("Models", "export of each kind of run", "transformers computes the same")
@pytest.mark.long
@pytest.mark.parametrize("preset", CLASSES)
def test_each_kind_of_run_opens_with_transformers_alone(made, tmp_path, preset):
    run, out = made(preset), tmp_path / "hf" / "mine"
    exported = ek.export(run, out)
    discriminator, generator, classifier = CLASSES[preset]
    parts = {"discriminator": out} | ({"generator": out / "generator"} if generator else {})
    assert set(exported.differences) == set(parts) and max(exported.differences.values()) <= 1e-5
    assert (out / "generator").exists() == (generator is not None)
    assert all((run.checkpoint / name / "tokenizer.json").exists() for name in parts)  # a checkpoint needs no shards
    sentence = "a b c d"
    for (name, place), kind in zip(parts.items(), (discriminator, generator), strict=False):
        assert {path.name for path in place.iterdir() if path.is_file()} - {"electrakit.json"} == FILES
        assert not list(place.glob("*.py")) and "auto_map" not in json.loads((place / "config.json").read_text())
        model, missing = open_checked(kind, place)
        assert not missing
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        assert tokenizer.model_max_length == model.config.max_position_embeddings
        with torch.no_grad():  # it takes what it is given
            assert model(**tokenizer(sentence, return_tensors="pt")).logits.isfinite().all()
        own = next(part for part in load_networks(run.path, run.checkpoint) if part.name == name)
        ids = torch.tensor([[2, 7, 9, 11, 3, 20, 21, 3, 0, 0], [2, 8, 9, 3, 22, 23, 24, 25, 26, 3]])
        with torch.no_grad():
            ours, theirs = (outputs(network, own.head, ids, SPECIAL)[ids != 0] for network in (own.network, model))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    body, missing = open_checked("AutoModel", out)
    assert all("pooler" in name for name in missing)  # BERT's pooler was never trained: it is no part of ELECTRA
    for name in (classifier, "AutoModelForSequenceClassification"):
        model, missing = open_checked(name, out)
        assert type(model).__name__ == classifier and all("pooler" in key or "classifier" in key for key in missing)
        same = {key: value for key, value in body.state_dict().items() if "pooler" not in key}
        theirs = model.base_model.state_dict()
        assert same and all(torch.equal(value, theirs[key]) for key, value in same.items())


@pytest.mark.parametrize(
    "preset",
    [
        "tiny",
        "mlm_small",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("modern_tiny", "deberta_mini", "alectra_small")),
    ],
)
def test_the_code_in_the_card_runs(made, tmp_path, preset, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ek.export(made(preset), "hf/mine")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, code in enumerate(blocks := code_of(Path("hf/mine/README.md"))):
            exec(compile(code, f"block {number}", "exec"), {})
    assert len(blocks) == (2 if preset == "mlm_small" else 3)
    assert ("[CLS]" in printed.getvalue()) == (preset != "mlm_small")  # which tokens look replaced
    assert "'token_str'" in printed.getvalue()  # of fill-mask
    if preset != "mlm_small":
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code_of(Path("hf/mine/generator/README.md"))[0], {})


def test_the_generator_fills_masks_and_the_names_of_labels_are_words(made, tmp_path):
    ek.export(made("electra_small_owt"), tmp_path / "hf")
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "hf" / "generator"))
    assert len(fill("a [MASK] b")) == 5
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.id2label == {0: "original", 1: "replaced"}


@pytest.mark.promise("Models", "weights that do not arrive in an export", "refused, nothing left")
def test_weights_that_do_not_arrive_are_found_and_nothing_is_left(made, tmp_path, monkeypatch):
    save = transformers.PreTrainedModel.save_pretrained

    def save_something_else(self: Any, *args: Any, **settings: Any) -> Any:
        other = type(self)(self.config)
        other.load_state_dict(self.state_dict())
        next(other.parameters()).data[7, :5] += 0.5
        return save(other, *args, **settings)

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", save_something_else)
    with pytest.raises(
        ek.UserError, match=r"the discriminator as transformers reads it .* logits differ by \d.*nothing"
    ):
        ek.export(made(), tmp_path / "hf")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_checkpoint_that_was_asked_for_is_exported(made, copied, tmp_path):
    weights = {}
    for asked in ("last", "best", "2", 4):
        exported = ek.export(copied, tmp_path / "hf" / str(asked), checkpoint=asked)
        weights[str(asked)] = load_file(exported.path / "model.safetensors")[
            "electra.embeddings.word_embeddings.weight"
        ]
        assert exported.step == {"2": 2}.get(str(asked), 4)  # the loss falls: the last is the best
    assert torch.equal(weights["last"], weights["4"]) and torch.equal(weights["last"], weights["best"])
    assert not torch.equal(weights["last"], weights["2"])
    one = ek.export(copied / "checkpoints" / "step_0000002", tmp_path / "hf" / "folder")
    assert one.step == 2 and "step 2" in (one.path / "README.md").read_text()


@pytest.mark.promise("Models", "export of a damaged checkpoint", "refused")
@pytest.mark.parametrize("name", ["model.safetensors", "discriminator/tokenizer.json"])
def test_a_damaged_checkpoint_is_refused(copied, tmp_path, name):
    path = copied / "checkpoints" / "step_0000004" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ek.UserError, match=rf"step_0000004 is damaged \({name} is not what .*--checkpoint 2"):
        ek.export(copied, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    assert ek.export(copied, tmp_path / "hf", checkpoint="2").step == 2


@pytest.mark.promise("Models", "checkpoint removed during an export", "one line")
def test_a_checkpoint_that_the_training_removes_meanwhile_is_told(copied):
    place = copied / "checkpoints" / "step_0000002"
    with pytest.raises(FileNotFoundError), require_kept(place):
        (place / "no-such-file").read_bytes()
    with pytest.raises(ek.UserError, match="step_0000002 was removed while it was read"), require_kept(place):
        shutil.rmtree(place)
        load_networks(copied, place)


def test_bad_input_is_named_in_one_line(made, copied, tmp_path, capsys):
    empty = tmp_path / "begun"
    shutil.copytree(copied, empty)
    shutil.rmtree(empty / "checkpoints")
    never = tmp_path / "never"
    shutil.copytree(copied, never)
    for place in (never / "checkpoints").iterdir():
        state = json.loads((place / "state.json").read_text())
        (place / "state.json").write_text(json.dumps({**state, "best_step": None}))
        (place / "manifest.json").unlink()
        write_manifest(place)
    (tmp_path / "file").write_text("x")
    model = ek.export(copied, tmp_path / "model").path
    mistakes = {
        (str(tmp_path / "nothing"),): "is no folder: name the folder that electra pretrain wrote",
        (str(tmp_path),): "has no config.json of a run",
        (str(model),): "is a transformers model already",
        (str(empty),): "has no checkpoint yet; the first is written after 2 steps",
        (str(copied), "--checkpoint", "3"): "has no checkpoint of step 3; there are checkpoints of 2, 4",
        (str(copied), "--checkpoint", "²"): "use last, best or a step",
        (str(copied), "--checkpoint", "newest"): "use last, best or a step: there are checkpoints of 2, 4",
        (str(never), "--checkpoint", "best"): "was never validated",
        (str(copied), "--glue", str(tmp_path)): "has no results.json; name the folder that electra glue wrote",
        (str(copied), "--dry-run"): "--dry-run goes with --push",
        (str(copied), "--push", "a/b/c", "--dry-run"): "'a/b/c' is no name of a repository",
        (str(copied), "--out", str(tmp_path / "file")): "is a file; name another --out",
        (str(copied), "--out", str(tmp_path / "file" / "below")): "cannot write",
    }
    for arguments, message in mistakes.items():
        out = [] if "--out" in arguments else ["--out", str(tmp_path / "hf")]
        with pytest.raises(SystemExit) as stop:
            main(["export", *arguments, *out])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and message in error and error.count("\n") == 1, error
    assert not (tmp_path / "hf").exists()


def test_the_same_command_again_gives_the_same_bytes(made, tmp_path):
    out = tmp_path / "hf" / "mine"
    ek.export(made(), out)
    before = bytes_of(out)
    (out.parent / ".mine.unfinished").mkdir()  # what a kill leaves behind
    ek.export(made(), out)
    assert bytes_of(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["mine"]


def test_what_others_wrote_is_never_replaced(made, tmp_path, monkeypatch):
    out = tmp_path / "hf"
    out.mkdir()
    ek.export(made(), out)  # an empty folder may be used
    with pytest.raises(ek.UserError, match=r"is the export of another run \(tiny, this one is mlm_small\)"):
        ek.export(made("mlm_small"), out)
    (out / "LICENSE").write_text("mine")
    with pytest.raises(ek.UserError, match="LICENSE was not written by us, and would be lost"):
        ek.export(made(), out)
    (out / "LICENSE").unlink()
    card = out / "README.md"
    card.write_text(card.read_text() + "more")
    with pytest.raises(ek.UserError, match=r"README\.md was changed by hand, and would be lost"):
        ek.export(made(), out)
    assert card.read_text().endswith("more")
    card.write_text(card.read_text().removesuffix("more"))
    save = transformers.PreTrainedModel.save_pretrained

    def save_while_others_write(*args: Any, **settings: Any) -> Any:
        (out / "notes.txt").write_text("mine")
        return save(*args, **settings)

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", save_while_others_write)
    with pytest.raises(ek.UserError, match=r"notes\.txt was not written by us"):
        ek.export(made(), out)
    assert (out / "notes.txt").read_text() == "mine" and [path.name for path in tmp_path.iterdir()] == ["hf"]
    (out / "electrakit.json").unlink()
    with pytest.raises(ek.UserError, match="is not empty, and not an export of electra"):
        ek.export(made(), out)


# --- own pairs ---------------------------------------------------------------------------------------------------------


def own_pair(generator: nn.Module, discriminator: nn.Module) -> ek.Electra:
    settings = {"mask_token_id": 4, "pad_token_id": 0, "sep_token_id": 3, "mask_ignore_token_ids": [2, 3]}
    return ek.Electra(generator, discriminator, num_tokens=120, **settings)


def test_a_pair_of_transformers_models_of_ones_own_is_exported(tiny, tmp_path):
    pair = own_pair(tiny_generator("roberta", vocab_size=120), tiny_discriminator("distilbert", vocab_size=120))
    run = ek.pretrain(tiny(steps=1, save_every=1), objective=pair)
    ek.export(run, tmp_path / "hf")
    model = transformers.DistilBertForTokenClassification.from_pretrained(tmp_path / "hf")
    trained = load_file(run.checkpoint / "model.safetensors")
    name = "distilbert.transformer.layer.0.ffn.lin1.weight"
    assert torch.equal(model.state_dict()[name], trained[f"discriminator.model.{name}"])
    assert (tmp_path / "hf" / "generator" / "model.safetensors").exists()
    card = (tmp_path / "hf" / "README.md").read_text()
    # the networks of the settings were not used
    assert "The networks are those of its author" in card and '"num_layers"' not in card


@pytest.mark.filterwarnings("ignore:.*is not told what is padding")
def test_a_plain_module_has_no_form_for_transformers_and_that_is_said(tiny, tmp_path):
    class Words(Wordwise):
        def __init__(self, num_outputs: int) -> None:
            super().__init__(num_outputs)
            self.words = nn.Embedding(120, 8)

    run = ek.pretrain(tiny(steps=1, save_every=1), objective=own_pair(Words(120), Words(1)))
    with pytest.raises(ek.UserError, match=r"is a module of your own.*`discriminator\.\*` in .*model\.safetensors"):
        ek.export(run, tmp_path / "hf")


# --- the card ----------------------------------------------------------------------------------------------------------


def write_results(
    folder: Path, weights: str | None = None, warnings: tuple[str, ...] = (), unreleased: tuple[str, ...] = ()
) -> None:
    """results.json as `electra glue` writes it, of three runs of three tasks. `unreleased`: splits with one row only."""

    def result(title: str, metric: str, seed: int, score: float) -> JobResult:
        scores = {"dev": {metric: score}}
        if title == "MNLI":
            scores = {"dev": {metric: score + 0.1}, "dev_mismatched": {metric: score - 0.1}}
        more: dict[str, Any] = {"collapsed": ["one class"] if score < 0.5 else [], "scores": scores}
        more["warnings"] = [warning for warning in warnings if warning.startswith(title)]
        more |= {"start_from": None, "head": "official", "identity": {"settings": {}}, "seconds": {"all": 1.0}}
        released = {split: TASKS[title.lower()].split(split).num_rows for split in scores}
        answers = {split: [0] * (1 if f"{title} {split}" in unreleased else released[split]) for split in scores}
        more |= {"losses": [], "files": [], "answers": answers}
        return JobResult(title=title, metric=metric, seed=seed, score=score, **more)

    tasks = {
        "cola": [result("CoLA", "matthews", seed, score) for seed, score in enumerate([0.51, 0.2, 0.53], 1)],
        "mnli": [result("MNLI", "accuracy", seed, score) for seed, score in enumerate([0.7, 0.71, 0.72], 1)],
        "rte": [result("RTE", "accuracy", seed, score) for seed, score in enumerate([0.6, 0.62, 0.7], 1)],
    }
    folder.mkdir(exist_ok=True)
    found = summarise_glue(tasks, {})
    medians = {name: task.median for name, task in found.items()}
    results = GlueResults(model="hf/mine", weights=weights, tasks=found, average=average(medians))
    (folder / "results.json").write_text(json.dumps(results.as_json()))


def test_the_card_has_the_hubs_metadata(made, copied, tmp_path):
    write_results(copied / "glue")
    exported = ek.export(copied, tmp_path / "mine", licence="apache-2.0")
    card = ModelCard.load(tmp_path / "mine" / "README.md", ignore_metadata_errors=False)
    assert card.data.library_name == "transformers" and card.data.license == "apache-2.0"
    assert {"electra", "electrakit"} <= set(card.data.tags) and card.data.pipeline_tag is None
    assert card.data.model_name == "mine"
    found = {one.dataset_config: one for one in card.data.eval_results}
    assert found["cola"].metric_type == "matthews_correlation" and found["cola"].metric_value == 0.51
    assert found["rte"].metric_value == 0.62 and found["rte"].dataset_type == "nyu-mll/glue"
    mnli = {one.dataset_split: one.metric_value for one in card.data.eval_results if one.dataset_config == "mnli"}
    assert mnli == {"validation_matched": 0.81, "validation_mismatched": 0.61}  # not their mean, which is in the table
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()  # there and back
    text = card.text
    assert re.search(r"\| CoLA \| matthews \| 51\.0 \| \d+\.\d \| 20\.0 \| 53\.0 \| 3 \| 1 of 3 \|", text)
    assert "3 tasks only, which is not the average of the papers" in text and "TODO: no licence" not in text
    assert "does not say which weights it scored" in exported.notes[0]  # a model of the hub, or an older version
    assert "- The results do not say which weights were scored" in text
    generator = ModelCard.load(tmp_path / "mine" / "generator" / "README.md")
    assert generator.data.pipeline_tag == "fill-mask" and generator.data.eval_results is None


def test_a_score_on_other_rows_is_none_of_the_released_dataset(made, copied, tmp_path):
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "CoLA" / "dev.tsv").write_text("gj04\t1\t\tThe sailors rode the breeze.\n")
    (tmp_path / "MNLI").mkdir()
    (tmp_path / "MNLI" / "dev_mismatched.tsv").write_text("sentence1\tsentence2\tgold_label\na\tb\tneutral\n")
    splits = [(TASKS[name], TASKS[name].split(split)) for name, split in (("cola", "dev"), ("mnli", "dev_mismatched"))]
    warnings = [warning for task, split in splits for warning in read_split(str(tmp_path), task, split).warnings]
    warnings.append("RTE test has 3 rows, the released one 3,000")
    write_results(copied / "glue", warnings=tuple(warnings), unreleased=("CoLA dev", "MNLI dev_mismatched"))
    ek.export(copied, tmp_path / "mine")
    card = ModelCard.load(tmp_path / "mine" / "README.md")
    found = [(one.dataset_config, one.dataset_split) for one in card.data.eval_results]
    assert found == [("mnli", "validation_matched"), ("rte", "validation")]
    assert "- CoLA dev has 1 rows, the released one 1,043" in card.text
    assert "- MNLI dev_mismatched has 1 rows, the released one 9,832" in card.text


def test_scores_of_other_weights_do_not_get_into_the_card(copied, tmp_path, capsys):
    out, glue = tmp_path / "mine", copied / "glue"
    weights = weights_fingerprint(ek.export(copied, out).path)
    write_results(glue, weights)
    own = ek.export(copied, out)  # again, with its scores
    assert weights_fingerprint(out) == weights and own.notes == []
    text = (out / "README.md").read_text()
    assert "| CoLA | matthews | 51.0" in text and "Mind:" not in text
    with pytest.raises(ek.UserError, match=r"--glue .* has the scores of other weights than these \(of hf/mine\)"):
        ek.export(copied, tmp_path / "refused", checkpoint=2, glue=glue)
    assert not (tmp_path / "refused").exists()
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(copied), "--checkpoint", "2", "--out", str(tmp_path / "earlier")])
    assert f"{glue} has the scores of other weights than these (of hf/mine): left out" in capsys.readouterr().out
    assert "## GLUE\n\nNot measured." in (tmp_path / "earlier" / "README.md").read_text()


def test_the_card_says_what_is_known_and_what_is_not(made, copied, shards, tmp_path):
    ek.export(copied, tmp_path / "mine")
    text = (tmp_path / "mine" / "README.md").read_text()
    manifest = json.loads((shards / "manifest.json").read_text())
    last, flops = made().metrics("valid")[-1], flops_of(read_run(copied))  # as in the report
    for known in (
        f"| documents | {manifest['counts']['documents']:,} |",
        f"| tokens | {manifest['counts']['tokens']:,}, of them",
        "| sources | 1 file, 0.0 MB: `corpus.txt` |",
        "| steps | 4, of 8 rows of 32 tokens |",
        f"| compute | {flops:.2e} FLOPs, counted as in the ELECTRA paper |".replace("+", ""),
        f"| discriminator | AUC (0.5 is chance) | {last['disc_auc']:.3f} |",
        f"| generator | loss (nats per chosen token) | {last['mlm_loss']:.3f} |",
        f"torch {torch.__version__}",
        "**TODO: no licence has been chosen.**",
        "## GLUE\n\nNot measured.",
        "It is trained little",
        "the positions behind 32 were never trained",
        "![losses",
    ):
        assert known in text, known
    assert "license" not in text.split("---")[1] and str(copied) not in text and str(shards) not in text
    stored = json.loads((copied / "config.json").read_text())
    other = Path(shutil.copytree(shards, tmp_path / "shards"))
    manifest["splits"]["train"]["files"][0]["xxh3_128"] = "0" * 32
    manifest["counts"]["documents"] = 123456
    (other / "manifest.json").write_text(json.dumps(manifest))
    for place in ("gone", str(other)):  # there may be other shards by now
        stored["settings"]["data"] = place
        (copied / "config.json").write_text(json.dumps(stored))
        ek.export(copied, tmp_path / "without")
        text = (tmp_path / "without" / "README.md").read_text()
        assert f"{manifest['splits']['train']['rows']:,} rows of 32 tokens (the shards were gone" in text
        assert "123,456" not in text


def test_the_picture_has_no_line_from_before_the_first_step(copied):
    config = ExportConfig(run=copied, out="hf")
    run, checkpoint = find_checkpoint(config)
    lines = [line for line in run.lines if line["step"] > 0]
    before = {**next(line for line in lines if line["split"] == "valid"), "step": 0, "mlm_loss": 5.0, "disc_loss": 0.69}
    with_it, without = (
        draw_losses(facts_of_run(config, replace(run, lines=each), checkpoint, None))
        for each in ([before, *lines], lines)
    )
    assert with_it == without


def test_the_picture_is_of_this_run(made, tmp_path):
    from matplotlib.image import imread

    ek.export(made(), tmp_path / "pair")
    ek.export(made("mlm_small"), tmp_path / "one")
    pair, one = (imread(tmp_path / name / "training.png") for name in ("pair", "one"))
    assert pair.shape[1] == 2 * one.shape[1]  # a panel for each network
    assert pair.std() > 0.05
