"""Pieces in, a tokenizer out: WordPiece, unigram with bytes for what it does not know, byte-level BPE.

WordPiece follows BERT's rules. The other two have no unknown word, and keep every character unless text is lower-cased or accents are
stripped. An accent is there a mark of the Latin, Greek and Cyrillic scripts: vowel signs of Hindi, Thai or Arabic stay, which BERT's
rules strip.
"""

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from electrakit.common.atomic import atomic_write

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""The first of a WordPiece vocabulary."""
FIRST_TOKENS = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]"}
"""As in DeBERTa's vocabularies: these are 0 to 3, [MASK] is the last."""
MASK = "[MASK]"
NUM_SPECIAL = len(FIRST_TOKENS) + 1
BYTES = [f"<0x{number:02X}>" for number in range(256)]
NEVER = -1000.0
"""The score of a piece that text must not give: special tokens and bytes. Writing its characters is far more probable."""
# Letters with their marks and joiners, digits, or symbols, each with the space before it. GPT-2's pattern cuts Hindi at every vowel sign.
WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?[\p{L}\p{M}\x{200c}\x{200d}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+"


@dataclass(frozen=True)
class TokenizerFiles:
    """The content of a tokenizer's files; small enough to be sent to every worker."""

    json: str
    special_ids: dict[str, int]
    config: dict[str, Any]
    remark: str = ""  # for the user: how it was read

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.json)

    @functools.cached_property
    def kind(self) -> str:
        """wordpiece, unigram or bpe, for people to read."""
        return json.loads(self.json)["model"]["type"].lower()

    @property
    def summary(self) -> str:
        return f"{self.kind} with {len(self.vocabulary):,} tokens"

    @property
    def vocabulary(self) -> list[str]:
        """Every token, by id."""
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        tokens = [""] * (max(ids.values()) + 1)
        for token, number in ids.items():
            tokens[number] = token
        return tokens

    def spelled(self, tokens: list[str]) -> str:
        """The text of tokens side by side."""
        decoder = self.tokenizer.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(tokens)

    @property
    def fingerprint(self) -> str:
        """Changes when any id in a row could change: a hash of vocabulary, rules and special tokens."""
        return xxhash.xxh3_128_hexdigest(f"{self.json}{sorted(self.special_ids.items())}".encode())

    def for_length(self, length: int) -> "TokenizerFiles":
        """The same, but transformers does not cut what it encodes at less than `length` tokens."""
        longest = self.config.get("model_max_length")
        if longest is None or longest >= length:
            return self
        return replace(self, config={**self.config, "model_max_length": length})

    def save(self, folder: Path) -> None:
        """Write what `AutoTokenizer.from_pretrained` opens; tokenizer.json comes last, and makes it a tokenizer."""
        files = {"vocab.txt": "".join(f"{token}\n" for token in self.vocabulary)} if self.kind == "wordpiece" else {}
        files |= {
            "tokenizer_config.json": json.dumps(self.config, indent=2) + "\n",
            "tokenizer.json": self.json,
        }
        for name, text in files.items():
            atomic_write(folder / name, text.encode())


# --- WordPiece ---


def bert_normalizer(cased: bool, keep_accents: bool) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(lowercase=not cased, strip_accents=False if keep_accents else None)


def wordpiece(vocabulary: dict[str, int], cased: bool, keep_accents: bool) -> TokenizerFiles:
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = bert_normalizer(cased, keep_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return finished(tokenizer, SPECIAL_TOKENS)


# --- unigram and byte-level BPE ---


def subword_normalizer(kind: str, cased: bool, keep_accents: bool) -> normalizers.Sequence:
    """NFKC as SentencePiece's for unigram, NFC for bytes; one space between words and none around."""
    steps: list[Any] = [normalizers.NFKC() if kind == "unigram" else normalizers.NFC()]
    if not cased:
        steps.append(normalizers.Lowercase())
    if not cased and not keep_accents:
        steps += [normalizers.NFD(), normalizers.Replace(Regex(r"[\x{300}-\x{36f}]+"), ""), normalizers.NFC()]
    # A literal ▁ would be taken for a space.
    steps += [normalizers.Replace(Regex(r"[\s▁]+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def unigram(pieces: list[tuple[str, float]], cased: bool, keep_accents: bool) -> TokenizerFiles:
    """From pieces and their log probabilities."""
    never = [(token, NEVER) for token in (*FIRST_TOKENS.values(), *BYTES)]
    tokenizer = Tokenizer(Unigram([*never, *pieces, (MASK, NEVER)], unk_id=3, byte_fallback=True))
    tokenizer.normalizer = subword_normalizer("unigram", cased, keep_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = metaspace_decoder()
    return finished(tokenizer, {**FIRST_TOKENS, "mask": MASK})


def byte_bpe(pieces: list[str], merges: list[tuple[str, str]], cased: bool, keep_accents: bool) -> TokenizerFiles:
    """From pieces, by id and without special tokens, and merges."""
    tokens = [*FIRST_TOKENS.values(), *pieces, MASK]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="[UNK]"))
    # The space belongs to the word after it, so the first word of a text needs one.
    tokenizer.normalizer = normalizers.Sequence(
        [subword_normalizer("bpe", cased, keep_accents), normalizers.Prepend(" ")]
    )
    tokenizer.pre_tokenizer = byte_pre_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return finished(tokenizer, {**FIRST_TOKENS, "mask": MASK}, processors.ByteLevel(trim_offsets=True))


@functools.cache
def subword_rules() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Normalizer and pre-tokenizer of every tokenizer that these two make, as in tokenizer.json. None of them looks over a space."""
    options = [(cased, keep_accents) for cased in (True, False) for keep_accents in (True, False)]
    made = [unigram([("▁", 0.0)], *each) for each in options]
    made += [byte_bpe(["Ġ"], [], *each) for each in options]
    settings = [json.loads(one.json) for one in made]
    return [(each["normalizer"], each["pre_tokenizer"]) for each in settings]


def byte_pre_tokenizer() -> pre_tokenizers.Sequence:
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), to_bytes])


def metaspace_decoder() -> decoders.Sequence:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


# --- all kinds ---


def finished(tokenizer: Tokenizer, names: dict[str, str], first: Any = None) -> TokenizerFiles:
    """With special tokens of these names, and with [CLS] and [SEP] around what is encoded."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in names.values()])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    ids = {role: vocabulary[token] for role, token in names.items()}
    cls, sep = names["cls"], names["sep"]
    template = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, ids["cls"]), (sep, ids["sep"])],
    )
    tokenizer.post_processor = template if first is None else processors.Sequence([first, template])
    return TokenizerFiles(tokenizer.to_str(pretty=True), ids, transformers_config(tokenizer, names))


def transformers_config(tokenizer: Tokenizer, names: dict[str, str]) -> dict[str, Any]:
    """tokenizer_config.json, as transformers reads it."""
    special = {f"{role}_token": names[role] for role in SPECIAL_TOKENS}
    settings = json.loads(tokenizer.to_str()) if isinstance(tokenizer.model, WordPiece) else {}
    if not follows_bert(settings):
        # Transformers' classes of other families build their own rules around the vocabulary; this one takes those of tokenizer.json.
        inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **special, **inputs, "model_max_length": 512}
    rules = settings["normalizer"]
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": rules["lowercase"],
        "strip_accents": rules["strip_accents"],
        "tokenize_chinese_chars": rules["handle_chinese_chars"],
        **special,
        "model_max_length": 512,
    }


def follows_bert(settings: dict[str, Any]) -> bool:
    """Whether a tokenizer.json has the rules that transformers' BertTokenizer builds around a vocabulary."""
    model, normalizer = settings.get("model", {}), settings.get("normalizer") or {}
    return (
        model.get("type") == "WordPiece"
        and (model["continuing_subword_prefix"], model["max_input_chars_per_word"]) == ("##", 100)
        and (normalizer.get("type"), normalizer.get("clean_text")) == ("BertNormalizer", True)
        and settings["pre_tokenizer"] == {"type": "BertPreTokenizer"}
    )
