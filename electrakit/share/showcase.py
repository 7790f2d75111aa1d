"""A checkpoint in, sentences out: what the generator puts in place of a masked word, and which words the discriminator doubts."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from electrakit.share.open_pair import open_pair

GUESSES = 4


@dataclass(frozen=True)
class Scored:
    """A token and what a network thinks of it, from 0 to 1."""

    token: str
    score: float


@dataclass(frozen=True)
class Swap:
    """A sentence with a gap, {} between spaces, the word that belongs there, and one that is out of place."""

    sentence: str
    right: str
    odd: str


@dataclass(frozen=True)
class Verdict:
    """What the discriminator says about a sentence, and where in it the word in question is."""

    tokens: list[Scored]
    place: slice

    @property
    def score(self) -> float:
        """How likely the word was replaced: the mean over its pieces, so that long words have no advantage."""
        scores = [token.score for token in self.tokens[self.place]]
        return sum(scores) / len(scores)


class Showcase:
    """Both networks of a checkpoint, ready to be asked about sentences."""

    def __init__(self, checkpoint: Path) -> None:
        self.pair = open_pair(checkpoint)

    def encode(self, text: str) -> list[int]:
        """`[MASK]` in the text is the mask."""
        return self.pair.encode(text).ids

    def guesses(self, text: str) -> list[Scored]:
        """The most likely words for the first [MASK]."""
        encoded = self.pair.encode(text)
        place = encoded.ids.index(self.pair.special.mask) - 1
        return [Scored(guess.piece, guess.probability) for guess in self.pair.guesses(encoded, place, GUESSES).best]

    def oddness(self, text: str) -> list[Scored]:
        """How likely each token was replaced."""
        encoded = self.pair.encode(text)
        scores = self.pair.replaced(encoded.ids)[1:-1]
        return [Scored(token.piece, score) for token, score in zip(encoded.tokens, scores, strict=True)]

    def verdict(self, sentence: str, word: str) -> Verdict:
        """What the discriminator says with this word in the gap."""
        before, _ = sentence.split("{}")
        start, length = (len(self.encode(text)) - 2 for text in (before, word))  # without [CLS] and [SEP]
        return Verdict(self.oddness(sentence.replace("{}", word)), slice(start, start + length))


def print_guesses(showcase: Showcase, texts: list[str], console: Console) -> None:
    for text in texts:
        line = Text("  " + text.replace("[MASK]", "____"))
        line.highlight_words(["____"], "bold magenta")
        line.append("   ")
        for guess in showcase.guesses(text):
            line.append(f" {guess.token}", style="bold green")
            line.append(f" {guess.score:.0%}", style="dim")
        console.print(line, soft_wrap=True)


def print_swaps(showcase: Showcase, swaps: list[Swap], console: Console) -> None:
    """Each sentence with the odd word and with the right one, and how often the odd word was doubted more."""
    num_found = 0
    for swap in swaps:
        odd, right = (showcase.verdict(swap.sentence, word) for word in (swap.odd, swap.right))
        is_found = odd.score > right.score
        num_found += is_found
        sentences = [in_colour(odd, "bold magenta"), in_colour(right, "bold cyan")]
        width = max(len(sentence) for sentence in sentences)
        for sentence, verdict in zip(sentences, (odd, right), strict=True):
            sentence.pad_right(width - len(sentence) + 1)
            sentence.append(f"{verdict.score:6.1%}", style="bold")
        sentences[0].append("  higher" if is_found else "  not higher", style="green" if is_found else "red")
        for sentence in sentences:
            console.print(sentence, soft_wrap=True)
    console.print(
        f"  {num_found} of {len(swaps)} odd words got a higher probability than the right word there.",
        style="bold",
    )


def in_colour(verdict: Verdict, style: str) -> Text:
    """The sentence, its pieces joined to words, with the word in question in a style."""
    line = Text("  ")
    for number, token in enumerate(verdict.tokens):
        is_in_question = number in range(len(verdict.tokens))[verdict.place]
        joined = token.token.startswith("##")
        line.append("" if joined else " ").append(token.token.removeprefix("##"), style if is_in_question else "")
    return line
