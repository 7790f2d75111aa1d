"""A folder in, a lock on it: of several processes, also on other machines, only one writes there.

The system's lock (flock) ends with its process, however that ends. Some network file systems have none (NFS without lockd, Lustre without
-o flock). There a file says who writes: host, process, and a heartbeat, by which another process sees whether the writer is alive.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electrakit.common.errors import UserError

NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
LOCK_FILE = ".lock"
HELD_FILE = f"{LOCK_FILE}.held"
HEARTBEAT = 10.0  # seconds between two signs of life
PATIENCE = 60.0  # seconds without one after which a writer on another machine counts as dead
TAKEN_OVER: set[Path] = set()  # folders that others took from this process, which had paused for longer


@contextlib.contextmanager
def write_lock(out: Path, flag: str = "--out") -> Iterator[None]:
    """Let only one process write a folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / LOCK_FILE
    with path.open("a") as file, contextlib.ExitStack() as held:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed the file together with its folder just before we locked it.
            is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            is_ours = held.enter_context(heartbeat_lock(out))
        if not is_ours:
            raise UserError(f"another process is writing {out}; wait for it, or name another {flag}")
        yield


# Where there is no flock


@contextlib.contextmanager
def heartbeat_lock(out: Path) -> Iterator[bool]:
    """Whether this process may write; if so, it is told to the others until the end of the block."""
    from electrakit.common.progress import say_once

    path = out / HELD_FILE
    if not take(path):
        yield False
        return
    say_once(
        f"{out} is on a file system without locks: {HELD_FILE} keeps other processes out. After a kill, a start on another machine "
        f"waits {PATIENCE:.0f} s to see whether the process still lives"
    )
    TAKEN_OVER.discard(out.absolute())
    is_over = threading.Event()
    beating = threading.Thread(target=beat, args=(path, is_over, identity()), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        is_over.set()
        beating.join()
        with contextlib.suppress(OSError):
            if read(path) == identity():
                path.unlink()


def beat(path: Path, is_over: threading.Event, holder: dict[str, Any]) -> None:
    """Give signs of life of the holder, until the file is another's."""
    while not is_over.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            if read(path) != holder:
                TAKEN_OVER.add(path.parent.absolute())
                return
            os.utime(path)


def is_taken_over(out: Path) -> bool:
    """Whether another process writes this folder by now, because this one had given no sign of life."""
    return out.absolute() in TAKEN_OVER


def take(path: Path) -> bool:
    """Create the file, which only one process can; that of a dead process is removed first."""
    if create(path):
        return True
    holder = read(path)
    return (holder is None or is_dead(path, holder)) and take_over(path, holder)


def take_over(path: Path, dead: dict[str, Any] | None) -> bool:
    """Only one process at a time removes the file of a dead one, and only that very file; any may then create the next."""
    permit = path.with_name(f"{path.name}.removal")
    if not create(permit):
        other = read(permit)
        if other is None or not is_dead(permit, other):
            return False
        permit.unlink(missing_ok=True)  # of a process that was killed in this moment
        if not create(permit):
            return False
    try:
        if read(path) == dead:
            path.unlink(missing_ok=True)
        return create(path)
    finally:
        permit.unlink(missing_ok=True)


def create(path: Path) -> bool:
    """Written under another name and linked, so that no reader sees half of it. Where there are no links, written in place."""
    whole = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}")
    whole.write_text(json.dumps(identity()), encoding="utf-8")
    try:
        os.link(whole, path)
        return True
    except FileExistsError:
        return False
    except OSError:
        with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(identity()))
            return True
        return False
    finally:
        whole.unlink()


def read(path: Path) -> dict[str, Any] | None:
    """Who holds the lock; None if it is free. A file that a kill cut off names no live process."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def identity() -> dict[str, Any]:
    """This process, so that no other has the same: process numbers are of a machine, its start and its container."""
    machine = [socket.gethostname()]
    with contextlib.suppress(OSError):
        machine.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        machine.append(str(Path("/proc/self/ns/pid").readlink()))
    return {"host": " ".join(machine), "pid": os.getpid(), "started": started(os.getpid())}


def started(pid: int) -> str | None:
    """When a process of this machine was started, in the system's ticks; None if it does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def is_dead(path: Path, holder: dict[str, Any]) -> bool:
    """On this machine the system knows. Elsewhere: no sign of life for a while, by what we see, not by anyone's clock."""
    if holder.get("host") == identity()["host"] and Path("/proc/self/stat").exists():
        return started(int(holder.get("pid") or 0)) != holder.get("started")
    from electrakit.common.progress import print_message

    try:
        last = path.stat().st_mtime_ns
        where = str(holder.get("host", "unknown")).split()[:1]
        print_message(
            f"waiting up to {PATIENCE:.0f} s to see whether {path.parent} is still written by {' '.join(where)}"
        )
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(min(1.0, PATIENCE / 10))
            with path.open("rb") as file:  # opening asks a network file system for the newest state
                if os.fstat(file.fileno()).st_mtime_ns != last:
                    return False
    except FileNotFoundError:
        return True
    return read(path) in (holder, None)
