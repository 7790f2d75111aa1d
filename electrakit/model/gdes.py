"""Gradient-disentangled embedding sharing (He et al. 2021): a discriminator's word table that is the generator's plus a difference.

The generator's loss moves the generator's table, the discriminator's loss only the difference, which is 0 at the start.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError


class GDESEmbedding(nn.Embedding):
    """Reads `stop_gradient(E_G) + delta`. Only `delta` is a parameter of the discriminator; it is what a checkpoint holds."""

    def __init__(self, words: nn.Embedding, generator_words: nn.Embedding) -> None:
        nn.Module.__init__(self)  # nn.Embedding's own would make a table
        self.num_embeddings, self.embedding_dim = words.num_embeddings, words.embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = words.padding_idx, None, 2.0
        self.scale_grad_by_freq = self.sparse = False
        self.delta = nn.Parameter(torch.zeros_like(words.weight))
        self.follow(generator_words)

    def follow(self, generator_words: nn.Embedding) -> None:
        """Use this table of the generator. It is held in a tuple: a registered module would be the discriminator's, too."""
        self._generator_words = (generator_words,)

    @property
    def generator_table(self) -> Tensor:
        """E_G. Looked up at each call: FSDP and `.to()` may put another parameter there."""
        return self._generator_words[0].weight

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The whole table (V, H), for an output layer. Its gradient goes to `delta`."""
        return self.generator_table.detach() + self.delta

    def forward(self, ids: Tensor) -> Tensor:
        # Rows of both tables: a batch has far fewer tokens than the vocabulary has rows of numbers to add.
        own = F.embedding(ids, self.delta, self.padding_idx)
        return own + F.embedding(ids, self.generator_table.detach())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes a whole table, too: the difference is then such that the network computes what it did with that table."""
        whole, own = f"{prefix}weight", f"{prefix}delta"
        if whole in state_dict and own not in state_dict:
            table = state_dict.pop(whole)
            has_shape = table.shape == self.delta.shape
            state_dict[own] = table - self.generator_table.detach() if has_shape else table
        super()._load_from_state_dict(state_dict, prefix, *rest)


def put_gdes(generator_words: nn.Embedding, discriminator: nn.Module, words: nn.Embedding) -> None:
    """Replace the discriminator's word table `words` by one that follows the generator's."""
    if isinstance(words, GDESEmbedding):
        words.follow(generator_words)
        return
    if type(words) is not nn.Embedding or words.max_norm is not None or words.sparse or words.scale_grad_by_freq:
        raise UserError(
            f"cannot share embeddings: the discriminator's word table is {words}, share='gdes' knows a plain nn.Embedding only; "
            "use share='nothing'"
        )
    users = [each for each in discriminator.modules() if words.weight in set(each.parameters(recurse=False))]
    if users != [words]:
        raise UserError(
            f"cannot share embeddings: {type(discriminator).__name__} uses its word table in an output layer too, which share='gdes' "
            "cannot follow; use share='embeddings' or one of our own bodies"
        )
    new = GDESEmbedding(words, generator_words).to(words.weight)
    for parent in list(discriminator.modules()):
        for name, child in parent.named_children():
            if child is words:
                setattr(parent, name, new)


def gdes_tables(module: nn.Module) -> dict[str, GDESEmbedding]:
    """By all their names."""
    named = module.named_modules(remove_duplicate=False)
    return {name: part for name, part in named if isinstance(part, GDESEmbedding)}


@torch.no_grad()
def merge(module: nn.Module) -> None:
    """Put plain tables with the sums in place, for a discriminator that is trained or saved without its generator."""
    made: dict[GDESEmbedding, nn.Embedding] = {}
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, GDESEmbedding):
                if child not in made:
                    made[child] = nn.Embedding.from_pretrained(
                        child.weight.clone(), freeze=False, padding_idx=child.padding_idx
                    )
                setattr(parent, name, made[child])


def with_sums(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module that holds both networks, with whole tables in place of the differences."""
    state = dict(state)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, table in gdes_tables(module).items():
        state[f"{name}.weight"] = state[names[id(table.generator_table)]] + state.pop(f"{name}.delta")
    return state


@torch.no_grad()
def give_to_generator(module: nn.Module) -> None:
    """The generator's tables become those that the discriminator reads, the differences 0."""
    for table in set(gdes_tables(module).values()):
        table.generator_table.copy_(table.weight)
        table.delta.zero_()
