"""Reads the batch of ids (B, T) of any step from shards, in an order that is computed, never stored."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from electrakit.common.errors import UserError
from electrakit.data.manifest import DTYPES, PREPARE_AGAIN, check_hash, files_of_split, read_manifest
from electrakit.data.row_file import RowFile, allow_open_files

ORDER = 1  # of `permute`: raise it with any change of the order, so that old runs refuse to resume instead of drifting


class Batches:
    """The rows of one split as a pure function of the step number.

    Sample number g = step * batch_size + i is row `permute(g % num_rows)` of epoch g // num_rows. Hence each row comes
    exactly once per epoch, a batch may straddle epochs, the global batch of a step does not depend on the
    world size, and starting at step 10**6 costs what starting at step 0 costs.
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
        """`batch_size` is global: over all ranks. `verify=False` compares the files' sizes only, not their hashes."""
        check_sizes(batch_size, rank, world_size, micro_batch)
        self.folder = Path(shards).absolute()  # absolute: a worker process may start elsewhere
        self.manifest = read_manifest(self.folder)
        self.length = self.manifest.length
        self.vocab_size = self.manifest.vocab_size
        self.special_ids = self.manifest.special_ids
        self.files = files_of_split(self.folder, self.manifest, split)
        self.first_rows = [0, *accumulate(file.rows for file in self.files)]  # and, last, the end
        self.num_rows = self.first_rows[-1]
        self.batch_size, self.split, self.seed, self.shuffle = batch_size, split, int(seed), shuffle
        self.first_place, self.end_place = batch_size * rank // world_size, batch_size * (rank + 1) // world_size
        self.most_rows = -(-batch_size // world_size)  # of the rank that has most
        self.micro_batch = micro_batch or self.most_rows
        self.steps_per_epoch = self.num_rows / batch_size  # rarely an integer: batches straddle epochs
        self._must_verify = verify

    def __call__(self, step: int) -> np.ndarray:
        """This rank's share of the global batch of that step: int64 (B, T)."""
        rows = []
        for row in self.row_numbers(step).tolist():
            file = bisect_right(self.first_rows, row) - 1
            rows.append(self._row_files[file].rows(row - self.first_rows[file]))
        ids = self._as_ids(rows)
        # Overwritten while it was read. In a network it would be an index error, which on a GPU ends the process.
        if ids.max(initial=0) >= self.vocab_size:
            change = self.find_change() or f"{self.folder} has ids beyond its {self.vocab_size:,} tokens"
            raise UserError(f"{change}: {PREPARE_AGAIN}")
        return ids.astype(np.int64)

    def open(self) -> None:
        """Compare the hashes and open the files; the first read does it too."""
        _ = self._row_files

    def find_change(self) -> str | None:
        """What another program has changed in the files since they were opened; None if nothing."""
        opened: list[RowFile] = vars(self).get("_row_files", [])
        return next((change for file in opened if (change := file.find_change())), None)

    def chunks(self, size: int, num_rows: int | None = None) -> Iterator[np.ndarray]:
        """All rows in the order of the files, or `num_rows` of them spread evenly, `size` at a time: ids (B, T) as stored."""
        num_rows = self.num_rows if num_rows is None else min(num_rows, self.num_rows)
        for first in range(0, num_rows, size):
            numbers = np.arange(first, min(num_rows, first + size)) * self.num_rows // num_rows
            files = np.searchsorted(self.first_rows, numbers, side="right") - 1
            yield np.concatenate([self._read(file, numbers[files == file]) for file in np.unique(files)])

    def _read(self, file: int, numbers: np.ndarray) -> np.ndarray:
        """Rows of one file by their rising numbers; those that follow one another are read at once."""
        blocks = np.split(numbers - self.first_rows[file], np.flatnonzero(np.diff(numbers) > 1) + 1)
        return self._as_ids([self._row_files[file].rows(int(block[0]), len(block)) for block in blocks])

    def _as_ids(self, rows: list[bytes]) -> np.ndarray:
        return np.frombuffer(b"".join(rows), DTYPES[self.manifest.dtype]).reshape(-1, self.length)

    def micro_batches(self, step: int) -> Iterator[np.ndarray]:
        """The same rows in the same order, in `num_micro` micro-batches of at most `micro_batch` rows, as even as possible.

        Where the sizes do not divide, micro-batches differ by one row, on one rank and between ranks. A mean loss over
        each must then be weighted by `len(ids) / batch_size` and summed over all micro-batches of all ranks (and times
        `world_size` where gradients are averaged over ranks, as DDP does). With `micro_batch=1` and a batch size that
        the world size does not divide, a rank with fewer rows than the others yields one empty micro-batch: skip its
        loss, which is the mean of nothing.
        """
        ids = self(step)
        for number in range(self.num_micro):
            yield ids[len(ids) * number // self.num_micro : len(ids) * (number + 1) // self.num_micro]

    @property
    def num_micro(self) -> int:
        """How many micro-batches there are: the same at each step and on every rank."""
        return -(-self.most_rows // self.micro_batch)

    def sample_numbers(self, step: int) -> range:
        """This rank's samples, counted since step 0: no two are equal, even when a row comes twice in one batch."""
        if step < 0:
            raise UserError(f"step is {step}: steps count from 0")
        first = int(step) * self.batch_size  # as Python's integers, which do not overflow
        return range(first + self.first_place, first + self.end_place)

    def row_numbers(self, step: int) -> np.ndarray:
        """Which rows of the split this rank reads at that step: int64 (B,)."""
        samples = self.sample_numbers(step)
        rows, sample = [], samples.start
        while sample < samples.stop:  # once per epoch that the batch touches
            epoch, first = divmod(sample, self.num_rows)
            end = min(self.num_rows, first + samples.stop - sample)
            index = np.arange(first, end)
            rows.append(permute(index, self.num_rows, key=self.seed << 64 | epoch) if self.shuffle else index)
            sample += end - first
        return np.concatenate(rows)

    @property
    def fingerprint(self) -> str:
        """Equal for two runs that read the same ids in the same order, whatever their world size and micro-batches."""
        files = [[file.rows, file.xxh3_128] for file in self.files]
        data = [self.length, self.vocab_size, self.special_ids, files]
        order = [ORDER, self.batch_size, self.seed if self.shuffle else None]
        return xxhash.xxh3_64_hexdigest(json.dumps([data, order], sort_keys=True).encode())

    @cached_property
    def _row_files(self) -> list[RowFile]:
        """The files, opened and compared with their hashes at the first read."""
        allow_open_files(len(self.files))
        row_bytes = self.length * DTYPES[self.manifest.dtype].itemsize
        opened = [RowFile(self.folder / file.name, file, row_bytes) for file in self.files]
        if self._must_verify:
            for file in self.files:
                check_hash(self.folder, file)
            self._must_verify = False
        return opened

    def __getstate__(self) -> dict[str, Any]:
        # Without the open files, which are of this process.
        return {name: value for name, value in vars(self).items() if name != "_row_files"}


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
        raise UserError(f"batch_size is {batch_size} for {world_size} processes: use a row each, or fewer processes")
