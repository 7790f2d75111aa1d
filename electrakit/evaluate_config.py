"""The settings of fine-tuning, GLUE and prediction: frozen dataclasses, and presets as functions."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from tyro.conf import Positional, arg

from electrakit.config import Engine, check_types
from electrakit.errors import UserError

Head = Literal["official", "transformers"]
Precision = Literal["float32", "bfloat16"]
Size = Literal["small", "base", "large"]
Start = Literal["mnli", "model"]
Kind = Literal["classification", "regression"]
BEST = "best.json"  # the settings that a search has found


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """How one model is trained on one task."""

    lr: float = 1e-4
    epochs: float = 3
    batch_size: int = 32
    length: int = 128
    """Longer rows are cut."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises."""
    layer_decay: float = 0.8
    """Each layer learns so much slower than the one above it."""
    top_layer_power: int = 1
    """The top layer's rate is lr · layer_decay ** this: 1 in the paper, 2 in the official code."""
    weight_decay: float = 0.0
    dropout: float = 0.1
    """Before the official head; that of the encoder is its own."""
    max_grad_norm: float = 1.0
    loss: Literal["mean", "sum"] = "mean"
    """Over the rows of a batch."""
    adam: Literal["corrected", "official"] = "corrected"
    """`official`: without bias correction, and warm-up and decay of the rate multiply."""
    head: Head = "official"
    """`official`: dropout and a linear layer on [CLS]; `transformers`: what transformers has for the family."""
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("lr", "epochs", "batch_size", "layer_decay", "max_grad_norm"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be more than 0, got {getattr(self, name)!r}")
        for name in ("weight_decay", "top_layer_power"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be 0 or more, got {getattr(self, name)!r}")
        if self.length < 4:
            raise UserError(f"length must be 4 or more, got {self.length}")
        for name in ("warmup", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must be from 0 to less than 1, got {getattr(self, name)}")


def paper(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """Clark et al. 2020, appendix B; RTE that begins with MNLI's model learns slowly."""
    lr = {"small": 3e-4, "base": 1e-4, "large": 5e-5}[size]
    if task == "rte" and start_from is not None:
        lr = 2e-5
    return FinetuneSettings(lr=lr, epochs=epochs, layer_decay=0.9 if size == "large" else 0.8)


def official(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """google-research/electra as its code is: the loss is a sum, the layers' rates fall by one power more, weights decay."""
    return replace(
        paper(size, task, epochs, None),
        lr=5e-5 if size == "large" else 1e-4,
        top_layer_power=2,
        weight_decay=0.01,
        loss="sum",
        adam="official",
    )


def lmtuners(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """lmtuners' ELECTRA-Small-OWT: the paper's settings, and RTE at 2e-5 wherever it begins."""
    settings = paper(size, task, epochs, start_from)
    return replace(settings, lr=2e-5) if task == "rte" else settings


PRESETS: dict[str, Callable[[Size, str, float, str | None], FinetuneSettings]] = {
    "paper": paper,
    "official": official,
    "lmtuners": lmtuners,
    "seed": lmtuners,  # another name for it
}


def size_of(hidden_size: int) -> Size:
    """Which of the three published sizes a model is nearest to."""
    return "small" if hidden_size <= 512 else "base" if hidden_size < 1024 else "large"


@dataclass(frozen=True, kw_only=True)
class TuningConfig:
    """What `finetune` and `glue` have in common. Settings left out are the preset's."""

    model: Annotated[Positional[str | None], arg(metavar="MODEL")] = None
    """A folder of any transformers encoder (weights as safetensors), or its name on the hub."""
    out: Path | None = None
    """Folder to write. Finished runs in it are not run again."""
    preset: str = "paper"
    """`paper`, `official`, `lmtuners`, a JSON file of settings such as `electra search` writes, or a folder of searches."""
    workers: int | None = None
    """Runs at the same time; by default one for each GPU, or core. The result does not depend on it."""
    engine: Engine = "local"
    """Where they run: on this machine, or on a Ray cluster (RAY_ADDRESS) that sees the same files. Nor does it on this."""
    threads: int | None = None
    """Of each run on a CPU; by default 1, and for a single run of finetune all cores. Another number may round differently."""
    device: str | None = None
    """cpu or cuda; by default cuda if there is one."""
    lr: float | None = None
    """Learning rate of the head."""
    epochs: float | None = None
    """By default the task's: 3, 10 for RTE and STS-B, 2 for SQuAD."""
    batch_size: int | None = None
    """Rows of a step."""
    length: int | None = None
    """Longest row in tokens; by default 128, for SQuAD 512 or what the model can."""
    warmup: float | None = None
    """Share of the steps in which the learning rate rises."""
    layer_decay: float | None = None
    """Each layer learns so much slower than the one above it."""
    weight_decay: float | None = None
    """Decoupled, on matrices only."""
    head: Head | None = None
    """`official`: dropout and a linear layer on [CLS]; `transformers`: what transformers has for the family."""
    precision: Precision | None = None
    """bfloat16 is faster where the hardware has it."""
    keep: Literal["best", "all", "none"] = "best"
    """Which runs' models are kept."""

    def checked(self) -> Self:
        """Itself, if the settings make sense; else a UserError that says which does not."""
        check_types(self)
        if self.workers is not None and self.workers < 1:
            raise UserError(f"--workers must be 1 or more, got {self.workers}")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"--threads must be 1 or more, got {self.threads}")
        if self.preset not in PRESETS and not files_of(self.preset):
            raise UserError(f"unknown preset {self.preset!r}; there are {', '.join(PRESETS)}, or name a JSON file")
        FinetuneSettings(**self.changes())
        return self

    def changes(self) -> dict[str, Any]:
        """The settings that were given."""
        names = {field.name for field in fields(FinetuneSettings)}
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}

    def settings(
        self, size: Size, task: str, epochs: float, start_from: str | None = None, length: int = 128
    ) -> FinetuneSettings:
        """The preset's settings for a task, with the changes."""
        if self.preset in PRESETS:
            preset = PRESETS[self.preset](size, task, epochs, start_from)
            return replace(preset, **({"length": length} | self.changes()))
        found: dict[str, Any] = {"length": length}
        for path in files_of(self.preset):
            content = read_preset(path)
            found |= content["settings"] | content["tasks"].get(task, {})
        return replace(paper(size, task, epochs, start_from), **(found | self.changes()))

    @classmethod
    def of(cls, model: Any, **settings: Any) -> Self:
        """The configuration of a call from Python: paths may be strings, and everything is checked."""
        for name in ("out", "train", "dev", "test", "file", "download"):
            if isinstance(settings.get(name), str):
                settings[name] = Path(settings[name])
        for name in ("tasks", "text"):
            if name in settings:
                settings[name] = (settings[name],) if isinstance(settings[name], str) else tuple(settings[name])
        if isinstance(settings.get("data"), Path):
            settings["data"] = str(settings["data"])
        known = {field.name for field in fields(cls)}
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise UserError(f"there is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
        return cls(model=None if model is None else str(model), **settings).checked()


def files_of(preset: str) -> list[Path]:
    """A file of settings; or a folder with one, or with those of several searches, one for each task."""
    path = Path(preset)
    if path.is_dir():
        return [path / BEST] if (path / BEST).is_file() else sorted(path.glob(f"*/{BEST}"))
    return [path] if path.is_file() else []


def read_preset(path: Path) -> dict[str, Any]:
    """A JSON file: {"settings": {...}} for all tasks, {"tasks": {"rte": {...}}} for some. All of it is checked."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a file of settings: {error}") from None
    parts: dict[str, Any] = {"settings": {}, "tasks": {}} | content if isinstance(content, dict) else {}
    tasks = parts.get("tasks")
    every = [parts.get("settings"), *(tasks.values() if isinstance(tasks, dict) else [None])]
    if not set(parts) <= {"about", "settings", "tasks"} or not all(isinstance(one, dict) for one in every):
        raise UserError(
            f'{path} is not a file of settings: it should be {{"settings": {{"lr": 5e-5}}, "tasks": {{"rte": {{"lr": 1e-5}}}}}}'
        )
    known = {field.name for field in fields(FinetuneSettings)}
    for settings in every:
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise UserError(f"{path}: there is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
        try:
            FinetuneSettings(**settings)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    return parts


@dataclass(frozen=True, kw_only=True)
class GlueConfig(TuningConfig):
    """Fine-tune a model on all of GLUE: the table of the papers with its spread, and the files that the GLUE server takes."""

    data: str | None = None
    """The folder with CoLA/, SST-2/, ... in it, or hf:PATH_OR_NAME (Hugging Face datasets)."""
    tasks: tuple[str, ...] = ()
    """By default the eight of the average that have data."""
    seeds: int = 5
    """Runs of each task: dev scores are their median."""
    start: Start = "mnli"
    """`mnli`: RTE and STS-B begin with the best MNLI run, if MNLI is among the tasks; `model`: all begin with the model."""
    mrpc_from_mnli: bool = False
    """MRPC begins with the best MNLI run, too."""
    ensemble: int = 1
    """Test predictions are the average of this many of the best runs."""
    fill: bool = False
    """Write submission.zip even if tasks are missing: their files get the first label in every row."""
    download: Path | None = None
    """Fetch the data into this folder, and do nothing else."""

    def checked(self) -> Self:
        super().checked()
        if self.download is not None:
            return self
        for name, what in {"model": "MODEL", "data": "--data", "out": "--out"}.items():
            if getattr(self, name) is None:
                raise UserError(f"electra glue needs {what}: electra glue MODEL --data glue --out runs/glue")
        if self.seeds < 1:
            raise UserError(f"--seeds must be 1 or more, got {self.seeds}")
        if not 1 <= self.ensemble <= self.seeds:
            raise UserError(f"--ensemble must be from 1 to the number of --seeds, {self.seeds}; got {self.ensemble}")
        return self


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TuningConfig):
    """Fine-tune a model on one task: of GLUE, SQuAD, chunking, or a TSV, CSV or JSONL file of your own."""

    out: Path | None = None
    """Folder to write; by default runs/MODEL/TASK. Finished runs in it are not run again."""
    train: Path | None = None
    """Rows to train on; the first line of .tsv and .csv names the columns."""
    dev: Path | None = None
    """Rows to score on."""
    test: Path | None = None
    """Rows to predict."""
    text: tuple[str, ...] = ()
    """One or two columns of text; by default sentence1 sentence2, premise hypothesis, sentence, text and the like."""
    label: str | None = None
    """The column of the label; by default label, score and the like."""
    kind: Kind | None = None
    """By default recognised: numbers with fractions, or many of them, are predicted as numbers."""
    task: str | None = None
    """Instead of files: a task of GLUE, squad, squad2 or chunking."""
    data: str | None = None
    """The folder of GLUE, of SQuAD's files or of CoNLL-2000's, for --task."""
    seeds: int = 1
    """Runs; the best is kept."""

    def checked(self) -> Self:
        super().checked()
        if self.model is None:
            raise UserError("electra finetune needs MODEL, the folder of a transformers model or its name on the hub")
        has_files = self.train is not None and self.dev is not None
        if has_files == (self.task is not None):
            raise UserError("name either --train and --dev, files of your own, or --task and --data, a known task")
        if self.task is not None and self.data is None:
            raise UserError(f"--task {self.task} needs --data, the folder of its files")
        if self.seeds < 1:
            raise UserError(f"--seeds must be 1 or more, got {self.seeds}")
        return self if self.out is not None else replace(self, out=self.usual_out())

    def usual_out(self) -> Path:
        """runs/MODEL/TASK; a task of files is called as the training file is, or the folder of train.tsv."""
        assert self.model is not None
        file = Path(self.train or "").resolve()
        task = self.task or (file.parent.name if file.stem == "train" else file.stem) or "task"
        return Path("runs") / (Path(self.model).resolve().name or "model") / task.lower()


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Predict with a fine-tuned model: labels of rows, answers to questions, or tags of words, whatever it was trained for."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A folder that `electra finetune` made, or any transformers classifier, model of SQuAD or tagger."""
    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """A .tsv, .csv or .jsonl file; for SQuAD its .json, or columns question and context; for tags a word in each line."""
    out: Path | None = None
    """A file to write, for SQuAD a folder; by default standard output."""
    text: tuple[str, ...] = ()
    """The columns of text; by default those that the model was trained with."""
    device: str | None = None
    """cpu or cuda; by default cuda if there is one."""
