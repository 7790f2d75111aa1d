"""The official code's larger heads of SQuAD, which transformers does not have: ends that depend on a start, and a deeper "no answer".

Shapes: B windows, T tokens, H hidden size, S starts of the beam.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.safe_load import explain_load_errors
from electrakit.finetune.classifier import glorot_linear

NUM_STARTS = 20  # of the beam
HIDDEN_SIZE = 512  # of both heads: all three numbers are the official code's
ANSWERABLE_FILE = "answerable.safetensors"
JOINT_FILE = "joint.safetensors"


class PairHead(nn.Module):
    """A logit for two states: a hidden layer with GELU, and an output layer."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden = glorot_linear(2 * hidden_size, HIDDEN_SIZE)
        self.output = glorot_linear(HIDDEN_SIZE, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(..., H) twice -> (...)."""
        both = torch.cat(torch.broadcast_tensors(first, second), -1)
        return self.output(F.gelu(self.hidden(both))).squeeze(-1)


def is_possible(windows: Tensor, num_tokens: int) -> Tensor:
    """Where an answer may begin or end, in the text or at [CLS]: windows (B, 5) as in EncodedWindows -> bool (B, T)."""
    places = torch.arange(num_tokens, device=windows.device)
    first, last = windows[:, 3:4], windows[:, 4:5]
    return (places >= first) & (places <= last) | (places == 0)


def end_logits(head: PairHead, states: Tensor, starts: Tensor) -> Tensor:
    """Of all tokens as the end, given one start of each window: states (B, T, H), starts (B) -> (B, T)."""
    start_states = states[torch.arange(len(states), device=states.device), starts]
    return head(start_states[:, None], states)


def beam(head: PairHead, states: Tensor, start_logits: Tensor, can_be: Tensor) -> Tensor:
    """The best starts, and the ends of each: (B, T, 2 + S).

    For each token: its log-probability as the start, its rank among the best starts (-1: not among them), and its log-probability as
    the end for each of them.
    """
    log_starts = start_logits.float().masked_fill(~can_be, -torch.inf).log_softmax(-1)  # (B, T)
    best = log_starts.topk(min(NUM_STARTS, log_starts.size(1))).indices  # (B, S)
    places = torch.arange(best.size(1), device=best.device, dtype=log_starts.dtype).expand(best.shape)
    ranks = torch.full_like(log_starts, -1).scatter(1, best, places)
    ends = []
    for starts in best.unbind(1):  # one at a time: (B, S, T, 512) would be large
        logits = end_logits(head, states, starts).float().masked_fill(~can_be, -torch.inf)
        ends.append(logits.log_softmax(-1))
    ends += [torch.full_like(log_starts, -torch.inf)] * (NUM_STARTS - len(ends))
    return torch.stack([log_starts, ranks, *ends], -1)


def answerable_logits(head: nn.Module, states: Tensor, start_logits: Tensor, can_be: Tensor) -> Tensor:
    """That there is no answer: (B). A PairHead reads [CLS] and the states where an answer may start, by their probability."""
    if not isinstance(head, PairHead):
        return head(states[:, 0]).squeeze(-1)
    shares = start_logits.float().masked_fill(~can_be, -torch.inf).softmax(-1)
    return head(states[:, 0], (shares[..., None].to(states.dtype) * states).sum(1))


def save_head(head: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.cpu().contiguous() for name, value in head.state_dict().items()}, path)


def open_head(path: Path, hidden_size: int) -> nn.Module:
    """A head that `save_head` wrote: the names in the file tell which."""
    from safetensors.torch import load_file

    with explain_load_errors(str(path)):
        weights = load_file(path)
        head = PairHead(hidden_size) if "hidden.weight" in weights else glorot_linear(hidden_size, 1)
        head.load_state_dict(weights)
    return head
