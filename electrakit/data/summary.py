"""A folder of shards in, what a person wants to see of it out: a short table and three decoded rows."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from electrakit.data.batches import Batches, read_manifest
from electrakit.data.tokenizer import load_tokenizer

MAX_SHOWN = 128  # tokens of a row


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
    if manifest["plan"]["valid"] and "valid" not in manifest["splits"]:
        console.print(f"[yellow]No document fell to validation: {manifest['plan']['valid']:.1%} of so few is none.")
    rows = Batches(shards, 1, split=split, shuffle=False, verify=False)
    vocabulary = load_tokenizer(shards / "tokenizer").vocabulary
    chosen = sorted({rows.num_rows // 4, rows.num_rows // 2, rows.num_rows * 3 // 4})
    for number in chosen:
        console.print(Padding(_decoded(rows(number)[0], vocabulary, manifest["special_ids"], number), (1, 0, 0, 2)))


def _decoded(ids: np.ndarray, vocabulary: list[str], special_ids: dict[str, int], number: int) -> Text:
    """One row as text: pieces joined to words, special tokens coloured, padding counted, the middle of a long row left out."""
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
