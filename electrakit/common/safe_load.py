"""Loads transformers models without running code of others: safetensors only, no remote code."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from electrakit.common.errors import UserError, one_line
from electrakit.common.hashing import hash_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SECONDS_FOR_HUB = 20.0
CONVERT = "load it where you trust it and save it with save_pretrained, which writes model.safetensors"


def require_safe(place: str) -> None:
    """Refuse weights in pickles, which can run any code when they are loaded, and models that bring their own code."""
    folder = Path(place)
    if not folder.is_dir():
        if folder.exists() or place.startswith((".", "/", "~")) or place.count("/") > 1:
            raise UserError(f"the model {place!r} is not a folder; name a transformers folder or a model of the hub")
        if not is_cached(place) and (problem := hub_problem(place)):
            raise UserError(f"{place!r} is no folder here, and the Hugging Face hub does not give it ({problem})")
        return
    has_config = (folder / "config.json").exists()
    # The test predictions of a fine-tuning are safetensors, too.
    has_weights = any(not path.name.endswith(".test.safetensors") for path in folder.glob("*.safetensors"))
    if not (has_config and has_weights):
        point_to_model(folder)
    if not has_config:
        raise UserError(f"{place!r} has no config.json; name the folder of a transformers model")
    require_known_model(folder)
    if not has_weights:
        pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
        if pickles:
            raise UserError(
                f"{place!r} has its weights in {pickles[0]}, a pickle that could run any code: {way_to_convert(place)}"
            )
        raise UserError(f"{place!r} has no model.safetensors")
    for index in folder.glob("*.safetensors.index.json"):
        require_index_is_safe(index)


def way_to_convert(place: str) -> str:
    """From pickled weights to safetensors."""
    if "deberta" not in place.lower() and not (Path(place) / "pytorch_model.generator.bin").is_file():
        return CONVERT
    folder = place if Path(place).is_dir() else "FOLDER"
    return f"electra convert-deberta {folder} --out hf/dv3 makes safetensors of a download of Microsoft's pair"


def point_to_model(folder: Path) -> None:
    """From a run, or the folder of a fine-tuning, to the model that was probably meant."""
    if (folder / "checkpoints").is_dir() or (folder / "state.json").exists():
        raise UserError(f"{str(folder)!r} is a run, not a model; electra export {folder} --out hf/mine makes one of it")
    if (folder / "model" / "config.json").exists():
        raise UserError(f"{str(folder)!r} is not a model itself; name the one in it: {folder / 'model'}")


def require_index_is_safe(path: Path) -> None:
    """Weights in several files: transformers loads whatever files the index names, pickles too."""
    try:
        names = set(map(str, json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot load {str(path.parent)!r}: {path.name} cannot be read ({one_line(error)})") from None
    if others := sorted(name for name in names if not name.endswith(".safetensors")):
        raise UserError(
            f"{str(path.parent)!r} has its weights in {others[0]} (by {path.name}), which is no safetensors: {CONVERT}"
        )


def require_known_model(folder: Path) -> None:
    """A config with `auto_map` names Python files beside it, which are not needed if transformers knows the model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind, has_code = config.get("model_type"), "auto_map" in config
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"cannot load {str(folder)!r}: config.json cannot be read ({one_line(error)})") from None
    if has_code and kind not in CONFIG_MAPPING:
        raise UserError(remote_code_message(str(folder)))


def remote_code_message(place: str) -> str:
    return f"{place!r} wants to run Python code of its own (auto_map), which we never do; name a model that transformers knows by itself"


def is_cached(name: str) -> bool:
    """Whether a model of the hub has been downloaded before."""
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)


def hub_problem(name: str, kind: Literal["model", "dataset"] = "model") -> str | None:
    """Why the Hugging Face hub does not give a model or dataset; None if it does.

    One quick request: the libraries themselves try five or six times, for half a minute or more, and print each time.
    """
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        huggingface_hub.HfApi().repo_info(name, repo_type=kind, timeout=SECONDS_FOR_HUB)
    except GatedRepoError:
        return "ask there for access, and log in"
    except RepositoryNotFoundError:
        return f"there is no {kind} of this name"
    except Exception as error:  # of the network or of the hub: they have no common class
        return one_line(error, 200)
    return None


def weights_fingerprint(folder: Path) -> str:
    """A hash of a folder's weights, whatever else is in it."""
    return hash_files(sorted(folder.glob("*.safetensors")))


@contextlib.contextmanager
def explain_load_errors(place: str) -> Iterator[None]:
    """Turn whatever transformers raises while it loads a model into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # safetensors', the hub's and transformers' own errors have no common class
        if "trust_remote_code" in str(error):  # it would advise to allow that
            raise UserError(remote_code_message(place)) from None
        if "use_safetensors" in str(error):  # it would advise to load the pickle
            raise UserError(f"{place!r} has no model.safetensors, only a pickle: {way_to_convert(place)}") from None
        raise UserError(f"cannot load {place!r}: {one_line(error)}") from None


def load_full_model(kind: Any, folder: Path) -> "PreTrainedModel":
    """The model of a folder as one of transformers' classes, in fp32 and in evaluation mode. No weight may be missing."""
    import torch

    require_safe(os.fspath(folder))
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    with quiet_transformers(), explain_load_errors(os.fspath(folder)):
        model, report = kind.from_pretrained(folder, **options, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"the weights in {folder} are incomplete: {missing[0]} is missing (of {len(missing)} in all)")
    return model.eval()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers: its progress bars, and its report that a head is new, which is intended."""
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
