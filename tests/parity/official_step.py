"""One pretraining step of google-research/electra, written in loops and lists: slow, and easy to check.

The networks are passed in; everything between them is here. Random numbers are passed in too: where the official code draws from
the candidates, choice j takes candidate number floor(u * how many); where it samples from a softmax, the first id whose summed
probability passes u. Two things are ours: `official=False` draws without replacement (highest priority first), and padding
and [SEP] are never sampled, because our networks read the shape of a row from its ids.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def official_step(
    generator: nn.Module,
    discriminator: nn.Module,
    ids: Tensor,
    draws: Any,
    *,
    official: bool,
    pad: int,
    cls: int,
    sep: int,
    mask: int,
    rate: float = 0.15,
    mask_share: float = 0.85,
    gen_weight: float = 1.0,
    disc_weight: float = 50.0,
) -> dict[str, Any]:
    rows = ids.tolist()
    priority, mask_draws, sampling = (each.double().tolist() for each in (draws.priority, draws.mask, draws.sample))
    num_tokens = len(rows[0])
    max_chosen = int((rate + 0.005) * num_tokens)

    chosen = []  # of each row: a list of positions, perhaps with repetitions
    for row, numbers in zip(rows, priority, strict=True):
        num_real = sum(token != pad for token in row)
        num_wanted = max(1, min(max_chosen, round(num_real * rate)))
        candidates = [place for place, token in enumerate(row) if token not in (pad, cls, sep, mask)]
        if official:
            picks = [candidates[int(number * len(candidates))] for number in numbers[:num_wanted]] if candidates else []
        else:
            picks = sorted(candidates, key=lambda place: -numbers[place])[:num_wanted]
        chosen.append(picks)

    masked_rows = []
    for row, picks, numbers in zip(rows, chosen, mask_draws, strict=True):
        masked = list(row)
        for choice, place in enumerate(picks):
            if numbers[choice] < mask_share:
                masked[place] = mask
        masked_rows.append(masked)

    all_logits = generator(torch.tensor(masked_rows))  # (B, T, V)
    generator_losses, corrupted_rows, num_correct = [], [], 0
    for number, (row, picks) in enumerate(zip(rows, chosen, strict=True)):
        samples: dict[int, list[int]] = {}
        for choice, place in enumerate(picks):
            logits = all_logits[number, place]
            generator_losses.append(torch.logsumexp(logits, 0) - logits[row[place]])
            samples.setdefault(place, []).append(inverse_cdf(logits, sampling[number][choice], (pad, sep)))
            num_correct += samples[place][-1] == row[place]
        corrupted = list(row)
        for place, tokens in samples.items():
            corrupted[place] = sum(tokens) // len(tokens)
        corrupted_rows.append(corrupted)

    labels = [
        [int(a != b) for a, b in zip(row, other, strict=True)] for row, other in zip(rows, corrupted_rows, strict=True)
    ]
    scores = discriminator(torch.tensor(corrupted_rows))  # (B, T)
    discriminator_losses = []
    for number, row in enumerate(rows):
        for place, token in enumerate(row):
            if token != pad:
                probability = torch.sigmoid(scores[number, place].double())
                right = probability if labels[number][place] else 1 - probability
                discriminator_losses.append(-torch.log(right))

    mlm_loss = torch.stack(generator_losses).mean()
    disc_loss = torch.stack(discriminator_losses).mean()
    return {
        "chosen": chosen,
        "masked": masked_rows,
        "corrupted": corrupted_rows,
        "labels": labels,
        "mlm_loss": mlm_loss,
        "disc_loss": disc_loss,
        "sampled_acc": num_correct / len(generator_losses),
        "loss": gen_weight * mlm_loss + disc_weight * disc_loss,
    }


def inverse_cdf(logits: Tensor, number: float, never: tuple[int, ...]) -> int:
    weights = np.exp(logits.detach().double().numpy() - logits.max().item())
    weights[list(never)] = 0
    target, total = number * weights.sum(), 0.0
    for token, weight in enumerate(weights.tolist()):
        total += weight
        if total > target:
            return token
    raise AssertionError("the number must be below 1")
