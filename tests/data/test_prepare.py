"""Shards: the same bytes for any number of workers and after any kill, true counts, and nothing overwritten by mistake."""

import contextlib
import fcntl
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from transformers import AutoTokenizer

import electrakit as ek
from electrakit.cli.printing import print_summary
from electrakit.common.errors import UserError
from electrakit.config.corpus import PrepareConfig
from electrakit.data import encode_fast
from electrakit.data.encode import Encoder
from electrakit.data.manifest import Plan
from electrakit.data.prepare import choose_splits
from electrakit.data.read.notes import CorpusNote, Notes
from electrakit.data.shard_writer import SPLITS, PrepareProgress, ShardFolder
from electrakit.data.tokenizer_files import load_tokenizer
from tests.helpers.processes import HANG, wait_until

WORDS = [f"{first}{second}{third}" for first in "bdfgklmnprst" for second in "aeiou" for third in "lmnrs"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_corpus(folder: Path, num_mb: float, words_per_document: int = 150, seed: int = 0) -> Path:
    """Text files of documents of several lines, some of which come twice."""
    chance = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    words = np.array([*WORDS, "unfamiliar", "été"])
    for number in range(3):
        num_words = int(num_mb * 1e6 / 4.1 / 3)
        text = words[chance.integers(0, len(words), num_words)].astype(object)
        is_end = chance.random(num_words)
        text[is_end < 1 / 15] += "\n"
        text[is_end < 1 / words_per_document] += "\n"
        content = " ".join(text.tolist()).replace("\n ", "\n")
        documents = content.split("\n\n")
        (folder / f"{number}.txt").write_text("\n\n".join(documents + documents[::7]))
    return folder


def write_vocabulary(path: Path, *more: str) -> Path:
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *WORDS[:250], *more]
    path.write_text("".join(f"{piece}\n" for piece in pieces))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read_rows(folder: Path, split: str) -> np.ndarray:
    manifest = json.loads((folder / "manifest.json").read_text())
    dtype = {"uint16": "<u2", "uint32": "<u4"}[manifest["dtype"]]
    files = manifest["splits"][split]["files"]
    return np.concatenate([np.fromfile(folder / file["name"], dtype) for file in files]).reshape(-1, manifest["length"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus of several batches, a vocabulary, and the shards that one worker makes of them."""
    folder = tmp_path_factory.mktemp("made")
    write_corpus(folder / "corpus", 4)
    write_vocabulary(folder / "vocab.txt")
    prepare(folder, folder / "shards", workers=1)
    return folder


SETTINGS = {"length": 64, "valid": 0.05, "test": 0.05}


def prepare(made: Path, out: Path, **changes) -> Path:
    chosen = {"tokenizer": made / "vocab.txt", "workers": 2, **SETTINGS, **changes}
    return ek.prepare([made / "corpus"], out=out, **chosen)


def command(made: Path, out: Path, *more: str) -> list[str]:
    flags = [part for name, value in SETTINGS.items() for part in (f"--{name}", str(value))]
    start = [
        sys.executable,
        "-m",
        "electrakit",
        "prepare",
        str(made / "corpus"),
        "--tokenizer",
        str(made / "vocab.txt"),
    ]
    return [*start, "--out", str(out), "--workers", "2", *flags, *more]


run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=HANG)


# The same bytes


@pytest.mark.promise("Data", "any number of workers", "the same bytes")
@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 3])
def test_shards_are_the_same_bytes_for_any_number_of_workers(made, tmp_path, workers):
    assert content(prepare(made, tmp_path / "out", workers=workers)) == content(made / "shards")


def test_shards_of_the_command_line_are_those_of_python(made, tmp_path):
    done = run(command(made, tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "out") == content(made / "shards")
    assert "tokens lost" in done.stdout and done.stdout.count("[CLS]") == 3


@pytest.mark.long
@pytest.mark.parametrize(
    "changes", [{"dedupe": True}, {"limit": 2500}, {"dedupe": True, "limit": 3000, "min_words": 9}]
)
def test_dedupe_and_limit_give_the_same_bytes_for_any_number_of_workers(made, tmp_path, changes):
    shards = [prepare(made, tmp_path / str(workers), workers=workers, **changes) for workers in (1, 3)]
    assert content(shards[0]) == content(shards[1])
    counts = json.loads((shards[0] / "manifest.json").read_text())["counts"]
    assert counts["documents"] == changes.get("limit", counts["documents"])
    num_all = json.loads((made / "shards" / "manifest.json").read_text())["counts"]["documents"]
    if "limit" not in changes:
        assert counts["documents"] == pytest.approx(num_all * 7 / 8, rel=0.01)


def test_a_script_without_a_main_guard_may_prepare(made, tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent(f"""
            import electrakit as ek
            ek.prepare([{str(made / "corpus")!r}], tokenizer={str(made / "vocab.txt")!r}, out="out", workers=2, **{SETTINGS})
        """)
    )
    done = run([sys.executable, "script.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "out") == content(made / "shards")
    assert done.stderr.count("preparing") == 1 and "out/tokenizer" not in done.stderr  # the hub was not asked for that


# What is in them


def test_the_manifest_is_true(made):
    folder = made / "shards"
    manifest = json.loads((folder / "manifest.json").read_text())
    special = manifest["special_ids"]
    totals = dict.fromkeys(manifest["counts"], 0)
    assert list(manifest["splits"]) == list(SPLITS)
    for split, entry in manifest["splits"].items():
        rows = read_rows(folder, split)
        num_padding = (rows == special["pad"]).sum(1)
        assert entry["rows"] == len(rows) == sum(file["rows"] for file in entry["files"])
        assert entry["padding"] == num_padding.sum()
        assert entry["rows_mostly_padding"] == (num_padding > manifest["length"] / 2).sum()
        assert entry["tokens"] == (~np.isin(rows, [special["pad"], special["cls"], special["sep"]])).sum()
        assert entry["tokens_lost"] == 0
        for file in entry["files"]:
            assert xxhash.xxh3_128_hexdigest((folder / file["name"]).read_bytes()) == file["xxh3_128"]
        for name in totals:
            totals[name] += entry[name]
    assert totals == manifest["counts"]
    assert manifest["format"] == 1 and manifest["length"] == 64 and manifest["dtype"] == "uint16"
    assert manifest["vocab_size"] == len((made / "vocab.txt").read_text().splitlines())
    assert manifest["plan"]["tokenizer"] == load_tokenizer(made / "vocab.txt").fingerprint
    listed = (folder / "sources.jsonl").read_bytes()
    sizes = [path.stat().st_size for path in sorted((made / "corpus").iterdir())]
    assert [json.loads(line)["bytes"] for line in listed.splitlines()] == sizes
    hashes = [xxhash.xxh3_128_hexdigest(path.read_bytes()) for path in sorted((made / "corpus").iterdir())]
    assert [json.loads(line)["xxh3_128"] for line in listed.splitlines()] == hashes
    sources = manifest["plan"]["sources"]
    assert (sources["files"], sources["bytes"]) == (3, sum(sizes))
    documents = [one for path in (made / "corpus").iterdir() for one in path.read_text().split("\n\n")]
    encoder = Encoder(load_tokenizer(made / "vocab.txt").json)
    num_tokens = [len(encoder.encode(document.split("\n"))[0]) for document in documents]
    assert manifest["counts"]["short_documents"] == sum(number < 13 for number in num_tokens) > 0


def test_the_shards_hold_the_text_and_nothing_else(made):
    manifest = json.loads((made / "shards" / "manifest.json").read_text())
    texts = [path.read_text() for path in sorted((made / "corpus").iterdir())]
    lines = [line for text in texts for line in text.split("\n") if line]
    ids, _ = Encoder(load_tokenizer(made / "vocab.txt").json).encode(lines)
    found = np.concatenate([read_rows(made / "shards", split).ravel() for split in SPLITS])
    found = found[~np.isin(found, [manifest["special_ids"][role] for role in ("pad", "cls", "sep")])]
    assert np.array_equal(np.bincount(found), np.bincount(ids))
    assert manifest["counts"]["documents"] == sum(len(text.split("\n\n")) for text in texts)


def test_only_shards_manifest_and_tokenizer_are_left(made):
    names = {name for name in content(made / "shards") if not name.endswith(".bin")}
    tokenizer = {f"tokenizer/{name}" for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")}
    assert names == {"manifest.json", "sources.jsonl", "electrakit.json", ".lock", *tokenizer}
    assert not (made / "shards" / ".prepare").exists()


def test_the_tokenizer_beside_the_shards_opens_and_encodes_the_same(made):
    assert load_tokenizer(made / "shards" / "tokenizer").json == load_tokenizer(made / "vocab.txt").json
    opened = AutoTokenizer.from_pretrained(made / "shards" / "tokenizer")
    ids, _ = Encoder(load_tokenizer(made / "vocab.txt").json).encode(["Bal bam unfamiliar"])
    assert opened("Bal bam unfamiliar", add_special_tokens=False)["input_ids"] == ids.tolist()


def test_batches_open_them(made):
    batches = ek.Batches(made / "shards", batch_size=4, split="valid")
    assert batches(0).shape == (4, 64)


@pytest.mark.long
def test_long_splits_become_several_files_of_bounded_size(made, tmp_path):
    changes = {"length": 4096, "shard_mb": 1, "limit": 1500, "rows": "official"}
    folder = prepare(made, tmp_path / "small", **changes)
    manifest = json.loads((folder / "manifest.json").read_text())
    files = manifest["splits"]["train"]["files"]
    assert len(files) > 5 and {file["rows"] for file in files[:-1]} == {128}
    assert [file["name"] for file in files] == [f"train-{number:05}.bin" for number in range(len(files))]
    assert all((folder / file["name"]).stat().st_size <= 2**20 for file in files)
    whole = prepare(made, tmp_path / "large", **changes | {"shard_mb": 256})
    for split in SPLITS:
        assert np.array_equal(read_rows(folder, split), read_rows(whole, split))


@pytest.mark.long
@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_535, "uint16"), (65_536, "uint32")])
def test_ids_take_four_bytes_above_65535_entries(tmp_path, vocab_size, dtype):
    num_more = vocab_size - len(write_vocabulary(tmp_path / "vocab.txt").read_text().splitlines()) - 1
    write_vocabulary(tmp_path / "vocab.txt", *(f"x{number}" for number in range(num_more)), "last")
    (tmp_path / "text.txt").write_text("the last word is the last")
    folder = ek.prepare(
        [tmp_path / "text.txt"], tokenizer=tmp_path / "vocab.txt", out=tmp_path / "out", valid=0, workers=1
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["dtype"], manifest["vocab_size"]) == (dtype, vocab_size)
    assert (read_rows(folder, "train") == vocab_size - 1).sum() == 2


def test_the_summary_shows_counts_and_decoded_rows(made, tmp_path):
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  # a file for the console
        console = Console(file=nowhere, width=200, record=True)
        print_summary(made / "shards", console)
    text = console.export_text()
    assert all(split in text for split in SPLITS) and text.count("[CLS]") == 3 and "bal" in text


def test_a_corpus_without_a_train_split_has_a_summary_too(made, tmp_path):
    (tmp_path / "text.txt").write_text("bal bam")
    folder = ek.prepare(
        [tmp_path / "text.txt"], tokenizer=made / "vocab.txt", out=tmp_path / "out", valid=0.999999, workers=1
    )
    assert list(json.loads((folder / "manifest.json").read_text())["splits"]) == ["valid"]
    with (tmp_path / "screen").open("w") as screen:
        print_summary(folder, Console(file=screen))
    assert "[CLS] bal bam [SEP]" in (tmp_path / "screen").read_text()


# Splits

identities = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50).map(lambda some: np.array(some, np.uint64))
shares = st.floats(0, 0.49)


@given(some=identities, valid=shares, test=shares, more=shares)
@settings(max_examples=200, deadline=None)
def test_a_larger_share_moves_documents_out_of_train_and_nowhere_else(some, valid, test, more):
    before = choose_splits(some, valid, test)
    for number, after in (
        (1, choose_splits(some, max(valid, more), test)),
        (2, choose_splits(some, valid, max(test, more))),
    ):
        moved = before != after
        assert (before[moved] == 0).all() and (after[moved] == number).all()


def test_splits_have_about_their_shares():
    some = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64)
    num_of_split = np.bincount(choose_splits(some, 0.01, 0.05), minlength=3)
    assert num_of_split / len(some) == pytest.approx([0.94, 0.01, 0.05], rel=0.1)
    assert not choose_splits(some, 0, 0).any()


def test_no_document_is_in_two_splits(made):
    """One document in eight comes twice; the same content is always in the same split."""
    firsts = {}
    for split in SPLITS:  # rows that start a document and are full say which document it is
        rows = read_rows(made / "shards", split)
        firsts[split] = {row.tobytes() for row in rows if row[-1]}
    assert all(firsts.values())
    assert not firsts["train"] & firsts["valid"] and not firsts["train"] & firsts["test"]
    assert not firsts["valid"] & firsts["test"]


# A folder is written once, by one process, with one set of settings


def stamps(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in [*content(folder), "."]}


@pytest.mark.parametrize("length", [64, 1024])
def test_transformers_does_not_cut_what_fits_a_row(made, tmp_path, length):
    ek.load_tokenizer(made / "vocab.txt").save(tmp_path / "tokenizer")
    folder = prepare(made, tmp_path / "out", length=length, tokenizer=tmp_path / "tokenizer")
    longest = json.loads((folder / "tokenizer/tokenizer_config.json").read_text())["model_max_length"]
    assert longest == max(512, length)
    assert ek.load_tokenizer(folder / "tokenizer").fingerprint == ek.load_tokenizer(made / "vocab.txt").fingerprint
    prepare(made, folder, length=length, tokenizer=folder / "tokenizer")  # finished: it is the same tokenizer


def test_a_second_run_says_so_and_touches_nothing(made, capfd):
    before = stamps(made / "shards")
    prepare(made, made / "shards", workers=1)
    assert "is finished already" in capfd.readouterr().err
    assert stamps(made / "shards") == before


def test_a_finished_folder_may_be_read_only(made, tmp_path):
    folder = prepare(made, tmp_path / "out", limit=5)
    for path in (folder, folder / "tokenizer"):
        path.chmod(0o555)
    assert prepare(made, folder, limit=5) == folder


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"length": 128}, "length 64 -> 128"),
        ({"rows": "official", "seed": 3}, "rows full -> official, seed 0 -> 3"),
        ({"valid": 0.1}, "valid 0.05 -> 0.1"),
        ({"dedupe": True}, "dedupe False -> True"),
        ({"limit": 10}, "limit None -> 10"),
    ],
)
def test_other_settings_are_refused_with_the_difference(made, changes, difference):
    before = stamps(made / "shards")
    with pytest.raises(UserError, match=f"was made with other settings: {difference}; name another --out"):
        prepare(made, made / "shards", **changes)
    assert stamps(made / "shards") == before


def test_another_corpus_is_refused_with_the_difference(made, tmp_path):
    (tmp_path / "corpus").mkdir()
    text = tmp_path / "corpus" / "text.txt"
    text.write_text("bal bam")
    (tmp_path / "vocab.txt").write_bytes((made / "vocab.txt").read_bytes())
    folder = prepare(tmp_path, tmp_path / "out")
    for other, difference in (("bal bam ban", "7 -> 11 bytes"), ("bam bal", "other content")):
        text.write_text(other)
        what = rf"^the sources have changed since .*out was made: 1 of the sources \(.*text\.txt: {difference}\); name another"
        with pytest.raises(UserError, match=what):
            prepare(tmp_path, folder)
        with pytest.raises(UserError, match=r"was made with other settings: length 64 -> 32, 1 of the sources"):
            prepare(tmp_path, folder, length=32)
    text.write_text("bal bam")
    (tmp_path / "corpus" / "zero.txt").write_text("more")
    with pytest.raises(UserError, match=r"1 of the sources \(.*zero\.txt: is new\)"):
        prepare(tmp_path, folder)
    with pytest.raises(UserError, match=r"tokenizer wordpiece with \d+ tokens -> wordpiece with \d+ tokens"):
        prepare(tmp_path, folder, tokenizer=write_vocabulary(tmp_path / "vocab.txt", "one", "more"))


def test_the_folder_may_lie_inside_the_corpus(made, tmp_path, capfd):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "text.txt").write_text("bal bam")
    for _ in range(2):
        prepare(tmp_path, tmp_path / "corpus" / "shards", tokenizer=made / "vocab.txt")
    assert "is finished already" in capfd.readouterr().err


def test_text_inside_the_folder_is_read(made, tmp_path):
    """Only what we write ourselves is left out."""
    sub = tmp_path / "sub"
    names = ("b.txt", "train-0.bin", "tokens/notes.txt", "deeper/manifest.json.txt", "train-00000.bin.bak.txt")
    for name in names:
        (sub / name).parent.mkdir(parents=True, exist_ok=True)
        (sub / name).write_text(f"bal {name}")
    (tmp_path / "a.txt").write_text("bam")
    for _ in range(2):  # the second time it finds its own files there
        chosen = {"tokenizer": made / "vocab.txt", "out": sub, "workers": 1, "source": "text"}
        ek.prepare([tmp_path / "a.txt", sub], **chosen)
    listed = [json.loads(line)["name"] for line in (sub / "sources.jsonl").read_text().splitlines()]
    assert sorted(listed) == sorted(map(str, [tmp_path / "a.txt", *(sub / name for name in names)]))
    counts = json.loads((sub / "manifest.json").read_text())["counts"]
    assert counts["documents"] == 1 + len(names)


def test_files_of_the_user_in_the_folder_are_left_alone(made, tmp_path):
    names = ("plan.json", "progress.json", "seen.bin", "manifest.tmp", ".lock", "train-00000.bin.bak", "valid-x.bin")
    for name in names:
        (tmp_path / name).write_text("precious")
    prepare(made, tmp_path, limit=5, dedupe=True)
    assert [(tmp_path / name).read_text() for name in names] == ["precious"] * len(names)


def test_a_list_of_sources_that_is_not_ours_is_not_overwritten(made, tmp_path):
    (tmp_path / "sources.jsonl").write_text('{"text": "precious"}')
    with pytest.raises(UserError, match=r"holds sources\.jsonl of something else"):
        prepare(made, tmp_path)
    assert "precious" in (tmp_path / "sources.jsonl").read_text()


@pytest.mark.promise("Data", "damaged progress file", "one line")
@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"counts": 3}', '{"counts": {"train": {}}}', "\xff"])
@pytest.mark.parametrize("name", ["progress.json", "plan.json"])
def test_a_damaged_progress_file_is_a_clear_error(made, tmp_path, name, damage):
    state = {"finished": [], "num_rows": 1}
    progress = {"after": [0, 1], "fast": True, "num_seen": 0, "notes": {}}
    progress |= {"counts": {split: {"rows": 1} for split in SPLITS}, "files": dict.fromkeys(SPLITS, state)}
    (tmp_path / ".prepare").mkdir()
    (tmp_path / ".prepare" / "progress.json").write_text(json.dumps(progress))
    (tmp_path / ".prepare" / name).write_bytes(damage.encode("latin-1"))
    with pytest.raises(UserError, match=r"(is damaged, or not ours|was made with other settings).*name another --out"):
        prepare(made, tmp_path)


def test_notes_in_the_progress_file_of_an_earlier_version_are_read():
    state = {"finished": [], "num_rows": 1}
    stored = {"after": [0, 1], "fast": True, "num_seen": 0}
    stored |= {"counts": {split: {"rows": 1} for split in SPLITS}, "files": dict.fromkeys(SPLITS, state)}
    old = {
        "a hole": {"count": 2, "first": ["x"]},
        "a cut; the rest is kept": {"count": 1, "first": ["y"], "kept": "the rest is kept"},
    }
    progress = PrepareProgress.from_json(stored | {"notes": old})
    assert list(progress.notes) == [
        CorpusNote("a hole", "", 2, ["x"]),
        CorpusNote("a cut", "the rest is kept", 1, ["y"]),
    ]
    again = PrepareProgress.from_json(json.loads(json.dumps(progress.as_json())))
    assert list(again.notes) == list(progress.notes)


@pytest.mark.long
def test_standard_input_is_never_taken_for_the_same(made, tmp_path):
    start = [
        sys.executable,
        "-m",
        "electrakit",
        "prepare",
        "-",
        "--tokenizer",
        str(made / "vocab.txt"),
        "--workers",
        "1",
    ]
    for out, text, code in (("a", "bal bam", 0), ("a", "other", 2), ("b", "other", 0)):
        done = run([*start, "--out", str(tmp_path / out)], input=text)
        assert done.returncode == code, done.stderr
        assert (code == 0) != ("it is not known whether - (standard input" in done.stderr), done.stderr
    progress = {"after": [0, 1], "fast": True, "num_seen": 0, "notes": {}}
    state = {"finished": [], "num_rows": 1}
    progress |= {"counts": {split: {"rows": 1} for split in SPLITS}, "files": dict.fromkeys(SPLITS, state)}
    plan = json.loads((tmp_path / "a" / "manifest.json").read_text())["plan"]
    (tmp_path / "a" / "manifest.json").unlink()  # as if it had been killed
    (tmp_path / "a" / ".prepare").mkdir()
    (tmp_path / "a" / ".prepare" / "progress.json").write_text(json.dumps(progress))
    (tmp_path / "a" / ".prepare" / "plan.json").write_text(json.dumps({**plan, "electrakit": ek.__version__}))
    done = run([*start, "--out", str(tmp_path / "a")], input="bal bam")
    assert done.returncode == 2 and "cannot be read again" in done.stderr


# A tokie that is wrong about one word, in every process

WRONG_TOKIE = """
import sys
from pathlib import Path
here = str(Path(__file__).parent)
sys.path = [one for one in sys.path if one != here]
del sys.modules["tokie"]
import tokie
sys.path.insert(0, here)
real = tokie.Tokenizer

class Tokenizer:
    def __init__(self, inner):
        self.inner = inner

    @staticmethod
    def from_json(path):
        return Tokenizer(real.from_json(path))

    def encode_batch_flat(self, lines, **more):
        return self.inner.encode_batch_flat([line.replace("bal", "bam") for line in lines], **more)

tokie.Tokenizer = Tokenizer
"""


def wrong_lines(num_right_batches: int) -> str:
    """The word comes in unaudited lines first, and in an audited one (a batch's first) later."""
    filler = "dan del\n" * 10 + "bal bal bam\n" + "dan del\n" * 30
    return filler * (num_right_batches * 2**20 // len(filler)) + "bal\n\n" * 400_000


@pytest.mark.long
def test_a_wrong_tokie_changes_no_byte_for_any_number_of_workers(made, tmp_path):
    (tmp_path / "stub").mkdir()
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "text.txt").write_text(wrong_lines(num_right_batches=3))
    (tmp_path / "vocab.txt").write_bytes((made / "vocab.txt").read_bytes())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "stub")}

    def prepared(name: str, workers: int, tokie: str, num_restarts: int) -> dict[str, bytes]:
        (tmp_path / "stub" / "tokie.py").write_text(tokie)
        arguments = command(tmp_path, tmp_path / name, "--workers", str(workers), "--dedupe")
        done = run(arguments, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Starting again from the beginning without tokie") == num_restarts
        return content(tmp_path / name)

    without = prepared("without", 1, "raise ImportError", num_restarts=0)
    for workers in (1, 3):
        assert prepared(f"wrong{workers}", workers, WRONG_TOKIE, num_restarts=1) == without


def test_a_slow_path_is_reported_once(made, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(encode_fast, "AGREED_VERSIONS", {("0.0.1", "0.0.2")})
    prepare(made, tmp_path / "out")
    assert capfd.readouterr().err.count("Encoding takes about 2.7 times as long") == 1


def test_a_run_that_gave_tokie_up_resumes_without_it(made, tmp_path):
    config = PrepareConfig(inputs=["x"], tokenizer="x", out=tmp_path)
    plan = Plan({"sources": {}}, [], [])
    tokenizer = load_tokenizer(made / "vocab.txt")
    for fast in (False, True):  # the second time it resumes
        with contextlib.closing(ShardFolder(config, tokenizer, plan, Notes(), fast)) as folder:
            assert not folder.progress.fast
            folder.progress.counts["train"]["rows"] = 1
            folder.save()


def test_files_of_something_else_are_not_overwritten(made, tmp_path):
    (tmp_path / "train-00000.bin").write_text("precious")
    with pytest.raises(UserError, match=r"holds train-00000\.bin of something else"):
        prepare(made, tmp_path)
    assert (tmp_path / "train-00000.bin").read_text() == "precious"


def test_another_tokenizer_in_the_folder_is_not_taken_and_not_overwritten(made, tmp_path):
    other = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", "other"))
    other.save(tmp_path / "out" / "tokenizer")
    with pytest.raises(UserError, match="holds tokenizer of something else"):
        prepare(made, tmp_path / "out")
    assert load_tokenizer(tmp_path / "out" / "tokenizer").fingerprint == other.fingerprint


def test_text_without_a_token_is_an_error_and_leaves_the_folder_free(made, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "text.txt").write_text("\x01\n\n\x02\n")
    with pytest.raises(UserError, match="no usable text"):
        prepare(tmp_path, tmp_path / "out", tokenizer=made / "vocab.txt")
    (tmp_path / "corpus" / "text.txt").write_text("bal")
    prepare(tmp_path, tmp_path / "out", tokenizer=write_vocabulary(tmp_path / "vocab.txt", "other"))
    assert ".prepare/progress.json" not in content(tmp_path / "out")


@pytest.mark.promise("Data", "two prepare on one folder", "the second is refused")
def test_two_at_once_are_refused_and_the_lock_of_a_dead_process_is_not_in_the_way(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", holder, out / ".lock"], **pipes) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another process is writing"):
            prepare(made, out, limit=5)
        other.kill()
    prepare(made, out, limit=5)


def test_paths_with_brackets_are_shown_as_they_are(made, tmp_path, capfd):
    out = tmp_path / "a[/b]"
    for _ in range(2):
        prepare(made, out, limit=5)
    assert "a[/b] is finished already" in capfd.readouterr().err


# Kills: run the real command, end it somehow, run it again, compare all bytes


def resumes_to_the_same_bytes(made: Path, out: Path, wanted: Path, *more: str) -> bool:
    done = run(command(made, out, *more))
    assert done.returncode == 0, done.stderr
    return content(out) == content(wanted)


# The command, but it is killed before its n-th call of those that make a state durable or visible.
CRASH = """
import os, signal, sys

deadly_number, num_calls = int(sys.argv[1]), 0

def deadly(function):
    def call(*args, **kwargs):
        global num_calls
        num_calls += 1
        if num_calls == deadly_number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for name in ("fsync", "replace", "truncate", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))

from electrakit.cli.main import main
main(sys.argv[2:])
"""


# The command, but it is killed in the middle of its n-th write of rows or hashes.
CRASH_IN_A_WRITE = """
import os, signal, sys
from electrakit.data import shard_writer

deadly_number, num_writes = int(sys.argv[1]), 0
write = shard_writer.write_numbers

def deadly(file, numbers):
    global num_writes
    num_writes += 1
    if num_writes == deadly_number:
        file.write(numbers.tobytes()[: numbers.nbytes // 2 + 1])
        os.kill(os.getpid(), signal.SIGKILL)
    write(file, numbers)

shard_writer.write_numbers = deadly

from electrakit.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.promise("Data", "SIGKILL of prepare at each write, sync and rename", "the same bytes at the end")
@pytest.mark.long
@pytest.mark.parametrize(("crash", "min_kills"), [(CRASH, 10), (CRASH_IN_A_WRITE, 5)])
def test_a_kill_at_each_write_sync_and_rename_loses_and_repeats_nothing(tmp_path, crash, min_kills, trials):
    """Run k of the same command is killed at its k-th such call, until one comes through."""
    write_corpus(tmp_path / "corpus", 4)
    write_vocabulary(tmp_path / "vocab.txt")
    more = ("--dedupe", "--length", "1024", "--shard-mb", "1", "--rows", "official")
    assert run(command(tmp_path, tmp_path / "whole", *more)).returncode == 0
    (tmp_path / "crash.py").write_text(crash)
    num_kills = num_unsaved = 0
    while True:
        arguments = command(tmp_path, tmp_path / "out", *more)[3:]
        done = run([sys.executable, tmp_path / "crash.py", str(num_kills + 1), *arguments])
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        num_kills += 1
        num_unsaved += num_bytes_written(tmp_path / "out") > num_rows_saved(tmp_path / "out") * 1024 * 2
    assert num_kills >= min_kills and num_unsaved > 0  # some of them left more in the files than counts
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    trials.count(num_kills)


# The command, but once it has saved some rows it waits for the end of its input: what happens to it happens while it works.
HELD = """
import json, os, sys

replace = os.replace

def holding(source, target, **more):
    replace(source, target, **more)
    if os.path.basename(target) == "progress.json":
        with open(target) as file:
            has_rows = any(counts.get("rows") for counts in json.load(file)["counts"].values())
        if has_rows:
            sys.stdin.read()

os.replace = holding

from electrakit.cli.main import main
main(sys.argv[1:])
"""


def held(made: Path, out: Path, **settings: object) -> subprocess.Popen[str]:
    """Prepares, has saved something, and waits until its input is closed."""
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = [sys.executable, "-c", HELD, *command(made, out)[3:]]
    main = subprocess.Popen(arguments, text=True, **pipes, **settings)
    wait_until(lambda: num_rows_saved(out), main)
    return main


def num_rows_saved(out: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(
            counts.get("rows", 0)
            for counts in json.loads((out / ".prepare" / "progress.json").read_text())["counts"].values()
        )
    return 0


def num_bytes_written(out: Path) -> int:
    return sum(path.stat().st_size for path in out.glob("*.bin*"))


@pytest.mark.promise("Data", "SIGTERM, SIGINT, SIGKILL of prepare", "resumes to the same bytes")
@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_ends_cleanly_and_resumes(made, tmp_path, how):
    with held(made, tmp_path / "out", start_new_session=True) as main:
        if how == signal.SIGINT:
            os.killpg(main.pid, how)  # as a terminal does: every process gets it
        else:
            main.send_signal(how)
        errors = main.stderr.read()
    assert main.returncode != 0 and "Traceback" not in errors
    if how == signal.SIGINT:
        last = errors.splitlines()[-1]
        assert main.returncode == 130 and last.startswith("electra: stopped; ") and "start the same command" in last
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(UserError, match="is unfinished"):
        ek.Batches(tmp_path / "out", 1)
    with pytest.raises(UserError, match="length 64 -> 32"):
        prepare(made, tmp_path / "out", length=32)
    assert resumes_to_the_same_bytes(made, tmp_path / "out", made / "shards")


@pytest.mark.promise("Data", "SIGKILL of a worker of prepare", "one line, resumes to the same bytes")
@pytest.mark.long
def test_a_killed_worker_is_a_clear_error_and_the_run_resumes(made, tmp_path):
    with held(made, tmp_path / "out") as main:
        children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
        workers = [one for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
        os.kill(int(workers[-1]), signal.SIGKILL)
        main.stdin.close()
        errors = main.stderr.read()
    assert main.returncode == 2
    assert "died (exit code -9)" in errors.splitlines()[-1] and "Traceback" not in errors
    assert resumes_to_the_same_bytes(made, tmp_path / "out", made / "shards")


@pytest.mark.promise("Data", "full disk in prepare", "one line, resumes to the same bytes")
@pytest.mark.long
def test_a_full_disk_is_a_clear_error_and_the_run_resumes(made, tmp_path):
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    for _ in range(2):
        done = run(command(made, tmp_path / "out"), preexec_fn=limit_files)
        assert done.returncode == 2
        last = done.stderr.splitlines()[-1]
        assert last.startswith("electra: cannot write") and "File too large" in last and "same command again" in last
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert resumes_to_the_same_bytes(made, tmp_path / "out", made / "shards")


def test_a_folder_that_cannot_be_made_is_a_clear_error(made, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/out")):
        with pytest.raises(UserError, match=r"cannot write .*fix that and start the same command again"):
            prepare(made, out)


# The command, but it is killed when all rows are written and the manifest is not yet: its progress file is of a moment before that.
CRASH_AT_THE_MANIFEST = """
import os, signal, sys

replace = os.replace

def deadly(source, target, **more):
    if os.path.basename(target) == "manifest.json":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **more)

os.replace = deadly

from electrakit.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.promise("Data", "unfinished shards shortened after a kill", "refused")
@pytest.mark.long
def test_files_that_were_shortened_after_the_kill_are_an_error(made, tmp_path):
    (tmp_path / "crash.py").write_text(CRASH_AT_THE_MANIFEST)
    more = ("--shard-mb", "1")
    done = run([sys.executable, tmp_path / "crash.py", *command(made, tmp_path / "left", *more)[3:]])
    assert done.returncode == -signal.SIGKILL, done.stderr
    saved = json.loads((tmp_path / "left" / ".prepare" / "progress.json").read_text())["files"]
    num_rows = {file["name"]: file["rows"] for files in saved.values() for file in files["finished"]}
    num_rows |= {f"{split}-{len(files['finished']):05}.bin": files["num_rows"] for split, files in saved.items()}
    num_bytes = {name: number * SETTINGS["length"] * 2 for name, number in num_rows.items() if number}
    assert len(num_bytes) >= len(SPLITS)
    for name, size in num_bytes.items():
        out = shutil.copytree(tmp_path / "left", tmp_path / name)
        os.truncate(out / name, size - 1)
        with pytest.raises(UserError, match="is shorter than it was left"):
            prepare(made, out, shard_mb=1)
    prepare(made, tmp_path / "whole", shard_mb=1)
    # Untouched, it resumes.
    assert resumes_to_the_same_bytes(made, tmp_path / "left", tmp_path / "whole", *more)


# Memory

PEAK = """
import re, resource, sys
from electrakit.cli.main import main
try:
    main(sys.argv[1:])
finally:  # of this process, and of the largest of its workers; ru_maxrss of this one would count who started it
    print("PEAK", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.promise("Data", "a corpus many times larger", "the same memory")
@pytest.mark.long
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    write_vocabulary(tmp_path / "vocab.txt")
    peaks = []
    for num_mb in (16, 64):
        write_corpus(tmp_path / str(num_mb) / "corpus", num_mb, seed=num_mb)
        (tmp_path / str(num_mb) / "vocab.txt").write_bytes((tmp_path / "vocab.txt").read_bytes())
        arguments = command(tmp_path / str(num_mb), tmp_path / f"out-{num_mb}", "--dedupe")[3:]
        done = run([sys.executable, "-c", PEAK, *arguments])
        assert done.returncode == 0, done.stderr
        peaks.append(np.array(done.stdout.split("PEAK")[1].split(), int) / 1024)  # MB
    assert (peaks[1] < peaks[0] + 40).all() and peaks[1].max() < 500, peaks


def test_locks_are_not_left_to_workers(made, tmp_path):
    """A lock that a worker inherited would outlive a killed main process."""
    with held(made, tmp_path / "out") as main:
        main.kill()
    with (tmp_path / "out" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
