"""Lines of text in, a pseudo-log-likelihood of each out: `electra score`, to rank what another model wrote.

The score of a line is the sum over its tokens, without [CLS] and [SEP]: of -E for Electric and of log P(original) for a discriminator, in
one pass; of log P(token | all others) for a masked LM, in a pass for each token.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import make_way, require_apart, require_free_file
from electrakit.config.outputs import ScoreConfig
from electrakit.measure.minimal_pairs import sums_over_tokens
from electrakit.measure.open import OpenNetwork, find_networks, open_network

HEADER = ("score", "tokens", "cut", "text")


@dataclass(frozen=True)
class LineScore:
    """A line of the file and its score."""

    text: str
    score: float
    num_tokens: int
    """That were scored."""
    num_cut: int
    """That the network has no room for: the score is without them."""


def score(
    model: str | os.PathLike[str],
    file: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    network: Literal["discriminator", "generator"] = "discriminator",
    overwrite: bool = False,
) -> list[LineScore]:
    """Score each line of a file; ScoreConfig explains the settings."""
    config = ScoreConfig(**locals())
    if config.out is not None:
        require_apart(config.out, [config.model, config.file], may_be_inside=False)
        require_free_file(config.out, is_scores, "scores", overwrite=config.overwrite)
    texts = read_lines(config.file)
    scored = score_texts(choose_network(config), texts)
    if config.out is not None:
        with explain_write_errors(config.out):
            place = make_way(config.out, is_scores, "scores", overwrite=config.overwrite)
            atomic_write(place, to_tsv(scored).encode("utf-8"))
    return scored


def is_scores(head: bytes) -> bool:
    return head.startswith("\t".join(HEADER).encode())


def to_tsv(scored: Sequence[LineScore]) -> str:
    """A header, and line n of the file in line n + 1. A tab in a text becomes a space."""
    rows = [(f"{one.score:.6f}", str(one.num_tokens), str(one.num_cut), one.text.replace("\t", " ")) for one in scored]
    return "".join("\t".join(row) + "\n" for row in (HEADER, *rows))


def read_lines(path: Path) -> list[str]:
    """Every line, empty ones too: line n of the scores is line n of the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read {path}: {reason}; name a text file with one sentence in each line") from None
    if not text.strip():
        raise UserError(f"{path} has no text; name a text file with one sentence in each line")
    return text.removesuffix("\n").split("\n")


def choose_network(config: ScoreConfig) -> OpenNetwork:
    """The generator if it is asked for, else the network that is kept."""
    folders = find_networks(config.model)
    if config.network == "generator":
        folders = [folder for folder in folders if folder.name == "generator"]
        if not folders:
            raise UserError(f"{config.model} has no generator beside its discriminator: leave --network out")
    network = open_network(config.model, folders[0])
    if network.head is None:
        raise UserError(f"{config.model} has no head that scores tokens, only states; name one with its head")
    return network


def score_texts(network: OpenNetwork, texts: Sequence[str]) -> list[LineScore]:
    """Each text alone. Those with the same tokens are computed once."""
    rows = [tuple(row) for row in network.encode(texts)]
    encodings = network.tokenizer.tokenizer.encode_batch(list(texts), add_special_tokens=False)
    scores = sums_over_tokens(network, rows, "lines")
    return [
        LineScore(text, one, len(row) - 2, len(encoding.ids) - (len(row) - 2))
        for text, one, row, encoding in zip(texts, scores, rows, encodings, strict=True)
    ]
