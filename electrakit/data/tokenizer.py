"""Documents in, a WordPiece tokenizer out: trained reproducibly, or loaded from a folder, a file or the hub."""

import contextlib
import functools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
import zstandard
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer

from electrakit.config import Engine, Source, Splitting, TokenizerConfig
from electrakit.data.corpus import Selection, harvest, print_notes, require_documents
from electrakit.data.files import Notes, in_short
from electrakit.data.sources import Document, find_inputs
from electrakit.errors import UserError, mended_by_user
from electrakit.progress import console

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
HUB_TIMEOUT = 5  # seconds until we say that there is no connection


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as it lies on disk; light enough to be sent to every worker."""

    json: str
    special_ids: dict[str, int]
    config: dict[str, Any]
    remark: str = ""  # what a person should know about how it was read

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.json)

    @property
    def vocabulary(self) -> list[str]:
        """Every token, by id."""
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        tokens = [""] * (max(ids.values()) + 1)
        for token, number in ids.items():
            tokens[number] = token
        return tokens

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
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "vocab.txt": "".join(f"{token}\n" for token in self.vocabulary),
            "tokenizer_config.json": json.dumps(self.config, indent=2) + "\n",
            "tokenizer.json": self.json,
        }
        for name, text in files.items():
            temporary = folder / f".{name}.tmp"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / name)


def train_tokenizer(
    inputs: Iterable[str | Path],
    *,
    out: str | Path,
    vocab_size: int = 30_522,
    cased: bool = False,
    keep_accents: bool = False,
    min_frequency: int = 2,
    max_alphabet: int = 1000,
    source: Source | None = None,
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
    return _train(TokenizerConfig.of(**locals()))


def _train(config: TokenizerConfig) -> Path:
    if (config.out / "tokenizer.json").exists():
        raise UserError(f"{config.out} already holds a tokenizer; name another --out, or remove it")
    with mended_by_user(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
    with mended_by_user(config.out), tempfile.TemporaryFile(dir=config.out) as spool:
        # Two passes: the characters must be known before training. The second reads normalised text from a compressed
        # temporary file, so that slow sources are parsed once and standard input can be used.
        counts, num_documents = _spool(config, spool)
        alphabet = _alphabet(counts, config.max_alphabet)
        if not alphabet:
            raise UserError(f"no usable text in {', '.join(config.inputs)}: nothing in it can be seen")
        first = _first_pieces(alphabet, config)
        console.print(f"Learning {config.vocab_size:,} pieces from {num_documents:,} documents ...")
        vocabulary = _learn(_texts(spool, alphabet), first, config)
    if len(vocabulary) < config.vocab_size:
        console.print(f"[yellow]The corpus gave only {len(vocabulary):,} of {config.vocab_size:,} pieces: it is small.")
    with mended_by_user(config.out):
        _wordpiece(vocabulary, config.cased, config.keep_accents).save(config.out)
    what = f"{len(vocabulary):,} pieces, {'cased' if config.cased else 'lower-case'}"
    console.print(f"Wrote {config.out}: {what}.", markup=False, soft_wrap=True)
    return config.out


def load_tokenizer(name: str | Path) -> TokenizerFiles:
    """Open a folder, a tokenizer.json, a vocab.txt, or a name on the hub."""
    path = Path(name)
    if path.is_dir():
        for candidate in (path / "tokenizer.json", path / "vocab.txt"):
            if candidate.exists():
                path = candidate
                break
        else:
            raise UserError(f"no tokenizer in {str(name)!r}: it has neither tokenizer.json nor vocab.txt")
    elif not path.exists():
        path = _from_hub(str(name))
    settings = path.parent / "tokenizer_config.json"
    try:
        config = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            tokenizer = Tokenizer.from_str(text)
        else:
            return _from_vocabulary(text, config)
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(
            f"{str(path)!r} is not a vocabulary, nor text of any kind; name a folder, a tokenizer.json, a vocab.txt or a hub name"
        ) from None
    except Exception as error:  # tokenizers raises plain Exception for a damaged file
        raise UserError(f"cannot read the tokenizer {str(path)!r}: {str(error)[:200]}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.get_vocab(with_added_tokens=True)
    names = {role: _token_text(config.get(f"{role}_token")) or default for role, default in SPECIAL_TOKENS.items()}
    missing = [token for token in names.values() if token not in ids]
    if missing:
        raise UserError(
            f"the tokenizer {str(name)!r} lacks {', '.join(missing)}; ELECTRA needs all of {list(names.values())}"
        )
    return TokenizerFiles(
        tokenizer.to_str(pretty=True),
        {role: ids[token] for role, token in names.items()},
        config or _transformers_config(tokenizer),
    )


def _token_text(entry: Any) -> str | None:
    return entry.get("content") if isinstance(entry, dict) else entry


def _from_hub(name: str) -> Path:
    """The tokenizer of a hub name: from the cache if it is there, else from the network."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(f"no tokenizer at {name!r}: name a folder, a tokenizer.json, a vocab.txt or a hub name")
    path = _download(name, is_local=True)
    if path is None:
        _require_hub(name)
        path = _download(name, is_local=False)
    if path is None:
        raise UserError(f"no tokenizer at {name!r}: that name on the hub has neither tokenizer.json nor vocab.txt")
    return path


def _download(name: str, is_local: bool) -> Path | None:
    """A file of the hub, or with `is_local` of its cache; None if there is neither tokenizer.json nor vocab.txt."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    download = functools.partial(huggingface_hub.hf_hub_download, name, local_files_only=is_local)
    for file in ("tokenizer.json", "vocab.txt"):
        try:
            path = download(file)
        except EntryNotFoundError:  # LocalEntryNotFoundError is one too
            continue
        except GatedRepoError:
            raise UserError(f"no permission for {name!r} on the hub: ask for access there, and log in") from None
        except RepositoryNotFoundError:
            raise UserError(
                f"no tokenizer at {name!r}: there is no such folder or file, and no such name on the hub"
            ) from None
        except Exception as error:  # whatever else: it cannot be had
            raise UserError(f"cannot load {name!r} from the hub ({in_short(error)}); try again later") from None
        with contextlib.suppress(EntryNotFoundError):
            download("tokenizer_config.json")
        return Path(path)
    return None


def _require_hub(name: str) -> None:
    """Ask once whether the hub answers: a download would ask six times, for half a minute, and print each time."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception:  # the libraries have a dozen for "no connection", and one for "offline mode"
        raise UserError(
            f"no tokenizer at {name!r}: there is no such folder or file, and the hub ({constants.ENDPOINT}) cannot be "
            "reached; name a folder, a tokenizer.json or a vocab.txt"
        ) from None


def _from_vocabulary(text: str, config: dict[str, Any]) -> TokenizerFiles:
    """A vocab.txt does not say whether it is cased; one that has a capital letter is."""
    tokens = text.split("\n")
    while tokens and not tokens[-1]:
        tokens.pop()
    tokens = [token.rstrip("\r") for token in tokens]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        double = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise UserError(f"the vocabulary has {double!r} twice; every line must be a different token")
    missing = [token for token in SPECIAL_TOKENS.values() if token not in vocabulary]
    if missing:
        raise UserError(f"the vocabulary lacks {', '.join(missing)}; ELECTRA needs {list(SPECIAL_TOKENS.values())}")
    has_capitals = any(
        token != token.lower() for token in tokens if token not in SPECIAL_TOKENS.values() and "[unused" not in token
    )
    is_cased = not config.get("do_lower_case", not has_capitals)
    files = _wordpiece(vocabulary, is_cased, keep_accents=config.get("strip_accents") is False)
    if "do_lower_case" in config:
        return files
    found, read_as = ("capital letters", "cased") if is_cased else ("no capital letters", "lower-case")
    return replace(files, remark=f"The vocabulary has {found}: read as {read_as}.")


def _normalizer(cased: bool, keep_accents: bool) -> BertNormalizer:
    return BertNormalizer(lowercase=not cased, strip_accents=False if keep_accents else None)


def _wordpiece(vocabulary: dict[str, int], cased: bool, keep_accents: bool) -> TokenizerFiles:
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = _normalizer(cased, keep_accents)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS.values()]
    )
    ids = {role: vocabulary[token] for role, token in SPECIAL_TOKENS.items()}
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["cls"]), ("[SEP]", ids["sep"])],
    )
    return TokenizerFiles(tokenizer.to_str(pretty=True), ids, _transformers_config(tokenizer))


def _transformers_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """What transformers wants to know beside tokenizer.json."""
    rules = json.loads(tokenizer.to_str()).get("normalizer") or {}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": rules.get("lowercase", True),
        "strip_accents": rules.get("strip_accents"),
        "tokenize_chinese_chars": rules.get("handle_chinese_chars", True),
        **{f"{role}_token": token for role, token in SPECIAL_TOKENS.items()},
        "model_max_length": 512,
    }


# --- training ------------------------------------------------------------------------------------------------------


def _spool(config: TokenizerConfig, spool: IO[bytes]) -> tuple[np.ndarray, int]:
    """Write the normalised text of every document to `spool`; how often each character occurs, and how many documents."""
    notes = Notes()
    inputs = find_inputs(config, notes)
    counts = np.zeros(0x110000, np.int64)
    selection = Selection(config)
    build = functools.partial(_normalise, config.cased, config.keep_accents)
    with zstandard.ZstdCompressor(level=1).stream_writer(spool, closefd=False) as writer:
        for piece in harvest(config, inputs, build, "reading"):
            chosen = selection.choose(piece)
            text = "".join(
                f"{document}\n" for document, counts_too in zip(piece.value, chosen, strict=True) if counts_too
            )
            counts += np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32), minlength=0x110000)
            writer.write(text.encode())
            notes.merge(piece.notes)
            if selection.is_full:
                break
            if piece.is_last:
                require_documents(selection.num_documents, notes, config)
    require_documents(selection.num_documents, notes, config)
    print_notes(notes)
    return counts, selection.num_documents


def _normalise(cased: bool, keep_accents: bool, documents: list[Document], identities: np.ndarray) -> list[str]:
    """Each document as one line of normalised text."""
    normalizer = _normalizer(cased, keep_accents)

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
    """The most frequent characters; between equals the lower code point, so that nothing is left to chance."""
    present = [int(point) for point in counts.nonzero()[0] if not chr(point).isspace()]
    return {chr(point) for point in sorted(present, key=lambda point: (-counts[point], point))[:max_alphabet]}


def _first_pieces(alphabet: set[str], config: TokenizerConfig) -> list[str]:
    """The five special tokens, and every character that can stand inside a word."""
    splitter = BertPreTokenizer()
    inside_words = [c for c in sorted(alphabet) if len(splitter.pre_tokenize_str(f"a{c}a")) == 1]
    first = [*SPECIAL_TOKENS.values(), *(f"##{c}" for c in inside_words)]
    smallest = len(first) + len(alphabet)  # a character has one piece for the start of a word, one for its inside
    if smallest > config.vocab_size:
        raise UserError(
            f"--vocab-size {config.vocab_size} is too small for the {len(alphabet)} different characters of this text; "
            f"use {smallest} or more, or lower --max-alphabet"
        )
    return first


def _learn(texts: Iterator[str], first: list[str], config: TokenizerConfig) -> dict[str, int]:
    """Train WordPiece so that the same text gives the same vocabulary, always.

    The library numbers the pieces `##c` in the order of a hash table that differs from run to run, and equal counts are
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
