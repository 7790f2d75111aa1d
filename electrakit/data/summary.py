"""A folder of shards in, what a person wants to see of it out: a short table and three decoded rows."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from electrakit.data.batches import Batches, read_manifest
from electrakit.data.tokenizer import load_tokenizer


def print_summary(shards: Path, console: Console) -> None:
    """What is in the shards, and three rows as the model will see them."""
    manifest = read_manifest(shards)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("split", "documents", "rows", "tokens", "padding", "tokens lost", "files"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split, entry in manifest["splits"].items():
        num_places = entry["rows"] * manifest["length"]
        table.add_row(
            split,
            f"{entry['documents']:,}",
            f"{entry['rows']:,}",
            f"{entry['tokens']:,}",
            f"{entry['padding'] / num_places:.1%}",
            f"{entry['tokens_lost']:,}",
            f"{len(entry['files'])}",
        )
    console.print(table)
    split = next(iter(manifest["splits"]))  # train, unless the corpus is so small that it has none
    rows = Batches(shards, 1, split=split, shuffle=False, verify=False)
    vocabulary = load_tokenizer(shards / "tokenizer").vocabulary
    chosen = sorted({rows.num_rows // 4, rows.num_rows // 2, rows.num_rows * 3 // 4})
    for number in chosen:
        console.print(Padding(_decoded(rows(number)[0], vocabulary, manifest["special_ids"], number), (1, 0, 0, 2)))


def _decoded(ids: np.ndarray, vocabulary: list[str], special_ids: dict[str, int], number: int) -> Text:
    """One row as text: pieces joined to words, special tokens coloured, padding counted."""
    text = Text(f"row {number:,}: ", style="dim")
    num_padding = int((ids == special_ids["pad"]).sum())
    for position, token in enumerate(ids[: len(ids) - num_padding].tolist()):
        word = vocabulary[token]
        space = "" if position == 0 or word.startswith("##") else " "
        style = "bold cyan" if token in special_ids.values() else "default"
        text.append(space + word.removeprefix("##"), style=style if style != "default" else "not dim")
    if num_padding:
        text.append(f" + {num_padding} × [PAD]", style="cyan")
    return text
