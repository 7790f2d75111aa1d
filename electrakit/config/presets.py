"""Complete settings of known runs, one function each: a preset changes only what differs from the one it starts from.

Every preset takes changes by field name, those of a part as a dict, and `vocab_size` for both networks:

    presets.electra_small(data="shards/mine", run="runs/mine", steps=100_000, optim={"lr": 1e-3}, vocab_size=8_000)
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Unpack

from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.config.optim import OptimConfig
from electrakit.config.pretrain import ChangesBesidesPair, PretrainChanges, PretrainConfig, Share, override

OurBody = Literal["classic", "modern", "deberta"]


def tiny(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """For tests: two layers, seconds on a CPU."""
    discriminator = NetworkConfig(
        vocab_size=8_000, num_layers=2, hidden_size=64, ffn_size=256, num_heads=2, embedding_size=32, max_length=128
    )
    config = PretrainConfig(
        **networks(discriminator, 1 / 4, body),
        steps=200,
        batch_size=16,
        optim=OptimConfig(lr=2e-3, warmup_steps=20),
        log_every=10,
        valid_every=100,
        save_every=100,
    )
    return override(config, changes)


def mini(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """Minutes on a CPU: six layers of 128, a vocabulary of 8,000. No dropout: it would see its text about once."""
    sizes: Any = {"num_layers": 6, "hidden_size": 128, "ffn_size": 512, "num_heads": 2, "embedding_size": 128}
    discriminator = NetworkConfig(vocab_size=8_000, max_length=128, **sizes, **NO_DROPOUT)
    config = PretrainConfig(
        **networks(discriminator, 1 / 2, body),
        steps=3_000,
        batch_size=32,
        optim=OptimConfig(lr=1e-3, warmup_steps=300),
        log_every=20,
        valid_every=500,
        save_every=500,
    )
    return override(config, changes)


def electra_small(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """ELECTRA-Small of the paper: 14 M parameters, 4 days on a V100."""
    return override(PretrainConfig(**networks(NetworkConfig(), 1 / 4, body)), changes)


def electra_base(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """ELECTRA-Base of the paper: BERT-Base's size."""
    discriminator = NetworkConfig(hidden_size=768, ffn_size=3072, num_heads=12, embedding_size=768)
    config = PretrainConfig(
        **networks(discriminator, 1 / 3, body), steps=766_000, batch_size=256, length=512, optim=OptimConfig(lr=2e-4)
    )
    return override(config, changes)


def electra_large(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """ELECTRA-Large of the paper (its "400K" run): BERT-Large's size, a quarter of the tokens masked.

    Activations are computed twice instead of kept, which leaves a sixth of their memory; `recompute=False` is faster.
    """
    discriminator = NetworkConfig(num_layers=24, hidden_size=1024, ffn_size=4096, num_heads=16, embedding_size=1024)
    bigger = {
        **networks(discriminator, 1 / 4, body),
        "steps": 400_000,
        "batch_size": 2048,
        "objective": {"mask_prob": 0.25},
        "recompute": True,
    }
    return override(electra_base(body), bigger, changes)


def electra_small_owt(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """lmtuners' ELECTRA-small on OpenWebText: BERT twice, embeddings as wide as the layers, LAMB."""
    # Sizes, optimizer and schedule are those of its training script; it misspelt the number of positions, so they are BERT's 512.
    theirs = {
        "discriminator": NetworkConfig(body="bert", embedding_size=256),
        "generator": NetworkConfig(body="bert", num_layers=3, ffn_size=256, num_heads=1, embedding_size=256),
        "steps": 500_000,
        "batch_size": 512,
        "optim": {
            "name": "lamb",
            "lr": 2e-3,
            "schedule": "linear",
            "warmup_steps": 40_000,
            "max_grad_norm": None,
        },
    }
    return override(electra_small(), theirs, changes)


def electra_albert_generator(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """lmtuners' first attempt: an ALBERT generator, which takes less memory, and a BERT discriminator."""
    theirs = {
        "discriminator": NetworkConfig(body="bert", embedding_size=256),
        "generator": NetworkConfig(
            body="albert", num_layers=3, ffn_size=256, num_heads=1, embedding_size=256, **NO_DROPOUT
        ),
        "optim": {"name": "adamw", "schedule": "linear"},
    }
    return override(electra_small(), theirs, changes)


def alectra_small(
    generator: Literal["albert", "bert"] = "albert",
    share: Share = "embeddings",
    **changes: Unpack[ChangesBesidesPair],
) -> PretrainConfig:
    """lmtuners' ALECTRA-small: an ALBERT discriminator with an ALBERT or BERT generator, 5 M parameters.

    It reports ALBERT twice with shared embeddings; a BERT generator and a shared encoder were worse.
    """
    num_heads = 4 if share == "encoder" else 1  # theirs is 1; one layer's weights cannot have two numbers of heads
    generators = {
        "albert": NetworkConfig(body="albert", num_layers=3, num_heads=num_heads, max_length=128, **NO_DROPOUT),
        "bert": NetworkConfig(body="bert", num_layers=3, hidden_size=128, ffn_size=256, num_heads=1, max_length=128),
    }
    if not isinstance(generator, str) or generator not in generators:
        raise UserError(
            f"alectra_small: generator is {generator!r}; choose albert or bert; for other sizes, or none at all, "
            "override(alectra_small(), {'generator': None})"
        )
    theirs = {
        "discriminator": NetworkConfig(body="albert", max_length=128, **NO_DROPOUT),
        "generator": generators[generator],
        "share": share,
    }
    return override(electra_small_owt(), theirs, changes)


def mlm_small(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """BERT-Small, the paper's baseline: ELECTRA-Small's network and compute, trained as a masked language model."""
    return override(electra_small(body), {"objective": {"kind": "mlm"}, "generator": None, "steps": 1_450_000}, changes)


def electra_15(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """ELECTRA, but the discriminator is scored at the masked positions only (Clark et al. 2020, section 3.4)."""
    return override(electra_small(body), {"objective": {"loss_on": "masked"}}, changes)


def replace_mlm(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """A masked language model that is shown the generator's samples instead of [MASK] (section 3.4)."""
    return override(electra_small(body), {"objective": {"kind": "replace_mlm"}}, changes)


def all_tokens_mlm(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """As replace_mlm, but the original of every token is predicted, with a gate that copies (section 3.4)."""
    return override(electra_small(body), {"objective": {"kind": "all_tokens_mlm"}}, changes)


def electric_small(body: OurBody = "classic", **changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """Electric at ELECTRA-Small's size (Clark et al. 2020b): an energy for each token, so `electra score` takes one pass."""
    return override(electra_small(body), {"objective": {"kind": "electric"}}, changes)


def modern_tiny(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """tiny with the modern body and Muon."""
    return override(tiny("modern"), MUON, changes)


def modern_mini(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """mini with the modern body and Muon."""
    return override(mini("modern"), MUON, {"optim": {"lr": 3e-3}}, changes)


def modern_small(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """ELECTRA-Small's size with the modern body and Muon."""
    return override(electra_small("modern"), MUON, {"optim": {"lr": 1e-3}}, changes)  # the rate is not measured yet


def deberta_mini(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """Minutes on a CPU: DeBERTaV3's recipe with the sizes of mini."""
    small = {"discriminator": {"position_buckets": 32}, "generator": {"position_buckets": 32}}
    return override(mini("deberta"), small, DEBERTA_V3, {"optim": {"lr": 1e-3, "warmup_steps": 300}}, changes)


def deberta_v3_xsmall(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """DeBERTaV3-XSmall: 22 M parameters beside a table of 128,100 words."""
    sizes = NetworkConfig(hidden_size=384, ffn_size=1536, num_heads=6, embedding_size=384, vocab_size=128_100)
    theirs = {**networks(sizes, 1 / 2, "deberta"), "batch_size": 64, "optim": {"lr": 3e-4}}
    return override(deberta_v3_base(), theirs, changes)


def deberta_v3_small(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """DeBERTaV3-Small: half of the layers of DeBERTaV3-Base. Their script has no rate for it; this is Base's."""
    return override(deberta_v3_base(), {"discriminator": {"num_layers": 6}, "generator": {"num_layers": 3}}, changes)


def deberta_v3_base(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """DeBERTaV3-Base as Microsoft's script trains it: a generator of half the depth, GDES, always [MASK]."""
    sizes = NetworkConfig(hidden_size=768, ffn_size=3072, num_heads=12, embedding_size=768, vocab_size=128_100)
    config = PretrainConfig(**networks(sizes, 1 / 2, "deberta"), batch_size=256, length=512)
    return override(config, DEBERTA_V3, {"optim": {"lr": 1e-4}}, changes)


def deberta_v3_large(**changes: Unpack[PretrainChanges]) -> PretrainConfig:
    """DeBERTaV3-Large. Activations are computed twice instead of kept; `recompute=False` is faster."""
    sizes = {"hidden_size": 1024, "ffn_size": 4096, "num_heads": 16, "embedding_size": 1024}
    theirs = {
        "discriminator": {"num_layers": 24, **sizes},
        "generator": {"num_layers": 12, **sizes},
        "recompute": True,
    }
    return override(deberta_v3_base(), theirs, changes)


# Parts

NO_DROPOUT: Any = {"dropout": 0.0, "attention_dropout": 0.0}  # as ALBERT's own config has it
# He et al. 2021, and their script where the paper says nothing: always [MASK], AdamW, a linear schedule, separate updates.
DEBERTA_V3 = {
    "share": "gdes",
    "objective": {"replace_prob": 1.0, "disc_weight": 50.0},
    "optim": {"name": "adamw", "schedule": "linear", "decoupled": True},
}
MUON = {"optim": {"name": "muon"}}  # in a first probe: MLM loss 4.4 where the classic body with AdamW stood at 5.6


def networks(discriminator: NetworkConfig, factor: float, body: OurBody) -> dict[str, Any]:
    """The pair: a discriminator, and its generator of `factor` times its size."""
    if body not in ("classic", "modern", "deberta"):
        raise UserError(f"body is {body!r}; choose classic, modern or deberta")
    if body == "classic":
        return {"discriminator": discriminator, "generator": narrower(discriminator, factor)}
    if body == "deberta":
        discriminator = replace(discriminator, body="deberta", embedding_size=discriminator.hidden_size)
    else:
        discriminator = modernised(discriminator)
    return {"discriminator": discriminator, "generator": shallower(discriminator, factor)}


def narrower(network: NetworkConfig, factor: float) -> NetworkConfig:
    """The official generator: same depth and embeddings, narrower layers."""
    hidden_size = round(network.hidden_size * factor)
    return replace(network, hidden_size=hidden_size, ffn_size=4 * hidden_size, num_heads=max(1, hidden_size // 64))


def shallower(network: NetworkConfig, factor: float) -> NetworkConfig:
    """A generator of the same width with fewer layers: without an embedding projection, only so can embeddings be shared."""
    return replace(network, num_layers=max(1, round(network.num_layers * factor)))


def modernised(network: NetworkConfig) -> NetworkConfig:
    """The same width, depth and weights per layer: the gate is a third matrix, so each is two thirds as wide, in steps of 64."""
    ffn_size = max(64, round(network.ffn_size * 2 / 3 / 64) * 64)
    return replace(network, body="modern", embedding_size=network.hidden_size, ffn_size=ffn_size)


def is_preset(value: Any) -> bool:
    return (
        inspect.isfunction(value) and "changes" in inspect.signature(value).parameters and value.__module__ == __name__
    )


PRESETS: dict[str, Callable[..., PretrainConfig]] = {
    name: value for name, value in list(vars().items()) if is_preset(value)
}
