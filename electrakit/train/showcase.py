"""A checkpoint in, sentences out: what the generator puts in place of a masked word, and what the discriminator finds odd."""

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from electrakit.data.tokenizer import load_tokenizer
from electrakit.model.counts import Head
from electrakit.train.start import load_network

GUESSES = 4


@dataclass(frozen=True)
class Scored:
    """A token and what a network thinks of it, from 0 to 1."""

    token: str
    score: float


class Showcase:
    """Both networks of a checkpoint, ready to be asked."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = load_tokenizer(checkpoint / "discriminator")
        self.special = self.tokenizer.special_ids
        places: dict[Head, Path] = {"words": checkpoint / "generator", "replaced": checkpoint / "discriminator"}
        self.networks = {
            head: load_network(str(place), head, self.special["sep"])[1].eval() for head, place in places.items()
        }

    def encode(self, text: str) -> list[int]:
        """`[MASK]` in the text is the mask."""
        parts = [self.tokenizer.tokenizer.encode(part, add_special_tokens=False).ids for part in text.split("[MASK]")]
        ids = [self.special["cls"], *parts[0]]
        for part in parts[1:]:
            ids += [self.special["mask"], *part]
        return [*ids, self.special["sep"]]

    @torch.no_grad()
    def guesses(self, text: str) -> list[Scored]:
        """The most likely words for the first [MASK]."""
        ids = torch.tensor([self.encode(text)])
        place = (ids == self.special["mask"]).nonzero()[:1, 1:]  # (1, 1)
        scores = self.networks["words"](ids, place)[0, 0].softmax(-1)
        best = scores.topk(GUESSES)
        return [
            Scored(self.tokenizer.vocabulary[token], score)
            for score, token in zip(*(each.tolist() for each in best), strict=True)
        ]

    @torch.no_grad()
    def oddness(self, text: str) -> list[Scored]:
        """How likely each token was replaced."""
        ids = self.encode(text)
        scores = self.networks["replaced"](torch.tensor([ids]))[0].sigmoid().tolist()
        return [
            Scored(self.tokenizer.vocabulary[token], score)
            for token, score in zip(ids[1:-1], scores[1:-1], strict=True)
        ]


def print_guesses(showcase: Showcase, texts: list[str], console: Console) -> None:
    for text in texts:
        line = Text("  " + text.replace("[MASK]", "____"))
        line.highlight_words(["____"], "bold magenta")
        line.append("   ")
        for guess in showcase.guesses(text):
            line.append(f" {guess.token}", style="bold green")
            line.append(f" {guess.score:.0%}", style="dim")
        console.print(line, soft_wrap=True)


def print_oddness(showcase: Showcase, texts: list[str], console: Console) -> None:
    """The oddest token on red, the others the redder the odder."""
    for text in texts:
        tokens = showcase.oddness(text)
        most = max(token.score for token in tokens)
        line = Text("  ")
        for token in tokens:
            style = "bold white on red" if token.score == most else "yellow" if token.score > most / 2 else ""
            joined = token.token.startswith("##")
            line.append("" if joined else " ").append(token.token.removeprefix("##"), style=style)
        oddest = next(token for token in tokens if token.score == most)
        console.print(line.append(f"   {oddest.token} {most:.0%}", style="dim"), soft_wrap=True)
