"""Verbs: files of settings with options on top, and shell completion."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

import electrakit as ek
from electrakit.cli.preset_arguments import config_from_arguments
from electrakit.cli.verbs import VERBS, parse_verb
from electrakit.common.errors import UserError
from electrakit.config.corpus import PrepareConfig
from electrakit.config.finetune import FinetuneConfig, GlueConfig, SearchConfig
from electrakit.config.outputs import ExportConfig
from electrakit.config.pretrain import PretrainConfig
from tests.helpers.command_line import electra
from tests.helpers.tiny_glue import write_glue, write_model


def write(path: Path, values: object) -> Path:
    path.write_text(json.dumps(values) if path.suffix == ".json" else yaml.safe_dump(values))
    return path


def pretrain_config(*arguments: object) -> PretrainConfig:
    return config_from_arguments(list(map(str, arguments)), verb="pretrain")[1]


CONFIGS = {
    "prepare": PrepareConfig(inputs=["a", "b"], tokenizer="t", out="o", length=64, dedupe=True, valid=0.2, limit=7),
    "finetune": FinetuneConfig(model="m", train="a.tsv", dev="b.tsv", text=["x", "y"], lr=1e-3, out="o"),
    "glue": GlueConfig(model="m", data="g", out="o", tasks=["rte"], seeds=3, fill=True, precision="bf16"),
    "search": SearchConfig(model="m", task="rte", data="g", out="o", batch_sizes=[8, 16]),
    "export": ExportConfig(run="r", out="o", licence="mit"),
}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("verb", CONFIGS)
def test_the_settings_of_a_verb_come_from_a_file_with_options_on_top(verb, suffix, tmp_path):
    config = CONFIGS[verb]
    path = write(tmp_path / f"config{suffix}", config.to_json())
    assert parse_verb([verb, "--config", str(path)]) == config == type(config).from_file(path)
    assert parse_verb([verb, "--out", "again", f"--config={path}"]) == config.changed(out="again")
    assert type(config).from_file(path, out="again") == config.changed(out="again")


def test_required_settings_may_be_in_the_file_or_on_the_command_line(tmp_path, capsys):
    path = write(tmp_path / "part.yaml", {"tokenizer": "t", "length": 64})
    wanted = PrepareConfig(inputs=["a"], tokenizer="t", out="o", length=64)
    assert parse_verb(["prepare", "a", "--out", "o", "--config", str(path)]) == wanted
    assert electra("prepare", "--config", path, "a") == 2
    assert "--out" in capsys.readouterr().err
    assert electra("prepare", "a", "--out", "o", "--config", path, "--length", "7") == 2
    assert capsys.readouterr().err == "electra: --length must be from 8 to 8192, got 7\n"


def test_pretrain_takes_a_file_instead_of_a_preset_or_on_top_of_one(tmp_path):
    config = ek.presets.mini(data="shards", run="run", optim={"lr": 3e-3}, vocab_size=900)
    run = {"settings": config.to_json(), "data": {"length": 128}, "processes": 1}
    for path in (write(tmp_path / "config.json", run), write(tmp_path / "config.yaml", config.to_json())):
        assert pretrain_config("--config", path) == config
        changes = ["--run", "again", "--optim.lr", "1e-3", "--vocab-size", "800"]
        assert pretrain_config(*changes, "--config", path) == ek.presets.mini(
            data="shards", run="again", optim={"lr": 1e-3}, vocab_size=800
        )
        assert pretrain_config("--config", path, "--generator", "none").generator is None
    (tmp_path / "changes.yaml").write_text("steps: 7\noptim:\n  lr: 1e-3\n")
    wanted = ek.presets.electra_small(body="modern", steps=7, optim={"lr": 1e-3}, seed=5)
    assert (
        pretrain_config("electra_small", "--body", "modern", "--config", tmp_path / "changes.yaml", "--seed", 5)
        == wanted
    )
    assert pretrain_config("--config", tmp_path / "changes.yaml") == PretrainConfig(steps=7, optim={"lr": 1e-3})


@pytest.mark.parametrize(
    ("verb", "content", "message"),
    [
        ("pretrain", {"stepz": 3}, r"c\.json: stepz is an unknown setting; did you mean steps\?"),
        ("pretrain", {"optim": {"lrr": 3}}, r"c\.json: optim\.lrr is an unknown setting; did you mean optim\.lr\?"),
        ("pretrain", {"optim": {"lr": "big"}}, r"c\.json: optim\.lr must be a number, got 'big'"),
        ("pretrain", {"model": "m", "seeds": 3}, r"c\.json has the settings of electra finetune, not of electra pretrain"),
        ("glue", {"seedz": 3}, r"c\.json: seedz is an unknown setting; did you mean seeds\?"),
        ("glue", {"seeds": "3"}, r"c\.json: --seeds must be a whole number, got '3'"),
        ("glue", {"settings": {"steps": 3}, "data": {}, "processes": 1}, "the settings of electra pretrain, not of electra glue"),
        ("finetune", {"steps": 3, "optim": {}}, "has the settings of electra pretrain, not of electra finetune"),
        ("prepare", {"mrpc_from_mnli": True}, "has the settings of electra glue, not of electra prepare"),
        ("prepare", [1], r"c\.json: the settings must be an object with inputs, "),
        ("prepare", None, r"cannot read .*c\.json: No such file"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_one_line(verb, content, message, tmp_path, capsys):
    path = tmp_path / "c.json"
    if content is not None:
        write(path, content)
    with pytest.raises(UserError, match=message):
        pretrain_config("--config", path) if verb == "pretrain" else parse_verb([verb, "--config", str(path)])
    assert electra(verb, "--config", path) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert electra(verb, "--config") == 2
    assert "--config needs a file" in capsys.readouterr().err
    assert electra(verb, "--config", path, "--config", path) == 2
    assert "--config names 2 files: name one" in capsys.readouterr().err


@pytest.mark.long
def test_shards_are_made_again_from_their_manifest(shards, tmp_path):
    arguments = ["prepare", "--config", shards / "manifest.json", "--out", tmp_path / "again", "--workers", 1]
    assert electra(*arguments) == 0
    before, again = (json.loads((folder / "manifest.json").read_text()) for folder in (shards, tmp_path / "again"))
    assert before == again
    assert electra(*arguments[:-4], "--out", tmp_path / "longer", "--length", 64) == 0
    assert json.loads((tmp_path / "longer" / "manifest.json").read_text())["length"] == 64


def test_a_run_is_made_again_from_its_config(tiny, tmp_path):
    first = ek.pretrain(tiny(steps=3))
    assert electra("pretrain", "--config", first.path / "config.json", "--run", tmp_path / "again") == 0
    again, before = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "again", first.path))
    assert again == before | {"settings": before["settings"] | {"run": str(tmp_path / "again")}}
    lines = [
        [
            json.loads(line)["mlm_loss"]
            for line in (path / "metrics.jsonl").read_text().splitlines()
            if "mlm_loss" in line
        ]
        for path in (first.path, tmp_path / "again")
    ]
    assert lines[0] == lines[1] != []


@pytest.mark.long
def test_a_fine_tuning_is_made_again_from_its_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(Path("model"))
    write_glue(Path("glue"), num_train=16)
    fast = {"epochs": 1, "length": 32, "threads": 1, "workers": 1}
    ek.finetune("model", task="rte", data="glue", out="rte", precision="float32", **fast)
    ek.glue("model", data="glue", tasks="rte", seeds=1, out="table", **fast)
    for verb, out, config in (("finetune", "rte", FinetuneConfig), ("glue", "table", GlueConfig)):
        assert electra(verb, "--config", f"{out}/config.json", "--out", f"{out}_again") == 0
        before, again = (config.from_file(f"{folder}/config.json") for folder in (out, f"{out}_again"))
        assert again == before.changed(out=f"{out}_again")
        one, two = (sorted(Path(folder).rglob("seed_1.json")) for folder in (out, f"{out}_again"))
        assert [json.loads(path.read_text())["scores"] for path in one] == [
            json.loads(path.read_text())["scores"] for path in two
        ]
    with pytest.raises(UserError, match=r"'rte' is not a model itself; name the one in it: rte/model"):
        ek.finetune("rte", task="rte", data="glue", out="x", **fast)


def test_either_spelling_of_a_licence_and_of_a_precision_is_taken():
    for flag in ("--licence", "--license"):
        assert parse_verb(["export", "r", "--out", "o", flag, "mit"]).licence == "mit"
    for old, new in (("float32", "fp32"), ("bfloat16", "bf16")):
        for name in (old, new):
            arguments = ["finetune", "m", "--task", "rte", "--data", "g", "--precision", name]
            assert parse_verb(arguments).precision == new


def test_every_verb_has_a_function_that_takes_its_settings():
    for settings, run in VERBS.values():
        if run is not None:
            assert run.__annotations__["config"] is settings


COMPLETE = """
source {script}
try() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=()
    $(complete -p electra | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    echo "${{COMPREPLY[@]}}"
}}
try electra prep
try electra pretrain electra_b
try electra show mini --optim.l
try electra glue --precision ""
"""


@pytest.mark.long
def test_shells_complete_verbs_presets_and_settings(tmp_path, capsys):
    for shell in ("bash", "zsh", "fish"):
        assert not electra("--tyro-print-completion", shell)  # None or 0
        (tmp_path / shell).write_text(said := capsys.readouterr().out)
        assert "electra_small" in said
    script = COMPLETE.format(script=tmp_path / "bash")
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split() for line in shown[:3]] == [["prepare"], ["electra_base"], ["--optim.lr"]]
    assert {"fp32", "bf16"} <= set(shown[3].split())
