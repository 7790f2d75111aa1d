"""Atomic folders keep the old content or have the new one, whatever happens in between."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import electrakit as ek
from electrakit.common.atomic import atomic_folder, atomic_write
from electrakit.common.temporary import temporary_file


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "old").write_text("old")
    return tmp_path / "mine"


def test_what_a_kill_left_of_a_file_is_taken_away_by_the_next_write(tmp_path):
    code = "import os, signal, sys; from pathlib import Path; from electrakit.common import atomic\n"
    code += "atomic.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)\natomic.atomic_write(Path(sys.argv[1]), b'new')"
    path = tmp_path / "file"
    atomic_write(path, b"old")
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old" and len(names_in(tmp_path)) == 2
    atomic_write(path, b"new")
    assert bytes_of(tmp_path) == {"file": b"new"}


@pytest.mark.parametrize("written", [b"", b"ne", b"new"])
@pytest.mark.parametrize("content", ["new", "newer"])
def test_a_file_that_another_process_writes_has_another_hidden_name(tmp_path, written, content):
    """Whatever is in it so far, also if these bytes are the first of our content."""
    code = "import sys; from pathlib import Path; from electrakit.common.atomic import atomic_write\n"
    code += "atomic_write(Path(sys.argv[1]), sys.argv[2].encode())"
    path = tmp_path / "file"
    with temporary_file(tmp_path / ".file.tmp", b"new") as temporary:
        temporary.write_bytes(written)
        subprocess.run([sys.executable, "-c", code, str(path), content], check=True)
        assert path.read_text() == content and temporary.read_bytes() == written
    assert names_in(tmp_path) == [".file.tmp", "file"]


@pytest.mark.promise("Files of others", "files under the hidden names of a file that is written", "kept")
def test_files_of_others_under_the_hidden_name_of_a_file_stay(tmp_path):
    theirs = {".file.tmp": b"theirs", ".file.tmp1": b"new, and more", "target": b""}
    for name, content in theirs.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".file.tmp2").symlink_to("target")
    for content in (b"new", b"newer"):
        atomic_write(tmp_path / "file", content)
    assert (tmp_path / ".file.tmp2").is_symlink()
    assert bytes_of(tmp_path) == {**theirs, ".file.tmp2": b"", "file": b"newer"}


def test_what_was_there_stays_until_the_new_one_is_whole(out):
    with pytest.raises(KeyboardInterrupt), atomic_folder(out) as folder:
        (folder / "new").write_text("half")
        raise KeyboardInterrupt
    assert bytes_of(out.parent) == {"mine/old": b"old"}
    with atomic_folder(out) as folder:
        (folder / "new").write_text("whole")
        assert bytes_of(out) == {"old": b"old"}
    assert bytes_of(out.parent) == {"mine/new": b"whole"}
    assert names_in(out.parent) == ["mine"]


@pytest.mark.promise("Environment", "SIGKILL while a folder is replaced", "the old or the new one, whole")
def test_what_a_kill_left_is_put_back_or_removed(out):
    out.rename(out.with_name(".mine.replaced"))  # between two renames
    (out.with_name(".mine.unfinished") / "folder").mkdir(parents=True)
    (out.with_name(".mine.unfinished") / "folder" / "half").write_text("half")
    with pytest.raises(ValueError, match="no"), atomic_folder(out) as folder:
        assert not list(folder.iterdir()) and bytes_of(out) == {"old": b"old"}
        raise ValueError("no")
    assert bytes_of(out.parent) == {"mine/old": b"old"} and names_in(out.parent) == ["mine"]


@pytest.mark.promise("Environment", "two writers of one folder", "the second is refused")
def test_of_two_writers_the_second_is_refused_and_harms_nothing(out):
    with atomic_folder(out) as folder:
        (folder / "new").write_text("new")
        with pytest.raises(ek.UserError, match="another process is writing"), atomic_folder(out):
            pass
    assert bytes_of(out.parent) == {"mine/new": b"new"}


def test_a_link_keeps_pointing_to_the_same_place(out):
    link = out.with_name("link")
    link.symlink_to("mine")
    with atomic_folder(link) as folder:
        (folder / "new").write_text("new")
    assert link.is_symlink() and bytes_of(out) == {"new": b"new"}
    assert names_in(out.parent) == ["link", "mine"]


@pytest.mark.parametrize("place", [".", "..", "/"])
def test_the_folder_that_one_is_in_is_not_replaced(out, monkeypatch, place):
    monkeypatch.chdir(out)
    with pytest.raises(ek.UserError, match="is a folder that you are in"), atomic_folder(Path(place)):
        pass
    assert bytes_of(out.parent) == {"mine/old": b"old"}


def test_a_full_disk_is_one_line_and_leaves_nothing(out):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))  # no file may be longer
    try:
        with pytest.raises(ek.UserError, match=r"cannot write .*; make room and"), atomic_folder(out) as folder:
            save_file({"weight": torch.ones(10_000)}, folder / "model.safetensors")
        with pytest.raises(ek.UserError, match=r"cannot write .*; fix that and"), atomic_folder(out) as folder:
            (folder / "vocab.txt").write_bytes(bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert bytes_of(out.parent) == {"mine/old": b"old"} and names_in(out.parent) == ["mine"]
