"""Generator and discriminator trained apart: decoupled updates, two stages, and a generator that deceives."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from electrakit import pretrain
from electrakit.common.errors import UserError
from electrakit.data.batches import Batches
from electrakit.objective.electra import Electra
from electrakit.objective.randomness import row_keys
from electrakit.train.loop import seed_of_step
from electrakit.train.optim import RunOptimizer
from tests.helpers.runs import assert_same, begun, weights
from tests.helpers.torchrun import QUIET, finished, losses, torchrun

SMALL = {"num_layers": 1, "hidden_size": 32, "ffn_size": 32, "num_heads": 1, "embedding_size": 32}
SAME = {"discriminator": SMALL, "generator": SMALL}
OPTIM = {"lr": 1e-3, "warmup_steps": 0, "decoupled": True}
TWO_STAGES = {"share": "nothing", **SAME, "objective": {"generator_steps": 3}, "steps": 5}
ADVERSARIAL = {"share": "gdes", **SAME, "objective": {"adversarial": True}, "optim": OPTIM, "steps": 5}
DECOUPLED = {"share": "gdes", **SAME, "optim": OPTIM, "steps": 5}


def is_generators(name: str) -> bool:
    return "generator." in name


# Decoupled


@pytest.mark.parametrize("share", ["nothing", "gdes"])
def test_without_clipping_decoupled_updates_are_the_joint_ones(tiny, share):
    """Two micro-batches and a smaller one: gradients are accumulated."""
    runs = []
    for decoupled in (False, True):
        optim = {"lr": 1e-3, "warmup_steps": 0, "max_grad_norm": None, "decoupled": decoupled}
        runs.append(pretrain(tiny(f"run{decoupled}", share=share, **SAME, optim=optim, steps=2, valid_every=100)))
    assert_same_weights(*runs)


def assert_same_weights(one, two):
    ours, theirs = weights(one), weights(two)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_two_passes_one_after_the_other_give_the_gradients_of_one(tiny, shards):
    """What DeBERTaV3's code does: the generator's loss first, then the discriminator on the samples of that same pass."""
    objective = begun(tiny("run", **DECOUPLED))
    ids = torch.randint(5, 120, (4, 32), generator=torch.Generator().manual_seed(0))
    found = []
    for is_joint in (True, False):
        objective.zero_grad()
        torch.manual_seed(0)
        output = objective(ids)
        if is_joint:
            output.loss.backward()
        else:
            (objective.gen_weight * output.mlm_loss).backward()
            assert all(one.grad is None for one in objective.discriminator.parameters())
            before = [one.grad.clone() for one in objective.generator.parameters()]
            (objective.disc_weight * output.disc_loss).backward()
            assert all(map(torch.equal, before, (one.grad for one in objective.generator.parameters())))
        found.append({name: one.grad.clone() for name, one in objective.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("name", ["official_adam", "adamw", "lamb", "muon"])
def test_a_run_is_that_of_two_optimizers_one_after_the_other(tiny, name):
    """The generator is clipped and updated before the discriminator reads the samples, which the generator made before."""
    settings = {
        "preset": "modern_tiny",
        "share": "nothing",
        "steps": 3,
        "micro_batch": 8,
        "batch_size": 8,
        "log_every": 1,
    }
    config = tiny("run", **settings, valid_every=100, optim={**OPTIM, "name": name, "max_grad_norm": 0.01})
    run = pretrain(config)
    objective = begun(replace(config, run=config.run.parent / "apart")).train()
    networks = objective.generator, objective.discriminator
    optimizers = [RunOptimizer(network, config.optim) for network in networks]
    batches = Batches(config.data, config.batch_size, seed=config.seed)

    def update(place: int, loss: torch.Tensor, lr: float) -> None:
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(networks[place].parameters(), config.optim.max_grad_norm)
        assert norm > config.optim.max_grad_norm
        optimizers[place].step(lr, torch.tensor(True))
        optimizers[place].zero_grad()

    for step, line in enumerate(run.metrics()):
        torch.manual_seed(seed_of_step(config.seed, step, 0))
        ids = torch.from_numpy(batches(step))
        batch = objective.mask(ids, row_keys(config.seed, step, batches.sample_numbers(step)))
        samples = objective.sample(batch)
        update(0, objective.gen_weight * samples.mlm_loss, line["lr"])
        corrupted = objective.masking.write(ids, batch.masked.positions, samples.tokens, batch.masked.counts)
        loss, _ = objective.score(ids, batch, corrupted, corrupted != ids)
        update(1, objective.disc_weight * loss, line["lr"])
    trained = load_file(run.checkpoint / "model.safetensors")
    for name, value in objective.state_dict().items():
        torch.testing.assert_close(value, trained[name], rtol=1e-5, atol=1e-6, msg=name)


def test_each_network_is_clipped_by_itself(tiny):
    """After one step from nothing, Adam's average is a tenth of the gradient that it was given."""
    lengths = {}
    for name, optim in {"apart": {"decoupled": True}, "whole": {"max_grad_norm": None}}.items():
        optim = {"max_grad_norm": 0.5, **optim}
        run = pretrain(tiny(name, share="nothing", **SAME, steps=1, log_every=1, optim=optim))
        averages = {each: value for each, value in weights(run).items() if each.startswith("optimizer exp_avg/")}
        for is_first in (True, False):
            half = [value.flatten() for each, value in averages.items() if is_generators(each) == is_first]
            lengths[name, is_first] = 10 * float(torch.cat(half).norm())
        lengths[name, "all"] = run.metrics()[0]["grad_norm"]
    assert lengths["apart", True] == pytest.approx(0.5, rel=1e-3) == lengths["apart", False]
    together = lengths["whole", True] ** 2 + lengths["whole", False] ** 2
    assert lengths["whole", True] > 0.5 and lengths["apart", "all"] == pytest.approx(together**0.5, rel=1e-3)


# All three


@pytest.mark.parametrize(
    "changes", [DECOUPLED, TWO_STAGES, ADVERSARIAL], ids=["decoupled", "two stages", "adversarial"]
)
def test_a_run_that_stops_and_resumes_ends_with_the_same_bits(tiny, changes):
    whole = pretrain(tiny("whole", **changes))
    for step in (3, 4) if changes is TWO_STAGES else (3,):  # the second stage begins at 3
        pretrain(tiny("parts", **changes), stop_after=step)
    assert_same(pretrain(tiny("parts", **changes)), whole)


@pytest.mark.long
@pytest.mark.parametrize("changes", [TWO_STAGES, ADVERSARIAL], ids=["two stages", "adversarial"])
def test_two_processes_train_as_one(tiny, changes):
    settings = {
        **changes,
        "discriminator": {**SMALL, **QUIET["discriminator"]},
        "generator": {**SMALL, **QUIET["generator"]},
    }
    settings |= {"log_every": 1, "valid_every": 100}
    alone = pretrain(tiny("alone", **settings))
    finished(torchrun(tiny("two", **settings)))
    assert losses(tiny("two").run) == pytest.approx(losses(alone.path), rel=1e-5)
    ours, theirs = (
        load_file(path / "checkpoints" / "step_0000005" / "model.safetensors") for path in (alone.path, tiny("two").run)
    )
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": {"decoupled": True}}, "optim.decoupled trains the networks separately, but share='embeddings'"),
        ({"optim": {"decoupled": True}, "generator": None}, "optim.decoupled is of two networks"),
        ({"objective": {"generator_steps": 3}}, "objective.generator_steps trains the networks separately"),
        ({"share": "nothing", "objective": {"adversarial": True}}, "add optim.decoupled"),
        ({"objective": {"adversarial": True, "generator_steps": 3}}, "leave out generator_steps"),
        ({"objective": {"adversarial": True, "kind": "replace_mlm"}}, "adversarial goes with kind=electra"),
        ({"objective": {"adversarial": True, "disallow_correct": True}}, "leave out disallow_correct"),
        ({"objective": {"generator_steps": 0}}, "generator_steps"),
        ({**TWO_STAGES, "steps": 3}, "leaves none of 3 steps"),
        ({**TWO_STAGES, "budget": "1h"}, "leave one out"),
        ({**TWO_STAGES, "fsdp": True}, "leave one out"),
        (
            {**TWO_STAGES, "generator": {**SMALL, "ffn_size": 16}},
            "generator.ffn_size is 16, discriminator.ffn_size 32; make them equal",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(tiny, changes, message):
    with pytest.raises(UserError, match=message):
        tiny("run", **changes)


def test_a_pair_of_your_own_is_asked_the_same(tiny):
    tied = begun(tiny("tied"))
    with pytest.raises(UserError, match=r"share body\.embeddings\.word\.weight; tie them with share='gdes'"):
        pretrain(tiny("a", share="nothing", optim=OPTIM), objective=tied)
    settings = {"mask_token_id": 4, "sep_token_id": 3}
    with pytest.raises(UserError, match="adversarial: generator and discriminator share"):
        Electra(tied.generator, tied.discriminator, adversarial=True, **settings)
    apart = begun(tiny("apart", share="nothing"))
    deceiving = Electra(apart.generator, apart.discriminator, adversarial=True, **settings)
    with pytest.raises(UserError, match=r"set optim\.decoupled"):
        pretrain(tiny("b", share="nothing"), objective=deceiving)
    with pytest.raises(UserError, match="generator_steps: cannot share the encoder: generator has hidden_size 16"):
        Electra(apart.generator, apart.discriminator, generator_steps=3, **settings)
    with pytest.raises(UserError, match="there is none: leave it out"):
        Electra("uniform", apart.discriminator, generator_steps=3, **settings)


# Two stages


@pytest.mark.parametrize("share", ["nothing", "gdes"])
def test_the_discriminator_starts_from_the_generator_which_then_stays_as_it_is(tiny, share):
    config = tiny("run", **{**TWO_STAGES, "share": share}, log_every=2, save_every=1, keep_last=10, valid_every=100)
    run = pretrain(config)
    at = [load_file(run.path / "checkpoints" / f"step_{step:07}" / "model.safetensors") for step in range(1, 6)]
    generator = {name for name in at[0] if is_generators(name)}
    for name in at[0]:
        # The first three are the generator's; its weights decay no more when it is frozen.
        changes = [not torch.equal(one[name], two[name]) for one, two in pairwise(at)]
        if name in generator:
            assert not any(changes[2:]), name
        else:
            assert not any(changes[:2]), name
    learned = {name for name in generator if not torch.equal(at[0][name], at[2][name])}
    assert "generator.body.embeddings.word.weight" in learned and "generator.body.layers.0.qkv.weight" in learned
    lines = run.metrics()
    assert [line["step"] for line in lines] == [2, 3, 4, 5]  # none is of both stages
    assert ["disc_loss" in line for line in lines] == [False, False, True, True]
    assert lines[0]["loss"] == pytest.approx(lines[0]["mlm_loss"])


@pytest.mark.parametrize("share", ["nothing", "gdes"])
def test_at_the_second_stage_both_bodies_compute_the_same(tiny, share):
    objective = begun(tiny("run", **{**TWO_STAGES, "share": share})).eval()
    ids = torch.randint(5, 120, (4, 32), generator=torch.Generator().manual_seed(0))
    assert not torch.equal(objective.generator.hidden(ids), objective.discriminator.hidden(ids))
    objective.begin_step(3)
    assert torch.equal(objective.generator.hidden(ids), objective.discriminator.hidden(ids))


def test_each_stage_has_a_schedule_of_its_own(tiny):
    optim = {"schedule": "linear", "lr": 1e-3, "warmup_steps": 1}
    run = pretrain(tiny("run", **TWO_STAGES, optim=optim, log_every=1, valid_every=100))
    rates = [line["lr"] for line in run.metrics()]
    assert rates == [1e-3, 1e-3, 5e-4, 1e-3, 1e-3]
