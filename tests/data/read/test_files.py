"""Names to streams: what is found, how it is opened, and what happens to files that are damaged or hostile."""

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import zstandard

from electrakit.common.errors import UserError
from electrakit.data.read import notes as notes_module
from electrakit.data.read.archives import tar_members, zip_members
from electrakit.data.read.files import FREE_BYTES, Allowance, Guarded, buffered, opened
from electrakit.data.read.notes import CorpusNote, Notes

COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
SENTENCES = [f"Sentence number {number} of the story is told here." for number in range(20_000)]
STORY = "\n\n".join(SENTENCES).encode()


def texts(documents):
    return ["\n".join(document.lines) for document in documents]


def only(notes: Notes) -> tuple[str, str]:
    """The one kind of note there is, and its first place."""
    assert len(notes.counts) == 1, notes.as_json()
    what = next(iter(notes.counts))
    return what, notes.places[what][0]


def tar_of(members: dict[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_with_its_subfolders_in_the_order_of_the_names(tmp_path, read_all):
    for name in ("b.txt", "a/z.txt", "a/deep/er.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(read_all(tmp_path)[0]) == ["a/deep/er.txt", "a/z.txt", "b.txt", "c.txt"]


def test_a_glob_finds_files_and_folders_relative_and_absolute(tmp_path, read_all, monkeypatch):
    (tmp_path / "part1").mkdir()
    for name in ("part1/x.txt", "part2.txt", "other.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    for pattern in ("part*", f"{tmp_path}/part*", "**/*[x2].txt"):
        assert texts(read_all(pattern)[0]) == ["part1/x.txt", "part2.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path, read_all):
    (tmp_path / "[1].txt").write_text("found")
    assert texts(read_all(tmp_path / "[1].txt")[0]) == ["found"]


def test_a_file_named_twice_is_read_once_however_it_is_named(tmp_path, read_all, monkeypatch):
    (tmp_path / "a.txt").write_text("once")
    (tmp_path / "link.txt").symlink_to("a.txt")
    monkeypatch.chdir(tmp_path)
    documents, notes = read_all("a.txt", "./a.txt", tmp_path / "a.txt", "link.txt", ".", "*.txt")
    assert texts(documents) == ["once"]
    assert notes.counts["file named twice; read once"] == 7


def test_hidden_files_are_passed_over_and_counted_unless_they_are_named(tmp_path, read_all):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("hidden")
    (tmp_path / ".notes.txt").write_text("hidden too")
    (tmp_path / "a.txt").write_text("seen")
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["seen"]
    assert notes.counts == {"hidden file passed over": 2}
    assert texts(read_all(tmp_path / ".notes.txt")[0]) == ["hidden too"]
    assert texts(read_all(tmp_path / ".git")[0]) == ["hidden"]


def test_what_we_wrote_ourselves_is_no_corpus_unless_it_is_named(tmp_path, read_all):
    for name in ("a.txt", "tokenizer/vocab.txt", "tokenizer/tokenizer.json", "shards/note.txt", "shards/deep/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name if name.endswith(".txt") else "{}")
    (tmp_path / "shards/manifest.json").write_text(json.dumps({"format": 1, "electrakit": "0", "splits": {}}, indent=1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/manifest.json").write_text('{"text": "the manifest of something else"}')
    for inputs in ([tmp_path], [tmp_path / "*"]):
        documents, notes = read_all(*inputs)
        assert texts(documents) == ["a.txt", "the manifest of something else"]
        what, _ = only(notes)
        assert what == "folder of a tokenizer or of shards; left out (name it to read it)"
        assert notes.places[what] == [str(tmp_path / "shards"), str(tmp_path / "tokenizer")]
    assert texts(read_all(tmp_path / "tokenizer/vocab.txt")[0]) == ["tokenizer/vocab.txt"]
    assert "tokenizer/vocab.txt" in texts(read_all(tmp_path / "tokenizer")[0])


@pytest.mark.parametrize("name", ["nowhere.txt", "nowhere/*.txt"])
def test_a_missing_file_is_an_error_that_names_it_and_the_way_out(tmp_path, read_all, name):
    with pytest.raises(UserError, match="nowhere") as error:
        read_all(tmp_path / name)
    assert "name a file, a folder, a glob" in str(error.value)


def test_a_folder_without_files_is_an_error(tmp_path, read_all):
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="no files in"):
        read_all(tmp_path)


def test_links_are_followed_but_never_in_a_circle_and_broken_ones_are_noted(tmp_path, read_all):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.txt").write_text("through a link")
    (tmp_path / "corpus/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus/circle").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus/broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "corpus/pipe")
    documents, notes = read_all(tmp_path / "corpus")
    assert texts(documents) == ["through a link"]
    assert notes.counts == {
        "folder reached twice; read once": 1,
        "link that leads nowhere; left out": 1,
        "not a file but a device, pipe or socket; left out": 1,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_disk_that_fails_is_an_error_and_not_damage(read_all):
    with pytest.raises(UserError, match="cannot read /proc/self/mem: Input/output error; start the same command again"):
        read_all("/proc/self/mem")  # opens, and fails at the first read


class FailingFile(io.FileIO):
    """A file on a network that fails after a while."""

    def read(self, size: int = -1) -> bytes:
        if self.tell() > 10_000:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return super().read(min(size, 5_000))


@pytest.mark.parametrize("kind", ["txt", *COMPRESS, "tar", "tar.gz", "zip"])
def test_a_disk_that_fails_later_is_an_error_whatever_is_read_from_it(tmp_path, kind):
    members = {f"{number}.txt": os.urandom(20_000) for number in range(3)}
    noise = os.urandom(60_000)
    make = {"txt": bytes, "tar": lambda _: tar_of(members), "zip": lambda _: zip_of(members)}
    make["tar.gz"] = lambda _: gzip.compress(tar_of(members))
    (tmp_path / "a").write_bytes((make | COMPRESS)[kind](noise))
    notes = Notes()
    allowance = Allowance(lambda: 60_000)
    with FailingFile(tmp_path / "a") as file, pytest.raises(UserError, match="cannot read a: Stale file handle"):
        stream = opened(buffered(Guarded(file, "a", notes)), "a", notes, allowance)
        if kind == "zip":
            [content.read() for _, content in zip_members(stream, "a", notes, allowance)]
        elif "tar" in kind:
            [content.read() for _, content in tar_members(stream, "a", notes)]
        stream.read()
    assert not notes.counts


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_noted(tmp_path, read_all):
    (tmp_path / "a.txt").write_text("secret")
    (tmp_path / "a.txt").chmod(0)
    assert "cannot be read (Permission denied)" in read_all(tmp_path)[1].counts


def test_standard_input_and_pipes_are_read_even_byte_by_byte(tmp_path):
    script = textwrap.dedent("""
        import sys
        from electrakit.config.corpus import CorpusConfig
        from electrakit.data.read.formats import read_batch
        from electrakit.data.read.notes import Notes
        from electrakit.data.read.sources import cut_inputs, find_inputs
        config = CorpusConfig(inputs=(sys.argv[1],))
        for batch in cut_inputs(find_inputs(config, Notes()), config, None):
            print([document.lines for document in read_batch(batch, config)[0]])
    """)
    for name in ("-", "/dev/stdin"):
        process = subprocess.Popen(
            [sys.executable, "-c", script, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        with process:
            for byte in gzip.compress(b"one\n\ntwo"):
                process.stdin.write(bytes([byte]))
            process.stdin.close()
            assert process.stdout.read() == b"[['one'], ['two']]\n"


# --- compression -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_recognised_by_content_whatever_their_name_and_number_of_streams(
    tmp_path, read_all, suffix
):
    compress = COMPRESS[suffix]
    half = len(STORY) // 2
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(STORY))
    (tmp_path / "b.dat").write_bytes(compress(STORY[:half]) + compress(STORY[half:]))  # as pigz, pbzip2 and pzstd do
    (tmp_path / "c.txt.zip").write_bytes(compress(compress(STORY)))
    for name in (f"a.txt{suffix}", "b.dat", "c.txt.zip"):
        documents, notes = read_all(tmp_path / name)
        assert texts(documents) == SENTENCES
        assert not notes.counts


def test_a_zst_file_may_begin_with_a_frame_to_be_skipped(tmp_path, read_all):
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    (tmp_path / "a.zst").write_bytes(skipped + COMPRESS[".zst"](b"text"))
    assert texts(read_all(tmp_path / "a.zst")[0]) == ["text"]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("share", [0.0002, 0.6, 0.9999])
def test_of_a_truncated_file_the_beginning_is_kept_and_the_place_noted(tmp_path, read_all, suffix, share):
    whole = COMPRESS[suffix](STORY)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(whole[: max(12, int(len(whole) * share))])
    documents, notes = read_all(path)
    what, where = only(notes)
    assert what == "compressed file is cut off; what came before is kept"
    assert where.startswith(f"{path} at byte ")
    kept = texts(documents)
    assert kept[:-1] == SENTENCES[: max(0, len(kept) - 1)]
    num_kept = int(where.rpartition(" ")[2].replace(",", ""))
    assert len(STORY[:num_kept].split(b"\n\n")) - len(kept) in (0, 1)
    if suffix != ".bz2" and share > 0.5:  # a block of bz2 is all or nothing
        assert len(kept) > share * len(SENTENCES) * 0.6


@pytest.mark.promise("Data", "flipped byte in a compressed file", "noted, the rest is read")
@pytest.mark.long
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_flipped_byte_anywhere_in_a_compressed_file_is_noted(tmp_path, read_all, suffix):
    checked = {**COMPRESS, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}
    whole = checked[suffix](STORY)
    for place in range(20, len(whole) - 20, len(whole) // 12):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        (tmp_path / "a").write_bytes(damaged)
        documents, notes = read_all(tmp_path / "a")
        assert notes.counts, (place, len(documents))
        assert all("what came before is kept" in what or "left out" in what for what in notes.counts)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_garbage_after_a_compressed_stream_is_no_reason_to_lose_it(tmp_path, read_all, suffix):
    (tmp_path / "a").write_bytes(COMPRESS[suffix](b"kept") + b"garbage garbage garbage")
    assert texts(read_all(tmp_path / "a")[0]) == ["kept"]


def test_text_that_begins_like_a_compressed_file_stays_text(tmp_path, read_all):
    (tmp_path / "a.txt").write_text("BZh is how bzip2 begins.")
    assert texts(read_all(tmp_path)[0]) == ["BZh is how bzip2 begins."]


# --- encodings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_encodings_are_recognised(tmp_path, read_all, encoding):
    text = "The café’s “owner” was naïve about the façade.\n\nAnd so on, in plain words."
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert texts(read_all(tmp_path)[0]) == text.split("\n\n")


def test_broken_utf_16_is_left_out_and_counted(tmp_path, read_all):
    (tmp_path / "a.txt").write_bytes("good ".encode("utf-16") + b"\x00\xd8" + "words".encode("utf-16-le") + b"\x41")
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["good words"]
    assert notes.counts["broken UTF-16; left out"] == 2


# --- archives --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("Data", "archive members with hostile names", "skipped and counted")
@pytest.mark.parametrize("make", [tar_of, zip_of, lambda members: lzma.compress(tar_of(members))])
def test_members_with_unsafe_names_are_skipped_and_counted(tmp_path, read_all, make):
    names = ["../x", "a/../../x", "/etc/x", "C:\\x", "..\\x", "good.txt"]
    (tmp_path / "a").write_bytes(make({name: name.encode() for name in names}))
    documents, notes = read_all(tmp_path / "a")
    assert texts(documents) == ["good.txt"]
    assert notes.counts == {"archive member has an unsafe name; left out": 5}


@pytest.mark.promise("Data", "links, devices and pipes in archives", "skipped and counted")
def test_links_devices_pipes_and_sparse_files_in_archives_are_skipped_and_counted(tmp_path, read_all):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            entry = tarfile.TarInfo(f"special{kind.decode()}")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        sparse = tarfile.TarInfo("sparse")
        sparse.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**60)}  # an exabyte of zeros
        sparse.size = 1
        archive.addfile(sparse, io.BytesIO(b"x"))
        good = tarfile.TarInfo("good.txt")
        good.size = 4
        archive.addfile(good, io.BytesIO(b"good"))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    data = file.getvalue()
    (tmp_path / "a.tar").write_bytes(data)
    documents, notes = read_all(tmp_path)
    assert notes.counts == {"archive member is a link, device or sparse file; left out": 6}
    assert texts(documents) == ["good"]


def test_links_and_encrypted_members_of_a_zip_are_skipped_and_counted(tmp_path, read_all):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("secret.txt", "secret")
        archive.writestr("good.txt", "good")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1) + 8] |= 1  # the second entry's flags
    (tmp_path / "a.zip").write_bytes(data)
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["good"]
    assert notes.counts == {
        "archive member is a link, device or sparse file; left out": 1,
        "archive member is encrypted; left out": 1,
    }


def test_one_damaged_member_of_a_zip_does_not_take_the_others_with_it(tmp_path, read_all):
    data = zip_of({"a.txt": STORY[:1000], "b.txt": STORY[:1000], "c.txt": b"the last"}, zipfile.ZIP_STORED)
    place = data.index(b"b.txt") + 100
    (tmp_path / "a.zip").write_bytes(data[:place] + b"!" + data[place + 1 :])
    documents, notes = read_all(tmp_path)
    assert texts(documents)[-1] == "the last"
    what, where = only(notes)
    assert what == "damaged file; what came before is kept"
    assert where == f"{tmp_path / 'a.zip'}:b.txt at byte 1,000: wrong checksum"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_what_stands_before_a_flipped_byte_in_a_zip_is_kept(tmp_path, read_all, method, share):
    text = STORY[:500_000]
    data = bytearray(zip_of({"a.txt": text}, method))
    data[int(len(data) * share)] ^= 0x55
    (tmp_path / "a.zip").write_bytes(data)
    documents, notes = read_all(tmp_path)
    num_kept = sum(len(document.lines[0]) + 2 for document in documents)
    assert num_kept > (0.99 if method == zipfile.ZIP_STORED else share - 0.05) * len(text)
    assert only(notes)[0].startswith("damaged file; ")


def test_damage_of_one_kind_is_one_note_however_many_files_have_it(tmp_path, read_all):
    members = {f"book{number}.txt": b"words of book %d" % number for number in range(300)}
    data = zip_of(members, zipfile.ZIP_STORED).replace(b"words of", b"w0rds of")
    (tmp_path / "a.zip").write_bytes(data)
    for number in range(20):
        (tmp_path / f"{number}.parquet").write_bytes(b"PAR1" + b"%d" % number * 50)
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(STORY)[:500] + b"%d" % number * 500)
    documents, notes = read_all(tmp_path)
    assert notes.counts["damaged file; what came before is kept"] == 300
    assert sum(document.lines[0].startswith("w0rds") for document in documents) == 300
    assert len(notes.counts) <= 5


@pytest.mark.promise("Data", "truncated archives", "noted, what came before is kept")
@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_a_truncated_archive_is_noted(tmp_path, read_all, make):
    data = make({"a.txt": b"the first", "b.txt": os.urandom(5000).hex().encode()})
    (tmp_path / "a").write_bytes(data[:3000])
    documents, notes = read_all(tmp_path / "a")
    assert any("damaged" in what for what in notes.counts)
    assert texts(documents)[0] == "the first"
    assert len(texts(documents)[1]) > 500  # so much of the second was there
    assert "empty file" not in notes.counts


class OneWay(io.RawIOBase):
    """A file that can only be written to, as a pipe: a zip archive then has the sizes of its members behind them."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("is_piped", [False, True])
def test_the_members_of_a_cut_off_zip_are_found_without_its_directory(tmp_path, read_all, method, is_piped):
    expected = [f"document {number} " + os.urandom(20_000).hex() for number in range(5)]
    file = OneWay() if is_piped else io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("folder/", b"")
        archive.writestr("../unsafe.txt", b"out of the folder")
        for number, text in enumerate(expected):
            archive.writestr(f"folder/{number}.txt", text)
    data = bytes(file.data) if isinstance(file, OneWay) else file.getvalue()
    for end in (-1, data.rindex(b"PK\x03\x04") + 9000):
        (tmp_path / "a.zip").write_bytes(data[:end])
        documents, notes = read_all(tmp_path)
        assert "damaged archive; the members that can be found are kept" in notes.counts
        if method == zipfile.ZIP_STORED and is_piped:  # nothing says where these end
            assert notes.counts["archive member cannot be read without the archive's directory; left out"] == 5
            continue
        assert texts(documents)[:4] == expected[:4]
        assert expected[4].startswith(texts(documents)[4])
        assert (texts(documents)[4] == expected[4]) == (end == -1)
        assert notes.counts["archive member has an unsafe name; left out"] == 1
        assert ("compressed file is cut off; what came before is kept" in notes.counts) == (end != -1)


def test_the_checksums_and_caps_of_zip_members_hold_without_the_directory_too(tmp_path, read_all):
    data = bytearray(zip_of({"a.txt": b"harmless words", "b.txt": b"bomb " * 20_000_000})[:-30])
    data[data.index(b"harmless") if b"harmless" in data else 40] ^= 1
    (tmp_path / "a.zip").write_bytes(data)
    documents, notes = read_all(tmp_path)
    assert any(what.startswith("damaged file; ") for what in notes.counts)
    assert any(what.startswith("decompresses to more than 250 times") for what in notes.counts)
    assert sum(map(len, texts(documents))) < 50_000_000


def test_an_archive_that_ends_inside_an_inner_archive_is_not_called_empty(tmp_path, read_all):
    inner = lzma.compress(tar_of({f"{number}.txt": os.urandom(20_000).hex().encode() for number in range(5)}))
    for name in ("inner.tar.xz", "part_a_data.xz"):
        data = tar_of({"first.txt": b"the first", name: inner})
        (tmp_path / "a.tar").write_bytes(data[: len(data) * 6 // 10])
        documents, notes = read_all(tmp_path)
        assert len(documents) >= 3
        assert "empty file" not in notes.counts
        assert not any(" at byte 0" in place for places in notes.places.values() for place in places)


def test_the_end_of_a_cut_archive_is_noted_once_and_not_for_each_layer(tmp_path, read_all):
    members = {f"{number}.txt": os.urandom(20_000).hex().encode() for number in range(5)}
    inner = {"a.tar": tar_of(members), "a.tar.xz": lzma.compress(tar_of(members)), "a.zip": zip_of(members)}
    for name, content in inner.items():
        data = tar_of({"first.txt": b"the first", name: content})
        (tmp_path / "a.tar").write_bytes(gzip.compress(data)[:60_000])
        documents, notes = read_all(tmp_path)
        assert len(documents) >= 3
        num_ends = 2 if name == "a.zip" else 1  # its last member has an end of its own
        assert set(notes.counts) == {"compressed file is cut off; what came before is kept"}, name
        assert notes.total <= num_ends
        (tmp_path / "a.tar").write_bytes(data[:60_000])
        documents, notes = read_all(tmp_path)
        assert notes.counts["damaged file; what came before is kept"] == 1
        assert notes.total <= num_ends


def test_damage_inside_a_cut_archive_is_noted_too(tmp_path, read_all):
    damaged = bytearray(gzip.compress(STORY))
    damaged[len(damaged) // 2] ^= 0x55
    data = tar_of({"first.txt.gz": bytes(damaged), "last.txt": STORY})
    (tmp_path / "a.tar").write_bytes(data[:-100_000])
    _, notes = read_all(tmp_path)
    assert len(notes.places["damaged file; what came before is kept"]) == 2


def test_no_note_speaks_of_exceptions(tmp_path, read_all):
    whole = zip_of({"a.txt": STORY[:5000], "b.txt": STORY[:5000]})
    for number in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[number] ^= 0x55
        (tmp_path / f"{number}.zip").write_bytes(damaged)
    for suffix, compress in COMPRESS.items():
        (tmp_path / f"a{suffix}").write_bytes(compress(STORY)[:500] + b"damage" * 50)
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"damage" * 50)
    _, notes = read_all(tmp_path)
    assert len(notes.counts) > 3
    assert not any("Error" in what or "BadZip" in what for what in notes.counts)


def test_archives_may_hold_archives_but_not_without_end(tmp_path, read_all):
    inner = zip_of({"a.txt": b"found"})
    (tmp_path / "a.tar").write_bytes(tar_of({"inner.zip": inner, "again.tar.gz": gzip.compress(tar_of({"b": b"too"}))}))
    assert texts(read_all(tmp_path / "a.tar")[0]) == ["found", "too"]
    for _ in range(5):
        inner = zip_of({"deeper.zip": inner})
    (tmp_path / "deep.zip").write_bytes(inner)
    assert only(read_all(tmp_path / "deep.zip")[1])[0] == "archive within 3 archives; left out"


@pytest.mark.parametrize("name", ["word.docx", "book.epub"])
def test_office_documents_and_electronic_books_are_not_taken_for_archives_of_text(tmp_path, read_all, name):
    first = "mimetype" if name == "book.epub" else "[Content_Types].xml"
    (tmp_path / name).write_bytes(zip_of({first: b"<x>markup</x>", "text.xml": b"<p>more markup</p>"}))
    documents, notes = read_all(tmp_path)
    assert not documents
    assert only(notes)[0] == "not text, and no known kind of file; left out"


@pytest.mark.promise("Data", "absurd tar headers", "noted, little memory")
def test_tar_headers_that_are_absurd_are_noted_and_take_no_memory(tmp_path, read_all):
    good = tar_of({"a.txt": b"the first"})[:1024]
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, 40 * 2**20
    (tmp_path / "long.tar").write_bytes(good + entry.tobuf() + b"7 a=bc\n" * (6 * 2**20))
    entry.size = 7
    (tmp_path / "many.tar").write_bytes(good + (entry.tobuf() + b"7 a=bc\n".ljust(512, b"\0")) * 1000)
    entry.type, entry.size = tarfile.REGTYPE, 0
    negative = bytearray(entry.tobuf())
    negative[124:136] = b"\xff" * 10 + b"\x00\x00"  # base 256: less than nothing
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative)
    (tmp_path / "negative.tar").write_bytes(good + negative + bytes(2048))
    for name in ("long", "many", "negative"):
        documents, notes = read_all(tmp_path / f"{name}.tar")
        assert texts(documents) == ["the first"]
        assert any("damaged archive" in what for what in notes.counts), name


# --- bombs -----------------------------------------------------------------------------------------------------------

BOMB = (b"a" * 3999 + b"\n") * (16 * 2**10)  # 65 MB
BOMBS = {
    "xz": lambda: lzma.compress(BOMB, preset=1),
    "bz2": lambda: bz2.compress(BOMB),
    "zst": lambda: COMPRESS[".zst"](BOMB),
    "gz": lambda: gzip.compress(BOMB),
    "xz in xz": lambda: lzma.compress(lzma.compress(BOMB, preset=1)),
    "in tar": lambda: tar_of({"bomb.xz": lzma.compress(BOMB, preset=1)}),
    "tar.xz": lambda: lzma.compress(tar_of({"bomb.txt": BOMB}), preset=1),
    "zip": lambda: zip_of({"bomb.txt": BOMB}),
    "bz2 in zip": lambda: zip_of({"bomb.txt": BOMB}, zipfile.ZIP_BZIP2),
    "lzma in zip": lambda: zip_of({"bomb.txt": BOMB}, zipfile.ZIP_LZMA),
    "zip in zip": lambda: zip_of({"bomb.zip": zip_of({"bomb.txt": BOMB})}),
}


@pytest.mark.promise("Data", "decompression bombs", "capped")
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", BOMBS)
def test_what_comes_out_of_a_bomb_is_capped(tmp_path, kind):
    """In a process of its own, to see how much memory that took."""
    data = BOMBS[kind]()
    (tmp_path / "bomb").write_bytes(data)
    (tmp_path / "after.txt").write_text("still read")
    script = textwrap.dedent("""
        import re, sys
        from electrakit.config.corpus import CorpusConfig
        from electrakit.data.read.formats import read_batch
        from electrakit.data.read.notes import Notes
        from electrakit.data.read.sources import cut_inputs, find_inputs
        config = CorpusConfig(inputs=tuple(sys.argv[1:]), documents="line")
        def memory(what="VmHWM"):
            return int(re.search(what + ":(.*)kB", open("/proc/self/status").read())[1]) // 1024
        before = memory("VmRSS")
        num_bytes, kinds, last = 0, set(), None
        for batch in cut_inputs(find_inputs(config, Notes()), config, None):
            documents, notes = read_batch(batch, config)
            num_bytes += sum(len(chunk.data) for chunk in batch.chunks)
            kinds |= set(notes.counts)
            last = documents[-1].lines if documents else last
        print(num_bytes, memory() - before, last, *kinds, sep="\\n")
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "bomb"), str(tmp_path / "after.txt")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    num_bytes, num_mb, last, *kinds = answer
    assert int(num_bytes) <= FREE_BYTES + 250 * len(data)
    assert int(num_bytes) < len(BOMB)
    assert int(num_mb) < 200
    assert last == "['still read']"
    assert "decompresses to more than 250 times its size; the rest is left out" in kinds


def test_many_small_bombs_share_one_allowance_and_honest_members_are_still_read(tmp_path, read_all):
    small = lzma.compress(b"A line of text. \n" * (2**20 // 17 * 2))
    members = {f"{number}.xz": small for number in range(30)} | {"honest.txt.xz": lzma.compress(b"honest")}
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    documents, notes = read_all(tmp_path, documents="file")
    assert sum(sum(map(len, document.lines)) for document in documents) < FREE_BYTES + 250 * 30 * len(small)
    assert texts(documents)[-1] == "honest"
    assert 15 < notes.counts["decompresses to more than 250 times its size; the rest is left out"] < 30


# --- notes -----------------------------------------------------------------------------------------------------------


def test_notes_merge_survive_json_and_hold_nothing_that_could_upset_a_terminal(monkeypatch):
    monkeypatch.setattr(notes_module, "MAX_PLACES", 5)
    one, other = Notes(), Notes()
    for number in range(4):
        one.add("odd", f"a:{number}")
        other.add("odd", f"b:{number}", 10)
    other.add("strange", "name\x1b[31m\n\udc80")
    one.merge(other)
    assert one.counts == {"odd": 44, "strange": 1}
    assert one.places == {"odd": ["a:0", "a:1", "a:2", "a:3", "b:0"], "strange": ["name?[31m??"]}
    stored = json.dumps([asdict(note) for note in one])
    assert list(Notes(CorpusNote(**entry) for entry in json.loads(stored))) == list(one)


def test_nothing_is_written_to_the_folder_of_the_archives(tmp_path, read_all):
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(tar_of({"a/b.txt": b"text", "c.zip": zip_of({"d": b"more"})})))
    before = sorted(Path(tmp_path).rglob("*"))
    assert texts(read_all(tmp_path)[0]) == ["text", "more"]
    assert sorted(Path(tmp_path).rglob("*")) == before
