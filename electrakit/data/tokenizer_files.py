"""Loads a tokenizer from a folder, a file or the Hugging Face hub, builds one from a vocabulary, and writes its files."""

import contextlib
import functools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, first_line
from electrakit.common.safe_load import hub_problem

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")  # either is enough; the first one counts


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
        files = {
            "vocab.txt": "".join(f"{token}\n" for token in self.vocabulary),
            "tokenizer_config.json": json.dumps(self.config, indent=2) + "\n",
            "tokenizer.json": self.json,
        }
        for name, text in files.items():
            atomic_write(folder / name, text.encode())


def has_tokenizer_files(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def load_tokenizer(name: str | Path) -> TokenizerFiles:
    """Open a folder, a tokenizer.json, a vocab.txt, or a name on the hub."""
    path = Path(name)
    if path.is_dir():
        found = [path / file for file in TOKENIZER_FILES if (path / file).exists()]
        if not found:
            raise UserError(f"no tokenizer in {str(name)!r}: it has neither tokenizer.json nor vocab.txt")
        path = found[0]
    elif not path.exists():
        path = _from_hub(str(name))
    settings = path.parent / "tokenizer_config.json"
    try:
        config = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
        if not isinstance(config, dict):
            raise UserError(f"{settings} is no JSON object; copy it again, or remove it")
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return _from_vocabulary(text, config)
        tokenizer = Tokenizer.from_str(text)
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
        if problem := hub_problem(name):
            raise UserError(
                f"no tokenizer at {name!r}: there is no such folder or file, and the Hugging Face hub does not give it "
                f"({problem}); name a folder, a tokenizer.json or a vocab.txt"
            )
        path = _download(name, is_local=False)
    if path is None:
        raise UserError(f"no tokenizer at {name!r}: that name on the hub has neither tokenizer.json nor vocab.txt")
    return path


def _download(name: str, is_local: bool) -> Path | None:
    """A file of the hub, or with `is_local` of its cache; None if there is neither tokenizer.json nor vocab.txt."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError

    download = functools.partial(huggingface_hub.hf_hub_download, name, local_files_only=is_local)
    for file in TOKENIZER_FILES:
        try:
            path = download(file)
        except EntryNotFoundError:  # LocalEntryNotFoundError is one too
            continue
        except GatedRepoError:
            raise UserError(f"no permission for {name!r} on the hub: ask for access there, and log in") from None
        except Exception as error:  # whatever else: it cannot be had
            raise UserError(f"cannot load {name!r} from the hub ({first_line(error, 80)}); try again later") from None
        with contextlib.suppress(EntryNotFoundError):
            download("tokenizer_config.json")
        return Path(path)
    return None


def _from_vocabulary(text: str, config: dict[str, Any]) -> TokenizerFiles:
    """Build a tokenizer from a vocab.txt, which does not record whether it is cased: one with a capital letter is."""
    tokens = [token.rstrip("\r") for token in text.rstrip("\n").split("\n")]
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
    files = wordpiece(vocabulary, is_cased, keep_accents=config.get("strip_accents") is False)
    if "do_lower_case" in config:
        return files
    found, read_as = ("capital letters", "cased") if is_cased else ("no capital letters", "lower-case")
    return replace(files, remark=f"The vocabulary has {found}: read as {read_as}.")


def bert_normalizer(cased: bool, keep_accents: bool) -> BertNormalizer:
    return BertNormalizer(lowercase=not cased, strip_accents=False if keep_accents else None)


def wordpiece(vocabulary: dict[str, int], cased: bool, keep_accents: bool) -> TokenizerFiles:
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = bert_normalizer(cased, keep_accents)
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
    """tokenizer_config.json, as transformers reads it."""
    rules = json.loads(tokenizer.to_str()).get("normalizer") or {}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": rules.get("lowercase", True),
        "strip_accents": rules.get("strip_accents"),
        "tokenize_chinese_chars": rules.get("handle_chinese_chars", True),
        **{f"{role}_token": token for role, token in SPECIAL_TOKENS.items()},
        "model_max_length": 512,
    }
