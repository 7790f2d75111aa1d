"""The official beam search and "no answer" of SQuAD: equal to slow loops, learned, saved, and predicted from again."""

import json

import numpy as np
import pytest
import torch
import transformers

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.tokens.span_head import (
    NUM_STARTS,
    PairHead,
    answerable_logits,
    beam,
    end_logits,
    is_possible,
)
from electrakit.finetune.tokens.spans import MAX_ANSWER, beam_spans
from tests.helpers.tiny_glue import write_model
from tests.helpers.tiny_tokens import write_squad

FAST = {"batch_size": 8, "lr": 5e-3, "layer_decay": 1.0, "device": "cpu", "threads": 1}


@pytest.fixture
def states():
    torch.manual_seed(0)
    return torch.randn(2, 30, 8), torch.randn(2, 30), PairHead(8)


WINDOWS = torch.tensor([[5, 6, 0, 4, 28], [0, 0, 1, 9, 15]])


@torch.no_grad()
def test_the_beam_is_that_of_a_slow_loop(states):
    hidden, start_logits, head = states
    found = beam(head, hidden, start_logits, is_possible(WINDOWS, 30)).numpy()
    assert found.shape == (2, 30, 2 + NUM_STARTS)
    for row, (first, last) in enumerate(((4, 28), (9, 15))):
        places = [0, *range(first, last + 1)]
        log_starts = start_logits[row, places].log_softmax(-1)
        order = [places[number] for number in log_starts.argsort(descending=True)][:NUM_STARTS]
        np.testing.assert_allclose(found[row, places, 0], log_starts, rtol=1e-5, atol=1e-6)
        for rank, start in enumerate(order):
            assert found[row, start, 1] == rank
            pairs = torch.stack([torch.cat([hidden[row, start], hidden[row, end]]) for end in places])
            ends = head.output(torch.nn.functional.gelu(head.hidden(pairs)))[:, 0].log_softmax(-1)
            np.testing.assert_allclose(found[row, places, 2 + rank], ends, rtol=1e-4, atol=1e-5)
        outside = [place for place in range(30) if place not in places]
        assert np.isneginf(found[row, outside, 2:][:, : len(order)]).all()


@torch.no_grad()
def test_in_training_the_end_depends_on_the_true_start(states):
    hidden, _, head = states
    found = end_logits(head, hidden, WINDOWS[:, 0])
    pair = torch.cat([hidden[0, 5], hidden[0, 7]])
    assert found[0, 7].item() == pytest.approx(
        head.output(torch.nn.functional.gelu(head.hidden(pair))).item(), abs=1e-6
    )


@torch.no_grad()
def test_no_answer_is_read_from_the_first_state_and_the_likely_starts(states):
    hidden, start_logits, head = states
    found = answerable_logits(head, hidden, start_logits, is_possible(WINDOWS, 30))
    places = [0, *range(9, 16)]
    mean = (start_logits[1, places].softmax(-1)[:, None] * hidden[1, places]).sum(0)
    assert found[1].item() == pytest.approx(head(hidden[1, 0], mean).item(), abs=1e-5)


def test_spans_of_a_beam_begin_at_its_starts_and_are_not_too_long():
    chance = np.random.default_rng(0)
    logits = np.full((50, 2 + NUM_STARTS), -1.0)
    logits[:, 0], logits[:, 2:] = chance.normal(size=50), chance.normal(size=(50, NUM_STARTS))
    logits[[3, 17], 1] = (1, 0)
    can_start = np.ones(50, bool)
    found = {(start, end): (one, two) for one, two, start, end in beam_spans(logits, can_start)}
    for start, rank in ((3, 1), (17, 0)):
        best = np.argsort(-logits[:, 2 + rank])[:20]
        wanted = {(start, int(end)) for end in best if start <= end < start + MAX_ANSWER}
        assert {span for span in found if span[0] == start} == wanted
        for span in wanted:
            assert found[span] == (logits[start, 0], logits[span[1], 2 + rank])
    can_start[3] = False
    assert {start for _, _, start, _ in beam_spans(logits, can_start)} == {17}


@pytest.mark.long
def test_a_tiny_model_learns_saves_and_predicts_with_both_heads(tmp_path):
    write_model(tmp_path / "electra", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    data, out = write_squad(tmp_path / "second", is_second=True), tmp_path / "out"
    switches = {"joint_prediction": True, "answerable_uses_start_logits": True, "epochs": 60}
    result = ek.finetune(tmp_path / "electra", task="squad2", data=data, out=out, **FAST, **switches)
    assert result.medians["dev"]["best_f1"] == 1.0
    assert {"answerable.safetensors", "joint.safetensors"} <= {path.name for path in (out / "model").iterdir()}
    found = ek.predict(out / "model", data / "dev-v2.0.json", device="cpu")
    assert {row.id: row.prediction for row in found} == json.loads((out / "predictions.json").read_text())
    odds = json.loads((out / "null_odds.json").read_text())
    assert {row.id: row.null_odds for row in found} == pytest.approx(odds, abs=1e-4)
    plain = transformers.AutoModelForQuestionAnswering.from_pretrained(out / "model")
    ends = plain(input_ids=torch.arange(6)[None]).end_logits
    assert ends.abs().max() == 0  # transformers' own layer of ends is not used


def test_switches_of_another_task_are_refused(tmp_path):
    write_model(tmp_path / "electra")
    data = write_squad(tmp_path / "first")
    with pytest.raises(UserError, match="--answerable-uses-start-logits is of questions without an answer"):
        ek.finetune(
            tmp_path / "electra",
            task="squad",
            data=data,
            out=tmp_path / "out",
            answerable_uses_start_logits=True,
            **FAST,
        )
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\na\t0\nb\t1\n")
    files = {split: tmp_path / f"{split}.tsv" for split in ("train", "dev")}
    with pytest.raises(UserError, match="--joint-prediction is of answers in a text"):
        ek.finetune(tmp_path / "electra", **files, out=tmp_path / "out", joint_prediction=True, **FAST)


def test_results_without_the_switches_keep_their_identity():
    """Finished runs of before are not run again."""
    assert not {"joint_prediction", "answerable_uses_start_logits"} & FinetuneSettings().identity().keys()
    assert FinetuneSettings(joint_prediction=True).identity()["joint_prediction"] is True
