"""Unigram and byte-level BPE beside WordPiece: reproducible, without unknown words, the same everywhere, for all scripts."""

import copy
import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from electrakit import UserError, load_tokenizer, prepare
from electrakit.common.word_marks import is_continuation, word_mark
from electrakit.data.encode import Encoder
from electrakit.data.read.formats import Document
from electrakit.data.tokenizer import _normalise
from electrakit.data.tokenizer_kinds import byte_bpe, subword_normalizer, unigram
from electrakit.data.unigram import count_words, digamma, learn_pieces, script_of, smallest_alphabet
from electrakit.objective.masking import is_continuation_table
from tests.helpers.scripts import KINDS, TEXTS, train, write_corpus

SUBWORDS = ("unigram", "bpe")
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
mixed_text = st.lists(
    st.one_of(
        any_text, st.sampled_from([*TEXTS.values(), *SPECIAL, "▁", "<0x41>", "´", "\t", "  ", "\u00a0", "Ġ", "I'm"])
    ),
    max_size=5,
).map("".join)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def folders(corpus, tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("kinds")
    return {kind: train(home / kind, kind, corpus) for kind in KINDS}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- training ---


@pytest.mark.long
@pytest.mark.parametrize("kind", SUBWORDS)
def test_the_same_corpus_gives_the_same_bytes_in_every_process(corpus, folders, tmp_path, kind):
    for number in ("1", "2"):
        out = tmp_path / number
        command = [sys.executable, "-m", "electrakit", "tokenizer", str(corpus), "--kind", kind, "--cased"]
        command += ["--vocab-size", "740", "--out", str(out), "--workers", number]
        environment = {**os.environ, "RAYON_NUM_THREADS": number, "PYTHONHASHSEED": number, "OMP_NUM_THREADS": number}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        assert contents(out) == contents(folders[kind])


@pytest.mark.parametrize("kind", SUBWORDS)
def test_special_tokens_stand_as_in_deberta_and_the_size_is_as_asked(folders, kind):
    loaded = load_tokenizer(folders[kind])
    assert loaded.vocabulary[:4] == SPECIAL[:4] and loaded.vocabulary[-1] == "[MASK]"
    assert len(loaded.vocabulary) == len(set(loaded.vocabulary)) == 740
    assert loaded.kind == kind and loaded.summary == f"{kind} with 740 tokens"
    assert sorted(contents(folders[kind])) == ["electrakit.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bpe", {"vocab_size": 260}, r"--vocab-size 260 is too small for the 256 bytes .*; use 261 or more"),
        (
            "unigram",
            {"vocab_size": 300},
            r"--vocab-size 300 is too small for the \d+ different characters .*; use \d+ or more",
        ),
        ("bpe", {"max_alphabet": 50}, "--max-alphabet 50 has no meaning with --kind bpe"),
        ("sentencepiece", {}, "--kind must be one of wordpiece, unigram, bpe, got 'sentencepiece'"),
        ("bpe", {"vocab_size": 10**7}, "--vocab-size must be 1000000 or less"),
    ],
)
def test_impossible_settings_are_one_line(corpus, tmp_path, kind, changes, message):
    with pytest.raises(UserError, match=message) as error:
        train(tmp_path / "tokenizer", kind, corpus, **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tokenizer" / "tokenizer.json").exists()


@pytest.mark.long
def test_the_size_that_is_said_to_fit_fits(corpus, tmp_path):
    with pytest.raises(UserError) as error:
        train(tmp_path / "none", "unigram", corpus, vocab_size=300)
    smallest = int(str(error.value).split("use ")[1].split(" ")[0])
    assert len(load_tokenizer(train(tmp_path / "fits", "unigram", corpus, vocab_size=smallest)).vocabulary) == smallest
    assert len(load_tokenizer(train(tmp_path / "bytes", "bpe", corpus, vocab_size=261)).vocabulary) == 261


def slow_expected(pieces: dict[str, float], words: dict[str, int]) -> Counter:
    """Expected counts, by listing every way to cut each word."""

    def ways(text: str) -> list[list[str]]:
        if not text:
            return [[]]
        heads = [text[:end] for end in range(1, len(text) + 1) if text[:end] in pieces]
        return [[head, *rest] for head in heads for rest in ways(text[len(head) :])]

    found: Counter = Counter()
    for word, count in words.items():
        cuts = ways(word)
        weights = np.array([np.prod([pieces[piece] for piece in cut]) for cut in cuts])
        for cut, weight in zip(cuts, count * weights / weights.sum(), strict=True):
            for piece in cut:
                found[piece] += weight
    return found


def test_expected_counts_and_losses_are_those_of_every_way_to_cut_the_words():
    from electrakit.data import unigram as trainer

    words = {"▁abab": 3, "▁aba": 2, "cab": 4}
    lattice, texts = trainer._seed(words, {"a", "b", "c", "▁"}, 50, 2)
    probabilities = np.random.default_rng(0).dirichlet(np.ones(len(texts)))
    wanted = slow_expected(dict(zip(texts, probabilities, strict=True)), words)
    assert lattice.expected(probabilities) == pytest.approx([wanted[text] for text in texts])
    losses = trainer._losses(texts, 4, np.log(probabilities), np.ones(len(texts)))
    place = texts.index("aba")
    alternatives = {text: value for text, value in zip(texts, probabilities, strict=True) if text != "aba"}
    a, b = alternatives["a"], alternatives["b"]
    others = a * b * a + alternatives["ab"] * a + a * alternatives["ba"]
    assert losses[place] == pytest.approx(np.log((probabilities[place] + others) / others), abs=1e-5)


def test_frequent_words_are_pieces_and_the_order_of_the_words_does_not_matter():
    words = {"generator": 50, "generate": 40, "discriminator": 30, "zebra": 1}
    alphabet = smallest_alphabet({letter for word in words for letter in word})
    pieces = learn_pieces(words, alphabet, len(alphabet) + 5, 2)
    assert pieces == learn_pieces(dict(reversed(words.items())), alphabet, len(alphabet) + 5, 2)
    texts = [text for text, _ in pieces]
    assert alphabet <= {*texts} and len(texts) == len(alphabet) + 5 and "▁gener" in texts
    assert sum(np.exp(score) for _, score in pieces) == pytest.approx(1, abs=0.05)


def test_pieces_are_cut_into_the_others_in_every_way():
    from electrakit.data import unigram as trainer

    texts = ["a", "b", "▁", "ab", "ba", "▁a", "abab", "▁aba"]
    lattice = trainer._lattice_of_pieces(texts, 3)
    edges = zip(lattice.words.tolist(), lattice.begins.tolist(), lattice.ends.tolist(), lattice.pieces, strict=True)
    found = {
        (texts[3:][word], begin - lattice.starts[word], end - lattice.starts[word], texts[piece])
        for word, begin, end, piece in edges
    }
    assert found == {
        (word, begin, end, word[begin:end])
        for word in texts[3:]
        for begin in range(len(word))
        for end in range(begin + 1, len(word) + 1)
        if word[begin:end] in texts
    }
    kept = lattice.only(np.array([text != "ab" for text in texts]))
    assert len(kept.pieces) == len(lattice.pieces) - 4 and kept.pieces.max() == len(texts) - 2
    weights = np.random.default_rng(0).random(len(lattice.pieces)) * (lattice.pieces != 3)
    for direction in ("forward", "backward"):
        same = getattr(kept, direction)(weights[lattice.pieces != 3])
        assert same == pytest.approx(getattr(lattice, direction)(weights))


def test_of_many_words_a_fair_sample_is_counted():
    """Sentences of a script without spaces are words that occur once: not those of the first letters only."""
    from electrakit.data import unigram as trainer

    texts = [f"the {number:05} the" for number in range(20_000)]
    words, all_words = count_words(texts, max_size=100_000), count_words(texts)
    assert all_words == {"the": 40_000, **{f"{number:05}": 1 for number in range(20_000)}}
    assert words["the"] == 40_000 and len(words) < 2_000
    first = trainer._by_frequency(words)[:300]
    assert first == trainer._by_frequency(all_words)[:300]
    assert 8_000 < np.mean([int(word) for word, _ in first[1:]]) < 12_000


def test_no_piece_mixes_scripts_or_letters_with_digits(folders):
    for token in load_tokenizer(folders["unigram"]).vocabulary:
        if not token.startswith(("[", "<0x")):
            scripts = {script_of(letter) for letter in token.replace("▁", "")} - {""}
            assert len(scripts) <= 1, token


@settings(max_examples=80, deadline=None)
@given(text=mixed_text, cased=st.booleans(), keep=st.booleans(), kind=st.sampled_from(SUBWORDS))
def test_text_is_learned_from_as_it_is_encoded(text, cased, keep, kind):
    text = text.replace("\n", " ")
    wanted = subword_normalizer(kind, cased, keep).normalize_str(text)
    assert _normalise(cased, keep, [Document([text])], None, kind=kind) == [wanted]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_accents_go_and_vowel_signs_stay(kind):
    normalizer = subword_normalizer(kind, False, False)
    for text, wanted in [
        ("Café Ёлка", "cafe елка"),
        ("हिन्दी", "हिन्दी"),
        ("ที่", "ที่"),
        ("がぎ", "がぎ"),
        ("한국", "한국"),
        ("مَدرسة", "مَدرسة"),
    ]:
        assert normalizer.normalize_str(text) == unicodedata.normalize("NFKC" if kind == "unigram" else "NFC", wanted)
    assert subword_normalizer(kind, False, True).normalize_str("Café") == "café"
    assert subword_normalizer(kind, True, False).normalize_str("Café") == "Café"


# --- encoding ---


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("kind", SUBWORDS)
def test_every_script_is_encoded_without_unknowns_and_comes_back(folders, kind, script):
    loaded = load_tokenizer(folders[kind])
    for text in (TEXTS[script], TEXTS[script] + " \ue000𒀀 ꙮ"):  # characters that it never saw
        ids = loaded.tokenizer.encode(text, add_special_tokens=False).ids
        wanted = unicodedata.normalize("NFKC" if kind == "unigram" else "NFC", text)
        assert loaded.special_ids["unk"] not in ids and loaded.tokenizer.decode(ids) == wanted


@settings(max_examples=60, deadline=None)
@given(text=mixed_text, other=any_text.filter(bool))
def test_transformers_gives_the_same_ids(folders, text, other):
    for kind in SUBWORDS:
        ours, theirs = load_again(folders[kind])
        assert theirs(text)["input_ids"] == ours.encode(text).ids
        pair = ours.encode(text, other)
        found = theirs(text, other)
        assert (found["input_ids"], found["token_type_ids"]) == (pair.ids, pair.type_ids)


def load_again(folder: Path, cache: dict = {}):  # noqa: B006  # loaded once
    if folder not in cache:
        cache[folder] = load_tokenizer(folder).tokenizer, AutoTokenizer.from_pretrained(str(folder))
    return cache[folder]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["DebertaV2TokenizerFast", "XLMRobertaTokenizer", "RobertaTokenizerFast", "BertTokenizer"]
)
def test_transformers_gives_the_same_ids_whatever_class_a_tokenizer_came_with(folders, tmp_path, kind, name):
    """The classes of transformers 5 build the rules of their family, and ignore those of tokenizer.json."""
    stored = json.loads((folders[kind] / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**stored, "tokenizer_class": name}))
    (tmp_path / "tokenizer.json").write_bytes((folders[kind] / "tokenizer.json").read_bytes())
    loaded = load_tokenizer(tmp_path)
    loaded.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    for text in TEXTS.values():
        assert theirs(text)["input_ids"] == loaded.tokenizer.encode(text).ids


def test_wordpiece_with_other_rules_than_berts_opens_with_these(folders, tmp_path):
    stored = json.loads((folders["wordpiece"] / "tokenizer.json").read_text())
    stored["normalizer"], stored["pre_tokenizer"] = None, {"type": "WhitespaceSplit"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    loaded = load_tokenizer(tmp_path)
    loaded.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    for text in TEXTS.values():
        assert theirs(text)["input_ids"] == loaded.tokenizer.encode(text).ids


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(mixed_text, max_size=4))
def test_the_encoder_gives_the_ids_of_tokenizers_and_no_special_token(folders, lines):
    for kind in SUBWORDS:
        encoder, truth, special = encoder_of(folders[kind])
        ids, counts = encoder.encode(lines)
        wanted = [encoding.ids for encoding in truth.encode_batch(lines, add_special_tokens=False)]
        assert [part.tolist() for part in np.split(ids, counts.cumsum()[:-1])][: len(lines)] == wanted
        assert not np.isin(ids, special).any()


def encoder_of(folder: Path, cache: dict = {}):  # noqa: B006  # loaded once
    if folder not in cache:
        loaded = load_tokenizer(folder)
        truth = copy.deepcopy(loaded.tokenizer)
        truth.encode_special_tokens = True
        cache[folder] = Encoder(loaded.json), truth, [*loaded.special_ids.values()]
        assert cache[folder][0]._words is not None
    return cache[folder]


def test_a_foreign_unigram_cannot_put_special_tokens_into_rows(folders):
    stored = json.loads((folders["unigram"] / "tokenizer.json").read_text())
    for piece in stored["model"]["vocab"]:
        if piece[0] in SPECIAL:
            piece[1] = 0.0  # as in converted SentencePiece models
    ids, _ = Encoder(json.dumps(stored)).encode(["a[SEP]b [MASK]"])
    assert not {0, 1, 2, 739} & {*ids.tolist()} and 3 in ids


# --- whole words ---


def words_of(folder: Path, text: str) -> list[str]:
    loaded = load_tokenizer(folder)
    encoding = loaded.tokenizer.encode(text, add_special_tokens=False)
    table = is_continuation_table(loaded.tokenizer.get_vocab())
    words: list[list[int]] = []
    for number in encoding.ids:
        if table[number] and words:
            words[-1].append(number)
        else:
            words.append([number])
    return [loaded.tokenizer.decode(word) for word in words]


@pytest.mark.parametrize("kind", SUBWORDS)
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("unhappily the owners", ["unhappily", "the", "owners"]),
        ("cafés, golf!", ["cafés", ",", "golf", "!"]),
        ("мягкость ёлки", ["мягкость", "ёлки"]),
        ("العالمية نصي", ["العالمية", "نصي"]),
        ("दुनियावी हिन्दीवाला", ["दुनियावी", "हिन्दीवाला"]),
        ("𒀀𒀁 xyz", ["", "𒀀", "𒀁", "xyz"]),  # bytes: the space stands alone, and F0 may also begin a symbol
    ],
)
def test_whole_words_are_what_stands_between_spaces_and_symbols(folders, kind, text, wanted):
    assert words_of(folders[kind], text) == wanted


@pytest.mark.parametrize("kind", SUBWORDS)
@pytest.mark.parametrize("script", ["thai", "chinese", "japanese"])
def test_without_spaces_no_word_is_longer_than_a_token_of_whole_characters(folders, kind, script):
    loaded = load_tokenizer(folders[kind])
    text = TEXTS[script][::-1]  # unknown phrases: nearly each character is a token, or several bytes
    words = words_of(folders[kind], text)
    assert len(words) > len(text) / 3 and not any("�" in word for word in words)
    assert "".join(words).replace(" ", "") == loaded.tokenizer.decode(loaded.tokenizer.encode(text).ids).replace(
        " ", ""
    )


def test_marks_of_vocabularies_are_recognised(folders):
    marks = {kind: word_mark(load_tokenizer(folder).vocabulary) for kind, folder in folders.items()}
    assert marks == {"wordpiece": "##", "unigram": "▁", "bpe": "Ġ"}
    assert word_mark(["[PAD]", "##", "###", "▁", "日", "本"]) == "▁"  # hardly a space in the corpus
    assert word_mark(["[PAD]", "▁", "##▁", "a", "##a"]) == "##"  # a corpus of SentencePiece tokens
    assert word_mark(["a", "b"]) == "##"
    assert [is_continuation(token, "▁") for token in ("▁a", "a", ",", "日", "<0x80>", "<0xE4>", "\u0301", "<s>")] == [
        *(False, True, False, False, True, False, True, False)
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_vocabulary_of_128_thousand_is_written_and_read(tmp_path, kind):
    texts = [f"x{number:x}" for number in range(127_700)]
    if kind == "unigram":
        made = unigram([("▁", -1.0), *((text, -9.0) for text in texts)], True, True)
    else:
        made = byte_bpe(["Ġ", "Ċ", *texts], [], True, True)
    made.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == made.fingerprint and len(made.vocabulary) > 127_700


# --- bad input ---


CHANGES = (None, -1, 10**9, 1.5, "x", "", True, [], {}, [[1]], "remove")


def mutations(value, path=()):
    """Every field of a JSON value, replaced by values of other types and removed."""
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from mutations(value[name], (*path, name))
    elif isinstance(value, list):
        for place in range(min(len(value), 2)):
            yield from mutations(value[place], (*path, place))


def mutated(content, path, change):
    content = copy.deepcopy(content)
    if not path:
        return change
    place = content
    for name in path[:-1]:
        place = place[name]
    if change == "remove":
        del place[path[-1]]
    else:
        place[path[-1]] = change
    return content


def tiny(kind: str):
    if kind == "unigram":
        return unigram([("▁a", -1.0), ("b", -2.0)], True, True)
    return byte_bpe(["Ġ", "Ċ", "a", "Ġa"], [("Ġ", "a")], False, False)


@pytest.mark.promise("Tokenizers", "every field of tokenizer.json damaged", "one line, or harmless")
@pytest.mark.parametrize("kind", ["wordpiece", *SUBWORDS])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("changes_per_field", [1, pytest.param(len(CHANGES), marks=pytest.mark.long)])
def test_any_damaged_field_is_one_line_or_does_no_harm(folders, tmp_path, kind, name, changes_per_field):
    if kind == "wordpiece":
        folder = folders[kind]
        stored = load_tokenizer(folder)
        content = json.loads(stored.json)
        content["model"]["vocab"] = {
            **{token["content"]: token["id"] for token in content["added_tokens"]},
            "a": 5,
            "##a": 6,
        }
        files = {"tokenizer.json": content, "tokenizer_config.json": stored.config}
    else:
        made = tiny(kind)
        files = {"tokenizer.json": json.loads(made.json), "tokenizer_config.json": made.config}
    for each, content in files.items():
        (tmp_path / each).write_text(json.dumps(content), encoding="utf-8")
    load_tokenizer(tmp_path)
    num_refused = 0
    for number, path in enumerate(mutations(files[name])):
        if path[:2] == ("model", "vocab") and len(path) > 2 and str(path[2]).startswith("<0x"):
            continue
        for change in (CHANGES + CHANGES)[number % len(CHANGES) :][:changes_per_field]:
            if change == "remove" and not path:
                continue
            (tmp_path / name).write_text(json.dumps(mutated(files[name], path, change)), encoding="utf-8")
            try:
                loaded = load_tokenizer(tmp_path)
                loaded.for_length(64).fingerprint  # noqa: B018
                Encoder(loaded.json).encode(["a b", "日"])
            except UserError as error:
                num_refused += 1
                assert "\n" not in str(error) and str(tmp_path) in str(error)
    assert num_refused > 3


@pytest.mark.parametrize("kind", SUBWORDS)
def test_shards_of_another_kind_are_refused_by_name(folders, corpus, tmp_path, kind):
    made = prepare([corpus], tokenizer=folders["wordpiece"], out=tmp_path / "shards", length=32, workers=1)
    with pytest.raises(UserError, match=rf"tokenizer wordpiece with \d+ tokens -> {kind} with 740 tokens"):
        prepare([corpus], tokenizer=folders[kind], out=made, length=32, workers=1)


def test_digamma_is_scipys():
    values = np.concatenate([np.linspace(0.5, 20, 400), np.logspace(1, 9, 100)])
    np.testing.assert_allclose(digamma(values), scipy.special.digamma(values), rtol=0, atol=1e-12)
