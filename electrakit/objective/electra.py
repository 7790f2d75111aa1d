"""Replaced-token detection: a generator corrupts rows, and a discriminator finds the replaced tokens."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.config.base import check_rates
from electrakit.config.pretrain import DISC_WEIGHTS, check_loss_weights, check_temperature
from electrakit.model.huggingface.adapt import as_discriminator, as_generator, sep_token_of, vocab_size_of
from electrakit.model.tie import check_output_table, warn_of_untied_copies
from electrakit.objective import corrupt
from electrakit.objective.masking import (
    Masked,
    MaskedBatch,
    MaskedObjective,
    Masking,
    checked_ids,
    special_tokens,
)
from electrakit.objective.output import Output, detection_metrics, ratio
from electrakit.objective.predict_masked import Sampling, predict_masked
from electrakit.objective.randomness import Draws


class Corrupted(NamedTuple):
    """Rows with the generator's samples in them, and how well it predicted."""

    ids: Tensor  # (B, T)
    is_replaced: Tensor  # (B, T) bool: another token than the original
    mlm_loss: Tensor | None
    gen_acc: Tensor | None
    sampled_acc: Tensor


class WithGenerator(MaskedObjective):
    """The base of Electra, ReplaceMLM and AllTokensMLM: a generator fills in the chosen positions.

    train() and eval() of the objective apply to both networks: in training the generator samples with dropout, as in the official code.
    """

    kind: str
    """The value of `objective.kind` in the settings."""

    def __init__(
        self,
        generator: nn.Module | Literal["uniform"],
        discriminator: nn.Module,
        *,
        mask_token_id: int,
        pad_token_id: int = 0,
        sep_token_id: int | None = None,
        mask_prob: float = 0.15,
        mask_ignore_token_ids: Iterable[int] = (),
        replace_prob: float = 0.85,
        random_token_prob: float = 0.0,
        num_tokens: int | None = None,
        temperature: float = 1.0,
        disallow_correct: bool = False,
        gen_weight: float = 1.0,
        disc_weight: float | None = None,
        official: bool = False,
        is_continuation: Tensor | None = None,
        adapt: Callable[..., nn.Module] = as_generator,
    ) -> None:
        """Wrap two models.

        Args:
            generator: a masked language model, or "uniform": replacements are then drawn uniformly, without a network.
            discriminator: the model to pretrain.
            mask_token_id: the id of [MASK].
            pad_token_id: the id of padding, which is never attended to, chosen or scored.
            mask_prob: share of the real tokens that is chosen.
            mask_ignore_token_ids: never chosen, such as [CLS] and [SEP]; padding and [MASK] need not be named.
            random_token_prob: share of the chosen positions where the generator reads a random token.
            replace_prob: share of the other chosen positions where it reads [MASK]; elsewhere it reads the token itself.
            sep_token_id: for models with segments, the id after which segment B begins; by default that of our own networks.
            num_tokens: size of the vocabulary, where the models do not name it.
            temperature: of the generator's distribution when replacements are sampled.
            disallow_correct: never sample the original token.
            gen_weight: of the generator's loss.
            disc_weight: of the discriminator's loss; the default is in DISC_WEIGHTS.
            official: choose with replacement, as google-research/electra does; for comparison. One difference remains: [PAD] and [SEP] are
                never sampled, because our networks read padding and segments from the ids.
            is_continuation: bool (V,), for whole-word masking: see `is_continuation_table`.
            adapt: gives the discriminator its interface; by default that of a second masked language model.
        """
        super().__init__()
        if isinstance(generator, str) and generator != "uniform":
            raise UserError(f"generator is {generator!r}: pass a model, or 'uniform'")
        check_rates({"replace_prob": replace_prob, "random_token_prob": random_token_prob})
        check_temperature(temperature)
        disc_weight = DISC_WEIGHTS[self.kind] if disc_weight is None else disc_weight
        check_loss_weights(gen_weight, disc_weight)
        sep_token_id = sep_token_of(generator, discriminator) if sep_token_id is None else sep_token_id
        ids: dict[str, Any] = {"pad_token_id": pad_token_id, "sep_token_id": sep_token_id}
        self.generator = None if isinstance(generator, str) else as_generator(generator, **ids)
        self.discriminator = adapt(discriminator, **ids)
        if self.generator is not None:
            check_vocabularies(self.generator, self.discriminator)
            check_output_table(self.generator, self.discriminator)
            warn_of_untied_copies(self.generator, self.discriminator)
        self.vocab_size = num_tokens if num_tokens is not None else vocab_size_of(self.generator, self.discriminator)
        if self.generator is None and self.vocab_size is None:
            raise UserError("generator='uniform' needs the size of the vocabulary: pass num_tokens")
        self.masking = Masking(
            special_tokens(pad_token_id, mask_token_id, mask_ignore_token_ids, sep_token_id),
            mask_prob=mask_prob,
            mask_share=(1 - random_token_prob) * replace_prob,
            random_share=random_token_prob,
            vocab_size=self.vocab_size,
            official=official,
            is_continuation=is_continuation,
        )
        self.temperature, self.disallow_correct = temperature, disallow_correct
        self.gen_weight, self.disc_weight = self.loss_weights = gen_weight, disc_weight

    def forward(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> Output:
        """ids (B, T). `draws`: keys of the rows (see `row_keys`), or draws, or the result of `mask`; by default new draws from
        torch's generator."""
        ids = checked_ids(ids)
        batch = self.mask(ids, draws)
        corrupted = self.corrupt(ids, batch)
        disc_loss, metrics = self.score(ids, batch, corrupted)
        loss = self.disc_weight * disc_loss
        if corrupted.mlm_loss is not None:
            loss = self.gen_weight * corrupted.mlm_loss + loss
        return Output(
            loss=loss,
            mlm_loss=corrupted.mlm_loss,
            disc_loss=disc_loss,
            gen_acc=corrupted.gen_acc,
            sampled_acc=corrupted.sampled_acc,
            disc_labels=corrupted.is_replaced,
            replaced_rate=ratio(corrupted.is_replaced, batch.masked.attended),
            attended=batch.masked.attended,
            corrupted=corrupted.ids,
            positions=batch.masked.positions,
            counts=batch.masked.counts,
            num_tokens=batch.num_tokens,
            **metrics,
        )

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Corrupted) -> tuple[Tensor, dict[str, Tensor]]:
        """The discriminator's loss on the corrupted rows, and its metrics by the names of `Output`."""
        raise NotImplementedError

    def corrupt(self, ids: Tensor, batch: MaskedBatch) -> Corrupted:
        """Sample from the generator's predictions, and write the samples into the original rows, not the masked ones."""
        masked = batch.masked
        counts, originals = masked.counts, masked.originals
        without = self.masking.special.never_sampled
        predictions = None
        if self.generator is None:
            assert self.vocab_size is not None
            not_these = originals if self.disallow_correct else None
            sampled = corrupt.uniform_tokens(batch.sample, self.vocab_size, without, not_these)
        else:
            sampling = Sampling(batch.sample, self.temperature, without, self.disallow_correct)
            predictions = predict_masked(self.generator, masked, sampling)
            assert predictions.sampled is not None
            sampled = predictions.sampled
        written = self.masking.write(ids, masked.positions, sampled, counts)
        return Corrupted(
            ids=written,
            is_replaced=corrupt.is_replaced(ids, written),
            mlm_loss=None if predictions is None else predictions.loss,
            gen_acc=None if predictions is None else predictions.accuracy,
            sampled_acc=ratio((sampled == originals) & counts, counts),
        )


class Electra(WithGenerator):
    """Replaced-token detection (Clark et al. 2020) around any two models.

        electra = Electra(generator, discriminator, mask_token_id=103, pad_token_id=0, mask_ignore_token_ids=[101, 102])
        electra(ids).loss.backward()

    The arguments are those of electra-pytorch and of `WithGenerator`, which explains them. mask_token_id is required here: its default
    in electra-pytorch (2) is a word in most vocabularies. `generator="uniform"` needs no network.
    `loss_on="masked"` scores the discriminator at the chosen positions only (ELECTRA-15 %, section 3.4).
    """

    kind = "electra"

    def __init__(
        self,
        generator: nn.Module | Literal["uniform"],
        discriminator: nn.Module,
        *,
        mask_token_id: int,
        num_tokens: int | None = None,
        discr_dim: int | None = None,
        discr_layer: str | int | None = None,
        mask_prob: float = 0.15,
        replace_prob: float = 0.85,
        random_token_prob: float = 0.0,
        pad_token_id: int = 0,
        sep_token_id: int | None = None,
        mask_ignore_token_ids: Iterable[int] = (),
        disc_weight: float = DISC_WEIGHTS["electra"],
        gen_weight: float = 1.0,
        temperature: float = 1.0,
        disallow_correct: bool = False,
        loss_on: Literal["all", "masked"] = "all",
        official: bool = False,
        is_continuation: Tensor | None = None,
    ) -> None:
        if loss_on not in ("all", "masked"):
            raise UserError(f"loss_on is {loss_on!r}: choose 'all' or 'masked'")
        super().__init__(
            generator,
            discriminator,
            mask_token_id=mask_token_id,
            pad_token_id=pad_token_id,
            sep_token_id=sep_token_id,
            mask_prob=mask_prob,
            mask_ignore_token_ids=mask_ignore_token_ids,
            replace_prob=replace_prob,
            random_token_prob=random_token_prob,
            num_tokens=num_tokens,
            temperature=temperature,
            disallow_correct=disallow_correct,
            gen_weight=gen_weight,
            disc_weight=disc_weight,
            official=official,
            is_continuation=is_continuation,
            adapt=partial(as_discriminator, discr_dim=discr_dim, discr_layer=discr_layer),
        )
        self.loss_on = loss_on

    def is_scored(self, ids: Tensor, masked: Masked) -> Tensor:
        if self.loss_on == "all":
            return masked.attended
        return corrupt.is_chosen(ids, masked.positions, masked.counts)

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Corrupted) -> tuple[Tensor, dict[str, Tensor]]:
        is_scored = batch.is_scored
        assert is_scored is not None
        logits = self.discriminator(corrupted.ids).float().masked_fill(~is_scored, 0)  # (B, T)
        losses = F.binary_cross_entropy_with_logits(logits, corrupted.is_replaced.float(), reduction="none")
        return ratio(losses * is_scored, is_scored), detection_metrics(logits, corrupted.is_replaced, is_scored)


def check_vocabularies(generator: nn.Module, discriminator: nn.Module) -> None:
    """The discriminator must know every token that the generator can sample."""
    ours, theirs = vocab_size_of(generator), vocab_size_of(discriminator)
    if ours is not None and theirs is not None and ours > theirs:
        raise UserError(
            f"the generator has a vocabulary of {ours}, the discriminator one of {theirs}: it could not read all samples; "
            "build both for the same tokenizer"
        )
