"""Shards of given rows."""

import json
from pathlib import Path

import numpy as np
import xxhash

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def write_rows(folder: Path, vocab_size: int, **files_of_split: list[np.ndarray]) -> Path:
    """A shards folder; each file is given by its rows (N, T)."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = "uint16" if vocab_size <= 2**16 else "uint32"
    splits = {}
    for split, arrays in files_of_split.items():
        files = []
        for number, rows in enumerate(arrays):
            data = rows.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
            name = f"{split}-{number:05}.bin"
            (folder / name).write_bytes(data)
            files.append({"name": name, "rows": len(rows), "xxh3_128": xxhash.xxh3_128_hexdigest(data)})
        splits[split] = {"rows": sum(map(len, arrays)), "files": files}
    length = next(rows.shape[1] for arrays in files_of_split.values() for rows in arrays)
    manifest = {"format": 1, "length": length, "dtype": dtype, "vocab_size": vocab_size, "special_ids": SPECIAL}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "splits": splits}))
    return folder
