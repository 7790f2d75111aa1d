"""Text of many scripts, and a tokenizer of each kind that was trained on it."""

import random
from pathlib import Path

from electrakit import train_tokenizer

TEXTS = {
    "latin": "The naïve café owner doesn't play (golf), unhappily! In 1999 the Straße was not cafés.",
    "cyrillic": "Съешь ещё этих мягких французских булок, да выпей чаю. Йод и ёлка.",
    "arabic": "مرحبا بالعالم، هذا نص عربي قصير. می‌خواهم بروم",
    "devanagari": "नमस्ते दुनिया, यह हिन्दी में एक छोटा वाक्य है।",
    "thai": "สวัสดีชาวโลก นี่คือประโยคภาษาไทย",
    "chinese": "今天天气很好，我们去公园散步吧。",
    "japanese": "今日は天気がいいので、公園へ散歩に行きましょう。カタカナ",
    "emoji": "I 👩‍👩‍👧 love 😀🏳️‍🌈 it 👍🏽",
}
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "har", "jem", "kin", "lop", "mus", "nat", "per", "rov", "sul", "tam", "wix"]
KINDS = ("wordpiece", "unigram", "bpe")


def write_corpus(folder: Path, num_documents: int = 200) -> Path:
    """Documents of words and phrases of all scripts, and of made ones, shuffled."""
    chance = random.Random(1)
    words = [word for text in TEXTS.values() for word in text.split(" ")]
    words += ["".join(chance.choices(SYLLABLES, k=chance.randrange(1, 4))) for _ in range(300)]
    lines = [" ".join(chance.choices(words, k=30)) for _ in range(num_documents)] + [*TEXTS.values()]
    path = folder / "scripts.txt"
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


def train(folder: Path, kind: str, corpus: Path, **changes) -> Path:
    return train_tokenizer(
        [corpus], **{"kind": kind, "vocab_size": 740, "cased": True, "out": folder, "workers": 1, **changes}
    )
