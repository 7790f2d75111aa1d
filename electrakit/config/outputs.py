"""The settings of export, convert, measure, score, report, play and demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from electrakit.common.errors import UserError
from electrakit.config.base import VerbSettings, check_positive, one_or_more


@dataclass(frozen=True, kw_only=True)
class ExportConfig(VerbSettings):
    """Write a run's model as a transformers folder: weights, tokenizer and model card, and the generator beside it."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """A run folder, or one of its checkpoints."""
    out: Path
    """Folder to write."""
    checkpoint: str = "last"
    """`last`, `best` (by the loss on the valid split), or a step."""
    glue: Path | None = None
    """Output folder of `electra glue` whose table goes into the card; by default `glue` in the run folder, if it exists."""
    licence: Annotated[str | None, arg(aliases=["--license"])] = None
    """Licence in the card, as the Hub spells it, for instance `apache-2.0`; without one the card says that it is missing."""
    onnx: bool = False
    """Write ONNX files too, fp32 and int8 (needs the `onnx` extra)."""
    push: str | None = None
    """Also upload it to the Hugging Face Hub under this name, for instance `me/electra-small-mine`."""
    private: bool = False
    """With --push: make the repository private."""
    dry_run: bool = False
    """With --push: write and check everything, list what would be uploaded, upload nothing."""
    overwrite: bool = False
    """Replace any earlier export, also of another run. Files that electrakit did not write, or that were changed, are kept."""

    def check(self) -> None:
        if self.push is None and (self.dry_run or self.private):
            name = "--dry-run" if self.dry_run else "--private"
            raise UserError(f"{name} goes with --push NAME: add it, or leave this out")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(VerbSettings):
    """Convert a TensorFlow checkpoint of google-research/electra to a transformers model, without TensorFlow."""

    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")]
    """The folder of the checkpoint, or its prefix (the name before `.index`)."""
    out: Path
    """Folder to write: the discriminator, and `generator/` inside."""
    vocab: Path | None = None
    """vocab.txt; by default the one beside the checkpoint."""
    num_heads: int | None = None
    """Attention heads of the discriminator, which the checkpoint does not hold; by default hidden size / 64, as in all released ones."""
    overwrite: bool = False
    """Replace a converted model that is there already. Files that electrakit did not write are kept."""


@dataclass(frozen=True, kw_only=True)
class ConvertDebertaConfig(VerbSettings):
    """Convert a DeBERTaV3 pair as Microsoft releases it, whose weights are pickles, to safetensors."""

    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """The folder with pytorch_model.bin and pytorch_model.generator.bin. They are read by a process without network or files."""
    out: Path
    """Folder to write: the discriminator, and `generator/` inside."""
    num_heads: int | None = None
    """Attention heads, which the weights do not show; by default hidden size / 64, as in all released ones."""
    overwrite: bool = False
    """Replace a converted model that is there already. Files that electrakit did not write are kept."""

    def check(self) -> None:
        check_positive(self.values("num_heads"))


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(VerbSettings):
    """Measure how much language encoders know: fixed corruptions, minimal pairs, and probes on frozen states."""

    models: Annotated[
        Positional[tuple[str, ...]], arg(metavar="MODEL [MODEL ...]", help_behavior_hint="(required)")
    ] = one_or_more()
    """Runs, checkpoints, exported folders, or transformers models."""
    data: Path | None = None
    """Shards whose rows are corrupted; by default those of the run. They must have the vocabulary of the models."""
    rows: int = 256
    """Rows to corrupt."""
    pairs: Path | None = None
    """Minimal pairs in the layout of BLiMP: a .jsonl file with sentence_good and sentence_bad, or a folder of them."""
    pairs_limit: int | None = None
    """Pairs per file, evenly spaced; by default all, and 100 for masked LMs, which take a pass for each token."""
    train: Path | None = None
    """TSV, CSV or JSONL file with texts and labels, to fit probes on frozen states; goes with --dev."""
    dev: Path | None = None
    """Like --train; the probes are scored on it."""
    text: tuple[str, ...] | None = None
    """One or two columns with the sentences; by default recognised by their names."""
    label: str | None = None
    """The column of the label; by default recognised by its name."""
    out: Path | None = None
    """JSON file to write; by default measure.json in the folder of each run. What it holds of other steps and data stays."""

    def check(self) -> None:
        if not self.models:
            raise UserError("no model is named; name runs, exported folders, or transformers models")
        check_positive(self.values("rows", "pairs_limit"))
        if (self.train is None) != (self.dev is None):
            missing = "--dev" if self.dev is None else "--train"
            raise UserError(
                f"--train and --dev go together: {missing} is missing; probes are fitted on one and scored on the other"
            )
        if self.train is None and (self.text or self.label):
            raise UserError("--text and --label name columns of --train and --dev: add these, or leave them out")
        if self.out is not None and self.out.is_dir():
            raise UserError(f"--out {self.out} is a folder; name a file, such as {self.out / 'measure.json'}")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(VerbSettings):
    """Score each line of a text with a pseudo-log-likelihood, to rank what another model wrote."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A run, a checkpoint, an exported folder, or a transformers model. Electric and discriminators take one pass."""
    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """Text file in UTF-8 with one sentence in each line."""
    out: Path | None = None
    """TSV file to write: score, number of tokens, of tokens that were cut off, and the line; by default to standard output."""
    network: Literal["discriminator", "generator"] = "discriminator"
    """Which one scores, where there are two; a generator takes a pass for each token."""
    overwrite: bool = False
    """Write even where a file of others is: it is kept under another name, such as scores.1.tsv."""

    def check(self) -> None:
        if self.out is not None and self.out.is_dir():
            raise UserError(f"--out {self.out} is a folder; name a file, such as {self.out / 'scores.tsv'}")


@dataclass(frozen=True, kw_only=True)
class ReportConfig(VerbSettings):
    """Write one HTML file about runs: curves, validation, GLUE, settings, findings of the doctor."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")] = (
        one_or_more()
    )
    """Run folders; the curves of several are drawn together."""
    out: Path = Path("report.html")
    """File to write; PNGs of the curves go into a folder of the same name beside it."""
    live: bool = False
    """Update it while training continues; an open page reloads itself."""
    every: float = 30.0
    """With --live: seconds between two updates."""
    png: bool = True
    """Write PNGs of the curves too, for papers; --no-png leaves them out."""
    overwrite: bool = False
    """Write even where files of others are: they are kept under another name, such as report.1.html."""

    def check(self) -> None:
        if not self.runs:
            raise UserError("no run is named; name one or more folders that electra pretrain wrote (its --run)")
        check_positive(self.values("every"), "it is the seconds between two updates")


@dataclass(frozen=True, kw_only=True)
class PlayConfig(VerbSettings):
    """Serve a web page to try models: which tokens look replaced, what the generator predicts, and the training game."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL [MODEL]", help_behavior_hint="(required)")] = (
        one_or_more()
    )
    """One or two exported folders, checkpoints, runs, or transformers models; two are shown side by side."""
    generator: str | None = None
    """Another generator, for discriminators that have none beside them."""
    host: str = "127.0.0.1"
    """Address to listen on; any other than the default lets other machines connect."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    browser: bool = False
    """Open the page in a browser."""

    def check(self) -> None:
        if not 1 <= len(self.models) <= 2:
            what = f"{len(self.models)} models are named" if self.models else "no model is named"
            raise UserError(f"{what}; name one, as electra play hf/mine, or two to see them side by side")
        if not 0 <= self.port <= 65_535:
            raise UserError(f"--port {self.port}: ports are numbers from 1 to 65535, and 0 takes a free one")


@dataclass(frozen=True, kw_only=True)
class DemoConfig(VerbSettings):
    """The whole pipeline in minutes, offline, on a CPU: built-in text, tokenizer, shards, pretraining, export, report."""

    out: Path = Path("demo")
    """Folder to write."""
    budget: str = "3m"
    """Time for the training."""
    workers: int | None = None
    """Number of worker processes; by default one per core."""
