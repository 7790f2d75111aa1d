"""A linear layer on [CLS] in, transformers' own classifier with the same logits out.

The official head is dropout and one linear layer. The classifiers of transformers have a layer of H units and an activation before
theirs, and yet can say the same, because their two layers are ours to fill:

- `difference` (GELU, ReLU, SiLU): f(x) - f(-x) = x for each of them, whatever x is. Two units for each logit.
- `small` (tanh): 4/3·2s·tanh(x/2s) - 1/3·s·tanh(x/s) = x - x⁵/30s⁴ + ...: the cubic terms cancel, and with s = 2^8 what is left is
  little for a float32, and all weights are in the range of a float16. Two units for each logit.
- `norm` (ModernBERT: no activation, then LayerNorm): the units are x and -x, and all others a constant K and -K. Their mean is 0,
  and their deviation so nearly K that LayerNorm only divides by it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

SMALL = 2.0**8
CONSTANT = 2.0**12


@dataclass(frozen=True)
class TheirHead:
    """Where a family has its two layers."""

    dense: str
    out: str
    kind: Literal["difference", "small", "norm"]


HEADS: dict[str, TheirHead] = {
    "albert": TheirHead("albert.pooler", "classifier", "small"),
    "bert": TheirHead("bert.pooler.dense", "classifier", "small"),
    "camembert": TheirHead("classifier.dense", "classifier.out_proj", "small"),
    "convbert": TheirHead("classifier.dense", "classifier.out_proj", "difference"),
    "deberta": TheirHead("pooler.dense", "classifier", "difference"),
    "deberta-v2": TheirHead("pooler.dense", "classifier", "difference"),
    "distilbert": TheirHead("pre_classifier", "classifier", "difference"),
    "electra": TheirHead("classifier.dense", "classifier.out_proj", "difference"),
    "modernbert": TheirHead("head.dense", "classifier", "norm"),
    "mpnet": TheirHead("classifier.dense", "classifier.out_proj", "small"),
    "roberta": TheirHead("classifier.dense", "classifier.out_proj", "small"),
    "roformer": TheirHead("classifier.dense", "classifier.out_proj", "difference"),
    "xlm-roberta": TheirHead("classifier.dense", "classifier.out_proj", "small"),
}


def settings_for(model_type: str) -> dict[str, Any]:
    """What the config of a classifier needs to be told, so that its head can be filled."""
    if model_type == "modernbert":
        return {"classifier_activation": "linear", "classifier_bias": True, "classifier_pooling": "cls"}
    return {}


@torch.no_grad()
def write_head(model: Any, weight: Tensor, bias: Tensor, scale: float = 1.0) -> bool:
    """Fill the model's classifier so that its logits are `(weight @ [CLS] + bias) * scale`. False if it cannot hold that."""
    head = HEADS.get(model.config.model_type)
    if head is None:
        return False
    dense, out = model.get_submodule(head.dense), model.get_submodule(head.out)
    (num_units, num_inputs), num_labels = dense.weight.shape, len(weight)
    num_wanted = (4 if head.kind == "norm" else 2) * num_labels
    if num_wanted > num_units or num_inputs != weight.shape[1]:
        return False
    _clear(dense, out)
    rows = torch.arange(num_labels)
    if head.kind == "small":
        for unit, size, share in ((2 * rows, SMALL, -1 / 3), (2 * rows + 1, 2 * SMALL, 4 / 3)):
            dense.weight[unit], dense.bias[unit] = weight / size, bias / size
            out.weight[rows, unit] = size * share * scale
        return True
    dense.weight[2 * rows], dense.bias[2 * rows] = weight, bias
    dense.weight[2 * rows + 1], dense.bias[2 * rows + 1] = -weight, -bias
    if head.kind == "difference":
        out.weight[rows, 2 * rows], out.weight[rows, 2 * rows + 1] = scale, -scale
        return True
    num_constant = (num_units - 2 * num_labels) // 2 * 2  # as many of K as of -K
    signs = torch.tensor([1.0, -1.0]).repeat(num_constant // 2)
    dense.bias[2 * num_labels : 2 * num_labels + num_constant] = CONSTANT * signs
    norm = model.get_submodule("head.norm")
    norm.weight.fill_(1.0)
    out.weight[rows, 2 * rows] = CONSTANT * math.sqrt(num_constant / num_units) * scale
    return True


def _clear(*layers: nn.Linear) -> None:
    for layer in layers:
        layer.weight.zero_()
        layer.bias.zero_()
