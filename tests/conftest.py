"""Small things that several tests use."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electrakit.config import CorpusConfig
from electrakit.data.files import Notes
from electrakit.data.sources import Document, cut, find_inputs, read
from electrakit.engine import Workers

# A shell that starts us in the background has Ctrl-C ignored, and every process we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ReadAll = Callable[..., tuple[list[Document], Notes]]


@pytest.fixture
def read_all() -> ReadAll:
    """`documents, notes = read_all("corpus/", field="body")`: reads everything, here, in this process."""

    def read_all(*inputs: str | Path, **settings: Any) -> tuple[list[Document], Notes]:
        config = CorpusConfig(inputs=tuple(map(str, inputs)), **settings)
        documents, notes = [], Notes()
        for piece in cut(find_inputs(config, notes), config, Workers(0)):
            found, noted = read(piece, config)
            documents += found
            notes.merge(noted)
        return documents, notes

    return read_all
