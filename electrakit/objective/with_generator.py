"""Masked rows in, rows with the samples of a generator out: the base of ELECTRA and its relatives."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.config.base import check_rates
from electrakit.config.objective import DISC_WEIGHTS, check_loss_weights, check_temperature
from electrakit.model.huggingface.adapt import as_generator, sep_token_of, vocab_size_of
from electrakit.model.ngrams import NGrams
from electrakit.model.tie import check_output_table, copy_encoder, warn_of_untied_copies
from electrakit.objective import corrupt
from electrakit.objective.masking import MaskedBatch, MaskedObjective, Masking, checked_ids, special_tokens
from electrakit.objective.output import Output, ratio
from electrakit.objective.predict_masked import Sampling, predict_by_counts, predict_masked
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


def check_vocabularies(generator: nn.Module, discriminator: nn.Module) -> None:
    """The discriminator must know every token that the generator can sample."""
    ours, theirs = vocab_size_of(generator), vocab_size_of(discriminator)
    if ours is not None and theirs is not None and ours > theirs:
        raise UserError(
            f"the generator has a vocabulary of {ours}, the discriminator one of {theirs}: it could not read all samples; "
            "build both for the same tokenizer"
        )
