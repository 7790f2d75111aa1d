"""The command line as a person meets it: help, clear errors, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from electrakit.cli.verbs import VERBS
from tests.helpers import command_line
from tests.helpers.processes import HANG, wait_until


def electra(*arguments: str, cwd: Path | None = None, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "electrakit", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    text = "\n\n".join(
        f"This is document number {number}.\nIt has a second line about {'things' * (number % 3)}."
        for number in range(300)
    )
    (folder / "text.txt").write_text(text)
    done = electra("tokenizer", folder / "text.txt", "--vocab-size", "200", "--out", folder / "tokenizer")
    assert done.returncode == 0, done.stderr
    return folder


def test_help_names_every_verb_and_explains_every_setting(capsys):
    def help_of(*verb: str) -> str:
        assert command_line.electra(*verb, "--help") == 0
        return capsys.readouterr().out

    top = help_of()
    for verb, (settings, _) in VERBS.items():
        assert verb in top
        text = help_of(verb)
        assert "MISSING" not in text and "{True,False}" not in text
        for name, hint in get_type_hints(settings, include_extras=True).items():
            flag = name.replace("_", "-")
            kind = {"Positional", "Suppress"} & set(map(repr, getattr(hint, "__metadata__", ())))
            if not kind and name != "preset":
                assert re.search(rf"--(no-)?{flag}\b", text), f"{verb} {name}"
    assert "--dedupe" in help_of("prepare")


HELP = """
import sys
from electrakit.cli.main import main
try:
    main(sys.argv[1:])
finally:
    assert "tyro" in sys.modules
    print(*({"torch", "transformers", "tokenizers", "datasets", "numpy", "pyarrow"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["prepare", "--help"], ["pretrain", "--help"]])
def test_help_answers_at_once_since_it_loads_no_large_library(arguments):
    done = subprocess.run([sys.executable, "-c", HELP, *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and "--help" in done.stdout
    assert done.stderr.split() == []


def test_messages_can_be_written_in_any_encoding():
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-m", "electrakit", "--help"], capture_output=True, env=environment)
    assert done.returncode == 0 and not done.stderr
    assert b"pretrain" in done.stdout and b"\\u2022" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["prepare", "no/such.txt", "--tokenizer", "{tokenizer}", "--out", "{out}"],
            "no such file or folder: 'no/such.txt'",
        ),
        (["prepare", "{text}", "--tokenizer", "no/such", "--out", "{out}"], "no tokenizer at 'no/such'"),
        (
            ["prepare", "{text}", "--tokenizer", "{tokenizer}", "--out", "{out}", "--length", "7"],
            "--length must be from 8 to 8192, got 7",
        ),
        (
            ["prepare", "{text}", "--tokenizer", "{tokenizer}", "--out", "{out}", "--valid", "1.5"],
            "leave something to train on",
        ),
        (["prepare", "{text}", "--tokenizer", "{tokenizer}", "--out", "{text}/x"], "cannot"),
        (["prepare", "--tokenizer", "{tokenizer}", "--out", "{out}"], "inputs"),
        (["tokenizer", "{text}", "--out", "{out}", "--vocab-size", "5"], "--vocab-size must be 6 or more"),
        (["tokenizer", "{text}", "--out", "{out}", "--limit", "0"], "--limit must be 1 or more, got 0"),
        (["tokenizer", "{text}", "--out", "{tokenizer}"], "already holds a tokenizer"),
        (["prepare", "no/such.txt", "--tokenizer", "{vocab}", "--out", "{out}"], "no such file or folder"),
        (["prepare", "{empty}", "--tokenizer", "{vocab}", "--out", "{out}"], "no usable text"),
        (["prepare", "{invisible}", "--tokenizer", "{vocab}", "--out", "{out}"], "no usable text"),
        (["tokenizer", "{empty}", "--out", "{out}"], "no usable text"),
        (["doctor", "{empty}", "--tokenizer", "{vocab}"], "no usable text"),
        (["doctor", "builtin:perl"], "no builtin corpus 'builtin:perl'"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(corpus, tmp_path, monkeypatch, capfd, arguments, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    names = {"text": corpus / "text.txt", "tokenizer": corpus / "tokenizer", "out": tmp_path / "out"}
    names |= {name: tmp_path / f"{name}.txt" for name in ("vocab", "empty", "invisible")}
    names["vocab"].write_bytes((corpus / "tokenizer" / "vocab.txt").read_bytes())  # alone, it does not say its casing
    names["empty"].write_text("")
    names["invisible"].write_text("\x01\n\n\x02")
    code = command_line.electra(*[str(one).format(**names) for one in arguments])
    said = capfd.readouterr().err
    assert code == 2 and message in said
    assert "Traceback" not in said and len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["prepare", "x", "--lenght", "128"], ["prepare", "x", "--rows", "fast"], ["prepaer"], []]
)
def test_a_wrong_flag_or_verb_is_explained_and_exit_code_2(arguments):
    done = electra(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout


def test_prepare_shows_a_table_and_three_rows_that_read_as_text(corpus, tmp_path):
    done = electra(
        "prepare",
        corpus / "text.txt",
        "--tokenizer",
        corpus / "tokenizer",
        "--length",
        "32",
        "--out",
        tmp_path / "shards",
    )
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    assert "tokens lost" in done.stdout
    assert done.stdout.count("[CLS] this is document number") == 3
    assert done.stdout.count("row ") == 3
    again = electra(
        "prepare",
        corpus / "text.txt",
        "--tokenizer",
        corpus / "tokenizer",
        "--length",
        "32",
        "--out",
        tmp_path / "shards",
    )
    assert again.returncode == 0
    assert "finished already" in again.stderr and len(again.stderr.splitlines()) == 1
    assert not again.stdout


@pytest.mark.long
def test_a_vocabulary_that_does_not_say_its_casing_is_told_about_once(corpus, tmp_path):
    (tmp_path / "vocab.txt").write_bytes((corpus / "tokenizer" / "vocab.txt").read_bytes())
    for arguments in (["prepare", corpus / "text.txt", "--out", tmp_path / "x"], ["doctor", corpus / "text.txt"]):
        done = electra(*arguments, "--tokenizer", tmp_path / "vocab.txt")
        assert done.stderr.count("The vocabulary has no capital letters: read as lower-case.") == 1


@pytest.mark.long
def test_everything_that_was_left_out_can_be_found(tmp_path, corpus):
    lines = ["not json at all", '{"text": "some words"}', '{"other": 3}'] * 20
    (tmp_path / "a.jsonl").write_text("\n".join(['{"text": "first"}', *lines]))
    flags = ["--tokenizer", corpus / "tokenizer", "--out", tmp_path / "out", "--dedupe"]
    done = electra("prepare", tmp_path / "a.jsonl", *flags)
    assert done.returncode == 0, done.stderr
    assert f"Where all of these are: {tmp_path / 'out' / 'skipped.jsonl'}" in done.stderr
    listed = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    found = {what: [] for what in {one["what"] for one in listed}}
    for one in listed:
        found[one["what"]].append(int(one["where"].removeprefix(f"{tmp_path / 'a.jsonl'}:")))
    assert found == {
        "line is not JSON; left out": list(range(2, 62, 3)),
        "record has no field 'text'; left out": list(range(4, 62, 3)),
        "copy of an earlier document; left out": list(range(6, 62, 3)),
    }
    skipped = json.loads((tmp_path / "out" / "manifest.json").read_text())["skipped"]
    assert {what: len(places) for what, places in found.items()} == {what: skipped[what]["count"] for what in skipped}
    assert all(len(entry["first"]) == 5 for entry in skipped.values())


@pytest.mark.long
def test_text_comes_from_standard_input(corpus, tmp_path):
    text = (corpus / "text.txt").read_bytes()
    for out, stdin, name in (("a", text, "-"), ("b", None, str(corpus / "text.txt"))):
        done = electra("prepare", name, "--tokenizer", corpus / "tokenizer", "--out", tmp_path / out, stdin=stdin)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a" / "train-00000.bin").read_bytes() == (tmp_path / "b" / "train-00000.bin").read_bytes()


@pytest.mark.promise("Environment", "closed pipe after a verb", "no traceback")
def test_a_pipe_that_closes_early_is_no_traceback(corpus, tmp_path):
    inputs = f"{corpus / 'text.txt'} --tokenizer {corpus / 'tokenizer'}"
    command = f"{sys.executable} -m electrakit prepare {inputs} --out {tmp_path / 'x'} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_pretrain_exits_with_75_when_it_is_asked_to_stop_and_with_0_when_it_is_complete(shards, tmp_path):
    command = [
        sys.executable,
        "-m",
        "electrakit",
        "pretrain",
        "tiny",
        "--data",
        str(shards),
        "--run",
        str(tmp_path / "run"),
    ]
    command += ["--steps", "100000", "--log-every", "1", "--valid-rows", "4"]
    log, steps = tmp_path / "run" / "metrics.jsonl", 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):  # each resumes where the one before was stopped
        num_lines = read(log).count('"split": "train"')
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_until(lambda num_lines=num_lines: read(log).count('"split": "train"') > num_lines, process)
        process.send_signal(number)
        said = process.communicate(timeout=HANG)[1]
        assert "Traceback" not in said and ("Resuming from" in said) == (steps > 0)
        assert process.returncode == 75
        before, steps = steps, newest_step(tmp_path / "run")
        assert steps > before
    done = subprocess.run([*command, "--steps", str(steps + 2)], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert f"Resuming from {tmp_path / 'run' / 'checkpoints'}/step_{steps:07d}" in done.stderr


def newest_step(run: Path) -> int:
    return max(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*"))


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "unknown preset 'nosuch'"),
        (["tiny"], "a run needs data and run"),
        (["tiny", "--data", "nowhere", "--run", "run"], "no shards folder"),
        (["tiny", "--budget", "soon"], "budget is 'soon'; write a number and s, m, h or d, such as 30m"),
        (["tiny", "--keep-at", "half"], "keep_at has 'half'"),
    ],
)
def test_bad_settings_of_pretrain_are_one_line(arguments, said, tmp_path):
    command = [sys.executable, "-m", "electrakit", "pretrain", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 2 and said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


STARTED = """
import atexit, os, signal, sys

when, number, leaving = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Moment:
    def find_spec(self, name, path=None, target=None):
        if name == when:
            os.kill(os.getpid(), number)

class Last:
    def __del__(self):  # one of the last things that an interpreter does
        os.kill(os.getpid(), leaving)

sys.meta_path.insert(0, Moment())
if leaving:
    atexit.register(os.kill, os.getpid(), leaving)
    sys.last = Last()
from electrakit.cli.main import main

main(sys.argv[4:])
"""


@pytest.mark.promise("Environment", "signal during start-up and exit", "the exit code tells whether to start again")
@pytest.mark.long
@pytest.mark.parametrize(
    ("when", "number", "leaving", "code"),
    [
        ("tyro", signal.SIGTERM, 0, 75),
        ("torch", signal.SIGINT, signal.SIGTERM, 75),
        ("transformers", signal.SIGUSR1, signal.SIGINT, 75),
        ("nothing", signal.SIGTERM, signal.SIGUSR1, 0),
        ("nothing", signal.SIGTERM, signal.SIGTERM, 0),
    ],
)
def test_a_signal_while_pretrain_is_loaded_or_left_changes_no_exit_code(shards, tmp_path, when, number, leaving, code):
    """While the command line, torch, or the parts of the run are loaded; and when all is done but the interpreter not gone."""
    settings = ["--data", str(shards), "--run", str(tmp_path / "run"), "--steps", "2", "--valid-rows", "4"]
    command = [sys.executable, "-c", STARTED, when, str(int(number)), str(int(leaving)), "pretrain", "tiny", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    if code:
        assert "start the same command again" in done.stderr
        again = electra("pretrain", "tiny", *settings)
        assert again.returncode == 0, again.stderr


FAKES = {
    # the training: writes what the run's status says, then waits for a signal, or ends
    "torchrun": """
echo "$@" > called
[ -n "$STATUS" ] && echo "$STATUS" > run/status.json
[ -n "$WAITS" ] || exit 3
stop() {
    trap "" USR1
    touch asked
    while [ ! -e asked_again ]; do sleep 0.05; done
    [ -n "$AFTER" ] && echo "$AFTER" > run/status.json
    exit 0
}
trap stop USR1
touch ready
while :; do sleep 0.05; done
""",
    "scontrol": 'echo "$@" > requeued',
}
COMPLETE, INCOMPLETE = '{"step": 9, "is_complete": true}', '{"step": 4, "is_complete": false}'


@pytest.mark.promise("Environment", "end of a Slurm job", "queued again until complete")
@pytest.mark.parametrize(
    ("before", "status", "after", "is_requeued"),
    [
        (None, INCOMPLETE, INCOMPLETE, True),  # as usual
        (None, "", "", True),  # cut before the run was opened
        (COMPLETE, "", "", True),  # the status is that of an earlier start, with fewer steps
        (COMPLETE, INCOMPLETE, INCOMPLETE, True),
        (None, INCOMPLETE, COMPLETE, False),  # it was complete when the signal came
        (None, "", None, False),  # it failed by itself
    ],
)
def test_the_slurm_recipe_queues_again_what_is_not_complete(tmp_path, before, status, after, is_requeued):
    (tmp_path / "run").mkdir()
    (tmp_path / "bin").mkdir()
    for name, code in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    if before is not None:
        status_file = tmp_path / "run" / "status.json"
        status_file.write_text(before)
        os.utime(status_file, (1e9, 1e9))  # of an earlier start
    recipe = Path(__file__).parents[2] / "recipes" / "slurm.sh"
    names = {"STATUS": status, "WAITS": "" if after is None else "1", "AFTER": after or "", "SLURM_JOB_ID": "17"}
    environment = {**os.environ, **names, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", str(recipe), "run", "tiny", "--data", "x"], cwd=tmp_path, env=environment)
    if after is not None:
        wait_until((tmp_path / "ready").exists, process)
        process.send_signal(signal.SIGUSR1)
        wait_until((tmp_path / "asked").exists)
        process.send_signal(signal.SIGUSR1)  # a second one does no harm
        (tmp_path / "asked_again").touch()
    assert process.wait(timeout=HANG) == (0 if after is not None else 3)
    assert (tmp_path / "requeued").exists() == is_requeued
    assert "electrakit pretrain tiny --data x --run run" in read(tmp_path / "called")
