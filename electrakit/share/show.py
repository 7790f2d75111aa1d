"""What `electra export`, `electra convert`, `electra report` and `electra play` print."""

from typing import Any

from rich.console import Console


def show_export(settings: dict[str, Any]) -> None:
    """Export, and print what was written and checked."""
    from electrakit.share.export import export

    made = export(**settings)
    Console(highlight=False).print(made, markup=False)


def show_convert(settings: dict[str, Any]) -> None:
    """Convert, and print what was written."""
    from electrakit.share.convert import convert

    made = convert(**settings)
    Console(highlight=False).print(made, markup=False)


def show_report(settings: dict[str, Any]) -> None:
    """Make the report, again and again if asked, and print where it is."""
    from electrakit.share.report import report

    made = report(**settings)
    Console(highlight=False).print(made, markup=False)


def show_play(settings: dict[str, Any]) -> None:
    """Serve the page until Ctrl-C."""
    from electrakit.share.play.server import play

    play(**settings)
