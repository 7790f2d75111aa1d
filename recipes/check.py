"""Command lines in, complaints out: whether `electra` would understand each of them. For the recipes' --dry-run; runs none of them."""

import shlex
import sys

from electrakit.arguments import config_from_arguments
from electrakit.cli import _parse
from electrakit.errors import UserError


def check(line: str) -> None:
    """Read a command as `electra` reads it; what is wrong is a UserError, or tyro's own message and exit."""
    words = shlex.split(line)
    if words[0] == "torchrun":
        words = words[words.index("electrakit") :]
    elif words[0] != "electra":
        return
    verb, *rest = words[1:]
    if verb in ("pretrain", "show"):
        _, config = config_from_arguments(rest, verb)
        if verb == "pretrain" and (config.data is None or config.run is None):
            raise UserError("electra pretrain needs --data and --run")
        return
    config = _parse([verb, *rest])
    names_files = "/" in getattr(config, "preset", "")  # which an earlier command writes
    if hasattr(config, "checked") and not names_files:
        config.checked()


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
