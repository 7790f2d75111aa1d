"""The settings of export, conversion, report and playground: frozen dataclasses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from electrakit.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a run's model as transformers, and everybody who uses it, take it: weights, tokenizer, a card; the generator beside it."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """A run's folder, or one checkpoint of it."""
    out: Path
    """Folder to write."""
    checkpoint: str = "last"
    """`last`, `best` (by the loss on the valid split), or a step."""
    glue: Path | None = None
    """Folder of `electra glue` whose table goes into the card; by default `glue` inside the run, if it is there."""
    licence: str | None = None
    """For the card, as the Hub spells it, for instance `apache-2.0`; without one the card says that it is missing."""
    onnx: bool = False
    """Write ONNX files too, fp32 and int8 (needs the `onnx` extra)."""
    push: str | None = None
    """Also send it to the Hugging Face Hub under this name, for instance `me/electra-small-mine`."""
    private: bool = False
    """With --push: a repository that only you can see."""
    dry_run: bool = False
    """With --push: write and check everything, list what would be sent, send nothing."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Turn a TensorFlow checkpoint of google-research/electra into a transformers model, without TensorFlow."""

    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")]
    """The folder of the checkpoint, or its prefix (the name before `.index`)."""
    out: Path
    """Folder to write: the discriminator, and `generator/` inside."""
    vocab: Path | None = None
    """vocab.txt; by default the one beside the checkpoint."""
    num_heads: int | None = None
    """Attention heads of the discriminator, which no checkpoint says; by default one for each 64 of its width, as in all released ones."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Make one HTML file that shows how runs went: curves, validation, GLUE, settings, the doctor's findings."""

    runs: Annotated[Positional[list[Path]], arg(metavar="RUN")]
    """Folders of runs; several are laid over each other."""
    out: Path = Path("report.html")
    """File to write; PNGs of the curves go into a folder of the same name beside it."""
    live: bool = False
    """Make it anew as long as the training goes on, and let the open page load itself again."""
    every: float = 30.0
    """With --live: seconds between two looks."""
    png: bool = True
    """Also write PNGs, as for a paper."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Serve a page to play with models: which tokens look replaced, what the generator would say, and the training game."""

    models: Annotated[Positional[list[str]], arg(metavar="MODEL")]
    """One or two exported folders, checkpoints, runs, or transformers models; two are shown side by side."""
    generator: str | None = None
    """A generator from elsewhere, for discriminators that have none beside them."""
    host: str = "127.0.0.1"
    """Address to listen at; another one lets others in."""
    port: int = 8000
    """0 takes a free one."""
    browser: bool = False
    """Open the page in a browser."""


MOST_MODELS = 2


def check_models(num_models: int) -> None:
    """Before anything that takes longer."""
    if not 1 <= num_models <= MOST_MODELS:
        what = "no model is named" if not num_models else f"{num_models} models are named"
        raise UserError(f"{what}; name one, as electra play hf/mine, or two to see them side by side")
