"""One model, one task, one seed."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from electrakit.common.errors import UserError
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.collapse import loss_reasons, one_class_reasons
from electrakit.finetune.job import FinetuneJob, TaskData, load_rows
from electrakit.finetune.tasks import TASKS
from electrakit.finetune.train_job import finetune_job, loss_curve, predict_test, row_loss
from tests.helpers.tiny_glue import write_glue, write_model

FAST = FinetuneSettings(lr=3e-3, epochs=25, batch_size=8, length=32, layer_decay=1.0, dropout=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    write_glue(folder / "glue")
    write_glue(folder / "same")  # the rows of dev are those of training
    for path in (folder / "same").rglob("dev*.tsv"):
        shutil.copy(path.with_name("train.tsv"), path)
    write_model(folder / "encoder", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    write_model(folder / "bert", "bert")
    return folder


def job_of(folder, task, out, seed=1, model="encoder", data="glue", **changes):
    data = TaskData(TASKS[task], str(folder / data))
    return FinetuneJob(str(folder / model), data, seed, replace(FAST, **changes), out / task)


@pytest.mark.parametrize(
    ("task", "epochs"),
    [
        ("rte", 25),
        ("stsb", 12),
        pytest.param("cola", 25, marks=pytest.mark.long),
        pytest.param("mnli", 25, marks=pytest.mark.long),
    ],
)
def test_a_tiny_model_learns_the_rows_of_a_task_of_each_kind(folder, tmp_path, task, epochs):
    result = finetune_job(job_of(folder, task, tmp_path, data="same", epochs=epochs))
    assert result.losses[-1][1] < 0.1 * result.losses[0][1]
    assert result.score > (0.8 if task == "stsb" else 0.95), result.scores
    assert result.collapsed == []
    written = json.loads((tmp_path / task / "seed_1.json").read_text())
    assert written["score"] == pytest.approx(result.score)
    assert len(written["predictions"]["dev"]) == len(written["answers"]["dev"]) == 40
    assert not any("differ" in warning for warning in written["warnings"])
    assert written["warnings"][0].endswith(f"the released one {TASKS[task].split('train').num_rows:,}")
    if task == "mnli":
        parts = [written["scores"][name]["accuracy"] for name in ("dev", "dev_mismatched")]
        assert written["score"] == pytest.approx(sum(parts) / 2)


def test_pairs_of_mrpc_and_stsb_are_trained_in_both_orders_and_scored_in_one(folder):
    for task, times in {"mrpc": 2, "stsb": 2, "qqp": 1, "rte": 1, "cola": 1}.items():
        data = TaskData(TASKS[task], str(folder / "glue"))
        sizes = [len(load_rows(data, split, str(folder / "encoder"), 32)[0]) for split in ("train", "dev", "test")]
        assert sizes == [40 * times, 12, 9]


def test_a_number_is_learned_as_a_fifth_of_itself_by_squared_error():
    losses = row_loss(TASKS["stsb"], torch.tensor([[0.5], [1.0]]), torch.tensor([5.0, 4.0]))
    torch.testing.assert_close(losses, torch.tensor([0.25, 0.04]))


def test_the_same_seed_is_the_same_run_bit_for_bit_and_another_is_another(folder, tmp_path):
    runs = [
        finetune_job(job_of(folder, "rte", tmp_path / name, seed, "bert", epochs=2))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert runs[0].losses == runs[1].losses
    assert runs[0].logits == runs[1].logits
    assert runs[0].losses != runs[2].losses


def test_the_caller_keeps_its_chance_and_its_threads(folder, tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    before = torch.get_num_threads()
    finetune_job(job_of(folder, "wnli", tmp_path, epochs=1))
    assert torch.equal(torch.rand(1), wanted)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("head", ["official", "transformers"])
def test_what_is_kept_says_on_dev_what_was_scored(folder, tmp_path, head):
    """The saved model, opened as any transformers classifier, on rows that it is given as a test."""
    job = job_of(folder, "stsb", tmp_path, epochs=3, head=head)
    result = finetune_job(job)
    glue = write_glue(tmp_path / "glue")
    lines = (glue / "STS-B" / "dev.tsv").read_text().splitlines()
    (glue / "STS-B" / "test.tsv").write_text("\n".join(line.rsplit("\t", 1)[0] for line in lines) + "\n")
    predict_test(replace(job, data=TaskData(TASKS["stsb"], str(glue))))
    np.testing.assert_allclose(load_file(job.test_path)["test"], result.logits["dev"], atol=1e-4)


@pytest.mark.long
def test_bfloat16_and_the_official_settings_learn_too(folder, tmp_path):
    changes = {"precision": "bfloat16", "loss": "sum", "adam": "official", "top_layer_power": 2, "weight_decay": 0.01}
    result = finetune_job(job_of(folder, "rte", tmp_path, data="same", lr=1e-3, **changes))
    assert result.score > 0.9


def test_epochs_may_be_a_fraction(folder, tmp_path):
    assert finetune_job(job_of(folder, "wnli", tmp_path, epochs=1.5)).num_steps == round(1.5 * 5)
    assert finetune_job(job_of(folder, "mrpc", tmp_path, epochs=1)).num_steps == 10  # both orders


def test_a_run_that_learns_nothing_is_recognised(folder, tmp_path):
    result = finetune_job(job_of(folder, "rte", tmp_path / "slow", lr=1e-12, epochs=4))
    assert any("did not fall" in reason for reason in result.collapsed)
    burnt = finetune_job(job_of(folder, "stsb", tmp_path / "fast", lr=1e12, max_grad_norm=1e9, epochs=4))
    assert burnt.collapsed
    written = json.loads((tmp_path / "fast" / "stsb" / "seed_1.json").read_text())
    assert (written["score"] is None) == (not math.isfinite(burnt.score))


def collapse_reasons(task, predictions, labels, losses):
    return one_class_reasons(task, predictions, labels) + loss_reasons(losses)


def test_the_reasons_of_a_collapse():
    falling, flat = np.linspace(1, 0.1, 50).tolist(), [0.69] * 50
    labels, some, all_one = {"dev": np.array([0, 1, 1])}, {"dev": np.array([0, 1, 0])}, {"dev": np.array([1, 1, 1])}
    assert collapse_reasons(TASKS["rte"], some, labels, falling) == []
    assert collapse_reasons(TASKS["rte"], all_one, labels, falling) == ["all dev predictions are 'not_entailment'"]
    assert collapse_reasons(TASKS["rte"], some, labels, flat) == ["the training loss did not fall: 0.690, then 0.690"]
    assert collapse_reasons(TASKS["rte"], some, labels, [1.0, math.nan]) == ["the training loss is not a number"]
    numbers = {"dev": np.array([2.5, 2.5, 2.5])}
    assert collapse_reasons(TASKS["stsb"], numbers, labels, falling) == ["all dev predictions are 2.5"]
    one_class = {"dev": np.array([1, 1, 1])}
    assert collapse_reasons(TASKS["rte"], all_one, one_class, falling) == []


def test_nearly_one_class_and_nothing_gained_by_it_is_a_collapse():
    labels = np.array([1] * 31 + [0] * 29)

    def reasons(wrong, right, labels=labels):
        """All are 1 but so many."""
        predicted = np.ones(len(labels), int)
        predicted[np.flatnonzero(labels == 1)[:wrong]] = 0
        predicted[np.flatnonzero(labels == 0)[:right]] = 0
        return one_class_reasons(TASKS["sst2"], {"dev": predicted}, {"dev": labels})

    assert reasons(1, 1) == ["58 of 60 dev predictions are '1', no better than one answer for all"]
    assert reasons(3, 0) and not reasons(4, 0)  # which are fewer than nineteen of twenty
    assert not reasons(0, 2) and not reasons(1, 2)  # better than always the same
    rare = np.array([1] * 97 + [0] * 3)
    assert not reasons(2, 2, rare)  # nearly all are 1, and some of the others are found
    assert reasons(0, 0, rare) == ["all dev predictions are '1'"]


def test_a_curve_has_200_points_at_the_most():
    assert loss_curve([3.0, 1.0]) == [[1, 3.0], [2, 1.0]]
    points = loss_curve(list(np.linspace(2, 1, 1001)))
    assert len(points) <= 200
    assert points[-1][0] == 1001
    assert np.mean([loss for _, loss in points]) == pytest.approx(1.5, abs=0.01)


def test_a_finished_run_is_known_by_what_decides_it(folder, tmp_path):
    job = job_of(folder, "wnli", tmp_path, epochs=1)
    assert job.finished() is None
    finetune_job(job)
    assert job.finished().task == "wnli"
    with pytest.raises(UserError, match=r"is of a run with lr 0\.003, now 0\.1; use another --out"):
        replace(job, settings=replace(job.settings, lr=0.1)).finished()
    with pytest.raises(UserError, match="is of a run with another model"):
        replace(job, model=str(folder / "bert")).finished()
    shutil.copytree(job.model, tmp_path / "twin")
    twin = replace(job, model=str(tmp_path / "twin"))
    (tmp_path / "twin" / "electrakit.json").write_text("{}")  # what an export notes about itself decides nothing
    assert twin.finished() is not None
    with (tmp_path / "twin" / "tokenizer.json").open("a") as file:
        file.write(" ")
    with pytest.raises(UserError, match="is of a run with another model"):  # the same weights, other words
        twin.finished()
    other = write_glue(tmp_path / "glue", seed=1)
    with pytest.raises(UserError, match="is of a run with other data"):
        replace(job, data=TaskData(TASKS["wnli"], str(other))).finished()
    written = json.loads(job.result_path.read_text())
    job.result_path.write_text(json.dumps({name: value for name, value in written.items() if name != "files"}))
    with pytest.raises(
        UserError, match="has no 'files': an older electrakit wrote it; remove it, and the run is made again"
    ):
        job.finished()
    job.result_path.write_text("{")
    with pytest.raises(UserError, match="is not the result of a run; remove it"):
        job.finished()


def test_files_that_change_while_python_runs_are_read_again(folder, tmp_path):
    job = replace(job_of(folder, "wnli", tmp_path, epochs=1), data=TaskData(TASKS["wnli"], str(tmp_path / "glue")))
    write_glue(tmp_path / "glue")
    before = finetune_job(job)
    path = tmp_path / "glue" / "WNLI" / "train.tsv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:9]))
    with pytest.raises(UserError, match="is of a run with other data"):
        job.finished()
    job.result_path.unlink()
    assert finetune_job(job).num_steps < before.num_steps


def test_a_device_that_is_not_there_is_one_line(folder, tmp_path):
    job = job_of(folder, "wnli", tmp_path)
    with pytest.raises(UserError, match="--device 'tpu' is not known; use cpu or cuda"):
        finetune_job(replace(job, device="tpu"))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="--device cuda: torch sees no GPU here"):
            finetune_job(replace(job, device="cuda"))


def test_a_folder_that_cannot_be_written_is_one_line(folder, tmp_path):
    (tmp_path / "wnli").write_text("a file")
    with pytest.raises(UserError, match="cannot write"):
        finetune_job(job_of(folder, "wnli", tmp_path, epochs=1))


def test_too_long_rows_for_the_model_are_named(folder, tmp_path):
    with pytest.raises(UserError, match="use --length 64 or less"):
        finetune_job(job_of(folder, "wnli", tmp_path, length=128))
    assert not (tmp_path / "wnli").exists()
