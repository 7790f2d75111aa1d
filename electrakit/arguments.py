"""`PRESET --setting value ...` in, the settings of a run out: what `electra show` and `electra pretrain` are told."""

import argparse
import contextlib
import difflib
import inspect
import io
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import tyro

from electrakit.errors import UserError
from electrakit.presets import PRESETS
from electrakit.pretrain_config import PretrainConfig, override

FLAGS = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)


def config_from_arguments(arguments: Sequence[str], verb: str) -> tuple[str, PretrainConfig]:
    """The preset's name, and its settings with the changes of the command line."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(verb))
        sys.exit(0 if arguments else 2)
    name, *rest = arguments
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"unknown preset {name!r}; {hint}there are {', '.join(PRESETS)}")
    options, rest = preset_options(name, rest)
    has_generator = options.get("generator") != "none"
    config = PRESETS[name](**{option: value for option, value in options.items() if value != "none"})
    config = config if has_generator else override(config, {"generator": None})
    check_options(name, config, rest)
    return name, parse_changes(config, rest, prog=f"electra {verb} {name}", help=about(name))


def preset_options(name: str, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What the preset function itself is told, and the other arguments: `--body modern`, `--vocab-size` of both networks, and
    `--generator none`, which tyro cannot say of a part with settings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option, choices in choices_of(name).items():
        parser.add_argument(f"--{option}", choices=choices, type=str.lower, default=argparse.SUPPRESS)
    parser.add_argument("--vocab-size", "--vocab_size", type=int, default=argparse.SUPPRESS)
    try:
        options, rest = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(f"{name}: {error}") from None
    return vars(options), rest


def choices_of(name: str) -> dict[str, tuple[str, ...]]:
    """The preset's own options: arguments of its function, and `none` for the generator."""
    arguments = inspect.signature(PRESETS[name]).parameters.values()
    own = {each.name: get_args(each.annotation) for each in arguments if each.kind is not each.VAR_KEYWORD}
    return own | {"generator": (*own.get("generator", ()), "none")}


def check_options(name: str, config: PretrainConfig, arguments: Sequence[str]) -> None:
    """Say in one line which option is unknown, and what it may have been meant to be: `--mask-prob` is `--objective.mask-prob`."""
    own = [f"--{option}" for option in (*choices_of(name), "vocab-size")]
    known = [*option_names(config), "--help"]
    for argument in arguments:
        option = argument.split("=")[0].replace("_", "-")
        if not option.startswith("--") or option in known or option.startswith("--tyro-"):
            continue
        inside = [each for each in known if each.split(".")[-1] == option[2:].split(".")[-1]]
        close = inside or difflib.get_close_matches(option, [*known, *own], n=1)
        hint = f"did you mean {' or '.join(close)}?" if close else f"electra show {name} --help lists all"
        raise UserError(f"{name} has no option {option}; {hint}")


def option_names(config: Any, prefix: str = "--") -> list[str]:
    """Every setting as it is written on the command line."""
    names: list[str] = []
    for entry in fields(config):
        value, option = getattr(config, entry.name), prefix + entry.name.replace("_", "-")
        if is_dataclass(value):
            names += option_names(value, f"{option}.")
        elif value is True:  # it can only be switched off
            names.append(f"{prefix}no-{entry.name.replace('_', '-')}")
        else:
            names.append(option)
    return names


def parse_changes(config: PretrainConfig, arguments: Sequence[str], prog: str, help: str = "") -> PretrainConfig:
    """The config with changes such as `--optim.lr 1e-3`. Settings that make no sense are a UserError."""
    errors = io.StringIO()  # tyro draws a box around what our own checks say: we say it in one line
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(PretrainConfig, default=config, args=arguments, prog=prog, description=help, config=FLAGS)
    except SystemExit as stop:
        cause: BaseException | None = stop
        while cause is not None:
            if isinstance(cause, UserError):
                raise UserError(str(cause)) from None
            cause = cause.__context__
        sys.stderr.write(errors.getvalue())
        raise


def about(name: str) -> str:
    """The preset's description and its own options."""
    options = [f"--{option} {'|'.join(choices)}" for option, choices in choices_of(name).items()]
    own = ", ".join([*options, "--vocab-size N (of both networks)"])
    return f"{inspect.getdoc(PRESETS[name])}\n\nOptions of this preset: {own}. Everything else can be changed too:"


def usage(verb: str) -> str:
    lines = [f"usage: electra {verb} PRESET [--setting value ...]", "", "presets:"]
    lines += [f"  {name:26}{(preset.__doc__ or '').splitlines()[0]}" for name, preset in PRESETS.items()]
    return "\n".join([*lines, "", f"electra {verb} PRESET --help lists the settings."])
