"""Classifiers of all families: built on any encoder, saved for transformers with the same logits."""

import errno
import json
import subprocess
import sys

import pytest
import torch
import transformers

from electrakit.common.errors import UserError
from electrakit.finetune.classifier import can_hold, load_classifier, load_transformers_tokenizer
from electrakit.finetune.official_head import CLASSIFIER_LAYERS, settings_for, write_head
from electrakit.finetune.tasks import TASKS
from tests.helpers.tiny_glue import write_model, write_tokenizer
from tests.helpers.tiny_models import tiny_config, tiny_discriminator

FAMILIES = sorted(set(CLASSIFIER_LAYERS) - {"camembert"})  # which is RoBERTa by another name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_the_classifier_of_transformers_can_say_what_a_linear_layer_says(family, num_labels):
    torch.manual_seed(0)
    config = tiny_config(family, num_labels=num_labels, **settings_for(family))
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    weight, bias = torch.randn(num_labels, 32), torch.randn(num_labels)
    ids = torch.randint(5, 100, (4, 16))
    with torch.no_grad():
        wanted = model.base_model(ids).last_hidden_state[:, 0] @ weight.T + bias
        assert write_head(model, weight, bias)
        torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-5, atol=1e-5)
    assert wanted.std() > 0.1 or num_labels == 1


@pytest.mark.parametrize("family", ["electra", "bert", "modernbert"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_it_is_as_good_as_a_linear_layer_or_nearly(family, dtype):
    torch.manual_seed(0)
    config = tiny_config(family, num_labels=3, **settings_for(family))
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    weight, bias = torch.randn(3, 32), torch.randn(3)
    ids = torch.randint(5, 100, (64, 16))
    with torch.no_grad():
        assert write_head(model, weight, bias, scale=5.0)
        model.to(dtype)
        states = model.base_model(ids).last_hidden_state[:, 0]
        wanted = 5 * (states.float() @ weight.T + bias)
        plain = 5 * torch.nn.functional.linear(states, weight.to(dtype), bias.to(dtype)).float()
        assert (model(ids).logits.float() - wanted).abs().max() < 4 * (plain - wanted).abs().max()


def test_too_many_labels_for_the_units_are_refused_not_wrong():
    config = tiny_config("electra", num_labels=17)  # two units each, 32 units
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not can_hold(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


SENTENCES = ["bal bel", "bol"], ["good", "bad dil kan"]
OPEN = f"""
import json, sys, torch, transformers
model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
inputs = transformers.AutoTokenizer.from_pretrained(sys.argv[1])(*{SENTENCES}, padding=True, return_tensors="pt")
assert "electrakit" not in sys.modules
print(json.dumps(model(**inputs).logits.tolist()))
"""


def saved(folder, family, head, task):
    """A classifier that has moved a little, saved; and its logits, what labels were divided by multiplied back."""
    place = str(write_model(folder / "encoder", family))
    classifier, notes = load_classifier(place, TASKS[task], head)
    assert notes == []
    tokenizer = load_transformers_tokenizer(place)
    classifier.eval()
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        wanted = classifier(**tokenizer(*SENTENCES, padding=True, return_tensors="pt")) * TASKS[task].scale
    classifier.save(folder / "saved", tokenizer, TASKS[task].scale, {"length": 64})
    return wanted


@pytest.mark.parametrize(
    ("family", "head"),
    [(family, head) for family in ("electra", "bert") for head in ("official", "transformers")]
    + [("modernbert", "mean")],
)
@pytest.mark.parametrize("task", ["mnli", "stsb"])
def test_a_saved_classifier_says_the_same(tmp_path, family, head, task):
    wanted = saved(tmp_path, family, head, task)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    inputs = load_transformers_tokenizer(str(tmp_path / "saved"))(*SENTENCES, padding=True, return_tensors="pt")
    torch.testing.assert_close(model(**inputs).logits, wanted, rtol=1e-5, atol=1e-5)
    labels = model.config.id2label
    assert list(labels.values()) == (list(TASKS[task].labels) if task == "mnli" else ["score"])
    assert model.config.problem_type == ("single_label_classification" if task == "mnli" else "regression")


def test_the_mean_is_over_real_tokens(tmp_path):
    """Against a loop over rows without padding."""
    place = str(write_model(tmp_path / "encoder", "modernbert"))
    classifier, _ = load_classifier(place, TASKS["mnli"], "mean")
    tokenizer = load_transformers_tokenizer(place)
    classifier.eval()
    with torch.no_grad():
        together = classifier(**tokenizer(*SENTENCES, padding=True, return_tensors="pt"))
        for row, (first, second) in enumerate(zip(*SENTENCES, strict=True)):
            states = classifier.model.base_model(**tokenizer(first, second, return_tensors="pt")).last_hidden_state[0]
            torch.testing.assert_close(together[row], classifier.output(torch.stack(list(states)).mean(0)))


def test_a_family_that_cannot_hold_the_mean_is_refused_with_the_way_out(tmp_path):
    for family in ("electra", "bert"):
        place = str(write_model(tmp_path / family, family))
        with pytest.raises(UserError, match=f"--head mean: transformers' {family} classifier .* use --head official"):
            load_classifier(place, TASKS["mnli"], "mean")


@pytest.mark.promise("Fine-tuning", "full disk while a model is saved", "the model before it stays")
def test_a_classifier_that_cannot_be_written_leaves_the_one_before_it(tmp_path):
    saved(tmp_path, "electra", "official", "mnli")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}

    class Unwritable:
        def save_pretrained(self, folder):
            raise OSError(errno.ENOSPC, "no space left")

    classifier, _ = load_classifier(str(tmp_path / "encoder"), TASKS["mnli"])
    with pytest.raises(UserError, match="cannot write"):
        classifier.save(tmp_path / "saved", Unwritable())
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "saved"]


@pytest.mark.long
def test_a_saved_classifier_opens_without_us(tmp_path):
    wanted = saved(tmp_path, "electra", "official", "mnli")
    command = [sys.executable, "-W", "ignore", "-c", OPEN, str(tmp_path / "saved")]
    logits = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    torch.testing.assert_close(torch.tensor(logits), wanted, rtol=1e-5, atol=1e-5)


def test_the_encoder_is_the_one_that_was_pretrained_whatever_its_head_was(tmp_path):
    """An ELECTRA discriminator, and a classifier of another task."""
    torch.manual_seed(0)
    config = tiny_config("electra")
    transformers.ElectraForPreTraining(config).save_pretrained(tmp_path / "discriminator")
    write_tokenizer(tmp_path / "discriminator")
    classifier, _ = load_classifier(str(tmp_path / "discriminator"), TASKS["mnli"])
    theirs = transformers.ElectraModel.from_pretrained(tmp_path / "discriminator").state_dict()
    ours = classifier.model.electra.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    classifier.save(tmp_path / "mnli", load_transformers_tokenizer(str(tmp_path / "discriminator")))
    again, _ = load_classifier(str(tmp_path / "mnli"), TASKS["rte"])
    assert all(torch.equal(again.model.electra.state_dict()[name], value) for name, value in theirs.items())
    assert again.output.out_features == 2
    own, _ = load_classifier(str(tmp_path / "mnli"), TASKS["mnli"], "transformers")
    assert own.model.classifier.dense.weight.std() > 0.01  # a new layer, not the few units of the trick
    assert (own.model.classifier.dense.weight == 0).sum() == 0


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
def test_a_head_of_transformers_does_not_begin_with_that_of_pretraining(tmp_path, family):
    """The discriminator's head has two labels, as SST-2 has, and the name of a classifier's."""
    discriminator = tiny_discriminator(family, id2label={0: "original", 1: "replaced"})
    discriminator.save_pretrained(tmp_path / "pretrained")
    classifier, _ = load_classifier(str(tmp_path / "pretrained"), TASKS["sst2"], "transformers")
    assert not torch.equal(classifier.model.classifier.weight, discriminator.classifier.weight)
    if family == "modernbert":
        assert not torch.equal(classifier.model.head.dense.weight, discriminator.head.dense.weight)
    words = discriminator.get_input_embeddings().weight
    assert torch.equal(classifier.model.get_input_embeddings().weight, words)  # all else is as it was
    classifier.save(tmp_path / "sst2", load_transformers_tokenizer(str(write_tokenizer(tmp_path / "words"))))
    again, _ = load_classifier(str(tmp_path / "sst2"), TASKS["sst2"], "transformers")  # one of ours keeps its head
    assert torch.equal(again.model.classifier.weight, classifier.model.classifier.weight)


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
def test_a_head_of_transformers_does_not_begin_with_the_filled_one(tmp_path, family):
    """The pooler of BERT and ALBERT is a part of their encoder; ModernBERT's filled head needs settings of its own."""
    saved(tmp_path, family, "official", "mnli")
    classifier, _ = load_classifier(str(tmp_path / "saved"), TASKS["mnli"], "transformers")
    dense = classifier.model.get_submodule(CLASSIFIER_LAYERS[family].dense)
    assert (dense.weight == 0).sum() == 0 and 0.015 < dense.weight.std() < 0.025
    fresh = type(classifier.model.config)()
    for name in settings_for(family):
        assert getattr(classifier.model.config, name) == getattr(fresh, name)
    words = transformers.AutoModel.from_pretrained(tmp_path / "saved").get_input_embeddings().weight
    assert torch.equal(classifier.model.get_input_embeddings().weight, words)


def test_the_official_head_begins_glorot_uniform(tmp_path):
    place = str(write_model(tmp_path / "encoder"))
    weight = load_classifier(place, TASKS["mnli"])[0].output.weight
    limit = (6 / (32 + 3)) ** 0.5
    assert 0.9 * limit < weight.abs().max() <= limit


def test_a_family_that_cannot_hold_the_official_head_gets_its_own_and_says_so(tmp_path):
    place = str(write_model(tmp_path / "encoder", "bert", hidden_size=32))
    many = TASKS["mnli"].__class__("many", "many", (), ("text",), (), labels=tuple(f"label{n}" for n in range(40)))
    classifier, notes = load_classifier(place, many)
    assert classifier.head == "transformers"
    assert notes == ["transformers' bert classifier cannot hold the official head: its own is used"]


def test_pickles_are_refused_and_folders_without_a_model_named(tmp_path):
    place = write_model(tmp_path / "encoder", "bert")
    model = transformers.AutoModel.from_pretrained(place)
    (place / "model.safetensors").unlink()
    torch.save(model.state_dict(), place / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle that could run any code"):
        load_classifier(str(place), TASKS["rte"])
    (place / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        load_classifier(str(place), TASKS["rte"])
    with pytest.raises(UserError, match="is not a folder"):
        load_classifier(str(tmp_path / "nowhere"), TASKS["rte"])
    with pytest.raises(UserError, match="'hf/mine' is no folder here, and the Hugging Face hub does not give it"):
        load_classifier("hf/mine", TASKS["rte"])
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_classifier(str(tmp_path), TASKS["rte"])
    bare = tmp_path / "bare"
    model.save_pretrained(bare)
    with pytest.raises(UserError, match="has no tokenizer"):
        load_transformers_tokenizer(str(bare))
    (bare / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot load"):
        load_classifier(str(bare), TASKS["rte"])
