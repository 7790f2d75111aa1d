"""The command line: each verb is one call into the Python API."""

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
            "electra: stopped; nothing is lost: start the same command again (prepare goes on where it was)",
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


def _parse(arguments: Sequence[str]) -> Any:
    import tyro

    from electrakit.config import (
        DemoConfig,
        DoctorConfig,
        PrepareConfig,
        PretrainArguments,
        ShowConfig,
        TokenizerConfig,
    )
    from electrakit.evaluate_config import FinetuneConfig, GlueConfig, PredictConfig
    from electrakit.search_config import SearchConfig

    verb = (
        Annotated[DemoConfig, tyro.conf.subcommand("demo")]
        | Annotated[TokenizerConfig, tyro.conf.subcommand("tokenizer")]
        | Annotated[PrepareConfig, tyro.conf.subcommand("prepare")]
        | Annotated[DoctorConfig, tyro.conf.subcommand("doctor")]
        | Annotated[ShowConfig, tyro.conf.subcommand("show")]
        | Annotated[PretrainArguments, tyro.conf.subcommand("pretrain")]
        | Annotated[FinetuneConfig, tyro.conf.subcommand("finetune")]
        | Annotated[PredictConfig, tyro.conf.subcommand("predict")]
        | Annotated[GlueConfig, tyro.conf.subcommand("glue")]
        | Annotated[SearchConfig, tyro.conf.subcommand("search")]
    )
    return tyro.cli(
        verb,
        prog="electra",
        description="Pretrain ELECTRA text encoders: text -> tokenizer -> shards -> pretraining -> a transformers model.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes, tyro.conf.HelptextFromCommentsOff),
    )


def _run(config: Any) -> int:
    import electrakit
    from electrakit.config import DemoConfig, DoctorConfig, PrepareConfig, TokenizerConfig
    from electrakit.evaluate_config import FinetuneConfig, GlueConfig, PredictConfig
    from electrakit.search_config import SearchConfig

    settings = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    if isinstance(config, DemoConfig):
        from electrakit.demo import demo

        demo(config)
    elif isinstance(config, TokenizerConfig):
        electrakit.train_tokenizer(**settings)
    elif isinstance(config, PrepareConfig):
        from rich.console import Console

        from electrakit.data.summary import print_summary

        is_finished = (config.out / "manifest.json").exists()  # then one line says that there is nothing to do
        shards = electrakit.prepare(**settings)
        if not is_finished:
            print_summary(shards, Console(highlight=False))
    elif isinstance(config, DoctorConfig):
        from electrakit.doctor import print_findings

        return print_findings(electrakit.examine(**settings))
    elif isinstance(config, GlueConfig | FinetuneConfig | PredictConfig):
        from electrakit.evaluate.show import show_finetune, show_glue, show_predict, show_search

        show = {GlueConfig: show_glue, FinetuneConfig: show_finetune, PredictConfig: show_predict}
        (show | {SearchConfig: show_search})[type(config)](settings)
    return 0
