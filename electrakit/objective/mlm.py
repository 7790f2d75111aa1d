"""Ids in, the loss of guessing tokens out: the BERT baseline, and the paper's two mixtures of BERT and ELECTRA (section 3.4)."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from electrakit.errors import UserError
from electrakit.model.adapt import GeneratorAdapter, as_generator, new_output, sep_token_of, unwrap, vocab_size_of
from electrakit.model.encoder import Generator
from electrakit.objective.electra import Corrupted, WithGenerator
from electrakit.objective.guess import guess
from electrakit.objective.masking import Masked, Masking, special_tokens, whole_numbers
from electrakit.objective.output import Output, detection, ratio
from electrakit.objective.randomness import Draws

SCHEMES = {"bert": (0.8, 0.1), "electra": (0.85, 0.0)}
"""Shares of the chosen positions that show [MASK], and a random token; the rest show the token itself."""


class MaskedLM(nn.Module):
    """Masked language modelling: guess the chosen tokens of rows in which most of them show [MASK]."""

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_token_id: int,
        pad_token_id: int = 0,
        sep_token_id: int | None = None,
        mask_prob: float = 0.15,
        mask_ignore_token_ids: Iterable[int] = (),
        scheme: Literal["bert", "electra"] = "bert",
        num_tokens: int | None = None,
        official: bool = False,
        is_continuation: Tensor | None = None,
    ) -> None:
        super().__init__()
        if scheme not in SCHEMES:
            raise UserError(f"scheme is {scheme!r}: choose one of {', '.join(SCHEMES)}")
        mask_share, random_share = SCHEMES[scheme]
        sep_token_id = sep_token_of(model) if sep_token_id is None else sep_token_id
        self.model = as_generator(model, pad_token_id=pad_token_id, sep_token_id=sep_token_id)
        self.masking = Masking(
            special_tokens(pad_token_id, mask_token_id, mask_ignore_token_ids, sep_token_id),
            mask_prob=mask_prob,
            mask_share=mask_share,
            random_share=random_share,
            vocab_size=num_tokens if num_tokens is not None else vocab_size_of(self.model),
            official=official,
            is_continuation=is_continuation,
        )

    def forward(self, ids: Tensor, draws: Draws | Tensor | None = None) -> Output:
        """ids (B, T); `draws` as in Electra."""
        ids = whole_numbers(ids)
        masked = self.masking(ids, self.masking.draws(ids, draws))
        loss, accuracy, _ = guess(self.model, masked)
        return Output(
            loss=loss,
            mlm_loss=loss,
            gen_acc=accuracy,
            attended=ids != self.masking.special.pad,
            corrupted=masked.shown,
            positions=masked.positions,
            counts=masked.counts,
        )


class ReplaceMLM(WithGenerator):
    """Masked language modelling without [MASK]: the chosen positions show the generator's samples.

    The discriminator is a second masked language model; its figures are those of guessing the originals at the chosen positions.
    The paper does not say how the two losses were weighted: of one kind, they get one weight. Arguments as of `WithGenerator`.
    """

    kind = "replace_mlm"

    def score(self, ids: Tensor, corrupted: Corrupted) -> tuple[Tensor, dict[str, Tensor]]:
        masked = Masked(corrupted.positions, corrupted.counts, corrupted.originals, corrupted.ids)
        disc_loss, disc_acc, _ = guess(self.discriminator, masked)
        return disc_loss, {"disc_acc": disc_acc, "is_scored": corrupted.is_chosen}


class AllTokensMLM(WithGenerator):
    """Guess the original at every position of rows with the generator's samples in them, with a copy gate.

    Of each token, D = sigmoid(w h + b) says how likely it is to be the original: the guess is D times "the token that stands here",
    plus 1 - D times the softmax. -(w h + b) thus is a replaced-token logit, and the detection figures are its own. The loss is a mean
    over all tokens, of which about .15 are hard; its weight, which the paper does not give, makes up for that.

    The discriminator is one of our generators, or a transformers `...ForMaskedLM` whose head is known. It guesses a block of tokens
    at a time, and again in the backward pass, so that no (B, T, V) tensor is kept. Arguments as of `WithGenerator`.
    """

    kind = "all_tokens_mlm"
    MAX_SCORES = 2**25  # of a block: 128 MB

    def __init__(self, generator: nn.Module | Literal["uniform"], discriminator: nn.Module, **settings: Any) -> None:
        super().__init__(generator, discriminator, **settings)
        model = unwrap(self.discriminator)
        can_be_split = (
            isinstance(self.discriminator, Generator | GeneratorAdapter) and self.discriminator.head is not None
        )
        if not can_be_split:
            raise UserError(
                f"AllTokensMLM needs the hidden states of its discriminator, and {type(model).__name__} does not show them; "
                "use electrakit's Generator or a transformers ...ForMaskedLM"
            )
        self.gate = new_output(model.config.hidden_size, model)  # type: ignore[union-attr, arg-type]

    def score(self, ids: Tensor, corrupted: Corrupted) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(self.discriminator, Generator | GeneratorAdapter)
        hidden = self.discriminator.hidden(corrupted.ids)  # (B, T, H)
        copies = self.gate(hidden).squeeze(-1).float().masked_fill(~corrupted.attended, 0)  # (B, T)
        guesses = self.log_probabilities(self.discriminator.score_words, hidden, ids)  # (B, T)
        losses = -mix(copies, ~corrupted.is_replaced, guesses).masked_fill(~corrupted.attended, 0)
        figures = detection(-copies, corrupted.is_replaced, corrupted.attended)
        return ratio(losses, corrupted.attended), figures

    def log_probabilities(self, head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
        """The softmax's log probability of each target (B, T), a block of tokens at a time: (B, T)."""

        def of_block(hidden: Tensor, targets: Tensor) -> Tensor:
            return -F.cross_entropy(head(hidden).float(), targets, reduction="none")

        num_rows = max(1, self.MAX_SCORES // (self.vocab_size or 2**15))
        blocks = zip(hidden.flatten(0, 1).split(num_rows), targets.flatten().split(num_rows), strict=True)
        return torch.cat([checkpoint(of_block, *block, use_reentrant=False) for block in blocks]).view_as(targets)


def mix(copies: Tensor, is_same: Tensor, guesses: Tensor) -> Tensor:
    """log(D [is_same] + (1 - D) q) of the gate's logit and of log q, never through a logarithm of 0."""
    guessed = F.logsigmoid(-copies) + guesses
    return torch.where(is_same, torch.logaddexp(F.logsigmoid(copies), guessed), guessed)
