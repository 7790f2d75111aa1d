"""Folders that cannot be renamed are copied: whole, or not at all, whenever it is interrupted."""

import errno
import json
from pathlib import Path

import pytest

from electrakit.common import move_folder as module
from electrakit.common.move_folder import finish_move, journal_of, move_folder, remove_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in {
        "manifest.json": "{}",
        "zebra.bin": "z" * 100,
        "inside/deep/one": "1",
        "inside/two": "2",
    }.items():
        path = tmp_path / ".target" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / ".target" / "link").symlink_to("zebra.bin")
    (tmp_path / ".target" / "empty").mkdir()
    return tmp_path / ".target"


@pytest.fixture(autouse=True)
def image_layer(monkeypatch):
    """Path.rename of a folder, as overlayfs has it for what is in an image."""
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.is_dir():
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


def test_a_copy_is_equal_and_the_source_gone(source, tmp_path):
    before = content(source)
    move_folder(source, tmp_path / "target")
    assert content(tmp_path / "target") == before and (tmp_path / "target" / "link").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("number", range(1, 11))
def test_a_kill_before_any_file_is_written_loses_nothing(source, tmp_path, monkeypatch, number):
    """At each step of the copy and of the removal; then what the next start does."""

    class Kill(BaseException):
        pass

    calls, before, target = 0, content(source), tmp_path / "target"

    def counted(function):
        def call(*arguments, **settings):
            nonlocal calls
            calls += 1
            if calls >= number:
                raise Kill  # and everything after it: nothing tidies up
            return function(*arguments, **settings)

        return call

    with monkeypatch.context() as patch:
        for name in ("copy_file", "write_journal", "is_part_of"):
            patch.setattr(module, name, counted(getattr(module, name)))
        with pytest.raises(Kill):
            move_folder(source, target)
    is_whole = journal_of(target).exists() and json.loads(journal_of(target).read_text())["is_copied"]
    assert not (target / "manifest.json").exists() or all((target / name).exists() for name in before)
    finish_move(target)
    assert content(target if is_whole else source) == before
    assert not (source if is_whole else target).exists() and not journal_of(target).exists()


def test_only_what_the_copy_wrote_is_removed(source, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    entry = {"source": ".target", "files": ["zebra.bin", "manifest.json"], "folders": [], "is_copied": False}
    journal_of(target).write_text(json.dumps(entry))
    (target / "zebra.bin").write_text("z" * 50)  # cut off by the kill
    (target / "manifest.json").write_text("the user's")
    (target / "notes.txt").write_text("the user's")
    finish_move(target)
    assert content(target) == {"manifest.json": "the user's", "notes.txt": "the user's"}


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("../home", "notes"),
        ("home", "notes"),
        (".step_1", "../../home/notes"),
        (".step_1", "{home}/notes"),
        (".step_1", "link/notes"),
        (".step_1.replaced", "notes"),  # a link
    ],
)
def test_a_journal_that_names_files_elsewhere_removes_none_of_them(tmp_path, source, file, is_copied):
    """A downloaded run may hold any journal."""
    run, home = tmp_path / "run", tmp_path / "home"
    for folder in (home, run / "home", run / "step_1", run / ".step_1"):
        folder.mkdir(parents=True)
        (folder / "notes").write_text("theirs")
        if "step" in folder.name:
            (folder / "link").symlink_to(home)
    (run / ".step_1.replaced").symlink_to(home)
    entry = {"source": source, "files": [file.format(home=home)], "folders": [], "is_copied": is_copied}
    journal_of(run / "step_1").write_text(json.dumps(entry))
    finish_move(run / "step_1")
    assert content(home) == content(run / "home") == {"notes": "theirs"}


@pytest.mark.parametrize("text", ["the user's", "{}", '["source"]', '{"source": "source"}'])
def test_a_file_of_others_under_the_name_of_the_journal_stays(source, tmp_path, text):
    target = tmp_path / "target"
    journal_of(target).write_text(text)
    finish_move(target)
    with pytest.raises(FileExistsError):
        move_folder(source, target)
    assert journal_of(target).read_text() == text and not target.exists() and (source / "manifest.json").exists()


def test_a_target_that_exists_is_not_touched(source, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "zebra.bin").write_text("z")
    with pytest.raises(FileExistsError):
        move_folder(source, tmp_path / "target")
    assert content(tmp_path / "target") == {"zebra.bin": "z"} and (source / "manifest.json").exists()


def test_a_folder_that_is_busy_for_a_moment_is_removed_and_a_link_is_not(source, tmp_path, monkeypatch):
    rmtree, refusals = module.shutil.rmtree, iter([True, False])
    monkeypatch.setattr(
        module.shutil, "rmtree", lambda path, **settings: None if next(refusals) else rmtree(path, **settings)
    )
    (tmp_path / "link").symlink_to(source)
    assert not remove_folder(tmp_path / "link") and source.exists()
    assert remove_folder(source) and not source.exists()
