"""Broken text, hostile tokenizers and wrong settings: read as well as can be, or one line."""

import json
import random
import shutil

import pytest

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.data.tokenizer_files import load_tokenizer

NUM_TEXTS = 500
SUFFIXES = (
    "txt",
    "jsonl",
    "csv",
    "tsv",
    "json",
    "html",
    "xml",
    "md",
    "gz",
    "bz2",
    "xz",
    "zst",
    "zip",
    "tar",
    "parquet",
    "",
)
PARTS = [
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\x1b[2J",
        b"\r",
        b"\n\n",
    ),
    *(
        b'{"text": ',
        b'"',
        b"{",
        b"[" * 50,
        b"<page><text>",
        b"<![CDATA[",
        b"&#0;",
        b"\\ud800",
        b"PK\x03\x04",
        b"\x1f\x8b\x08",
        b"PAR1",
    ),
    *(
        b"word ",
        "\u202e".encode(),
        "e\u0301".encode() * 30,
        "\U0010ffff".encode(),
        "\u2028".encode(),
        b"x" * 5_000,
        b"\t",
        b",",
        b"NaN",
        b"9" * 400,
    ),
]


def broken_bytes(chance: random.Random) -> bytes:
    """Random bytes, parts of formats that do not fit together, and words between them."""
    parts = (
        chance.choice(PARTS) if chance.random() < 0.7 else chance.randbytes(chance.randint(1, 40)) for _ in range(99)
    )
    return b"".join(part for part, _ in zip(parts, range(chance.randint(0, 40)), strict=False))


@pytest.mark.promise("Data", "random broken text in files of every suffix", "read or noted, or one line")
@pytest.mark.long
def test_broken_text_is_read_or_noted(read_all, tmp_path, trials):
    for seed in trials:
        chance = random.Random(seed)
        for number in range(NUM_TEXTS):
            suffix = chance.choice(SUFFIXES)
            path = tmp_path / f"{seed}-{number}.{suffix}"
            path.write_bytes(broken_bytes(chance))
            try:
                documents, _ = read_all(path)
            except UserError as error:
                assert "\n" not in str(error)
                continue
            for document in documents:
                "".join(document.lines).encode("utf-8")  # no half of a character
        trials.count(NUM_TEXTS - 1)


def mutated(value, chance):
    """One place of a JSON value, replaced by something of another kind."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        return {**value, name: mutated(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        return [*value[:place], mutated(value[place], chance), *value[place + 1 :]]
    return chance.choice(
        [None, -1, 2**70, 1e308, "", "\x00", "[MASK]", [], {}, [[[]]], {"type": "Sequence"}, True, "a" * 10_000]
    )


@pytest.mark.promise("Models", "random mutations of tokenizer.json", "opened, or one line")
@pytest.mark.long
def test_a_hostile_tokenizer_is_opened_or_one_line(shards, tmp_path, trials):
    whole = json.loads((shards / "tokenizer" / "tokenizer.json").read_text())
    shutil.copytree(shards / "tokenizer", tmp_path / "tokenizer")
    for seed in trials:
        chance = random.Random(seed)
        for _ in range(100):
            (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(mutated(whole, chance)))
            try:
                load_tokenizer(tmp_path / "tokenizer")
            except UserError as error:
                assert "\n" not in str(error)
        trials.count(99)


@pytest.mark.promise("Training", "random mutations of the run's config.json", "resumed, or one line; checkpoints stay")
@pytest.mark.long
def test_a_wrong_config_file_is_read_or_one_line(tiny, trials):
    config = tiny("run", steps=2, save_every=1, valid_every=100)
    run = ek.pretrain(config, stop_after=1)
    whole = json.loads((run.path / "config.json").read_text())
    before = {path: path.read_bytes() for path in run.checkpoint.rglob("*") if path.is_file()}
    for seed in trials:
        chance = random.Random(seed)
        for _ in range(3):
            (run.path / "config.json").write_text(json.dumps(mutated(whole, chance)))
            try:
                ek.pretrain(config, stop_after=1)
            except UserError as error:
                assert "\n" not in str(error)
            assert before == {path: path.read_bytes() for path in run.checkpoint.rglob("*") if path.is_file()}
        trials.count(2)
