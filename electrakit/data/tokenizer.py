"""Trains a tokenizer of any kind reproducibly: the same corpus gives the same bytes."""

import functools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from itertools import compress
from pathlib import Path
from typing import IO, Any

import numpy as np
import zstandard
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import whole_folder
from electrakit.common.progress import console
from electrakit.config.corpus import DEFAULT_ALPHABET, Engine, SourceFormat, Splitting, TokenizerConfig, TokenizerKind
from electrakit.data.corpus import Selection, map_corpus, print_notes, require_documents
from electrakit.data.read.formats import Document
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import find_inputs
from electrakit.data.tokenizer_kinds import (
    BYTES,
    NUM_SPECIAL,
    SPECIAL_TOKENS,
    TokenizerFiles,
    bert_normalizer,
    byte_bpe,
    byte_pre_tokenizer,
    subword_normalizer,
    unigram,
    wordpiece,
)
from electrakit.data.unigram import count_words, learn_pieces, smallest_alphabet


def train_tokenizer(
    inputs: Iterable[str | Path],
    *,
    out: str | Path,
    kind: TokenizerKind = "wordpiece",
    vocab_size: int = 30_522,
    cased: bool = False,
    keep_accents: bool = False,
    min_frequency: int = 2,
    max_alphabet: int = DEFAULT_ALPHABET,
    source: SourceFormat | None = None,
    documents: Splitting = "blank",
    field: str = "text",
    encoding: str | None = None,
    min_words: int = 0,
    dedupe: bool = False,
    limit: int | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    overwrite: bool = False,
) -> Path:
    """Train a tokenizer on `inputs` and write it to the folder `out`; TokenizerConfig explains the settings."""
    return _train(TokenizerConfig(**locals()))


def _train(config: TokenizerConfig) -> Path:
    with explain_write_errors(config.out), whole_folder(config.out, "tokenizer", overwrite=config.overwrite) as folder:
        with tempfile.TemporaryFile(dir=folder) as spool:
            # Two passes: the characters must be known before training. The second reads normalised text from a
            # compressed temporary file, so that slow sources are parsed once and standard input can be used.
            counts, num_documents = _spool(config, spool)
            alphabet = _alphabet(counts, config.max_alphabet)
            if not alphabet:
                raise UserError(f"no usable text in {', '.join(config.inputs)}: it has no visible character")
            learn = {"wordpiece": _learn_wordpiece, "unigram": _learn_unigram, "bpe": _learn_bpe}[config.kind]
            _check_size(config, alphabet)
            console.print(f"Learning {config.vocab_size:,} pieces from {num_documents:,} documents ...")
            tokenizer = learn(spool, alphabet, config)
        num_tokens = len(tokenizer.vocabulary)
        if num_tokens < config.vocab_size:
            console.print(f"[yellow]The corpus gave only {num_tokens:,} of {config.vocab_size:,} pieces: it is small.")
        tokenizer.save(folder)
    what = f"{tokenizer.summary}, {'cased' if config.cased else 'lower-case'}"
    console.print(f"Wrote {config.out}: {what}.", markup=False, soft_wrap=True)
    return config.out


def _spool(config: TokenizerConfig, spool: IO[bytes]) -> tuple[np.ndarray, int]:
    """Write the normalised text of every document to `spool`; how often each character occurs, and how many documents."""
    notes = Notes()
    inputs = find_inputs(config, notes)
    counts = np.zeros(0x110000, np.int64)
    selection = Selection(config)
    build = functools.partial(_normalise, config.cased, config.keep_accents, kind=config.kind)
    with zstandard.ZstdCompressor(level=1).stream_writer(spool, closefd=False) as writer:
        for batch in map_corpus(config, inputs, build, "reading"):
            text = "".join(f"{document}\n" for document in compress(batch.value, selection.choose(batch)))
            counts += np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32), minlength=0x110000)
            writer.write(text.encode())
            notes.merge(batch.notes)
            if selection.is_full:
                break
            if batch.is_last:
                require_documents(selection.num_documents, notes, config)
    require_documents(selection.num_documents, notes, config)
    print_notes(notes)
    return counts, selection.num_documents


def _normalise(
    cased: bool,
    keep_accents: bool,
    documents: list[Document],
    identities: np.ndarray,
    kind: TokenizerKind = "wordpiece",
) -> list[str]:
    """Each document as one line of normalised text."""
    is_bert = kind == "wordpiece"
    normalizer: Any = bert_normalizer(cased, keep_accents) if is_bert else subword_normalizer(kind, cased, keep_accents)

    def normalise(line: str) -> str:
        if not line.isascii() or (not is_bert and not line.isprintable()):
            return normalizer.normalize_str(line)
        # The same, ten times faster.
        line = line.translate(_CLEAN_ASCII) if is_bert else _SPACES.sub(" ", line).strip(" ")
        return line if cased else line.lower()

    return [" ".join(map(normalise, document.lines)) for document in documents]


# What BERT's normalizer does to control characters: white space becomes a space, the rest goes.
_CLEAN_ASCII = {point: " " if chr(point) in "\t\n\r" else None for point in (*range(32), 127)}
_SPACES = re.compile(" +")


def _texts(spool: IO[bytes]) -> Iterator[str]:
    """The spooled text again, a document at a time."""
    spool.seek(0)
    with zstandard.ZstdDecompressor().stream_reader(spool, closefd=False) as reader:
        tail = b""
        while chunk := reader.read(2**20):
            *lines, tail = (tail + chunk).split(b"\n")
            for line in lines:
                yield line.decode()


def _alphabet(counts: np.ndarray, max_alphabet: int) -> set[str]:
    """The most frequent characters; ties go to the lower code point, so that the result is deterministic."""
    present = [int(point) for point in counts.nonzero()[0] if not chr(point).isspace()]
    return {chr(point) for point in sorted(present, key=lambda point: (-counts[point], point))[:max_alphabet]}


def _check_size(config: TokenizerConfig, alphabet: set[str]) -> None:
    """Refuse a vocabulary that is too small for the characters of the text."""
    if config.kind == "wordpiece":
        # A character has one entry for the start of a word, one for its inside.
        smallest = len(_first_entries(alphabet)) + len(alphabet)
    elif config.kind == "unigram":
        smallest = NUM_SPECIAL + len(BYTES) + len(smallest_alphabet(alphabet))
    else:
        smallest = NUM_SPECIAL + len(BYTES)
    if smallest <= config.vocab_size:
        return
    what = f"--vocab-size {config.vocab_size} is too small for the"
    if config.kind == "bpe":
        raise UserError(f"{what} 256 bytes and five special tokens of --kind bpe; use {smallest} or more")
    bytes_too = ", the 256 bytes and the ASCII characters" if config.kind == "unigram" else ""
    raise UserError(
        f"{what} {len(alphabet)} different characters of this text{bytes_too}; use {smallest} or more, or lower --max-alphabet"
    )


# --- the kinds -------------------------------------------------------------------------------------------------------


def _learn_wordpiece(spool: IO[bytes], alphabet: set[str], config: TokenizerConfig) -> TokenizerFiles:
    """Train WordPiece so that the same text gives the same vocabulary, always.

    The library numbers the entries `##c` in the order of a hash table that differs from run to run, and equal counts are
    then decided by those numbers. Given beforehand, as if they were special tokens, they have a fixed order.
    """
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=_first_entries(alphabet),
        limit_alphabet=0x110000,
        show_progress=False,
    )
    rare = re.compile(f"[^{re.escape(''.join(sorted(alphabet)))}]+")
    tokenizer.train_from_iterator((rare.sub(" ", text) for text in _texts(spool)), trainer)
    return wordpiece(tokenizer.get_vocab(with_added_tokens=True), config.cased, config.keep_accents)


def _first_entries(alphabet: set[str]) -> list[str]:
    """The first vocabulary entries: the five special tokens, and every character that can stand inside a word."""
    splitter = BertPreTokenizer()
    inside_words = [c for c in sorted(alphabet) if len(splitter.pre_tokenize_str(f"a{c}a")) == 1]
    return [*SPECIAL_TOKENS.values(), *(f"##{c}" for c in inside_words)]


def _learn_unigram(spool: IO[bytes], alphabet: set[str], config: TokenizerConfig) -> TokenizerFiles:
    num_pieces = config.vocab_size - NUM_SPECIAL - len(BYTES)
    pieces = learn_pieces(count_words(_texts(spool)), smallest_alphabet(alphabet), num_pieces, config.min_frequency)
    return unigram(pieces, config.cased, config.keep_accents)


def _learn_bpe(spool: IO[bytes], alphabet: set[str], config: TokenizerConfig) -> TokenizerFiles:
    """The library's trainer, which is reproducible here: the alphabet is given, and equal counts are decided by ids."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = byte_pre_tokenizer()
    trainer = BpeTrainer(
        vocab_size=config.vocab_size - NUM_SPECIAL,
        min_frequency=config.min_frequency,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((f" {text}" for text in _texts(spool)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return byte_bpe(pieces, [tuple(merge) for merge in model["merges"]], config.cased, config.keep_accents)
