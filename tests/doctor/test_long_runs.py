"""The doctor on logs as long runs write them: published curves with the noise of real batches, and what can befall them."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electrakit.doctor import problems
from electrakit.doctor.findings import Measure
from electrakit.doctor.run import examine_run
from electrakit.runs.files import Environment, RunFiles, Status, read_run
from electrakit.runs.settings import DataDescription

# ELECTRA-Small on OpenWebText: total loss 17 after 12,000 steps, 15 after 60,000, 13.2 after 200,000, 11.2 at the end.
STEPS = (1, 200, 1_000, 6_000, 12_000, 60_000, 200_000, 1_000_000)
SMALL = {
    "mlm_loss": (10.33, 9.0, 7.6, 6.6, 5.0, 4.2, 3.7, 3.3),
    "disc_loss": (0.69, 0.45, 0.41, 0.38, 0.24, 0.216, 0.19, 0.158),
    "sampled_acc": (0.15, 0.15, 0.18, 0.22, 0.3, 0.36, 0.4, 0.45),
    "disc_auc": (0.5, 0.5, 0.5, 0.55, 0.8, 0.87, 0.9, 0.93),
}
FLAT = {
    **SMALL,
    "mlm_loss": (*SMALL["mlm_loss"][:-2], 3.31, 3.3),
    "disc_loss": (*SMALL["disc_loss"][:-2], 0.159, 0.158),
}
LETTERS = {
    "mlm_loss": (10.33, 5.0, 3.3, 3.12, *[3.1] * 4),
    "disc_loss": (0.69, 0.42, 0.4, *[0.39] * 5),
    "sampled_acc": (*[0.08] * 8,),
    "disc_auc": (*[0.5] * 3, *[0.515] * 5),
}


def simulated(
    curves: dict[str, tuple[float, ...]] = SMALL,
    kind: str = "electra",
    *,
    steps: int = 1_000_000,
    until: int | None = None,
    log_every: int = 100,
    valid_every: int = 10_000,
    batch_size: int = 128,
    warmup: int = 10_000,
    noise: float = 1.5,
    valid_noise: float = 1.0,
    valid_shift: float = 1.0,
    num_resumes: int = 0,
    seed: int = 0,
) -> RunFiles:
    """`noise`: of a batch, in that of tokens drawn one by one; rows differ from each other, so it is above 1."""
    chance = np.random.default_rng(seed)
    end = until or steps

    def at(name: str, places: np.ndarray) -> np.ndarray:
        return np.exp(np.interp(np.log(np.maximum(places, 1)), np.log(STEPS), np.log(curves[name])))

    places = np.arange(log_every, end + 1, log_every)
    num_tokens = batch_size * 128 * log_every
    metrics: dict[str, np.ndarray] = {"step": places}
    for name, deviation, share in (("mlm_loss", 3.0, 0.15), ("disc_loss", 0.5, 1.0), ("sampled_acc", 0.5, 0.15)):
        metrics[name] = at(name, places) + noise * deviation / np.sqrt(share * num_tokens) * chance.normal(
            size=len(places)
        )
    metrics["gen_acc"] = 1.1 * metrics["sampled_acc"]
    metrics["replaced_rate"] = 0.15 * (1 - metrics["sampled_acc"])
    metrics["loss"] = metrics["mlm_loss"] + 50 * metrics["disc_loss"]
    metrics["lr"] = 5e-4 * np.minimum(places / warmup, 1) * (1 - places / steps)
    metrics["grad_norm"] = 1.2 * np.exp(0.4 * chance.normal(size=len(places)))
    metrics["tokens_per_second"] = 20_000 * (1 + 0.03 * chance.normal(size=len(places)))
    for place in chance.integers(0, len(places), num_resumes):
        metrics["tokens_per_second"][place : place + 2] *= 0.3

    checked = np.arange(0, end + 1, valid_every)
    valid = {"step": checked, "disc_auc": at("disc_auc", checked) + 0.002 * chance.normal(size=len(checked))}
    for name, deviation in (("mlm_loss", 0.01), ("disc_loss", 0.0007)):
        valid[name] = valid_shift * at(name, checked) + valid_noise * deviation * chance.normal(size=len(checked))
    valid["loss"] = valid["mlm_loss"] + 50 * valid["disc_loss"]
    if kind == "mlm":
        kept = ("step", "mlm_loss", "gen_acc", "lr", "grad_norm", "tokens_per_second")
        metrics = {name: metrics[name] for name in kept} | {"loss": metrics["mlm_loss"]}
        valid = {name: valid[name] for name in ("step", "mlm_loss")} | {"loss": valid["mlm_loss"]}
    lines = [{"split": "train", **line} for line in lines_of(metrics)] + [
        {"split": "valid", **line} for line in lines_of(valid)
    ]
    settings = {"data": "gone", "steps": steps, "batch_size": batch_size, "length": 128, "share": "nothing"}
    settings |= {"objective": {"kind": kind}, "optim": {"warmup_steps": warmup, "max_grad_norm": 1.0}}
    data = DataDescription(vocab_size=30_522, rows={"train": 30_000_000, "valid": 1024})
    status = Status(end, is_complete=end == steps)
    return RunFiles(
        Path("nowhere"), settings, data, Environment(), status, sorted(lines, key=lambda line: line["step"])
    )


def lines_of(metrics: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [
        dict(zip(metrics, values, strict=True))
        for values in zip(*(each.tolist() for each in metrics.values()), strict=True)
    ]


def levels(run: RunFiles) -> dict[str, str]:
    return {finding.title: finding.level for finding in examine_run(run).findings}


def changed(run: RunFiles, since: int, until: int, **factors: float) -> RunFiles:
    """Between two steps, metrics of the log are multiplied."""
    lines = [
        {name: value * factors.get(name, 1.0) if name in factors else value for name, value in line.items()}
        if line["split"] == "train" and since <= line["step"] < until
        else line
        for line in run.lines
    ]
    return dataclasses.replace(run, lines=lines)


HEALTHY: dict[str, dict[str, Any]] = {
    "ELECTRA-Small": {},
    "logged rarely": {"log_every": 1000},
    "resumed forty times": {"num_resumes": 40},
    "flat at the end": {"curves": FLAT},
    "few validation rows": {"curves": FLAT, "valid_noise": 4.0, "valid_shift": 1.05},
    "validation text of another kind": {"valid_shift": 1.1, "valid_every": 50_000},
    "restless batches": {"noise": 6.0, "batch_size": 256, "steps": 766_000},
    "a masked language model": {"kind": "mlm"},
    "every step of small batches": {"batch_size": 8, "log_every": 1, "steps": 20_000, "warmup": 1000},
    "a masked language model, every step": {
        "kind": "mlm",
        "batch_size": 8,
        "log_every": 1,
        "steps": 20_000,
        "warmup": 1000,
    },
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_long_run_has_no_findings(name):
    for seed in range(2):
        assert levels(simulated(**HEALTHY[name], seed=seed)) == {}


@pytest.mark.parametrize("until", [1_000, 5_000, 12_000, 20_000, 35_000, 200_000])
def test_on_its_way_it_is_never_worse_than_young(until):
    assert set(levels(simulated(until=until, valid_every=2_000)).values()) <= {"info"}


def test_letters_instead_of_words_are_recognised_by_their_plateaus():
    """Electra_replicate: generator at 3.1 nats, discriminator at .39."""
    found = levels(simulated(LETTERS, steps=200_000, log_every=200))
    assert found[problems.AT_UNIGRAM_ENTROPY.title] == found[problems.AT_BASE_RATE.title] == "serious"
    without_auc = simulated(LETTERS, steps=200_000, log_every=200)
    without_auc = dataclasses.replace(without_auc, lines=without_auc.train)
    assert levels(without_auc)[problems.AT_BASE_RATE.title] == "serious"


def test_a_discriminator_alone_at_the_base_rate_is_told_apart():
    """The generator learns; what it samples, or where the loss is taken, leaves nothing to learn from."""
    rates = 0.15 * (1 - np.array(SMALL["sampled_acc"]))
    entropy = -rates * np.log(rates) - (1 - rates) * np.log(1 - rates)
    curves = {**SMALL, "disc_loss": (0.69, *entropy[1:]), "disc_auc": (0.5,) * 8}
    assert levels(simulated(curves, steps=200_000)) == {problems.AT_BASE_RATE.title: "serious"}


def test_what_befalls_a_long_run_is_found():
    run = simulated(log_every=200)
    lost = changed(run, 600_000, 2_000_000, mlm_loss=2.1, loss=1.9)
    assert levels(lost)[problems.DIVERGED.title] == "serious"
    for_a_while = changed(run, 300_000, 340_000, mlm_loss=1.5, loss=1.4)
    assert levels(for_a_while)[problems.LR_TOO_HIGH.title] == "warning"
    spiky = run
    for step in range(100_000, 900_000, 100_000):
        spiky = changed(spiky, step, step + 200, loss=1.5)
    assert levels(spiky) == {problems.SPIKES.title: "warning"}
    assert levels(changed(run, 500_000, 500_200, loss=1.5)) == {}  # one does no harm
    assert levels(changed(run, 500_000, 500_200, loss=3.0)) == {problems.SPIKES.title: "warning"}
    assert levels(changed(run, 700_000, 2_000_000, tokens_per_second=0.5)) == {problems.SLOWER.title: "warning"}


def test_validation_that_rises_for_long_is_no_chance():
    run = simulated(steps=300_000, valid_every=10_000)
    rising = [
        {**line, "disc_loss": line["disc_loss"] * (1 + max(0, line["step"] - 100_000) / 1e6)}
        if line["split"] == "valid"
        else line
        for line in run.lines
    ]
    assert levels(dataclasses.replace(run, lines=rising)) == {problems.OVERFITTING.title: "warning"}


def test_a_log_of_every_step_is_read_in_seconds():
    run = simulated(batch_size=8, log_every=1, steps=30_000, warmup=1000)
    start = time.process_time()
    examine_run(run)
    assert time.process_time() - start < 10


@pytest.mark.promise("Reports", "random values in metrics.jsonl", "never an exception")
def test_whatever_stands_in_a_log_does_no_harm(tmp_path):
    odd = [10**400, -(10**400), True, "1.0", None, [1], {"a": 1}, float("inf")]
    lines = [
        {"step": step, "split": "train", "loss": 1.0, "mlm_loss": odd[step % 8], "lr": 10**400} for step in range(60)
    ]
    lines += [{"step": 10**30, "split": "train"}, {"step": -1, "split": "valid"}, {"step": True, "split": "valid"}]
    (tmp_path / "config.json").write_text(json.dumps({"settings": {"batch_size": 1, "length": 1}, "data": {}}))
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, lines), "[" * 100_000]))
    run = read_run(tmp_path)
    assert run.step == 59
    assert set(levels(run).values()) <= {"info"}
    assert Measure.GENERATOR_LOSS not in examine_run(run).measures
