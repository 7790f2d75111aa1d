"""Runs the verbs of the command line and prints what they made or found: each function takes the settings of its verb.

`electra --help` imports this module: what needs torch or transformers is imported inside, or by `ek` at the first use.
"""

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import electrakit as ek
from electrakit.common.ownership import MARKER
from electrakit.common.word_marks import CONTINUES
from electrakit.common.words import DASH, format_percent, format_size
from electrakit.config.corpus import SHARDS_MANIFEST, SHARDS_TOKENIZER, DoctorConfig, PrepareConfig, TokenizerConfig
from electrakit.config.finetune import BEST, FinetuneConfig, GlueConfig, PredictConfig, SearchConfig
from electrakit.config.outputs import (
    ConvertConfig,
    ConvertDebertaConfig,
    DemoConfig,
    ExportConfig,
    MeasureConfig,
    PlayConfig,
    ReportConfig,
    ScoreConfig,
)

if TYPE_CHECKING:
    from electrakit.data.tokenizer_files import TokenizerFiles

MAX_TRIALS = 10
MAX_SHOWN = 128  # tokens of a row


class Screen(Console):
    """If the reader of a pipe has gone, that is the same error as everywhere else."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


screen = Screen(highlight=False)
"""Results go to standard output."""


def run_demo(config: DemoConfig) -> None:
    from electrakit.cli.demo import demo

    demo(config)


def run_tokenizer(config: TokenizerConfig) -> None:
    ek.train_tokenizer(**vars(config))


def run_prepare(config: PrepareConfig) -> None:
    """Make shards, and print what they hold, unless they were finished before."""
    is_finished = (config.out / SHARDS_MANIFEST).exists()
    shards = ek.prepare(**vars(config))
    if not is_finished:
        print_summary(shards, screen)


def run_doctor(config: DoctorConfig) -> int:
    """Print what the doctor found; 1 if it is serious."""
    from electrakit.doctor.findings import print_findings

    return print_findings(ek.examine(**vars(config)))


def print_summary(shards: Path, console: Console) -> None:
    """What is in the shards, and three rows as the model will see them."""
    from electrakit.data.manifest import read_manifest

    manifest = read_manifest(shards)
    table = Table("split", box=None, pad_edge=False, header_style="bold")
    for name in ("documents", "rows", "tokens", "padding", "tokens lost", "files"):
        table.add_column(name, justify="right")
    for split, entry in manifest.splits.items():
        documents, rows, tokens, lost = (
            f"{number:,}" for number in (entry.documents, entry.rows, entry.tokens, entry.tokens_lost)
        )
        padding = entry.padding / (entry.rows * manifest.length)
        table.add_row(split, documents, rows, tokens, f"{padding:.1%}", lost, str(len(entry.files)))
    console.print(table)
    split = next(iter(manifest.splits))  # train, unless the corpus is so small that it has none
    if manifest.valid_share and "valid" not in manifest.splits:
        console.print(f"[yellow]No document fell to validation: {manifest.valid_share:.1%} of so few is none.")
    batches = ek.Batches(shards, 1, split=split, shuffle=False, verify=False)
    tokenizer = ek.load_tokenizer(shards / SHARDS_TOKENIZER)
    for number in sorted({batches.num_rows * quarter // 4 for quarter in (1, 2, 3)}):
        row = _decoded(number, batches(number)[0], tokenizer)
        console.print(Padding(row, (1, 0, 0, 2)))


def _decoded(number: int, ids: Any, tokenizer: "TokenizerFiles") -> Text:
    """One row as text: tokens joined to words, special tokens coloured, padding counted, the middle of a long row left out."""
    vocabulary, special_ids = tokenizer.vocabulary, tokenizer.special_ids
    tokens = [vocabulary[token] for token in ids[ids != special_ids["pad"]]]
    num_padding, gap = len(ids) - len(tokens), f"… {len(tokens) - MAX_SHOWN} tokens …"
    if len(tokens) > MAX_SHOWN:
        tokens[MAX_SHOWN * 3 // 4 : -MAX_SHOWN // 4] = [gap]
    styles = {vocabulary[special]: "bold cyan" for special in special_ids.values()} | {gap: "dim"}
    text = Text(f"row {number:,}:", style="dim")
    for is_special, run in itertools.groupby(tokens, styles.__contains__):
        if is_special:
            for token in run:
                text.append(f" {token}", style=styles[token])
        else:
            text.append(f" {_spelled(list(run), tokenizer)}", style="not dim")
    if num_padding:
        text.append(f" + {num_padding} × [PAD]", style="cyan")
    return text


def _spelled(tokens: list[str], tokenizer: "TokenizerFiles") -> str:
    """A segment as text. With WordPiece, the rest of a word at its start shows its ##."""
    if tokenizer.kind != "wordpiece":
        return tokenizer.spelled(tokens)
    parts = [token.removeprefix(CONTINUES) if token.startswith(CONTINUES) else f" {token}" for token in tokens[1:]]
    return "".join([tokens[0], *parts])


def run_glue(config: GlueConfig) -> None:
    """Run GLUE, or fetch its data, and print the table."""
    from electrakit.finetune.table import tasks_table
    from electrakit.finetune.tasks import AVERAGED, TASKS

    results = ek.glue(**vars(config))
    if config.download is not None:
        screen.out(f"{config.download}: {len(results.downloaded)} files of GLUE are there")
        return
    found = tasks_table(results.tasks)
    columns = [place for place, column in enumerate(found.columns) if column.on_terminal]
    rows = dict(zip(results.tasks, found.rows, strict=True))
    table = Table(*(found.columns[place].title for place in columns))
    for name in dict.fromkeys((*AVERAGED, *rows)):
        cells = [rows[name].cells[place] for place in columns] if name in rows else []
        table.add_row(*(cells or [TASKS[name].title, *[DASH] * (len(columns) - 1)]))
    screen.print(table)
    for row in found.rows:
        lines = [f"  {note.plain()}" for note in row.notes or ()]
        if lines:
            screen.out("\n".join([f"{row.cells[0]}:", *lines]))
    average = results.average
    scope = "the 8 tasks" if average.is_complete else f"{len(average.tasks)} of {len(AVERAGED)} tasks"
    screen.out(f"average over {scope}: {format_percent(average.value)}")
    screen.out(results.submission)
    screen.out(f"{config.out}: results.html, results.md, results.json, scores.png, losses.png")


def run_finetune(config: FinetuneConfig) -> None:
    """Run one task and print its scores."""
    from electrakit.finetune.table import notes_of

    assert config.out is not None
    result = ek.finetune(**vars(config))
    for scores, origin in ((result.medians, f"median of {len(result.seeds)}"), (result.test or {}, "the best run")):
        for split, by_metric in scores.items():
            values = ", ".join(f"{metric} {format_percent(score)}" for metric, score in by_metric.items())
            screen.out(f"{split}: {values} ({origin})")
    for note in notes_of(result):
        screen.out(note.plain())
    screen.out(f"{config.out}: {', '.join(written_in(config.out))}")


def written_in(out: Path) -> list[str]:
    """The model, if it was kept, results and predictions; not the files of the single runs, which begin with seed_."""
    files = sorted(
        path.name for path in out.iterdir() if path.is_file() and not path.name.startswith((".", "seed_", MARKER))
    )
    return [*(["model/"] if (out / "model").is_dir() else []), *files]


def run_search(config: SearchConfig) -> None:
    """Search, and print the best trials."""
    from electrakit.finetune.search import trials_table

    found = trials_table(ek.search(**vars(config)))
    # Narrow enough for 80 columns.
    table = Table(*(column.title.replace(" ", "\n") for column in found.columns), box=SIMPLE_HEAD, pad_edge=False)
    for row in found.rows[:MAX_TRIALS]:
        table.add_row(*row.cells)
    screen.print(table)
    screen.out(f"{config.out}: {BEST} (for --preset), results.md, results.json")


def run_predict(config: PredictConfig) -> None:
    """Predict a file; to standard output if no other place is named."""
    from electrakit.finetune.predict import predict_file

    predictions = predict_file(config)
    if config.out is None:
        sys.stdout.write(predictions.text)


def run_export(config: ExportConfig) -> None:
    """Export, and print what was written and checked."""
    made = ek.export(**vars(config))
    size = format_size(sum(made.files.values()))
    screen.out(f"{made.path}: step {made.step:,}")
    table = Table("file", "size")
    for name, num_bytes in made.files.items():
        table.add_row(name, format_size(num_bytes))
    table.add_row("all", size, style="bold")
    screen.print(table)
    for network, difference in made.differences.items():
        how = f"equal within {difference:.1g}" if difference else "equal, bit for bit"
        screen.out(f"reloaded: logits of the {network} {how}")
    for note in made.notes:
        screen.out(note, style="yellow")
    if made.onnx:
        table = Table("file", "MB", "ms per row", "difference", "agreement")
        for one in made.onnx:
            place = f"torch, {one.network}" if not one.file else one.file
            place = f"{one.network}/{place}" if one.file and one.network != "discriminator" else place
            table.add_row(place, *one.cells())
        screen.print(table)
    if config.push is not None:
        what = f"would be sent to {config.push}; nothing was (--dry-run)" if made.url is None else f"are at {made.url}"
        screen.out(f"{len(made.files)} files, {size}, {what}")


def run_measure(config: MeasureConfig) -> None:
    """Measure, and print the figures."""
    from electrakit.measure.results import measures_notes, measures_table, phenomena_table

    measures = ek.measure(**vars(config))
    tables = [measures_table(measures)]
    tables += [
        phenomena_table(measures, name) for name in dict.fromkeys(name for one in measures for name in one.pairs)
    ]
    for found in tables:
        if not found.rows:
            continue
        # Narrow enough for 80 columns.
        table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column(found.header[0], no_wrap=True)
        for title in found.header[1:]:
            table.add_column(title.replace(" ", "\n"), justify="right")
        for row in found.rows:
            table.add_row(*row)
        screen.print(table)
    for note in measures_notes(measures):
        screen.out(note)


def run_score(config: ScoreConfig) -> None:
    """Score; to standard output if no other place is named: the bytes that --out would get."""
    from electrakit.measure.score import to_tsv

    scored = ek.score(**vars(config))
    if config.out is None:
        sys.stdout.buffer.write(to_tsv(scored).encode("utf-8"))
        return
    num_cut = sum(one.num_cut > 0 for one in scored)
    cut = f"; {num_cut:,} are longer than the network's rows and were cut" if num_cut else ""
    screen.out(f"{config.out}: {len(scored):,} lines{cut}")


def run_convert(config: ConvertConfig) -> None:
    """Convert, and print what was written."""
    from electrakit.tensorflow.convert import summary

    screen.out(summary(ek.convert(**vars(config))))


def run_convert_deberta(config: ConvertDebertaConfig) -> None:
    """Convert, and print what was written."""
    from electrakit.deberta.convert import summary

    screen.out(summary(ek.convert_deberta(**vars(config))))


def run_report(config: ReportConfig) -> None:
    """Make the report, again and again if asked, and print where it is."""
    from electrakit.report.report import png_folder

    made = ek.report(**vars(config))
    screen.out(f"{made} ({made.stat().st_size / 1e3:,.0f} kB): open it in a browser")
    names = sorted(path.name for path in png_folder(made).glob("*.png")) if config.png else []
    if names:
        screen.out(f"{png_folder(made)}: {', '.join(names)}")


def run_play(config: PlayConfig) -> None:
    """Serve the page until Ctrl-C."""
    ek.play(**vars(config))
