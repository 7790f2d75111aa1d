"""Pretraining: files of a run, resuming, refused changes of settings, and losses that do not depend on micro-batches."""

import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import electrakit as ek
from electrakit import pretrain
from electrakit.common.errors import UserError
from electrakit.config.pretrain import with_special_ids
from electrakit.objective.build import build_objective
from electrakit.objective.output import Output
from electrakit.runs import layout
from electrakit.runs.files import PretrainRun
from electrakit.train import checkpoint, loop
from electrakit.train.signals import SIGNALS
from electrakit.train.state import MAX_SAVING_SHARE, TrainState, save_interval
from tests.helpers.runs import assert_same, metrics_of, weights

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


@pytest.mark.long
def test_a_run_learns_and_leaves_its_files(tiny):
    run = pretrain(tiny(steps=60, batch_size=16, micro_batch=None, optim={"lr": 5e-3, "warmup_steps": 5}))
    assert run.is_complete and run.step == 60
    valid = run.metrics("valid")
    assert [line["step"] for line in valid] == [0, *range(6, 61, 6)]
    assert valid[-1]["mlm_loss"] < valid[0]["mlm_loss"] - 0.3
    assert {
        "loss",
        "mlm_loss",
        "disc_loss",
        "gen_acc",
        "sampled_acc",
        "disc_acc",
        "disc_auc",
        "replaced_rate",
    } <= valid[-1].keys()
    assert {"lr", "grad_norm", "tokens_per_second", "loss"} <= run.metrics()[-1].keys()
    settings = json.loads((run.path / "config.json").read_text())["settings"]
    assert settings["discriminator"]["vocab_size"] == 120 and settings["micro_batch"] == 16
    assert settings["discriminator"]["sep_token_id"] == 3
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__ and environment["device"]


@pytest.mark.long
# the first; where log, checkpoint, nothing and the next epoch are due
@pytest.mark.promise("Training", "stopped at any step", "the same bits at the end")
@pytest.mark.parametrize("step", [1, 4, 5, 7, 11])
@pytest.mark.parametrize("preset", ["tiny", "modern_tiny"])
def test_resume_equals_an_uninterrupted_run(tiny, preset, step, shards):
    whole = pretrain(tiny("whole", preset))
    stopped = pretrain(tiny("halves", preset), stop_after=step)
    assert not stopped.is_complete and stopped.step == step
    assert_same(pretrain(tiny("halves", preset)), whole)


def test_an_epoch_boundary_is_crossed_like_any_other_step(tiny):
    settings = {"batch_size": 64, "steps": 8, "log_every": 1, "micro_batch": 32}  # about 3 steps an epoch
    whole = pretrain(tiny("whole", **settings))
    for step in range(2, 7, 2):
        pretrain(tiny("micro_batches", **settings), stop_after=step)
    assert_same(pretrain(tiny("micro_batches", **settings)), whole)


@pytest.mark.promise("Training", "stopped with each optimizer", "the same bits at the end")
@pytest.mark.long
@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_every_optimizer_resumes_exactly(tiny, name):
    settings = {"optim": {"name": name, "warmup_steps": 2}, "steps": 6}
    whole = pretrain(tiny("whole", **settings))
    pretrain(tiny("halves", **settings), stop_after=3)
    assert_same(pretrain(tiny("halves", **settings)), whole)


@pytest.mark.promise("Training", "signal between two micro-batches", "a checkpoint, and the same bits at the end")
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_in_the_middle_of_accumulation_loses_nothing(tiny, number):
    whole = pretrain(tiny("whole", steps=6))
    config = tiny("halves", steps=6)
    objective = build_objective(config, {"pad": 0, "cls": 2, "sep": 3, "mask": 4})
    torch.manual_seed(config.seed)
    objective = build_objective(config, {"pad": 0, "cls": 2, "sep": 3, "mask": 4})
    calls = 0

    def send(module: nn.Module, inputs: object) -> None:
        nonlocal calls
        calls += module.training
        if calls == 8 and module.training:  # the second of three micro-batches of the third step
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # an impatient second one does no harm

    objective.register_forward_pre_hook(send)
    stopped = pretrain(config, objective)
    assert (stopped.step, stopped.is_complete) == (3, False)
    assert_same(pretrain(tiny("halves", steps=6)), whole)


def test_a_complete_run_is_left_as_it_is_and_more_steps_go_on(tiny):
    config = tiny(optim={"schedule": "constant", "warmup_steps": 2})
    first = pretrain(config)
    stamp = (first.checkpoint / "manifest.json").stat().st_mtime_ns
    again = pretrain(config)
    assert again.is_complete and (again.checkpoint / "manifest.json").stat().st_mtime_ns == stamp
    longer = pretrain(tiny(steps=18, optim={"schedule": "constant", "warmup_steps": 2}))
    assert longer.step == 18
    steps = [(line["split"], line["step"]) for line in metrics_of(longer)]
    assert len(steps) == len(set(steps))


@pytest.mark.promise("Training", "other settings for a run that exists", "refused, with the difference")
def test_other_settings_are_refused_with_the_difference(tiny, shards, tmp_path):
    pretrain(tiny(), stop_after=5)
    with pytest.raises(UserError, match=r"optim\.lr 0\.002 -> 0\.003.*another --run"):
        pretrain(tiny(optim={"lr": 3e-3, "warmup_steps": 2}))
    with pytest.raises(UserError, match="seed 0 -> 1"):
        pretrain(tiny(seed=1))
    other = ek.prepare(
        [shards.parent / "corpus.txt"],
        tokenizer=shards / "tokenizer",
        length=32,
        seed=1,
        out=tmp_path / "other",
        workers=1,
    )
    with pytest.raises(UserError, match=r"other rows in train-00000\.bin and 1 more; change"):
        pretrain(ek.presets.override(tiny(), {"data": other}))
    assert pretrain(tiny(log_every=2, save_every=3, keep_last=1)).is_complete  # these may change


def test_vocabulary_and_length_are_those_of_the_shards(tiny):
    run = pretrain(tiny(vocab_size=77, length=16, steps=1))
    settings = json.loads((run.path / "config.json").read_text())["settings"]
    assert (
        settings["length"] == 32
        and settings["discriminator"]["vocab_size"] == settings["generator"]["vocab_size"] == 120
    )
    short = {"max_length": 16}
    with pytest.raises(UserError, match=r"length.*32.*max_length.*16"):
        pretrain(tiny("short", length=16, discriminator=short, generator=short))
    with pytest.raises(UserError, match="a run needs data and run"):
        pretrain(ek.presets.tiny())


@pytest.mark.promise("Training", "two processes on one run folder", "the second is refused")
def test_one_run_has_one_writer(tiny):
    config = tiny()
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        from electrakit.common.atomic import write_lock

        with write_lock(config.run):
            os.write(tell, b"locked")
            signal.pause()
        os._exit(0)
    os.close(tell)
    try:
        assert os.read(told, 6) == b"locked"
        with pytest.raises(UserError, match="another process is writing"):
            pretrain(config)
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert pretrain(config).is_complete  # a dead process holds no lock


# Losses


def losses_of(run: PretrainRun) -> list[float]:
    return [line["loss"] for line in run.metrics()]


@pytest.mark.parametrize(
    "preset", ["tiny", "mlm_small", "electra_15", "replace_mlm", "all_tokens_mlm", "electric_small"]
)
def test_micro_batches_do_not_change_the_loss(tiny, preset):
    """A mean over all tokens of the step. The mean of the micro-batches' means is off by a percent: rows differ in length."""
    small = {
        "num_layers": 1,
        "hidden_size": 32,
        "ffn_size": 32,
        "num_heads": 1,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    small["embedding_size"] = 32
    changes = {"discriminator": small} if preset == "mlm_small" else {"discriminator": small, "generator": small}
    settings = {**changes, "steps": 4, "log_every": 1, "optim": {"lr": 1e-3, "warmup_steps": 0}}
    whole, micro_batches = (pretrain(tiny(f"m{size}", preset, micro_batch=size, **settings)) for size in (8, 3))
    assert losses_of(micro_batches) == pytest.approx(losses_of(whole), rel=1e-5)


def test_golden_losses(tiny):
    """20 steps of `tiny`. A change of these numbers is a change of what is trained: say so in docs/log.md."""
    found = losses_of(pretrain(tiny(steps=20, log_every=4, micro_batch=8, plain=True)))
    golden = json.loads((Path(__file__).parents[1] / "golden" / "tiny_losses.json").read_text())
    assert found == pytest.approx(golden, rel=2e-4)


@pytest.mark.parametrize("max_norm", [None, 1e6, 0.5])
def test_a_gradient_is_clipped_to_the_longest_that_is_allowed(tiny, max_norm):
    """After one step from nothing, Adam's average is a tenth of the gradient that it was given."""
    run = pretrain(tiny(steps=1, log_every=1, optim={"max_grad_norm": max_norm}))
    averages = [value for name, value in weights(run).items() if name.startswith("optimizer exp_avg/")]
    given = 10 * float(torch.cat([value.flatten() for value in averages]).norm())
    found = run.metrics()[0]["grad_norm"]  # before it is clipped
    assert found > 1
    assert given == pytest.approx(min(found, max_norm or found), rel=1e-4)


@pytest.mark.long
def test_the_fast_way_is_the_plain_way(tiny):
    """Without dropout, which is drawn in another way, 20 steps have the same losses."""
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    settings = {"steps": 20, "log_every": 1, "discriminator": no_dropout, "generator": no_dropout, "precision": "fp32"}
    plain, fast = (pretrain(tiny(f"plain{flag}", plain=flag, **settings)) for flag in (True, False))
    assert losses_of(fast) == pytest.approx(losses_of(plain), rel=1e-4)


@pytest.mark.long
def test_the_last_steps_are_logged_also_when_no_line_is_due(tiny):
    whole = pretrain(tiny("whole", log_every=5))
    assert [line["step"] for line in whole.metrics()] == [5, 10, 12]
    every = pretrain(tiny("every", log_every=1)).metrics()
    assert whole.metrics()[-1]["loss"] == pytest.approx(sum(line["loss"] for line in every[-2:]) / 2, rel=1e-9)
    for step in (3, 11):
        assert pretrain(tiny("halves", log_every=5), stop_after=step).step == step
    assert_same(pretrain(tiny("halves", log_every=5)), whole)
    by_clock = pretrain(tiny("clock", budget="2s", log_every=10**6, valid_every=10**6))
    assert [line["step"] for line in by_clock.metrics()] == [by_clock.step]


def test_a_run_that_is_told_to_end_where_it_was_stopped_is_validated_once(tiny):
    settings = {"valid_every": 3, "optim": {"lr": 5e-3, "warmup_steps": 0}}
    pretrain(tiny(**settings), stop_after=5)
    stamps = set()
    for _ in range(2):
        run = pretrain(tiny(steps=5, **settings))
        assert run.is_complete and [line["step"] for line in run.metrics("valid")] == [0, 3, 5]
        stamps.add((run.checkpoint / "manifest.json").stat().st_mtime_ns)
    assert len(stamps) == 1  # there was nothing left to do
    losses = {line["step"]: line["loss"] for line in run.metrics("valid")}
    assert losses[5] < losses[3] and run.best_checkpoint == run.checkpoint


@pytest.mark.long
def test_a_run_that_is_asked_to_stop_before_its_first_step_loses_nothing(tiny):
    stopped = pretrain(tiny("halves"), stop_after=0)
    assert (stopped.step, stopped.is_complete) == (0, False) and stopped.checkpoint.exists()
    assert_same(pretrain(tiny("halves")), pretrain(tiny("whole")))


def test_a_subclass_trains_its_own_loss(tiny):
    class Mine(ek.Electra):
        def forward(self, ids: torch.Tensor, draws: torch.Tensor | None = None) -> Output:
            output = super().forward(ids, draws)
            return output._replace(loss=output.loss + 1000)

    config = tiny(steps=2, log_every=1)
    generator, discriminator = ek.build(with_special_ids(config, SPECIAL))
    run = pretrain(config, Mine(generator, discriminator, mask_token_id=4, sep_token_id=3))
    assert all(loss > 1000 for loss in losses_of(run))
    assert run.metrics("valid")[-1]["loss"] > 1000


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ("nothing/counts.txt", FileNotFoundError, "No such file"),  # of the objective: it keeps its traceback
        ("run/counts.txt", UserError, "cannot write .*counts.txt: No such file"),
    ],
)
def test_a_file_that_an_objective_misses_is_not_taken_for_one_of_the_run(tiny, tmp_path, place, error, message):
    config = tiny("run")
    objective = build_objective(config, {"pad": 0, "cls": 2, "sep": 3, "mask": 4})
    objective.register_forward_pre_hook(lambda *_: (tmp_path / place).open())
    with pytest.raises(error, match=message):
        pretrain(config, objective)


def test_a_signal_while_a_checkpoint_is_told_about_stops_the_run_there(tiny):
    seen = []

    def tell(path: Path) -> None:
        seen.append(path.name)
        os.kill(os.getpid(), signal.SIGTERM)

    stopped = pretrain(tiny(valid_every=100), on_checkpoint=tell)
    assert (stopped.step, seen) == (5, ["step_0000005"])  # not one step and one checkpoint more


def test_signals_during_a_save_do_not_lose_it(tiny, monkeypatch):
    def interrupted(folder: Path) -> None:
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        write_manifest(folder)

    write_manifest = checkpoint.write_manifest
    monkeypatch.setattr(checkpoint, "write_manifest", interrupted)
    stopped = pretrain(tiny(valid_every=100))
    assert stopped.step == 5 and checkpoint.find_damage(stopped.checkpoint) is None


@pytest.mark.promise(
    "Training", "hours between two values of --save-every", "saved by the clock, the same bits at the end"
)
@pytest.mark.long
def test_checkpoints_by_the_clock_change_no_bit(tiny, monkeypatch):
    settings: dict[str, Any] = {"save_every": 100, "valid_every": 100, "keep_last": 9}
    whole = pretrain(tiny("whole", **settings))
    monkeypatch.setattr(TrainState, "is_save_due", lambda state: state.progress.step in (3, 7))
    stopped = pretrain(tiny("halves", **settings), stop_after=10)
    assert layout.checkpoint_steps(stopped.path) == [3, 7, 10]
    shutil.rmtree(stopped.checkpoint)  # as after a kill: it resumes from the seventh step
    assert_same(pretrain(tiny("halves", **settings)), whole)


def test_memory_is_given_back_between_checkpoints_too(tiny, monkeypatch):
    given: list[None] = []
    monkeypatch.setattr(loop, "TRIM_EVERY", 3)
    monkeypatch.setattr(loop.hardware_choices, "give_back_memory", lambda: given.append(None))
    pretrain(tiny(steps=7, save_every=100, valid_every=100))
    assert len(given) == 3  # after 3 and 6 steps, and with the last checkpoint


def test_saving_by_the_clock_takes_at_most_its_share_of_the_time():
    assert save_interval(10, save_seconds=1) == 600
    assert save_interval(None, save_seconds=1) == math.inf
    for seconds in (13, 54, 600):
        assert seconds / (seconds + save_interval(10, seconds)) <= MAX_SAVING_SHARE + 1e-9


def test_stop_after_a_step_that_is_done_stops_at_once(tiny):
    assert pretrain(tiny(), stop_after=6).step == 6
    assert pretrain(tiny(), stop_after=3).step == 6


def test_the_best_checkpoint_is_known(tiny):
    run = pretrain(tiny())
    valid = {line["step"]: line["loss"] for line in run.metrics("valid") if line["step"]}
    assert run.best_checkpoint.name == f"step_{min(valid, key=lambda step: valid[step]):07d}"
    assert (run.best_checkpoint / "discriminator" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["official_adam", "lamb", "muon"])
def test_nothing_waits_for_the_device_between_logs(tiny, monkeypatch, name):
    """A tensor made from a Python number, or a number made from a tensor, would stop a GPU's queue at every step."""
    from electrakit.train.distributed import ProcessGroup
    from electrakit.train.loop import train_step
    from electrakit.train.state import TrainState

    config = tiny(plain=True, optim={"name": name, "warmup_steps": 2})
    config.run.mkdir()
    training = TrainState(config, None, ProcessGroup(torch.device("cpu")))
    train_step(training)
    training.optimizer.can_read = False  # as on a GPU
    micro_batches = training.prefetch.read(1)  # what the thread does is not waited for
    training.prefetch.micro_batches = lambda step: micro_batches

    def forbidden(*arguments: object, **settings: object) -> None:
        raise AssertionError("the device would be waited for")

    for method in ("item", "tolist", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, method, forbidden)
    for function in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, function, forbidden)
    try:
        train_step(training)
    finally:
        monkeypatch.undo()
        training.close()


# Other ways


def test_any_pair_of_transformers_models_can_be_trained(tiny):
    from transformers import BertConfig, BertForMaskedLM, BertForTokenClassification

    sizes = BertConfig(
        vocab_size=120, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    torch.manual_seed(0)
    generator, discriminator = BertForMaskedLM(sizes), BertForTokenClassification(sizes)
    ek.tie(generator, discriminator, share="embeddings")
    pair = ek.Electra(generator, discriminator, mask_token_id=4, sep_token_id=3, mask_ignore_token_ids=[2, 3])
    run = pretrain(tiny(steps=3, micro_batch=None), pair)
    loaded = BertForTokenClassification.from_pretrained(run.checkpoint / "discriminator")
    ours = pair.discriminator.model.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in loaded.state_dict().items())


def test_bf16_and_recomputation_train(tiny):
    exact = pretrain(tiny("exact", steps=3, log_every=1))
    half = pretrain(tiny("half", steps=3, log_every=1, precision="bf16"))
    again = pretrain(tiny("again", steps=3, log_every=1, recompute=True))
    assert losses_of(half) == pytest.approx(losses_of(exact), rel=0.02)
    assert losses_of(half) != losses_of(exact)
    assert losses_of(again) == pytest.approx(losses_of(exact), rel=1e-6)


@pytest.mark.long
def test_a_compiled_run_has_the_same_losses(tiny):
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    settings = {"steps": 3, "log_every": 1, "micro_batch": 8, "discriminator": no_dropout, "generator": no_dropout}
    plain, compiled = (pretrain(tiny(f"c{flag}", compile=flag, **settings)) for flag in (False, True))
    assert losses_of(compiled) == pytest.approx(losses_of(plain), rel=1e-4)


@pytest.mark.promise("Training", "`--on-checkpoint` fails", "training continues")
@pytest.mark.long
def test_on_checkpoint_is_told_and_may_fail(tiny, tmp_path, capfd):
    seen = []

    def tell(path: Path) -> None:
        seen.append(path.name)
        assert (path / "manifest.json").exists()
        if len(seen) == 1:
            raise RuntimeError("the bucket is full")

    config = tiny(
        valid_rows=1,
        valid_every=100,
        on_checkpoint=f"cp {{path}}/state.json {tmp_path}/copied.json && test ! -e {tmp_path}/no",
    )
    run = pretrain(config, on_checkpoint=tell)
    assert run.is_complete
    assert seen == ["step_0000005", "step_0000010", "step_0000012"]
    assert json.loads((tmp_path / "copied.json").read_text())["step"] == 12
    assert "on_checkpoint failed" in capfd.readouterr().err
    assert pretrain(tiny("leaving"), on_checkpoint=lambda path: sys.exit("enough")).is_complete
    assert "on_checkpoint failed" in capfd.readouterr().err
    (tmp_path / "no").touch()
    assert pretrain(tiny("other", on_checkpoint=f"test ! -e {tmp_path}/no")).is_complete
    assert "on_checkpoint failed" in capfd.readouterr().err
