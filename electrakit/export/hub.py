"""Uploads an export to the Hugging Face Hub; errors are one line."""

import glob
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from electrakit.common.errors import UserError, one_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LOGIN = "hf auth login asks for one, or set HF_TOKEN"


def require_can_push(name: str, is_dry: bool = False) -> None:
    """Before the work: refuse a name that the Hub does not take, or a missing token."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"--push {name!r} is no name of a repository ({one_line(error)}); use one like me/electra-small-mine"
        ) from None
    if not is_dry and huggingface_hub.get_token() is None:
        raise UserError(f"--push {name} needs a token of the Hugging Face Hub that may write: {LOGIN}")


def push(folder: Path, name: str, mark: str, is_private: bool) -> str:
    """Create the repository if it does not exist, upload all files in one commit, and return the address.

    mark: the file that lists the files of an export.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi()
    kept = f"the export is complete in {folder}: the same command uploads it again"
    try:
        address = api.create_repo(name, private=is_private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            commit_message="Export of ElectraKit",
            delete_patterns=[glob.escape(old) for old in left_over(api, address.repo_id, folder, mark)] or None,
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        why = {401: f"the token is not valid ({LOGIN})", 403: f"the token may not write to {name}"}.get(
            status or 0, one_line(error)
        )
        raise UserError(f"the Hugging Face Hub refused --push {name}: {why}; {kept}") from None
    except OfflineModeIsEnabled:
        raise UserError(f"--push {name}: HF_HUB_OFFLINE forbids the network; unset it; {kept}") from None
    except Exception as error:
        # Errors of the network: the HTTP library of huggingface_hub, and with it its errors, have changed before.
        raise UserError(f"cannot reach {constants.ENDPOINT} for --push {name} ({one_line(error)}); {kept}") from None
    return str(address)


def left_over(api: "HfApi", name: str, folder: Path, mark: str) -> list[str]:
    """Files that an earlier export uploaded and this one lacks, such as ONNX files of older weights; not files that were added by hand."""
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with tempfile.TemporaryDirectory() as place:
        try:
            files = json.loads(Path(api.hf_hub_download(name, mark, local_dir=place)).read_text("utf-8"))["files"]
        except (RemoteEntryNotFoundError, json.JSONDecodeError, KeyError, TypeError):
            return []
    return sorted(str(file) for file in files if not (folder / str(file)).exists())
