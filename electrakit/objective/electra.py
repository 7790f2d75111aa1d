"""Replaced-token detection: a generator corrupts rows, and a discriminator finds the replaced tokens."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError, prefix_errors
from electrakit.config.base import check_rates
from electrakit.config.pretrain import DISC_WEIGHTS, check_loss_weights, check_temperature
from electrakit.model.huggingface.adapt import as_discriminator, as_generator, sep_token_of, unwrap, vocab_size_of
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.ngrams import NGrams
from electrakit.model.tie import (
    check_output_table,
    copy_encoder,
    encoder_replacements,
    shared_parameters,
    warn_of_untied_copies,
)
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked, MaskedBatch, MaskedObjective, Masking, checked_ids, special_tokens
from electrakit.objective.output import Output, detection_metrics, ratio
from electrakit.objective.predict_masked import Sampling, predict_by_counts, predict_from_states, predict_masked
from electrakit.objective.randomness import Draws
from electrakit.objective.reinforce import log_probabilities, with_gradient_of_reward

Scores = tuple[Tensor, dict[str, Tensor]]
"""The discriminator's loss, and its metrics by the names of `Output`."""


class Samples(NamedTuple):
    """What the generator makes of the masked rows."""

    tokens: Tensor
    """The replacements (B, K)."""
    mlm_loss: Tensor | None = None
    gen_acc: Tensor | None = None
    log_probs: Tensor | None = None
    """(B, K): of the replacements, for a generator that is trained to deceive."""


class WithGenerator(MaskedObjective):
    """The base of Electra, ReplaceMLM and AllTokensMLM: a generator fills in the chosen positions.

    train() and eval() of the objective apply to both networks: in training the generator samples with dropout, as in the official code.
    """

    kind: str
    """The value of `objective.kind` in the settings."""
    adversarial = False
    """The generator is trained to deceive the discriminator."""
    generator_steps: int | None = None
    """With two stages, the steps of the first."""
    stage: Literal["both", "generator", "discriminator"] = "both"
    """Which networks are trained; see `begin_step`."""

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
        keep_mask_prob: float = 0.0,
        num_tokens: int | None = None,
        temperature: float = 1.0,
        final_temperature: float | None = None,
        log_frequencies: Tensor | None = None,
        disallow_correct: bool = False,
        gen_weight: float = 1.0,
        disc_weight: float | None = None,
        official: bool = False,
        is_continuation: Tensor | None = None,
        ngrams: NGrams | None = None,
        adapt: Callable[..., nn.Module] = as_generator,
    ) -> None:
        """Wrap two models.

        Args:
            generator: a masked language model, an `NGrams`, or "uniform": replacements are then drawn uniformly, without a network.
            discriminator: the model to pretrain.
            mask_token_id: the id of [MASK].
            pad_token_id: the id of padding, which is never attended to, chosen or scored.
            mask_prob: share of the real tokens that is chosen.
            mask_ignore_token_ids: never chosen, such as [CLS] and [SEP]; padding and [MASK] need not be named.
            random_token_prob: share of the chosen positions where the generator reads a random token.
            replace_prob: share of the other chosen positions where it reads [MASK]; elsewhere it reads the token itself.
            sep_token_id: for models with segments, the id after which segment B begins; by default that of our own networks.
            num_tokens: size of the vocabulary, where the models do not name it.
            keep_mask_prob: share of the chosen positions where the discriminator, too, reads [MASK]; it is not scored there.
            temperature: of the generator's distribution when replacements are sampled.
            final_temperature: it changes to this over the run; see `set_progress`.
            log_frequencies: (V,): a temperature above 1 brings the samples closer to these, instead of to uniformly drawn tokens.
            disallow_correct: never sample the original token.
            gen_weight: of the generator's loss.
            disc_weight: of the discriminator's loss; the default is in DISC_WEIGHTS.
            official: choose with replacement, as google-research/electra does; for comparison. One difference remains: [PAD] and [SEP] are
                never sampled, because our networks read padding and segments from the ids.
            is_continuation: bool (V,), for whole-word masking: see `is_continuation_table`.
            ngrams: counts of neighbours whose logits are added to the generator's, which then learns what they leave over.
            adapt: gives the discriminator its interface; by default that of a second masked language model.
        """
        super().__init__()
        if isinstance(generator, str) and generator != "uniform":
            raise UserError(f"generator is {generator!r}: pass a model, or 'uniform'")
        check_rates({"replace_prob": replace_prob, "random_token_prob": random_token_prob})
        for each in (temperature, *(() if final_temperature is None else (final_temperature,))):
            check_temperature(each)
        disc_weight = DISC_WEIGHTS[self.kind] if disc_weight is None else disc_weight
        check_loss_weights(gen_weight, disc_weight)
        sep_token_id = sep_token_of(generator, discriminator) if sep_token_id is None else sep_token_id
        ids: dict[str, Any] = {"pad_token_id": pad_token_id, "sep_token_id": sep_token_id}
        self.ngrams = generator if isinstance(generator, NGrams) else ngrams
        self.generator = None if isinstance(generator, str | NGrams) else as_generator(generator, **ids)
        self.discriminator = adapt(discriminator, **ids)
        if self.generator is not None:
            check_vocabularies(self.generator, self.discriminator)
            check_output_table(self.generator, self.discriminator)
            warn_of_untied_copies(self.generator, self.discriminator)
        models = (self.generator, self.ngrams, self.discriminator)
        self.vocab_size = num_tokens if num_tokens is not None else vocab_size_of(*models)
        if self.generator is None and self.vocab_size is None:
            raise UserError("generator='uniform' needs the size of the vocabulary: pass num_tokens")
        self.masking = Masking(
            special_tokens(pad_token_id, mask_token_id, mask_ignore_token_ids, sep_token_id, self.vocab_size),
            mask_prob=mask_prob,
            mask_share=(1 - random_token_prob) * replace_prob,
            random_share=random_token_prob,
            hidden_share=keep_mask_prob,
            vocab_size=self.vocab_size,
            official=official,
            is_continuation=is_continuation,
        )
        self.first_temperature, self.final_temperature = temperature, final_temperature
        self.temperature: float | Tensor
        if final_temperature is None:
            self.temperature = temperature
        else:  # a tensor: a number that changes would be compiled anew at every step
            self.register_buffer("temperature", torch.tensor(temperature), persistent=False)
        if log_frequencies is not None:
            num_logits = vocab_size_of(self.generator or self.discriminator) or self.vocab_size
            if num_logits is not None and log_frequencies.shape != (num_logits,):
                raise UserError(
                    f"log_frequencies are {tuple(log_frequencies.shape)}; one for each of the {num_logits} tokens is wanted"
                )
            if not log_frequencies.isfinite().all():
                raise UserError("log_frequencies must be finite: add a half to every count")
        self.log_frequencies: Tensor | None
        self.register_buffer("log_frequencies", log_frequencies, persistent=False)  # of the corpus, not learned
        self.disallow_correct = disallow_correct
        self.gen_weight, self.disc_weight = gen_weight, disc_weight
        self.loss_weights = (gen_weight, disc_weight, 0.0)
        self.add_modules()

    def add_modules(self) -> None:
        """Make what a subclass has besides the two networks."""

    def forward(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> Output:
        """ids (B, T). `draws`: keys of the rows (see `row_keys`), or draws, or the result of `mask`; by default new draws from
        torch's generator."""
        ids = checked_ids(ids)
        batch = self.mask(ids, draws)
        positions, counts, originals, _, attended, is_hidden = batch.masked
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.stage != "discriminator"):
            sampled, mlm_loss, gen_acc, log_probs = self.sample(batch)
        if self.stage == "generator" and self.training:
            assert mlm_loss is not None
            of_generator = {"mlm_loss": mlm_loss, "gen_acc": gen_acc, "counts": counts, "num_tokens": batch.num_tokens}
            return Output(self.gen_weight * mlm_loss, **of_generator)
        # Into the original rows, not the masked ones. A sample that equals the original counts as original.
        corrupted = self.masking.write(ids, positions, sampled, counts)
        is_replaced = corrupted != ids
        if is_hidden is not None:
            is_mask = corrupt.is_chosen(ids, positions, is_hidden)
            corrupted = corrupted.masked_fill(is_mask, self.masking.special.mask)
            is_replaced = is_replaced & ~is_mask
        disc_loss, metrics = self.score(ids, batch, corrupted, is_replaced)
        if log_probs is not None and mlm_loss is not None:
            rewards = metrics["token_losses"].detach().gather(1, positions)
            mlm_loss = with_gradient_of_reward(mlm_loss, log_probs, rewards, counts)
            metrics["reward"] = ratio(rewards * counts, counts)
        metrics.pop("token_losses", None)
        loss = self.disc_weight * disc_loss
        if "correct_loss" in metrics:
            loss = loss + self.loss_weights[2] * metrics["correct_loss"]
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

    def sample(self, batch: MaskedBatch) -> Samples:
        """The replacements, and the generator's loss and accuracy."""
        masked, without = batch.masked, self.masking.special.never_sampled
        keeps_logits = self.adversarial and torch.is_grad_enabled()
        sampling = Sampling(
            batch.sample, self.temperature, without, self.disallow_correct, self.log_frequencies, keeps_logits
        )
        if self.generator is not None:
            predictions = predict_masked(self.generator, masked, sampling, self.ngrams)
        elif self.ngrams is not None:
            predictions = predict_by_counts(self.ngrams, masked, sampling)
        else:
            assert self.vocab_size is not None
            not_these = masked.originals if self.disallow_correct else None
            return Samples(corrupt.uniform_tokens(batch.sample, self.vocab_size, without, not_these))
        assert predictions.sampled is not None
        # Counts do not learn: theirs is no loss.
        loss = None if self.generator is None else predictions.loss
        logits, log_probs = predictions.logits, None
        if logits is not None:
            log_probs = log_probabilities(logits, predictions.sampled, sampling)
        return Samples(predictions.sampled, loss, predictions.accuracy, log_probs)

    def begin_step(self, step: int) -> None:
        """Tell two-stage training which step comes next, counted from 0; other training need not know.

        In the first stage the generator alone is trained. At its end the discriminator gets the generator's weights, and from then on
        it alone is trained.
        """
        if self.generator_steps is not None:
            assert self.generator is not None
            self.stage = "generator" if step < self.generator_steps else "discriminator"
            if step == self.generator_steps:
                copy_encoder(self.generator, self.discriminator)

    def set_progress(self, fraction: float) -> None:
        """How much of the run is done, from 0 to 1: the temperature is that far between the first and the final one."""
        if isinstance(self.temperature, Tensor):
            assert self.final_temperature is not None
            self.temperature.fill_(
                self.first_temperature + (self.final_temperature - self.first_temperature) * fraction
            )

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

    With `corrector`, the discriminator also predicts the originals at the chosen positions (Meng et al. 2021): one of our generators
    around the discriminator's own body, of which only the head is new.

    Two things that the paper tried, and found worse (appendix F). `adversarial=True`: the generator is trained to deceive the
    discriminator. The value of `mlm_loss` stays the cross-entropy, its gradient is REINFORCE's; clip the gradients of the two networks
    separately. `generator_steps=n`: for n steps the generator is trained alone, then the discriminator starts from its weights, and the
    generator stays as it is; call `begin_step` before each step.
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
        keep_mask_prob: float = 0.0,
        pad_token_id: int = 0,
        sep_token_id: int | None = None,
        mask_ignore_token_ids: Iterable[int] = (),
        disc_weight: float = DISC_WEIGHTS["electra"],
        gen_weight: float = 1.0,
        temperature: float = 1.0,
        final_temperature: float | None = None,
        log_frequencies: Tensor | None = None,
        disallow_correct: bool = False,
        loss_on: Literal["all", "masked"] = "all",
        official: bool = False,
        is_continuation: Tensor | None = None,
        ngrams: NGrams | None = None,
        corrector: Generator | None = None,
        correct_weight: float = 0.0,
        adversarial: bool = False,
        generator_steps: int | None = None,
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
            keep_mask_prob=keep_mask_prob,
            num_tokens=num_tokens,
            temperature=temperature,
            final_temperature=final_temperature,
            log_frequencies=log_frequencies,
            disallow_correct=disallow_correct,
            gen_weight=gen_weight,
            disc_weight=disc_weight,
            official=official,
            is_continuation=is_continuation,
            ngrams=ngrams,
            adapt=partial(as_discriminator, discr_dim=discr_dim, discr_layer=discr_layer),
        )
        self.loss_on = loss_on
        self.corrector = corrector
        self.adversarial, self.generator_steps = adversarial, generator_steps
        self.check_training()
        self.loss_weights = (gen_weight, disc_weight, correct_weight)
        if corrector is not None and corrector.body is not getattr(self.discriminator, "body", None):
            raise UserError(
                "the corrector is not around the discriminator's body: assign corrector.body = discriminator.body"
            )

    def check_training(self) -> None:
        """Refuse what cannot be trained adversarially, or in two stages."""
        what = "adversarial" if self.adversarial else "generator_steps"
        if not self.adversarial and self.generator_steps is None:
            return
        if self.adversarial and self.generator_steps is not None:
            raise UserError("adversarial training needs both networks at every step: leave out generator_steps")
        if self.generator is None:
            raise UserError(f"{what} is of a generator that is trained, and there is none: leave it out")
        if shared := shared_parameters(self.generator, self.discriminator):
            raise UserError(
                f"{what}: generator and discriminator share {shared[0]}, so each would move the other's; "
                "use share='nothing' or 'gdes'"
            )
        if self.generator_steps is not None:
            with prefix_errors("generator_steps: "):  # now, not in the middle of a training
                encoder_replacements(unwrap(self.generator), unwrap(self.discriminator))
        if self.adversarial and (
            self.disallow_correct or self.log_frequencies is not None or self.masking.hidden_share
        ):
            raise UserError(
                "adversarial trains the distribution that is sampled: leave out disallow_correct, log_frequencies and keep_mask_prob"
            )

    @property
    def saved_networks(self) -> dict[str, str]:
        """Folder in a checkpoint -> attribute. A corrector that has seen [MASK] is a masked language model."""
        is_masked_lm = self.generator is None and self.masking.hidden_share > 0
        return {"discriminator": "discriminator", "generator": "corrector" if is_masked_lm else "generator"}

    def is_scored(self, ids: Tensor, masked: Masked) -> Tensor:
        is_scored = masked.attended
        if self.loss_on == "masked":
            is_scored = corrupt.is_chosen(ids, masked.positions, masked.counts)
        if masked.is_hidden is not None:
            is_scored = is_scored & ~corrupt.is_chosen(ids, masked.positions, masked.is_hidden)
        return is_scored

    def score(self, ids: Tensor, batch: MaskedBatch, corrupted: Tensor, is_replaced: Tensor) -> Scores:
        is_scored = batch.is_scored
        assert is_scored is not None
        correction: dict[str, Tensor] = {}
        if self.corrector is None:
            logits = self.discriminator(corrupted)
        else:
            assert isinstance(self.discriminator, Discriminator)
            tokens, hidden = self.discriminator.encode(corrupted)
            logits = self.discriminator.token_logits(tokens, hidden)
            loss, accuracy, *_ = predict_from_states(self.corrector, tokens, hidden, batch.masked)
            correction = {"correct_loss": loss, "correct_acc": accuracy}
        logits = logits.float().masked_fill(~is_scored, 0)  # (B, T)
        losses = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="none")
        metrics = detection_metrics(logits, is_replaced, is_scored) | {"token_losses": losses}
        return ratio(losses * is_scored, is_scored), metrics | correction

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
