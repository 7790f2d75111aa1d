"""Spans: the loss, the best answers, and a tiny model that learns the questions of SQuAD."""

import json

import numpy as np
import pytest
import torch
import transformers

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import load_transformers_tokenizer
from electrakit.finetune.tasks import TOKEN_TASKS
from electrakit.finetune.tokens.model import load_token_model, open_token_model
from electrakit.finetune.tokens.read_questions import read_questions
from electrakit.finetune.tokens.spans import (
    MAX_ANSWER,
    NUM_BEST,
    answers_of,
    best_spans,
    best_texts,
    one_answer_reasons,
    score_spans,
    span_loss,
)
from electrakit.finetune.tokens.squad_metrics import first_scores, second_scores
from electrakit.finetune.tokens.windows import encode_squad
from electrakit.finetune.train_job import evaluate
from tests.helpers.command_line import electra
from tests.helpers.tiny_glue import write_model
from tests.helpers.tiny_tokens import write_squad

FAST = {"epochs": 60, "batch_size": 8, "lr": 5e-3, "layer_decay": 1.0, "device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    sizes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_model(folder / "electra", **sizes)
    write_model(folder / "bert", "bert", **sizes)
    write_squad(folder / "first")
    write_squad(folder / "second", is_second=True)
    return folder


def test_the_loss_is_that_of_the_two_ends_among_the_tokens_of_the_text():
    logits = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[4, 5, 0, 3, 7], [0, 0, 1, 4, 5]])
    found = span_loss(TOKEN_TASKS["squad2"], logits, targets)
    for row, possible in enumerate(([0, 3, 4, 5, 6, 7], [0, 4, 5])):
        wanted = 0.0
        for end in (0, 1):
            wanted -= torch.log_softmax(logits[row, possible, end], 0)[possible.index(targets[row, end])] / 2
        plain = span_loss(TOKEN_TASKS["squad"], logits[..., :2], targets)[row]
        assert plain == pytest.approx(float(wanted), rel=1e-5)
        chance = torch.sigmoid(logits[row, 0, 2])
        wanted -= 0.5 * torch.log(chance if targets[row, 2] else 1 - chance)
        assert found[row] == pytest.approx(float(wanted), rel=1e-5)


def test_the_loss_has_gradients_that_are_numbers():
    logits = torch.randn(1, 6, 3, requires_grad=True)
    span_loss(TOKEN_TASKS["squad2"], logits, torch.tensor([[3, 3, 0, 2, 4]])).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[0, [1, 5]] == 0).all()


@pytest.mark.parametrize("num_tokens", [0, 1, 15, 90])
def test_the_best_spans_are_those_of_all_pairs(num_tokens):
    random = np.random.default_rng(num_tokens)
    logits, can_start = random.normal(size=(num_tokens, 2)), random.random(num_tokens) < 0.7
    best = [set(np.argsort(-logits[:, end])[:NUM_BEST].tolist()) for end in (0, 1)]
    wanted = {
        (start, end): logits[start, 0] + logits[end, 1]
        for start in best[0]
        for end in best[1]
        if start <= end < start + MAX_ANSWER and can_start[start]
    }
    found = best_spans(logits, can_start)
    assert {(start, end): first + last for first, last, start, end in found} == pytest.approx(wanted)


@pytest.mark.parametrize("model", ["electra", "bert"])
def test_a_tiny_model_learns_the_answers(folder, tmp_path, model):
    result = ek.finetune(folder / model, task="squad", data=folder / "first", out=tmp_path / "out", **FAST)
    assert result.medians["dev"] == {"exact": 1.0, "f1": 1.0}
    assert result.settings.length == 64  # what the model can
    predicted = json.loads((tmp_path / "out" / "predictions.json").read_text())
    task = TOKEN_TASKS["squad"]
    questions = read_questions(str(folder / "first"), task, task.split("dev")).questions
    assert predicted == {question.id: question.answers[0] for question in questions}
    again = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    examples = read_questions(str(folder / "first"), task, task.split("dev"))
    inputs = tokenizer(examples.questions[0].text, examples.contexts[0], return_tensors="pt")
    with torch.no_grad():
        output = again(**inputs)
    span = inputs["input_ids"][0, output.start_logits.argmax() : output.end_logits.argmax() + 1]
    assert tokenizer.decode(span) == examples.questions[0].answers[0]
    if model == "bert":
        best_answers_are_ranked(tmp_path / "out", predicted)
        questions_without_answers_are_answered(tmp_path / "out" / "model", folder / "first", predicted)


def best_answers_are_ranked(out, predicted):
    ranked = json.loads((out / "nbest_predictions.json").read_text())
    assert {name: answers[0]["text"] for name, answers in ranked.items()} == predicted
    for answers in ranked.values():
        assert 1 < len(answers) <= NUM_BEST and len({each["text"] for each in answers}) == len(answers)
        scores = np.array([each["start_logit"] + each["end_logit"] for each in answers])
        assert (np.diff(scores) <= 0).all()
        shares = np.exp(scores - scores[0]) / np.exp(scores - scores[0]).sum()
        np.testing.assert_allclose([each["probability"] for each in answers], shares, rtol=1e-6)


def questions_without_answers_are_answered(model, data, predicted):
    """A file of SQuAD without answers, and the same as a table."""
    content = json.loads((data / "dev-v1.1.json").read_text())
    rows = []
    for paragraph in content["data"][0]["paragraphs"]:
        entry = paragraph["qas"][0]
        del entry["answers"]
        rows.append({"id": entry["id"], "question": entry["question"], "context": paragraph["context"]})
    (data / "asked.json").write_text(json.dumps(content))
    (data / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("asked.json", "asked.jsonl"):
        found = ek.predict(model, data / name, device="cpu")
        assert {row.id: row.prediction for row in found} == predicted
        assert all(row.nbest[0]["text"] == row.prediction for row in found)
    (data / "unnamed.csv").write_text(f"question,context\n{rows[3]['question']},{rows[3]['context']}\n")
    found = ek.predict(model, data / "unnamed.csv", device="cpu")
    assert [(row.id, row.prediction) for row in found] == [("0", predicted["q3"])]
    for name, content, said in [
        ("x.tsv", "question\ttext\na\tb\n", r"x\.tsv has the columns question, text, not 'context'"),
        ("x.jsonl", '{"question": "a", "context": "b"}\n{"question": "a"}', r"x\.jsonl line 2 has no column 'context'"),
        (
            "y.jsonl",
            '{"id": 1, "question": "a", "context": "b"}\n' * 2,
            r"y\.jsonl line 2: the id '1' was there before",
        ),
        ("x.json", "[]", r"x\.json at the top has no list 'data'"),
    ]:
        (data / name).write_text(content)
        with pytest.raises(UserError, match=said):
            ek.predict(model, data / name)
    with pytest.raises(UserError, match="is of the class BertForQuestionAnswering, which takes no --text"):
        ek.predict(model, data / "asked.json", text="question")
    with pytest.raises(UserError, match=r"--out x\.json: predictions\.json, nbest_predictions\.json will be written"):
        ek.predict(model, data / "asked.json", out="x.json", device="cpu")


@pytest.mark.long
def test_a_tiny_model_learns_which_questions_have_no_answer(folder, tmp_path, capsys):
    out = tmp_path / "out"
    result = ek.finetune(folder / "electra", task="SQuAD 2.0", data=folder / "second", out=out, **FAST)
    assert result.medians["dev"] == dict.fromkeys(result.medians["dev"], 1.0)
    task = TOKEN_TASKS["squad2"]
    examples = read_questions(str(folder / "second"), task, task.split("dev"))
    answers = {question.id: question.answers for question in examples.questions}
    files = {name: json.loads((out / f"{name}.json").read_text()) for name in ("predictions", "answers", "null_odds")}
    assert files["predictions"] == {name: each[0] if each else "" for name, each in answers.items()}
    assert all(files["answers"].values())
    assert first_scores({name: each or [""] for name, each in answers.items()}, files["predictions"])["exact"] == 1.0
    assert second_scores(answers, files["answers"], files["null_odds"])[0]["best_f1"] == 1.0
    assert electra("predict", out / "model", folder / "second" / "dev-v2.0.json", "--out", out / "again") == 0
    assert sorted(path.name for path in (out / "again").iterdir()) == [
        "electrakit.json",
        "nbest_predictions.json",
        "null_odds.json",
        "predictions.json",
    ]
    assert json.loads((out / "again" / "predictions.json").read_text()) == files["predictions"]
    assert json.loads((out / "again" / "null_odds.json").read_text()) == pytest.approx(files["null_odds"], abs=1e-3)
    assert electra("predict", out / "model", folder / "second" / "dev-v2.0.json") == 0
    assert json.loads(capsys.readouterr().out) == files["predictions"]
    # opened again it says the same, with its file beside it
    model, tokenizer = open_token_model(str(out / "model"), task), load_transformers_tokenizer(str(out / "model"))
    rows = encode_squad(examples, tokenizer, 64, False)
    logits = evaluate(model, rows, tokenizer.pad_token_id, torch.device("cpu"), FinetuneSettings())
    _, null_odds = answers_of(rows, logits)
    assert null_odds == pytest.approx(files["null_odds"], abs=1e-3)
    plain = transformers.AutoModelForQuestionAnswering.from_pretrained(out / "model")
    known = tokenizer(examples.questions[0].text, examples.contexts[0], return_tensors="pt")
    with torch.no_grad():  # the first row
        np.testing.assert_allclose(plain(**known).start_logits[0], logits[: rows.starts[1], 0], atol=1e-3)


def test_the_threshold_of_a_bad_model_is_searched(folder, tmp_path):
    settings = {**FAST, "epochs": 1, "seeds": 2, "workers": 1}
    result = ek.finetune(folder / "bert", task="squad2", data=folder / "second", out=tmp_path, **settings)
    scores = result.medians["dev"]
    assert scores["best_f1"] >= max(scores["f1"] - 1e-9, 4 / 12)  # a third has no answer
    result = json.loads((tmp_path / "seed_1.json").read_text())
    assert result["kind"] == "spans" and "logits" not in result
    assert result["files"] == ["answers.json", "null_odds.json", "predictions.json", "nbest_predictions.json"]
    assert (tmp_path / "seed_2.predictions.json").exists() and "dev" in result["threshold"]


@pytest.mark.parametrize("is_second", [False, True])
def test_the_same_answer_to_all_questions_is_a_collapse(folder, is_second):
    task = TOKEN_TASKS["squad2" if is_second else "squad"]
    data = str(folder / ("second" if is_second else "first"))
    rows = encode_squad(
        read_questions(data, task, task.split("dev")), load_transformers_tokenizer(str(folder / "bert")), 64, False
    )
    logits = np.zeros((len(rows.ids), 3 if is_second else 2), np.float32)
    for number in range(len(rows)):
        start, end, is_impossible = rows.labels[number, :3]
        logits[rows.starts[number] + start, 0] = logits[rows.starts[number] + end, 1] = 5
        logits[rows.starts[number], 2:] = is_impossible
    scored = score_spans(task, {"dev": rows}, {"dev": logits})
    assert scored.collapsed == [] and scored.scores["dev"][task.metrics[0]] == 1
    if is_second:  # wrong answers: nothing is better than any of them
        logits[:, :2] = -logits[:, :2]
        logits[:, 2] = 0
        assert score_spans(task, {"dev": rows}, {"dev": logits}).collapsed == ["no dev question is answered"]
    wanted = {question.id: list(question.answers) for question in rows.questions}
    assert one_answer_reasons("dev", dict.fromkeys(wanted, "bal"), wanted) == ["all dev answers are 'bal'"]
    assert one_answer_reasons("dev", dict.fromkeys(wanted, "bal"), dict.fromkeys(wanted, ("bal",))) == []


def test_answers_are_found_across_windows(folder, tmp_path):
    """The logits say it: the right span in its windows, and less likely ones elsewhere."""
    task = TOKEN_TASKS["squad"]
    data = str(write_squad(tmp_path, num_words=150))
    rows = encode_squad(
        read_questions(data, task, task.split("dev")), load_transformers_tokenizer(str(folder / "bert")), 40, False
    )
    logits = np.zeros((len(rows.ids), 2), np.float32)
    for number in range(len(rows)):
        start, end = rows.labels[number, :2]
        logits[rows.starts[number] + start, 0] = logits[rows.starts[number] + end, 1] = 5
    found, _ = answers_of(rows, logits)
    assert best_texts(found) == {each.id: each.answers[0] for each in rows.questions}
    assert all(1 < len(best) <= NUM_BEST and len({each.text for each in best}) == len(best) for best in found.values())
    third = np.random.default_rng(0).normal(size=(len(logits), 1))
    _, null_odds = answers_of(rows, np.concatenate([logits, third], 1))
    for number, question in enumerate(rows.questions):  # the least of what its windows say at [CLS]
        first_tokens = rows.starts[:-1][rows.question_of == number]
        assert len(first_tokens) > 1 and null_odds[question.id] == pytest.approx(third[first_tokens].min())


def test_mistakes_are_one_line(folder, tmp_path, capsys):
    arguments = ["finetune", folder / "bert", "--task", "squad", "--data", folder / "second"]
    assert electra(*arguments, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "SQuAD 1.1 has no train-v1.1.json or train.json in" in said
    with pytest.raises(UserError, match=r"unknown task 'squat'; there are cola, .*, squad, squad2, mrqa, chunking"):
        ek.finetune(folder / "bert", task="squat", data=folder / "first", out=tmp_path / "x")
    with pytest.raises(UserError, match="unknown task 'squad'; there are cola"):
        ek.glue(folder / "bert", tasks="squad", data=folder / "first", out=tmp_path / "x")
    with pytest.raises(UserError, match="is of the class BertModel, which was not fine-tuned to predict anything"):
        ek.predict(folder / "bert", folder / "first" / "dev-v1.1.json")


def test_opening_a_model_whose_padding_is_0_warns_of_nothing(tmp_path, caplog):
    """transformers' models of spans are called once to see what they return."""
    write_model(tmp_path / "deberta", "deberta-v2")
    transformers.utils.logging.warning_once.cache_clear()
    transformers.utils.logging.enable_propagation()
    try:
        load_token_model(str(tmp_path / "deberta"), TOKEN_TASKS["squad"], FinetuneSettings())
    finally:
        transformers.utils.logging.disable_propagation()
    assert not caplog.records
