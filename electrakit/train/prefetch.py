"""Reads the micro-batches of the next step, and copies them to the device, while the current step is computed."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from electrakit.data.batches import Batches
from electrakit.objective.masking import MaskedBatch
from electrakit.objective.randomness import row_keys
from electrakit.train.distributed import ProcessGroup


class MicroBatch(NamedTuple):
    """Rows that go through the networks at once."""

    ids: Tensor  # (B, T)
    draws: Tensor | MaskedBatch  # the keys of the rows (B, 2), or what the objective has masked by them
    num_rows: int  # 0 if only other ranks have rows left: `ids` is then a placeholder that must not count
    is_last: bool  # of the step


class Prefetch:
    """The micro-batches of each step for this rank."""

    def __init__(self, batches: Batches, seed: int, group: ProcessGroup) -> None:
        self.batches, self.seed, self.device = batches, seed, group.device
        prepare = (lambda: torch.cuda.set_device(group.device)) if group.device.type == "cuda" else None
        self.reader = ThreadPoolExecutor(1, "prefetch", initializer=prepare)
        self.next: tuple[int, Future[list[MicroBatch]]] | None = None

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Those of this step. Reading those of the next step begins."""
        next_step, reading = self.next or (None, None)
        if reading is None or next_step != step:
            reading = self.reader.submit(self.read, step)
        micro_batches = reading.result()
        self.next = (step + 1, self.reader.submit(self.read, step + 1))
        return micro_batches

    def read(self, step: int) -> list[MicroBatch]:
        return list(self.iterate(step))

    def iterate(self, step: int) -> Iterator[MicroBatch]:
        numbers = self.batches.sample_numbers(step)
        first = 0
        for place, rows in enumerate(self.batches.micro_batches(step), 1):
            ids, num_rows = torch.from_numpy(rows), len(rows)
            keys = row_keys(self.seed, step, numbers[first : first + num_rows])
            if not num_rows:
                ids, keys = torch.from_numpy(self.batches(step)[:1]), row_keys(self.seed, step, [0])
            yield MicroBatch(self.to_device(ids), self.to_device(keys), num_rows, place == self.batches.num_micro)
            first += num_rows

    def to_device(self, tensor: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def close(self) -> None:
        self.reader.shutdown(cancel_futures=True)
