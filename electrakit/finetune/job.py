"""A fine-tuning job: one model, one task, one seed. What decides its result, where it writes, how its data is read."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from safetensors import SafetensorError, safe_open

from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_files, hash_text
from electrakit.common.ownership import require_replaceable
from electrakit.common.progress import console
from electrakit.common.safe_load import explain_load_errors
from electrakit.config.finetune import (
    AUTO,
    FinetuneConfig,
    FinetuneSettings,
    GlueConfig,
    TuningConfig,
    preset_files,
    preset_for,
    read_preset,
    size_of,
)
from electrakit.finetune.classifier import is_older_model, load_config, load_transformers_tokenizer
from electrakit.finetune.encode import EncodedRows, encode, num_positions
from electrakit.finetune.official_head import MEAN_FAMILIES
from electrakit.finetune.read_glue import find_file, has_split, read_split
from electrakit.finetune.read_hf import hf_files
from electrakit.finetune.results import REQUIRED, JobResult
from electrakit.finetune.tasks import TASKS, TOKEN_TASKS, Split, Task
from electrakit.finetune.tokens.read_questions import read_questions
from electrakit.finetune.tokens.tags import EncodedSentences, encode_tags, read_chunks, unseen_warning
from electrakit.finetune.tokens.windows import encode_squad
from electrakit.finetune.user_tables import examples_of, read_user_table

# What an identity holds a hash of, for messages.
HASHED = {"model": "another model", "data": "other data", "start_from": "another model to start from"}
Tuning = TypeVar("Tuning", bound=TuningConfig)
TOKENIZER_PATTERNS = ("*token*.json", "vocab.*", "merges.txt", "*.model")
TOKEN_READERS: dict[str, Callable[[str, Task, Split], Any]] = {"spans": read_questions, "tags": read_chunks}
TOKEN_ENCODERS: dict[str, Callable[[Any, Any, int, bool], EncodedRows]] = {"spans": encode_squad, "tags": encode_tags}


@dataclass(frozen=True)
class TaskData:
    """Where a task's rows are: the folder of a known task, or one of the user's files for each split."""

    task: Task
    location: str | None = None
    """The folder of a known task, or `hf:` and a name."""
    files: tuple[tuple[str, str], ...] = ()
    """The user's files: split and path."""

    @property
    def known_name(self) -> str | None:
        """The name of a known task; None for the user's files, whose folder may be called rte, too."""
        return None if self.location is None else self.task.name

    def names_of(self, kind: str) -> tuple[str, ...]:
        """The dev or test splits that have files."""
        if self.location is None:
            return tuple(name for name, _ in self.files if name.startswith(kind))
        names = self.task.names_of(kind)
        if kind == "dev":
            return names
        if self.task.kind != "sentences":
            # A test file that is used as the dev file is no test.
            dev = {self._path(name) for name in self.names_of("dev")}
            return tuple(name for name in names if self._path(name) not in {None, *dev})
        return tuple(name for name in names if has_split(self.location, self.task, self.task.split(name)))

    def _path(self, name: str) -> Path | None:
        assert self.location is not None
        return find_file(self.location, self.task, self.task.split(name))

    def read(self, name: str) -> Any:
        """Sentences and labels, questions and texts, or words and tags: by the kind of the task."""
        if self.location is None:
            return examples_of(read_user_table(Path(dict(self.files)[name])), self.task, needs_labels=name != "test")
        if self.task.kind != "sentences":
            return TOKEN_READERS[self.task.kind](self.location, self.task, self.task.split(name))
        return read_split(self.location, self.task, self.task.split(name))

    def fingerprint(self, kind: Literal["labelled", "test"]) -> str:
        """A hash of the files: other files give another result."""
        if self.location is None:
            return hash_files(Path(path) for name, path in self.files if (name == "test") == (kind == "test"))
        if self.location.startswith("hf:") and self.task.kind == "sentences":
            name = self.location.removeprefix("hf:")
            return hash_files(hf_files(name, self.task)) if Path(name).is_dir() else self.location
        names = self.task.names_of("test") if kind == "test" else ("train", *self.task.names_of("dev"))
        paths = [self._path(name) for name in names]
        return hash_files(path for path in paths if path is not None)


@dataclass(frozen=True)
class FinetuneJob:
    """One run. The same identity gives the same result."""

    model: str
    data: TaskData
    seed: int
    settings: FinetuneSettings
    out: Path
    """The task's folder."""
    start: "FinetuneJob | None" = None
    """The run of another task whose model it starts from."""
    device: str | None = None
    threads: int = 1
    keeps_model: bool = True

    @property
    def task(self) -> Task:
        return self.data.task

    @property
    def initial_model(self) -> str:
        return self.model if self.start is None else str(self.start.model_path)

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
        """Of predictions in a format of another tool."""
        return self.out / f"seed_{self.seed}.{name}"

    def describe(self) -> str:
        return f"{self.task.title}, seed {self.seed}"

    def identity(self) -> dict[str, Any]:
        """What decides the result."""
        return {
            "task": self.task.name,
            "seed": self.seed,
            "settings": self.settings.identity(),
            "model": model_fingerprint(self.model),
            "start_from": None if self.start is None else self.start.identity_hash(),
            "data": self.data.fingerprint("labelled"),
            "threads": self.threads,
        }

    def identity_hash(self) -> str:
        return hash_text(json.dumps(self.identity(), sort_keys=True))

    def test_identity(self) -> str:
        """What decides the test predictions."""
        return f"{self.identity_hash()} {self.data.fingerprint('test')}"

    def has_test(self) -> bool:
        """Whether the test predictions of this run are written."""
        return self.test_path.exists() and self.test_stamp() == self.test_identity()

    def test_stamp(self) -> str | None:
        """What decided the test predictions that are there; None if they are not ours."""
        try:
            with safe_open(self.test_path, "numpy") as file:
                return (file.metadata() or {}).get("stamp")
        except (OSError, SafetensorError):
            return None

    def finished(self) -> JobResult | None:
        """The result of this run, if it was written. That of a run with another identity is an error."""
        if not self.result_path.exists():
            return None
        try:
            content = json.loads(self.result_path.read_text(encoding="utf-8"))
            before = content["identity"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.result_path} is not the result of a run; remove it") from None
        if missing := sorted(REQUIRED - set(content)):
            raise UserError(
                f"{self.result_path} has no {missing[0]!r}: an older electrakit wrote it; remove it, and the run is made again"
            )
        if before != (now := self.identity()):
            raise UserError(
                f"{self.result_path} is of a run with {difference(before, now)}; use another --out, or remove {self.out}"
            )
        return JobResult.from_json(content)


def make_jobs(
    config: FinetuneConfig | GlueConfig,
    data: TaskData,
    out: Path,
    start: FinetuneJob | None = None,
    num_threads: int = 1,
) -> list[FinetuneJob]:
    """One for each seed, with the settings of the preset. `num_threads`: if the user does not set it."""
    assert config.model is not None
    check_preset(config)
    task, size, length = data.task, size_of(hidden_size(config.model)), length_for(config.model, data.task)
    start_name = None if start is None else start.describe()
    settings = config.settings(size, data.known_name or "", task.epochs, start_name, length)
    if config.head is None and settings.head == "mean" and load_config(config.model).model_type not in MEAN_FAMILIES:
        settings = replace(settings, head="official")  # a preset's wish, not the user's
    check_span_heads(settings, task)
    threads = config.threads or num_threads
    return [
        FinetuneJob(config.model, data, seed, settings, out, start, config.device, threads)
        for seed in range(1, config.seeds + 1)
    ]


def check_span_heads(settings: FinetuneSettings, task: Task) -> None:
    if settings.joint_prediction and task.kind != "spans":
        raise UserError(f"--joint-prediction is of answers in a text, and {task.title} has none; leave it out")
    if settings.answerable_uses_start_logits and not task.may_be_unanswerable:
        raise UserError(
            f"--answerable-uses-start-logits is of questions without an answer, and {task.title} has none; leave it out"
        )


def require_own_files(jobs: Sequence[FinetuneJob]) -> None:
    """Before anything is written: refuse what is at the place of a run's files and is not of such a run."""
    for job in jobs:
        job.finished()
        require_replaceable(job.model_path, "model", overwrite=True, is_older=is_older_model)
        if os.path.lexists(job.test_path) and job.test_stamp() is None:
            raise UserError(f"{job.test_path} was not written by electrakit; name another --out, or move it away")


def check_data(data: TaskData, out: Path, num_seeds: int) -> None:
    """Read everything once, unless all runs of `out` are finished, so that a damaged line is found before a day of training."""
    if not all((out / f"seed_{seed}.json").exists() for seed in range(1, num_seeds + 1)):
        for name in ("train", *data.names_of("dev"), *data.names_of("test")):
            data.read(name)


def length_for(model: str, task: Task) -> int:
    """The task's length; for tokens at most as many as the model has positions."""
    if task.kind == "sentences":
        return task.length
    return min(task.length, num_positions(load_config(model), load_transformers_tokenizer(model)))


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first thing that differs, for an error."""
    for name, value in now.items():
        if before.get(name) != value:
            if isinstance(value, dict) and isinstance(before.get(name), dict):
                return difference(before[name], value)
            return HASHED.get(name, f"{name} {before.get(name)}, now {value}")
    return "other settings"


def model_fingerprint(place: str) -> str:
    """A hash of a folder's weights, config and tokenizer; a name on the hub stands for itself."""
    folder = Path(place)
    if not folder.is_dir():
        return place
    patterns = ("*.safetensors", "config.json", *TOKENIZER_PATTERNS)
    return hash_files(sorted({path for pattern in patterns for path in folder.glob(pattern)}))


def load_rows(data: TaskData, name: str, model: str, length: int) -> tuple[EncodedRows, tuple[str, ...]]:
    """A split's rows as ids, and warnings about them; cached for the next seed."""
    state = (data.fingerprint("labelled"), data.fingerprint("test"), model_fingerprint(model))
    return _load_rows(data, name, model, length, *state)


@lru_cache(maxsize=8)
def _load_rows(data: TaskData, name: str, model: str, length: int, *state: str) -> tuple[EncodedRows, tuple[str, ...]]:
    """`state`: fingerprints of the files, which may change under the same names."""
    examples, tokenizer, is_training = data.read(name), load_transformers_tokenizer(model), name == "train"
    if data.task.kind != "sentences":
        rows = TOKEN_ENCODERS[data.task.kind](examples, tokenizer, length, is_training)
        unseen = unseen_warning(data.task, name, rows, length) if isinstance(rows, EncodedSentences) else ()
        return rows, examples.warnings + unseen
    return encode(examples, tokenizer, length, is_training and data.task.both_orders), examples.warnings


def hidden_size(model: str) -> int:
    config = load_config(model)
    with explain_load_errors(model):  # not every model has a hidden size
        return int(config.hidden_size)


def with_preset(config: Tuning) -> Tuning:
    """With the preset that `auto` means for the model."""
    if config.preset != AUTO or config.model is None:
        return config
    return replace(config, preset=preset_for(hidden_size(config.model)))


def announce_preset(asked: str, config: TuningConfig) -> None:
    """Say which preset `auto` means, unless it is the paper's."""
    if asked == AUTO and config.preset != "paper" and config.model is not None:
        size = hidden_size(config.model)
        line = f"preset {config.preset}: hidden size {size} is smaller than ELECTRA-small's; --preset paper uses the paper's rates"
        console.print(line, markup=False, soft_wrap=True)


def check_preset(config: TuningConfig) -> None:
    """Refuse a file of settings for a task that does not exist: it would silently change nothing."""
    known = (*TASKS, *TOKEN_TASKS)
    for path in preset_files(config.preset):
        unknown = [name for name in read_preset(path).tasks if name not in known]
        if unknown:
            raise UserError(f"{path}: there is no task {unknown[0]!r}; there are {', '.join(known)}")
