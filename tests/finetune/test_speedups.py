"""Less work, the same numbers."""

import numpy as np
import pytest
import torch

from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import load_classifier
from electrakit.finetune.encode import EncodedRows, collate
from electrakit.finetune.optimizer import build_optimizer, set_lr
from electrakit.finetune.speedups import LIKE_BERT, less_work
from electrakit.finetune.tasks import TASKS
from electrakit.finetune.train_job import row_loss
from tests.helpers.tiny_glue import VOCABULARY, write_model

CPU = torch.device("cpu")
SIZES = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BATCHES = [np.arange(4), np.arange(4, 8), np.arange(1, 6)]


def some_rows(seed=0):
    """Eight rows of 3 to 10 of a few words."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 11, 8)
    ids = random.choice([2, 3, 7, 11, 20, 21, 40], lengths.sum()).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return EncodedRows(ids=ids, segments=None, starts=starts, labels=np.arange(8, dtype=np.float32) % 2)


def trained(place, head, settings, is_faster):
    """The losses of six steps, and all weights afterwards."""
    torch.manual_seed(0)
    classifier, _ = load_classifier(place, TASKS["rte"], head, dropout=0.0)
    classifier.train()
    rows, losses = some_rows(), []

    def steps(rows):
        optimizer = build_optimizer(classifier, settings)
        for step, batch in enumerate(BATCHES * 2):
            logits = classifier(**collate(rows, batch, 0, CPU))
            loss = row_loss(TASKS["rte"], logits, torch.from_numpy(rows.labels[batch].astype(np.int64))).mean()
            loss.backward()
            set_lr(optimizer, settings, step, 6)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    if is_faster:
        with less_work(classifier, {"train": rows}, settings.weight_decay > 0, 0) as small:
            assert (small["train"].ids.max() < 10) == (settings.weight_decay == 0)  # 40 before
            steps(small["train"])
    else:
        steps(rows)
    return losses, {name: value.clone() for name, value in classifier.state_dict().items()}


@pytest.mark.parametrize("family", ["electra", "bert", "roberta", "distilbert"])
@pytest.mark.parametrize("head", ["official", "transformers"])
def test_training_with_less_work_is_the_same_training(tmp_path, family, head):
    sizes = {} if family == "distilbert" else SIZES
    if family == "distilbert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.0}
    place = str(write_model(tmp_path / "encoder", family, **sizes))
    # adam is fed gradients of almost nothing where the true ones are 0, and makes steps of them: a large epsilon would hide it
    for settings in (FinetuneSettings(lr=1e-3), FinetuneSettings(lr=1e-3, weight_decay=0.1)):
        losses, weights = trained(place, head, settings, False)
        less, same = trained(place, head, settings, True)
        assert less == pytest.approx(losses, rel=1e-4)
        assert set(same) == set(weights)
        words = next(name for name in weights if name.endswith("word_embeddings.weight"))
        assert same[words].shape == (len(VOCABULARY), weights[words].shape[1])
        torch.testing.assert_close(same[words], weights[words], rtol=1e-3, atol=1e-4)


def test_the_classifier_is_whole_again_also_after_a_failure(tmp_path):
    classifier, _ = load_classifier(str(write_model(tmp_path / "encoder")), TASKS["rte"])
    classifier.eval()
    rows = some_rows()
    inputs = collate(rows, np.arange(8), 0, CPU)
    wanted = classifier(**inputs)
    shape = classifier.model.base_model(**inputs).last_hidden_state.shape
    with pytest.raises(KeyError), less_work(classifier, {"train": rows}, False, 0) as small:
        found = classifier(**collate(small["train"], np.arange(8), 0, CPU))
        assert (
            classifier.model.base_model(**collate(small["train"], np.arange(8), 0, CPU)).last_hidden_state.shape[1] == 1
        )
        torch.testing.assert_close(found, wanted)
        raise KeyError
    assert torch.equal(classifier(**inputs), wanted)
    assert classifier.model.base_model(**inputs).last_hidden_state.shape == shape
    assert set(LIKE_BERT) >= {"bert", "electra", "roberta"}
