"""Ray as the engine: the same results and bytes as without it, and failures that say what to do."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import ray

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.common.workers_ray import open_pool
from electrakit.finetune.user_tables import read_user_table
from tests.helpers.processes import HANG
from tests.helpers.tiny_glue import write_glue, write_model

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster():
    """A Ray of two cores on this machine, which the tests share; its workers begin in another folder than ours."""
    here = Path.cwd()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.chdir("/")
    try:
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    finally:
        os.chdir(here)
    yield
    ray.shutdown()


def test_results_come_in_order_and_relative_names_mean_the_same(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_pool("ray", 2, usual=1) as workers:
        assert list(workers.map(abs, range(-20, 0))) == list(range(20, 0, -1))
        assert set(workers.map(os.path.realpath, ["."] * 8)) == {str(tmp_path)}
        assert sorted(workers.as_done(abs, [-3, -2, -1])) == [(-3, 3), (-2, 2), (-1, 1)]
        assert {one is not None for one in workers.map(os.getenv, ["ELECTRAKIT_WORKER", "OMP_NUM_THREADS"])} == {True}
    assert ray.is_initialized()  # not ours to stop


def test_the_number_of_workers_is_that_of_the_clusters_cores(cluster):
    with open_pool("ray", None, usual=1) as workers:
        assert workers.num_workers == 2
    with open_pool("ray", None, usual=1, at_most=1.5, uses_gpu=True) as workers:
        assert workers.num_workers == 1


def test_failures_come_back_as_they_do_without_ray(cluster, tmp_path):
    with open_pool("ray", 1, usual=1) as workers:
        with pytest.raises(RuntimeError, match=r"(?s)failed while working on its task:.*invalid literal.*'x'"):
            list(workers.map(int, ["1", "x"]))
        with pytest.raises(UserError, match=r"nothing\.tsv"):
            list(workers.map(read_user_table, [tmp_path / "nothing.tsv"]))
        with pytest.raises(RuntimeError, match=r"(?s)a worker process failed.*pickle"):
            list(workers.map(open, ["/dev/null"]))
        assert list(workers.map(abs, [-4])) == [4]
        with pytest.raises(
            UserError, match=r"Ray worker 0 died while working on item 7: .*same command again to resume"
        ):
            list(workers.map(os._exit, [7], lambda item: f"item {item}"))


def test_a_cluster_that_does_not_answer_is_one_line(shards, tmp_path):
    command = [sys.executable, "-m", "electrakit", "prepare", shards.parent / "corpus.txt", "--tokenizer"]
    command += [shards.parent / "tokenizer", "--out", tmp_path / "out", "--engine", "ray"]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:9"},
        timeout=HANG,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("electra: no Ray cluster answers at RAY_ADDRESS=127.0.0.1:9: Connection refused;")


def test_without_ray_the_error_says_what_to_install(tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError('not here')")
    code = "from electrakit.common.workers_ray import open_pool\nwith open_pool('ray', 1, usual=1): pass"
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert "UserError: --engine ray needs Ray: pip install 'electrakit[ray]'" in done.stderr


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "sources.jsonl")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_prepare_writes_the_same_bytes(cluster, shards, tmp_path):
    corpus = [shards.parent / "corpus.txt", "builtin:python"]
    settings = {"tokenizer": shards.parent / "tokenizer", "length": 32, "valid": 0.1, "limit": 400}
    for name, more in {"a": {"engine": "local", "workers": 1}, "b": {"engine": "ray", "workers": 2}}.items():
        ek.prepare(corpus, out=tmp_path / name, **settings, **more)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert ek.prepare(corpus, out=tmp_path / "b", **settings).exists()  # the same folder: finished, whatever the engine


def test_the_command_starts_and_stops_a_ray_of_its_own(shards, tmp_path):
    command = [
        sys.executable,
        "-m",
        "electrakit",
        "prepare",
        "corpus.txt",
        "--tokenizer",
        "tokenizer",
        "--length",
        "32",
    ]
    command += ["--valid", "0.1", "--engine", "ray", "--workers", "1", "--out", tmp_path / "out"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=shards.parent, env=environment, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    for path in shards.glob("*.bin"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_glue_and_search_have_the_same_results(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # relative names on purpose
    write_glue(Path("glue"), num_train=24, num_dev=8)
    write_model(Path("model"))
    fast = {"epochs": 2, "batch_size": 8, "length": 32, "lr": 1e-3, "device": "cpu"}
    tasks = ("mnli", "rte", "stsb")
    found = {}
    for engine, workers in {"local": 1, "ray": 2}.items():
        results = ek.glue(
            "model", data="glue", tasks=tasks, seeds=2, out=engine, engine=engine, workers=workers, **fast
        )
        runs = {str(path): json.loads(path.read_text()) for path in sorted(Path(engine).rglob("seed_*.json"))}
        found[engine] = [(run["identity"], run["losses"], run["logits"], run["scores"]) for run in runs.values()]
        assert len(runs) == 6
        assert results.tasks["rte"].start_from.startswith("MNLI")
    assert found["local"] == found["ray"]
    tests = [path.relative_to("local") for path in Path("local").rglob("*.test.safetensors")]
    assert len(tests) == 3
    for path in tests:
        assert (Path("local") / path).read_bytes() == (Path("ray") / path).read_bytes()
    settings = {
        "task": "rte",
        "data": "glue",
        "trials": 4,
        "together": 2,
        "epochs": 1,
        "batch_sizes": [8, 16],
        "length": 32,
    }
    searches = [
        ek.search("model", **settings, out=f"search-{engine}", engine=engine, workers=workers, device="cpu").trials
        for engine, workers in {"local": 1, "ray": 2}.items()
    ]
    assert [replace(trial, seconds=0) for trial in searches[0]] == [replace(trial, seconds=0) for trial in searches[1]]
