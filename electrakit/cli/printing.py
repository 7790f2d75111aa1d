"""Runs the verbs of the command line and prints what they made or found.

Each function takes the settings of its verb. Heavy modules are imported inside: `electra --help` imports this one.
"""

import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from electrakit.common.words import format_percent, format_size
from electrakit.config.corpus import SHARDS_MANIFEST, DoctorConfig, PrepareConfig, TokenizerConfig
from electrakit.config.finetune import BEST, FinetuneConfig, GlueConfig, PredictConfig, SearchConfig
from electrakit.config.outputs import ConvertConfig, DemoConfig, ExportConfig, PlayConfig, ReportConfig

MAX_TRIALS = 10
MAX_SHOWN = 128  # tokens of a row


def run_demo(config: DemoConfig) -> None:
    from electrakit.cli.demo import demo

    demo(config)


def run_tokenizer(config: TokenizerConfig) -> None:
    from electrakit.data.tokenizer import train_tokenizer

    train_tokenizer(**vars(config))


def run_prepare(config: PrepareConfig) -> None:
    """Make shards, and print what they hold, unless they were finished before."""
    from electrakit.data.prepare import prepare

    is_finished = (config.out / SHARDS_MANIFEST).exists()
    shards = prepare(**vars(config))
    if not is_finished:
        print_summary(shards, Console(highlight=False))


def run_doctor(config: DoctorConfig) -> int:
    """Print what the doctor found; 1 if it is serious."""
    from electrakit.doctor.examine import examine
    from electrakit.doctor.findings import print_findings

    return print_findings(examine(**vars(config)))


def print_summary(shards: Path, console: Console) -> None:
    """What is in the shards, and three rows as the model will see them."""
    from electrakit.data.batches import Batches
    from electrakit.data.manifest import read_manifest
    from electrakit.data.tokenizer_files import load_tokenizer

    manifest = read_manifest(shards)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("split", "documents", "rows", "tokens", "padding", "tokens lost", "files"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split, entry in manifest.splits.items():
        num_positions = entry.rows * manifest.length
        table.add_row(
            split,
            f"{entry.documents:,}",
            f"{entry.rows:,}",
            f"{entry.tokens:,}",
            f"{entry.padding / num_positions:.1%}",
            f"{entry.tokens_lost:,}",
            f"{len(entry.files)}",
        )
    console.print(table)
    split = next(iter(manifest.splits))  # train, unless the corpus is so small that it has none
    if manifest.plan["valid"] and "valid" not in manifest.splits:
        console.print(f"[yellow]No document fell to validation: {manifest.plan['valid']:.1%} of so few is none.")
    rows = Batches(shards, 1, split=split, shuffle=False, verify=False)
    vocabulary = load_tokenizer(shards / "tokenizer").vocabulary
    chosen = sorted({rows.num_rows // 4, rows.num_rows // 2, rows.num_rows * 3 // 4})
    for number in chosen:
        console.print(Padding(_decoded(rows(number)[0], vocabulary, manifest.special_ids, number), (1, 0, 0, 2)))


def _decoded(ids: Any, vocabulary: list[str], special_ids: dict[str, int], number: int) -> Text:
    """One row as text: tokens joined to words, special tokens coloured, padding counted, the middle of a long row left out."""
    text = Text(f"row {number:,}:", style="dim")
    tokens = ids[ids != special_ids["pad"]].tolist()
    after_special = True
    for position, token in enumerate(tokens):
        is_special = token in special_ids.values()
        if len(tokens) > MAX_SHOWN and MAX_SHOWN * 3 // 4 <= position < len(tokens) - MAX_SHOWN // 4:
            if position == MAX_SHOWN * 3 // 4:
                text.append(f" … {len(tokens) - MAX_SHOWN} tokens …", style="dim")
            after_special = True
            continue
        word = vocabulary[token]
        # At the start of a segment the rest of a word shows its ##.
        joined = word.startswith("##") and not after_special
        text.append(word.removeprefix("##") if joined else f" {word}", style="bold cyan" if is_special else "not dim")
        after_special = is_special
    if len(tokens) < len(ids):
        text.append(f" + {len(ids) - len(tokens)} × [PAD]", style="cyan")
    return text


def run_glue(config: GlueConfig) -> None:
    """Run GLUE, or fetch its data, and print the table."""
    from electrakit.finetune.glue import glue
    from electrakit.finetune.table import DASH, tasks_table
    from electrakit.finetune.tasks import AVERAGED, TASKS

    screen = Console(highlight=False)
    results = glue(**vars(config))
    if config.download is not None:
        screen.print(f"{config.download}: {len(results.downloaded)} files of GLUE are there", markup=False)
        return
    found = tasks_table(results.tasks)
    # A terminal has no room for all.
    columns = [place for place, name in enumerate(found.header) if name not in ("best seed", "notes")]
    rows = dict(zip(results.tasks, found.rows, strict=True))
    table = Table(*(found.header[place] for place in columns))
    for name in dict.fromkeys((*AVERAGED, *rows)):
        cells = [rows[name].cells[place] for place in columns] if name in rows else []
        table.add_row(*(cells or [TASKS[name].title, *[DASH] * (len(columns) - 1)]))
    screen.print(table)
    for row in found.rows:
        lines = [f"  {note.plain()}" for note in row.notes or ()]
        if lines:
            screen.print("\n".join([f"{row.cells[0]}:", *lines]), markup=False, soft_wrap=True)
    average = results.average
    scope = "the 8 tasks" if average.is_complete else f"{len(average.tasks)} of {len(AVERAGED)} tasks"
    screen.print(f"average over {scope}: {format_percent(average.value)}", markup=False)
    screen.print(results.submission, markup=False, soft_wrap=True)
    written = "results.html, results.md, results.json, scores.png, losses.png"
    screen.print(f"{config.out}: {written}", markup=False, soft_wrap=True)


def run_finetune(config: FinetuneConfig) -> None:
    """Run one task and print its scores."""
    from electrakit.finetune.finetune import finetune
    from electrakit.finetune.table import notes_of

    assert config.out is not None
    screen = Console(highlight=False)
    result = finetune(**vars(config))
    for scores, origin in ((result.medians, f"median of {len(result.seeds)}"), (result.test or {}, "the best run")):
        for split, by_metric in scores.items():
            values = ", ".join(f"{metric} {format_percent(score)}" for metric, score in by_metric.items())
            screen.print(f"{split}: {values} ({origin})", markup=False)
    for note in notes_of(result):
        screen.print(note.plain(), markup=False, soft_wrap=True)
    screen.print(f"{config.out}: {', '.join(written_in(config.out))}", markup=False, soft_wrap=True)


def written_in(out: Path) -> list[str]:
    """The model, if it was kept, results and predictions; not the files of the single runs, which begin with seed_."""
    files = sorted(path.name for path in out.iterdir() if path.is_file() and not path.name.startswith((".", "seed_")))
    return [*(["model/"] if (out / "model").is_dir() else []), *files]


def run_search(config: SearchConfig) -> None:
    """Search, and print the best trials."""
    from electrakit.finetune.search import search, trials_table

    screen = Console(highlight=False)
    found = trials_table(search(**vars(config)))
    # Narrow enough for 80 columns.
    table = Table(*(name.replace(" ", "\n") for name in found.header), box=SIMPLE_HEAD, pad_edge=False)
    for row in found.rows[:MAX_TRIALS]:
        table.add_row(*row.cells)
    screen.print(table)
    screen.print(f"{config.out}: {BEST} (for --preset), results.md, results.json", markup=False, soft_wrap=True)


def run_predict(config: PredictConfig) -> None:
    """Predict a file; to standard output if no other place is named."""
    from electrakit.finetune.predict import predict_file

    predictions = predict_file(config.model, config.file, config.text, config.device)
    if config.out is None:
        sys.stdout.write(predictions.text)
    else:
        predictions.write(config.out)


def run_export(config: ExportConfig) -> None:
    """Export, and print what was written and checked."""
    from electrakit.export.export import export

    made = export(**vars(config))
    screen = Console(highlight=False)
    screen.print(f"{made.path}: step {made.step:,}", markup=False, soft_wrap=True)
    table = Table("file", "size")
    for name, num_bytes in made.files.items():
        table.add_row(name, format_size(num_bytes))
    table.add_row("all", format_size(sum(made.files.values())), style="bold")
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
            table.add_row(place, *one.cells())
        screen.print(table)
    if config.push is not None:
        what = f"would be sent to {config.push}; nothing was (--dry-run)" if made.url is None else f"are at {made.url}"
        screen.print(
            f"{len(made.files)} files, {format_size(sum(made.files.values()))}, {what}", markup=False, soft_wrap=True
        )


def run_convert(config: ConvertConfig) -> None:
    """Convert, and print what was written."""
    from electrakit.tensorflow.convert import convert, summary

    Console(highlight=False).print(summary(convert(**vars(config))), markup=False, soft_wrap=True)


def run_report(config: ReportConfig) -> None:
    """Make the report, again and again if asked, and print where it is."""
    from electrakit.report.report import png_folder, report

    made = report(**vars(config))
    screen = Console(highlight=False)
    screen.print(f"{made} ({made.stat().st_size / 1e3:,.0f} kB): open it in a browser", markup=False, soft_wrap=True)
    names = sorted(path.name for path in png_folder(made).glob("*.png")) if config.png else []
    if names:
        screen.print(f"{png_folder(made)}: {', '.join(names)}", markup=False, soft_wrap=True)


def run_play(config: PlayConfig) -> None:
    """Serve the page until Ctrl-C."""
    from electrakit.playground.server import play

    play(**vars(config))
