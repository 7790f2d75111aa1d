"""Trains a WordPiece tokenizer reproducibly: the same corpus gives the same bytes."""

import functools
import re
import tempfile
from collections.abc import Iterable, Iterator
from itertools import compress
from pathlib import Path
from typing import IO

import numpy as np
import zstandard
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.progress import console
from electrakit.config.corpus import Engine, SourceFormat, Splitting, TokenizerConfig
from electrakit.data.corpus import Selection, map_corpus, print_notes, require_documents
from electrakit.data.read.formats import Document
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import find_inputs
from electrakit.data.tokenizer_files import SPECIAL_TOKENS, bert_normalizer, wordpiece


def train_tokenizer(
    inputs: Iterable[str | Path],
    *,
    out: str | Path,
    vocab_size: int = 30_522,
    cased: bool = False,
    keep_accents: bool = False,
    min_frequency: int = 2,
    max_alphabet: int = 1000,
    source: SourceFormat | None = None,
    documents: Splitting = "blank",
    field: str = "text",
    encoding: str | None = None,
    min_words: int = 0,
    dedupe: bool = False,
    limit: int | None = None,
    workers: int | None = None,
    engine: Engine = "local",
) -> Path:
    """Train a WordPiece tokenizer on `inputs` and write it to the folder `out`; TokenizerConfig explains the settings."""
    return _train(TokenizerConfig(**locals()))


def _train(config: TokenizerConfig) -> Path:
    if (config.out / "tokenizer.json").exists():
        raise UserError(f"{config.out} already holds a tokenizer; name another --out, or remove it")
    with explain_write_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=config.out) as spool:
            # Two passes: the characters must be known before training. The second reads normalised text from a
            # compressed temporary file, so that slow sources are parsed once and standard input can be used.
            counts, num_documents = _spool(config, spool)
            alphabet = _alphabet(counts, config.max_alphabet)
            if not alphabet:
                raise UserError(f"no usable text in {', '.join(config.inputs)}: it has no visible character")
            first = _first_entries(alphabet, config)
            console.print(f"Learning {config.vocab_size:,} pieces from {num_documents:,} documents ...")
            vocabulary = _learn(_texts(spool, alphabet), first, config)
        if len(vocabulary) < config.vocab_size:
            shortage = f"only {len(vocabulary):,} of {config.vocab_size:,} pieces"
            console.print(f"[yellow]The corpus gave {shortage}: it is small.")
        wordpiece(vocabulary, config.cased, config.keep_accents).save(config.out)
    what = f"{len(vocabulary):,} pieces, {'cased' if config.cased else 'lower-case'}"
    console.print(f"Wrote {config.out}: {what}.", markup=False, soft_wrap=True)
    return config.out


def _spool(config: TokenizerConfig, spool: IO[bytes]) -> tuple[np.ndarray, int]:
    """Write the normalised text of every document to `spool`; how often each character occurs, and how many documents."""
    notes = Notes()
    inputs = find_inputs(config, notes)
    counts = np.zeros(0x110000, np.int64)
    selection = Selection(config)
    build = functools.partial(_normalise, config.cased, config.keep_accents)
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


def _normalise(cased: bool, keep_accents: bool, documents: list[Document], identities: np.ndarray) -> list[str]:
    """Each document as one line of normalised text."""
    normalizer = bert_normalizer(cased, keep_accents)

    def normalise(line: str) -> str:
        if not line.isascii():
            return normalizer.normalize_str(line)
        line = line.translate(_CLEAN_ASCII)  # the same, ten times faster
        return line if cased else line.lower()

    return [" ".join(map(normalise, document.lines)) for document in documents]


# What the normalizer does to control characters: white space becomes a space, the rest goes.
_CLEAN_ASCII = {point: " " if chr(point) in "\t\n\r" else None for point in (*range(32), 127)}


def _texts(spool: IO[bytes], alphabet: set[str]) -> Iterator[str]:
    """The spooled text again, without the characters that are not in the alphabet."""
    spool.seek(0)
    rare = re.compile(f"[^{re.escape(''.join(sorted(alphabet)))}]+")
    with zstandard.ZstdDecompressor().stream_reader(spool, closefd=False) as reader:
        tail = b""
        while chunk := reader.read(2**20):
            *lines, tail = (tail + chunk).split(b"\n")
            for line in lines:
                yield rare.sub(" ", line.decode())


def _alphabet(counts: np.ndarray, max_alphabet: int) -> set[str]:
    """The most frequent characters; ties go to the lower code point, so that the result is deterministic."""
    present = [int(point) for point in counts.nonzero()[0] if not chr(point).isspace()]
    return {chr(point) for point in sorted(present, key=lambda point: (-counts[point], point))[:max_alphabet]}


def _first_entries(alphabet: set[str], config: TokenizerConfig) -> list[str]:
    """The first vocabulary entries: the five special tokens, and every character that can stand inside a word."""
    splitter = BertPreTokenizer()
    inside_words = [c for c in sorted(alphabet) if len(splitter.pre_tokenize_str(f"a{c}a")) == 1]
    first = [*SPECIAL_TOKENS.values(), *(f"##{c}" for c in inside_words)]
    smallest = len(first) + len(alphabet)  # a character has one entry for the start of a word, one for its inside
    if smallest > config.vocab_size:
        raise UserError(
            f"--vocab-size {config.vocab_size} is too small for the {len(alphabet)} different characters of this text; "
            f"use {smallest} or more, or lower --max-alphabet"
        )
    return first


def _learn(texts: Iterator[str], first: list[str], config: TokenizerConfig) -> dict[str, int]:
    """Train WordPiece so that the same text gives the same vocabulary, always.

    The library numbers the entries `##c` in the order of a hash table that differs from run to run, and equal counts are
    then decided by those numbers. Given beforehand, as if they were special tokens, they have a fixed order.
    """
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=first,
        limit_alphabet=0x110000,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab(with_added_tokens=True)
