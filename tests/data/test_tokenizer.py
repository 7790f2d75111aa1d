"""Tokenizers: reproducible training, loading from every form, and agreement with transformers."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer

from electrakit import UserError, load_tokenizer, train_tokenizer
from electrakit.data.read.formats import Document
from electrakit.data.tokenizer import SPECIAL_TOKENS, _alphabet, _normalise

WORDS = [
    "the",
    "of",
    "electra",
    "learns",
    "tokens",
    "generator",
    "naïve",
    "café",
    "straße",
    "Ünder",
    "ïle",
    "zebra",
    "fox",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files of made sentences, with characters of several scripts and many ties between pieces."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    for name in ("one.txt", "two.txt"):
        made = [f"w{chance.randrange(400)}x{chance.choice('αβγдежз北京東')}" for _ in range(800)]
        words = [chance.choice(WORDS + made) for _ in range(6000)]
        lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
        (folder / name).write_text("\n\n".join(lines), encoding="utf-8")
    return folder


def train(corpus: Path, out: Path, **changes) -> Path:
    return train_tokenizer([corpus], **{"vocab_size": 600, "out": out, "workers": 1, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.long
def test_the_same_corpus_gives_the_same_bytes_in_every_process(corpus, tmp_path):
    first = contents(train(corpus, tmp_path / "first"))
    for number, (threads, hash_seed, workers) in enumerate([("1", "1", "1"), ("2", "2", "2"), ("3", "3", "3")]):
        out = tmp_path / f"again-{number}"
        command = [
            sys.executable,
            "-m",
            "electrakit",
            "tokenizer",
            str(corpus),
            "--vocab-size",
            "600",
            "--out",
            str(out),
        ]
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed}
        subprocess.run([*command, "--workers", workers], check=True, env=environment, capture_output=True)
        assert contents(out) == first


def test_special_tokens_come_first_and_the_size_is_as_asked(corpus, tmp_path):
    vocabulary = load_tokenizer(train(corpus, tmp_path / "tokenizer")).vocabulary
    assert vocabulary[:5] == list(SPECIAL_TOKENS.values())
    assert len(vocabulary) == len(set(vocabulary)) == 600


@pytest.mark.parametrize(
    "options", [{}, {"cased": True}, {"keep_accents": True}, {"cased": True, "keep_accents": True}]
)
def test_transformers_opens_it_and_encodes_the_same(corpus, tmp_path, options):
    from transformers import AutoTokenizer

    folder = train(corpus, tmp_path / "tokenizer", **options)
    theirs, ours = AutoTokenizer.from_pretrained(str(folder)), load_tokenizer(folder)
    for text in ("The naïve café, straße!", "Ünder  the\tzebra [MASK] 北京 αβγ", "", "x" * 200):
        assert theirs(text)["input_ids"] == ours.tokenizer.encode(text).ids
    assert theirs("a fox", "the zebra")["token_type_ids"] == ours.tokenizer.encode("a fox", "the zebra").type_ids
    assert {role: getattr(theirs, f"{role}_token_id") for role in SPECIAL_TOKENS} == ours.special_ids
    assert ("É" in theirs.backend_tokenizer.normalizer.normalize_str("É")) == bool(options.get("cased"))


def test_a_vocab_txt_says_by_its_letters_whether_it_is_cased(tmp_path):
    for word, normalised in (("hello", "hello"), ("Hello", "Hello")):
        path = tmp_path / f"{word}.txt"
        path.write_text("\n".join([*SPECIAL_TOKENS.values(), "[unused1]", word, "##x"]) + "\n", encoding="utf-8")
        loaded = load_tokenizer(path)
        assert loaded.tokenizer.encode("Hello", add_special_tokens=False).tokens == [normalised]
        assert loaded.vocabulary[6] == word


def test_folder_json_and_vocabulary_are_the_same_tokenizer(corpus, tmp_path):
    folder = train(corpus, tmp_path / "tokenizer")
    forms = [load_tokenizer(one) for one in (folder, folder / "tokenizer.json", folder / "vocab.txt")]
    assert len({form.fingerprint for form in forms}) == 1
    forms[0].save(tmp_path / "copy")
    files = contents(folder)
    del files["electrakit.json"]
    assert contents(tmp_path / "copy") == files


def test_a_folder_with_only_a_vocabulary_and_its_config_is_enough(corpus, tmp_path):
    folder = train(corpus, tmp_path / "tokenizer", cased=True, keep_accents=True)
    expected = load_tokenizer(folder).fingerprint
    (folder / "tokenizer.json").unlink()
    assert load_tokenizer(folder).fingerprint == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no tokenizer in"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot read the tokenizer"),
        (lambda folder: (folder / "vocab.txt").write_text("[PAD]\na\n"), r"lacks \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        (
            lambda folder: (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS.values(), "a", "a"])),
            "'a' twice",
        ),
    ],
)
def test_a_folder_that_is_no_tokenizer_is_refused_clearly(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_settings_beside_a_tokenizer_that_are_no_json_object_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS.values(), "a"]))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is no JSON object; copy it again, or remove it"):
        load_tokenizer(tmp_path)


def test_a_name_that_is_nowhere_is_refused_clearly():
    code = textwrap.dedent("""
        import electrakit

        for name in ("no/such-tokenizer", "./no/where/at/all"):
            try:
                electrakit.load_tokenizer(name)
            except electrakit.UserError as error:
                print(error)
        """)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert "no tokenizer at 'no/such-tokenizer'" in done.stdout
    assert "no tokenizer at './no/where/at/all'" in done.stdout


def test_a_file_that_is_no_text_is_no_vocabulary(tmp_path):
    for name in ("image.png", "vocab.txt", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff")
        with pytest.raises(UserError, match=rf"{name}' is not a vocabulary, .*; name a folder") as error:
            load_tokenizer(tmp_path / name)
        assert "codec" not in str(error.value)


def hang_up(server: socket.socket, calls: list[str]) -> None:
    """On everybody, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            line, caller = server.accept()
            line.close()
            calls.append(str(caller))


def test_without_a_connection_a_hub_name_is_one_quick_whole_sentence(tmp_path):
    """The hub is an address where whoever calls is hung up on."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    code = "import electrakit; electrakit.load_tokenizer('someone/encoder')"
    with socket.create_server(("127.0.0.1", 0)) as hub:
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        environment |= {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(tmp_path)}
        calls: list[str] = []
        threading.Thread(target=hang_up, args=(hub, calls), daemon=True).start()
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert 1 <= len(calls) <= 2  # a call that is cut off is tried once more; the library alone asks for half a minute
    start = "no tokenizer at 'someone/encoder': there is no such folder or file, and the Hugging Face hub does not give it ("
    line = done.stderr.splitlines()[-1]
    assert start in line and line.endswith("); name a folder, a tokenizer.json or a vocab.txt")
    assert "Retrying" not in done.stderr


def test_a_hub_name_is_read_from_the_hub_cache(corpus, tmp_path, monkeypatch):
    """The hub's own cache layout stands in for the network: the code path is the real one."""
    folder = train(corpus, tmp_path / "tokenizer")
    snapshot = tmp_path / "hub" / "models--someone--encoder" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    for path in folder.iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    code = "import electrakit; print(electrakit.load_tokenizer('someone/encoder').fingerprint)"
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == load_tokenizer(folder).fingerprint


def test_a_tokenizer_with_padding_switched_on_is_read_without(corpus, tmp_path):
    folder = train(corpus, tmp_path / "tokenizer")
    stored = json.loads((folder / "tokenizer.json").read_text())
    before = load_tokenizer(folder).fingerprint
    stored["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    stored["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    assert load_tokenizer(folder).fingerprint == before


def test_an_existing_tokenizer_is_never_overwritten(corpus, tmp_path):
    folder = train(corpus, tmp_path / "tokenizer")
    before = contents(folder)
    with pytest.raises(UserError, match="already holds a tokenizer"):
        train(corpus, folder, vocab_size=700)
    assert contents(folder) == before


def test_a_vocabulary_too_small_for_the_characters_is_refused_with_the_size_that_fits(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(
            f"{chr(0x430 + number % 32)}{chr(0x3B1 + number % 24)}{chr(0x61 + number % 26)} " for number in range(999)
        )
    )
    with pytest.raises(UserError, match=r"--vocab-size 100 is too small for the \d+ different characters") as refusal:
        train(text, tmp_path / "tokenizer", vocab_size=100)
    fitting = int(str(refusal.value).split("use ")[1].split(" ")[0])
    assert len(load_tokenizer(train(text, tmp_path / "tokenizer", vocab_size=fitting)).vocabulary) == fitting


@pytest.mark.parametrize(("text", "smallest"), [("...", 6), ("a a", 7), ("ab ba.", 10)])
def test_a_vocabulary_may_be_as_small_as_the_alphabet(tmp_path, text, smallest):
    (tmp_path / "text.txt").write_text(text)
    vocabulary = load_tokenizer(train(tmp_path, tmp_path / "tokenizer", vocab_size=smallest)).vocabulary
    assert len(vocabulary) == smallest and {*text} - {" "} <= {*vocabulary}
    with pytest.raises(UserError, match=f"--vocab-size must be 6|use {smallest} or more"):
        train(tmp_path / "text.txt", tmp_path / "smaller", vocab_size=smallest - 1)


def test_text_in_which_nothing_can_be_seen_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("\u200b\u200b \u200b", encoding="utf-8")
    with pytest.raises(UserError, match="no usable text"):
        train(tmp_path / "text.txt", tmp_path / "tokenizer")


def test_characters_beyond_the_alphabet_are_left_out_the_rarest_first(corpus, tmp_path):
    vocabulary = load_tokenizer(train(corpus, tmp_path / "tokenizer", max_alphabet=30)).vocabulary
    kept = {token for token in vocabulary if len(token) == 1}
    text = "".join(path.read_text(encoding="utf-8") for path in corpus.iterdir())
    counts = Counter(BertNormalizer().normalize_str(text).replace(" ", ""))
    assert len(kept) == 30
    assert min(counts[one] for one in kept) >= max(count for one, count in counts.items() if one not in kept)


def test_between_equally_frequent_characters_the_lower_code_point_stays():
    import numpy as np

    counts = np.zeros(0x110000, np.int64)
    counts[[ord("z"), ord("b"), ord("a"), ord(" ")]] = [5, 2, 2, 99]
    assert _alphabet(counts, 2) == {"z", "a"}


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=60), cased=st.booleans())
def test_the_fast_way_to_normalise_ascii_equals_the_normalizer(text, cased):
    ours = _normalise(cased, False, [Document([text])], None)
    assert ours == [BertNormalizer(lowercase=not cased).normalize_str(text)]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(max_codepoint=127, exclude_characters="\n"), max_size=60), cased=st.booleans())
def test_every_ascii_control_character_is_normalised_alike(text, cased):
    ours = _normalise(cased, False, [Document([text])], None)
    assert ours == [BertNormalizer(lowercase=not cased).normalize_str(text)]
