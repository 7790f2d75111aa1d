"""Shards on disk in, "step number -> ids (B, T)" out: memory-mapped, in an order that is computed, never stored."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from electrakit.errors import UserError
from electrakit.hashes import hash_of_file
from electrakit.progress import progress

FORMAT = 1  # of manifest.json
ORDER = 1  # of `permute`: raise it with any change of the order, so that old runs refuse to resume instead of drifting
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
MANIFEST_KEYS = ("length", "dtype", "vocab_size", "special_ids", "splits")
PREPARE_AGAIN = "copy the folder again, or remove it and run electra prepare again"


class Batches:
    """The rows of one split as a pure function of the step number.

    Sample number g = step * batch_size + i is row `permute(g % num_rows)` of epoch g // num_rows. Hence each row comes
    exactly once per epoch, a batch may straddle epochs, the global batch of a step does not depend on the number of
    workers, and starting at step 10**6 costs what starting at step 0 costs.
    """

    def __init__(
        self,
        shards: str | Path,
        batch_size: int,
        *,
        split: str = "train",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int | None = None,
        shuffle: bool = True,
        verify: bool = True,
    ) -> None:
        """`batch_size` is global: over all workers. `verify=False` compares the files' sizes only, not their hashes."""
        check_sizes(batch_size, rank, world_size, micro_batch)
        self.folder = Path(shards).absolute()  # absolute: a worker process may start elsewhere
        self.manifest = read_manifest(self.folder)
        self.length: int = self.manifest["length"]
        self.vocab_size: int = self.manifest["vocab_size"]
        self.special_ids: dict[str, int] = self.manifest["special_ids"]
        self.files = files_of_split(self.folder, self.manifest, split)
        self.first_rows = [0, *accumulate(file["rows"] for file in self.files)]  # and, last, the end
        self.num_rows = self.first_rows[-1]
        self.batch_size, self.split, self.seed, self.shuffle = batch_size, split, int(seed), shuffle
        self.first_place, self.end_place = batch_size * rank // world_size, batch_size * (rank + 1) // world_size
        self.most_rows = -(-batch_size // world_size)  # of the worker that has most
        self.micro_batch = micro_batch or self.most_rows
        self.steps_per_epoch = self.num_rows / batch_size  # rarely whole: batches straddle epochs
        self._must_verify = verify
        self._rows_of_file: list[np.ndarray] | None = None  # opened at the first read

    def __call__(self, step: int) -> np.ndarray:
        """This worker's part of the global batch of that step: int64 (B, T)."""
        if self._rows_of_file is None:
            self.open()
        rows_of_file, first_rows = self._rows_of_file, self.first_rows
        assert rows_of_file is not None
        pieces = []
        for row in self.row_numbers(step).tolist():
            file = bisect_right(first_rows, row) - 1
            pieces.append(rows_of_file[file][row - first_rows[file]])
        return np.concatenate(pieces).reshape(-1, self.length).astype(np.int64)

    def micro_batches(self, step: int) -> Iterator[np.ndarray]:
        """The same rows in the same order, in `num_micro` pieces of at most `micro_batch` rows, as even as can be.

        Where the sizes do not divide, pieces differ by one row, on one worker and between workers. A mean loss over
        each piece must then be weighted: by `len(ids) / batch_size`, summed over all pieces of all workers (and times
        `world_size` where gradients are averaged over workers, as DDP does). With `micro_batch=1` and a batch size that
        the workers do not divide, a worker with fewer rows than the others
        yields one empty piece: skip its loss, which is the mean of nothing.
        """
        ids = self(step)
        for number in range(self.num_micro):
            yield ids[len(ids) * number // self.num_micro : len(ids) * (number + 1) // self.num_micro]

    @property
    def num_micro(self) -> int:
        """How many pieces `micro_batches` yields: the same at each step and on every worker."""
        return -(-self.most_rows // self.micro_batch)

    def sample_numbers(self, step: int) -> range:
        """This worker's samples, counted since step 0: no two are equal, even when a row comes twice in one batch."""
        if step < 0:
            raise UserError(f"step is {step}: steps count from 0")
        first = int(step) * self.batch_size  # as Python's integers, which do not overflow
        return range(first + self.first_place, first + self.end_place)

    def row_numbers(self, step: int) -> np.ndarray:
        """Which rows of the split this worker reads at that step: int64 (B,)."""
        samples = self.sample_numbers(step)
        pieces, sample = [], samples.start
        while sample < samples.stop:  # once per epoch that the batch touches
            epoch, first = divmod(sample, self.num_rows)
            end = min(self.num_rows, first + samples.stop - sample)
            index = np.arange(first, end)
            pieces.append(permute(index, self.num_rows, epoch_key(self.seed, epoch)) if self.shuffle else index)
            sample += end - first
        return np.concatenate(pieces)

    @property
    def fingerprint(self) -> str:
        """Equal for two runs that read the same ids in the same order, whatever their workers and micro-batches."""
        files = [[file["rows"], file["xxh3_128"]] for file in self.files]
        data = [self.length, self.vocab_size, self.special_ids, files]
        order = [ORDER, self.batch_size, self.seed if self.shuffle else None]
        return xxhash.xxh3_64_hexdigest(json.dumps([data, order], sort_keys=True).encode())

    def open(self) -> None:
        """Compare the hashes and map the files; the first read does it too."""
        if self._must_verify:
            for file in self.files:
                check_hash(self.folder / file["name"], file["xxh3_128"])
            self._must_verify = False
        dtype = DTYPES[self.manifest["dtype"]]
        self._rows_of_file = [
            # as a plain array: taking a row of a np.memmap costs ten times more
            np.memmap(self.folder / file["name"], dtype, "r", shape=(file["rows"], self.length)).view(np.ndarray)
            for file in self.files
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows_of_file": None}  # a map of a file pickles as its whole content


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """A keyed permutation of range(size), computed at `index` alone: int64, of the shape of `index`.

    A Feistel network on (left, right) digits modulo (about sqrt(size), about sqrt(size)) instead of halves of bits
    (Black and Rogaway 2002): its domain is at most sqrt(size) + 1 too large, so walking the cycle back inside is rare.
    """
    flat = np.ravel(index).astype(np.uint64)  # what is below zero becomes too large
    assert 0 < size < 2**62 and (flat < size).all(), f"index outside range({size})"
    num_left = isqrt(size - 1) + 1
    num_right = -(-size // num_left)
    # Chi-square over keys: 4 rounds show up to size 100, 6 and 8 in the orders of 5 rows, 16 and 24 nowhere we looked.
    num_rounds = 8 if size > 256 else 24
    round_keys = np.frombuffer(hashlib.shake_128(b"%d" % key).digest(8 * num_rounds), "<u8").astype(np.uint64)
    moved = feistel(flat, num_left, num_right, round_keys)
    outside = np.flatnonzero(moved >= size)
    while outside.size:
        moved[outside] = again = feistel(moved[outside], num_left, num_right, round_keys)
        outside = outside[again >= size]
    return moved.astype(np.int64).reshape(np.shape(index))


def feistel(index: np.ndarray, num_left: int, num_right: int, round_keys: np.ndarray) -> np.ndarray:
    left, right = np.divmod(index, num_right)
    for left_key, right_key in round_keys.reshape(-1, 2):
        left = (left + scatter(right, left_key)) % num_left
        right = (right + scatter(left, right_key)) % num_right
    return left * num_right + right


def scatter(digit: np.ndarray, round_key: np.uint64) -> np.ndarray:
    """40 well-mixed bits: multiply, fold, multiply, keep the top. Few operations: numpy's price is per operation."""
    mixed = (digit ^ round_key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return mixed >> np.uint64(24)


def epoch_key(seed: int, epoch: int) -> int:
    return seed << 64 | epoch


def read_manifest(folder: Path) -> dict[str, Any]:
    """manifest.json of a shards folder, known to be complete and of our format."""
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise UserError(f"no shards folder {folder}: make it with electra prepare, or correct the path")
    if not path.is_file():
        raise UserError(f"{folder} has no manifest.json, so it is unfinished: run electra prepare again to finish it")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): {PREPARE_AGAIN}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise UserError(f"{path} has format {found!r}, we read {FORMAT}: update electrakit, or prepare again")
    if missing := [key for key in MANIFEST_KEYS if key not in manifest]:
        raise UserError(f"{path} lacks {', '.join(missing)}: {PREPARE_AGAIN}")
    if manifest["dtype"] not in DTYPES:
        raise UserError(f"{path} has dtype {manifest['dtype']!r}, known are {', '.join(DTYPES)}: {PREPARE_AGAIN}")
    return manifest


def files_of_split(folder: Path, manifest: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """The files of the split that have rows, each present and of the size that the manifest says."""
    splits = manifest["splits"]
    if split not in splits:
        raise UserError(f"{folder} has no split {split!r}: choose one of {', '.join(splits) or '(it has none)'}")
    files = [file for file in splits[split]["files"] if file["rows"]]
    num_rows = sum(file["rows"] for file in files)
    if num_rows != splits[split]["rows"]:
        said = f"split {split!r} has {splits[split]['rows']} rows, its files {num_rows}"
        raise UserError(f"{folder / 'manifest.json'} is damaged ({said}): {PREPARE_AGAIN}")
    if not files:
        raise UserError(f"split {split!r} of {folder} has 0 rows: prepare more text, or a larger part for this split")
    for file in files:
        path = folder / file["name"]
        if not path.is_file():
            raise UserError(f"{path} is missing: {PREPARE_AGAIN}")
        size, wanted = path.stat().st_size, file["rows"] * manifest["length"] * DTYPES[manifest["dtype"]].itemsize
        if size != wanted:
            what = "truncated" if size < wanted else "too long"
            raise UserError(f"{path} is {what} ({size} bytes, the manifest says {wanted}): {PREPARE_AGAIN}")
    return files


def check_files(folder: Path, manifest: dict[str, Any]) -> int:
    """Compare every file of every split with the manifest, byte for byte; the number of rows in all of them."""
    files = [file for split in manifest["splits"] for file in files_of_split(folder, manifest, split)]
    num_bytes = [(folder / file["name"]).stat().st_size for file in files]
    with progress("checking shards", sum(num_bytes), silent_below=2**30) as update:
        for file, done in zip(files, accumulate(num_bytes), strict=True):
            check_hash(folder / file["name"], file["xxh3_128"])
            update(done)
    return sum(file["rows"] for file in files)


def check_hash(path: Path, wanted: str) -> None:
    found = hash_of_file(path)
    if found != wanted:
        raise UserError(f"{path} is damaged (xxh3_128 {found}, the manifest says {wanted}): {PREPARE_AGAIN}")


def check_sizes(batch_size: int, rank: int, world_size: int, micro_batch: int | None) -> None:
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}: use 1 or more")
    if micro_batch is not None and micro_batch < 1:
        raise UserError(f"micro_batch is {micro_batch}: use 1 or more, or None for the whole batch at once")
    if world_size < 1:
        raise UserError(f"world_size is {world_size}: use 1 or more")
    if not 0 <= rank < world_size:
        raise UserError(f"rank is {rank}, world_size {world_size}: use a rank from 0 to {world_size - 1}")
    if batch_size < world_size:
        raise UserError(f"batch_size is {batch_size} for {world_size} workers: use a row each, or fewer workers")
