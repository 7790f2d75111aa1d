"""Downloads GLUE from its official addresses; each file is checked against its known hash."""

import hashlib
import http.client
import io
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.progress import progress
from electrakit.finetune.tasks import TASKS, Download, find_task

TIMEOUT = 30.0


def download(folder: Path, tasks: Sequence[str] = ()) -> list[Path]:
    """Fetch what is missing in the folder; return the files of the tasks."""
    wanted = [find_task(name) for name in tasks] or list(TASKS.values())
    with explain_write_errors(folder):
        return [path for task in wanted for item in task.downloads for path in fetch(item, folder)]


def fetch(item: Download, folder: Path) -> list[Path]:
    mark = folder / ".downloaded" / f"{PurePosixPath(item.path).name}.{item.sha256[:16]}"
    if mark.exists():
        made = [folder / name for name in mark.read_text().splitlines()]
        if all(path.exists() for path in made):
            return made
    content = fetch_bytes(item)
    files = unpack(content) if item.path.endswith(".zip") else {item.path: content}
    for name, new in files.items():
        if (folder / name).exists() and (folder / name).read_bytes() != new:
            raise UserError(f"{folder / name} is not the released file; move it away, or name another folder")
    for name, new in files.items():
        atomic_write(folder / name, new)
    made = [folder / name for name in files]
    atomic_write(mark, "\n".join(str(path.relative_to(folder)) for path in made).encode())
    return made


def fetch_bytes(item: Download) -> bytes:
    """The content of an address, if it has the known hash."""
    parts, name = [], PurePosixPath(item.path).name
    try:
        with (
            urllib.request.urlopen(item.address, timeout=TIMEOUT) as answer,
            progress(f"fetching {name}", item.num_bytes, silent_below=2**20) as update,
        ):
            num_bytes = 0
            while part := answer.read(2**18):
                parts.append(part)
                num_bytes += len(part)
                if num_bytes > item.num_bytes:
                    raise UserError(f"{item.address} is larger than the {item.num_bytes:,} bytes of the released file")
                update(num_bytes)
    except (OSError, http.client.HTTPException) as error:  # URLError, timeouts and broken connections among them
        why = getattr(error, "reason", None) or error
        raise UserError(
            f"cannot fetch {item.address} ({why}); is there a network? The same command continues; or fetch it elsewhere"
        ) from None
    content = b"".join(parts)
    if hashlib.sha256(content).hexdigest() != item.sha256:
        raise UserError(
            f"{item.address} is not the released file: {len(content):,} bytes of {item.num_bytes:,}, or other content; "
            "try again, or fetch it elsewhere"
        )
    return content


def unpack(content: bytes) -> dict[str, bytes]:
    """The .tsv files of a zip, those of its task's folder only."""
    files = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            place = PurePosixPath(name)
            is_inside = len(place.parts) == 2 and place.parts[0] not in ("/", "..", "__MACOSX")
            if place.suffix == ".tsv" and is_inside:  # MNLI/original/ and the like are not needed
                files[str(place)] = archive.read(name)
    return files
