"""Step number in, micro-batches on the device out: read, pinned and sent while the step before is computed."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from electrakit.data.batches import Batches
from electrakit.objective.randomness import row_keys
from electrakit.train.distributed import Team


class Piece(NamedTuple):
    """A micro-batch."""

    ids: Tensor  # (B, T)
    keys: Tensor  # (B, 2): all that is random about these rows
    num_rows: int  # 0 where only other processes have something to do: the ids are then anybody's, and must not count
    is_last: bool  # of the step


class Feed:
    """The pieces of each step for this process."""

    def __init__(self, batches: Batches, seed: int, team: Team) -> None:
        self.batches, self.seed, self.device = batches, seed, team.device
        prepare = (lambda: torch.cuda.set_device(team.device)) if team.device.type == "cuda" else None
        self.reader = ThreadPoolExecutor(1, "feed", initializer=prepare)
        self.next: tuple[int, Future[list[Piece]]] | None = None

    def pieces(self, step: int) -> list[Piece]:
        """Those of this step; the next step's are then on their way."""
        next_step, reading = self.next or (None, None)
        if reading is None or next_step != step:
            reading = self.reader.submit(self.read, step)
        pieces = reading.result()
        self.next = (step + 1, self.reader.submit(self.read, step + 1))
        return pieces

    def read(self, step: int) -> list[Piece]:
        return list(self.read_pieces(step))

    def read_pieces(self, step: int) -> Iterator[Piece]:
        numbers = self.batches.sample_numbers(step)
        first = 0
        for place, rows in enumerate(self.batches.micro_batches(step), 1):
            ids, num_rows = torch.from_numpy(rows), len(rows)
            keys = row_keys(self.seed, step, numbers[first : first + num_rows])
            if not num_rows:
                ids, keys = torch.from_numpy(self.batches(step)[:1]), row_keys(self.seed, step, [0])
            yield Piece(self.sent(ids), self.sent(keys), num_rows, place == self.batches.num_micro)
            first += num_rows

    def sent(self, tensor: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def close(self) -> None:
        self.reader.shutdown(cancel_futures=True)
