"""Replaced-token detection: a generator corrupts rows, and a discriminator finds the replaced tokens."""

from collections.abc import Iterable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError, prefix_errors
from electrakit.config.objective import DISC_WEIGHTS
from electrakit.model.huggingface.adapt import as_discriminator, unwrap
from electrakit.model.match import encoder_replacements
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.ngrams import NGrams
from electrakit.model.tie import shared_parameters
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked, MaskedBatch
from electrakit.objective.output import detection_metrics, ratio
from electrakit.objective.predict_masked import predict_from_states
from electrakit.objective.with_generator import Scores, WithGenerator


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
