"""Layer-wise learning rates, the schedule, and Adam as the official code has it."""

import pytest
import torch
import transformers
from torch import nn

from electrakit.common.errors import UserError
from electrakit.config.finetune import (
    FINETUNE_PRESETS,
    FinetuneSettings,
    lmtuners,
    official,
    paper,
    preset_for,
    size_of,
    small_budget,
)
from electrakit.config.optim import OptimConfig
from electrakit.finetune.classifier import Classifier, load_classifier
from electrakit.finetune.optimizer import build_optimizer, depth_of, finetune_lr, layerwise_groups, set_lr
from electrakit.finetune.tasks import TASKS
from electrakit.train.optim import RunOptimizer
from tests.helpers.tiny_glue import write_model
from tests.helpers.tiny_models import FAMILIES, tiny_config


def lr_factors(classifier, settings):
    groups = layerwise_groups(classifier, settings)
    names = {id(parameter): name for name, parameter in classifier.named_parameters()}
    return {names[id(parameter)]: group["lr_factor"] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("name", ["weight_decay", "top_layer_power"])
def test_what_would_make_weights_or_rates_grow_is_refused(name):
    with pytest.raises(UserError, match=f"{name} must be 0 or more, got -1"):
        FinetuneSettings(**{name: -1})
    assert FinetuneSettings(**{name: 0})


def test_layers_learn_slower_the_further_down_they_are(tmp_path):
    """Official: head 1, top layer .64, embeddings .8^(n+2); the paper: one power less below the head."""
    classifier, _ = load_classifier(
        str(write_model(tmp_path / "encoder", "electra", num_hidden_layers=12)), TASKS["rte"]
    )
    for settings, power in ((official("small", "rte", 10, None), 2), (paper("small", "cola", 3, None), 1)):
        found = lr_factors(classifier, settings)
        assert found["output.weight"] == 1.0
        assert found["model.electra.encoder.layer.11.output.dense.weight"] == pytest.approx(0.8**power)
        assert found["model.electra.encoder.layer.0.attention.self.query.bias"] == pytest.approx(0.8 ** (11 + power))
        assert found["model.electra.embeddings.word_embeddings.weight"] == pytest.approx(0.8 ** (12 + power))
        assert found["model.electra.embeddings_project.weight"] == pytest.approx(0.8 ** (12 + power))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_trained_once_and_every_family_has_depths(family):
    model = transformers.AutoModelForSequenceClassification.from_config(tiny_config(family, num_labels=2))
    classifier = Classifier(model, "official")
    groups = layerwise_groups(classifier, FinetuneSettings(weight_decay=0.1))
    parameters = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(parameters) == sorted(id(parameter) for parameter in classifier.parameters())
    depths = {depth_of(name) for name, _ in classifier.named_parameters()}
    assert depths >= ({0, 1, None} if family == "albert" else {0, 1, 2, None})
    for group in groups:
        assert all((parameter.ndim > 1) == (group["weight_decay"] > 0) for parameter in group["params"])


def test_the_rate_rises_for_a_tenth_and_falls_to_nothing():
    settings = FinetuneSettings(lr=1.0, warmup=0.1)
    rates = [finetune_lr(settings, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[-1] == pytest.approx(1 / 90)
    theirs = [finetune_lr(FinetuneSettings(lr=1.0, warmup=0.1, adam="official"), step, 100) for step in range(100)]
    assert theirs == pytest.approx([(1 - step / 100) * min(1, step / 10) for step in range(100)])
    assert finetune_lr(settings, 0, 1) == 1.0


def test_official_adam_corrects_no_bias():
    """Against the formula written out in numpy's way, in float64."""
    torch.manual_seed(0)
    settings = FinetuneSettings(lr=0.01, weight_decay=0.1, adam="official", warmup=0.2)
    layer = nn.Linear(4, 3, dtype=torch.float64)
    weight = layer.weight.detach().clone()
    average, square = torch.zeros_like(weight), torch.zeros_like(weight)
    optimizer = build_optimizer(layer, settings)
    for step in range(20):
        gradient = torch.randn_like(weight)
        layer.weight.grad, layer.bias.grad = gradient.clone(), torch.zeros(3, dtype=torch.float64)
        set_lr(optimizer, settings, step, 20)
        optimizer.step()
        average = 0.9 * average + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        lr = 0.01 * (1 - step / 20) * min(1, step / 4)
        weight = weight - lr * (average / (square.sqrt() + 1e-6) + 0.1 * weight)
    torch.testing.assert_close(layer.weight.detach(), weight)


def test_pretraining_has_the_same_official_adam():
    """Bit for bit."""
    torch.manual_seed(0)
    settings = FinetuneSettings(lr=0.01, weight_decay=0.1, adam="official")
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer = build_optimizer(ours, settings)
    other = RunOptimizer(theirs, OptimConfig(name="official_adam", weight_decay=0.1))
    for step in range(20):
        for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            yours.grad = mine.grad.clone()
        set_lr(optimizer, settings, step, 20)
        optimizer.step()
        other.step(finetune_lr(settings, step, 20), torch.tensor(True))
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


def test_presets_are_the_published_settings():
    assert [paper(size, "cola", 3, None).lr for size in ("small", "base", "large")] == [3e-4, 1e-4, 5e-5]
    assert [paper(size, "cola", 3, None).layer_decay for size in ("small", "base", "large")] == [0.8, 0.8, 0.9]
    assert paper("small", "rte", 10, "MNLI, seed 1").lr == 2e-5
    assert paper("small", "rte", 10, None).lr == 3e-4
    assert paper("base", "cola", 3, None).adam == "official"
    assert lmtuners("small", "rte", 10, None).lr == 2e-5
    assert lmtuners("small", "cola", 3, None).adam == "corrected"
    theirs = official("small", "cola", 3, None)
    assert (theirs.loss, theirs.weight_decay, theirs.top_layer_power, theirs.adam) == ("sum", 0.01, 2, "official")
    assert (theirs.lr, official("large", "cola", 3, None).lr) == (1e-4, 5e-5)
    assert set(FINETUNE_PRESETS) == {"paper", "small_budget", "official", "lmtuners", "seed"}
    assert [size_of(hidden) for hidden in (128, 256, 768, 1024)] == ["small", "small", "base", "large"]


def test_the_small_preset_is_for_encoders_smaller_than_the_papers():
    assert [preset_for(hidden) for hidden in (128, 255, 256, 768)] == ["small_budget", "small_budget", "paper", "paper"]
    small, usual = small_budget("small", "cola", 3, None), paper("small", "cola", 3, None)
    assert small.lr == usual.lr and small.layer_decay == 1.0  # all layers learn alike
    assert (small.epochs, small.batch_size, small.length) == (usual.epochs, usual.batch_size, usual.length)
    assert small_budget("small", "rte", 10, "MNLI, seed 1").epochs == 10


@pytest.mark.parametrize("change", [{"lr": 0}, {"epochs": -1}, {"warmup": 1.0}, {"length": 2}, {"lr": float("nan")}])
def test_settings_that_make_no_sense_are_named(change):
    with pytest.raises(UserError, match=next(iter(change))):
        FinetuneSettings(**change)
