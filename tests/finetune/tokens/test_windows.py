"""Texts as windows of tokens."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from electrakit.common.errors import UserError
from electrakit.finetune.tasks import TOKEN_TASKS
from electrakit.finetune.tokens.read_questions import read_questions
from electrakit.finetune.tokens.spans import answers_of
from electrakit.finetune.tokens.squad import SquadExamples, SquadQuestion
from electrakit.finetune.tokens.tags import TagExamples, encode_tags
from electrakit.finetune.tokens.windows import encode_squad, most_context, span_of, windows_of
from tests.helpers.tiny_glue import WORDS, write_tokenizer
from tests.helpers.tiny_tokens import write_squad


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(write_tokenizer(tmp_path_factory.mktemp("windows")))


def questions(folder, **settings) -> SquadExamples:
    task = TOKEN_TASKS["squad2" if settings.get("is_second") else "squad"]
    return read_questions(str(write_squad(folder, **settings)), task, task.split("train"))


@pytest.mark.parametrize(
    ("num_tokens", "room"), [(0, 20), (5, 20), (20, 20), (21, 20), (700, 400), (900, 129), (50, 3)]
)
def test_windows_cover_a_text_and_overlap(num_tokens, room):
    windows = windows_of(num_tokens, room)
    assert windows[0][0] == 0 and windows[-1][1] == num_tokens
    assert all(end - start <= room for start, end in windows)
    steps = {after[0] - before[0] for before, after in pairwise(windows)}
    assert steps <= {128 if room > 128 else room // 2}
    assert {token for start, end in windows for token in range(start, end)} == set(range(num_tokens))


@pytest.mark.parametrize(("num_tokens", "room"), [(20, 20), (700, 400), (901, 129), (50, 6), (2000, 60)])
def test_an_answer_begins_in_the_one_window_with_most_context(num_tokens, room):
    windows = windows_of(num_tokens, room)
    found = most_context(windows)
    for token in range(num_tokens):
        holds = [number for number, (start, end) in enumerate(windows) if start <= token < end]
        context = {
            number: min(token - windows[number][0], windows[number][1] - 1 - token)
            + 0.01 * (windows[number][1] - windows[number][0])
            for number in holds
        }
        best = max(holds, key=lambda number: (context[number], -number))
        assert [number for number in holds if found[number][token - windows[number][0]]] == [best]


def test_a_short_text_is_the_row_that_the_tokenizer_makes(tokenizer, tmp_path):
    examples = questions(tmp_path)
    rows = encode_squad(examples, tokenizer, 64, True)
    assert len(rows) == len(examples.questions)
    for number, question in enumerate(examples.questions):
        wanted = tokenizer(question.text, examples.contexts[question.context])
        part = slice(rows.starts[number], rows.starts[number + 1])
        assert rows.ids[part].tolist() == wanted["input_ids"]
        assert rows.segments[part].tolist() == wanted["token_type_ids"]


@pytest.mark.parametrize("length", [32, 64])
def test_labels_point_at_the_answer_in_every_window_that_has_it(tokenizer, tmp_path, length):
    examples = questions(tmp_path, is_second=True, num_words=100)
    rows = encode_squad(examples, tokenizer, length, False)
    assert len(rows) > len(examples.questions) and rows.lengths.max() == length
    num_found = np.zeros(len(examples.questions), int)
    for number, place in enumerate(rows.question_of):
        question = examples.questions[place]
        start, end, is_impossible, first, last = rows.labels[number]
        row = rows.ids[rows.starts[number] : rows.starts[number + 1]]
        assert is_impossible == (not question.answers)
        assert tokenizer.decode(row[[0, first - 1, last + 1]]) == "[CLS] [SEP] [SEP]"
        if end:
            assert first <= start <= end <= last
            assert tokenizer.decode(row[start : end + 1]) == question.answers[0]
            num_found[place] += 1
    assert (num_found > 0).tolist() == [bool(question.answers) for question in examples.questions]


def test_an_answer_that_a_window_cuts_is_not_in_it(tokenizer):
    text = " ".join(WORDS)
    asked = [
        SquadQuestion(f"q{place}", "good", 0, (" ".join(WORDS[place : place + 2]),), 4 * place)
        for place in range(len(WORDS) - 1)
    ]
    rows = encode_squad(SquadExamples(asked, [text]), tokenizer, 20, True)
    for number, place in enumerate(rows.question_of):
        start, end, _, first, last = rows.labels[number]
        begins = rows.first_token[number]
        is_inside = begins <= place and place + 1 < begins + last - first + 1
        assert (start, end) == ((place - begins + first, place - begins + first + 1) if is_inside else (0, 0))


def test_part_of_a_word_is_the_whole_word_and_spaces_are_not_part_of_an_answer(tokenizer, tmp_path):
    question = questions(tmp_path).questions[0]
    offsets = np.asarray([(0, 3), (4, 7), (8, 11)])
    assert span_of(replace(question, answers=("al",), start=5), offsets) == (1, 1)
    assert span_of(replace(question, answers=(" bal ",), start=3), offsets) == (1, 1)
    assert span_of(replace(question, answers=("x",), start=3), offsets) is None


def test_long_questions_are_cut_and_too_little_room_is_named(tokenizer, tmp_path):
    examples = questions(tmp_path)
    long = replace(examples.questions[0], text="good " * 200)
    rows = encode_squad(SquadExamples([long], examples.contexts), tokenizer, 64, True)
    assert rows.lengths.max() <= 64
    assert (rows.labels[:, 3] == 32).all()  # [CLS], half of the room, [SEP]
    with pytest.raises(UserError, match="--length 8 leaves no room for a question and a text"):
        encode_squad(examples, tokenizer, 8, True)


@pytest.fixture(scope="module")
def byte_tokenizer():
    """As RoBERTa's: bytes, spaces that belong to the word after them, and two special tokens between texts."""
    vocabulary = {
        token: number for number, token in enumerate(["<s>", "<pad>", "</s>", *pre_tokenizers.ByteLevel.alphabet()])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", cls_token="<s>", sep_token="</s>")


def test_other_tokenizers_frame_two_texts_in_their_own_way(byte_tokenizer):
    text = "Ein schöner Tag — 日本 war's."
    question = SquadQuestion("q", "was?", 0, ("war's.",), text.index("war's."))  # to the last token of the text
    rows = encode_squad(SquadExamples([question], [text]), byte_tokenizer, 128, False)
    wanted = byte_tokenizer("was?", text)
    assert rows.ids.tolist() == wanted["input_ids"]
    assert rows.ids[[0, rows.labels[0, 3] - 1, rows.labels[0, 3] - 2, -1]].tolist() == [0, 2, 2, 2]
    logits = np.zeros((len(rows.ids), 2))
    logits[rows.labels[0, 0], 0] = logits[rows.labels[0, 1], 1] = 1
    assert answers_of(rows, logits)[0]["q"][0].text == "war's."


def test_words_are_tagged_with_other_tokenizers_too(byte_tokenizer):
    sentences = TagExamples([["schöner", "Tag", "—", "日本"]], [["B-NP", "I-NP", "O", "B-NP"]], ("O", "B-NP", "I-NP"))
    rows = encode_tags(sentences, byte_tokenizer, 128, False)
    assert rows.ids.tolist() == byte_tokenizer("schöner Tag — 日本")["input_ids"]
    assert rows.word_of[rows.word_of >= 0].tolist() == [0, 1, 2, 3]
    assert rows.labels[rows.word_of >= 0].tolist() == [1, 2, 0, 1]
