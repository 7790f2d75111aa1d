"""The command line: each verb is one call into the Python API."""

import os
import signal
import sys
from collections.abc import Sequence

from electrakit.common.errors import UserError
from electrakit.train.signals import Interrupts

# Slow imports are inside functions: signals are handled before them.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb.

    Exit code 0: done; 1: the doctor found something serious; 2: something for the user to fix; 75: training was asked to stop, and
    continues when the same command is given again.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["pretrain"]:
            sys.exit(_pretrain(arguments[1:]))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave tidily, as for Ctrl-C
        if arguments[:1] == ["show"]:
            from electrakit.cli.show_preset import show

            show(arguments[1:])
            sys.exit(0)
        from electrakit.cli.verbs import run_verb

        sys.exit(run_verb(arguments))
    except UserError as error:
        print(f"electra: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(
            "electra: stopped; start the same command again (prepare, finetune, glue and search resume)",
            file=sys.stderr,
        )
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has gone
        sys.stderr.close()
        sys.exit(141)


def _pretrain(arguments: Sequence[str]) -> int:
    """Signals are handled from the first moment to the last: the exit code always tells whether to start again."""
    interrupts = Interrupts().__enter__()
    try:
        from electrakit.cli.preset_arguments import config_from_arguments

        _, config = config_from_arguments(arguments, verb="pretrain")
        from electrakit import pretrain

        # torchrun knows success and failure only, and after a failure starts us again: having stopped as asked is no failure.
        # There all ranks decide together to stop.
        is_distributed = "TORCHELASTIC_RUN_ID" in os.environ
        if interrupts.stop_requested and not is_distributed:
            print("electra: stopped before the run was opened; start the same command again", file=sys.stderr)
            return 75
        is_complete = pretrain(config, interrupts=interrupts).is_complete
        return 0 if is_complete or is_distributed else 75
    finally:
        interrupts.ignore()
