"""The settings of every stage: frozen dataclasses, the same for Python and for the command line."""

import codecs
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from tyro.conf import Positional, arg

from electrakit.errors import UserError

Source = Literal["text", "jsonl", "parquet", "wikipedia", "wikiextractor", "gutenberg", "openwebtext"]
Splitting = Literal["blank", "file", "line"]
Engine = Literal["local", "ray"]
RowStyle = Literal["full", "official", "crude"]


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Which text, and how to read it."""

    inputs: Annotated[Positional[tuple[str, ...]], arg(metavar="INPUT [INPUT ...]", help_behavior_hint="(required)")]
    """Files, folders, globs, - for standard input, hf:NAME_OR_PATH (a dataset), or builtin:python (prose of this Python)."""
    source: Source | None = None
    """What the files are. By default recognised by content and name."""
    documents: Splitting = "blank"
    """Where a document of plain text ends: at a blank line, at the end of the file, or at the end of each line."""
    field: str = "text"
    """The field that holds the text, for .jsonl, .parquet and Hugging Face datasets."""
    encoding: str | None = None
    """The encoding of plain text and books that are not UTF-8, such as koi8-r. By default Windows-1252."""
    min_words: int = 0
    """Leave out documents of fewer words."""
    dedupe: bool = False
    """Leave out documents that are an exact copy of an earlier one."""
    limit: int | None = None
    """Stop after this many documents."""
    workers: int | None = None
    """Number of processes; by default one for each core. The output does not depend on it."""
    engine: Engine = "local"
    """Where they run: on this machine, or on a Ray cluster (RAY_ADDRESS) that sees the same files. Nor does it on this."""

    def checked(self) -> Self:
        """Itself, if the settings make sense; else a UserError that says which does not."""
        check_types(self)
        if not self.inputs:
            raise UserError("no inputs: name files, folders, globs, - for standard input, or builtin:python")
        if self.encoding is not None and not _is_encoding(self.encoding):
            raise UserError(
                f"--encoding {self.encoding!r} is not known; name one such as koi8-r, windows-1251 or shift_jis"
            )
        if self.min_words < 0:
            raise UserError(f"--min-words must be 0 or more, got {self.min_words}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit must be 1 or more, got {self.limit}; leave it out for no limit")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"--workers must be 1 or more, got {self.workers}; leave it out to use every core")
        return self

    @property
    def num_workers(self) -> int:
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @classmethod
    def of(cls, inputs: Iterable[str | Path], **settings: Any) -> Self:
        """The configuration of a call from Python: paths may be strings, and everything is checked."""
        if isinstance(inputs, str | Path):
            raise UserError(f"inputs must be a list, got {str(inputs)!r}; write [{str(inputs)!r}]")
        if isinstance(settings.get("out"), str):
            settings["out"] = Path(settings["out"])
        if isinstance(settings.get("tokenizer"), Path):
            settings["tokenizer"] = str(settings["tokenizer"])
        return cls(inputs=tuple(map(str, inputs)), **settings).checked()

    def identity(self) -> dict[str, Any]:
        """The settings that decide the result: all but who does the work and where it is written."""
        return {name: value for name, value in asdict(self).items() if name not in ("workers", "engine", "out")}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(CorpusConfig):
    """Train a BERT-style WordPiece tokenizer: the same corpus gives the same bytes, always."""

    out: Path
    """Folder to write: tokenizer.json, tokenizer_config.json and vocab.txt."""
    vocab_size: int = 30_522
    """Number of entries, the five special tokens included."""
    cased: bool = False
    """Keep capital letters. By default everything is lower-cased."""
    keep_accents: bool = False
    """Keep accents. By default they are stripped when the tokenizer is lower-case, and kept when it is cased."""
    min_frequency: int = 2
    """A piece enters the vocabulary only if it occurs this often."""
    max_alphabet: int = 1000
    """Number of different characters kept; rarer ones become [UNK]."""

    def checked(self) -> Self:
        super().checked()
        if self.vocab_size < 6:
            raise UserError(
                f"--vocab-size must be 6 or more (five special tokens and a character), got {self.vocab_size}; "
                "8000 to 50000 is usual"
            )
        if self.min_frequency < 1:
            raise UserError(f"--min-frequency must be 1 or more, got {self.min_frequency}")
        if self.max_alphabet < 1:
            raise UserError(f"--max-alphabet must be 1 or more, got {self.max_alphabet}")
        return self


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(CorpusConfig):
    """Turn text into shards: files of token ids that training reads at full speed."""

    tokenizer: str
    """A folder, a tokenizer.json, a vocab.txt, or a name on the Hugging Face hub."""
    out: Path
    """Folder to write. A started one is gone on with, a finished one is left as it is."""
    length: int = 128
    """Tokens in a row, [CLS] and [SEP] included: 8 to 8192."""
    rows: RowStyle = "full"
    """`full` loses no token; `official` is the builder of google-research/electra; `crude` puts two half rows together."""
    valid: float = 0.01
    """Share of the documents for validation, chosen by a hash of their content."""
    test: float = 0.0
    """Share of the documents for testing, chosen the same way."""
    seed: int = 0
    """Decides where rows are cut into two segments, and which are short."""
    shard_mb: int = 256
    """Size of a shard file at the most, in MB."""

    def checked(self) -> Self:
        super().checked()
        if not 8 <= self.length <= 8192:
            raise UserError(f"--length must be from 8 to 8192, got {self.length}")
        if self.valid < 0 or self.test < 0 or self.valid + self.test >= 1:
            raise UserError(
                f"--valid and --test are shares from 0 to 1 that leave something to train on, got {self.valid} and {self.test}"
            )
        if self.shard_mb < 1:
            raise UserError(f"--shard-mb must be 1 or more, got {self.shard_mb}")
        return self


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(CorpusConfig):
    """Look for what ruins training, in a corpus, a folder of shards, or runs, and say what to do about it."""

    inputs: Annotated[Positional[tuple[str, ...]], arg(metavar="INPUT [INPUT ...]", help_behavior_hint="(required)")]
    """A corpus, as for electra prepare; or one folder of shards; or folders of runs, which may be training at this moment."""
    tokenizer: str | None = None
    """Also check how a tokenizer fits the corpus: a folder, a tokenizer.json, a vocab.txt or a hub name."""
    max_mb: int = 64
    """How much of the text or of the shards to look at."""

    def checked(self) -> Self:
        super().checked()
        if self.max_mb < 1:
            raise UserError(f"--max-mb must be 1 or more, got {self.max_mb}")
        return self


@dataclass(frozen=True, kw_only=True)
class ShowConfig:
    """Print what a pretraining preset would do: networks, parameters, FLOPs, memory, warnings. Trains nothing."""

    preset: Annotated[Positional[str], arg(metavar="PRESET [--setting value ...]")]
    """`electra show --help` lists the presets, `electra show PRESET --help` the settings."""


@dataclass(frozen=True, kw_only=True)
class PretrainArguments:
    """Train a preset's networks on shards; goes on by itself where a stopped run was. Exit code 75: start it again to go on."""

    preset: Annotated[Positional[str], arg(metavar="PRESET --data SHARDS --run RUN [--setting value ...]")]
    """`electra pretrain --help` lists the presets, `electra pretrain PRESET --help` the settings."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole walk in minutes, offline, on a CPU: builtin text to tokenizer to shards to a trained pair."""

    out: Path = Path("demo")
    """Folder to write."""
    budget: str = "5m"
    """Time for the training."""
    workers: int | None = None
    """Number of processes; by default one for each core."""


def _is_encoding(name: str) -> bool:
    """Whether Python knows an encoding of text by this name, one that can be read as a stream."""
    try:
        b"a".decode(name)
        return codecs.lookup(name).incrementaldecoder is not None
    except (LookupError, ValueError):
        return False


def check_types(config: Any) -> None:
    """A call from Python may pass anything: each setting must be what its annotation says."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if not _fits(value, hint):
            flag = f"--{field.name.replace('_', '-')}"
            raise UserError(f"{flag} must be {_in_words(hint)}, got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(one, get_args(hint)[0]) for one in value)
    if get_args(hint):  # a union
        return any(_fits(value, one) for one in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if get_origin(hint) is tuple:
        return f"a tuple of {({str: 'strings', int: 'whole numbers'}).get(get_args(hint)[0], 'numbers')}"
    if get_args(hint):
        return " or ".join(_in_words(one) for one in get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", Path: "a path"}
    return names.get(hint, "None")
