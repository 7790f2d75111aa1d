"""From settings to networks and objective: every preset is built, tied, and learns from a batch."""

import pytest
import torch

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.config.pretrain import override, with_special_ids
from electrakit.model.build import build
from electrakit.model.gdes import gdes_tables
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.tie import shared_parameters
from electrakit.objective.build import build_objective
from electrakit.objective.electra import Electra
from electrakit.objective.masking import is_continuation_table
from electrakit.objective.mlm import AllTokensMLM, MaskedLM, ReplaceMLM

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCAB = 200

CONFIGS = {
    **{name: preset() for name, preset in presets.PRESETS.items()},
    "electra_base, modern": presets.electra_base("modern"),
    "mlm_small, modern": presets.mlm_small("modern"),
    "replace_mlm, modern": presets.replace_mlm("modern"),
    "all_tokens_mlm, modern": presets.all_tokens_mlm("modern"),
    "alectra, bert generator": presets.alectra_small("bert"),
    "alectra, shared encoder": presets.alectra_small(share="encoder"),
    "uniform generator": presets.electra_small(generator=None),
    "bert pair, replace_mlm": presets.electra_small_owt(objective={"kind": "replace_mlm"}),
    "bert pair, all_tokens_mlm": presets.electra_small_owt(objective={"kind": "all_tokens_mlm"}),
}


def reduced(config):
    """The same bodies, objective and sharing; two layers, narrow."""
    sizes = {"vocab_size": VOCAB, "num_layers": 2, "num_heads": 2, "ffn_size": 48, "max_length": 32}
    widest = max(network.hidden_size for network in config.networks.values())
    changes = {}
    for name, network in config.networks.items():
        hidden = 32 if network.hidden_size == widest else 16
        embedding = hidden if network.embedding_size == network.hidden_size else 16
        changes[name] = {**sizes, "hidden_size": hidden, "embedding_size": embedding}
    if {network.body for network in config.networks.values()} == {"classic"}:
        for change in changes.values():
            change["embedding_size"] = 16
    return override(config, {**changes, "length": 24, "batch_size": 3})


def rows():
    ids = torch.randint(5, VOCAB, (3, 24), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, 11], ids[:, 20], ids[:, 21:] = SPECIAL["cls"], SPECIAL["sep"], SPECIAL["sep"], SPECIAL["pad"]
    return ids


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_preset_is_built_and_learns_from_a_batch(config):
    torch.manual_seed(0)
    objective = build_objective(reduced(config), SPECIAL)
    output = objective(rows())
    output.loss.backward()
    assert output.loss.isfinite()
    idle = [name for name, weight in objective.named_parameters() if weight.grad is None]
    assert idle == []


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_pair_shares_what_the_settings_say(config):
    generator, discriminator = build(with_special_ids(reduced(config), SPECIAL))
    if generator is None:
        assert config.generator is None
        return
    shared = shared_parameters(generator, discriminator)
    if config.share == "gdes":
        (table,) = gdes_tables(discriminator).values()
        assert shared == [] and table.generator_table is generator.body.embeddings.word.weight
        return
    assert any("word" in name or "tok_embeddings" in name for name in shared)
    assert any("layer" in name.lower() and "norm" not in name.lower() for name in shared) == (config.share == "encoder")


def test_nothing_is_shared_when_the_settings_say_so():
    generator, discriminator = build(reduced(override(presets.electra_small(), {"share": "nothing"})))
    assert shared_parameters(generator, discriminator) == []


@pytest.mark.parametrize(
    ("preset", "objective", "networks"),
    [
        ("electra_small", Electra, [Generator, Discriminator]),
        ("mlm_small", MaskedLM, [Generator]),
        ("replace_mlm", ReplaceMLM, [Generator, Generator]),
        ("all_tokens_mlm", AllTokensMLM, [Generator, Generator]),
    ],
)
def test_each_kind_of_objective_gets_its_networks(preset, objective, networks):
    built = build_objective(reduced(presets.PRESETS[preset]()), SPECIAL)
    assert type(built) is objective
    children = [type(child) for child in built.children() if isinstance(child, Generator | Discriminator)]
    assert children == networks


def test_the_settings_of_the_objective_arrive():
    settings = {
        "mask_prob": 0.3,
        "replace_prob": 0.5,
        "temperature": 2.0,
        "disallow_correct": True,
        "loss_on": "masked",
        "gen_weight": 2.0,
        "disc_weight": 3.0,
        "official": True,
    }
    built = build_objective(reduced(presets.electra_small(objective=settings)), SPECIAL)
    assert (built.masking.mask_prob, built.masking.mask_share, built.masking.official) == (0.3, 0.5, True)
    assert (built.temperature, built.disallow_correct, built.loss_on) == (2.0, True, "masked")
    assert (built.gen_weight, built.disc_weight) == (2.0, 3.0)
    special = built.masking.special
    assert (special.pad, special.mask, special.sep, special.never_masked) == (0, 4, 3, (2, 3))
    baseline = build_objective(reduced(presets.mlm_small(objective={"scheme": "electra"})), SPECIAL)
    assert (baseline.masking.mask_share, baseline.masking.random_share) == (0.85, 0.0)


def test_networks_follow_the_special_ids_of_the_shards():
    other = {"pad": 9, "unk": 1, "cls": 2, "sep": 8, "mask": 4}
    built = build_objective(reduced(presets.electra_small()), other)
    for network in (built.generator, built.discriminator):
        assert (network.config.pad_token_id, network.config.sep_token_id) == (9, 8)
    pair = build_objective(reduced(presets.electra_small_owt()), other)
    assert (pair.generator.inputs_for.pad_token_id, pair.discriminator.inputs_for.sep_token_id) == (9, 8)


@pytest.mark.parametrize(("kind", "weight"), [("electra", 50.0), ("replace_mlm", 1.0), ("all_tokens_mlm", 7.0)])
def test_the_weight_of_the_discriminators_loss_follows_the_kind(kind, weight):
    config = reduced(presets.electra_small(objective={"kind": kind}))
    assert build_objective(config, SPECIAL).disc_weight == weight
    assert build_objective(override(config, {"objective": {"disc_weight": 2}}), SPECIAL).disc_weight == 2
    classes = {"electra": Electra, "replace_mlm": ReplaceMLM, "all_tokens_mlm": AllTokensMLM}
    second = Discriminator if kind == "electra" else Generator
    pair = (network(with_special_ids(config, SPECIAL).discriminator) for network in (Generator, second))
    assert classes[kind](*pair, mask_token_id=4).disc_weight == weight


def test_whole_words_need_and_use_the_table():
    config = reduced(presets.electra_small(objective={"whole_words": True}))
    with pytest.raises(UserError, match="is_continuation"):
        build_objective(config, SPECIAL)
    table = is_continuation_table({"a": 0, "##b": 7}, VOCAB)
    assert torch.equal(build_objective(config, SPECIAL, table).masking.is_continuation, table)
    plain = override(config, {"objective": {"whole_words": False}})
    assert build_objective(plain, SPECIAL, table).masking.is_continuation is None


def test_shared_weights_are_one_parameter_of_the_objective():
    objective = build_objective(reduced(presets.alectra_small(share="encoder")), SPECIAL)
    owners = {name.split(".")[0] for name, _ in objective.named_parameters() if "albert_layer_groups" in name}
    assert len(owners) == 1
