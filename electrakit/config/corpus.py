"""The settings of everything that reads a corpus: tokenizer, prepare and doctor."""

import codecs
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from electrakit.common.errors import UserError
from electrakit.common.hardware import num_cores
from electrakit.config.base import VerbSettings, check_at_least, may_change

SourceFormat = Literal["text", "jsonl", "parquet", "wikipedia", "wikiextractor", "gutenberg", "openwebtext"]
Splitting = Literal["blank", "file", "line"]
Engine = Literal["local", "ray"]
RowStyle = Literal["full", "official", "crude"]
TokenizerKind = Literal["wordpiece", "unigram", "bpe"]

DEFAULT_ALPHABET = 1000
"""Number of characters of a vocabulary."""
LARGEST_VOCABULARY = 1_000_000
SHARDS_MANIFEST = "manifest.json"
"""What a folder of shards holds. It is written last: without it the folder is unfinished."""
SHARDS_SOURCES = "sources.jsonl"
SHARDS_TOKENIZER = "tokenizer"


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(VerbSettings):
    """Which text, and how to read it."""

    inputs: Annotated[Positional[tuple[str, ...]], arg(metavar="INPUT [INPUT ...]", help_behavior_hint="(required)")]
    """Files, folders, globs, - for standard input, hf:NAME_OR_PATH (a dataset), or builtin:python (prose of this Python)."""
    source: SourceFormat | None = None
    """What the files are. By default recognised by content and name."""
    documents: Splitting = "blank"
    """Where a document of plain text ends: at a blank line, at the end of the file, or at the end of a line."""
    field: str = "text"
    """The field that holds the text, for .jsonl, .parquet and Hugging Face datasets."""
    encoding: str | None = None
    """Encoding of plain text and books that are not UTF-8, such as koi8-r. By default Windows-1252."""
    min_words: int = 0
    """Leave out documents of fewer words."""
    dedupe: bool = False
    """Leave out documents that are an exact copy of an earlier one."""
    limit: int | None = None
    """Stop after this many documents."""
    workers: int | None = may_change(None)
    """Number of worker processes; by default one per core. The output does not depend on it."""
    engine: Engine = may_change("local")
    """Where workers run: on this machine, or on a Ray cluster (RAY_ADDRESS) with the same file system. The output does not depend on it."""

    def check(self) -> None:
        if not self.inputs:
            raise UserError("no inputs: name files, folders, globs, - for standard input, or builtin:python")
        if self.encoding is not None and not _is_encoding(self.encoding):
            raise UserError(
                f"--encoding {self.encoding!r} is not known; name one such as koi8-r, windows-1251 or shift_jis"
            )
        check_at_least(0, self.values("min_words"))
        check_at_least(1, self.values("limit"), "leave it out for no limit")
        check_at_least(1, self.values("workers"), "leave it out to use every core")

    @property
    def num_workers(self) -> int:
        return self.workers or num_cores()


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(CorpusConfig):
    """Train a tokenizer: BERT's WordPiece, unigram or byte-level BPE. The same corpus always gives the same bytes."""

    out: Path = may_change()
    """Folder to write: tokenizer.json, tokenizer_config.json, and vocab.txt for WordPiece."""
    kind: TokenizerKind = "wordpiece"
    """`wordpiece` as BERT and ELECTRA; `unigram` as DeBERTa, with bytes for rare characters; `bpe` of bytes. The last two have no [UNK]."""
    vocab_size: int = 30_522
    """Size of the vocabulary, the five special tokens included."""
    cased: bool = False
    """Keep capital letters. By default text is lower-cased."""
    keep_accents: bool = False
    """Keep accents. By default they are stripped, except by a cased tokenizer."""
    min_frequency: int = 2
    """How often a token must occur to enter the vocabulary."""
    max_alphabet: int = DEFAULT_ALPHABET
    """Number of different characters to keep; rarer ones become [UNK], with unigram bytes. BPE keeps all."""
    overwrite: bool = may_change(False)
    """Replace a tokenizer that is there already. Files that electrakit did not write are kept."""

    def check(self) -> None:
        super().check()
        if self.kind == "bpe" and self.max_alphabet != DEFAULT_ALPHABET:
            raise UserError(
                f"--max-alphabet {self.max_alphabet} has no meaning with --kind bpe: its alphabet are the 256 bytes; leave it out"
            )
        if self.vocab_size > LARGEST_VOCABULARY:
            raise UserError(
                f"--vocab-size must be {LARGEST_VOCABULARY} or less, got {self.vocab_size}; 128000 is the largest in use"
            )
        if self.vocab_size < 6:
            raise UserError(
                f"--vocab-size must be 6 or more (five special tokens and a character), got {self.vocab_size}; "
                "8000 to 50000 is usual"
            )
        check_at_least(1, self.values("min_frequency", "max_alphabet"))


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(CorpusConfig):
    """Tokenize text into shards: files of token ids that training reads."""

    tokenizer: str
    """A folder, a tokenizer.json, a vocab.txt, a SentencePiece .model, or a name on the Hugging Face hub."""
    out: Path = may_change()
    """Folder to write. Interrupted work is resumed, a finished folder is left as it is."""
    length: int = 128
    """Tokens in a row, [CLS] and [SEP] included: 8 to 8192."""
    rows: RowStyle = "full"
    """How rows are packed. `full` loses no token; `official` is that of google-research/electra; `crude` joins two half rows."""
    valid: float = 0.01
    """Share of the documents in the valid split, chosen by a hash of their content."""
    test: float = 0.0
    """Share of the documents in the test split, chosen the same way."""
    seed: int = 0
    """Seed of where rows are cut into two segments, and of which are short."""
    shard_mb: int = 256
    """Largest size of a shard file in MB."""

    @classmethod
    def unwrap(cls, content: Any, path: Path) -> Any:
        """The manifest.json of shards holds their settings; the tokenizer and the list of the sources stand beside it."""
        if not isinstance(content, dict) or "plan" not in content:
            return content
        names = [entry.name for entry in fields(cls) if entry.name != "tokenizer"]
        settings = {name: content["plan"][name] for name in names if name in content["plan"]}
        sources = path.with_name(SHARDS_SOURCES)
        if sources.is_file():
            lines = sources.read_text(encoding="utf-8").splitlines()
            settings["inputs"] = [json.loads(line)["name"] for line in lines]
        return {**settings, "tokenizer": str(path.with_name(SHARDS_TOKENIZER))}

    def check(self) -> None:
        super().check()
        if not 8 <= self.length <= 8192:
            raise UserError(f"--length must be from 8 to 8192, got {self.length}")
        if self.valid < 0 or self.test < 0 or self.valid + self.test >= 1:
            raise UserError(
                f"--valid and --test are shares from 0 to 1 that leave something to train on, got {self.valid} and {self.test}"
            )
        check_at_least(1, self.values("shard_mb"))


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(CorpusConfig):
    """Look for problems in a corpus, a folder of shards, or runs, and say how to solve them."""

    inputs: Annotated[Positional[tuple[str, ...]], arg(metavar="INPUT [INPUT ...]", help_behavior_hint="(required)")]
    """A corpus, as for electra prepare; or one folder of shards; or folders of runs, which may be training right now."""
    tokenizer: str | None = None
    """Also check how well a tokenizer fits the corpus: a folder, a tokenizer.json, a vocab.txt, a .model or a hub name."""
    max_mb: int = 64
    """How much of the text or of the shards to read, in MB."""

    def check(self) -> None:
        super().check()
        check_at_least(1, self.values("max_mb"))


def _is_encoding(name: str) -> bool:
    """Whether Python knows an encoding of text by this name, one that can be read as a stream."""
    try:
        "a".encode(name)
        return codecs.lookup(name).incrementaldecoder is not None
    except (LookupError, ValueError):
        return False
