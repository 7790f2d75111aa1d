"""Characters of a text and its size in, the kind and size of tokenizer that suit it out, in one line."""

from collections import Counter

from electrakit.common.word_marks import UNSPACED
from electrakit.common.words import format_share
from electrakit.config.corpus import DEFAULT_ALPHABET

MUCH_UNSPACED = 0.1  # of the characters: WordPiece finds words by spaces and punctuation
MANY_RARE = 0.001  # of the characters: each of them makes its whole word an [UNK]
MUCH_CODE = 0.05  # as the check of code punctuation
COVERED = 0.9995  # of the characters, as in SentencePiece
TOKENS_PER_ENTRY = 500  # the doctor warns at 200
SIZES = {"wordpiece": (2_000, 4_000, 8_000, 16_000, 30_522), "bpe": (2_000, 4_000, 8_000, 16_000, 32_000, 50_000)}
SIZES["unigram"] = (*SIZES["bpe"], 128_000)


def tokenizer_advice(characters: Counter[str], code_share: float, num_tokens: float) -> str:
    """`characters` are those of a sample; `num_tokens` is about how many the whole text has."""
    total = max(1, characters.total())
    counts = sorted(characters.values(), reverse=True)
    unspaced = sum(count for character, count in characters.items() if UNSPACED.match(character)) / total
    rare = sum(counts[DEFAULT_ALPHABET:]) / total
    alphabet = _num_covering(counts, COVERED * total)
    kind, why = "wordpiece", "words stand between spaces, and their characters are few"
    if unspaced > MUCH_UNSPACED:
        kind, why = "unigram", f"{format_share(unspaced)} of its characters are of scripts without spaces between words"
    elif rare > MANY_RARE:
        kind, why = "unigram", f"{format_share(rare)} of its characters would make their words [UNK]: it has very many"
    elif code_share > MUCH_CODE:
        kind, why = "bpe", f"{format_share(code_share)} of it is code punctuation, of which bytes lose nothing"
    smallest = 2 * min(alphabet, len(counts)) + (400 if kind == "unigram" else 300)
    fitting = [size for size in SIZES[kind] if size >= smallest] or [SIZES[kind][-1]]
    size = max([fitting[0], *(size for size in fitting if size * TOKENS_PER_ENTRY <= num_tokens)])
    options = f"--kind {kind} --vocab-size {size}"
    if kind == "unigram" and alphabet > DEFAULT_ALPHABET:
        options += f" --max-alphabet {-(-alphabet // 100) * 100}"
    return f"A tokenizer that suits this text: electra tokenizer {options} ({why})"


def _num_covering(counts: list[int], wanted: float) -> int:
    """How many of the most frequent characters make up so much of the text."""
    covered = 0
    for number, count in enumerate(counts, 1):
        covered += count
        if covered >= wanted:
            return number
    return len(counts)
