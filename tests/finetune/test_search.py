"""Searches: the best settings are found and kept, and neither kills nor workers change what is tried."""

import json
import shutil
import sys
from pathlib import Path

import optuna
import pytest

import electrakit as ek
from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError
from electrakit.config.finetune import FinetuneConfig, FinetuneSettings, GlueConfig, SearchConfig
from tests.helpers.command_line import electra, electra_killed_in_job
from tests.helpers.tiny_glue import write_glue, write_model

FAST = {"length": 32, "device": "cpu", "threads": 1, "epochs_tried": [2, 4], "batch_sizes": [8, 16]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    write_glue(folder / "glue", num_train=32, num_dev=16)
    write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """A search that was not interrupted."""
    out = folder / "whole"
    return out, ek.search(
        folder / "model", task="rte", data=folder / "glue", trials=6, together=2, out=out, workers=1, **FAST
    )


def tried(result):
    return {trial.number: (trial.tried, trial.scores) for trial in result.trials}


def tried_in(out):
    """The same of results.json."""
    written = json.loads((out / "results.json").read_text())
    return {trial["number"]: (trial["tried"], trial["scores"]) for trial in written["trials"]}


def times(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("seed_*.json")}


@pytest.mark.long
def test_the_best_settings_become_a_preset(whole, folder):
    out, result = whole
    assert len(result.trials) == 6
    medians = [trial.median for trial in result.trials]
    assert medians == sorted(medians, reverse=True)
    best = result.trials[0]
    kept = json.loads((out / "best.json").read_text())
    assert {name: kept["tasks"]["rte"][name] for name in best.tried} == best.tried
    assert f"trial {best.number} of 6" in kept["about"]
    run = json.loads((out / "trials" / f"{best.number:04d}" / "seed_1.json").read_text())
    assert FinetuneSettings(**run["identity"]["settings"]) == FinetuneSettings(**kept["tasks"]["rte"])
    assert "epochs" in best.tried
    assert (out / "results.md").read_text().count("\n| ") == 7
    assert not list(out.rglob("*.safetensors"))  # models of trials are of no use
    glue = GlueConfig(model=folder / "model", data="glue", out="x", preset=str(out / "best.json"))
    assert glue.settings("small", "rte", 10).lr == best.tried["lr"]
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
    assert again.median == best.median


@pytest.mark.long
def test_more_trials_continue_as_if_it_had_never_ended(whole, folder, tmp_path):
    result = whole[1]
    settings = {"task": "rte", "data": folder / "glue", "together": 2, "out": tmp_path / "out", "workers": 1, **FAST}
    first = ek.search(folder / "model", trials=4, **settings)
    before = times(tmp_path)
    assert len(before) == 4
    second = ek.search(folder / "model", trials=6, **settings)
    assert tried(second) == tried(result)
    assert all(times(tmp_path)[path] == before[path] for path in before)
    assert len({str(each) for each, _ in tried(first).values()}) == 4
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'out' / 'search.db'}")
    study.ask()  # a longer search that was killed before this trial had a result
    assert tried(ek.search(folder / "model", trials=4, **settings)) == tried(result)
    with pytest.raises(UserError, match=r"is a search with seed 0, now 1; use another --out"):
        ek.search(folder / "model", trials=6, seed=1, **settings)


@pytest.mark.promise("Fine-tuning", "SIGKILL of search", "resumes with the running trial")
@pytest.mark.long
def test_a_killed_search_resumes_with_the_trial_that_was_running(whole, folder, tmp_path):
    """Killed, it tries what an undisturbed one tries, and no finished run is run again."""
    settings = ["--length", 32, "--device", "cpu", "--threads", 1, "--epochs-tried", 2, 4, "--batch-sizes", 8, 16]
    command = ["search", folder / "model", "--task", "rte", "--data", folder / "glue", "--trials", 6, "--together", 2]
    command += ["--workers", 1, "--out", tmp_path / "killed", *settings]
    electra_killed_in_job(4, *command)  # in the second round, whose trials know the first
    before = times(tmp_path)
    states = [trial.state.name for trial in study(tmp_path / "killed").get_trials()]
    assert "RUNNING" in states and len(before) == 3
    assert electra(*command) == 0
    assert all(times(tmp_path)[path] == moment for path, moment in before.items())
    assert tried_in(tmp_path / "killed") == tried(whole[1])
    assert [trial.state.name for trial in study(tmp_path / "killed").get_trials()] == ["COMPLETE"] * 6


@pytest.mark.long
def test_the_verb_prints_the_trials_the_best_first(folder, tmp_path, capsys):
    arguments = ["search", folder / "model", "--task", "rte", "--data", folder / "glue", "--out", tmp_path / "out"]
    arguments += ["--trials", 3, "--epochs-tried", 1, 2, "--batch-sizes", 8, "--lrs", 1e-4, 1e-3, "--workers", 1]
    assert electra(*arguments, "--length", 32, "--device", "cpu") == 0
    said = capsys.readouterr()
    assert all(f"trial {number} of 3: accuracy" in said.err for number in (1, 2, 3))
    assert "accuracy" in said.out and "best.json (for --preset)" in said.out
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(result["trials"]) == 3
    runs = [json.loads(path.read_text())["identity"] for path in (tmp_path / "out").rglob("seed_1.json")]
    assert [run["threads"] for run in runs] == [1, 1, 1]  # trials run side by side
    assert {trial["tried"]["epochs"] for trial in result["trials"]} <= {1, 2}
    assert electra("search", folder / "model", "--task", "rte", "--out", tmp_path / "x") == 2
    assert capsys.readouterr().err == "electra: --task rte needs --data, the folder of its files\n"


def study(out):
    return optuna.load_study(study_name="search", storage=f"sqlite:///{out / 'search.db'}")


@pytest.mark.long
def test_a_search_in_which_nothing_was_learned_says_so(folder, tmp_path, capsys):
    arguments = ["search", folder / "model", "--task", "rte", "--data", folder / "glue", "--out", tmp_path / "out"]
    arguments += [
        "--trials",
        2,
        "--lrs",
        "1e-13",
        "1e-12",
        "--epochs",
        3,
        "--batch-size",
        8,
        "--length",
        32,
        "--workers",
        1,
    ]
    assert electra(*arguments) == 0
    said = capsys.readouterr()
    assert "every trial collapsed: the settings in" in said.out + said.err
    assert all("epochs" not in tried for tried, _ in tried_in(tmp_path / "out").values())  # it was given
    with pytest.raises(UserError, match="has the results of electra search; use another --out for electra finetune"):
        ek.finetune(folder / "model", task="rte", data=folder / "glue", out=tmp_path / "out")


@pytest.mark.long
def test_pruned_trials_get_no_more_seeds_and_are_not_the_best(folder, tmp_path):
    settings = {**FAST, "epochs_tried": [1, 2], "lrs": (1e-4, 1e-2), "trials": 8, "together": 2, "workers": 1}
    result = ek.search(
        folder / "model", task="stsb", data=folder / "glue", out=tmp_path, seeds=2, prune=True, **settings
    )
    pruned = [trial for trial in result.trials if trial.is_pruned]
    assert pruned and all(len(trial.scores) == 1 for trial in pruned)
    assert all(len(trial.scores) == 2 for trial in result.trials if not trial.is_pruned)
    assert result.trials[-len(pruned) :] == pruned
    assert len(times(tmp_path)) == 16 - len(pruned)


@pytest.mark.long
def test_files_of_your_own_are_searched_too(folder, tmp_path):
    rows = "".join(f"{word}\t{word}\n" for word in ("good", "bad") * 8)
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    files = {"train": tmp_path / "rows.tsv", "dev": tmp_path / "rows.tsv"}
    ek.search(folder / "model", **files, out=tmp_path / "out", trials=2, workers=1, **FAST)
    kept = json.loads((tmp_path / "out" / "best.json").read_text())
    config = FinetuneConfig(model="model", **files, out="elsewhere", preset=str(tmp_path / "out"))
    assert config.settings("small", "elsewhere", 3).lr == kept["settings"]["lr"]
    shutil.rmtree(tmp_path / "out" / "trials" / "0002")
    with pytest.raises(UserError, match=r"out/trials/0002 lacks results of a trial that was finished; put it back, or"):
        ek.search(folder / "model", **files, out=tmp_path / "out", trials=2, workers=1, **FAST)


def test_a_folder_of_searches_is_a_preset(tmp_path):
    for task, lr in {"rte": 1e-5, "cola": 2e-4}.items():
        (tmp_path / task).mkdir()
        (tmp_path / task / "best.json").write_text(json.dumps({"tasks": {task: {"lr": lr}}}))
    config = GlueConfig(model="model", data="glue", out="x", preset=str(tmp_path))
    assert [config.settings("small", task, 3).lr for task in ("rte", "cola", "mrpc")] == [1e-5, 2e-4, 3e-4]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="unknown preset"):
        GlueConfig(model="model", data="glue", out="x", preset=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trials": 0}, "--trials must be 1 or more, got 0"),
        ({"together": 0}, "--together must be 1 or more, got 0"),
        ({"lrs": (1e-3, 1e-5)}, "--lrs must be the lowest and the highest learning rate, got 0.001 1e-05"),
        ({"lrs": ()}, "--lrs must be numbers above 0, got nothing"),
        ({"batch_sizes": (8, 0)}, "--batch-sizes must be numbers above 0, got 8 0"),
        ({"layer_decays": (0.8, 0.8)}, "--layer-decays names a value twice: 0.8 0.8"),
        ({"batch_sizes": (8.5,)}, r"--batch-sizes must be a list of whole numbers, got \(8.5,\)"),
        ({"prune": True}, "--prune needs --seeds 2 or more, got 1"),
        ({"lr": 1e-4, "epochs": 3, "batch_size": 8, "layer_decay": 0.8}, "nothing is left to search"),
        ({"test": "test.tsv"}, "a search does not look at test rows"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(settings, said):
    with pytest.raises(UserError, match=said):
        SearchConfig(model="model", **{"task": "rte", "data": "glue", "out": "x", **settings})


@pytest.mark.promise("Fine-tuning", "two search in one folder", "the second is refused")
def test_two_searches_in_one_folder_are_refused(folder, tmp_path):
    settings = {"task": "rte", "data": folder / "glue", "out": tmp_path, **FAST}
    with write_lock(tmp_path), pytest.raises(UserError, match=r"another process is writing .*; wait for it"):
        ek.search(folder / "model", **settings)
    (tmp_path / "search.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(UserError, match=r"search\.db was not written by electrakit .*; name another --out"):
        ek.search(folder / "model", **settings)


def test_without_optuna_the_error_says_what_to_install(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)  # an import of it fails
    assert electra("search", folder / "model", "--task", "rte", "--data", "glue", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == "electra: electra search needs Optuna: pip install 'electrakit[search]'\n"
