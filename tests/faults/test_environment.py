"""Unusual machines: no HOME, a HOME that cannot be written, LANG=C, no terminal, no rights, very many files, very large ones."""

import os
import resource
import shutil
import subprocess
import sys

import pytest

from electrakit.data.manifest import read_manifest
from tests.helpers.processes import HANG


def electra(*arguments, environment=None, **options):
    """A process of its own, with this environment only."""
    if environment is None:
        environment = dict(os.environ)
    command = [sys.executable, "-m", "electrakit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=environment, timeout=HANG, **options)


def small_run(shards, run):
    sizes = ("--length", 32, "--vocab-size", 120, "--batch-size", 4, "--steps", 2, "--valid-rows", 2)
    return ("pretrain", "tiny", "--data", shards, "--run", run, *sizes)


def only(**variables):
    """The environment of a bare container: the path, and what the tests need to find the package."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


@pytest.mark.promise("Environment", "no HOME, a HOME that cannot be written, LANG=C, no variables at all", "trains")
@pytest.mark.long
@pytest.mark.parametrize(
    "variables",
    [{}, {"HOME": "/nonexistent"}, {"HOME": "/proc"}, {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=["none", "missing", "read-only", "C"],
)
def test_a_run_needs_nothing_of_its_environment(shards, tmp_path, variables):
    done = electra(*small_run(shards, tmp_path / "rün"), environment=only(**variables))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rün" / "checkpoints" / "step_0000002" / "manifest.json").exists()
    assert b"Traceback" not in done.stderr


@pytest.mark.promise("Environment", "stdin, stdout and stderr closed", "trains")
@pytest.mark.long
def test_a_run_needs_no_terminal_and_no_streams(shards, tmp_path):
    command = [sys.executable, "-m", "electrakit", *map(str, small_run(shards, tmp_path / "run"))]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(shell, timeout=HANG).returncode == 0
    assert (tmp_path / "run" / "checkpoints" / "step_0000002" / "manifest.json").exists()


# Nobody, who may read everything: this Python may be in a folder of root's.
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
NOBODY += [
    part for name in ("--bounding-set", "--inh-caps", "--ambient-caps") for part in (name, "-all,+dac_read_search")
]


@pytest.mark.promise("Environment", "a user who is not root and has no home", "trains")
@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("setpriv") is None or os.getuid() != 0, reason="needs setpriv, of util-linux, and root"
)
def test_a_user_who_is_not_root_trains(shards, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    command = [*NOBODY, sys.executable, "-m", "electrakit", *map(str, small_run(shards, own / "run"))]
    done = subprocess.run(command, capture_output=True, env=only(HOME="/nonexistent"), timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    manifest = own / "run" / "checkpoints" / "step_0000002" / "manifest.json"
    assert manifest.exists() and manifest.stat().st_uid == 65534


@pytest.mark.promise("Environment", "a user who may write nothing", "one line")
@pytest.mark.long
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, of util-linux")
def test_a_user_without_rights_gets_one_line(shards, tmp_path):
    """Root without its capabilities is such a user, and can still read this Python."""
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    tokenizer = (
        "tokenizer",
        shards.parent / "corpus.txt",
        "--vocab-size",
        120,
        "--workers",
        1,
        "--out",
        locked / "tokenizer",
    )
    for arguments in (small_run(shards, locked / "run"), tokenizer):
        command = ["setpriv", "--bounding-set", "-all", sys.executable, "-m", "electrakit", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, env=only(HOME="/nonexistent"), timeout=HANG)
        assert done.returncode == 2, done.stderr
        assert b"Traceback" not in done.stderr and str(locked).encode() in done.stderr
    assert not list(locked.iterdir())


@pytest.mark.promise("Data", "100,000 small files", "all are read")
@pytest.mark.long
def test_a_corpus_of_very_many_files_is_read(shards, tmp_path, trials):
    """With few files open at a time."""
    number = 5_000 * trials.number  # 100,000 of them in make reliability
    for place in range(number):
        folder = tmp_path / "corpus" / f"{place // 1000:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{place}.txt").write_bytes(b"gar bel %d" % place)
    arguments = ["--tokenizer", shards / "tokenizer", "--length", 128, "--workers", 2, "--out", tmp_path / "out"]
    done = electra("prepare", tmp_path / "corpus", *arguments, preexec_fn=few_open_files)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = read_manifest(tmp_path / "out").counts
    assert counts is not None and counts.documents == number


def few_open_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


# ru_maxrss of the process itself would begin with that of this one, which started it.
PEAK = """
import resource, sys
from pathlib import Path
from electrakit.cli.main import main
try:
    main(sys.argv[1:])
finally:
    own = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print("peak", own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.promise("Data", "one text file of 2 GB", "read in less than 1 GB of memory")
@pytest.mark.long
def test_a_large_file_takes_little_memory(shards, tmp_path, trials):
    part = b"The cat is under the table.\n" * 20_000 + b"\n"
    with (tmp_path / "large.txt").open("wb") as file:
        while file.tell() < 5 * 2**20 * trials.number**2:  # 2 GB in make reliability
            file.write(part)
    arguments = ["prepare", tmp_path / "large.txt", "--tokenizer", shards / "tokenizer", "--dedupe", "--workers", 2]
    command = [sys.executable, "-c", PEAK, *map(str, arguments), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr[-2000:]
    assert max(map(int, done.stdout.rpartition("peak ")[2].split())) < 1_000_000  # kB
