"""One model, one task, one seed: what a run is told, where it writes, and how its data is read."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from electrakit.errors import UserError
from electrakit.evaluate.encode import Encoded, encode
from electrakit.evaluate.files import fingerprint
from electrakit.evaluate.own import examples_of, read_table
from electrakit.evaluate.read import find_file, has_split, read_split
from electrakit.evaluate.read_hf import files_of
from electrakit.evaluate.squad import read_squad
from electrakit.evaluate.tags import encode_tags, read_chunks
from electrakit.evaluate.tasks import Split, Task
from electrakit.evaluate.token_tasks import find_token_file
from electrakit.evaluate.windows import encode_squad
from electrakit.evaluate_config import FinetuneSettings
from electrakit.hashes import hash_of_text

TOKENIZER_FILES = ("*token*.json", "vocab.*", "merges.txt", "*.model")
RESULT = {"title", "seed", "start_from", "metric", "score", "scores", "collapsed", "losses"}
RESULT |= {"files", "head", "warnings", "seconds"}  # what is read from the result of a run
TOKEN_READERS: dict[str, Callable[[str, Task, Split], Any]] = {"spans": read_squad, "tags": read_chunks}
TOKEN_ENCODERS: dict[str, Callable[[Any, Any, int, bool], Encoded]] = {"spans": encode_squad, "tags": encode_tags}


@dataclass(frozen=True)
class Source:
    """Where a task's rows are: GLUE's folder, or a file of one's own for each split."""

    task: Task
    data: str | None = None
    files: tuple[tuple[str, str], ...] = ()

    def names_of(self, kind: str) -> tuple[str, ...]:
        """The dev or test splits that are there."""
        if self.data is None:
            return tuple(name for name, _ in self.files if name.startswith(kind))
        names = self.task.names_of(kind)
        if kind == "dev":
            return names
        if self.task.kind != "sentences":  # a test file that stands in for a dev file is no test
            dev = {self._path(name) for name in self.names_of("dev")}
            return tuple(name for name in names if self._path(name) not in {None, *dev})
        return tuple(name for name in names if has_split(self.data, self.task, self.task.split(name)))

    def _path(self, name: str) -> Path | None:
        assert self.data is not None
        split = self.task.split(name)
        if self.task.kind != "sentences":
            return find_token_file(self.data, self.task, split)
        return find_file(Path(self.data), self.task, split)

    def read(self, name: str) -> Any:
        """Sentences and labels, questions and texts, or words and tags: by the kind of the task."""
        if self.data is None:
            return examples_of(read_table(Path(dict(self.files)[name])), self.task, needs_labels=name != "test")
        if self.task.kind != "sentences":
            return TOKEN_READERS[self.task.kind](self.data, self.task, self.task.split(name))
        return read_split(self.data, self.task, self.task.split(name))

    def fingerprint(self, kind: Literal["labelled", "test"]) -> str:
        """Of the files: others are another result."""
        if self.data is None:
            return fingerprint(Path(path) for name, path in self.files if (name == "test") == (kind == "test"))
        if self.data.startswith("hf:") and self.task.kind == "sentences":
            name = self.data.removeprefix("hf:")
            return fingerprint(files_of(name, self.task)) if Path(name).is_dir() else self.data
        names = self.task.names_of("test") if kind == "test" else ("train", *self.task.names_of("dev"))
        paths = [self._path(name) for name in names]
        return fingerprint(path for path in paths if path is not None)


@dataclass(frozen=True)
class Job:
    """A run."""

    model: str
    source: Source
    seed: int
    settings: FinetuneSettings
    out: Path
    """The task's folder."""
    start_from: str | None = None
    """A model to begin with instead: the best run of another task."""
    start_name: str | None = None
    """Which that is, in words."""
    start_stamp: str | None = None
    """What decided that run's result."""
    device: str | None = None
    threads: int = 1
    keeps_model: bool = True

    @property
    def task(self) -> Task:
        return self.source.task

    @property
    def result_path(self) -> Path:
        return self.out / f"seed_{self.seed}.json"

    @property
    def model_path(self) -> Path:
        return self.out / f"seed_{self.seed}"

    @property
    def test_path(self) -> Path:
        return self.out / f"seed_{self.seed}.test.safetensors"

    def file_path(self, name: str) -> Path:
        """Of predictions in the format of others."""
        return self.out / f"seed_{self.seed}.{name}"

    def describe(self) -> str:
        return f"{self.task.title}, seed {self.seed}"

    def identity(self) -> dict[str, Any]:
        """What decides the result."""
        return {
            "task": self.task.name,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "model": model_fingerprint(self.model),
            "start_from": self.start_stamp,
            "data": self.source.fingerprint("labelled"),
            "threads": self.threads,
        }

    def stamp(self) -> str:
        """The identity as a short string."""
        return hash_of_text(json.dumps(self.identity(), sort_keys=True))

    def test_stamp(self) -> str:
        """What decides the test predictions."""
        return f"{self.stamp()} {self.source.fingerprint('test')}"

    def has_test(self) -> bool:
        """Whether the test predictions of this run are there."""
        from safetensors import safe_open

        if not self.test_path.exists():
            return False
        with safe_open(self.test_path, "numpy") as file:
            return (file.metadata() or {}).get("stamp") == self.test_stamp()

    def finished(self) -> dict[str, Any] | None:
        """The result of this run, if it is there. That of a run with other settings is an error."""
        if not self.result_path.exists():
            return None
        try:
            result = json.loads(self.result_path.read_text(encoding="utf-8"))
            before = result["identity"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.result_path} is not the result of a run; remove it") from None
        missing = sorted(RESULT - set(result))
        if missing:
            raise UserError(
                f"{self.result_path} has no {missing[0]!r}: an older electrakit wrote it; remove it, and the run is made again"
            )
        now = json.loads(json.dumps(self.identity()))
        if before != now:
            raise UserError(
                f"{self.result_path} is of a run with {difference(before, now)}; use another --out, or remove {self.out}"
            )
        return result


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first thing that is not the same, in words."""
    for name, value in now.items():
        if before.get(name) != value:
            if isinstance(value, dict) and isinstance(before.get(name), dict):
                return difference(before[name], value)
            if name in ("model", "start_from", "data"):
                what = {"model": "another model", "data": "other data", "start_from": "another model to begin with"}
                return what[name]
            return f"{name} {before.get(name)}, now {value}"
    return "other settings"


def model_fingerprint(place: str) -> str:
    """Of a folder's weights, config and tokenizer, wherever it is; a name on the hub is its own."""
    folder = Path(place)
    if not folder.is_dir():
        return place
    patterns = ("*.safetensors", "config.json", *TOKENIZER_FILES)
    return fingerprint(sorted({path for pattern in patterns for path in folder.glob(pattern)}))


def load_rows(source: Source, name: str, model: str, length: int) -> tuple[Encoded, tuple[str, ...]]:
    """A split's rows as ids, and what there is to say about it; kept for the next seed."""
    state = (source.fingerprint("labelled"), source.fingerprint("test"), model_fingerprint(model))
    return _load_rows(source, name, model, length, *state)


@lru_cache(maxsize=8)
def _load_rows(source: Source, name: str, model: str, length: int, *state: str) -> tuple[Encoded, tuple[str, ...]]:
    """`state`: of the files that are read, which may be others under the same names."""
    from electrakit.evaluate.classifier import load_tokenizer

    examples, tokenizer, is_training = source.read(name), load_tokenizer(model), name == "train"
    if source.task.kind != "sentences":
        return TOKEN_ENCODERS[source.task.kind](examples, tokenizer, length, is_training), examples.warnings
    return encode(examples, tokenizer, length, is_training and source.task.both_orders), examples.warnings
