"""Characters of a text and its size in, the kind and size of tokenizer that suit it out, in one line."""

import re
import unicodedata
from collections import Counter

from electrakit.common.word_marks import JOINERS, UNSPACED
from electrakit.common.words import format_share
from electrakit.config.corpus import DEFAULT_ALPHABET

MUCH_UNSPACED = 0.1  # of the characters: WordPiece finds words by spaces and punctuation
MANY_RARE = 0.001  # of the characters: each of them makes its whole word an [UNK]
MANY_MARKS = 0.005  # of the characters: an accent or a vowel sign that is stripped makes another word
MUCH_CODE = 0.05  # as the check of code punctuation
COVERED = 0.9995  # of the characters, as in SentencePiece
TOKENS_PER_ENTRY = 500  # the doctor warns at 200
SIZES = {"wordpiece": (2_000, 4_000, 8_000, 16_000, 30_522), "bpe": (2_000, 4_000, 8_000, 16_000, 32_000, 50_000)}
SIZES["unigram"] = (*SIZES["bpe"], 128_000)


# Marks that are accents: of Latin, Greek and Cyrillic letters. Unigram and BPE strip no others.
ACCENTS = re.compile("[\u0300-\u036f]")


def tokenizer_advice(characters: Counter[str], code_share: float, num_tokens: float) -> str:
    """`characters` are those of a sample; `num_tokens` is about how many the whole text has."""
    total = max(1, characters.total())
    counts = sorted(characters.values(), reverse=True)
    unspaced = sum(count for character, count in characters.items() if UNSPACED.match(character)) / total
    accents = sum(count for character, count in characters.items() if ACCENTS.search(_stripped(character))) / total
    marks = sum(count for character, count in characters.items() if _stripped(character)) / total - accents
    rare = sum(counts[DEFAULT_ALPHABET:]) / total
    alphabet = _num_covering(counts, COVERED * total)
    kind, why = "wordpiece", "words stand between spaces, and their characters are few"
    if unspaced > MUCH_UNSPACED:
        kind, why = "unigram", f"{format_share(unspaced)} of its characters are of scripts without spaces between words"
    elif rare > MANY_RARE:
        kind, why = "unigram", f"{format_share(rare)} of its characters would make their words [UNK]: it has very many"
    elif marks > MANY_MARKS:
        kind, why = "unigram", f"{format_share(marks)} of its characters have marks or joiners, which WordPiece strips"
    elif code_share > MUCH_CODE:
        kind, why = "bpe", f"{format_share(code_share)} of it is code punctuation, of which bytes lose nothing"
    if kind == "wordpiece":  # it keeps this many, rare or not
        alphabet = min(len(counts), DEFAULT_ALPHABET)
    smallest = 2 * alphabet + (400 if kind == "unigram" else 300)
    fitting = [size for size in SIZES[kind] if size >= smallest] or [SIZES[kind][-1]]
    size = max([fitting[0], *(size for size in fitting if size * TOKENS_PER_ENTRY <= num_tokens)])
    options = f"--kind {kind} --vocab-size {size}"
    if kind == "unigram" and alphabet > DEFAULT_ALPHABET:
        options += f" --max-alphabet {-(-alphabet // 100) * 100}"
    if accents > MANY_MARKS:
        options += " --keep-accents"
    return f"A tokenizer that suits this text: electra tokenizer {options} ({why})"


def _stripped(character: str) -> str:
    """What BERT's rules take away from a character: its marks, and joiners."""
    parts = unicodedata.normalize("NFD", character)
    return "".join(part for part in parts if part in JOINERS or unicodedata.category(part) == "Mn")


def _num_covering(counts: list[int], wanted: float) -> int:
    """How many of the most frequent characters make up so much of the text."""
    covered = 0
    for number, count in enumerate(counts, 1):
        covered += count
        if covered >= wanted:
            return number
    return len(counts)
