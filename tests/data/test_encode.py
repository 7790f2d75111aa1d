"""Encoder: the same ids as `tokenizers`, whatever the text, with and without tokie."""

import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from electrakit.data import encode, encode_fast
from electrakit.data.encode import Encoder
from electrakit.data.encode_fast import AGREED_RANGES, IS_AGREED, MAX_FAST_CHARS, fast_lines, slow_path_notice

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
AGREED = [chr(code) for first, last in AGREED_RANGES for code in range(first, last + 1)]
MIXED = (
    "The quick brown fox, naïve café Ångström İstanbul ΣΊΣΥΦΟΣ σίσυφος Москва ёлка Việt Nam œuvre straße ﬁne "
    "한국어 日本語 カタカナ עברית العربية हिन्दी “quoted” – 1,234.5 € ½ ∑∞≠→ 𝔘𝔫𝔦 😀 e\u0301 o\u0323\u0302 [SEP] sep mask"
)
SHARED = Path(__file__).parents[3] / "shared" / "data"
BERT_VOCAB = SHARED / "bert-base-uncased-vocab.txt"
REAL_TEXT = SHARED / "text.tar.xz"


def bert_like(vocab: dict[str, int], lowercase: bool = True, **changes) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**{"lowercase": lowercase, "strip_accents": None, **changes})
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


@cache
def trained(lowercase: bool) -> str:
    """Pieces of several characters, and unknown characters: trained on a mixed-script string and ASCII letters."""
    tokenizer = bert_like({token: number for number, token in enumerate(SPECIAL)}, lowercase)
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([MIXED, "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ [](){}!?.,;"], trainer)
    return tokenizer.to_str()


@cache
def by_character(lowercase: bool) -> str:
    """Every character below U+3100 is a piece: any difference in cleaning or splitting shows in the ids."""
    characters = [chr(code) for code in range(0x21, 0x3100) if not chr(code).isspace()]
    pieces = dict.fromkeys([*SPECIAL, *characters, *("##" + character for character in characters)])
    return bert_like({piece: number for number, piece in enumerate(pieces)}, lowercase).to_str()


@cache
def both(kind: str, lowercase: bool) -> tuple[Encoder, Tokenizer]:
    text = {"trained": trained, "by_character": by_character}[kind](lowercase)
    truth = Tokenizer.from_str(text)
    truth.encode_special_tokens = True
    encoder = Encoder(text)
    assert encoder.is_fast
    return encoder, truth


def expected(truth: Tokenizer, lines: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in truth.encode_batch(lines, add_special_tokens=False)]


def as_lists(result: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    ids, counts = result
    assert (ids.dtype, counts.dtype) == (np.uint32, np.int64)
    assert counts.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, counts.cumsum()[:-1])] if len(counts) else []


def assert_equals_tokenizers(lines: list[str]) -> None:
    for kind in ("trained", "by_character"):
        for lowercase in (True, False):
            encoder, truth = both(kind, lowercase)
            assert as_lists(encoder.encode(lines)) == expected(truth, lines)
            assert encoder.is_fast and not encoder.warning


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
agreed_text = st.text(st.sampled_from(AGREED), max_size=60)
plain_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)
tricky = st.sampled_from(
    [*SPECIAL, "[sep]", "[S\u00adEP]", "a" * 101, "é" * 100, "e\u0301" * 60, "ΑΣ", "İ", "日本", "\x7f", " "]
)
tricky_text = st.lists(st.one_of(tricky, st.sampled_from(AGREED)), max_size=12).map("".join)
lines_of_text = st.lists(st.one_of(any_text, agreed_text, plain_text, tricky_text), max_size=8)


@pytest.mark.long
@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(lines_of_text)
def test_ids_are_those_of_tokenizers_for_any_text(lines):
    assert_equals_tokenizers(lines)


@pytest.mark.long
@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(agreed_text, tricky_text), min_size=1, max_size=8))
def test_ids_are_those_of_tokenizers_on_the_agreed_set(lines):
    assert_equals_tokenizers(lines)


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_agreed_code_point_agrees_in_every_context(lowercase):
    contexts = ["{}", "a{}b", "{}{}", ".{}.", "a\u0301{}", "a{}\u0301", "o\u0323{}\u0302", "Σ{}", "{}Σ", "İ{}", "1{} "]
    encoder, truth = both("by_character", lowercase)
    for context in contexts:
        lines = [context.replace("{}", character) for character in AGREED]
        assert fast_lines(lines, SPECIAL).all()
        fast, counts = encoder._tokie.encode_batch_flat(lines, add_special_tokens=False)
        assert as_lists((fast, counts.astype(np.int64))) == expected(truth, lines), context


@cache
def without_tokie(kind: str, lowercase: bool, **changes: bool) -> tuple[Encoder, Tokenizer]:
    if changes:
        text = bert_like(Tokenizer.from_str(trained(lowercase)).get_vocab(), lowercase, **changes).to_str()
    else:
        text = {"trained": trained, "by_character": by_character}[kind](lowercase)
    truth = Tokenizer.from_str(text)
    truth.encode_special_tokens = True
    encoder = Encoder(text, fast=False)
    assert encoder._words is not None
    return encoder, truth


@pytest.mark.long
@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(lines_of_text)
def test_ids_that_are_remembered_by_word_are_those_of_tokenizers_for_any_text(lines):
    for kind in ("trained", "by_character"):
        for lowercase in (True, False):
            encoder, truth = without_tokie(kind, lowercase)
            assert as_lists(encoder.encode(lines)) == expected(truth, lines)
    for change in ({"strip_accents": False}, {"clean_text": False}, {"handle_chinese_chars": False}):
        encoder, truth = without_tokie("trained", True, **change)
        assert as_lists(encoder.encode(lines)) == expected(truth, lines)


@pytest.mark.long
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_space_separates_whatever_code_point_stands_beside_it(lowercase):
    encoder, truth = without_tokie("by_character", lowercase)
    codes = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 61)]  # beyond: ideographs, private use
    lines = [
        "".join(f"a{chr(code)} {chr(code)}b " for code in codes[start : start + 50])
        for start in range(0, len(codes), 50)
    ]
    for start in range(0, len(lines), 2000):
        block = lines[start : start + 2000]
        assert as_lists(encoder.encode(block)) == expected(truth, block)


def test_what_is_remembered_is_bounded_and_does_not_change_the_ids(monkeypatch):
    monkeypatch.setattr(encode, "MAX_CACHE_BYTES", 20_000)
    monkeypatch.setattr(encode, "BLOCK_CHARS", 500)
    encoder = Encoder(trained(True), fast=False)
    lines = [f"word{number} fox {number % 7} quick" for number in range(400)]
    assert as_lists(encoder.encode(lines)) == expected(both("trained", True)[1], lines)
    assert encoder._words.num_bytes < 40_000  # of about 70,000 if nothing were forgotten


def test_agreed_set_is_bmp_text_without_surrogates_or_private_use():
    agreed = np.flatnonzero(IS_AGREED)
    assert len(agreed) == len(AGREED) and agreed.max() < 0xD800


def test_a_special_token_written_in_the_text_is_ordinary_text():
    encoder, truth = both("trained", True)
    lines = [f"a {token} b{token}" for token in SPECIAL] + ["plain line", "[SEP", "SEP]"]
    assert fast_lines(lines, SPECIAL).tolist() == [False] * 5 + [True] * 3  # not one made of the ends of two lines
    reserved = [truth.token_to_id(token) for token in SPECIAL if token != "[UNK]"]
    ids, _ = encoder.encode(lines)
    assert not np.isin(ids, reserved).any()
    assert_equals_tokenizers(lines)


def test_words_over_100_characters_agree_whatever_their_bytes():
    words = ["a", "é", "e\u0301", "я", "ß", "İ", "日", "한", "ñb", "\u00ad"]
    assert_equals_tokenizers(
        [f"x{word * times} y" for word in words for times in (33, 49, 50, 51, 98, 99, 100, 101, 200)]
    )


def test_lines_that_tokie_would_cut_take_the_slow_path():
    lines = ["é" * 64_000, "a" * 64_000, "é " * 32_000, "x" * (MAX_FAST_CHARS + 1), "ab " * (MAX_FAST_CHARS // 3)]
    assert fast_lines(lines, SPECIAL).tolist() == [False, False, False, False, True]
    for line in lines:
        assert_equals_tokenizers([line])


def test_empty_lines_keep_their_place():
    assert_equals_tokenizers([])
    assert_equals_tokenizers([""])
    assert_equals_tokenizers(["", "日本", "", "fox", " ", "", "[SEP]", ""])


def test_lone_surrogates_count_as_the_replacement_character():
    encoder, truth = both("trained", True)
    lines = ["a\ud800b", "fox", "\udfff", "\ud83d\ude00 smile"]
    assert as_lists(encoder.encode(lines)) == expected(truth, ["a\ufffdb", "fox", "\ufffd", "😀 smile"])


def test_fast_and_slow_are_equal_over_many_batches():
    generator = np.random.default_rng(0)
    words = [*MIXED.split(), "".join(AGREED[100:140]), "the", "of", "and", "[CLS]"]
    lines = [" ".join(generator.choice(words, generator.integers(0, 60))) for _ in range(4000)]
    lines += [" ".join(generator.choice(words[:9], 40)) for _ in range(4000)]
    encoder, _ = both("trained", False)
    slow = Encoder(trained(False), fast=False)
    assert not slow.is_fast
    assert as_lists(encoder.encode(lines)) == as_lists(slow.encode(lines))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("clean_text", [True, False])
@pytest.mark.parametrize("handle_chinese_chars", [True, False])
def test_every_bert_normalizer_gives_the_ids_of_tokenizers(lowercase, strip_accents, clean_text, handle_chinese_chars):
    vocab = Tokenizer.from_str(by_character(lowercase)).get_vocab()
    options = {"strip_accents": strip_accents, "clean_text": clean_text, "handle_chinese_chars": handle_chinese_chars}
    truth = bert_like(vocab, lowercase, **options)
    truth.encode_special_tokens = True
    encoder = Encoder(truth.to_str())
    assert encoder.is_fast == (clean_text and handle_chinese_chars and strip_accents in (None, lowercase))
    lines = [MIXED, MIXED.upper(), "a\x00b\x1fc\u00add", *AGREED]
    assert as_lists(encoder.encode(lines)) == expected(truth, lines)


def with_gaps() -> Tokenizer:
    return bert_like({piece: 2 * number for piece, number in Tokenizer.from_str(trained(True)).get_vocab().items()})


def with_an_added_word() -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained(True))
    tokenizer.add_tokens(["quick fox"])
    return tokenizer


def with_another_splitter() -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained(True))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def with_no_normalizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "fox": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("build", [with_gaps, with_an_added_word, with_another_splitter, with_no_normalizer])
def test_a_tokenizer_tokie_is_not_known_to_follow_is_left_to_tokenizers(build):
    truth = build()
    truth.encode_special_tokens = True
    encoder = Encoder(truth.to_str())
    assert not encoder.is_fast
    lines = [MIXED, "a QUICK FOX", ""]
    assert as_lists(encoder.encode(lines)) == expected(truth, lines)


def test_padding_and_truncation_of_the_file_do_not_apply():
    tokenizer = Tokenizer.from_str(trained(True))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    lines = [MIXED, "the quick brown fox", ""]
    _, truth = both("trained", True)
    assert as_lists(Encoder(tokenizer.to_str()).encode(lines)) == expected(truth, lines)


def other_tokie():
    """A real tokie tokenizer with another vocabulary, so that it differs from the truth."""
    return Encoder(by_character(True))._tokie


def test_audit_of_the_first_lines_switches_the_fast_path_off():
    encoder, truth = Encoder(trained(True)), both("trained", True)[1]
    encoder._tokie = other_tokie()
    lines = ["the quick brown fox " * 20, "日本", "the"]
    assert as_lists(encoder.encode(lines)) == expected(truth, lines)
    assert not encoder.is_fast
    warning = encoder.warning
    assert "the quick brown fox" in warning and len(warning) < 400
    assert as_lists(encoder.encode(lines)) == expected(truth, lines)
    assert encoder.warning == warning


def test_what_is_audited_does_not_depend_on_earlier_calls():
    lines = ["日本" if number < 3000 else "the quick brown fox" for number in range(4000)]
    for num_before in (0, 1, 500, 900):
        encoder = Encoder(trained(True))
        audited, slow = [], encoder._encode_by_reference
        encoder.encode(["the quick brown fox"] * num_before)
        encoder._encode_by_reference = lambda some, audited=audited, slow=slow: audited.append(some) or slow(some)
        encoder.encode([f"fox {number}" for number in range(2500)])
        assert audited == [[f"fox {number}" for number in (0, 1, 2, 3, 1000, 2000)]]
    encoder._tokie = other_tokie()
    assert as_lists(encoder.encode(lines)) == expected(both("trained", True)[1], lines)
    assert not encoder.is_fast


def test_versions_that_were_not_compared_take_the_slow_path_and_a_line_says_so(monkeypatch):
    assert Encoder(trained(True)).is_fast and slow_path_notice(trained(True)) == ""
    monkeypatch.setattr(encode_fast, "AGREED_VERSIONS", {("0.1.3", "0.23.3"), ("0.1.4", "0.23.4")})
    notice = slow_path_notice(trained(True))
    assert "2.7 times" in notice and "tokie==0.1.3 tokenizers==0.23.3" in notice and "\n" not in notice
    assert slow_path_notice(with_gaps().to_str()) == ""  # another version would not help this tokenizer
    encoder = Encoder(trained(True))
    assert not encoder.is_fast and not encoder.warning
    assert as_lists(encoder.encode([MIXED])) == expected(both("trained", True)[1], [MIXED])


def test_works_without_tokie():
    program = f"""
import sys
sys.modules["tokie"] = None  # import tokie raises ImportError
from electrakit.data.encode import Encoder
encoder = Encoder(sys.stdin.read())
assert not encoder.is_fast and not encoder.warning
print(encoder.encode([{MIXED!r}, "", "the quick fox"])[0].tolist())
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=trained(True),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert result.stdout.strip() == str(Encoder(trained(True)).encode([MIXED, "", "the quick fox"])[0].tolist())


def test_loading_leaves_the_processors_of_this_process_alone():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no processor affinity on this system")
    before = os.sched_getaffinity(0)
    Encoder(trained(True))
    assert os.sched_getaffinity(0) == before


def real_lines(num_files: int = 4) -> dict[str, list[str]]:
    """The starts of some books and of some Wikipedia files."""
    lines: dict[str, list[str]] = {}
    num_of_folder = dict.fromkeys(("gutenberg", "wiki_extracted"), 0)
    with tarfile.open(REAL_TEXT, "r|xz") as archive:
        for member in archive:
            folder = Path(member.name).parent.name
            if member.isfile() and num_of_folder.get(folder, num_files) < num_files:
                num_of_folder[folder] += 1
                text = archive.extractfile(member).read().decode("utf-8")
                lines.setdefault(folder, []).extend(text.splitlines()[:1500])
            if min(num_of_folder.values()) == num_files:
                break
    return lines


@pytest.mark.skipif(not (BERT_VOCAB.exists() and REAL_TEXT.exists()), reason=f"no real text in {SHARED}")
def test_real_text_takes_the_fast_path_and_agrees():
    vocab = {token: number for number, token in enumerate(BERT_VOCAB.read_text(encoding="utf-8").splitlines())}
    truth = bert_like(vocab)
    truth.encode_special_tokens = True
    encoder = Encoder(truth.to_str())
    for lines in real_lines().values():
        assert len(lines) > 1000
        assert fast_lines(lines, SPECIAL).mean() > 0.99
        assert as_lists(encoder.encode(lines)) == expected(truth, lines)
    assert encoder.is_fast and not encoder.warning
