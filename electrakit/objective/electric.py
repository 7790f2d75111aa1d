"""Electric: rows in, an energy for each token out, by noise-contrastive estimation (Clark et al. 2020b).

"Pre-Training Transformers as Energy-Based Cloze Models". p(token | the others) = exp(-E) / Z, with Z about 1. So the sum of -E over a
sentence is a pseudo-log-likelihood that takes one pass, where a masked language model takes one for each token.
"""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.config.objective import DISC_WEIGHTS, check_loss_weights
from electrakit.model import kernels
from electrakit.model.huggingface.adapt import as_discriminator, sep_token_of, unwrap
from electrakit.model.huggingface.families import is_transformers
from electrakit.model.huggingface.names import ENERGY_MARK
from electrakit.model.networks import Discriminator
from electrakit.model.parts import gather
from electrakit.model.two_tower import TwoTower
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked, MaskedBatch, MaskedObjective, Masking, checked_ids, special_tokens
from electrakit.objective.output import Output, detection_metrics, ratio
from electrakit.objective.predict_masked import MAX_LOGITS, log_probabilities
from electrakit.objective.randomness import Draws


class Noise(NamedTuple):
    """What the generator knows about a row, and samples."""

    loss: Tensor
    """Mean cross-entropy over the tokens that are scored; only this has a gradient."""
    log_probs: Tensor
    """(B, T): of the tokens; 0 where they are not scored."""
    sampled: Tensor
    """(B, K)"""
    log_probs_sampled: Tensor
    """(B, K)"""
    accuracy: Tensor
    """How often the most likely token is the original, at the chosen positions."""


class Electric(MaskedObjective):
    """Which tokens are noise, given how likely the noise is: what a token's logit adds to that is its energy.

    In each row, k of the n tokens that can be chosen are replaced by samples of the generator q, a two-tower model that is trained by
    maximum likelihood at the same time. P(noise) = k q / (k q + (n - k) exp(-E)). At the optimum exp(-E) is the data's own conditional
    probability. A sample that equals the original is noise all the same.
    """

    # Folder in a checkpoint -> attribute. transformers has no two-tower model.
    saved_networks: ClassVar = {"discriminator": "discriminator"}

    def __init__(
        self,
        generator: TwoTower,
        discriminator: nn.Module,
        *,
        mask_token_id: int,
        pad_token_id: int = 0,
        sep_token_id: int | None = None,
        mask_prob: float = 0.15,
        mask_ignore_token_ids: Iterable[int] = (),
        gen_weight: float = 1.0,
        disc_weight: float = DISC_WEIGHTS["electric"],
        is_continuation: Tensor | None = None,
    ) -> None:
        """Arguments as of `WithGenerator`; the discriminator is any that `Electra` takes. Special tokens have no energy."""
        super().__init__()
        check_loss_weights(gen_weight, disc_weight)
        if not isinstance(generator, TwoTower):
            raise UserError(
                f"the generator of Electric is {type(generator).__name__}: it must say how likely every token is, "
                "as electrakit.model.two_tower.TwoTower does"
            )
        sep_token_id = sep_token_of(generator, discriminator) if sep_token_id is None else sep_token_id
        self.generator = generator
        self.discriminator = as_discriminator(discriminator, pad_token_id=pad_token_id, sep_token_id=sep_token_id)
        self.vocab_size = generator.config.vocab_size
        self.masking = Masking(
            special_tokens(pad_token_id, mask_token_id, mask_ignore_token_ids, sep_token_id, self.vocab_size),
            mask_prob=mask_prob,
            mask_share=1.0,
            vocab_size=self.vocab_size,
            is_continuation=is_continuation,
        )
        is_special = torch.zeros(self.vocab_size, dtype=torch.bool)
        is_special[list(self.masking.special.never_chosen)] = True
        self.is_special: Tensor
        self.register_buffer("is_special", is_special, persistent=False)  # (V,): of the tokenizer, not learned
        self.loss_weights = (gen_weight, disc_weight, 0.0)
        mark_energies(self.discriminator)

    def mask(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> MaskedBatch:
        """As of all objectives, but both losses are means over all tokens that can be chosen."""
        batch = super().mask(ids, draws)
        return batch._replace(num_tokens=batch.num_tokens[1:].expand(2))

    def is_scored(self, ids: Tensor, masked: Masked) -> Tensor:
        return corrupt.can_be_chosen(ids, masked.attended, self.masking.special)

    def forward(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> Output:
        """ids (B, T); `draws` as in Electra."""
        ids = checked_ids(ids)
        batch = self.mask(ids, draws)
        positions, counts, originals, _, attended, _ = batch.masked
        is_scored = batch.is_scored
        assert is_scored is not None
        noise = self.noise(ids, batch, is_scored)
        with torch.no_grad():
            corrupted = corrupt.write(ids, positions, noise.sampled, counts)
            log_noise = corrupt.write(noise.log_probs, positions, noise.log_probs_sampled, counts)
            is_noise = corrupt.is_chosen(ids, positions, counts)
            odds = self.log_odds(is_noise, is_scored)
        logits = (self.discriminator(corrupted).float() + log_noise + odds).masked_fill(~is_scored, 0)  # (B, T)
        losses = F.binary_cross_entropy_with_logits(logits, is_noise.float(), reduction="none")
        disc_loss = ratio(losses * is_scored, is_scored)
        gen_weight, disc_weight, _ = self.loss_weights
        return Output(
            loss=gen_weight * noise.loss + disc_weight * disc_loss,
            mlm_loss=noise.loss,
            disc_loss=disc_loss,
            gen_acc=noise.accuracy,
            sampled_acc=ratio((noise.sampled == originals) & counts, counts),
            disc_labels=is_noise,
            replaced_rate=ratio(is_noise, attended),
            attended=attended,
            corrupted=corrupted,
            positions=positions,
            counts=counts,
            num_tokens=batch.num_tokens,
            **detection_metrics(logits, is_noise, is_scored),
        )

    def noise(self, ids: Tensor, batch: MaskedBatch, is_scored: Tensor) -> Noise:
        """What the generator knows about the row, and samples."""
        hidden, masked = self.generator.hidden(ids), batch.masked
        if self.generator.can_use_kernels(ids):
            return self.noise_by_kernel(ids, hidden, batch, is_scored)
        targets = ids.masked_fill(~is_scored, -100)  # cross_entropy's ignore_index: 0 there
        log_probs = log_probabilities(self.noise_logits, hidden, targets, self.vocab_size)  # (B, T)
        with torch.no_grad():
            logits = self.noise_logits(gather(hidden, masked.positions))  # (B, K, V)
            sampled = corrupt.sample(logits, batch.sample)
            sampled = torch.where(sampled < 0, masked.originals, sampled)  # -1 for NaN, which the loss shows
            log_probs_sampled = logits.log_softmax(-1).gather(-1, sampled[..., None])[..., 0]
            is_right = (logits.argmax(-1) == masked.originals) & masked.counts
        return Noise(
            ratio(-log_probs, is_scored), log_probs, sampled, log_probs_sampled, ratio(is_right, masked.counts)
        )

    def noise_by_kernel(self, ids: Tensor, hidden: Tensor, batch: MaskedBatch, is_scored: Tensor) -> Noise:
        """The same at the tokens that are scored alone."""
        masked, special = batch.masked, self.is_special.nonzero()[:, 0]
        draws = corrupt.write(torch.zeros(ids.shape), masked.positions, batch.sample.float(), masked.counts)
        bias = self.generator.output_bias.masked_fill(self.is_special, -torch.inf)
        states = self.generator.head(hidden[is_scored])
        given = (ids[is_scored], draws[is_scored], special, MAX_LOGITS, torch.is_grad_enabled())
        total, losses, *found = kernels.Likelihood.apply(
            states, self.generator.body.embeddings.word.weight, bias, *given
        )
        best, sampled, log_sampled = (  # (B, K)
            torch.zeros(ids.shape, dtype=each.dtype).masked_scatter(is_scored, each).gather(1, masked.positions)
            for each in found
        )
        log_probs = torch.zeros(ids.shape).masked_scatter(is_scored, -losses)
        sampled = torch.where(sampled < 0, masked.originals, sampled)
        is_right = (best == masked.originals) & masked.counts
        return Noise(total / max(1, len(losses)), log_probs, sampled, log_sampled, ratio(is_right, masked.counts))

    def noise_logits(self, hidden: Tensor) -> Tensor:
        """Of the generator, float32; special tokens are no noise."""
        return self.generator.word_logits(hidden).float().masked_fill(self.is_special, -torch.inf)

    @staticmethod
    def log_odds(is_noise: Tensor, is_scored: Tensor) -> Tensor:
        """log(k / (n - k)) of each row: (B, 1)."""
        num_noise, num_scored = (each.sum(-1, keepdim=True) for each in (is_noise, is_scored))
        return (num_noise.clamp(min=1) / (num_scored - num_noise).clamp(min=1)).log()

    def replaced_logits(self, ids: Tensor) -> Tensor:
        """The energy of each token of rows (B, T), which is higher for unlikely ones: (B, T)."""
        return self.discriminator(ids).float()


def mark_energies(discriminator: nn.Module) -> None:
    """What is saved says that its logits are energies."""
    model = unwrap(discriminator)
    if isinstance(model, Discriminator):
        model.gives_energies = True
    elif is_transformers(model):
        model.config.update(ENERGY_MARK)
