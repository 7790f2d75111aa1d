"""Frozen states and labels in, a head out: a linear layer that begins as the best linear probe of the states that it reads."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.finetune.classifier import Classifier
from electrakit.finetune.encode import EncodedRows, collate, evaluation_batches

MAX_ROWS = 2000
PENALTY = 10.0  # of half the squared weights, beside the summed loss, for states with variance 1


@torch.no_grad()
def start_with_probe(
    classifier: Classifier,
    rows: EncodedRows,
    row_loss: Callable[[Tensor, Tensor], Tensor],
    pad_id: int,
    device: torch.device,
    seed: int,
) -> None:
    """Fill the head of `classifier` with a probe of at most 2,000 rows. `row_loss`: logits (B, labels), targets (B) -> (B)."""
    chosen = np.random.Generator(np.random.Philox(seed)).permutation(len(rows))[:MAX_ROWS]
    batches = [chosen[batch] for batch in evaluation_batches(rows.lengths[chosen])]
    classifier.eval()
    states = torch.cat([classifier.pooled(**collate(rows, batch, pad_id, device)) for batch in batches])  # (N, H)
    targets = torch.from_numpy(rows.targets(np.concatenate(batches))).to(device)
    weight, bias = fit_probe(states, classifier.output.out_features, lambda logits: row_loss(logits, targets))
    classifier.output.weight.copy_(weight)
    classifier.output.bias.copy_(bias)


def fit_probe(states: Tensor, num_outputs: int, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear layer on states (N, H) with the least penalised loss. `loss_of`: logits -> losses (N)."""
    mean, spread = states.mean(0), states.std(0).clamp(min=1e-6)
    scaled = (states - mean) / spread
    weight, bias = states.new_zeros(num_outputs, states.size(1)), states.new_zeros(num_outputs)
    solver = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()], max_iter=100, line_search_fn="strong_wolfe"
    )

    def penalised_loss() -> Tensor:
        solver.zero_grad()
        loss = loss_of(nn.functional.linear(scaled, weight, bias)).mean()
        loss = loss + PENALTY / 2 * weight.square().sum() / len(states)
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(penalised_loss)
    weight, bias = weight.detach() / spread, bias.detach()
    return weight, bias - weight @ mean
