"""Small things that several tests use."""

import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import electrakit as ek
from electrakit.common.workers import WorkerPool
from electrakit.config.corpus import CorpusConfig
from electrakit.config.pretrain import PretrainConfig
from electrakit.data.read.formats import Document, read_batch
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import cut_inputs, find_inputs
from electrakit.train.signals import SIGNALS

# Before torch is loaded: two threads that wait for each other on busy cores take ten times longer.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def ignore_no_signal() -> None:
    """A shell that starts us in the background has Ctrl-C ignored, nohup SIGHUP, a queue maybe others; what we start inherits it."""
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


ignore_no_signal()

# By default Python looks for garbage after every 700 new objects: a fifth of the time in which the tests are imported.
gc.set_threshold(50_000, 20, 20)

pytest_plugins = ("tests.helpers.reliability",)

ReadAll = Callable[..., tuple[list[Document], Notes]]


@pytest.fixture
def read_all() -> ReadAll:
    """`documents, notes = read_all("corpus/", field="body")`: reads everything, here, in this process."""

    def read_all(*inputs: str | Path, **settings: Any) -> tuple[list[Document], Notes]:
        config = CorpusConfig(inputs=tuple(map(str, inputs)), **settings)
        documents, notes = [], Notes()
        for batch in cut_inputs(find_inputs(config, notes), config, WorkerPool(0)):
            found, noted = read_batch(batch, config)
            documents += found
            notes.merge(noted)
        return documents, notes

    return read_all


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 32 tokens, some of them padded, of a language with a little grammar: 200 or so for training, 20 for validation."""
    folder = tmp_path_factory.mktemp("shards")
    chance = random.Random(0)
    words = ["".join(chance.choices("abdegiklmnoprstu", k=chance.randint(2, 6))) for _ in range(60)]
    documents = []
    for _ in range(120):
        lines = [
            " ".join(chance.choices(words[place % 3 :: 3], k=chance.randint(3, 25)))
            for place in range(chance.randint(1, 5))
        ]
        documents.append("\n".join(lines))
    (folder / "corpus.txt").write_text("\n\n".join(documents), encoding="utf-8")
    tokenizer = ek.train_tokenizer([folder / "corpus.txt"], vocab_size=120, out=folder / "tokenizer", workers=1)
    return ek.prepare(
        [folder / "corpus.txt"], tokenizer=tokenizer, length=32, valid=0.1, out=folder / "shards", workers=1
    )


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """What other tests compiled counts against a limit of recompilations: each test begins without it."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A command that runs in the test's process handles signals until the process ends, and pretrain, at its end, ignores them."""
    ignore_no_signal()  # also where a fixture of a module ran it
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


Tiny = Callable[..., PretrainConfig]


@pytest.fixture
def tiny(shards: Path, tmp_path: Path) -> Tiny:
    """`tiny("runs/a", steps=20)`: settings of a run that takes a second."""

    def tiny(run: str = "run", preset: str = "tiny", **changes: Any) -> PretrainConfig:
        settings = {"length": 32, "vocab_size": 120, "steps": 12, "batch_size": 8, "micro_batch": 3, "log_every": 4}
        settings |= {"precision": "fp32"}  # whatever the machine has
        settings |= {"valid_every": 6, "save_every": 5, "valid_rows": 5, "optim": {"warmup_steps": 2}}
        return getattr(ek.presets, preset)(data=shards, run=tmp_path / run, **{**settings, **changes})

    return tiny
