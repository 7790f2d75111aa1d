"""Masked language modelling as in BERT, and the paper's two mixtures of BERT and ELECTRA (section 3.4)."""

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.model.huggingface.adapt import (
    GeneratorAdapter,
    as_generator,
    new_output,
    sep_token_of,
    unwrap,
    vocab_size_of,
)
from electrakit.model.networks import Generator
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked, MaskedBatch, MaskedObjective, Masking, checked_ids, special_tokens
from electrakit.objective.output import Output, detection_metrics, ratio
from electrakit.objective.predict_masked import MAX_LOGITS, log_probabilities, predict_masked
from electrakit.objective.randomness import Draws
from electrakit.objective.with_generator import Scores, WithGenerator

SCHEMES = {"bert": (0.8, 0.1), "electra": (0.85, 0.0)}
"""Shares of the chosen positions that get [MASK], and a random token; the rest keep their token."""


class MaskedLM(MaskedObjective):
    """Masked language modelling: predict the chosen tokens of rows where most of them are [MASK]."""

    # Folder in a checkpoint -> attribute: its one network is the one that is kept.
    saved_networks: ClassVar = {"discriminator": "model"}

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
        vocab_size = num_tokens if num_tokens is not None else vocab_size_of(self.model)
        self.masking = Masking(
            special_tokens(pad_token_id, mask_token_id, mask_ignore_token_ids, sep_token_id, vocab_size),
            mask_prob=mask_prob,
            mask_share=mask_share,
            random_share=random_share,
            vocab_size=vocab_size,
            official=official,
            is_continuation=is_continuation,
        )

    def forward(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> Output:
        """ids (B, T); `draws` as in Electra."""
        ids = checked_ids(ids)
        batch = self.mask(ids, draws)
        masked = batch.masked
        loss, accuracy, *_ = predict_masked(self.model, masked)
        return Output(
            loss=loss,
            mlm_loss=loss,
            gen_acc=accuracy,
            attended=masked.attended,
            corrupted=masked.inputs,
            positions=masked.positions,
            counts=masked.counts,
            num_tokens=batch.num_tokens,
        )


class ReplaceMLM(WithGenerator):
    """Masked language modelling without [MASK]: the chosen positions have the generator's samples.

    The discriminator is a second masked language model that predicts the originals at the chosen positions. The paper does not give
    the weights of the two losses: as they are of one kind, their default weights are equal. Arguments as of `WithGenerator`.
    """

    kind = "replace_mlm"

    def is_scored(self, ids: Tensor, masked: Masked) -> Tensor:
        return masked.counts  # a position that was chosen twice is predicted twice

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Tensor, is_replaced: Tensor) -> Scores:
        masked = batch.masked
        disc_loss, disc_acc, *_ = predict_masked(self.discriminator, masked._replace(inputs=corrupted))
        is_chosen = corrupt.is_chosen(ids, masked.positions, masked.counts)
        return disc_loss, {"disc_acc": disc_acc, "is_scored": is_chosen}


class AllTokensMLM(WithGenerator):
    """Predict the original at every position of rows with the generator's samples in them, with a copy gate.

    For each token, D = sigmoid(w h + b) is the probability that it is the original. The prediction is D times the input token plus
    1 - D times the softmax. So -(w h + b) is a replaced-token logit, from which the detection metrics are computed. The loss is a mean
    over all tokens, of which about .15 are hard; its weight, which the paper does not give, makes up for that.

    The discriminator is one of our generators, or a transformers `...ForMaskedLM` whose head is known. It predicts a block of tokens
    at a time, and again in the backward pass, so that no (B, T, V) tensor is kept. Arguments as of `WithGenerator`.
    """

    kind = "all_tokens_mlm"
    MAX_LOGITS = MAX_LOGITS

    def add_modules(self) -> None:
        model = unwrap(self.discriminator)
        if not isinstance(self.discriminator, Generator) and not getattr(self.discriminator, "has_known_head", False):
            raise UserError(
                f"AllTokensMLM needs the hidden states of its discriminator, and {type(model).__name__} does not show them; "
                "use electrakit's Generator or a transformers ...ForMaskedLM"
            )
        self.gate = new_output(model.config.hidden_size, model)  # type: ignore[union-attr, arg-type]

    def is_scored(self, ids: Tensor, masked: Masked) -> Tensor:
        return masked.attended

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Tensor, is_replaced: Tensor) -> Scores:
        assert isinstance(self.discriminator, Generator | GeneratorAdapter)
        attended = batch.masked.attended
        hidden = self.discriminator.hidden(corrupted)  # (B, T, H)
        gates = self.gate(hidden).squeeze(-1).float().masked_fill(~attended, 0)  # (B, T)
        predicted = log_probabilities(self.discriminator.word_logits, hidden, ids, self.vocab_size, self.MAX_LOGITS)
        losses = -mix(gates, ~is_replaced, predicted).masked_fill(~attended, 0)
        return ratio(losses, attended), detection_metrics(-gates, is_replaced, attended)

    def replaced_logits(self, ids: Tensor) -> Tensor:
        """As of `Electra`."""
        assert isinstance(self.discriminator, Generator | GeneratorAdapter)
        return -self.gate(self.discriminator.hidden(ids)).squeeze(-1).float()


def mix(gates: Tensor, is_same: Tensor, predicted: Tensor) -> Tensor:
    """log(D [is_same] + (1 - D) q) of the gate's logit and of log q, without a logarithm of 0."""
    weighted = F.logsigmoid(-gates) + predicted
    return torch.where(is_same, torch.logaddexp(F.logsigmoid(gates), weighted), weighted)
