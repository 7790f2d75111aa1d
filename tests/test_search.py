"""Searches: the best settings are found and kept, and neither kills nor workers change what is tried."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from tiny_glue import write_glue, write_model

import electrakit as ek
from electrakit.errors import UserError
from electrakit.evaluate_config import FinetuneConfig, GlueConfig
from electrakit.search_config import SearchConfig

FAST = {"length": 32, "device": "cpu", "threads": 1, "epochs_tried": [2, 4], "batch_sizes": [8, 16]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    write_glue(folder / "glue", num_train=32, num_dev=16)
    write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """A search that nobody disturbed."""
    out = folder / "whole"
    return out, ek.search(
        folder / "model", task="rte", data=folder / "glue", trials=6, together=2, out=out, workers=2, **FAST
    )


def tried(figures):
    return {trial["number"]: (trial["tried"], trial["scores"]) for trial in figures["trials"]}


def times(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("seed_*.json")}


@pytest.mark.slow
def test_the_best_settings_become_a_preset(whole, folder):
    out, figures = whole
    assert len(figures["trials"]) == 6
    medians = [trial["median"] for trial in figures["trials"]]
    assert medians == sorted(medians, reverse=True)
    best = figures["trials"][0]
    kept = json.loads((out / "best.json").read_text())
    assert {name: kept["tasks"]["rte"][name] for name in best["tried"]} == best["tried"]
    assert f"trial {best['number']} of 6" in kept["about"]
    run = json.loads((out / "trials" / f"{best['number']:04d}" / "seed_1.json").read_text())
    assert run["identity"]["settings"] == kept["tasks"]["rte"]
    assert (out / "results.md").read_text().count("\n| ") == 7
    assert not list(out.rglob("*.safetensors"))  # models of trials are of no use
    glue = GlueConfig.of(folder / "model", data="glue", out="x", preset=str(out / "best.json"))
    assert glue.settings("small", "rte", 10).lr == best["tried"]["lr"]
    assert glue.settings("small", "cola", 3).lr == 3e-4
    again = ek.finetune(
        folder / "model",
        task="rte",
        data=folder / "glue",
        preset=str(out / "best.json"),
        out=out / "again",
        threads=1,
        device="cpu",
    )
    assert again["median"] == best["median"]


@pytest.mark.slow
def test_what_is_tried_does_not_depend_on_workers_and_more_trials_go_on(whole, folder, tmp_path):
    figures = whole[1]
    settings = {"task": "rte", "data": folder / "glue", "together": 2, "out": tmp_path / "out", "workers": 1, **FAST}
    first = ek.search(folder / "model", trials=4, **settings)
    before = times(tmp_path)
    assert len(before) == 4
    second = ek.search(folder / "model", trials=6, **settings)
    assert tried(second) == tried(figures)
    assert all(times(tmp_path)[path] == before[path] for path in before)
    assert len({str(each) for each, _ in tried(first).values()}) == 4
    with pytest.raises(UserError, match=r"is a search with seed 0, now 1; use another --out"):
        ek.search(folder / "model", trials=6, seed=1, **settings)


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_trial_that_was_running(folder, tmp_path):
    """Killed again and again, it tries what an undisturbed one tries, and no finished run is run again."""
    command = [sys.executable, "-m", "electrakit", "search", folder / "model", "--task", "rte"]
    command += ["--data", folder / "glue", "--trials", "5", "--together", "2", "--epochs", "30", "--batch-sizes", "8"]
    command += ["16", "--length", "32", "--device", "cpu", "--workers", "1"]

    def start(out):
        return subprocess.Popen(
            [*map(str, command), "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    seen = {}
    for num_wanted in (1, 3):
        process = start(tmp_path / "killed")
        deadline = time.monotonic() + 500
        while len(times(tmp_path)) < num_wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert len(times(tmp_path)) >= num_wanted
        assert all(times(tmp_path)[path] == moment for path, moment in seen.items())
        seen = times(tmp_path)
    states = [trial.state.name for trial in study(tmp_path / "killed").get_trials()]
    assert "RUNNING" in states and len(seen) < 5
    for out in ("killed", "undisturbed"):
        process = start(tmp_path / out)
        said, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors
        assert "best.json (for --preset)" in said
    assert all(times(tmp_path)[path] == moment for path, moment in seen.items())
    both = [json.loads((tmp_path / out / "results.json").read_text()) for out in ("killed", "undisturbed")]
    assert tried(both[0]) == tried(both[1])
    assert "epochs" not in both[0]["trials"][0]["tried"]  # it was given
    found = study(tmp_path / "killed").get_trials()
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 5


def study(out):
    return optuna.load_study(study_name="search", storage=f"sqlite:///{out / 'search.db'}")


@pytest.mark.slow
def test_pruned_trials_get_no_more_seeds_and_are_not_the_best(folder, tmp_path):
    settings = {**FAST, "lrs": (1e-4, 1e-2), "trials": 10, "together": 2, "workers": 2}
    figures = ek.search(
        folder / "model", task="stsb", data=folder / "glue", out=tmp_path, seeds=2, prune=True, **settings
    )
    pruned = [trial for trial in figures["trials"] if trial["is_pruned"]]
    assert pruned and all(len(trial["scores"]) == 1 for trial in pruned)
    assert all(len(trial["scores"]) == 2 for trial in figures["trials"] if not trial["is_pruned"])
    assert figures["trials"][-len(pruned) :] == pruned
    assert len(times(tmp_path)) == 20 - len(pruned)


@pytest.mark.slow
def test_files_of_your_own_are_searched_too(folder, tmp_path):
    rows = "".join(f"{word}\t{word}\n" for word in ("good", "bad") * 8)
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    files = {"train": tmp_path / "rows.tsv", "dev": tmp_path / "rows.tsv"}
    ek.search(folder / "model", **files, out=tmp_path / "out", trials=2, **FAST)
    kept = json.loads((tmp_path / "out" / "best.json").read_text())
    config = FinetuneConfig.of("model", **files, out="elsewhere", preset=str(tmp_path / "out"))
    assert config.settings("small", "elsewhere", 3).lr == kept["settings"]["lr"]


def test_a_folder_of_searches_is_a_preset(tmp_path):
    for task, lr in {"rte": 1e-5, "cola": 2e-4}.items():
        (tmp_path / task).mkdir()
        (tmp_path / task / "best.json").write_text(json.dumps({"tasks": {task: {"lr": lr}}}))
    config = GlueConfig.of("model", data="glue", out="x", preset=str(tmp_path))
    assert [config.settings("small", task, 3).lr for task in ("rte", "cola", "mrpc")] == [1e-5, 2e-4, 3e-4]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="unknown preset"):
        GlueConfig.of("model", data="glue", out="x", preset=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trials": 0}, "--trials must be 1 or more, got 0"),
        ({"together": 0}, "--together must be 1 or more, got 0"),
        ({"lrs": (1e-3, 1e-5)}, "--lrs must be the lowest and the highest learning rate, got 0.001 1e-05"),
        ({"lrs": ()}, "--lrs must be numbers above 0, got nothing"),
        ({"batch_sizes": (8, 0)}, "--batch-sizes must be numbers above 0, got 8 0"),
        ({"layer_decays": (0.8, 0.8)}, "--layer-decays names a value twice: 0.8 0.8"),
        ({"batch_sizes": (8.5,)}, r"--batch-sizes must be a tuple of whole numbers, got \(8.5,\)"),
        ({"prune": True}, "--prune needs --seeds 2 or more, got 1"),
        ({"lr": 1e-4, "epochs": 3, "batch_size": 8, "layer_decay": 0.8}, "nothing is left to search"),
        ({"test": "test.tsv"}, "a search does not look at test rows"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(settings, said):
    with pytest.raises(UserError, match=said):
        SearchConfig.of("model", **{"task": "rte", "data": "glue", "out": "x", **settings})


def test_two_searches_in_one_folder_are_refused(folder, tmp_path):
    from electrakit.evaluate.search import only_searcher

    settings = {"task": "rte", "data": folder / "glue", "out": tmp_path, **FAST}
    with only_searcher(tmp_path), pytest.raises(UserError, match="another process is searching in"):
        ek.search(folder / "model", **settings)
    (tmp_path / "search.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(UserError, match=r"search\.db cannot be used: .*; name another --out"):
        ek.search(folder / "model", **settings)


def test_without_optuna_the_error_says_what_to_install(folder, tmp_path):
    (tmp_path / "optuna.py").write_text("raise ImportError('not here')")
    command = [sys.executable, "-m", "electrakit", "search", folder / "model", "--task", "rte", "--data", "glue"]
    done = subprocess.run(
        [*map(str, command), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 2
    assert done.stderr == "electra: electra search needs Optuna: pip install 'electrakit[search]'\n"
