"""Reads the arguments of `electra show` and `electra pretrain`: a preset, a file of settings, and single settings."""

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import tyro

from electrakit.cli.verbs import AUTO, AUTO_HELP, auto_example, parse, settings_in, split_config
from electrakit.common.errors import UserError
from electrakit.config.base import closest
from electrakit.config.presets import PRESETS
from electrakit.config.pretrain import PretrainConfig, override
from electrakit.model.auto import ASKED, Choice

NO_NETWORK: dict[str, dict[str, Any]] = {
    "none": {"generator": None},
    "counts": {"generator": None, "ngrams": True},
}
"""Values of `--generator`: replacements are drawn uniformly, or by counts of neighbouring words."""


def config_from_arguments(arguments: Sequence[str], verb: str) -> tuple[str, PretrainConfig]:
    """The name of the preset or of the file, and the settings with the changes of the command line.

    A preset comes first, then the settings of a file (`--config`), then single settings.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(verb))
        sys.exit(0 if arguments else 2)
    path, rest = split_config(arguments)
    has_preset = path is None or (bool(rest) and not rest[0].startswith("-"))
    preset = rest.pop(0) if has_preset and rest else None
    if preset is not None and preset not in (known := (*PRESETS, AUTO)):
        meant = closest(preset, known)
        hint = f"did you mean {meant}? " if meant else ""
        raise UserError(f"unknown preset {preset!r}; {hint}there are {', '.join(known)}")
    name = preset or str(path)
    options, rest = preset_options(name, rest)
    changes: dict[str, Any] = {"vocab_size": options.pop("vocab_size")} if "vocab_size" in options else {}
    if options.get("generator") in NO_NETWORK:
        changes |= NO_NETWORK[options.pop("generator")]
    values = {} if path is None else settings_in(path, verb)
    choice = choose_for(values | changes, rest) if preset == AUTO else None
    made = PRESETS[preset](**options) if preset in PRESETS else PretrainConfig()
    config = made if choice is None else choice.config
    if path is not None:
        try:
            config = override(config, values)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    config = override(config, changes)
    check_options(name, config, rest)
    prog, style = f"electra {verb} {preset or '--config FILE'}", tyro.conf.AvoidSubcommands
    description = describe_preset(name)
    config = parse(PretrainConfig, style, default=config, args=rest, prog=prog, description=description)
    if choice is not None and os.environ.get("RANK", "0") == "0":
        print(f"{AUTO} chooses these settings; yours come on top:", *choice.reasons, sep="\n  ", flush=True)
    return name, config


def choose_for(values: dict[str, Any], arguments: Sequence[str]) -> Choice:
    """What auto chooses, for the settings of a file and the arguments. For --help nothing is measured."""
    check_options(AUTO, auto_example().config, arguments)
    if {"-h", "--help"} & {*arguments}:
        return auto_example()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ASKED:
        kind: dict[str, Any] = {"action": "store_true"} if name == "plain" else {"type": NUMBERS.get(name, str)}
        parser.add_argument(*{f"--{name.replace('_', '-')}", f"--{name}"}, default=argparse.SUPPRESS, **kind)
    try:
        given = values | vars(parser.parse_known_args(arguments)[0])
    except argparse.ArgumentError as error:
        raise UserError(f"{AUTO}: {error}") from None
    from electrakit.train.auto import choose_recipe

    return choose_recipe(**{name: given[name] for name in ("vocab_size", *ASKED) if name in given})


NUMBERS = {"length": int, "batch_size": int}


def preset_options(name: str, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options that are no settings of tyro's, and the other arguments: arguments of the preset function (`--body modern`),
    `--vocab-size` of both networks, and a generator that is no network, which tyro cannot express for a part with settings."""
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
    """The preset's own options: arguments of its function, and a generator that is no network."""
    own = {}
    if name in PRESETS:
        arguments = inspect.signature(PRESETS[name]).parameters.values()
        own = {each.name: get_args(each.annotation) for each in arguments if each.kind is not each.VAR_KEYWORD}
    return own | {"generator": (*own.get("generator", ()), *NO_NETWORK)}


def check_options(name: str, config: PretrainConfig, arguments: Sequence[str]) -> None:
    """Say in one line which option is unknown, and what it may have been meant to be: `--mask-prob` is `--objective.mask-prob`."""
    own = [f"--{option}" for option in (*choices_of(name), "vocab-size")]
    known = [*option_names(config), "--help"]
    for argument in arguments:
        option = argument.split("=")[0].replace("_", "-")
        if not option.startswith("--") or option in known or option.startswith("--tyro-"):
            continue
        inside = [each for each in known if each.split(".")[-1] == option[2:].split(".")[-1]]
        meant = " or ".join(inside) or closest(option, [*known, *own])
        hint = f"did you mean {meant}?" if meant else f"electra show {name} --help lists all"
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


def describe_preset(name: str) -> str:
    """The preset's description and its own options."""
    options = [f"--{option} {'|'.join(choices)}" for option, choices in choices_of(name).items()]
    own = ", ".join([*options, "--vocab-size N (of both networks)", "--config FILE (JSON or YAML)"])
    if name == AUTO:
        doc: str | None = f"{AUTO_HELP} The defaults below are those of an hour on two cores."
    else:
        doc = inspect.getdoc(PRESETS[name]) if name in PRESETS else f"The settings of {name}."
    return f"{doc}\n\nOptions of this preset: {own}. Everything else can be changed too:"


def usage(verb: str) -> str:
    lines = [
        f"usage: electra {verb} PRESET [--config FILE] [--setting value ...]",
        f"       electra {verb} --config FILE [--setting value ...]",
        "",
        "presets:",
    ]
    lines += [f"  {AUTO:26}{AUTO_HELP}"]
    lines += [f"  {name:26}{(preset.__doc__ or '').splitlines()[0]}" for name, preset in PRESETS.items()]
    config = "--config reads settings from a JSON or YAML file, such as the config.json of a run."
    return "\n".join([*lines, "", f"electra {verb} PRESET --help lists the settings. {config}"])
