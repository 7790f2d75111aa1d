"""What `electra glue`, `electra finetune` and `electra predict` print."""

import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from electrakit.evaluate.report import DASH, notes_of, percent
from electrakit.evaluate.tasks import AVERAGED, TASKS
from electrakit.evaluate_config import BEST, FinetuneConfig


def show_glue(settings: dict[str, Any]) -> None:
    """Run the protocol, or fetch the data, and print the table."""
    from electrakit.evaluate.glue import glue

    screen = Console(highlight=False)
    figures = glue(**settings)
    if "downloaded" in figures:
        screen.print(f"{settings['download']}: {len(figures['downloaded'])} files of GLUE are there", markup=False)
        return
    table = Table("task", "metric", "median", "mean", "sd", "min", "max", "begins with")
    for name in (*AVERAGED, *(name for name in figures["tasks"] if name not in AVERAGED)):
        if name not in figures["tasks"]:
            table.add_row(TASKS[name].title, *[DASH] * 7)
            continue
        task = figures["tasks"][name]
        scores = [percent(task[figure]) for figure in ("median", "mean", "sd", "min", "max")]
        table.add_row(task["title"], task["metric"], *scores, task["start_from"] or "the model")
    screen.print(table)
    for task in figures["tasks"].values():
        for note in notes_of(task):
            screen.print(
                f"{task['title']}: {note.removeprefix(task['title']).strip().replace('**', '')}",
                markup=False,
                soft_wrap=True,
            )
    average = figures["average"]
    scope = "the 8 tasks" if average["is_complete"] else f"{len(average['tasks'])} of {len(AVERAGED)} tasks"
    screen.print(f"average over {scope}: {percent(average['value'])}", markup=False)
    screen.print(figures["submission"], markup=False, soft_wrap=True)
    written = "results.html, results.md, results.json, scores.png, losses.png"
    screen.print(f"{settings['out']}: {written}", markup=False, soft_wrap=True)


def show_finetune(settings: dict[str, Any]) -> None:
    """Run one task and print its scores."""
    from electrakit.evaluate.tune import finetune

    screen = Console(highlight=False)
    settings["out"] = FinetuneConfig.of(**settings).out
    figures = finetune(**settings)
    for split, scores in figures["medians"].items():
        said = ", ".join(f"{metric} {percent(score)}" for metric, score in scores.items())
        screen.print(f"{split}: {said} (median of {len(figures['seeds'])})", markup=False)
    for split, scores in figures.get("test", {}).items():
        said = ", ".join(f"{metric} {percent(score)}" for metric, score in scores.items())
        screen.print(f"{split}: {said} (the best run)", markup=False)
    for note in notes_of(figures):
        screen.print(note.replace("**", ""), markup=False, soft_wrap=True)
    screen.print(f"{settings['out']}: {', '.join(written_in(settings['out']))}", markup=False, soft_wrap=True)


def written_in(out: Path) -> list[str]:
    """The model, if it was kept, results and predictions; not the files of the single runs, which begin with seed_."""
    files = sorted(path.name for path in out.iterdir() if path.is_file() and not path.name.startswith((".", "seed_")))
    return [*(["model/"] if (out / "model").is_dir() else []), *files]


def show_search(settings: dict[str, Any]) -> None:
    """Search, and print the best trials."""
    from electrakit.evaluate.search import search, table_of
    from electrakit.search_config import SearchConfig

    screen = Console(highlight=False)
    settings["out"] = SearchConfig.of(**settings).out
    figures = search(**settings)
    header, rows = table_of(figures, num_rows=10)
    names = (name.replace(" ", "\n") for name in header)
    table = Table(*names, box=SIMPLE_HEAD, pad_edge=False)  # nothing is cut at 80 columns
    for row in rows:
        table.add_row(*row)
    screen.print(table)
    screen.print(f"{settings['out']}: {BEST} (for --preset), results.md, results.json", markup=False, soft_wrap=True)


def show_predict(settings: dict[str, Any]) -> None:
    """Predict a file; to standard output if no other place is named."""
    from electrakit.evaluate.predict import predicted, write

    out: Path | None = settings["out"]
    found = predicted(settings["model"], settings["file"], settings["text"], settings["device"])
    if out is None:
        sys.stdout.write(found.text)
    else:
        write(found, out)
