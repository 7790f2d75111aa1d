"""The doctor of runs: each problem is found in a run that was given it on purpose, and none in healthy ones."""

import dataclasses
import json
import math
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import electrakit as ek
from electrakit import pretrain
from electrakit.cli.main import main
from electrakit.common.errors import UserError
from electrakit.config.pretrain import PretrainConfig, with_special_ids
from electrakit.doctor import problems
from electrakit.doctor.examine import CORPUS_CHECKS, NO_VALIDATION
from electrakit.doctor.findings import Finding, Measure, print_findings
from electrakit.doctor.run import examine_run
from electrakit.objective.build import build_objective
from electrakit.objective.output import Output
from electrakit.runs.files import RunFiles, Status, read_run

pytestmark = pytest.mark.long  # a dozen short runs

PROBLEMS = [value for value in vars(problems).values() if isinstance(value, problems.Problem)]
DOCS = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
SETTINGS: dict[str, Any] = {"length": 32, "vocab_size": 60, "steps": 230, "batch_size": 8, "micro_batch": 8}
SETTINGS |= {"log_every": 5, "valid_every": 50, "save_every": 300, "valid_rows": 64, "precision": "fp32"}
SHALLOW = {"discriminator": {"num_layers": 1}, "generator": {"num_layers": 1}}  # for what learns nothing anyway
LEARNS_FAST = {"discriminator": NO_DROPOUT, "generator": NO_DROPOUT, "optim": {"lr": 1e-2, "warmup_steps": 20}}


def names(num: int, chance: random.Random) -> list[str]:
    return list(dict.fromkeys("".join(chance.choices("abdegiklmnoprstu", k=4)) for _ in range(2 * num)))[:num]


def chain(num_documents: int, weights: list[int]) -> list[str]:
    """A word is followed by one of as many as there are weights."""
    chance = random.Random(0)
    words = names(20, chance)
    followers = [chance.sample(range(20), len(weights)) for _ in words]
    documents = []
    for _ in range(num_documents):
        path = [chance.randrange(20)]
        while len(path) < 29:
            path += chance.choices(followers[path[-1]], weights)
        documents.append(" ".join(words[place] for place in path))
    return documents


def mixtures(num_documents: int) -> list[str]:
    """Each of three words of its own: what is learned from some says nothing about the others."""
    chance = random.Random(0)
    words = names(30, chance)
    return [" ".join(chance.choices(chance.sample(words, 3), k=29)) for _ in range(num_documents)]


LETTERS = "eeeeeeeettttttaaaaaaoooooiiiiinnnnnsssshhhhrrrrdddllluuccmmfwypgb"  # about as often as in English
TEXTS: dict[str, Callable[[], list[str]]] = {
    "healthy": lambda: chain(300, [5, 3, 2]),
    "letters": lambda: [" ".join(random.Random(seed).choices(LETTERS, k=58)) for seed in range(300)],
    "certain": lambda: chain(100, [1]),
    "few": lambda: mixtures(24),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Of one of the texts."""
    folder = tmp_path_factory.mktemp("texts")

    def shards(name: str) -> Path:
        place = folder / name
        if not place.exists():
            place.mkdir()
            text = place / "text.txt"
            text.write_text("\n\n".join(TEXTS[name]()), encoding="utf-8")
            tokenizer = ek.train_tokenizer([text], vocab_size=60, out=place / "tokenizer", workers=1)
            valid = 0.4 if name == "few" else 0.1
            ek.prepare([text], tokenizer=tokenizer, length=32, valid=valid, out=place / "shards", workers=1)
        return place / "shards"

    return shards


@pytest.fixture(scope="module")
def settings(shards, tmp_path_factory) -> Callable[..., PretrainConfig]:
    """`settings("healthy", "modern_tiny", steps=20)`: of a run of its own."""

    def settings(text: str, preset: str = "tiny", **changes: Any) -> PretrainConfig:
        run = tmp_path_factory.mktemp("runs") / "run"
        optim = {"warmup_steps": 20, **changes.pop("optim", {})}
        return getattr(ek.presets, preset)(data=shards(text), run=run, **{**SETTINGS, "optim": optim, **changes})

    return settings


@pytest.fixture(scope="module")
def healthy(settings) -> tuple[RunFiles, RunFiles]:
    """As it was when it was stopped at step 50, and when it was complete."""
    config = settings("healthy", "modern_tiny", **LEARNS_FAST)
    pretrain(config, stop_after=50)
    young = read_run(config.run)
    assert young.train and young.valid  # read now: the files change
    return young, read_run(pretrain(config).path)


@pytest.fixture(scope="module")
def letters(settings) -> RunFiles:
    """Of letters instead of words. None is shown, so that nothing can be copied; the gradient may have hardly any length."""
    changes: Any = {"objective": {"replace_prob": 1.0}, "optim": {"max_grad_norm": 0.02}}
    return read_run(pretrain(settings("letters", **SHALLOW, **changes)).path)


def found(run: RunFiles) -> dict[str, Finding]:
    """By title. How fast the machine was is no matter of the run, and this one may be busy."""
    return {finding.title: finding for finding in examine_run(run).findings if finding.title != problems.SLOWER.title}


def levels(run: RunFiles) -> dict[str, str]:
    return {title: finding.level for title, finding in found(run).items()}


def cut(run: RunFiles, num_lines: int) -> RunFiles:
    return dataclasses.replace(run, lines=run.lines[:num_lines])


# --- healthy ---


def test_a_healthy_run_that_was_stopped_and_went_on_has_no_findings(healthy):
    run = healthy[1]
    assert levels(run) == {}
    measures = examine_run(run).measures
    assert measures[Measure.GENERATOR_LOSS] < 0.9 * measures[Measure.LOSS_WITHOUT_CONTEXT]
    assert measures[Measure.DISCRIMINATOR_AUC] > 0.58 and measures[Measure.STEPS] == 230
    entropy = measures[Measure.UNIGRAM_ENTROPY]
    assert measures[Measure.LOSS_WITHOUT_CONTEXT] == pytest.approx(0.85 * entropy)
    of_shards = ek.examine([run.shards], workers=1).measures
    assert entropy == pytest.approx(of_shards[Measure.UNIGRAM_ENTROPY], abs=0.05)


def test_a_young_run_is_young_and_nothing_worse(healthy):
    young, _ = healthy
    assert set(levels(young).values()) == {"info"}
    assert levels(young)[problems.INCOMPLETE.title] == "info"


@pytest.mark.parametrize("num_lines", [0, 1, 2, 5, 12, 30])
def test_few_lines_are_no_reason_for_anything(healthy, num_lines):
    for run in healthy:
        assert set(levels(cut(run, num_lines)).values()) <= {"info"}
        assert examine_run(cut(run, num_lines)).measures[Measure.TOKENS_SEEN] >= 0


def test_a_masked_language_model_without_discriminator_has_no_findings(settings):
    body = ek.presets.modern_tiny(vocab_size=60, discriminator=NO_DROPOUT).discriminator
    optim = {"name": "muon", "lr": 1e-2}
    run = pretrain(settings("healthy", "mlm_small", discriminator=body, optim=optim))
    assert levels(read_run(run.path)) == {}
    assert Measure.DISCRIMINATOR_AUC not in examine_run(read_run(run.path)).measures


def test_a_uniform_generator_and_no_validation_are_no_trouble(settings):
    config = settings("healthy", steps=20, generator=None, valid_rows=1)
    run = read_run(pretrain(config).path)
    without = dataclasses.replace(run, lines=run.train)
    assert set(levels(run).values()) | set(levels(without).values()) == {"info"}


# --- what is not learned ---


def test_letters_leave_the_generator_at_the_unigram_entropy_and_the_discriminator_at_the_base_rate(letters, tmp_path):
    findings = found(letters)
    generator, discriminator = findings[problems.AT_UNIGRAM_ENTROPY.title], findings[problems.AT_BASE_RATE.title]
    assert generator.level == discriminator.level == "serious"
    entropy = examine_run(letters).measures[Measure.UNIGRAM_ENTROPY]
    assert f"unigram entropy {entropy:.2f}" in generator.seen and "step 230" in generator.seen
    assert "single letters" in generator.means and "AUC" in discriminator.seen
    # unfinished, it would only be young
    unfinished = dataclasses.replace(letters, status=Status(step=230, is_complete=False))
    assert not {problems.AT_UNIGRAM_ENTROPY.title, problems.AT_BASE_RATE.title} & found(unfinished).keys()
    assert problems.YOUNG.title in found(unfinished)
    # elsewhere, the accuracy must do
    alone = dataclasses.replace(letters, settings={**letters.settings, "data": "gone"})
    assert alone.shards is None and "judged by the accuracy" in found(alone)[problems.AT_UNIGRAM_ENTROPY.title].seen


def test_a_gradient_that_is_always_cut_is_noticed(letters, healthy):
    assert levels(letters)[problems.ALWAYS_CLIPPED.title] == "warning"
    free = dataclasses.replace(letters, settings={**letters.settings, "optim": {"max_grad_norm": None}})
    assert problems.ALWAYS_CLIPPED.title not in found(free)


def test_a_learning_rate_that_is_too_low(settings):
    run = read_run(pretrain(settings("healthy", **SHALLOW, optim={"lr": 1e-7})).path)
    assert levels(run) == {problems.LR_TOO_LOW.title: "serious"}


def test_a_learning_rate_that_is_too_high(settings):
    """The rate falls to 0, and the loss comes back; but both networks have become constants."""
    findings = found(read_run(pretrain(settings("healthy", optim={"lr": 0.3})).path))
    assert findings[problems.LR_TOO_HIGH.title].level == "serious"
    assert not {problems.LR_TOO_LOW.title, problems.WARMUP_TOO_SHORT.title} & findings.keys()


def test_without_a_warm_up_a_high_rate_diverges_at_once(settings):
    optim = {"lr": 0.3, "warmup_steps": 1, "schedule": "constant"}
    findings = found(read_run(pretrain(settings("healthy", steps=120, optim=optim)).path))
    assert findings[problems.DIVERGED.title].level == "serious"
    assert "1 of 120 steps" in findings[problems.WARMUP_TOO_SHORT.title].seen


def test_a_generator_that_is_always_right_is_too_strong(settings):
    """Each word has one successor, and the generator is as wide as the discriminator."""
    run = read_run(pretrain(settings("certain", "modern_tiny", **LEARNS_FAST)).path)
    assert problems.GENERATOR_TOO_STRONG.title in found(run)
    assert "replaced by another" in found(run)[problems.GENERATOR_TOO_STRONG.title].seen


def objective_of(config: PretrainConfig) -> nn.Module:
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    torch.manual_seed(0)
    return build_objective(with_special_ids(config, special), special)


def test_a_discriminator_that_is_not_trained_gives_one_answer(settings):
    """Its loss has no weight, and its head belongs to another task."""
    config = settings("healthy", **SHALLOW, objective={"disc_weight": 0.0})
    objective = objective_of(config)
    with torch.no_grad():
        list(objective.discriminator.parameters())[-1].sub_(5.0)
    findings = found(read_run(pretrain(config, objective).path))
    assert findings[problems.ONE_ANSWER.title].level == "serious"
    assert "it says 'original' of nearly every token" in findings[problems.ONE_ANSWER.title].seen


# --- what happens on the way ---


class Troubled(nn.Module):
    """An objective whose loss is multiplied at some steps."""

    def __init__(self, inner: nn.Module, factors: dict[int, float]) -> None:
        super().__init__()
        self.inner, self.factors, self.step = inner, factors, 0

    def forward(self, ids: torch.Tensor, draws: torch.Tensor) -> Output:
        output = self.inner(ids, draws)
        if not self.training:
            return output
        self.step += 1
        return output._replace(loss=output.loss * self.factors.get(self.step, 1.0))


def test_spikes_and_numbers_that_are_none(settings):
    config = settings("healthy", steps=120)
    factors = {52: 12.0, 88: 12.0, 101: math.nan, 103: math.nan}
    run = read_run(pretrain(config, Troubled(objective_of(config), factors)).path)
    findings = found(run)
    assert findings[problems.SPIKES.title].seen.startswith("2 in ")
    assert findings[problems.NOT_FINITE.title].level == "serious"
    assert "2 of 120 steps were left out, the first by step 105" in findings[problems.NOT_FINITE.title].seen
    assert problems.WARMUP_TOO_SHORT.title not in findings
    # one in a long run is only told
    lines = [{**line, "step": 1000 * line["step"]} for line in run.lines]
    assert levels(dataclasses.replace(run, lines=lines))[problems.NOT_FINITE.title] == "info"


def test_training_that_becomes_slower(settings, monkeypatch):
    config = settings("healthy", **SHALLOW, steps=64, log_every=2, valid_every=1000)
    objective = Troubled(objective_of(config), {})

    def now() -> float:
        """A made-up clock: a step takes a second, and six from step 40 on."""
        return float(objective.step + 5 * max(0, objective.step - 40))

    monkeypatch.setattr("electrakit.train.state.time", SimpleNamespace(monotonic=now))
    findings = {one.title: one for one in examine_run(read_run(pretrain(config, objective).path)).findings}
    assert findings[problems.SLOWER.title].level == "warning"


def test_few_rows_seen_often_are_learned_by_heart(settings):
    run = read_run(pretrain(settings("few", "modern_tiny", **LEARNS_FAST, valid_every=20)).path)
    finding = found(run)[problems.OVERFITTING.title]
    assert "times" in finding.seen and "memorises" in finding.means
    # the same curves on rows that were seen once have another cause
    data = dataclasses.replace(run.data, rows={"train": 10**6, "valid": 100})
    assert "copies in the text" in found(dataclasses.replace(run, data=data))[problems.OVERFITTING.title].means


def test_embeddings_that_are_not_shared_though_asked(settings, healthy):
    run = pretrain(settings("healthy", steps=10, share="nothing"))
    assert problems.NOT_SHARED.title not in found(read_run(run.path))
    stored = json.loads((run.path / "config.json").read_text())
    stored["settings"]["share"] = "embeddings"
    (run.path / "config.json").write_text(json.dumps(stored))
    assert levels(read_run(run.path))[problems.NOT_SHARED.title] == "serious"
    (run.checkpoint / "generator" / "model.safetensors").write_bytes(b"cut off")
    assert problems.NOT_SHARED.title not in found(read_run(run.path))  # nothing can be said


# --- how it is told ---


def test_the_command_says_it_all_and_its_exit_code_is_1_if_something_is_serious(letters, healthy, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", str(letters.path)])
    text = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 1
    assert "serious: the generator is stuck at the unigram entropy" in text and "What to do: Run electra doctor" in text
    with pytest.raises(SystemExit) as both:
        main(["doctor", str(healthy[1].path), str(letters.path)])
    assert both.value.code == 1
    assert capsys.readouterr().out.count("tokens seen") == 2
    with pytest.raises(SystemExit) as well:
        main(["doctor", str(healthy[1].path)])
    assert well.value.code == 0


def test_python_says_the_same(letters, healthy, capsys):
    examination = ek.examine([letters.path, healthy[1].path])
    assert examination.is_serious and [part.is_serious for part in examination.parts] == [True, False]
    assert examination.findings == [finding for part in examination.parts for finding in part.findings]
    assert print_findings(ek.examine([healthy[1].path])) == 0


def test_what_is_no_run_of_its_own_is_refused_with_the_way_out(letters, healthy, tmp_path):
    with pytest.raises(UserError, match="examine runs by themselves"):
        ek.examine([letters.path, letters.shards])
    with pytest.raises(UserError, match="without --tokenizer"):
        ek.examine([letters.path], tokenizer=letters.shards / "tokenizer")
    with pytest.raises(UserError, match="is a checkpoint: examine its run"):
        ek.examine([letters.checkpoint])
    shutil.copytree(letters.path, tmp_path / "runs" / "mine")
    with pytest.raises(UserError, match="runs holds runs: name them"):
        ek.examine([tmp_path / "runs"])


def slug(title: str) -> str:
    """The anchor that GitHub and mkdocs give a heading."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


def test_every_finding_has_its_section_in_the_documentation():
    headings = {
        slug(line.lstrip("# ")) for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    }
    titles = [problem.title for problem in (*PROBLEMS, *CORPUS_CHECKS, NO_VALIDATION)]
    assert len(PROBLEMS) == 16 and len(set(titles)) == len(titles)
    assert {slug(title) for title in titles} <= headings
    for problem in PROBLEMS:
        assert problem.means and problem.advice and slug(problem.found("info", "").title) in headings
