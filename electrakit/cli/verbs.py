"""The verbs of the command line: the settings and the function of each, and how arguments become settings."""

import argparse
import contextlib
import functools
import inspect
import io
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from tyro.conf import Positional, arg, subcommand

from electrakit.cli import printing
from electrakit.common.errors import UserError
from electrakit.config import corpus, finetune, outputs
from electrakit.config.base import Settings
from electrakit.config.presets import PRESETS
from electrakit.config.pretrain import PretrainConfig
from electrakit.model.auto import Choice, choose

STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
PARTS = [entry.name for entry in fields(PretrainConfig)]
STORED_SETTINGS = {"prepare": "manifest.json", **dict.fromkeys(("finetune", "glue", "search"), "config.json")}
"""The file with its settings that a verb writes into --out."""

AUTO = "auto"
AUTO_HELP = "Settings chosen for --budget, the time that training may take, on this machine and for this --data."


@dataclass(frozen=True, kw_only=True)
class ShowArguments:
    """Print what a pretraining preset would do: networks, parameters, FLOPs, memory, warnings. Trains nothing."""

    preset: Annotated[Positional[str], arg(metavar="PRESET [--setting value ...]")]
    """`electra show --help` lists the presets, `electra show PRESET --help` the settings."""


@dataclass(frozen=True, kw_only=True)
class PretrainArguments:
    """Train a preset's networks on shards. A stopped run is resumed. Exit code 75: start it again to continue."""

    preset: Annotated[Positional[str], arg(metavar="PRESET --data SHARDS --run RUN [--setting value ...]")]
    """`electra pretrain --help` lists the presets, `electra pretrain PRESET --help` the settings."""


class Verb(NamedTuple):
    settings: type[Any]
    run: Callable[[Any], int | None] | None = None
    """Takes the settings and may return an exit code. None: `main` runs it, since the options depend on the preset."""


# In the order of the pipeline.
VERBS = {
    "demo": Verb(outputs.DemoConfig, printing.run_demo),
    "tokenizer": Verb(corpus.TokenizerConfig, printing.run_tokenizer),
    "prepare": Verb(corpus.PrepareConfig, printing.run_prepare),
    "doctor": Verb(corpus.DoctorConfig, printing.run_doctor),
    "show": Verb(ShowArguments),
    "pretrain": Verb(PretrainArguments),
    "export": Verb(outputs.ExportConfig, printing.run_export),
    "convert": Verb(outputs.ConvertConfig, printing.run_convert),
    "convert-deberta": Verb(outputs.ConvertDebertaConfig, printing.run_convert_deberta),
    "measure": Verb(outputs.MeasureConfig, printing.run_measure),
    "score": Verb(outputs.ScoreConfig, printing.run_score),
    "finetune": Verb(finetune.FinetuneConfig, printing.run_finetune),
    "predict": Verb(finetune.PredictConfig, printing.run_predict),
    "glue": Verb(finetune.GlueConfig, printing.run_glue),
    "search": Verb(finetune.SearchConfig, printing.run_search),
    "report": Verb(outputs.ReportConfig, printing.run_report),
    "play": Verb(outputs.PlayConfig, printing.run_play),
}


def run_verb(arguments: Sequence[str]) -> int:
    """Read the arguments of a verb and run it: its exit code."""
    config = parse_verb(arguments)
    run = {verb.settings: verb.run for verb in VERBS.values()}[type(config)]
    assert run is not None
    return run(config) or 0


def parse_verb(arguments: Sequence[str]) -> Any:
    """The settings of the verb that the arguments name."""
    path, arguments = split_config(arguments)
    if arguments[:2] == ["convert", "deberta"] and not (arguments[2:] or ["-"])[0].startswith("-"):
        arguments = ["convert-deberta", *arguments[2:]]
    name = arguments[0] if arguments else ""
    is_completion = name.startswith("--tyro-")
    kinds: list[Any] = []
    for verb, (kind, run) in VERBS.items():
        options: dict[str, Any] = {"description": inspect.getdoc(kind)}
        if verb == name and run is not None:
            options["description"] += f"\n{config_help(verb)}"
            options |= {} if path is None else {"default": draft(kind, settings_in(path, verb), path)}
        kinds.append(
            Annotated[_with_presets(kind) if is_completion and run is None else kind, subcommand(verb, **options)]
        )
    return parse(
        functools.reduce(operator.or_, kinds),
        tyro.conf.OmitSubcommandPrefixes,
        prog="electra",
        description=(
            "Pretrain ELECTRA text encoders: text -> tokenizer -> shards -> pretraining -> a transformers model -> GLUE -> report."
        ),
        args=arguments,
    )


def parse(kind: Any, *style: Any, **options: Any) -> Any:
    """tyro.cli, but settings that break a rule are a UserError, not a box of tyro's."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, config=(*STYLE, *style), **options)
    except ImportError as error:  # of shtab, for the completion of some shells
        raise UserError(str(error)) from None
    except SystemExit as stop:
        cause: BaseException | None = stop
        prefix = ""
        while cause is not None:
            if isinstance(cause, UserError):
                raise UserError(f"{prefix}{cause}") from None
            if (part := getattr(cause, "arg", None)) in PARTS:  # tyro's error names what it could not make
                prefix = f"{part}."
            cause = cause.__context__
        sys.stderr.write(errors.getvalue())
        raise


def auto_example() -> Choice:
    """What help and completion show: an hour on two cores."""
    return choose(budget_seconds=3600, speed_of=lambda size: 60e9)


def _with_presets(kind: type[Any]) -> type[Any]:
    """The arguments of `show` and `pretrain` with all presets and their settings, for shell completion."""
    presets: list[Any] = [
        Annotated[PretrainConfig, subcommand(name, default=preset(), description=inspect.getdoc(preset))]
        for name, preset in PRESETS.items()
    ]
    presets.append(Annotated[PretrainConfig, subcommand(AUTO, default=auto_example().config, description=AUTO_HELP)])
    return make_dataclass(kind.__name__, [("preset", functools.reduce(operator.or_, presets))])


# Files of settings


def config_help(verb: str) -> str:
    such_as = f", such as the {STORED_SETTINGS[verb]} of an earlier --out" if verb in STORED_SETTINGS else ""
    return f"--config FILE reads settings from a JSON or YAML file{such_as}; other options take precedence."


def split_config(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file of `--config FILE`, wherever it stands among the options, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path, action="append", default=[])
    try:
        found, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        raise UserError("--config needs a file, such as --config runs/mine/config.json") from None
    if len(found.config) > 1:
        raise UserError(f"--config names {len(found.config)} files: name one")
    return next(iter(found.config), None), rest


def settings_in(path: Path, verb: str) -> dict[str, Any]:
    """The settings in a file, by name. The file of another verb is refused."""
    kinds: dict[str, type[Settings]] = {name: entry.settings for name, entry in VERBS.items() if entry.run is not None}
    kinds = {"pretrain": PretrainConfig, **kinds, "show": PretrainConfig}
    names = {name: {entry.name for entry in fields(kind)} for name, kind in kinds.items()}
    values = kinds[verb].values_in(path)
    if not values.keys() <= names[verb]:
        for other, kind in kinds.items():
            if kind.values_in(path).keys() <= names[other]:
                raise UserError(f"{path} has the settings of electra {other}, not of electra {verb}")
    return values


def draft(kind: type[Settings], values: dict[str, Any], path: Path) -> Any:
    """Settings that may lack required ones, and are not checked as a whole yet: the defaults of the command line."""
    try:
        given = kind.read_values(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    made = object.__new__(kind)
    for entry in fields(kind):
        default = tyro.MISSING if entry.default is MISSING else entry.default
        object.__setattr__(made, entry.name, given.get(entry.name, default))
    return made
