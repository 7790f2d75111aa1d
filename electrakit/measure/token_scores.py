"""Rows of ids in, log-probabilities out: how likely each token is right, for a discriminator or a masked LM.

A discriminator scores every token in one pass: log p(original), or -E if Electric has trained it. A masked LM scores one token in a
pass: log p(the token shown) with a [MASK] in its place.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit.common.progress import progress
from electrakit.measure.open import OpenNetwork

BATCH_TOKENS = 8192
MAX_BATCH_ROWS = 512  # the logits of a masked LM are rows x vocabulary
MIN_TOKENS_FOR_A_BAR = 200_000


def token_scores(
    network: OpenNetwork, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], title: str
) -> list[np.ndarray]:
    """The log-probability that the tokens at these positions of each row are right, in the given order."""
    if network.head == "replaced":
        return discriminator_scores(network, rows, positions, title)
    return masked_lm_scores(network, rows, positions, title)


@torch.inference_mode()
def discriminator_scores(
    network: OpenNetwork, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], title: str
) -> list[np.ndarray]:
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    for places in batches([len(row) for row in rows], f"{network.title}: {title}"):
        logits = network.adapter(padded(network, [rows[place] for place in places]))
        found_logits = logits.float()
        log_chances = -found_logits if network.gives_energies else F.logsigmoid(-found_logits)
        scores = log_chances.double().cpu().numpy()
        for row, place in zip(scores, places, strict=True):
            found[place] = row[np.asarray(positions[place], int)]
    return found


@torch.inference_mode()
def masked_lm_scores(
    network: OpenNetwork, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], title: str
) -> list[np.ndarray]:
    """One masked row for each position."""
    owners = np.repeat(np.arange(len(rows)), [len(one) for one in positions])
    masked = np.concatenate([np.asarray(one, int) for one in positions]) if len(positions) else np.empty(0, int)
    lengths = np.array([len(row) for row in rows], int)[owners]
    found = np.empty(len(masked))
    for places in batches(lengths, f"{network.title}: {title}"):
        ids = padded(network, [rows[owner] for owner in owners[places]])
        position = torch.from_numpy(masked[places]).to(ids.device)[:, None]  # (B, 1)
        shown = ids.gather(1, position)
        ids = ids.scatter(1, position, network.tokenizer.special_ids["mask"])
        logits = network.adapter(ids, position)[:, 0].float()  # (B, V)
        found[places] = logits.log_softmax(-1).gather(1, shown)[:, 0].double().cpu().numpy()
    return np.split(found, np.cumsum([len(one) for one in positions])[:-1])


def batches(lengths: Sequence[int] | np.ndarray, title: str) -> Iterator[np.ndarray]:
    """The numbers of rows in batches of about as many tokens, from long to short, with a progress bar."""
    lengths = np.asarray(lengths, int)
    order = np.argsort(-lengths, kind="stable")
    start = num_done = 0
    with progress(title, int(lengths.sum()), silent_below=MIN_TOKENS_FOR_A_BAR, unit="k tokens", size=1e3) as update:
        while start < len(order):
            num_rows = min(MAX_BATCH_ROWS, max(1, BATCH_TOKENS // int(lengths[order[start]])))
            places = order[start : start + num_rows]
            yield places
            start += num_rows
            num_done += int(lengths[places].sum())
            update(num_done)


def padded(network: OpenNetwork, rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different lengths as one tensor (B, T)."""
    pad = network.tokenizer.special_ids["pad"]
    longest = max(map(len, rows))
    ids = np.array([[*row, *[pad] * (longest - len(row))] for row in rows], dtype=np.int64)
    return torch.from_numpy(ids).to(network.device)
