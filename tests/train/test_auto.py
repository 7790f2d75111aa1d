"""`electra pretrain auto`: it decides once, on every rank the same, and what the user gives wins."""

import json

import pytest
import torch

import electrakit as ek
from electrakit.cli.preset_arguments import config_from_arguments
from electrakit.cli.show_preset import show
from electrakit.common.errors import UserError
from electrakit.model.auto import (
    DEFAULTS,
    LADDER,
    STEPS_SHARE,
    TOKENS_PER_PARAMETER,
    body_parameters,
    tokens_in,
)
from electrakit.model.counts import useful_flops
from electrakit.runs.settings import read_config
from electrakit.train import auto
from electrakit.train.distributed import join_process_group
from tests.helpers.steady_speed import choose

SMALL = {"discriminator": {"num_layers": 1}, "generator": {"num_layers": 1}, "batch_size": 4, "valid_rows": 8}


@pytest.fixture
def set_speed(monkeypatch):
    """Of training, instead of a measurement."""
    return lambda speed: monkeypatch.setattr(auto, "measure_speed", lambda config, group: speed / STEPS_SHARE)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_machine_has_a_speed(monkeypatch, precision):
    """That of real steps, in either precision; torch's random numbers stay as they were."""
    monkeypatch.setattr(auto, "TIMED_SECONDS", 0.0)
    monkeypatch.setitem(auto.TIMED_TOKENS, "cpu", 64)
    config = ek.presets.override(choose(60, 1e9, vocab_size=100, length=32).config, {"precision": precision})
    with join_process_group() as group:
        assert len(auto.time_steps(config, group)) == auto.MIN_TIMED
        before = torch.random.get_rng_state()
        assert auto.measure_speed(config, group) > 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_bodies_are_timed_until_one_is_too_large_and_each_is_judged_by_its_own_speed(monkeypatch):
    asked = []

    def of(speeds):
        def measure(config, group):
            asked.append(config.discriminator.hidden_size)
            return speeds[asked[-1]] / STEPS_SHARE

        asked.clear()
        monkeypatch.setattr(auto, "measure_speed", measure)
        config = ek.choose_recipe(budget="1s").config
        return config.discriminator.hidden_size, useful_flops(config) * config.batch_size * config.steps

    # The speeds at which a second is just enough for each.
    small, middle, large = (1.01 * TOKENS_PER_PARAMETER * cost(size) for size in LADDER[:3])
    for speeds, chosen in [
        ({128: small / 2}, 128),
        ({128: small, 192: small}, 128),
        ({128: large, 192: small}, 128),
        ({128: small, 192: middle, 256: middle}, 192),
    ]:
        width, flops = of(speeds)
        assert width == chosen and flops == pytest.approx(speeds[chosen], rel=0.01) and asked == list(speeds)


def cost(size):
    """FLOPs of one token for each parameter of the layers."""
    return body_parameters(size) / tokens_in(1, size, **DEFAULTS)


def test_the_choice_is_that_for_the_speed_and_the_shards_and_changes_win(shards, set_speed):
    set_speed(2e12)
    manifest = json.loads((shards / "manifest.json").read_text())
    num_tokens = manifest["splits"]["train"]["rows"] * 32
    expected = choose(3600, 2e12, num_tokens, manifest["vocab_size"], 32)
    choice = ek.choose_recipe(data=shards, budget="1h", optim={"lr": 1e-3})
    assert choice.config == ek.presets.override(
        expected.config, {"data": shards, "budget": "1h", "optim": {"lr": 1e-3}}
    )
    assert choice.reasons[1:] == expected.reasons and "2.22 TFLOP/s" in choice.reasons[0]


@pytest.mark.long
def test_a_run_that_was_started_is_not_decided_again(shards, tmp_path, set_speed):
    changes = {"data": shards, "run": tmp_path / "run", "budget": "2d"}
    set_speed(1e9)
    first = ek.choose_recipe(**changes, **SMALL).config
    ek.pretrain(first, stop_after=2)
    set_speed(1e15)
    choice = ek.choose_recipe(**changes, log_every=1)
    assert choice.config.identity() == read_config(tmp_path / "run").settings.identity()
    assert choice.config.steps == first.steps and choice.config.log_every == 1 and "kept" in choice.reasons[0]
    assert ek.pretrain(choice.config, stop_after=3).step == 3
    # on the command line, too; and what is given now wins
    arguments = ["auto", "--data", str(shards), "--run", str(tmp_path / "run"), "--budget", "3d", "--save-every", "7"]
    _, config = config_from_arguments(arguments, verb="pretrain")
    assert config.identity() == choice.config.identity() and (config.budget, config.save_every) == ("3d", 7)
    other = ek.choose_recipe(**{**changes, "run": tmp_path / "other"}).config
    assert other.discriminator.hidden_size > first.discriminator.hidden_size


def test_show_prints_the_reasons_and_then_the_settings(shards, set_speed, capsys):
    set_speed(60e9)
    show(["auto", "--budget", "8h", "--data", str(shards), "--optim.lr", "0.0017", "--batch_size=16"])
    text = capsys.readouterr().out
    for words in ("at 60 GFLOP/s", "8 h 0 min", "epochs over the corpus", "lr 0.0017 (AdamW", "of 16 rows", "warm-up"):
        assert words in text
    assert text.index("speed:") < text.index("optimizer")
    assert "the clock decides" in text and "word vectors from counts" in text
    show(["auto", "--budget", "30m", "--vocab-size", "5000", "--length", "64"])
    text = capsys.readouterr().out
    assert "assumed" in text and "5,000" in text and "rows of 64 tokens" in text and "warning" not in text


def test_settings_in_a_file_count(tmp_path, set_speed):
    set_speed(60e9)
    (tmp_path / "mine.json").write_text(json.dumps({"budget": "1h", "optim": {"lr": 0.002}}))
    _, config = config_from_arguments(["auto", "--config", str(tmp_path / "mine.json")], verb="show")
    assert config.optim.lr == 0.002 and config.budget == "1h" and config.steps == choose(3600, 60e9).config.steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "auto needs a budget.*--budget 1h"),
        ("--budget soon", "budget is 'soon'"),
        ("--budget 1h --data nowhere", "no shards folder nowhere"),
        ("--budget 1h --wobble 3", "auto has no option --wobble"),
        ("--budget 1h --batch-size many", "--batch-size.*invalid int value"),
        ("--budget 1h --precision fp8", "precision must be one of"),
    ],
)
def test_mistakes_are_said_in_one_line_before_anything_is_measured(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(auto, "measure_speed", None)
    with pytest.raises(UserError, match=message):
        show(["auto", *arguments.split()])
    assert capsys.readouterr() == ("", "")


def test_help_measures_nothing_and_lists_auto(monkeypatch, capsys):
    monkeypatch.setattr(auto, "measure_speed", None)
    for arguments in (["--help"], ["auto", "--help"]):
        with pytest.raises(SystemExit):
            show(arguments)
        assert "Settings chosen for --budget" in capsys.readouterr().out
