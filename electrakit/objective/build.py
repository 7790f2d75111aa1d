"""Builds the objective of a run from its settings: the one module that training compiles, wraps, counts and saves."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.config.objective import ObjectiveConfig
from electrakit.config.pretrain import PretrainConfig, with_special_ids
from electrakit.model.build import build
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.ngrams import NGrams
from electrakit.model.two_tower import TwoTower
from electrakit.objective.electra import Electra
from electrakit.objective.electric import Electric
from electrakit.objective.mlm import AllTokensMLM, MaskedLM, ReplaceMLM


def build_objective(
    config: PretrainConfig,
    special_ids: Mapping[str, int],
    is_continuation: Tensor | None = None,
    ngrams: NGrams | None = None,
    log_frequencies: Tensor | None = None,
) -> nn.Module:
    """The networks of a run, newly initialised, and the objective around them.

    `special_ids` are those of the shards' manifest (pad, cls, sep, mask); the networks are built for them. `is_continuation` is needed
    for whole-word masking: see `is_continuation_table`; `ngrams` to train a run that samples by counts;
    `log_frequencies` (V,) for `objective.flatten_to=frequency`.
    """
    objective = config.objective
    if objective.whole_words and is_continuation is None:
        raise UserError("objective.whole_words needs is_continuation, made by is_continuation_table from a vocabulary")
    if objective.flatten_to == "frequency" and log_frequencies is None:
        raise UserError("objective.flatten_to=frequency needs log_frequencies, one for each token of the vocabulary")
    generator, discriminator = build(with_special_ids(config, special_ids))
    settings: dict[str, Any] = {
        "pad_token_id": special_ids["pad"],
        "mask_token_id": special_ids["mask"],
        "sep_token_id": special_ids["sep"],
        "mask_ignore_token_ids": (special_ids["cls"], special_ids["sep"]),
        "mask_prob": objective.mask_prob,
        "num_tokens": config.discriminator.vocab_size,
        "official": objective.official,
        "is_continuation": is_continuation if objective.whole_words else None,
    }
    if objective.kind == "mlm":
        return MaskedLM(discriminator, scheme=objective.scheme, **settings)
    if objective.kind == "electric":
        return build_electric(generator, discriminator, objective, settings)
    settings |= {
        "replace_prob": objective.replace_prob,
        "temperature": objective.temperature,
        "final_temperature": objective.final_temperature,
        "log_frequencies": log_frequencies,
        "ngrams": ngrams,
        "disallow_correct": objective.disallow_correct,
        "gen_weight": objective.gen_weight,
        "disc_weight": objective.resolved_disc_weight,
    }
    source: Any = "uniform" if generator is None else generator
    if objective.kind == "electra":
        corrector = None
        if objective.correct_weight:
            assert isinstance(discriminator, Discriminator)
            corrector = Generator(discriminator.config)
            corrector.body = discriminator.body
        settings |= {"keep_mask_prob": objective.keep_mask_prob, "correct_weight": objective.correct_weight}
        settings |= {"adversarial": objective.adversarial, "generator_steps": objective.generator_steps}
        return Electra(source, discriminator, loss_on=objective.loss_on, corrector=corrector, **settings)
    mixture = ReplaceMLM if objective.kind == "replace_mlm" else AllTokensMLM
    return mixture(source, discriminator, **settings)


def build_electric(
    generator: nn.Module | None, discriminator: nn.Module, objective: ObjectiveConfig, settings: dict[str, Any]
) -> Electric:
    """Energies begin where every token is equally likely: a bias would take thousands of steps to get there."""
    assert isinstance(generator, TwoTower)
    if isinstance(discriminator, Discriminator):
        nn.init.constant_(discriminator.score.bias, math.log(generator.config.vocab_size))
    kept = {name: value for name, value in settings.items() if name not in ("num_tokens", "official")}
    weights: dict[str, Any] = {"gen_weight": objective.gen_weight, "disc_weight": objective.resolved_disc_weight}
    return Electric(generator, discriminator, **kept, **weights)
