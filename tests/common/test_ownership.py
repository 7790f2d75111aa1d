"""Which folders and files are ours."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from electrakit.common.errors import UserError
from electrakit.common.ownership import (
    MARKER,
    WorkFolder,
    free_name,
    make_way,
    read_marker,
    remove_whole,
    require_apart,
    set_aside,
    whole_folder,
)


def work(path: Path, **settings) -> WorkFolder:
    return WorkFolder(path, "run", ("config.json", "status.json", "part-*.bin", "checkpoints"), **settings)


def test_a_name_is_ours_from_the_moment_before_it_is_written(tmp_path):
    folder = work(tmp_path)
    folder.begin()
    assert not (tmp_path / MARKER).exists()  # nothing is ours yet
    folder.own("config.json")
    (tmp_path / "config.json").write_text("ours")
    (tmp_path / "status.json").write_text("theirs")
    with pytest.raises(UserError, match=r"status\.json was not written by electrakit .*name another --out, or move it"):
        folder.own("status.json")
    with pytest.raises(UserError, match=r"status\.json was not written"):
        folder.begin()
    (tmp_path / "status.json").unlink()
    folder.begin()
    assert json.loads((tmp_path / MARKER).read_text())["names"] == ["config.json"]


def test_a_name_that_a_stopped_start_never_wrote_is_free_for_others_again(tmp_path):
    work(tmp_path).own("config.json", "part-1.bin")
    (tmp_path / "config.json").write_text("ours")
    work(tmp_path).begin()  # the next start finds that part-1.bin was never written
    (tmp_path / "part-1.bin").write_text("theirs")
    with pytest.raises(UserError, match=r"part-1\.bin was not written"):
        work(tmp_path).require_ours()
    assert (tmp_path / "part-1.bin").read_text() == "theirs"


def test_a_name_that_this_call_does_not_write_stays_ours(tmp_path):
    """As that of test predictions where a later call has no test file."""
    work(tmp_path).own("part-1.bin")
    (tmp_path / "part-1.bin").write_text("ours")
    WorkFolder(tmp_path, "run", ("config.json",)).begin()
    work(tmp_path).begin()
    assert json.loads((tmp_path / MARKER).read_text())["names"] == ["part-1.bin"]


def test_a_name_is_written_or_removed_only_where_it_is_ours(tmp_path):
    folder = work(tmp_path)
    folder.write("config.json", {"a": 1})
    (tmp_path / "status.json").write_text("theirs")
    with pytest.raises(UserError, match=r"status\.json was not written"):
        folder.write("status.json", {})
    folder.remove("status.json")
    folder.remove("config.json")
    assert (tmp_path / "status.json").read_text() == "theirs" and not (tmp_path / "config.json").exists()
    (tmp_path / "config.json").write_text("theirs")
    with pytest.raises(UserError, match=r"config\.json was not written"):
        folder.own("config.json")


def test_other_names_and_empty_folders_are_no_hindrance(tmp_path):
    (tmp_path / "notes.txt").write_text("theirs")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")  # on a larger disk
    work(tmp_path).require_ours()
    work(tmp_path).own("checkpoints")
    (tmp_path / "elsewhere" / "step").touch()
    work(tmp_path).begin()
    (tmp_path / "status.json").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"status\.json was not written"):
        work(tmp_path).require_ours()


def test_an_older_folder_without_a_marker_is_adopted(tmp_path):
    (tmp_path / "config.json").write_text("ours")
    with pytest.raises(UserError, match=r"config\.json was not written"):
        work(tmp_path).require_ours()
    work(tmp_path, is_older=lambda path: (path / "config.json").read_text() == "ours").begin()
    assert json.loads((tmp_path / MARKER).read_text())["names"] == ["config.json"]
    work(tmp_path).require_ours()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "a", "kind": "run"}', '{"format": 1}', "null"])
def test_a_marker_of_others_is_refused(tmp_path, content):
    (tmp_path / MARKER).write_text(content)
    with pytest.raises(UserError, match=r"electrakit\.json was not written by electrakit"):
        work(tmp_path).require_ours()
    with (
        pytest.raises(UserError, match=r"electrakit\.json was not written by electrakit"),
        whole_folder(tmp_path, "export"),
    ):
        pass
    assert (tmp_path / MARKER).read_text() == content


def test_a_marker_of_a_later_version_is_refused(tmp_path):
    (tmp_path / MARKER).write_text('{"format": 2, "kind": "run"}')
    with pytest.raises(UserError, match="has format 2, we read 1: update electrakit"):
        work(tmp_path).require_ours()


def test_an_export_of_an_earlier_version_is_an_export(tmp_path):
    (tmp_path / MARKER).write_text('{"format": 1, "run": "mine", "identity": "x", "files": {}}')
    marker = read_marker(tmp_path)
    assert marker is not None and marker["kind"] == "export"
    with pytest.raises(UserError, match=r"holds an export, and would hold a run too; name another --out"):
        work(tmp_path).require_ours()


def write_whole(out: Path, text: str = "ours", **settings) -> None:
    with whole_folder(out, "model", **settings) as folder:
        (folder / "inside").mkdir()
        (folder / "inside" / "weights").write_text(text)
        (folder / "card").write_text(text)


def test_a_whole_folder_is_replaced_and_what_is_not_ours_is_carried_over(tmp_path):
    out = tmp_path / "out"
    write_whole(out)
    with pytest.raises(
        UserError, match=r"out already holds a fine-tuned model; name another --out, or add --overwrite"
    ):
        write_whole(out)
    write_whole(out, "new", refresh=True)
    (out / "inside" / "notes").write_text("theirs")
    (out / "card").write_text("changed")
    (out / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="card was changed by hand, and would be lost"):
        write_whole(out, refresh=True)
    write_whole(out, "newer", overwrite=True)
    names = ["card", "card.1", "electrakit.json", "inside", "inside/notes", "inside/weights", "link"]
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*")) == names
    assert (out / "card").read_text() == "newer" and (out / "card.1").read_text() == "changed"
    assert (out / "inside" / "notes").read_text() == "theirs" and (out / "link").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_weights_may_be_read_by_whoever_may_read_other_files(tmp_path):
    out = tmp_path / "out"
    with whole_folder(out, "model") as folder:
        save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode


def test_links_and_pipes_of_others_are_carried_over_and_neither_opened_nor_changed(tmp_path):
    out, private = tmp_path / "out", tmp_path / "private.safetensors"
    write_whole(out)
    private.write_text("theirs")
    private.chmod(0o600)
    (out / "link.safetensors").symlink_to(private)
    (out / "own.safetensors").hardlink_to(private)
    (out / "dangling").symlink_to("nothing")
    (out / "card").unlink()
    for name in ("pipe", "card"):
        os.mkfifo(out / name)
    write_whole(out, "new", overwrite=True)
    assert (out / "card").read_text() == "new" and (out / "pipe").is_fifo() and (out / "card.1").is_fifo()
    assert (out / "link.safetensors").readlink() == private and (out / "dangling").readlink() == Path("nothing")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600 and private.samefile(out / "own.safetensors")


def test_a_file_of_others_that_comes_while_we_write_is_kept(tmp_path):
    out = tmp_path / "out"
    write_whole(out)
    with whole_folder(out, "model", overwrite=True) as folder:
        (folder / "card").write_text("new")
        (out / "notes").write_text("theirs")
    assert (out / "notes").read_text() == "theirs" and (out / "card").read_text() == "new"


@pytest.mark.promise("Files of others", "files under the hidden names of a folder that is written", "refused")
@pytest.mark.parametrize(
    "name", [".out.unfinished", ".out.replaced", ".out.unfinished/folder/notes", ".out.replaced/card", "link"]
)
def test_hidden_names_that_hold_something_else_are_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("theirs")
    if name == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / ".out.replaced").symlink_to("elsewhere")
    with pytest.raises(UserError, match=r"\.out\.(unfinished|replaced) was not written by electrakit"):
        write_whole(tmp_path / "out")
    assert path.read_text() == "theirs" and not (tmp_path / "out").exists()


def test_what_a_kill_left_under_the_hidden_names_is_cleaned_up(tmp_path):
    out = tmp_path / "out"
    write_whole(out, "old")
    (out / MARKER).unlink()  # by an earlier version
    out.rename(tmp_path / ".out.replaced")
    unfinished = tmp_path / ".out.unfinished"
    (unfinished / "folder").mkdir(parents=True)
    for name in (".lock", ".lock.held", "folder/half"):  # the second one where the file system has no locks
        (unfinished / name).touch()
    with pytest.raises(ZeroDivisionError), whole_folder(out, "model", overwrite=True, is_older=lambda _: True):
        _ = 1 / 0
    assert (out / "card").read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_of_others_in_an_older_output_under_a_hidden_name_are_kept(tmp_path):
    out = tmp_path / "out"
    for name in ("out", ".out.replaced"):  # a kill came when the new one was in its place
        write_whole(tmp_path / name)
    write_whole(out, "new", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    write_whole(tmp_path / ".out.replaced")
    (tmp_path / ".out.replaced" / "notes").write_text("theirs")
    write_whole(out, "newer", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.1.replaced", "out"]
    assert (tmp_path / ".out.1.replaced" / "notes").read_text() == "theirs"


def test_only_what_is_ours_is_removed(tmp_path):
    for name in ("plain", "noted", "foreign"):
        write_whole(tmp_path / name)
    (tmp_path / "noted" / "notes").write_text("theirs")
    (tmp_path / "foreign" / MARKER).unlink()
    for name in ("plain", "noted", "foreign", "nothing"):
        remove_whole(tmp_path / name, "model")
    assert not (tmp_path / "plain").exists() and (tmp_path / "foreign" / "card").exists()
    assert [path.name for path in (tmp_path / "noted").rglob("*") if path.is_file()] == ["notes"]


def test_a_marker_that_names_files_elsewhere_removes_none_of_them(tmp_path):
    """A downloaded folder may hold any marker."""
    folder, precious = tmp_path / "results" / "seed_1", tmp_path / "precious"
    write_whole(folder)
    marker = json.loads((folder / MARKER).read_text())
    for path in (precious, folder / "notes"):
        path.write_text("theirs")
    marker["files"] |= {"../../precious": "0", str(precious): "0"}
    (folder / MARKER).write_text(json.dumps(marker))
    remove_whole(folder, "model")
    assert precious.read_text() == "theirs"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["notes"]


def test_files_are_set_aside_under_the_next_free_name(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2):
        path.write_text(str(number))
        assert set_aside(path) == tmp_path / f"metrics.{number}.jsonl"
    assert free_name(path).name == "metrics.3.jsonl" and (tmp_path / "metrics.2.jsonl").read_text() == "2"
    assert free_name(tmp_path / "folder").name == "folder.1"


def test_a_link_to_a_file_of_ours_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("ours")
    (tmp_path / "link").symlink_to("target")
    assert make_way(tmp_path / "link", lambda head: head == b"ours", "a page") == (tmp_path / "target").resolve()
    (tmp_path / "target").write_text("theirs")
    with pytest.raises(UserError, match=r"link already exists, and cannot be told to be a page of electra"):
        make_way(tmp_path / "link", lambda head: head == b"ours", "a page")
    place = make_way(tmp_path / "link", lambda head: head == b"ours", "a page", overwrite=True)
    assert place == tmp_path.resolve() / "link" and (tmp_path / "link.1").read_text() == "theirs"


def test_inputs_are_apart_from_the_output(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    require_apart(tmp_path / "out", [tmp_path / "run", None, "google/electra-small-discriminator"])
    require_apart(tmp_path / "run" / "glue", [tmp_path / "run"])
    for out in (tmp_path / "run", tmp_path, tmp_path / "run" / "checkpoints" / "new"):
        with pytest.raises(UserError, match="name another --out"):
            require_apart(out, [tmp_path / "run"])
    with pytest.raises(UserError, match="is inside the input"):
        require_apart(tmp_path / "run" / "glue", [tmp_path / "run"], may_be_inside=False)
    shutil.rmtree(tmp_path / "run")
