"""MRQA's files: what is read from them, what is wrong with them, and a model that learns from them."""

import json

import pytest

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.finetune.tasks import TOKEN_TASKS
from electrakit.finetune.tokens.mrqa import is_mrqa, read_mrqa
from electrakit.finetune.tokens.read_questions import read_questions, read_unlabelled
from tests.helpers.tiny_glue import write_model
from tests.helpers.tiny_tokens import mrqa_lines, write_mrqa


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl"])
def test_questions_answers_and_texts_are_read(tmp_path, ending):
    content, task = mrqa_lines(), TOKEN_TASKS["mrqa"]
    for split in ("train", "dev"):
        write_mrqa(tmp_path / f"{split}{ending}", content)
    train, dev = (read_questions(str(tmp_path), task, task.split(split)) for split in ("train", "dev"))
    assert train.contexts == [line["context"] for line in content] and train.warnings == ()
    for question, line in zip(train.questions, content, strict=True):
        [asked] = line["qas"]
        assert (question.id, question.text) == (asked["qid"], asked["question"])
        assert question.answers == (asked["detected_answers"][0]["text"],)
        assert line["context"][question.start :].startswith(question.answers[0])
    assert dev.questions[0].answers == (train.questions[0].answers[0].upper(), "else")
    asked = read_unlabelled(tmp_path / f"dev{ending}")
    assert [question.answers for question in asked.questions] == [()] * len(content)


def test_a_table_of_questions_is_not_mistaken_for_mrqa(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"question": "a", "context": "b"}\n')
    assert not is_mrqa(tmp_path / "x.jsonl")
    assert read_unlabelled(tmp_path / "x.jsonl").questions[0].text == "a"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda it: it[1].pop("context"), r"line 3 has no text 'context'; is it a file of MRQA\?"),
        (lambda it: it[0]["qas"][0].pop("qid"), r"line 2\.qas\[0\] has no text 'qid'"),
        (lambda it: it[0]["qas"][0].update(detected_answers=[]), "has no span in 'detected_answers'"),
        (lambda it: it[0]["qas"][0]["detected_answers"][0].update(char_spans=[[5, 9_999]]), "no part of the text"),
        (lambda it: it[0]["qas"][0]["detected_answers"][0].update(char_spans=[[7]]), "no part of the text"),
        (lambda it: it[0]["qas"][0].update(answers=[1]), "must be a list of texts"),
        (lambda it: it[1]["qas"][0].update(qid="m0"), "the id 'm0' was there before"),
        (lambda it: it.clear(), "has no questions"),
    ],
)
def test_damage_is_named_with_file_and_place(tmp_path, damage, said):
    content = mrqa_lines(3)
    damage(content)
    with pytest.raises(UserError, match=said):
        read_mrqa(write_mrqa(tmp_path / "x.jsonl.gz", content))


def test_damaged_files_are_one_line(tmp_path):
    whole = write_mrqa(tmp_path / "x.jsonl.gz", mrqa_lines()).read_bytes()
    for content, said in [(whole[:-40], "is damaged after line"), (b"no gzip", "is damaged after line 0")]:
        (tmp_path / "y.jsonl.gz").write_bytes(content)
        with pytest.raises(UserError, match=said):
            read_mrqa(tmp_path / "y.jsonl.gz")
    (tmp_path / "y.jsonl").write_text('{"header": 1}\n{"a": \n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        read_mrqa(tmp_path / "y.jsonl")
    with pytest.raises(UserError, match="cannot read"):
        read_mrqa(tmp_path / "nothing.jsonl.gz")


@pytest.mark.long
def test_a_tiny_model_learns_from_mrqa(tmp_path):
    write_model(tmp_path / "electra", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    for split in ("train", "dev"):
        write_mrqa(tmp_path / "data" / f"{split}.jsonl.gz", mrqa_lines())
    fast = {"epochs": 60, "batch_size": 8, "lr": 5e-3, "layer_decay": 1.0, "device": "cpu", "threads": 1}
    out = tmp_path / "out"
    result = ek.finetune(tmp_path / "electra", task="mrqa", data=tmp_path / "data", out=out, **fast)
    assert result.medians["dev"] == {"exact": 1.0, "f1": 1.0}
    found = ek.predict(out / "model", tmp_path / "data" / "dev.jsonl.gz", device="cpu")
    assert {row.id: row.prediction for row in found} == json.loads((out / "predictions.json").read_text())
