"""Fills the classifier of transformers so that its logits are those of a linear layer on the state that it reads, [CLS] or the mean.

The classifiers of transformers have two layers: one of H units with an activation, then theirs. Both can be filled so that together
they compute any linear layer:

- `difference` (GELU, ReLU, SiLU): f(x) - f(-x) = x for each of these, whatever x is. Two units for each logit.
- `small` (tanh): 4/3·2s·tanh(x/2s) - 1/3·s·tanh(x/s) = x - x⁵/30s⁴ + ...: the cubic terms cancel. With s = 2^8 the rest is small for
  a float32, and all weights are in the range of a float16. Two units for each logit.
- `norm` (ModernBERT: no activation, then LayerNorm): the units are x and -x, and all others a constant K and -K. Their mean is 0,
  and their deviation so nearly K that LayerNorm only divides by it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from electrakit.config.finetune import ClassifierHead

TANH_SCALE = 2.0**8
NORM_CONSTANT = 2.0**12


@dataclass(frozen=True)
class ClassifierLayers:
    """The names of the two layers of a family's classifier, and how they are filled."""

    dense: str
    out: str
    method: Literal["difference", "small", "norm"]


CLASSIFIER_LAYERS: dict[str, ClassifierLayers] = {
    "albert": ClassifierLayers("albert.pooler", "classifier", "small"),
    "bert": ClassifierLayers("bert.pooler.dense", "classifier", "small"),
    "camembert": ClassifierLayers("classifier.dense", "classifier.out_proj", "small"),
    "convbert": ClassifierLayers("classifier.dense", "classifier.out_proj", "difference"),
    "deberta": ClassifierLayers("pooler.dense", "classifier", "difference"),
    "deberta-v2": ClassifierLayers("pooler.dense", "classifier", "difference"),
    "distilbert": ClassifierLayers("pre_classifier", "classifier", "difference"),
    "electra": ClassifierLayers("classifier.dense", "classifier.out_proj", "difference"),
    "modernbert": ClassifierLayers("head.dense", "classifier", "norm"),
    "mpnet": ClassifierLayers("classifier.dense", "classifier.out_proj", "small"),
    "roberta": ClassifierLayers("classifier.dense", "classifier.out_proj", "small"),
    "roformer": ClassifierLayers("classifier.dense", "classifier.out_proj", "difference"),
    "xlm-roberta": ClassifierLayers("classifier.dense", "classifier.out_proj", "small"),
}


def settings_for(model_type: str, head: ClassifierHead = "official") -> dict[str, str | bool]:
    """Settings of the config with which a classifier can be filled."""
    if model_type == "modernbert":
        pooling = "mean" if head == "mean" else "cls"
        return {"classifier_activation": "linear", "classifier_bias": True, "classifier_pooling": pooling}
    return {}


@torch.no_grad()
def write_head(model: Any, weight: Tensor, bias: Tensor, scale: float = 1.0) -> bool:
    """Fill the model's classifier so that its logits are `(weight @ pooled state + bias) * scale`; False if that is not possible."""
    layers = CLASSIFIER_LAYERS[model.config.model_type]
    dense, out = model.get_submodule(layers.dense), model.get_submodule(layers.out)
    (num_units, num_inputs), num_labels = dense.weight.shape, len(weight)
    num_wanted = (4 if layers.method == "norm" else 2) * num_labels
    if num_wanted > num_units or num_inputs != weight.shape[1]:
        return False
    for parameter in (*dense.parameters(), *out.parameters()):
        parameter.zero_()
    rows = torch.arange(num_labels)
    if layers.method == "small":
        for unit, size, factor in ((2 * rows, TANH_SCALE, -1 / 3), (2 * rows + 1, 2 * TANH_SCALE, 4 / 3)):
            dense.weight[unit], dense.bias[unit] = weight / size, bias / size
            out.weight[rows, unit] = size * factor * scale
        return True
    dense.weight[2 * rows], dense.bias[2 * rows] = weight, bias
    dense.weight[2 * rows + 1], dense.bias[2 * rows + 1] = -weight, -bias
    if layers.method == "difference":
        out.weight[rows, 2 * rows], out.weight[rows, 2 * rows + 1] = scale, -scale
        return True
    num_constant = (num_units - 2 * num_labels) // 2 * 2  # as many of K as of -K
    signs = torch.tensor([1.0, -1.0]).repeat(num_constant // 2)
    dense.bias[2 * num_labels : 2 * num_labels + num_constant] = NORM_CONSTANT * signs
    model.get_submodule("head.norm").weight.fill_(1.0)
    out.weight[rows, 2 * rows] = NORM_CONSTANT * math.sqrt(num_constant / num_units) * scale
    return True
