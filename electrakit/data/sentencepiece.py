"""A SentencePiece .model in, a tokenizer out: unigram and BPE with their normalizer, without the sentencepiece package.

The file is a protocol buffer (sentencepiece_model.proto): numbered fields, of which a handful are read here.
"""

import struct
from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from electrakit.common.errors import UserError
from electrakit.data.tokenizer_kinds import NEVER, TokenizerFiles, finished, metaspace_decoder

SPACE = "▁"
UNIGRAM, BPE_MODEL = 1, 2
MODEL_TYPES = {UNIGRAM: "unigram", BPE_MODEL: "bpe", 3: "word", 4: "char"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NAMES = {"pad": ("[PAD]", "<pad>"), "cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>"), "mask": ("[MASK]", "<mask>")}
"""By which a model may call its special tokens; those it does not have are added at the end, by the first of these."""


def from_sentencepiece(content: bytes, config: dict[str, Any]) -> TokenizerFiles:
    """The tokenizer of a .model file's content; `config` is that of the tokenizer_config.json beside it, or empty."""
    try:
        model = _fields(content)
        pieces = [_piece(_fields(entry)) for entry in model.get(1, [])]
        trainer, rules = (_fields(_last(model, number, b"")) for number in (2, 3))
        kind = _last(trainer, 3, UNIGRAM)
        charsmap = _last(rules, 2, b"")
        texts = [text for text, _, _ in pieces]
    except (ValueError, IndexError, struct.error, AttributeError, TypeError) as error:
        raise UserError(f"it is no SentencePiece model, or damaged ({error})") from None
    if not pieces:
        raise UserError("it is no SentencePiece model, or damaged (it has no pieces)")
    if kind not in (UNIGRAM, BPE_MODEL):
        raise UserError(f"its model type is {MODEL_TYPES.get(kind, kind)}; unigram and bpe can be read")
    if _last(trainer, 24, 0):
        raise UserError("it writes spaces after words, not before them, which cannot be read")
    if len(set(texts)) < len(texts):
        raise UserError("it has a piece twice: it is damaged")
    unknown = [number for number, (_, _, role) in enumerate(pieces) if role == UNKNOWN]
    if len(unknown) != 1:
        raise UserError(f"it has {len(unknown)} unknown pieces, not one: it is damaged")

    make = _unigram if kind == UNIGRAM else _bpe
    tokenizer = Tokenizer(make(pieces, unknown[0]))
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if config.get("do_lower_case"):
        steps.append(normalizers.Lowercase())
    if _last(rules, 4, 1):  # remove_extra_whitespaces
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    defined = [text for text, _, role in pieces if role == USER_DEFINED]
    prefix = ("first" if defined else "always") if _last(rules, 3, 1) else "never"  # add_dummy_prefix
    is_split = not any(SPACE in text[1:] for text, _, role in pieces if role == NORMAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prefix, is_split)
    tokenizer.decoder = metaspace_decoder()
    names = {role: next((name for name in names if name in texts), names[0]) for role, names in NAMES.items()}
    controls = [text for text, _, role in pieces if role == CONTROL and text not in names.values()]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in defined if text not in names.values()])
    return finished(tokenizer, {**names, "unk": texts[unknown[0]]})


def _unigram(pieces: list[tuple[str, float, int]], unknown: int) -> Unigram:
    """Only normal and user-defined pieces are found in text."""
    is_text = (NORMAL, USER_DEFINED)
    vocabulary = [(text, score if role in is_text else NEVER) for text, score, role in pieces]
    return Unigram(vocabulary, unk_id=unknown, byte_fallback=_has_bytes(pieces))


def _bpe(pieces: list[tuple[str, float, int]], unknown: int) -> BPE:
    """A piece is merged from any two others that make it; the order is that of the scores, the best first."""
    vocabulary = {text: number for number, (text, _, _) in enumerate(pieces)}
    normal = {text for text, _, role in pieces if role == NORMAL}
    merges = [
        (-score, vocabulary[text[:cut]], vocabulary[text[cut:]])
        for text, score, role in pieces
        if role == NORMAL
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    pairs = [(pieces[left][0], pieces[right][0]) for _, left, right in sorted(merges)]
    return BPE(vocabulary, pairs, unk_token=pieces[unknown][0], fuse_unk=True, byte_fallback=_has_bytes(pieces))


def _has_bytes(pieces: list[tuple[str, float, int]]) -> bool:
    return sum(role == BYTE for _, _, role in pieces) == 256


# --- protocol buffers ---


def _piece(entry: dict[int, list[Any]]) -> tuple[str, float, int]:
    """Text, score and type."""
    (score,) = struct.unpack("<f", _last(entry, 2, bytes(4)))
    return _last(entry, 1, b"").decode(), score, _last(entry, 3, NORMAL)


def _last(message: dict[int, list[Any]], number: int, default: Any) -> Any:
    """A field of a message; what is not written has its default. A value of another type than the default's is damage."""
    found = message.get(number, [default])[-1]
    if type(found) is not type(default):
        raise ValueError(f"field {number} is {type(found).__name__}, not {type(default).__name__}")
    return found


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The values of each field: int, or bytes."""
    found: dict[int, list[Any]] = {}
    for number, value in _read(data):
        found.setdefault(number, []).append(value)
    return found


def _read(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire} at byte {place}")
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, place = _varint(data, place)
        if place + size > len(data):
            raise ValueError(f"it ends at byte {len(data)}, inside a field")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError(f"it ends at byte {len(data)}, inside a number")
        value |= (data[place] & 0x7F) << shift
        place += 1
        if data[place - 1] < 0x80:
            return value, place
    raise ValueError(f"a number at byte {place} is too long")
