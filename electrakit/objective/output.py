"""The output of an objective, and its sums over an evaluation."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Output(NamedTuple):
    """A step's losses, metrics and tensors. What an objective does not have is None.

    The first seven are those of electra-pytorch, in its order. Metrics are 0-dimensional tensors: nothing waits for the GPU.

    Losses are means over the tokens of this one call. To combine those of several micro-batches or processes, weigh each by its
    `num_tokens`: rows have different lengths, so a plain average would be another number.
    """

    loss: Tensor
    mlm_loss: Tensor | None = None
    """Mean cross-entropy of the generator over the chosen positions."""
    disc_loss: Tensor | None = None
    """Mean loss of the discriminator over the tokens where it is scored."""
    gen_acc: Tensor | None = None
    """How often the generator's most likely token is the original."""
    disc_acc: Tensor | None = None
    """Share of the scored tokens that the discriminator classifies correctly."""
    disc_labels: Tensor | None = None
    """(B, T) bool: the token was replaced by another."""
    disc_predictions: Tensor | None = None
    """(B, T) bool: the discriminator predicts "replaced" (its logit is above 0); False at padding."""
    sampled_acc: Tensor | None = None
    """How often the sampled token is the original."""
    disc_precision: Tensor | None = None
    disc_recall: Tensor | None = None
    replaced_rate: Tensor | None = None
    """Share of the real tokens that were replaced."""
    disc_logits: Tensor | None = None
    """(B, T) float32; 0 where the discriminator is not scored."""
    attended: Tensor | None = None
    """(B, T) bool: not padding."""
    is_scored: Tensor | None = None
    """(B, T) bool: where the discriminator is scored."""
    corrupted: Tensor | None = None
    """(B, T): the ids that the discriminator read (for MaskedLM: that the model read)."""
    positions: Tensor | None = None
    """(B, K): the chosen positions."""
    counts: Tensor | None = None
    """(B, K) bool: which of them count."""
    num_tokens: Tensor | None = None
    """(2,): how many tokens mlm_loss and disc_loss are means over."""
    correct_loss: Tensor | None = None
    """Mean cross-entropy of the discriminator's corrections over the chosen positions."""
    correct_acc: Tensor | None = None
    """How often its most likely token is the original."""
    reward: Tensor | None = None
    """Of a generator that is trained to deceive: the discriminator's mean loss at the chosen positions."""

    @property
    def metrics(self) -> dict[str, Tensor]:
        """The 0-dimensional fields by name, detached, for a log."""
        fields = ((name, value) for name, value in self._asdict().items() if value is not None)
        return {name: value.detach() for name, value in fields if value.ndim == 0}


def ratio(values: Tensor, counted: Tensor) -> Tensor:
    """The sum of values over the number counted, float32; 0 if there are none."""
    return values.sum().float() / counted.sum().clamp(min=1)


def detection_metrics(logits: Tensor, labels: Tensor, is_scored: Tensor) -> dict[str, Tensor]:
    """The discriminator's metrics. A logit above 0 means replaced."""
    predictions = (logits > 0) & is_scored
    is_right = (predictions == labels) & is_scored
    hits = predictions & labels
    return {
        "disc_acc": ratio(is_right, is_scored),
        "disc_precision": ratio(hits, predictions),
        "disc_recall": ratio(hits, labels & is_scored),
        "disc_predictions": predictions,
        "disc_logits": logits.detach(),
        "is_scored": is_scored,
    }


def finds_replaced(objective: nn.Module) -> bool:
    """Whether its discriminator can be asked about any rows, by `replaced_logits` (see `Electra`)."""
    # Asked of the class: a wrapper that hands attributes on may compute something else.
    return hasattr(type(objective), "replaced_logits")


class EvaluationSums:
    """Sums the outputs of an evaluation: every metric over all tokens, as if it had been one batch, and the AUC.

    Across processes, sum `tensors()` in place (all_reduce), or add the objects with +.
    """

    METRICS = (
        *("mlm_loss", "gen_acc", "sampled_acc"),
        *("disc_loss", "disc_acc", "disc_precision", "disc_recall", "replaced_rate"),
        *("correct_loss", "correct_acc"),
    )
    BITS = 20  # of a logit's 32: logits that differ by 1 part in 2,000 are distinguished, whatever their size

    def __init__(self, device: torch.device | str = "cpu") -> None:
        # Of each metric: its sum over all tokens that it is a mean over, and their number.
        self.sums = torch.zeros(len(self.METRICS), 2, dtype=torch.float64, device=device)
        # Logits of original tokens, and of replaced ones.
        self.histogram = torch.zeros(2, 2**self.BITS, dtype=torch.int64, device=device)

    @torch.no_grad()
    def add(self, output: Output) -> "EvaluationSums":
        """Does not wait for the GPU if the sums are there too."""
        present = {name: value for name, value in output._asdict().items() if value is not None}
        output = Output(**{name: value.detach().to(self.sums.device) for name, value in present.items()})
        for name, (total, count) in _sums(output).items():
            self.sums[self.METRICS.index(name)] += torch.stack([total.double(), count.double()])
        if output.disc_logits is not None and output.disc_labels is not None and output.is_scored is not None:
            places = sortable(output.disc_logits, self.BITS) + output.disc_labels * 2**self.BITS  # (B, T)
            self.histogram.view(-1).index_add_(0, places.flatten(), output.is_scored.flatten().long())
        return self

    def tensors(self) -> tuple[Tensor, ...]:
        """What to sum over the processes, in place."""
        return self.sums, self.histogram

    def __add__(self, other: "EvaluationSums") -> "EvaluationSums":
        both = EvaluationSums(self.sums.device)
        for total, one, two in zip(both.tensors(), self.tensors(), other.tensors(), strict=True):
            total += one + two.to(one.device)
        return both

    def result(self) -> dict[str, float]:
        """The metrics by the names of `Output`, and disc_auc. What is undefined (an AUC of one class) is left out."""
        sums = zip(self.METRICS, self.sums.tolist(), strict=True)
        result = {name: total / count for name, (total, count) in sums if count}
        seen = self.histogram[:, self.histogram.sum(0).nonzero().squeeze(-1)]  # of a million possible logits few occur
        if seen.any(-1).all():
            result["disc_auc"] = area_under_curve(seen)
        return result


def _sums(output: Output) -> dict[str, tuple[Tensor, Tensor]]:
    """Of each metric that the output has: its sum over the tokens that it is a mean over, and their number."""
    masks = {
        "mlm_loss": output.counts,
        "gen_acc": output.counts,
        "sampled_acc": output.counts,
        "correct_loss": output.counts,
        "correct_acc": output.counts,
        "replaced_rate": output.attended,
        "disc_loss": output.is_scored,
        "disc_acc": output.is_scored,
    }
    means = output.metrics
    numbers = {name: mask.sum() for name, mask in masks.items() if mask is not None and name in means}
    if (
        output.num_tokens is not None
    ):  # a position that was chosen twice counts twice; Electric's mlm_loss is of all tokens
        numbers |= {name: output.num_tokens[1] for name in ("disc_loss", "disc_acc") if name in numbers}
        numbers |= {name: output.num_tokens[0] for name in ("mlm_loss",) if name in numbers}
    sums = {name: (means[name].double() * number, number) for name, number in numbers.items()}
    labels, predictions, is_scored = output.disc_labels, output.disc_predictions, output.is_scored
    if labels is not None and predictions is not None and is_scored is not None:
        num_hits = (predictions & labels).sum()
        sums["disc_precision"] = (num_hits, predictions.sum())
        sums["disc_recall"] = (num_hits, (labels & is_scored).sum())
    return sums


def sortable(values: Tensor, num_bits: int) -> Tensor:
    """float32 as integers in the same order, 0 .. 2**num_bits - 1: the leading bits, inverted for negative numbers."""
    bits = (values.float() + 0.0).view(torch.int32).long()  # + 0.0: -0.0 becomes 0.0
    return torch.where(bits < 0, ~bits & 0x7FFFFFFF, bits + 0x80000000) >> (32 - num_bits)


def exact_auc(scores: Tensor, labels: Tensor) -> float:
    """The ROC AUC of scores (N,) for bool labels (N,), both of which occur."""
    values, places = scores.unique(return_inverse=True)
    histogram = torch.zeros(2 * len(values)).index_add_(0, places + labels * len(values), torch.ones(len(scores)))
    return area_under_curve(histogram.view(2, -1))


def area_under_curve(histogram: Tensor) -> float:
    """The ROC AUC from counts (2, N) of originals and replaced tokens by ascending logit; ties count a half."""
    originals, replaced = histogram.double()
    below = originals.cumsum(-1) - originals
    return ((replaced * (below + originals / 2)).sum() / (originals.sum() * replaced.sum())).item()
