"""The command line: each verb is one call into the Python API."""

import os
import sys
from collections.abc import Sequence

from electrakit.common.errors import UserError, first_line, is_out_of_memory
from electrakit.common.output import allow_any_text, end_output, open_missing_files, print_error
from electrakit.train.signals import Interrupts, Leaving, StoppedBySignal, leave_on_signals

# Slow imports are inside functions: signals are handled before them.

HOW_TO_CONTINUE = "start the same command again (prepare, finetune, glue and search resume)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb.

    Exit code 0: done; 1: the doctor found something serious; 2: something for the user to fix; 75: training was asked to stop, and
    continues when the same command is given again; 128 + n: another verb was stopped by signal n.
    """
    open_missing_files()
    allow_any_text()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    leaving: Leaving | None = None
    try:
        if arguments[:1] == ["pretrain"]:
            sys.exit(_pretrain(arguments[1:]))
        leaving = leave_on_signals()
        if arguments[:1] == ["show"]:
            from electrakit.cli.show_preset import show

            show(arguments[1:])
            sys.exit(0)
        from electrakit.cli.verbs import run_verb

        sys.exit(run_verb(arguments))
    except (Exception, KeyboardInterrupt, StoppedBySignal) as error:
        reason = error if leaving is None or leaving.reason is None else leaving.reason
        code = _explain(reason)
        if code is None:
            raise
        sys.exit(code)
    finally:
        end_output()


def _explain(reason: BaseException) -> int | None:
    """Print one line; the exit code. None for a bug, which keeps its traceback."""
    if isinstance(reason, UserError):
        print_error(f"electra: {reason}")
        return 2
    if isinstance(reason, KeyboardInterrupt):
        print_error(f"electra: stopped; {HOW_TO_CONTINUE}")
        return 130
    if isinstance(reason, StoppedBySignal):
        print_error(f"electra: stopped by {reason.name}; {HOW_TO_CONTINUE}")
        return int(str(reason.code))
    if is_out_of_memory(reason):
        remedy = "close other programs, or use smaller batches or fewer --workers"
        print_error(f"electra: not enough memory ({first_line(reason)}); {remedy}, and start the same command again")
        return 2
    return 141 if isinstance(reason, BrokenPipeError) else None  # the reader of the results has gone


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
            print_error("electra: stopped before the run was opened; start the same command again")
            return 75
        is_complete = pretrain(config, interrupts=interrupts).is_complete
        return 0 if is_complete or is_distributed else 75
    finally:
        interrupts.ignore()
