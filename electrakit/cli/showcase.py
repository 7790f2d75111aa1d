"""Shows what a trained pair has learned: the generator's predictions for masked words, and which words the discriminator doubts."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from electrakit.playground.open import open_pair

NUM_PREDICTIONS = 4


@dataclass(frozen=True)
class TokenProbability:
    """A token, and how likely it is (generator) or how likely it was replaced (discriminator)."""

    token: str
    probability: float


@dataclass(frozen=True)
class Swap:
    """A sentence with a gap, {} between spaces, the word that belongs there, and one that is out of place."""

    sentence: str
    right: str
    odd: str


@dataclass(frozen=True)
class GapScore:
    """The discriminator's probabilities for a sentence, and which of its tokens are the word in the gap."""

    tokens: list[TokenProbability]
    gap: slice

    @property
    def probability(self) -> float:
        """How likely the word was replaced: the mean over its tokens, so that long words have no advantage."""
        probabilities = [token.probability for token in self.tokens[self.gap]]
        return sum(probabilities) / len(probabilities)


class Showcase:
    """Both networks of a checkpoint, and what they predict for sentences."""

    def __init__(self, checkpoint: Path) -> None:
        self.pair = open_pair(checkpoint)

    def encode(self, text: str) -> list[int]:
        """`[MASK]` in the text is the mask."""
        return self.pair.encode(text).ids

    def predictions(self, text: str) -> list[TokenProbability]:
        """The most likely words for the first [MASK]."""
        encoded = self.pair.encode(text)
        place = encoded.ids.index(self.pair.special.mask) - 1
        found = self.pair.predictions(encoded, place, NUM_PREDICTIONS)
        return [TokenProbability(one.piece, one.probability) for one in found.best]

    def replaced(self, text: str) -> list[TokenProbability]:
        """How likely each token was replaced."""
        encoded = self.pair.encode(text)
        scores = self.pair.replaced(encoded.ids)[1:-1]
        return [TokenProbability(token.piece, score) for token, score in zip(encoded.tokens, scores, strict=True)]

    def score_gap(self, sentence: str, word: str) -> GapScore:
        """The discriminator's probabilities with this word in the gap."""
        before, _ = sentence.split("{}")
        start, length = (len(self.encode(text)) - 2 for text in (before, word))  # without [CLS] and [SEP]
        return GapScore(self.replaced(sentence.replace("{}", word)), slice(start, start + length))


def print_predictions(showcase: Showcase, texts: list[str], console: Console) -> None:
    for text in texts:
        line = Text("  " + text.replace("[MASK]", "____"))
        line.highlight_words(["____"], "bold magenta")
        line.append("   ")
        for prediction in showcase.predictions(text):
            line.append(f" {prediction.token}", style="bold green")
            line.append(f" {prediction.probability:.0%}", style="dim")
        console.print(line, soft_wrap=True)


def print_swaps(showcase: Showcase, swaps: list[Swap], console: Console) -> None:
    """Each sentence with the odd word and with the right one, and how often the odd word was doubted more."""
    num_found = 0
    for swap in swaps:
        odd, right = (showcase.score_gap(swap.sentence, word) for word in (swap.odd, swap.right))
        is_found = odd.probability > right.probability
        num_found += is_found
        sentences = [in_color(odd, "bold magenta"), in_color(right, "bold cyan")]
        width = max(len(sentence) for sentence in sentences)
        for sentence, score in zip(sentences, (odd, right), strict=True):
            sentence.pad_right(width - len(sentence) + 1)
            sentence.append(f"{score.probability:6.1%}", style="bold")
        sentences[0].append("  higher" if is_found else "  not higher", style="green" if is_found else "red")
        for sentence in sentences:
            console.print(sentence, soft_wrap=True)
    console.print(
        f"  {num_found} of {len(swaps)} odd words got a higher probability than the right word there.",
        style="bold",
    )


def in_color(score: GapScore, style: str) -> Text:
    """The sentence, its tokens joined to words, with the word in the gap in a style."""
    line = Text("  ")
    for number, token in enumerate(score.tokens):
        is_gap = number in range(len(score.tokens))[score.gap]
        joined = token.token.startswith("##")
        line.append("" if joined else " ").append(token.token.removeprefix("##"), style if is_gap else "")
    return line
