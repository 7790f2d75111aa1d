"""What decides the shards is noticed when it changes, and nothing else is: contents, not names and times."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.config.corpus import PrepareConfig
from electrakit.data.manifest import SourceFile, make_plan
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import find_inputs
from electrakit.data.tokenizer_files import load_tokenizer
from tests.helpers import command_line
from tests.helpers.processes import wait_until

WORDS = [f"{first}{second}{third}" for first in "bdfgklmnprst" for second in "aeiou" for third in "lmnrs"]
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]

# The command, but it is killed when it has saved some rows for the second time.
STOPPED = """
import os, signal, sys
from electrakit.data.shard_writer import ShardFolder
from electrakit.cli.main import main

num_saves, save = 0, ShardFolder.save

def stop(folder):
    global num_saves
    save(folder)
    num_saves += 1
    if num_saves == 2:
        os.kill(os.getpid(), signal.SIGKILL)

ShardFolder.save = stop
ShardFolder.save_if_due = stop
main(sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path):
    """corpus/a.txt and corpus/b.txt of several batches, and a vocabulary."""
    (tmp_path / "corpus").mkdir()
    for number, name in enumerate(("a.txt", "b.txt")):
        lines = [" ".join(WORDS[(number + line * k) % len(WORDS)] for k in range(1, 30)) for line in range(12_000)]
        (tmp_path / "corpus" / name).write_text("\n\n".join(lines))
    (tmp_path / "vocab.txt").write_text("\n".join(ENTRIES))
    return tmp_path


def arguments(*more: str, corpus: str = "corpus", out: str = "out") -> list[str]:
    flags = ["--tokenizer", "vocab.txt", "--out", out, "--workers", "1", "--length", "64"]
    return ["prepare", *corpus.split(), *flags, *more]


def electra(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    errors = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(errors):
        code = command_line.electra(*arguments)
    return subprocess.CompletedProcess(arguments, code or 0, stderr=errors.getvalue())


def stop_midway(folder: Path, *more: str) -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED, *arguments(*more)], cwd=folder, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "out" / "manifest.json").exists()


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".bin"} | {
        "manifest": (folder / "manifest.json").read_bytes()
    }


def change(path: Path, place: int) -> None:
    """One word for another of the same length; size and time of modification stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        start = place + file.read(1000).index(b" ") + 1
        file.seek(start)
        word = file.read(3)
        file.seek(start)
        file.write(b"bal" if word != b"bal" else b"bam")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.long
@pytest.mark.parametrize("place", [10, 1_000_000, -2_000])
def test_one_changed_word_is_noticed_wherever_it_is_when_finished_and_when_resuming(folder, place):
    source = folder / "corpus" / "a.txt"
    place %= source.stat().st_size
    assert electra(folder, arguments(out="whole")).returncode == 0
    stop_midway(folder)
    change(source, place)
    for out in ("whole", "out"):
        done = electra(folder, arguments(out=out))
        assert done.returncode == 2, done.stderr
        assert f"1 of the sources ({source}: other content); name another --out" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def touch(corpus: Path) -> str:
    for path in corpus.iterdir():
        path.touch()
    return "corpus"


def copy(corpus: Path) -> str:
    shutil.copytree(corpus, corpus.parent / "copy")  # other inodes, the same times
    shutil.rmtree(corpus)
    (corpus.parent / "copy").rename(corpus)
    return "corpus"


def move(corpus: Path) -> str:
    corpus.rename(corpus.parent / "elsewhere")
    return "elsewhere"


def name_absolutely(corpus: Path) -> str:
    return str(corpus)


@pytest.mark.long
@pytest.mark.parametrize("treat", [touch, copy, move, name_absolutely])
def test_the_same_content_is_the_same_corpus_whatever_its_name_and_times(folder, treat):
    assert electra(folder, arguments(out="whole")).returncode == 0
    wanted = shards(folder / "whole")
    stop_midway(folder)
    corpus = treat(folder / "corpus")
    done = electra(folder, arguments(corpus=corpus, out="whole"))
    assert done.returncode == 0 and "is finished already" in done.stderr, done.stderr
    done = electra(folder, arguments(corpus=corpus))
    assert done.returncode == 0 and "Resuming after" in done.stderr, done.stderr
    assert shards(folder / "out") == wanted


def test_a_file_of_another_name_or_in_another_order_is_another_corpus(folder):
    assert electra(folder, arguments()).returncode == 0
    (folder / "corpus" / "b.txt").rename(folder / "corpus" / "c.jsonl")
    done = electra(folder, arguments())
    assert done.returncode == 2 and "2 of the sources" in done.stderr and "is gone" in done.stderr
    (folder / "corpus" / "c.jsonl").rename(folder / "corpus" / "b.txt")
    done = electra(folder, arguments(corpus="corpus/b.txt corpus/a.txt"))
    assert done.returncode == 2 and "order or number of sources" in done.stderr


def test_a_source_that_changes_while_it_is_read_is_noticed_at_the_end(folder):
    """A pipe after the file holds the run up until the file has been read."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "electrakit", *arguments(corpus="corpus/a.txt pipe")]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as run:
        with open_when_read(pipe, run) as end:
            change(folder / "corpus" / "a.txt", 500_000)
            end.write("bal bam ban")
        errors = run.stderr.read()
    assert run.returncode == 2
    assert "a.txt changed while it was read; remove out and start again" in errors.splitlines()[-1]
    assert "Traceback" not in errors and not (folder / "out" / "manifest.json").exists()


def open_when_read(pipe: Path, reader: subprocess.Popen[str]) -> IO[str]:
    opened: list[int] = []

    def try_to_open() -> list[int]:
        with contextlib.suppress(OSError):  # it is not read yet
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return opened

    wait_until(try_to_open, reader)
    return os.fdopen(opened[0], "w")


@pytest.mark.long
def test_a_change_of_the_builtin_corpus_is_noticed(tmp_path):
    """A package of a fresh environment changes one word of a docstring."""
    site = tmp_path / "site"
    script = """
import sys, sysconfig
from pathlib import Path
real = sysconfig.get_path
sysconfig.get_path = lambda name, *more: sys.argv[1] if name in ("stdlib", "purelib", "platlib") else real(name, *more)
from electrakit.cli.main import main
main(sys.argv[2:])
"""
    site.mkdir()
    text = "Return the name of the file that was opened last by this process, or nothing at all if there was none."
    (site / "module.py").write_text(f'def name():\n    """{text}"""\n' * 30)
    (tmp_path / "vocab.txt").write_text("\n".join(ENTRIES))
    command = [sys.executable, "-c", script, str(site), *arguments(corpus="builtin:python")]
    codes = []
    for word in ("last", "last", "fast"):
        (site / "module.py").write_text((site / "module.py").read_text().replace("last", word))
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        codes.append(done.returncode)
    assert codes == [0, 0, 2], done.stderr
    assert "builtin:python: other content" in done.stderr


def test_sources_that_were_not_touched_are_not_read_again(folder):
    assert electra(folder, arguments()).returncode == 0
    config = PrepareConfig(inputs=[folder / "corpus"], tokenizer=folder / "vocab.txt", out=folder / "out")
    tokenizer, inputs = load_tokenizer(config.tokenizer), find_inputs(config, Notes())

    def num_bytes_read_by_plan() -> int:
        before = num_bytes_read()
        make_plan(config, tokenizer, inputs)
        return num_bytes_read() - before

    assert num_bytes_read_by_plan() < 100_000
    touch(folder / "corpus")
    assert num_bytes_read_by_plan() > 2_000_000


def num_bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.long
def test_a_limit_counts_what_was_prepared_before_the_kill(folder):
    assert electra(folder, arguments("--limit", "20000", out="whole")).returncode == 0
    stop_midway(folder, "--limit", "20000")
    done = electra(folder, arguments("--limit", "20000"))
    assert done.returncode == 0 and "Resuming after" in done.stderr
    assert shards(folder / "out") == shards(folder / "whole")
    assert json.loads((folder / "out" / "manifest.json").read_text())["counts"]["documents"] == 20_000


# A finished folder that is no longer whole


def flip_a_byte(out: Path) -> str:
    with (out / "train-00000.bin").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    return "train-00000.bin is damaged"


def remove_a_file(out: Path) -> str:
    (out / "valid-00000.bin").unlink()
    return "valid-00000.bin is missing"


def shorten_a_file(out: Path) -> str:
    os.truncate(out / "train-00000.bin", 100)
    return "train-00000.bin is truncated"


def remove_the_tokenizer(out: Path) -> str:
    shutil.rmtree(out / "tokenizer")
    return "is not the tokenizer that made these shards"


def exchange_the_tokenizer(out: Path) -> str:
    vocabulary = out.parent / "other.txt"
    vocabulary.write_text("\n".join([*ENTRIES, "more"]))
    load_tokenizer(vocabulary).save(out / "tokenizer")
    return "is not the tokenizer that made these shards"


@pytest.mark.parametrize(
    "damage", [flip_a_byte, remove_a_file, shorten_a_file, remove_the_tokenizer, exchange_the_tokenizer]
)
def test_a_finished_folder_that_is_damaged_is_an_error_with_the_way_out(tmp_path, damage, capfd):
    (tmp_path / "vocab.txt").write_text("\n".join(ENTRIES))
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(WORDS[k:]) for k in range(len(WORDS))))
    settings = {"tokenizer": tmp_path / "vocab.txt", "out": tmp_path / "out", "valid": 0.2, "workers": 1}
    ek.prepare([tmp_path / "text.txt"], **settings)
    ek.prepare([tmp_path / "text.txt"], **settings)
    assert "finished already" in capfd.readouterr().err
    expected = damage(tmp_path / "out")
    with pytest.raises(UserError, match=expected) as refusal:
        ek.prepare([tmp_path / "text.txt"], **settings)
    assert "run electra prepare again" in str(refusal.value)
    assert "finished already" not in capfd.readouterr().err


def test_datasets_of_the_hub_are_known_by_their_whole_name():
    one, other = (SourceFile(f"hf:{owner}/wiki", None, None, None) for owner in ("first", "second"))
    assert one.identity != other.identity


def test_a_folder_of_books_is_more_than_a_place():
    """A file named A___B.txt is a book there, and plain text elsewhere."""
    book, text, moved = (SourceFile(f"/{place}/A___B.txt", 5, "hash", None) for place in ("Gutenberg", "mine", "yours"))
    assert book.identity != text.identity
    assert text.identity == moved.identity
