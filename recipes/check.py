"""Check whether `electra` accepts each command on standard input, without running any. Used by the recipes' --dry-run."""

import shlex
import sys

from electrakit.cli.preset_arguments import config_from_arguments
from electrakit.cli.verbs import parse_verb
from electrakit.common.errors import UserError


def check(line: str) -> None:
    """Parse a command like `electra`. A mistake raises UserError, or makes tyro print a message and exit."""
    words = shlex.split(line)
    if words[0] == "torchrun":
        words = words[words.index("electrakit") :]
    elif words[0] != "electra":
        return
    verb, *rest = words[1:]
    if verb == "pretrain" and rest[0] == "auto":  # it has the settings of any preset, but would look for the shards
        rest[0] = "modern_mini"
    if verb in ("pretrain", "show"):
        _, config = config_from_arguments(rest, verb)
        if verb == "pretrain" and (config.data is None or config.run is None):
            raise UserError("electra pretrain needs --data and --run")
        return
    if "--preset" in rest and "/" in rest[place := rest.index("--preset") + 1]:
        rest[place] = "paper"  # an earlier command writes the file
    parse_verb([verb, *rest])


if __name__ == "__main__":
    lines = list(sys.stdin)
    for line in lines:
        try:
            check(line)
        except UserError as error:
            sys.exit(f"{line.strip()}: {error}")
        except SystemExit as stop:
            if stop.code:
                sys.exit(f"cannot be understood: {line.strip()}")
    print(f"{len(lines)} commands, all understood; none was run.")
