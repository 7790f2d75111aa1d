"""Questions, tags and the playground with unigram and byte-level BPE, in which the space belongs to the word after it."""

import re

import numpy as np
import pytest
from transformers import AutoTokenizer

from electrakit import load_tokenizer
from electrakit.finetune.tokens.spans import answers_of
from electrakit.finetune.tokens.squad import SquadExamples, SquadQuestion
from electrakit.finetune.tokens.tags import TagExamples, encode_tags
from electrakit.finetune.tokens.windows import encode_squad
from electrakit.playground.pair import Pair
from tests.helpers.scripts import KINDS, TEXTS, train, write_corpus


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("kinds")
    return train(home / "tokenizer", request.param, write_corpus(home))


def test_answers_in_every_script_are_found_again_without_the_space_before_them(folder):
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    texts = [*TEXTS.values()]
    asked = [
        SquadQuestion(f"{number}-{found.start()}", "what?", number, (found[0],), found.start())
        for number, text in enumerate(texts)
        for found in re.finditer("[^ ]+", text)
    ]
    rows = encode_squad(SquadExamples(asked, texts), tokenizer, 128, False)
    assert len(rows) == len(asked)
    logits = np.zeros((len(rows.ids), 2))
    for number, (start, end, *_) in enumerate(rows.labels):
        logits[rows.starts[number] + start, 0] = logits[rows.starts[number] + end, 1] = 1
    found = answers_of(rows, logits)[0]
    assert {question.id: found[question.id][0].text for question in asked} == {
        question.id: question.answers[0] for question in asked
    }
    for context, offsets in zip(texts, rows.offsets, strict=True):
        assert not any(context[start:end][:1].isspace() for start, end in offsets)


def test_each_word_of_every_script_gets_one_tag(folder):
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    sentences = [text.split(" ") for text in TEXTS.values()]
    tags = [["B-X" if number % 2 else "O" for number in range(len(words))] for words in sentences]
    rows = encode_tags(TagExamples(sentences, tags, ("O", "B-X")), tokenizer, 128, False)
    for number, words in enumerate(sentences):
        part = slice(rows.starts[number], rows.starts[number + 1])
        owners = rows.word_of[part]
        assert owners[owners >= 0].tolist() == [*range(len(words))]
        assert rows.labels[part][owners >= 0].tolist() == [place % 2 for place in range(len(words))]
        assert rows.ids[part].tolist() == tokenizer(" ".join(words))["input_ids"]


def test_the_playground_shows_every_script_as_typed(folder):
    pair = Pair("tokenizer", load_tokenizer(folder), 64)
    for text in (*TEXTS.values(), " two  spaces ", "[MASK] at the start and [MASK]."):
        encoded = pair.encode(text)
        assert "".join(token.before + token.text for token in encoded.tokens) + encoded.tail == text
        assert not any(token.text[:1].isspace() for token in encoded.tokens)
        assert sum(token.is_special for token in encoded.tokens) == text.count("[MASK]")
    spelled = "".join(pair.spell(pair.encode("The café owner, unhappily").ids))
    assert spelled.replace(" ,", ",") == "The café owner, unhappily"
    mark = {"wordpiece": "", "unigram": "▁", "bpe": "Ġ"}[pair.tokenizer.kind]
    assert pair.text_with(pair.encode("The naïve café"), 1, f"{mark}owner") == "The owner café"
