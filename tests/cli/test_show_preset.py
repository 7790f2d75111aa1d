"""electra show: the numbers are there, warnings appear exactly when they should, nothing is built."""

import io
import json
import re
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from electrakit import presets
from electrakit.cli.preset_arguments import config_from_arguments, option_names
from electrakit.cli.show_preset import find_warnings, print_config, show
from electrakit.common.errors import UserError
from electrakit.config.pretrain import override, with_special_ids
from electrakit.model.build import build
from electrakit.model.counts import count_parameters, flops_per_step


def shown(*arguments):
    console = Console(width=200, file=io.StringIO())
    show(arguments, console)
    return console.file.getvalue()


def shown_config(config):
    console = Console(width=200, file=io.StringIO())
    print_config("mine", config, None, console)
    return console.file.getvalue()


def make_shards(folder, vocab_size=8_000, length=128):
    folder.mkdir()
    manifest = {
        "format": 1,
        "length": length,
        "dtype": "uint16",
        "vocab_size": vocab_size,
        "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        "splits": {"train": {"rows": 320}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_the_numbers_are_shown_and_no_preset_warns(name):
    text, config = shown(name), presets.PRESETS[name]()
    count = count_parameters(config)
    for number in (count.total, count.encoder, count.discriminator, config.num_tokens, config.steps):
        assert f"{number:,}" in text
    assert f"{flops_per_step(config):.3g}" in text and f"{flops_per_step(config) * config.steps:.3g}" in text
    assert f"{config.optim.lr:g}" in text and config.optim.name in text and config.objective.kind in text
    has_table = config.generator is not None and config.share != "gdes"
    assert ("generator's output table" in text) == has_table
    assert "warning" not in text


def test_the_largest_preset_answers_without_torch():
    code = "import sys; from electrakit.cli.show_preset import show; show(['electra_large']); assert 'torch' not in sys.modules"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "334,092,288" in text


def test_every_setting_of_the_objective_that_is_not_usual_is_shown():
    unusual = {"temperature": 2.0, "disallow_correct": True, "official": True}
    text = shown_config(presets.electra_small(objective=unusual))
    for words in ("temperature 2", "never the original", "official sampling"):
        assert words in text and words not in shown_config(presets.electra_small())


def test_a_run_with_one_network_speaks_of_one():
    text = shown_config(presets.mini(generator=None))
    assert "uniform replacements, loss = 50 discriminator" in " ".join(text.split())
    assert "loss = 1 generator + 50 discriminator" in " ".join(shown_config(presets.mini()).split())
    assert "the discriminator without its head" in text
    assert "the network without its head" in shown_config(presets.mlm_small())


# Arguments


def test_options_of_the_preset_and_changes_are_read():
    arguments = "alectra_small --generator bert --optim.lr 1e-3 --generator.num-layers 2 --vocab-size 900 --steps 7"
    name, config = config_from_arguments(arguments.split(), verb="show")
    wanted = presets.alectra_small(generator="bert", optim={"lr": 1e-3}, steps=7, vocab_size=900)
    assert (name, config) == ("alectra_small", override(wanted, {"generator": {"num_layers": 2}}))
    _, config = config_from_arguments(["electra_base", "--body=modern", "--optim.max-grad-norm", "None"], verb="show")
    assert config == presets.electra_base(body="modern", optim={"max_grad_norm": None})
    _, config = config_from_arguments(["alectra_small", "--share", "encoder"], verb="show")
    assert config == presets.alectra_small(share="encoder")


@pytest.mark.parametrize("none", ["none", "None"])
def test_a_run_without_a_generator_can_be_asked_for(none):
    for name in ("electra_small", "alectra_small", "mlm_small"):
        _, config = config_from_arguments([name, "--generator", none], verb="show")
        assert config == override(presets.PRESETS[name](), {"generator": None})
    _, config = config_from_arguments(["electra_small", f"--generator={none}", "--objective.kind", "mlm"], verb="show")
    assert config.generator is None and config.objective.kind == "mlm"


@pytest.mark.parametrize("spelling", ["--vocab-size 900", "--vocab_size 900", "--vocab_size=900"])
def test_words_of_a_setting_may_be_joined_in_either_way(spelling):
    _, config = config_from_arguments(["tiny", *spelling.split(), "--optim.weight_decay", "0"], verb="show")
    assert config == presets.tiny(vocab_size=900, optim={"weight_decay": 0})


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if presets.PRESETS[name]().generator is not None])
@pytest.mark.parametrize("share", ["nothing", "embeddings", "encoder"])
def test_what_is_shown_is_what_is_built(name, share):
    """Either both refuse the pair, with the same words, or the parts that are shown are the ones that are shared."""
    try:
        config = presets.PRESETS[name](share=share)
    except UserError as error:
        with pytest.raises(UserError) as shown_error:
            shown(name, "--share", share)
        assert str(shown_error.value) == str(error)
        return
    with torch.device("meta"):
        generator, discriminator = build(with_special_ids(config, {"pad": 0, "sep": 3}))
    count = count_parameters(config)
    weights = {id(weight): weight.numel() for network in (generator, discriminator) for weight in network.parameters()}
    assert count.discriminator + count.generator == sum(weights.values())
    assert f"{count.total:,}" in shown(name, "--share", share)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_without_changes_the_preset_comes_out_as_it_is(name):
    assert config_from_arguments([name], verb="show") == (name, presets.PRESETS[name]())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("electra_smal", "unknown preset 'electra_smal'; did you mean electra_small.*there are tiny, mini"),
        ("electra_small --body gpt", "electra_small: argument --body: invalid choice: 'gpt'"),
        ("electra_small --vocab-size many", "--vocab-size/--vocab_size: invalid int value"),
        ("electra_small --discriminator.hidden-size 250", "hidden_size 250 does not divide by num_heads 4"),
        ("electra_small --steps 0", "steps must be above 0"),
        ("electra_small --optim.lr -1", "lr must be above 0"),
        ("electra_small --generator.vocab-size 9000", "make them equal"),
        ("alectra_small --generator bert --share encoder", "cannot share the encoder"),
        ("electra_small --generator gpt", "argument --generator: invalid choice: 'gpt'"),
        ("electra_small --length 513", "length 513 is more than generator.max_length 512"),
        ("electra_small --data nowhere", "no shards folder nowhere"),
        ("electra_small --optim.lrr 1", "no option --optim.lrr; did you mean --optim.lr?"),
        ("electra_small --lr=1", "no option --lr; did you mean --optim.lr?"),
        (
            "electra_small --mask_prob 1.5",
            "electra_small has no option --mask-prob; did you mean --objective.mask-prob?",
        ),
        ("electra_small --vocabsize 9", "no option --vocabsize; did you mean --vocab-size?"),
        ("modern_tiny --body classic", "no option --body; did you mean --discriminator.body or --generator.body?"),
        ("alectra_small --body modern", "no option --body; did you mean --discriminator.body or --generator.body?"),
        (
            "mlm_small --generator.num-layers 2",
            "no option --generator.num-layers; did you mean --discriminator.num-layers?",
        ),
        ("tiny --wobble", "tiny has no option --wobble; electra show tiny --help lists all"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments, message, capsys):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        show(arguments.split())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_option_that_help_lists_is_known(name, capsys):
    with pytest.raises(SystemExit):
        show([name, "--help"])
    listed = set(re.findall(r"^[│ ] (?:-h, )?(--\w[\w.-]+)", capsys.readouterr().out, re.MULTILINE))
    known = {*option_names(presets.PRESETS[name]()), "--help"}
    assert listed - {"--generator"} == known - {"--generator"}  # `--generator none` is the preset's own


def test_a_flag_that_is_on_can_be_switched_off(tmp_path):
    config = presets.tiny(compile=True, objective={"official": True})
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    arguments = ["--no-compile", "--objective.no-official"]
    assert set(arguments) < set(option_names(config))
    path = str(tmp_path / "config.json")
    assert config_from_arguments(["--config", path, *arguments], verb="show") == (path, presets.tiny())


def test_help_lists_the_presets_and_their_settings(capsys):
    with pytest.raises(SystemExit) as stop:
        show(["--help"])
    assert stop.value.code == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in presets.PRESETS)
    with pytest.raises(SystemExit) as stop:
        show([])
    assert stop.value.code == 2
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        show(["alectra_small", "--help"])
    settings = capsys.readouterr().out
    assert stop.value.code == 0
    assert "ELECTRA-small's discriminator" not in settings  # the class's defaults are not the preset's
    assert "--generator albert|bert" in settings and "--optim.lr" in settings and "--generator.hidden-size" in settings


# Warnings

WARNINGS = {  # what is changed: (a change that is still fine, one that is not, a word of the warning)
    "generator": (
        {"generator": {"hidden_size": 128, "ffn_size": 512, "num_heads": 2}},
        {"generator": {"hidden_size": 256, "ffn_size": 1024, "num_heads": 4}},
        "the generator is as large as the discriminator",
    ),
    # what Electra_replicate tried
    "lr": ({"optim": {"lr": 2e-3}}, {"optim": {"lr": 5e-2}}, "optim.lr 0.05 is 100 times the 0.0005"),
    "lr of lamb": (
        {"optim": {"lr": 1e-2, "name": "lamb"}},
        {"optim": {"lr": 5e-2, "name": "lamb"}},
        "25 times the 0.002 that is usual with lamb",
    ),
    "warm-up": ({"steps": 10_001}, {"steps": 10_000}, "the warm-up of 10,000 steps is as long as the run of 10,000"),
}


@pytest.mark.parametrize(("fine", "wrong", "words"), WARNINGS.values(), ids=WARNINGS)
def test_a_warning_appears_exactly_when_it_should(fine, wrong, words):
    assert find_warnings(presets.electra_small(**fine)) == []
    found = find_warnings(presets.electra_small(**wrong))
    assert [words in warning for warning in found].count(True) == 1
    assert len(found) == 1
    shown_text = shown_config(presets.electra_small(**wrong))
    assert words in " ".join(shown_text.split())


def test_a_generator_between_half_and_whole_is_told_its_share():
    wide = {"hidden_size": 192, "ffn_size": 768, "num_heads": 3}
    assert "58% of the discriminator" in find_warnings(presets.electra_small(generator=wide))[0]


def test_shards_that_do_not_fit_are_told(tmp_path):
    shards = make_shards(tmp_path / "fits")
    text = shown("mini", "--data", shards)
    assert "warning" not in text and "320 rows, seen 300 times" in text
    text = shown("electra_small", "--data", shards, "--length", "64")
    assert "add --vocab-size 8000" in text and "add --length 128" in text
    assert "warning" not in shown("electra_small", "--data", shards, "--vocab-size", "8000")
