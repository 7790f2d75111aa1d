"""Files of SQuAD: as released, and damaged."""

import json

import pytest

from electrakit.common.errors import UserError
from electrakit.finetune.read_glue import find_file
from electrakit.finetune.tasks import TOKEN_TASKS
from electrakit.finetune.tokens.read_questions import read_questions
from tests.helpers.tiny_tokens import squad, write_squad

FIRST, SECOND = TOKEN_TASKS["squad"], TOKEN_TASKS["squad2"]


def read(folder, content, task=FIRST, split="train"):
    (folder / task.split(split).files[0]).write_text(json.dumps(content), encoding="utf-8")
    return read_questions(str(folder), task, task.split(split))


def test_questions_answers_and_texts_are_read(tmp_path):
    found = read(tmp_path, squad())
    assert len(found.questions) == len(found.contexts) == 12
    for question in found.questions:
        assert found.contexts[question.context][question.start :].startswith(question.answers[0])
    assert found.warnings == ("SQuAD 1.1 train has 12 questions, the released one 87,599",)
    second = read(tmp_path, squad(is_second=True), SECOND)
    assert [not question.answers for question in second.questions] == [number % 3 == 2 for number in range(12)]


def test_files_are_found_in_the_folder_or_in_one_of_the_tasks_name(tmp_path):
    write_squad(tmp_path / "SQuAD_v1")
    assert find_file(str(tmp_path), FIRST, FIRST.split("dev")) == tmp_path / "SQuAD_v1" / "dev-v1.1.json"
    assert find_file(str(tmp_path / "SQuAD_v1"), FIRST, FIRST.split("dev")).name == "dev-v1.1.json"
    with pytest.raises(UserError, match=r"SQuAD 2\.0 has no train-v2\.0\.json or train\.json in"):
        read_questions(str(tmp_path), SECOND, SECOND.split("train"))
    with pytest.raises(UserError, match=r"does not exist; it should hold train-v1\.1\.json"):
        read_questions(str(tmp_path / "nothing"), FIRST, FIRST.split("train"))
    with pytest.raises(UserError, match="is read from its files"):
        read_questions("hf:squad", FIRST, FIRST.split("train"))


def test_a_training_answer_that_is_not_in_the_text_is_left_out_and_counted(tmp_path):
    content = squad()
    content["data"][0]["paragraphs"][3]["qas"][0]["answers"][0]["answer_start"] += 1
    found = read(tmp_path, content)
    assert len(found.questions) == 11
    assert found.warnings[-1] == "SQuAD 1.1 train: 1 answers do not stand where the file says: left out"
    assert len(read(tmp_path, content, split="dev").questions) == 12  # where it stands does not matter for a score


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: it.pop("data"), r"train-v1\.1\.json at the top has no list 'data'; is it a file of SQuAD\?"),
        (lambda it: it["data"].append(3), r"data\[1\] is 3, not an object with named fields"),
        (lambda it: it["data"][0]["paragraphs"][1].pop("context"), r"data\[0\]\.paragraphs\[1\] has no text 'context'"),
        (lambda it: qa(it).pop("id"), r"data\[0\]\.paragraphs\[2\]\.qas\[0\] has no text 'id'"),
        (lambda it: qa(it).update(id="q0"), r"paragraphs\[2\]\.qas\[0\]: the id 'q0' was there before"),
        (lambda it: qa(it).update(answers=[]), r"qas\[0\] has no answer: .* use --task squad2"),
        (lambda it: qa(it)["answers"][0].pop("answer_start"), r"answers\[0\] has no number 'answer_start'"),
        (lambda it: qa(it).update(is_impossible="no"), "'is_impossible' is 'no'; it must be true or false"),
        (lambda it: it.update(data=[]), "has no questions"),
    ],
)
def test_damage_is_named_with_file_and_place(tmp_path, damage, message):
    content = squad()
    damage(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


def qa(content):
    return content["data"][0]["paragraphs"][2]["qas"][0]


def test_answers_and_is_impossible_must_agree(tmp_path):
    content = squad(is_second=True)
    qa(content)["is_impossible"] = False
    with pytest.raises(UserError, match=r"qas\[0\] has 0 answers, and 'is_impossible' is False"):
        read(tmp_path, content, SECOND)


def test_what_is_not_json_is_one_line(tmp_path):
    (tmp_path / "train-v1.1.json").write_text('{"data": [')
    with pytest.raises(UserError, match=r"train-v1\.1\.json is not JSON: .*line 1 column"):
        read_questions(str(tmp_path), FIRST, FIRST.split("train"))
