"""The settings of finetune, glue, search and predict, and the presets of fine-tuning."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from tyro.conf import Positional, Suppress, arg

from electrakit.common.errors import UserError
from electrakit.common.json_files import read_file
from electrakit.config.base import (
    Settings,
    VerbSettings,
    check_at_least,
    check_below_one,
    check_positive,
    may_change,
    one_or_more,
    with_aliases,
)
from electrakit.config.corpus import Engine

ClassifierHead = Literal["official", "mean", "transformers"]
Precision = Literal["fp32", "bf16", "float32", "bfloat16"]
"""The last two are older names: settings hold the first two."""
PRECISION_ALIASES = {"float32": "fp32", "bfloat16": "bf16"}
Size = Literal["small", "base", "large"]
Start = Literal["mnli", "model"]
Keep = Literal["best", "all", "none"]
LabelKind = Literal["classification", "regression"]
BEST = "best.json"  # the settings that a search has found


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(Settings):
    """How one model is trained on one task."""

    lr: float = 1e-4
    epochs: float = 3
    batch_size: int = 32
    length: int = 128
    """Longer rows are truncated."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises linearly."""
    layer_decay: float = 0.8
    """Layer-wise decay of the learning rate: the factor from one layer to the one below."""
    top_layer_power: int = 1
    """The top layer's rate is lr · layer_decay ** this: 1 in the paper, 2 in the official code."""
    weight_decay: float = 0.0
    dropout: float = 0.1
    """Before the official head; the encoder keeps its own."""
    max_grad_norm: float = 1.0
    loss: Literal["mean", "sum"] = "mean"
    """Over the rows of a batch."""
    adam: Literal["corrected", "official"] = "corrected"
    """`official`: without bias correction, and warm-up and decay of the rate multiply."""
    head: ClassifierHead = "official"
    """`official`: dropout and a linear layer on [CLS]; `mean`: the same on the mean of all states; `transformers`: the family's own."""
    precision: Precision = with_aliases("fp32", **PRECISION_ALIASES)
    joint_prediction: bool = False
    """SQuAD: the end of an answer depends on its start, and answers are found by beam search."""
    answerable_uses_start_logits: bool = False
    """SQuAD 2.0: whether there is no answer is read from [CLS] and from where an answer may start."""

    def check(self) -> None:
        check_positive(self.values("lr", "epochs", "batch_size", "layer_decay", "max_grad_norm"))
        check_at_least(0, self.values("weight_decay", "top_layer_power"))
        check_at_least(4, self.values("length"))
        check_below_one(self.values("warmup", "dropout"))

    def identity(self) -> dict[str, Any]:
        """With the older names of precisions, which results on disk have always had: their fingerprints stay valid."""
        older = {new: old for old, new in PRECISION_ALIASES.items()}
        settings = super().identity() | {"precision": older[self.precision]}
        return {name: value for name, value in settings.items() if value is not False}  # switches came later, all off


def paper(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """Clark et al. 2020, appendix B, with the authors' Adam; RTE that begins with MNLI's model learns slowly."""
    lr = {"small": 3e-4, "base": 1e-4, "large": 5e-5}[size]
    if task == "rte" and start_from is not None:
        lr = 2e-5
    return FinetuneSettings(lr=lr, epochs=epochs, layer_decay=0.9 if size == "large" else 0.8, adam="official")


def official(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """google-research/electra as its code is: the loss is a sum, the layers' rates fall by one power more, weights decay."""
    return replace(
        paper(size, task, epochs, None),
        lr=5e-5 if size == "large" else 1e-4,
        top_layer_power=2,
        weight_decay=0.01,
        loss="sum",
    )


def lmtuners(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """lmtuners' ELECTRA-Small-OWT: the paper's settings with bias correction, and RTE at 2e-5 wherever it begins."""
    settings = replace(paper(size, task, epochs, start_from), adam="corrected")
    return replace(settings, lr=2e-5) if task == "rte" else settings


def small_budget(size: Size, task: str, epochs: float, start_from: str | None) -> FinetuneSettings:
    """For small encoders that were pretrained for minutes or hours: all layers learn alike (docs/log.md has the figures).

    The head reads the mean where transformers' classifier can: pretraining teaches [CLS] nothing.
    """
    return FinetuneSettings(lr=3e-4, epochs=epochs, layer_decay=1.0, head="mean")


FINETUNE_PRESETS: dict[str, Callable[[Size, str, float, str | None], FinetuneSettings]] = {
    "paper": paper,
    "small_budget": small_budget,
    "official": official,
    "lmtuners": lmtuners,
    "seed": lmtuners,  # another name for it
}
AUTO = "auto"
SMALLEST_PUBLISHED = 256  # hidden size of ELECTRA-small


def preset_for(hidden_size: int) -> str:
    """What `auto` means: an encoder smaller than all of the paper's is not of the paper."""
    return "small_budget" if hidden_size < SMALLEST_PUBLISHED else "paper"


def size_of(hidden_size: int) -> Size:
    """Which of the three published sizes a model is nearest to."""
    return "small" if hidden_size <= 512 else "base" if hidden_size < 1024 else "large"


@dataclass(frozen=True, kw_only=True)
class TuningConfig(VerbSettings):
    """What `finetune` and `glue` have in common. Settings left out are the preset's."""

    model: Annotated[Positional[str | None], arg(metavar="MODEL")] = None
    """A folder of any transformers encoder (weights as safetensors), or its name on the hub."""
    out: Path | None = may_change(None)
    """Folder to write. Finished runs in it are not run again."""
    preset: str = AUTO
    """`paper`, `small_budget`, `official`, `lmtuners`, or a file or folder that `electra search` wrote. `auto`: by the model's size."""
    workers: int | None = may_change(None)
    """Runs at the same time; by default one per GPU, or core. The result does not depend on it."""
    engine: Engine = may_change("local")
    """Where workers run: on this machine, or on a Ray cluster (RAY_ADDRESS) with the same file system. The result does not depend on it."""
    threads: int | None = None
    """Threads of each run on a CPU; by default 1, for a single run of finetune all cores. Another number may round differently."""
    device: str | None = None
    """cpu or cuda; by default cuda if there is one."""
    lr: float | None = None
    """Learning rate of the head."""
    epochs: float | None = None
    """Passes over the training data. By default the task's: 3, 10 for RTE and STS-B, 2 for SQuAD."""
    batch_size: int | None = None
    """Rows of an optimizer step."""
    length: int | None = None
    """Longest row in tokens; by default 128, for SQuAD 512 or as many as the model has positions."""
    warmup: float | None = None
    """Share of the steps in which the learning rate rises linearly."""
    layer_decay: float | None = None
    """Layer-wise decay of the learning rate: the factor from one layer to the one below."""
    weight_decay: float | None = None
    """Decoupled weight decay, of matrices only."""
    head: ClassifierHead | None = None
    """`official`: dropout and a linear layer on [CLS]; `mean`: the same on the mean of all states; `transformers`: the family's own."""
    precision: Annotated[Precision | None, arg(metavar="{fp32,bf16}")] = with_aliases(None, **PRECISION_ALIASES)
    """bf16 is faster where the hardware supports it; fp32 by default."""
    keep: Keep = may_change("best")
    """Which runs' models to keep."""

    def check(self) -> None:
        check_at_least(1, self.values("workers", "threads"))
        if self.preset not in (AUTO, *FINETUNE_PRESETS) and not preset_files(self.preset):
            known = ", ".join((AUTO, *FINETUNE_PRESETS))
            raise UserError(f"unknown preset {self.preset!r}; there are {known}, or name a JSON or YAML file")
        FinetuneSettings(**self.changes())

    def changes(self) -> dict[str, Any]:
        """The settings that were given."""
        names = [entry.name for entry in fields(FinetuneSettings)]
        given = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in given.items() if value is not None and value is not False}

    def settings(
        self, size: Size, task: str, epochs: float, start_from: str | None = None, length: int = 128
    ) -> FinetuneSettings:
        """The preset's settings for a task, with the changes."""
        preset = FINETUNE_PRESETS.get(self.preset, paper)
        changes: dict[str, Any] = {"length": length}
        for path in preset_files(self.preset):
            content = read_preset(path)
            changes |= content.settings | content.tasks.get(task, {})
        return replace(preset(size, task, epochs, start_from), **(changes | self.changes()))


def preset_files(preset: str) -> list[Path]:
    """A file of settings; or a folder with one, or with those of several searches, one for each task."""
    path = Path(preset)
    if preset in (AUTO, *FINETUNE_PRESETS):
        return []
    if path.is_dir():
        return [path / BEST] if (path / BEST).is_file() else sorted(path.glob(f"*/{BEST}"))
    return [path] if path.is_file() else []


class PresetFile(NamedTuple):
    """Settings for all tasks, and for some of them by name."""

    settings: dict[str, Any]
    tasks: dict[str, dict[str, Any]]


def read_preset(path: Path) -> PresetFile:
    """A JSON or YAML file: {"settings": {...}} for all tasks, {"tasks": {"rte": {...}}} for some. All of it is checked."""
    content = read_file(path)
    parts: dict[str, Any] = {"settings": {}, "tasks": {}} | content if isinstance(content, dict) else {}
    tasks = parts.get("tasks")
    every = [parts.get("settings"), *(tasks.values() if isinstance(tasks, dict) else [None])]
    if not set(parts) <= {"about", "settings", "tasks"} or not all(isinstance(one, dict) for one in every):
        raise UserError(
            f'{path} is not a file of settings: it should be {{"settings": {{"lr": 5e-5}}, "tasks": {{"rte": {{"lr": 1e-5}}}}}}'
        )
    for settings in every:
        try:
            FinetuneSettings.from_json(settings)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    return PresetFile(parts["settings"], parts["tasks"])


@dataclass(frozen=True, kw_only=True)
class GlueConfig(TuningConfig):
    """Fine-tune a model on all of GLUE: the table of the papers with its spread, and the files of a submission."""

    data: str | None = None
    """The folder with CoLA/, SST-2/, ... in it, or hf:PATH_OR_NAME (Hugging Face datasets)."""
    tasks: tuple[str, ...] = one_or_more(())
    """Tasks to run; by default those of the eight in the average that have data."""
    seeds: int = 5
    """Runs of each task; dev scores are their median."""
    start: Start = "mnli"
    """`mnli`: RTE and STS-B start from the best MNLI run, if MNLI is among the tasks; `model`: all start from the model."""
    mrpc_from_mnli: bool = False
    """MRPC starts from the best MNLI run, too."""
    ensemble: int = 1
    """Test predictions are the average of this many of the best runs."""
    fill: bool = False
    """Write submission.zip even if tasks are missing: their files get the first label in every row."""
    download: Path | None = None
    """Download the data into this folder, and do nothing else."""

    def check(self) -> None:
        super().check()
        if self.download is not None:
            return
        for name, what in {"model": "MODEL", "data": "--data", "out": "--out"}.items():
            if getattr(self, name) is None:
                raise UserError(f"electra glue needs {what}: electra glue MODEL --data glue --out runs/glue")
        check_at_least(1, self.values("seeds"))
        if not 1 <= self.ensemble <= self.seeds:
            raise UserError(f"--ensemble must be from 1 to the number of --seeds, {self.seeds}; got {self.ensemble}")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TuningConfig):
    """Fine-tune a model on one task: of GLUE, SQuAD, chunking, or your own TSV, CSV or JSONL files."""

    out: Path | None = may_change(None)
    """Folder to write; by default runs/MODEL/TASK. Finished runs in it are not run again."""
    train: Path | None = None
    """Rows to train on; the first line of .tsv and .csv names the columns."""
    dev: Path | None = None
    """Rows to score on."""
    test: Path | None = None
    """Rows to predict."""
    text: tuple[str, ...] = one_or_more(())
    """One or two text columns; by default sentence1 sentence2, premise hypothesis, sentence, text and the like."""
    label: str | None = None
    """The column of the label; by default label, score and the like."""
    kind: LabelKind | None = None
    """By default recognised from the labels: numbers with fractions, or many different ones, mean regression."""
    task: str | None = None
    """Instead of files: a task of GLUE, squad, squad2, mrqa or chunking."""
    data: str | None = None
    """The folder of GLUE, of SQuAD's or MRQA's files or of CoNLL-2000's, for --task."""
    seeds: int = 1
    """Number of runs; the best is kept."""
    joint_prediction: bool = False
    """SQuAD: the end of an answer depends on its start (official beam search). transformers has no such head, `electra predict` has."""
    answerable_uses_start_logits: bool = False
    """SQuAD 2.0: whether there is no answer is read from [CLS] and from where an answer may start, as in the official code."""

    def check(self) -> None:
        super().check()
        if self.model is None:
            raise UserError("electra finetune needs MODEL, the folder of a transformers model or its name on the hub")
        has_files = self.train is not None and self.dev is not None
        if has_files == (self.task is not None):
            raise UserError("name either --train and --dev, your own files, or --task and --data, a known task")
        if self.task is not None and self.data is None:
            raise UserError(f"--task {self.task} needs --data, the folder of its files")
        check_at_least(1, self.values("seeds"))
        if self.out is None:
            object.__setattr__(self, "out", self.usual_out())

    def usual_out(self) -> Path:
        """runs/MODEL/TASK; a task of files is called as the training file is, or the folder of train.tsv."""
        assert self.model is not None
        file = Path(self.train or "").resolve()
        task = self.task or (file.parent.name if file.stem == "train" else file.stem) or "task"
        return Path("runs") / (Path(self.model).resolve().name or "model") / task.lower()


@dataclass(frozen=True, kw_only=True)
class SearchConfig(FinetuneConfig):
    """Search for good settings of one task with Optuna: lr, epochs, batch size, layer decay. One that is given is not searched."""

    trials: int = 20
    """Settings to try. The same command with a larger number continues the search."""
    lrs: tuple[float, ...] = (1e-5, 1e-3)
    """The lowest and the highest learning rate; sampled on a logarithmic scale."""
    epochs_tried: tuple[float, ...] = (2, 3, 5, 10)
    """The numbers of epochs to choose from."""
    batch_sizes: tuple[int, ...] = (16, 32, 64)
    """The batch sizes to choose from."""
    layer_decays: tuple[float, ...] = (0.7, 0.8, 0.9, 1.0)
    """The layer decays to choose from."""
    seeds: int = 1
    """Runs of each trial; its score is their median. More runs: less noise."""
    together: int = 4
    """Trials that are chosen at once and may run side by side. Unlike --workers, it decides what is tried."""
    seed: int = 0
    """Seed of the sampler that chooses trials."""
    prune: bool = False
    """A trial whose first seeds are worse than the median of the others gets no more of them."""
    test: Suppress[Path | None] = None
    keep: Suppress[Keep] = "none"

    def check(self) -> None:
        super().check()
        choices = self.values("lrs", "epochs_tried", "batch_sizes", "layer_decays")
        for flag, values in choices.items():
            given = " ".join(map(str, values)) or "nothing"
            if not values or min(values) <= 0:
                raise UserError(f"{flag} must be numbers above 0, got {given}")
            if len(set(values)) < len(values):
                raise UserError(f"{flag} names a value twice: {given}")
            if flag == "--lrs" and (len(values) != 2 or values[0] >= values[1]):
                raise UserError(f"--lrs must be the lowest and the highest learning rate, got {given}")
        check_at_least(1, self.values("trials", "together"))
        if self.test is not None:
            raise UserError("a search does not look at test rows; leave test out")
        if self.prune and self.seeds < 2:
            raise UserError(
                f"--prune needs --seeds 2 or more, got {self.seeds}: it decides between the seeds of a trial"
            )
        if not self.searched():
            raise UserError("lr, epochs, batch size and layer decay are all given: nothing is left to search")

    def usual_out(self) -> Path:
        return super().usual_out() / "search"

    def searched(self) -> dict[str, tuple[float, ...]]:
        """What is searched: from the lowest to the highest lr, and among the choices of the others."""
        every: dict[str, tuple[float, ...]] = {
            "lr": self.lrs,
            "epochs": self.epochs_tried,
            "batch_size": self.batch_sizes,
            "layer_decay": self.layer_decays,
        }
        return {name: values for name, values in every.items() if name not in self.changes()}


@dataclass(frozen=True, kw_only=True)
class PredictConfig(VerbSettings):
    """Predict with a fine-tuned model: labels of rows, answers to questions, or tags of words."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A folder that `electra finetune` made, or any transformers model that classifies sequences, answers questions or tags tokens."""
    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """A .tsv, .csv or .jsonl file; for SQuAD its .json, or columns question and context; for tags a word in each line."""
    out: Path | None = None
    """A file to write, for SQuAD a folder; by default standard output."""
    text: tuple[str, ...] = one_or_more(())
    """The columns of text; by default those that the model was trained with."""
    device: str | None = None
    """cpu or cuda; by default cuda if there is one."""
    overwrite: bool = False
    """Write even where a file of others is: it is kept under another name, such as predictions.1.tsv."""
