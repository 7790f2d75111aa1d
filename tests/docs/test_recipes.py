"""The recipes: every command in them is one that `electra` understands, and the whole walk of one of them is run."""

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from electrakit.common.code_cache import cache_folder
from electrakit.finetune.tasks import find_task
from recipes.check import check
from tests.helpers.documents import finetuning_commands as document_commands

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = ["own_corpus", "small_owt", "seed_lmtuners", "alectra", "ablations", "continue_from_released", "slurm"]
EVERY_FILE = sorted(RECIPES.glob("*.sh"))


@pytest.fixture
def environment(tmp_path):
    """A folder with the command `electra` of this Python, and nothing of the user's own variables."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, call in {"electra": "-m electrakit", "python": ""}.items():
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
        (bin_folder / name).chmod(0o755)
    return {"PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(RECIPES.parent)}


def start(recipe: Path, *arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(recipe), *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def commands(output: str) -> list[list[str]]:
    return [shlex.split(line[2:]) for line in output.splitlines() if line.startswith("+ ")]


def test_every_recipe_is_there_and_is_bash():
    assert {path.stem for path in EVERY_FILE} == {*NAMES, "run"}
    for path in EVERY_FILE:
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert path.stem == "run" or (os.access(path, os.X_OK) and path.read_text().startswith("#!/bin/bash\n# "))


CASES = [
    *((name, {}) for name in NAMES if name != "alectra"),
    ("alectra", {"VARIANTS": "albert encoder", "TASKS": "rte"}),
    ("own_corpus", {"CORPUS": "my texts", "GLUE": "glue", "BUDGET": "10m", "CASED": "1", "GPUS": "2", "MORE": "--batch-size 64"}),
    ("own_corpus", {"PRESET": "auto", "BUDGET": "10m"}),
    ("small_owt", {"STYLE": "official", "STEPS": "62500"}),
    ("alectra", {"TRIALS": "0", "VARIANTS": "bert"}),
    ("continue_from_released", {"CHECKPOINT": "electra_small", "GLUE": "glue"}),
]  # fmt: skip
VERBS = {
    "own_corpus": "doctor tokenizer prepare pretrain export report",
    "small_owt": "prepare doctor pretrain export glue report",
    "seed_lmtuners": "prepare doctor pretrain export glue report",
    "alectra": "prepare doctor pretrain export glue report",
    "ablations": "prepare doctor pretrain export glue report",
    "continue_from_released": "prepare doctor pretrain export report",
    "slurm": "pretrain",
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "variables"), CASES)
def test_a_dry_run_prints_commands_that_electra_understands_and_runs_none(tmp_path, environment, name, variables):
    folder = tmp_path / "empty"
    folder.mkdir()
    done = start(RECIPES / f"{name}.sh", "--dry-run", cwd=folder, env=environment | variables)
    assert done.returncode == 0, done.stderr
    assert f"\n{len(commands(done.stdout))} commands, all understood" in done.stdout
    assert not list(folder.iterdir())
    verbs = set()
    for words in commands(done.stdout):
        assert words[0] in ("electra", "torchrun")
        verbs.add(words[words.index("electrakit") + 1 if words[0] == "torchrun" else 1])
        check(shlex.join(words))
    assert set(VERBS[name].split()) <= verbs
    assert ("torchrun" in done.stdout) == (name == "slurm" or "GPUS" in variables)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("own_corpus", "--vocab-size", "--vocabulary-size"),
        ("small_owt", "--keep-at 6.25%", "--keep-at six"),
        ("ablations", "--share nothing", "--share everything"),
        ("seed_lmtuners", "--rows crude", "--rows rude"),
        ("continue_from_released", "electra convert", "electra converse"),
        ("slurm", "--data shards/mine\n    GPUS", "--date shards/mine\n    GPUS"),
    ],
)
def test_a_dry_run_fails_on_a_command_that_electra_does_not_understand(tmp_path, environment, name, good, bad):
    shutil.copytree(RECIPES, tmp_path / "recipes")
    recipe = tmp_path / "recipes" / f"{name}.sh"
    text = recipe.read_text()
    assert good in text
    recipe.write_text(text.replace(good, bad))
    done = start(recipe, "--dry-run", cwd=tmp_path, env=environment | {"CHECKPOINT": "electra_small"})
    assert done.returncode == 2 and "all understood" not in done.stdout
    assert "Traceback" not in done.stderr and bad.split()[1 if " " in bad else 0] in done.stderr


def test_help_is_the_head_of_the_file_and_other_arguments_are_refused(tmp_path, environment):
    done = start(RECIPES / "ablations.sh", "--help", cwd=tmp_path, env=environment)
    assert done.returncode == 0 and done.stdout.startswith("The ablations of the paper") and "source" not in done.stdout
    done = start(RECIPES / "ablations.sh", "--dry", cwd=tmp_path, env=environment)
    assert done.returncode == 2 and "--dry'" in done.stderr
    done = start(RECIPES / "ablations.sh", "--dry-run", cwd=tmp_path, env=environment | {"ABLATIONS": "no-such"})
    assert done.returncode != 0 and "there is no ablation no-such" in done.stderr
    done = start(RECIPES / "seed_lmtuners.sh", "--dry-run", cwd=tmp_path, env=environment | {"MODELS": "bert-smal"})
    assert done.returncode == 2 and "there is no model bert-smal" in done.stderr


@pytest.mark.parametrize("name", ["small_owt", "slurm"])
def test_without_electra_the_way_to_it_is_said(tmp_path, name):
    done = start(RECIPES / f"{name}.sh", "--dry-run", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "source .venv/bin/activate" in done.stderr


# Stands for the commands that a recipe calls: writes down what it is asked, and answers as it is told.
FAKE = """#!/bin/bash
echo "$(basename "$0") $*" >> called
case "$*" in
    doctor*) exit ${DOCTOR:-0} ;;
    *pretrain*) mkdir -p mine/run; echo "$STATUS" > mine/run/status.json; exit ${PRETRAIN:-0} ;;
esac
"""
COMPLETE, INCOMPLETE = '{"is_complete": true}', '{"is_complete": false}'


@pytest.mark.parametrize(
    ("variables", "code", "last"),
    [
        ({}, 0, "electra report"),
        ({"DOCTOR": "1"}, 1, "electra doctor corpus"),  # something serious
        ({"DOCTOR": "1", "IGNORE_DOCTOR": "1"}, 0, "electra report"),
        ({"DOCTOR": "2", "IGNORE_DOCTOR": "1"}, 2, "electra doctor corpus"),  # there is no corpus
        ({"DOCTOR": "130", "IGNORE_DOCTOR": "1"}, 130, "electra doctor corpus"),  # Ctrl-C
        ({"PRETRAIN": "75"}, 75, "electra pretrain"),  # asked to stop: nothing is exported
        ({"GPUS": "2", "STATUS": COMPLETE}, 0, "electra report"),
        ({"GPUS": "2", "STATUS": INCOMPLETE}, 75, "torchrun"),  # whose exit code says nothing
    ],
)
def test_a_recipe_stops_where_it_should(tmp_path, environment, variables, code, last):
    for name in ("electra", "torchrun"):
        (tmp_path / "bin" / name).write_text(FAKE)
        (tmp_path / "bin" / name).chmod(0o755)
    done = start(RECIPES / "own_corpus.sh", cwd=tmp_path, env=environment | variables)
    called = (tmp_path / "called").read_text().splitlines()
    assert done.returncode == code, done.stderr
    assert called[-1].startswith(last)
    assert any(line.startswith("electra tokenizer") for line in called) == (last != "electra doctor corpus")


def test_what_cannot_be_done_twice_is_done_once(tmp_path, environment):
    (tmp_path / "bin" / "electra").write_text(FAKE)
    (tmp_path / "mine" / "tokenizer").mkdir(parents=True)
    (tmp_path / "mine" / "tokenizer" / "tokenizer.json").touch()
    done = start(RECIPES / "own_corpus.sh", cwd=tmp_path, env=environment)
    assert done.returncode == 0 and "electra tokenizer is not run again" in done.stdout
    assert "electra tokenizer" not in (tmp_path / "called").read_text()


@pytest.mark.long
def test_own_corpus_goes_from_text_to_a_model_and_its_report(tmp_path, environment):
    chance = random.Random(0)
    words = ["".join(chance.choices("abdegiklmnoprstu", k=chance.randint(2, 6))) for _ in range(60)]
    documents = [" ".join(chance.choices(words, k=40)) + "." for _ in range(80)]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "corpus.txt").write_text("\n\n".join(documents))
    settings = {
        "CORPUS": "texts",
        "VOCAB_SIZE": "200",
        "LENGTH": "32",
        "PRESET": "tiny",
        "STEPS": "2",
        "IGNORE_DOCTOR": "1",
    }
    settings |= {"MORE": "--batch-size 4 --valid-rows 4 --log-every 1 --valid-every 2 --precision fp32"}
    settings["MORE"] += " --discriminator.num-layers 1 --generator.num-layers 1"
    settings |= {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
    settings["XDG_CACHE_HOME"] = str(cache_folder().parent)  # the kernels are built there already
    done = start(RECIPES / "own_corpus.sh", cwd=tmp_path, env=environment | settings)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (
        "tokenizer/vocab.txt",
        "shards/manifest.json",
        "run/metrics.jsonl",
        "hf/model.safetensors",
        "report.html",
    ):
        assert (tmp_path / "mine" / name).exists(), name
    from transformers import AutoModelForPreTraining, AutoTokenizer

    model = AutoModelForPreTraining.from_pretrained(tmp_path / "mine" / "hf")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "mine" / "hf")) == model.config.vocab_size


def test_the_tasks_and_variants_of_alectra_are_known():
    text = (RECIPES / "alectra.sh").read_text()
    tasks = re.search(r"TASKS=\$\{TASKS:-([\w ]+)\}", text)[1].split()
    assert [find_task(name).name for name in tasks] == tasks and len(tasks) == 8
    variants = re.search(r"VARIANTS=\$\{VARIANTS:-([\w ]+)\}", text)[1].split()
    assert set(variants) == set(re.findall(r"\[(\w+)\]=", text)) == {"albert", "bert", "encoder"}


def test_alectra_is_searched_as_the_document_says(tmp_path, environment):
    for name in ("electra", "torchrun"):
        (tmp_path / "bin" / name).write_text(FAKE)
        (tmp_path / "bin" / name).chmod(0o755)
    done = start(RECIPES / "alectra.sh", cwd=tmp_path, env=environment | {"VARIANTS": "albert", "STATUS": COMPLETE})
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "called").read_text().replace(" --trials 20", "").replace(" --seeds 5", "")  # as by default
    called = called.replace("alectra/hf/albert", "hf/alectra").replace("alectra/albert", "runs/alectra")
    searched = [line for line in called.splitlines() if line.split()[1] in ("search", "finetune", "glue")]
    assert searched == [line for line in document_commands() if "alectra" in line]
