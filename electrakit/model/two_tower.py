"""Ids in, a prediction of every token from all others out, in one pass: the two-tower cloze model (Baevski et al. 2019).

A left-to-right Transformer and a right-to-left one. The prediction of token t reads the state of the first at t - 1 and of the second at
t + 1, which have seen everything but token t.

Shapes: B rows, T tokens, V vocabulary, H hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.model.layouts import PaddedTokens
from electrakit.model.networks import Network
from electrakit.model.parts import initialise


class TwoTower(Network):
    """Two bodies over one embedding table, which is the output table too. `body` reads to the right, `right_to_left` to the left."""

    def __init__(self, config: NetworkConfig) -> None:
        if config.body not in ("classic", "modern"):  # others do not heed `visible`, so a token would see itself
            raise UserError(f"body is {config.body!r}: a two-tower model is classic or modern")
        super().__init__(config)
        self.right_to_left = type(self.body)(config)
        self.right_to_left.embeddings = self.body.embeddings
        self.head = self.body.generator_head(config)
        dense = self.head.get_submodule("dense")
        assert isinstance(dense, nn.Linear)
        wide = nn.Linear(2 * config.hidden_size, dense.out_features, bias=dense.bias is not None)
        initialise(wide)
        self.head.set_submodule("dense", wide)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor) -> Tensor:
        """Word logits at every token, each computed without that token: (B, T, V)."""
        return self.word_logits(self.hidden(ids))

    def hidden(self, ids: Tensor) -> Tensor:
        """What the two towers know about each token from its left and its right: (B, T, 2 H)."""
        self.check_length(ids)
        tokens = PaddedTokens.of(ids, self.config.pad_token_id, self.config.sep_token_id)
        attended = tokens.attended[:, None, None]
        not_later = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool, device=ids.device).tril()
        from_left = self.body(tokens._replace(visible=attended & not_later))
        from_right = self.right_to_left(tokens._replace(visible=attended & not_later.mT))
        from_right = from_right.masked_fill(~tokens.attended[..., None], 0)
        # Zeros beside the first and the last token.
        before, after = F.pad(from_left[:, :-1], (0, 0, 1, 0)), F.pad(from_right[:, 1:], (0, 0, 0, 1))
        return torch.cat([before, after], dim=-1)

    def word_logits(self, hidden: Tensor) -> Tensor:
        """The head: (..., 2 H) -> (..., V)."""
        return F.linear(self.head(hidden), self.body.embeddings.word.weight, self.output_bias)
