"""The command line: each verb is one call into the Python API."""

import functools
import operator
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

from electrakit.errors import UserError
from electrakit.train.signals import Interrupts

# What takes longer to load is imported where it is used: signals are listened for before that.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb.

    Exit code 0: done; 1: the doctor found something serious; 2: something for the user to mend; 75: training was asked to stop, and
    goes on when the same command is given again.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["pretrain"]:
            sys.exit(_pretrain(arguments[1:]))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave tidily, as for Ctrl-C
        if arguments[:1] == ["show"]:  # what may follow depends on the preset
            from electrakit.show import show

            show(arguments[1:])
            sys.exit(0)
        sys.exit(_run(_parse(arguments)))
    except UserError as error:
        print(f"electra: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(
            "electra: stopped; start the same command again (prepare, finetune, glue and search go on where they were)",
            file=sys.stderr,
        )
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has gone
        sys.stderr.close()
        sys.exit(141)


def _pretrain(arguments: Sequence[str]) -> int:
    """From the first moment to the last, a signal is no reason to be gone without saying how to go on."""
    interrupts = Interrupts().__enter__()
    try:
        from electrakit.arguments import config_from_arguments

        _, config = config_from_arguments(arguments, verb="pretrain")
        from electrakit import pretrain

        # torchrun knows success and failure only, and after a failure starts us again: having stopped as asked is no failure.
        # There the team decides together that it stops.
        is_in_team = "TORCHELASTIC_RUN_ID" in os.environ
        if interrupts.is_asked and not is_in_team:
            print("electra: stopped before the run was opened; start the same command again", file=sys.stderr)
            return 75
        is_complete = pretrain(config, interrupts=interrupts).is_complete
        return 0 if is_complete or is_in_team else 75
    finally:
        interrupts.ignore()


def _verbs() -> dict[str, type]:
    """Each verb and its settings, in the order of the walk."""
    from electrakit import config, evaluate_config, search_config, share_config

    return {
        "demo": config.DemoConfig,
        "tokenizer": config.TokenizerConfig,
        "prepare": config.PrepareConfig,
        "doctor": config.DoctorConfig,
        "show": config.ShowConfig,
        "pretrain": config.PretrainArguments,
        "export": share_config.ExportConfig,
        "convert": share_config.ConvertConfig,
        "finetune": evaluate_config.FinetuneConfig,
        "predict": evaluate_config.PredictConfig,
        "glue": evaluate_config.GlueConfig,
        "search": search_config.SearchConfig,
        "report": share_config.ReportConfig,
        "play": share_config.PlayConfig,
    }


def _parse(arguments: Sequence[str]) -> Any:
    import tyro

    verbs: list[Any] = [Annotated[settings, tyro.conf.subcommand(verb)] for verb, settings in _verbs().items()]
    return tyro.cli(
        functools.reduce(operator.or_, verbs),
        prog="electra",
        description=(
            "Pretrain ELECTRA text encoders: text -> tokenizer -> shards -> pretraining -> a transformers model -> GLUE -> report."
        ),
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes, tyro.conf.HelptextFromCommentsOff),
    )


def _run(config: Any) -> int:
    import electrakit

    settings = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    match {kind: verb for verb, kind in _verbs().items()}[type(config)]:
        case "demo":
            from electrakit.demo import demo

            demo(config)
        case "tokenizer":
            electrakit.train_tokenizer(**settings)
        case "prepare":
            from rich.console import Console

            from electrakit.data.summary import print_summary

            is_finished = (config.out / "manifest.json").exists()  # then one line says that there is nothing to do
            shards = electrakit.prepare(**settings)
            if not is_finished:
                print_summary(shards, Console(highlight=False))
        case "doctor":
            from electrakit.doctor.findings import print_findings

            return print_findings(electrakit.examine(**settings))
        case "finetune" | "predict" | "glue" | "search" as verb:
            from electrakit.evaluate import show

            getattr(show, f"show_{verb}")(settings)
        case "export" | "convert" | "report" | "play" as verb:
            from electrakit.share import show as share_show

            getattr(share_show, f"show_{verb}")(settings)
    return 0
