"""The whole protocol on small GLUE in its real layout: MNLI first, resumed, parallel, submitted."""

import json
import shutil
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file

import electrakit as ek
from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError
from electrakit.common.ownership import MARKER
from electrakit.config.finetune import GlueConfig
from electrakit.finetune.glue import choose_tasks, phases
from electrakit.finetune.submission import SUBMISSION_FILES
from tests.helpers.command_line import electra, electra_killed_in_job
from tests.helpers.tiny_glue import write_glue, write_model

FAST = {"epochs": 2, "batch_size": 8, "length": 32, "lr": 1e-3, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    write_glue(folder / "glue", num_train=24, num_dev=8)
    write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """All nine tasks, two seeds each."""
    tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
    results = ek.glue(
        folder / "model", data=folder / "glue", tasks=tasks, seeds=2, out=folder / "out", workers=2, **FAST
    )
    return folder / "out", results


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("seed_*.json")}


@pytest.mark.long
def test_the_whole_table(whole):
    out, results = whole
    assert len(results.tasks) == 9
    assert results.average.is_complete
    assert "wnli" not in results.average.tasks
    assert results.tasks["rte"].start_from == f"MNLI, seed {results.tasks['mnli'].best_seed}"
    assert results.tasks["stsb"].start_from == results.tasks["rte"].start_from
    assert results.tasks["cola"].start_from is None
    assert results.tasks["rte"].settings.lr == 1e-3
    assert "RTE train has 24 rows, the released one 2,490" in results.tasks["rte"].warnings
    assert "RTE test has 9 rows, the released one 3,000" in results.tasks["rte"].warnings
    assert results.submission.startswith("submission.zip is written. The server will refuse it")
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results.as_json()))
    assert "(ours)" in (out / "results.md").read_text()
    assert (out / "scores.png").exists() and (out / "losses.png").exists()
    text = (out / "results.html").read_text()
    assert text.count("<polyline") == 18 and "RTE train has 24 rows, the released one 2,490" in text


@pytest.mark.long
def test_the_submission_is_the_best_runs_predictions(whole):
    out, results = whole
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert sorted(archive.namelist()) == sorted(SUBMISSION_FILES)
        for name, (task, split) in SUBMISSION_FILES.items():
            best = results.tasks[task.name].best_seed
            logits = load_file(out / task.name / f"seed_{best}.test.safetensors")[split.name]
            lines = archive.read(name).decode().splitlines()
            assert len(lines) == 1 + (5 if name == "AX.tsv" else 9)
            if task.labels:
                assert lines[1:] == [f"{i}\t{task.labels[each.argmax()]}" for i, each in enumerate(logits)]


@pytest.mark.long
def test_only_the_best_models_are_kept(whole):
    out, results = whole
    for name, task in results.tasks.items():
        kept = [path.name for path in (out / name).iterdir() if path.is_dir()]
        assert kept == [f"seed_{task.best_seed}"]


@pytest.mark.long
def test_finished_runs_are_not_run_again_and_the_result_does_not_depend_on_the_number_of_workers(whole, folder):
    """Two runs are lost, and run again by one worker instead of two."""
    out, results = whole
    tasks = tuple(results.tasks)
    before = times(out)
    lost = {path: json.loads(path.read_text()) for path in (out / "rte" / "seed_2.json", out / "mnli" / "seed_1.json")}
    for path in lost:
        path.unlink()
    again = ek.glue(folder / "model", data=folder / "glue", tasks=tasks, seeds=2, out=out, workers=1, **FAST)
    after = times(out)
    assert {path for path in before if after[path] != before[path]} == set(lost)
    for path, content in lost.items():
        found = json.loads(path.read_text())
        assert found["losses"] == content["losses"] and found["logits"] == content["logits"]
    for name in tasks:
        assert again.tasks[name].scores == results.tasks[name].scores
    with pytest.raises(UserError, match=r"is of a run with epochs 2, now 3; use another --out"):
        ek.glue(folder / "model", data=folder / "glue", tasks=tasks, seeds=2, out=out, **{**FAST, "epochs": 3})


@pytest.mark.long
def test_more_seeds_and_an_ensemble_use_what_is_there(whole, folder):
    out, _ = whole
    before = times(out)
    settings = {
        "data": folder / "glue",
        "tasks": ("rte", "sst2"),
        "start": "model",
        "out": out.parent / "some",
        "workers": 1,
    }
    shutil.copytree(out / "sst2", out.parent / "some" / "sst2")
    shutil.copy(out / MARKER, out.parent / "some")
    results = ek.glue(folder / "model", seeds=3, ensemble=2, fill=True, **settings, **FAST)
    assert (
        times(out.parent / "some")[out.parent / "some" / "sst2" / "seed_1.json"] == before[out / "sst2" / "seed_1.json"]
    )
    assert set(results.ensembles) == {"rte", "sst2"}
    assert "filled with one label" in results.submission
    assert results.average.tasks == ["sst2", "rte"] and not results.average.is_complete
    assert results.tasks["rte"].start_from is None
    best = sorted(zip(results.tasks["sst2"].scores, (-1, -2, -3), strict=True))[-2:]
    logits = [load_file(out.parent / "some" / "sst2" / f"seed_{-seed}.test.safetensors")["test"] for _, seed in best]
    powers = [np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in logits]
    with zipfile.ZipFile(out.parent / "some" / "submission.zip") as archive:
        said = [line.split("\t")[1] for line in archive.read("SST-2.tsv").decode().splitlines()[1:]]
    assert said == [str(number) for number in np.mean(powers, axis=0).argmax(-1)]


@pytest.mark.promise("Fine-tuning", "SIGKILL of glue", "resumes with the same result")
@pytest.mark.long
def test_a_killed_run_resumes(folder, tmp_path, capsys):
    command = ["glue", folder / "model", "--data", folder / "glue", "--seeds", 3, "--tasks", "wnli", "cola"]
    command += ["--out", tmp_path / "out", "--workers", 1, "--epochs", 2, "--batch-size", 8, "--length", 32]
    electra_killed_in_job(3, *command)
    before = times(tmp_path)
    assert len(before) == 2
    for path in before:
        json.loads(path.read_text())
    assert electra(*command) == 0
    printed = capsys.readouterr()
    after = times(tmp_path)
    assert len(after) == 6
    assert all(after[path] == before[path] for path in before)
    assert "2 of 6 runs are there already" in printed.err
    assert "average over 1 of 8 tasks" in printed.out


def config(folder, **changes):
    return GlueConfig(model=folder / "model", data=folder / "glue", out=folder / "x", **changes)


def names(tasks):
    return [task.name for task in tasks]


def test_mnli_stands_first_and_rte_and_stsb_wait_for_it(folder):
    every = choose_tasks(config(folder))
    assert len(every) == 8 and "wnli" not in names(every)
    first, second = phases(config(folder), every)
    assert names(first)[0] == "mnli"
    assert names(second) == ["stsb", "rte"]
    assert names(phases(config(folder, mrpc_from_mnli=True), every)[1]) == ["mrpc", "stsb", "rte"]
    assert phases(config(folder, start="model"), every)[1] == []
    some = choose_tasks(config(folder, tasks=["RTE", "sts-b"]))
    assert phases(config(folder), some) == ([some[0], some[1]], [])
    with pytest.raises(UserError, match="--mrpc-from-mnli needs MNLI"):
        phases(config(folder, mrpc_from_mnli=True), some)


def test_settings_that_make_no_sense_are_one_line(folder, tmp_path):
    for name, value, said in [
        ("seeds", 0, "--seeds must be 1 or more"),
        ("ensemble", 6, "--ensemble must be from 1 to the number of --seeds, 5; got 6"),
        ("preset", "papper", "unknown preset 'papper'; there are auto, paper, small_budget, official, lmtuners"),
        ("lr", -1.0, "lr must be above 0"),
        ("weight_decay", -1.0, "weight_decay must be 0 or more"),
        ("workers", 0, "--workers must be 1 or more"),
        ("tasks", ["rte", "rite"], "unknown task 'rite'"),
        ("data", tmp_path / "nowhere", "does not exist; electra glue --download"),
        ("data", tmp_path, "holds no task of GLUE"),
    ]:
        with pytest.raises(UserError, match=said):
            ek.glue(folder / "model", **{"data": folder / "glue", "out": tmp_path / "out", name: value})
    with pytest.raises(TypeError, match="nonsense"):
        ek.glue(folder / "model", nonsense=1)
    with pytest.raises(UserError, match="needs --out"):
        ek.glue(folder / "model", data=folder / "glue")
    with pytest.raises(UserError, match="is not a folder"):
        ek.glue(tmp_path / "no-model", data=folder / "glue", out=tmp_path / "out")


def test_a_damaged_line_of_any_task_is_found_before_training(folder, tmp_path):
    data = write_glue(tmp_path / "glue")
    with (data / "MNLI" / "dev_mismatched.tsv").open("a") as file:
        file.write("9\t1\t1n\tfiction\ta\tb\tneutral\t-\n")
    with pytest.raises(UserError, match=r"dev_mismatched\.tsv line 14 has the label '-'; known labels are"):
        ek.glue(folder / "model", data=data, tasks=("cola", "mnli"), out=tmp_path / "out", **FAST)
    with (data / "CoLA" / "test.tsv").open("a") as file:
        file.write("half a row\n")
    with pytest.raises(UserError, match=r"CoLA/test\.tsv line 11 has 1 columns, needed are 2"):
        ek.glue(folder / "model", data=data, tasks=("cola",), out=tmp_path / "out", **FAST)
    (data / "CoLA" / "dev.tsv").unlink()
    with pytest.raises(UserError, match=r"CoLA has no dev\.tsv in"):
        ek.glue(folder / "model", data=data, tasks="cola", out=tmp_path / "out", **FAST)
    assert not (tmp_path / "out").exists()


def test_a_file_of_settings_is_a_preset(folder, tmp_path):
    path = tmp_path / "best.json"
    path.write_text(json.dumps({"settings": {"lr": 5e-5, "batch_size": 16}, "tasks": {"rte": {"lr": 1e-5}}}))
    made = config(folder, preset=str(path), batch_size=4)
    assert (made.settings("small", "rte", 10).lr, made.settings("small", "cola", 3).lr) == (1e-5, 5e-5)
    assert made.settings("small", "cola", 3).batch_size == 4
    path.write_text(json.dumps({"settings": {"speed": 1}}))
    with pytest.raises(UserError, match=r"best\.json: speed is an unknown setting"):
        made.settings("small", "rte", 10)
    for content in ([1], {"lr": 1e-5}, {"settings": [1]}, {"tasks": {"rte": 1e-5}}):  # nothing is overlooked
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match="is not a file of settings"):
            made.settings("small", "rte", 10)
    path.write_text(json.dumps({"tasks": {"rte": {"loss": "total"}}}))
    with pytest.raises(UserError, match=r"best\.json: loss must be one of mean, sum, got 'total'"):
        made.settings("small", "cola", 3)
    path.write_text(json.dumps({"tasks": {"STS-B": {"lr": 1e-5}}}))
    with pytest.raises(UserError, match=r"best\.json: there is no task 'STS-B'; there are cola, .*stsb"):
        ek.glue(folder / "model", data=folder / "glue", out=tmp_path / "out", preset=str(path))


@pytest.mark.promise("Fine-tuning", "two glue in one folder", "the second is refused")
def test_two_commands_in_one_folder_are_refused(folder, tmp_path):
    with write_lock(tmp_path), pytest.raises(UserError, match=r"another process is writing .*; wait for it"):
        ek.glue(folder / "model", data=folder / "glue", out=tmp_path, **FAST)
    with write_lock(tmp_path), pytest.raises(UserError, match=r"another process is writing .*; wait for it"):
        ek.finetune(folder / "model", task="rte", data=folder / "glue", out=tmp_path, **FAST)


@pytest.mark.long
def test_models_that_were_not_kept_are_made_again_with_what_they_begin_with(folder, tmp_path):
    """RTE's second run is asked for when neither its model nor that of MNLI is there any more."""
    settings = {"data": folder / "glue", "tasks": ("mnli", "rte"), "seeds": 2, "out": tmp_path, "keep": "none"}
    settings |= {**FAST, "epochs": 1, "workers": 1}
    first = ek.glue(folder / "model", **settings)
    assert not list(tmp_path.rglob("model.safetensors"))
    (tmp_path / "rte" / f"seed_{first.tasks['rte'].best_seed}.test.safetensors").unlink()
    again = ek.glue(folder / "model", **settings)
    assert again.tasks["rte"].scores == first.tasks["rte"].scores
    assert len(list((tmp_path / "rte").glob("*.test.safetensors"))) == 1
