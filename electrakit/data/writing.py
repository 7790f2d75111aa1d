"""Rows in, files out: shards that grow and can be cut back."""

import json
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from electrakit.errors import UserError
from electrakit.hashes import hash_of_file
from electrakit.whole import write_whole

NOTEBOOK = ".prepare"
SHARD = re.compile(r"(train|valid|test)-[0-9]{5}\.bin(\.partial)?")


class ShardWriter:
    """Appends rows to one split's files: NAME.bin.partial while it grows, NAME.bin when it is full."""

    def __init__(
        self,
        folder: Path,
        split: str,
        length: int,
        dtype: np.dtype[Any],
        shard_mb: int,
        finished: list[dict[str, Any]],
        num_rows: int,
    ) -> None:
        """`finished` are the manifest's entries of the full files, `num_rows` how much of the next one counts."""
        self.folder, self.split, self.dtype = folder, split, dtype.newbyteorder("<")
        self.finished, self.num_rows = list(finished), num_rows
        self.row_bytes = length * dtype.itemsize
        self.max_rows = max(1, shard_mb * 2**20 // self.row_bytes)
        self._cut_back()
        self.file: BinaryIO | None = None

    @property
    def path(self) -> Path:
        return self.folder / f"{self.split}-{len(self.finished):05d}.bin"

    @property
    def partial(self) -> Path:
        return self.path.with_suffix(".bin.partial")

    def _cut_back(self) -> None:
        """Bring the files to the state that was last saved; what was written after it is made again."""
        kept = {entry["name"]: entry["rows"] * self.row_bytes for entry in self.finished}
        for path in sorted(self.folder.glob(f"{self.split}-*.bin*")):
            if not SHARD.fullmatch(path.name):
                continue  # such as somebody's train-00000.bin.bak
            if path == self.path:
                path.replace(self.partial)
            elif path.name not in kept and path != self.partial:
                path.unlink()
        with self.partial.open("ab"):
            kept[self.partial.name] = self.num_rows * self.row_bytes
        for name, num_bytes in kept.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size < num_bytes:
                raise UserError(f"{path} is shorter than it was left; remove the folder and start again")
        os.truncate(self.partial, self.num_rows * self.row_bytes)

    def append(self, rows: np.ndarray) -> None:
        while len(rows):
            room = self.max_rows - self.num_rows
            if not room:
                self._end_file()
                continue
            if self.file is None:
                self.file = self.partial.open("ab", buffering=0)
            write_numbers(self.file, rows[:room].astype(self.dtype, copy=False))
            self.num_rows += len(rows[:room])
            rows = rows[room:]

    def sync(self) -> None:
        if self.file is not None:
            os.fsync(self.file.fileno())

    def saved(self) -> dict[str, Any]:
        """What the notebook says about this split."""
        return {"finished": self.finished, "num_rows": self.num_rows}

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def _end_file(self) -> None:
        """The growing file gets its name and its entry in the manifest; the next one starts with the next row."""
        self.sync()
        self.close()
        if self.num_rows:
            self.partial.replace(self.path)
            entry = {"name": self.path.name, "rows": self.num_rows, "xxh3_128": hash_of_file(self.path)}
            self.finished.append(entry)
            self.num_rows = 0
        else:
            self.partial.unlink(missing_ok=True)

    def finish(self) -> list[dict[str, Any]]:
        """Close the last file; the manifest's entries for all of them."""
        self._end_file()
        return self.finished


def write_numbers(file: BinaryIO, numbers: np.ndarray) -> None:
    """All of it, straight to the file: nothing waits in a buffer that a full disk could not take later."""
    rest = np.ascontiguousarray(numbers).data.cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def write_json(path: Path, content: dict[str, Any], scratch: Path | None = None) -> None:
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), scratch)
