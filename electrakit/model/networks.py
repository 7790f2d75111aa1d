"""The generator and the discriminator: a body and a head each. Token ids are all they take.

Shapes: B rows, T tokens, K chosen positions, V vocabulary, H hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.model import kernels
from electrakit.model.classic import ClassicBody, ClassicLayer
from electrakit.model.deberta import DebertaBody, DebertaLayer
from electrakit.model.layouts import PackedTokens, PaddedTokens, Tokens
from electrakit.model.modern import ModernBody, ModernLayer
from electrakit.model.ngrams import NGrams
from electrakit.model.parts import initialise

BODIES: dict[str, type[ClassicBody] | type[ModernBody] | type[DebertaBody]] = {
    "classic": ClassicBody,
    "modern": ModernBody,
    "deberta": DebertaBody,
}
LAYERS = (ClassicLayer, ModernLayer, DebertaLayer)


class Network(nn.Module):
    """A body, `classic`, `modern` or `deberta`, and what both heads need of it. `body.embeddings` is the part that `tie` shares."""

    wants_kernels = False
    """Whether to use the CPU kernels where they can run; set by `use_kernels`."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.body = BODIES[config.body](config)

    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden states of ids (B, T): (B, T, H)."""
        tokens, hidden = self.encode(ids)
        return tokens.to_padded(hidden)

    def encode(self, ids: Tensor) -> tuple[Tokens, Tensor]:
        """The tokens of ids (B, T), and their last hidden states in the tokens' layout."""
        self.check_length(ids)
        layout = PackedTokens if self.can_use_kernels(ids) else PaddedTokens
        tokens = layout.of(ids, self.config.pad_token_id, self.config.sep_token_id)
        return tokens, self.body(tokens)

    def check_length(self, ids: Tensor) -> None:
        if ids.size(1) > self.config.max_length:
            raise UserError(
                f"a row of {ids.size(1)} tokens is longer than max_length={self.config.max_length}; "
                "cut the rows or build the network with a larger max_length"
            )

    def can_use_kernels(self, ids: Tensor) -> bool:
        """The kernels run on CPUs, for float32 weights and products in float32 or bf16. Tracers cannot see into them."""
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not self.wants_kernels or ids.device.type != "cpu" or is_traced:
            return False
        has_types = not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") == torch.bfloat16
        return has_types and next(self.body.parameters()).dtype == torch.float32 and kernels.problem() is None


class Generator(Network):
    """A masked language model whose output table is its word-embedding table."""

    gathers_positions = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.head = self.body.generator_head(config)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits at the positions (B, K): (B, K, V). Without positions at every token: (B, T, V)."""
        tokens, hidden = self.encode(ids)
        return self.word_logits(tokens.to_padded(hidden) if positions is None else tokens.gather(hidden, positions))

    def word_logits(self, hidden: Tensor) -> Tensor:
        """The head: (..., H) -> (..., V)."""
        # The table is looked up at every call: after tie() it is the discriminator's.
        return F.linear(self.head(hidden), self.body.embeddings.word.weight, self.output_bias)


class Discriminator(Network):
    """Predicts for each token whether it was replaced."""

    gives_energies = False
    """Whether its logits are energies, as `Electric` trains them: -log p(token | the others), up to a constant."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.head = self.body.discriminator_head(config)
        self.score = nn.Linear(config.hidden_size, 1)
        initialise(self.score)
        # The official code names no initialiser here, so TensorFlow's default applies.
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """One logit for each token, positive for "replaced": (B, T)."""
        return self.token_logits(*self.encode(ids))

    def token_logits(self, tokens: Tokens, hidden: Tensor) -> Tensor:
        """The head on what `encode` gives: (B, T)."""
        return tokens.to_padded(self.score(self.head(hidden)).squeeze(-1))


def use_kernels(module: nn.Module, is_wanted: bool = True) -> bool:
    """Switch the CPU kernels of our networks inside a module on or off; returns whether they are on and can be built."""
    for network in module.modules():
        if isinstance(network, Network | NGrams):
            network.wants_kernels = is_wanted
    return is_wanted and kernels.problem() is None
