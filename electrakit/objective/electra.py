"""Replaced-token detection: a generator corrupts rows, and a discriminator finds the replaced tokens."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.config.base import check_rates
from electrakit.config.pretrain import DISC_WEIGHTS, check_loss_weights, check_temperature
from electrakit.model.huggingface.adapt import as_discriminator, as_generator, sep_token_of, vocab_size_of
from electrakit.model.tie import check_output_table, warn_of_untied_copies
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked, MaskedBatch, MaskedObjective, Masking, checked_ids, special_tokens
from electrakit.objective.output import Output, detection_metrics, ratio
from electrakit.objective.predict_masked import predict_masked
from electrakit.objective.randomness import Draws

Scores = tuple[Tensor, dict[str, Tensor]]
"""The discriminator's loss, and its metrics by the names of `Output`."""


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
            special_tokens(pad_token_id, mask_token_id, mask_ignore_token_ids, sep_token_id, self.vocab_size),
            mask_prob=mask_prob,
            mask_share=(1 - random_token_prob) * replace_prob,
            random_share=random_token_prob,
            vocab_size=self.vocab_size,
            official=official,
            is_continuation=is_continuation,
        )
        self.temperature, self.disallow_correct = temperature, disallow_correct
        self.gen_weight, self.disc_weight = self.loss_weights = gen_weight, disc_weight
        self.add_modules()

    def add_modules(self) -> None:
        """Make what a subclass has besides the two networks."""

    def forward(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> Output:
        """ids (B, T). `draws`: keys of the rows (see `row_keys`), or draws, or the result of `mask`; by default new draws from
        torch's generator."""
        ids = checked_ids(ids)
        batch = self.mask(ids, draws)
        positions, counts, originals, _, attended = batch.masked
        sampled, mlm_loss, gen_acc = self.sample(batch)
        # Into the original rows, not the masked ones. A sample that equals the original counts as original.
        corrupted = self.masking.write(ids, positions, sampled, counts)
        is_replaced = corrupted != ids
        disc_loss, metrics = self.score(ids, batch, corrupted, is_replaced)
        loss = self.disc_weight * disc_loss
        return Output(
            loss=loss if mlm_loss is None else self.gen_weight * mlm_loss + loss,
            mlm_loss=mlm_loss,
            disc_loss=disc_loss,
            gen_acc=gen_acc,
            sampled_acc=ratio((sampled == originals) & counts, counts),
            disc_labels=is_replaced,
            replaced_rate=ratio(is_replaced, attended),
            attended=attended,
            corrupted=corrupted,
            positions=positions,
            counts=counts,
            num_tokens=batch.num_tokens,
            **metrics,
        )

    def sample(self, batch: MaskedBatch) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The replacements (B, K), and the generator's loss and accuracy."""
        masked, without = batch.masked, self.masking.special.never_sampled
        if self.generator is None:
            assert self.vocab_size is not None
            not_these = masked.originals if self.disallow_correct else None
            return corrupt.uniform_tokens(batch.sample, self.vocab_size, without, not_these), None, None
        loss, accuracy, sampled = predict_masked(
            self.generator,
            masked,
            batch.sample,
            temperature=self.temperature,
            without=without,
            not_correct=self.disallow_correct,
        )
        assert sampled is not None
        return sampled, loss, accuracy

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Tensor, is_replaced: Tensor) -> Scores:
        """What the discriminator makes of the corrupted rows (B, T)."""
        raise NotImplementedError


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

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Tensor, is_replaced: Tensor) -> Scores:
        is_scored = batch.is_scored
        assert is_scored is not None
        logits = self.discriminator(corrupted).float().masked_fill(~is_scored, 0)  # (B, T)
        losses = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="none")
        return ratio(losses * is_scored, is_scored), detection_metrics(logits, is_replaced, is_scored)

    def replaced_logits(self, ids: Tensor) -> Tensor:
        """How much each token of rows (B, T), corrupted by whatever, looks replaced: (B, T)."""
        return self.discriminator(ids).float()


def check_vocabularies(generator: nn.Module, discriminator: nn.Module) -> None:
    """The discriminator must know every token that the generator can sample."""
    ours, theirs = vocab_size_of(generator), vocab_size_of(discriminator)
    if ours is not None and theirs is not None and ours > theirs:
        raise UserError(
            f"the generator has a vocabulary of {ours}, the discriminator one of {theirs}: it could not read all samples; "
            "build both for the same tokenizer"
        )
