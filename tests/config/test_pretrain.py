"""Settings of a run: JSON in and out, changes by name, and errors that say which setting is meant."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.config.optim import OptimConfig
from electrakit.config.pretrain import PretrainConfig, Share, override, with_special_ids


def test_the_settings_need_no_torch():
    code = "import sys, electrakit.config.presets, electrakit.cli.show_preset; print('torch' in sys.modules, 'transformers' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]


def test_share_means_the_same_here_and_in_tie():
    from electrakit.model.tie import Share as TieShare

    assert get_args(Share) == get_args(TieShare)


@pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=presets.PRESETS)
def test_json_gives_back_the_same_config(preset, tmp_path):
    config = preset(data="shards/mine", run=Path("runs/mine"), optim={"betas": [0.8, 0.98]})
    assert PretrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    assert PretrainConfig.from_file(tmp_path / "config.json") == config
    assert config.data == Path("shards/mine") and config.optim.betas == (0.8, 0.98)


def test_the_config_of_a_run_can_be_given_back_and_missing_settings_have_defaults(tmp_path):
    config = presets.mini(data="shards/mine", run="runs/mine")
    content = {"settings": config.to_json(), "data": {"length": 128}, "processes": 2}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert PretrainConfig.from_file(tmp_path / "config.json", run="again") == config.changed(run="again")
    (tmp_path / "part.yaml").write_text("steps: 7\ngenerator:\n  num_layers: 3\n")
    assert PretrainConfig.from_file(tmp_path / "part.yaml") == PretrainConfig(steps=7, generator={"num_layers": 3})
    assert PretrainConfig(generator={"num_layers": 3}).generator.hidden_size == 64  # the default's


def test_changes_reach_parts_and_leave_the_rest():
    config = presets.electra_small(steps=7, optim={"lr": 1}, generator={"num_layers": 3})
    assert (config.steps, config.optim.lr, config.generator.num_layers) == (7, 1.0, 3)
    assert override(config, {"steps": 1_000_000, "optim": OptimConfig(), "generator": {"num_layers": 12}}) == (
        presets.electra_small()
    )


def test_later_changes_win_and_the_vocabulary_is_that_of_both_networks():
    config = override(presets.tiny(), {"steps": 5}, {"steps": 6, "vocab_size": 99, "generator": {"num_layers": 1}})
    assert config.steps == 6 and config.generator.num_layers == 1
    assert {network.vocab_size for network in config.networks.values()} == {99}
    assert presets.mlm_small(vocab_size=99).discriminator.vocab_size == 99


def test_special_ids_of_the_shards_go_to_both_networks():
    config = with_special_ids(presets.tiny(), {"pad": 5, "unk": 1, "cls": 2, "sep": 3, "mask": 4})
    assert {(network.pad_token_id, network.sep_token_id) for network in config.networks.values()} == {(5, 3)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be above 0"),
        ({"micro_batch": 0}, "micro_batch must be above 0"),
        ({"optim": {"lr": -1}}, r"^optim\.lr must be above 0, got -1$"),
        ({"optim": {"betas": (0.9, 1.0)}}, r"optim\.betas must be from 0 to below 1"),
        ({"optim": {"max_grad_norm": 0}}, "None switches it off"),
        ({"optim": {"warmup_steps": -1}}, "warmup_steps must be 0 or more"),
        ({"objective": {"mask_prob": 1.5}}, "objective.mask_prob must be a rate from 0 to 1, got 1.5"),
        ({"objective": {"mask_prob": 0}}, "nothing would be learned"),
        ({"objective": {"temperature": 0}}, "temperature must be above 0"),
        ({"objective": {"gen_weight": -1}}, "must not be negative"),
        ({"objective": {"official": True, "whole_words": True}}, "one by one"),
        ({"objective": {"kind": "mlm"}}, "set generator to None"),
        ({"discriminator": {"hidden_size": 250}}, "discriminator.hidden_size 250 does not divide by num_heads 4"),
        ({"generator": {"vocab_size": 9_000}}, r"generator\.vocab_size is 9000, discriminator\.vocab_size 30522"),
        (
            {"generator": {"embedding_size": 64}},
            r"cannot share embeddings: generator\.embedding_size is 64, discriminator\.embedding_size 128",
        ),
        (
            {"generator": NetworkConfig(body="albert"), "share": "encoder"},
            r"cannot share the encoder: generator\.body is albert",
        ),
        ({"discriminator": {"body": "bert"}}, "no embedding projection"),
        ({"length": 513}, r"length 513 is more than generator\.max_length 512: shorten the rows"),
        (
            {"generator": {"max_length": 256}},
            r"cannot share embeddings: generator\.max_length is 256, discriminator\.max_length 512",
        ),
        (
            {"share": "encoder"},
            r"cannot share the encoder: generator\.hidden_size is 64, discriminator\.hidden_size 256",
        ),
        (
            {"share": "encoder", "generator": NetworkConfig(num_heads=2)},
            r"cannot share the encoder: generator\.num_heads is 2, discriminator\.num_heads 4; make them equal or use",
        ),
        (
            {"share": "encoder", "generator": NetworkConfig(num_layers=3)},
            r"cannot share the encoder: generator\.num_layers is 3",
        ),
        ({"generator": {"sep_token_id": 3}, "discriminator": {"sep_token_id": 4}}, "both networks read the same rows"),
        ({"discriminator": {"sep_token_id": 30_522}}, "sep_token_id 30522 is not in the vocabulary of 30522"),
        ({"discriminator": {"sep_token_id": 0}}, "pad_token_id and sep_token_id are both 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        presets.electra_small(**changes)


def test_special_ids_are_those_of_the_shards_and_nothing_else():
    """A default would be the [SEP] of one vocabulary, and a word of another."""
    for preset in presets.PRESETS.values():
        assert all(network.sep_token_id is None for network in preset().networks.values())


def test_what_can_be_shared_is_accepted():
    assert presets.electra_small(share="encoder", generator=NetworkConfig())
    assert presets.alectra_small(share="encoder").generator.num_layers == 3  # ALBERT's layers are one
    assert presets.electra_small(share="nothing", generator={"max_length": 256, "embedding_size": 64})


def test_a_run_can_have_no_generator():
    assert presets.electra_small(generator=None).generator is None
    assert list(presets.mlm_small().networks) == ["discriminator"]


def test_tokens_seen():
    assert PretrainConfig(steps=10, batch_size=3, length=5).num_tokens == 150


def test_plain_and_compile_are_refused_together():
    with pytest.raises(UserError, match="leave one out"):
        presets.tiny(plain=True, compile=True)
