"""SentencePiece models, written here field by field: read as the format says, and damage is one line."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from electrakit import UserError, load_tokenizer
from electrakit.data.encode import Encoder

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PIECES = [
    ("▁", -3.0),
    ("▁he", -4.0),
    ("l", -5.0),
    ("lo", -4.5),
    ("o", -5.0),
    ("h", -6.0),
    ("e", -6.0),
    ("▁hello", -20.0),
]
DEBERTA = [("[PAD]", 0.0, CONTROL), ("[CLS]", 0.0, CONTROL), ("[SEP]", 0.0, CONTROL), ("[UNK]", 0.0, UNKNOWN)]
ALBERT = [
    ("<pad>", 0.0, CONTROL),
    ("<unk>", 0.0, UNKNOWN),
    ("[CLS]", 0.0, CONTROL),
    ("[SEP]", 0.0, CONTROL),
    ("[MASK]", 0.0, CONTROL),
]


def varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def charsmap(source: str, target: str) -> bytes:
    """The double array of one rule: a two-byte character becomes another."""
    first, second = source.encode()
    units = np.zeros(2048, np.uint32)
    units[0] = 256 << 10
    place = 256 ^ first
    units[place] = first | 512 << 10
    place ^= 512 ^ second
    units[place] = second | 1 << 8 | 1024 << 10
    units[place ^ 1024] = 1 << 31  # the rule's target is the first of the strings
    return struct.pack("<I", units.nbytes) + units.tobytes() + target.encode() + b"\0"


def write(path, special, pieces=PIECES, model_type=1, rules=b"", more=b""):
    entries = [*special, *((text, score, NORMAL) for text, score in pieces)]
    content = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + (field(3, role) if role != NORMAL else b""))
        for text, score, role in entries
    )
    path.write_bytes(
        content + field(2, field(3, model_type) + field(4, len(entries)) + more) + field(3, field(1, b"x") + rules)
    )
    return path


def tokens(loaded, text):
    return loaded.tokenizer.encode(text, add_special_tokens=False).tokens


def best_cut(text: str) -> float:
    """The highest score of all ways to cut a text into pieces."""
    scores = dict(PIECES)
    best = [0.0] + [-np.inf] * len(text)
    for end in range(1, len(text) + 1):
        best[end] = max(
            (best[start] + scores[text[start:end]] for start in range(end) if text[start:end] in scores),
            default=-np.inf,
        )
    return best[-1]


def test_a_unigram_model_of_deberta_gets_its_mask_at_the_end(tmp_path):
    loaded = load_tokenizer(write(tmp_path / "spm.model", DEBERTA))
    assert loaded.special_ids == {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": 4 + len(PIECES)}
    assert tokens(loaded, "hello  hello ") == ["▁he", "l", "lo", "▁he", "l", "lo"]
    assert tokens(loaded, "hexx") == ["▁he", "xx"]
    assert loaded.tokenizer.encode("hexx", add_special_tokens=False).ids[-1] == 3
    assert load_tokenizer(tmp_path).fingerprint == loaded.fingerprint  # by its folder


def test_albert_names_its_own(tmp_path):
    loaded = load_tokenizer(write(tmp_path / "spiece.model", ALBERT))
    assert loaded.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert loaded.config["pad_token"] == "<pad>"


@settings(max_examples=50, deadline=None)
@given(text=st.text("helo ", max_size=20))
def test_the_best_cut_is_found(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "one.model"
    loaded = load_tokenizer(path if path.exists() else write(path, DEBERTA))
    scores = dict(PIECES)
    words = text.split()
    found = sum(scores[token] for token in tokens(loaded, text))
    assert found == pytest.approx(sum(best_cut(f"▁{word}") for word in words))


@pytest.mark.parametrize("kind", [1, 2])
def test_saved_it_opens_with_transformers_and_gives_the_same_ids(tmp_path, kind):
    special = [*DEBERTA, ("<new>", 0.0, USER_DEFINED), *((f"<0x{number:02X}>", 0.0, BYTE) for number in range(256))]
    loaded = load_tokenizer(write(tmp_path / "spm.model", special, model_type=kind, rules=field(2, charsmap("é", "e"))))
    loaded.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    assert load_tokenizer(tmp_path / "saved").fingerprint == loaded.fingerprint
    for text in ("héllo [MASK] hell<new>o", "日本 x", "<0x41> <s>", " "):
        assert theirs(text)["input_ids"] == loaded.tokenizer.encode(text).ids
    assert tokens(loaded, "hé") == (["▁he"] if kind == 1 else ["▁", "h", "e"])
    assert loaded.tokenizer.token_to_id("<new>") in theirs("hell<new>o")["input_ids"]
    ids, _ = Encoder(loaded.json).encode(["日[SEP]<0x41>"])
    assert not {0, 1, 2, loaded.special_ids["mask"]} & {*ids.tolist()}


def test_bpe_merges_by_score(tmp_path):
    pieces = [("▁h", -0.0), ("ll", -1.0), ("el", -2.0), ("ell", -3.0), *((one, -9.0) for one in "▁helo")]
    loaded = load_tokenizer(write(tmp_path / "spm.model", DEBERTA, pieces, model_type=2))
    assert tokens(loaded, "hello") == ["▁h", "ell", "o"]  # ▁+h, l+l, then e+ll
    assert loaded.kind == "bpe"


def test_flags_of_the_normalizer_are_followed(tmp_path):
    plain = load_tokenizer(write(tmp_path / "a.model", DEBERTA, rules=field(3, 0) + field(4, 0)))
    assert tokens(plain, "hello  he") == ["h", "e", "l", "lo", "▁", "▁he"]


@pytest.mark.promise("Tokenizers", "damaged spm.model", "one line")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-3], r"damaged \(it ends at byte \d+, inside a field\)"),
        (lambda content: b"", "it has no pieces"),
        (lambda content: b"hello, this is text", "no SentencePiece model, or damaged"),
        (lambda content: b"\x0b" + content, "wire type 3"),
        (lambda content: content + field(1, field(1, b"[PAD]")), "a piece twice"),
        (lambda content: content + field(1, field(1, b"y") + field(3, UNKNOWN)), "2 unknown pieces"),
        (lambda content: content + field(2, field(3, 4)), "model type is char; unigram and bpe"),
        (lambda content: content + field(2, field(24, 1)), "spaces after words"),
        (lambda content: content + field(3, field(2, b"\xff\xff\xff\xff")), "cannot read the tokenizer"),
        (lambda content: content + field(1, field(1, b"\xff\xfe")), "damaged|not a vocabulary"),
        (lambda content: content + field(1, field(1, 7)), "field 1 is int, not bytes"),
    ],
)
def test_a_damaged_model_is_one_line(tmp_path, change, message):
    path = write(tmp_path / "spm.model", DEBERTA)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value) and "spm.model" in str(error.value)


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_any_changed_byte_is_one_line_or_does_no_harm(tmp_path_factory, place, value):
    path = tmp_path_factory.getbasetemp() / "changed.model"
    content = bytearray(write(path, DEBERTA, rules=field(2, charsmap("é", "e"))).read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    try:
        Encoder(load_tokenizer(path).json).encode(["héllo", "日"])
    except UserError as error:
        assert "\n" not in str(error)
