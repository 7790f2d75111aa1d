"""Loads a tokenizer from a folder, a file or the Hugging Face hub, builds one from a vocabulary, and writes its files."""

import contextlib
import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from electrakit.common.errors import UserError, first_line
from electrakit.common.safe_load import hub_problem
from electrakit.data.sentencepiece import from_sentencepiece
from electrakit.data.tokenizer_kinds import SPECIAL_TOKENS, transformers_config, wordpiece
from electrakit.data.tokenizer_kinds import TokenizerFiles as TokenizerFiles

SENTENCEPIECE_FILES = ("spm.model", "spiece.model", "tokenizer.model")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", *SENTENCEPIECE_FILES)  # one is enough; the first one counts
NO_FILE = "neither tokenizer.json nor vocab.txt nor a SentencePiece model"


MAX_GAP = 10_000  # of ids that belong to no token
PROBES = ("a", "An example: 1 + 1.", "\U0010fffd \u0378é 日本", "")
"""Texts that a tokenizer must be able to encode, with characters that none knows."""


def has_tokenizer_files(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def kind_of_file(path: Path) -> str | None:
    """The kind that a tokenizer.json says it is; None if it says none. Much faster than loading it."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["model"]["type"]).lower()
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load_tokenizer(name: str | Path) -> TokenizerFiles:
    """Open a folder, a tokenizer.json, a vocab.txt, a SentencePiece .model, or a name on the hub."""
    path = Path(name)
    if path.is_dir():
        found = [path / file for file in TOKENIZER_FILES if (path / file).exists()]
        if not found:
            raise UserError(f"no tokenizer in {str(name)!r}: it has {NO_FILE}")
        path = found[0]
    elif not path.exists():
        path = _from_hub(str(name))
    settings = path.parent / "tokenizer_config.json"
    try:
        config = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
        _check_config(config, settings)
        if path.suffix == ".model":
            return _encodable(from_sentencepiece(path.read_bytes(), config))
        text = path.read_text(encoding="utf-8")
        return _encodable(_from_json(text, config) if path.suffix == ".json" else _from_vocabulary(text, config))
    except UnicodeDecodeError:
        raise UserError(
            f"{str(path)!r} is not a vocabulary, nor text of any kind; name a folder, a tokenizer.json, a vocab.txt or a hub name"
        ) from None
    except UserError as error:
        if str(settings) in str(error):
            raise
        raise UserError(f"cannot read the tokenizer {str(path)!r}: {error}") from None
    except (
        BaseException
    ) as error:  # tokenizers raises plain Exception for a damaged file, or panics, which is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"cannot read the tokenizer {str(path)!r}: {first_line(error, 200)}") from None


def _check_config(config: Any, settings: Path) -> None:
    """Refuse settings of other types than those that are used here."""
    if not isinstance(config, dict):
        raise UserError(f"{settings} is no JSON object; copy it again, or remove it")
    wanted: dict[str, tuple[type, ...]] = dict.fromkeys((f"{role}_token" for role in SPECIAL_TOKENS), (str, dict))
    wanted |= {"model_max_length": (int, float), "do_lower_case": (bool,), "strip_accents": (bool,)}
    for name, kinds in wanted.items():
        value = config.get(name)
        text = _token_text(value) if dict in kinds else value
        if value is not None and (not isinstance(value, kinds) or (dict in kinds and not isinstance(text, str))):
            raise UserError(
                f"{settings} has {name} {str(value)[:60]!r}, which is no such setting; copy it again, or remove it"
            )


def _from_json(text: str, config: dict[str, Any]) -> TokenizerFiles:
    _check_ids(json.loads(text))
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.get_vocab(with_added_tokens=True)
    names = {role: _token_text(config.get(f"{role}_token")) or default for role, default in SPECIAL_TOKENS.items()}
    missing = [token for token in names.values() if token not in ids]
    if missing:
        raise UserError(f"it lacks {', '.join(missing)}; ELECTRA needs all of {list(names.values())}")
    special_ids = {role: ids[token] for role, token in names.items()}
    kept: dict[str, Any] = {name: config[name] for name in ("model_max_length", "model_input_names") if name in config}
    settings = {**transformers_config(tokenizer, names), **kept}
    return TokenizerFiles(tokenizer.to_str(pretty=True), special_ids, settings)


def _check_ids(settings: Any) -> None:
    """Refuse ids far beyond the number of tokens: `tokenizers` counts up to the highest."""
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise UserError("it is no tokenizer.json: it has no model")
    vocabulary = settings["model"].get("vocab")
    ids: list[Any] = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if isinstance(vocabulary, list):  # of a unigram model: the place is the id
        ids = list(range(len(vocabulary)))
    added = settings.get("added_tokens")
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    highest = max((number for number in ids if isinstance(number, int)), default=0)
    if highest >= 2 * len(ids) + MAX_GAP:
        raise UserError(f"its {len(ids):,} tokens have ids up to {highest:,}: it is damaged")


def _encodable(files: TokenizerFiles) -> TokenizerFiles:
    """The same, if every token has an id of its own and any text can be encoded."""
    ids = files.tokenizer.get_vocab(with_added_tokens=True)
    highest = max(ids.values())
    if len(set(ids.values())) < len(ids):
        raise UserError("two of its tokens have the same id: it is damaged")
    if len(set(files.special_ids.values())) < len(files.special_ids):
        raise UserError(f"two of its special tokens are the same: {files.special_ids}")
    for text in PROBES:
        found = files.tokenizer.encode(text).ids
        if found and max(found) > highest:
            raise UserError(f"it gives the id {max(found)}, but has ids up to {highest} only: it is damaged")
    return files


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
        raise UserError(f"no tokenizer at {name!r}: that name on the hub has {NO_FILE}")
    return path


def _download(name: str, is_local: bool) -> Path | None:
    """A file of the hub, or with `is_local` of its cache; None if there is none."""
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
