"""The benchmark of recipes: budgets, recipes, rates and tables; and all of it as a command, on tiny shards."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.finetune.read_glue import read_split
from electrakit.finetune.tasks import TASKS
from electrakit.model.counts import useful_flops
from tests.helpers.tiny_glue import write_glue

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = {"vocab_size": 120, "batch_size": 4, "precision": "fp32"}
RECIPES = {
    "ours": {"preset": "modern_tiny", "changes": TINY},
    "masked": {"preset": "tiny", "changes": {**TINY, "objective": {"kind": "mlm"}, "generator": None}},
    "random": {"preset": "tiny", "changes": TINY, "trained_by": "nothing"},
}


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import quality

    return quality


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "quality.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS.parent)


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_budget_buys_steps_after_the_start(quality):
    config = presets.tiny()
    assert quality.parts.num_steps(config, 10.0, 0.5, 180.0, None) == 340
    assert quality.parts.num_steps(config, 10.0, 0.5, 5.0, None) == 1  # never none
    flops = 7 * config.batch_size * useful_flops(config)
    assert quality.parts.num_steps(config, 10.0, 0.5, 180.0, flops) == 7


def test_a_recipe_fits_the_shards_and_keeps_its_changes(quality, shards, tmp_path):
    path = write(tmp_path / "recipes.json", RECIPES)
    recipes = quality.read_recipes(path)
    assert list(recipes) == list(RECIPES) and recipes["random"].trained_by == "nothing"
    config = recipes["ours"].config(shards, 50, seed=3, run=tmp_path)
    assert (config.length, config.discriminator.vocab_size, config.batch_size) == (32, 120, 4)
    assert (config.steps, config.seed, config.optim.warmup_steps) == (50, 3, 5)
    assert recipes["masked"].config(shards, 5000).optim.warmup_steps == presets.tiny().optim.warmup_steps
    for recipe in quality.RECIPES.values():
        recipe.config(shards)
    assert list(quality.choose(recipes, "random,ours")) == ["random", "ours"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "names and their recipes"),
        ({"a/b": {"preset": "tiny"}}, "name is also that of a folder"),
        ({"mine": {"changes": {}}}, "preset is missing"),
        ({"mine": {"preset": "tiny", "steps": 5}}, "steps is unknown"),
        ({"mine": {"preset": "tiny", "trained_by": "me"}}, "trained_by is 'me'"),
    ],
)
def test_a_wrong_recipe_is_named(quality, tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        quality.read_recipes(write(tmp_path / "recipes.json", content))
    assert "\n" not in str(error.value) and "recipes.json" in str(error.value)


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [
        ({"preset": "modern_minni"}, {}, "did you mean modern_mini"),
        ({"preset": "tiny", "changes": {"optim": {"lrr": 1}}}, {}, "optim.lrr is an unknown setting"),
        ({"preset": "tiny", "trained_by": "transformers"}, {}, "objective.kind mlm"),
        ({"preset": "tiny"}, {"budget": "soon"}, "--budget is 'soon'"),
        ({"preset": "tiny"}, {"pairs": Path("nowhere.jsonl")}, "cannot read --pairs nowhere.jsonl"),
        ({"preset": "tiny"}, {"glue": Path("nowhere")}, "nowhere does not exist"),
    ],
)
def test_mistakes_are_found_before_training(quality, shards, recipe, more, message):
    options = {"data": shards, "budget": "3m", "pairs": None, "glue": None} | more
    with pytest.raises(UserError, match=message):
        quality.check_inputs(Namespace(**options), {"mine": quality.Recipe(**recipe)})


def test_each_recipe_gets_the_rate_that_is_best_over_its_seeds_and_tasks(quality):
    scores = {("a", 1e-3): (70, 50, 60, 50), ("a", 3e-3): (72, 52, 40, 50), ("b", 1e-3): (1, 1, 1, 1)}
    tried = {
        (name, seed, rate, task): {"scores": [each[2 * seed - 2 + place]]}
        for (name, rate), each in scores.items()
        for seed in (1, 2)
        for place, task in enumerate(("qqp", "qnli"))
    }
    assert quality.choose_rates(tried) == {"a": 1e-3, "b": 1e-3}


def test_rates_are_chosen_on_train_rows_of_tasks_that_are_not_scored(quality, tmp_path, monkeypatch):
    assert not set(quality.RATE_TASKS) & set(quality.GLUE_TASKS)
    monkeypatch.setattr(quality, "RATE_ROWS", 16)
    monkeypatch.setattr(quality, "NUM_HELD_OUT", 4)
    glue = write_glue(tmp_path / "glue")
    quality.write_held_out(glue, tmp_path / "held_out")
    for task in (TASKS[name] for name in quality.RATE_TASKS):
        whole = read_split(str(glue), task, task.split("train"))
        train, dev = (read_split(str(tmp_path / "held_out"), task, task.split(name)) for name in ("train", "dev"))
        assert (len(train), len(dev)) == (16, 4)
        rows = [set(zip(each.first, each.second, each.labels, strict=True)) for each in (train, dev, whole)]
        assert not rows[0] & rows[1] and rows[0] | rows[1] < rows[2]


def test_the_table_has_means_and_standard_errors_over_seeds(quality, tmp_path):
    results = quality.Results(Namespace(out=tmp_path), {"mine": quality.Recipe("mini")})
    for seed, auc in ((1, 0.6), (2, 0.7)):
        results.training["mine", seed] = {"steps": 1200, "tokens": 4_915_200, "cpu_seconds": 180.0}
        results.add("mine", str(seed), {"neighbours": auc, "phenomena": {}})
    for task, score in zip(quality.GLUE_TASKS, (0.1, 0.8, 0.7, 0.6, 0.55), strict=True):
        results.add("tf-idf", "1", {TASKS[task].title: score})
        for trial, more in (("1.1", 0.0), ("1.2", 0.02)):
            results.add("mine", trial, {TASKS[task].title: score + more})
    assert results.write().splitlines() == [
        "| recipe | steps | M tokens | CPU minutes | neighbours | CoLA | SST-2 | MRPC | STS-B | RTE | mean of tasks |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| mine | 1,200 | 4.92 | 3.0 ± 0.0 | 0.650 ± 0.050 | 11.0 ± 1.0 | 81.0 ± 1.0 | 71.0 ± 1.0 | 61.0 ± 1.0 | 56.0 ± 1.0 | 56.0 ± 1.0 |",
        "| tf-idf |  |  |  |  | 10.0 | 80.0 | 70.0 | 60.0 | 55.0 | 55.0 |",
    ]
    assert json.loads((tmp_path / "results.json").read_text())["scores"]["mine"]["2"] == {"neighbours": 0.7}


def test_a_finished_part_is_not_run_again_and_other_arguments_are_refused(quality, tmp_path):
    file = tmp_path / "part.json"
    part = quality.Part(file, dict, steps=5, recipe=quality.Recipe("mini"), folder=tmp_path)
    assert part.result() is None
    write(file, {"arguments": part.arguments, "result": {"score": 1}})
    assert part.result() == {"score": 1}
    with pytest.raises(UserError, match="was made with steps 5, not 6; use another --out"):
        quality.Part(file, dict, steps=6).result()


@pytest.fixture
def options(shards: Path, tmp_path: Path) -> list[object]:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"sentence_good": "ma du", "sentence_bad": "du ma"}) + "\n", encoding="utf-8")
    recipes = write(tmp_path / "recipes.json", RECIPES)
    return ["--data", shards, "--out", tmp_path / "out", "--recipes", recipes, "--pairs", pairs, "--flops", 3e8]


@pytest.mark.long
def test_one_command_trains_and_measures_and_does_nothing_twice(options, tmp_path):
    first = run(*options, "--seeds", 2)
    assert first.returncode == 0, first.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["failed"] == {} and "failed" not in first.stderr
    for name in RECIPES:
        assert set(results["scores"][name]) == {"1", "2"}
        for scores in results["scores"][name].values():
            assert {"neighbours", "minimal pairs"} <= set(scores)
            assert ("minimal pairs, generator" in scores) == (name != "masked")
    assert results["parts"]["ours 1"]["steps"] > 1 and results["parts"]["ours 1"]["cpu_seconds"] > 0
    assert results["parts"]["random 1"]["steps"] == 0
    assert results["scores"]["random"]["1"]["frequency"] != results["scores"]["random"]["2"]["frequency"]
    assert first.stdout == (tmp_path / "out" / "results.md").read_text() and first.stdout.count("\n") == 5
    second = run(*options, "--seeds", 2)
    assert second.stdout == first.stdout and second.stderr == ""
    other = run(*options, "--only", "ours", "--flops", 5e8)
    assert other.returncode == 2 and "plan.json was made with flops" in other.stderr.splitlines()[-1]


@pytest.mark.long
def test_one_command_fine_tunes_at_the_best_rate_beside_linear_models(options, tmp_path):
    tunings = ["--seeds", 1, "--tunings", 2, "--glue", write_glue(tmp_path / "glue")]
    done = run(*options, *tunings, "--only", "random")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["failed"] == {} and set(results["scores"]) == {"random", "tf-idf", "counted vectors"}
    trials = results["scores"]
    tuned = [trials["random"]["1.1"], trials["random"]["1.2"], trials["tf-idf"]["1"], trials["counted vectors"]["1"]]
    for scores in tuned:
        assert {"CoLA", "SST-2", "MRPC", "STS-B", "RTE", "mean of tasks"} <= set(scores)
    rate = results["rates"]["random"]
    assert (tmp_path / "out" / "random" / "seed_1" / "glue" / f"cola_{rate:g}.json").exists()


@pytest.mark.long
def test_transformers_trainer_is_a_recipe_and_resumes(quality, shards, tmp_path):
    changes = {**TINY, "objective": {"kind": "mlm"}, "generator": None}
    changes["discriminator"] = {"body": "bert", "embedding_size": 64}
    recipe = quality.Recipe("tiny", changes, trained_by="transformers")
    planned = quality.parts.plan(recipe, shards, "1s", None)
    assert planned["step"] > 0 and planned["steps"] > 1
    plan = planned | {"steps": 10}
    trained = quality.parts.train(recipe, shards, 1, plan, tmp_path / "whole")
    assert trained["tokens"] == 10 * 4 * 32
    assert 0 <= quality.parts.measure_corruptions(tmp_path / "whole" / "model", shards)["swapped"] <= 1
    weights = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    again = quality.parts.train(
        recipe, shards, 1, plan, tmp_path / "whole"
    )  # from its last checkpoint: nothing is left to do
    same = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    assert again["steps"] == 10 and all(torch.equal(weights[name], same[name]) for name in weights)


@pytest.mark.long
def test_a_wrong_option_is_named(shards, tmp_path):
    result = run("--data", shards, "--out", tmp_path / "out", "--only", "lightning")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "lightning" in result.stderr.splitlines()[-1]
