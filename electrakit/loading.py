"""A folder or a name of the hub in, the assurance out that loading it runs no code of others: safetensors only, no remote code."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electrakit.errors import UserError
from electrakit.hashes import hash_of_file, hash_of_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT = "load it where you trust it and save it with save_pretrained, which writes model.safetensors"


def require_safe(place: str) -> None:
    """Weights as safetensors only: a pickle can run any code when it is loaded. And a model whose code transformers has."""
    folder = Path(place)
    if not folder.is_dir():
        if folder.exists() or place.startswith((".", "/", "~")) or place.count("/") > 1:
            raise UserError(f"the model {place!r} is not a folder; name a transformers folder or a model of the hub")
        require_reachable(place)
        return
    require_a_model_itself(folder)
    if not (folder / "config.json").exists():
        raise UserError(f"{place!r} has no config.json; name the folder of a transformers model")
    require_own_code_is_not_needed(folder)
    if not any(folder.glob("*.safetensors")):
        pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
        if pickles:
            raise UserError(f"{place!r} has its weights in {pickles[0]}, a pickle that could run any code: {CONVERT}")
        raise UserError(f"{place!r} has no model.safetensors")
    for index in folder.glob("*.safetensors.index.json"):
        require_index_is_safe(index)


def require_a_model_itself(folder: Path) -> None:
    """A run of ours and the folder of a fine-tuning are easily named in place of a model."""
    if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
        return
    if (folder / "checkpoints").is_dir() or (folder / "state.json").exists():
        raise UserError(f"{str(folder)!r} is a run, not a model; electra export {folder} --out hf/mine makes one of it")
    if (folder / "model" / "config.json").exists():
        raise UserError(f"{str(folder)!r} is not a model itself; name the one in it: {folder / 'model'}")


def require_index_is_safe(path: Path) -> None:
    """Weights in several files: transformers reads what the index names as what it is called, pickles too."""
    try:
        names = set(map(str, json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot load {str(path.parent)!r}: {path.name} cannot be read ({one_line(error)})") from None
    if others := sorted(name for name in names if not name.endswith(".safetensors")):
        raise UserError(
            f"{str(path.parent)!r} has its weights in {others[0]} (by {path.name}), which is no safetensors: {CONVERT}"
        )


def require_own_code_is_not_needed(folder: Path) -> None:
    """A config with `auto_map` names Python files beside it. Where transformers knows the model, these are not needed."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind, has_code = config.get("model_type"), "auto_map" in config
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"cannot load {str(folder)!r}: config.json cannot be read ({one_line(error)})") from None
    if has_code and kind not in CONFIG_MAPPING:
        raise UserError(refusal(str(folder)))


def refusal(place: str) -> str:
    return f"{place!r} wants to run Python code of its own (auto_map), which we never do; name a model that transformers knows by itself"


def require_reachable(name: str) -> None:
    """One quick question to the hub, if the model is not in the cache: transformers would ask six times, in half a minute."""
    import huggingface_hub

    if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        huggingface_hub.HfApi().model_info(name, timeout=20)
    except Exception as error:  # of the network, of the hub, of the name
        why = one_line(error)[:200]
        raise UserError(f"{name!r} is no folder here, and the Hugging Face hub does not give it ({why})") from None


def weights_fingerprint(folder: Path) -> str:
    """Of a folder's weights, whatever else is in it."""
    return hash_of_text(" ".join(hash_of_file(path) for path in sorted(folder.glob("*.safetensors"))))


@contextlib.contextmanager
def readable(place: str) -> Iterator[None]:
    """What transformers cannot load is the user's to mend."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # safetensors', the hub's and transformers' own errors have no common class
        if "trust_remote_code" in str(error):  # it would advise to allow that
            raise UserError(refusal(place)) from None
        raise UserError(f"cannot load {place!r}: {one_line(error)}") from None


def load_whole(kind: Any, folder: Path) -> "PreTrainedModel":
    """The model of a folder as one of transformers' classes, in fp32, ready to be asked. No weight is made up."""
    import torch

    require_safe(os.fspath(folder))
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    with quiet(), readable(os.fspath(folder)):
        model, news = kind.from_pretrained(folder, **options, output_loading_info=True)
    if missing := sorted(news["missing_keys"]):
        raise UserError(f"the weights in {folder} are not whole: {missing[0]} is missing (of {len(missing)} in all)")
    return model.eval()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars, and its report that a head is new: it is meant to be."""
    from transformers.utils import logging

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
