"""What `electra export`, `electra convert`, `electra report` and `electra play` print."""

from typing import Any

from rich.console import Console
from rich.table import Table

from electrakit.share.words import size


def show_export(settings: dict[str, Any]) -> None:
    """Export, and print what was written and checked."""
    from electrakit.share.export import export

    made = export(**settings)
    screen = Console(highlight=False)
    screen.print(f"{made.path}: step {made.step:,}", markup=False, soft_wrap=True)
    table = Table("file", "size")
    for name, num_bytes in made.files.items():
        table.add_row(name, size(num_bytes))
    table.add_row("all", size(sum(made.files.values())), style="bold")
    screen.print(table)
    for network, difference in made.differences.items():
        how = f"equal within {difference:.1g}" if difference else "equal, bit for bit"
        screen.print(f"reloaded: logits of the {network} {how}", markup=False)
    for note in made.notes:
        screen.print(note, markup=False, soft_wrap=True, style="yellow")
    if made.onnx:
        table = Table("file", "MB", "ms per row", "difference", "agreement")
        for one in made.onnx:
            place = f"torch, {one.network}" if not one.file else one.file
            place = f"{one.network}/{place}" if one.file and one.network != "discriminator" else place
            figures = [f"{one.num_bytes / 1e6:,.1f}", f"{one.milliseconds:.1f}"]
            figures += ["–" if one.difference is None else f"{one.difference:.2g}"]
            figures += ["–" if one.agreement is None else f"{100 * one.agreement:.1f} %"]
            table.add_row(place, *figures)
        screen.print(table)
    if settings["push"] is not None:
        what = (
            f"would be sent to {settings['push']}; nothing was (--dry-run)"
            if made.url is None
            else f"are at {made.url}"
        )
        screen.print(f"{len(made.files)} files, {size(sum(made.files.values()))}, {what}", markup=False, soft_wrap=True)


def show_convert(settings: dict[str, Any]) -> None:
    """Convert, and print what was written."""
    from electrakit.share.convert import convert, summary

    Console(highlight=False).print(summary(convert(**settings)), markup=False, soft_wrap=True)


def show_report(settings: dict[str, Any]) -> None:
    """Make the report, again and again if asked, and print where it is."""
    from electrakit.share.report import pictures_place, report

    made = report(**settings)
    screen = Console(highlight=False)
    screen.print(f"{made} ({made.stat().st_size / 1e3:,.0f} kB): open it in a browser", markup=False, soft_wrap=True)
    pictures = sorted(pictures_place(made).glob("*.png")) if settings["png"] else []
    if pictures:
        names = ", ".join(picture.name for picture in pictures)
        screen.print(f"{pictures_place(made)}: {names}", markup=False, soft_wrap=True)


def show_play(settings: dict[str, Any]) -> None:
    """Serve the page until Ctrl-C."""
    from electrakit.share_config import check_models

    check_models(len(settings["models"]))
    from electrakit.share.play.server import play

    play(**settings)
