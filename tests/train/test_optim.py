"""Optimizers against slow references, and their parameter groups."""

import numpy as np
import pytest
import torch
from torch import nn

from electrakit import presets
from electrakit.config.optim import OptimConfig
from electrakit.model.gdes import GDESEmbedding
from electrakit.objective.build import build_objective
from electrakit.train.optim import RunOptimizer, orthogonalise, parameter_groups

SPECIAL = {"pad": 0, "cls": 2, "sep": 3, "mask": 4}
TRUE = torch.tensor(True)


class Two(nn.Module):
    """A matrix, which decays, and a bias, which does not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.bias = nn.Parameter(torch.randn(4))


def gradients(step: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(step)
    return chance.normal(size=(4, 3)), chance.normal(size=4)


def train(name: str, num_steps: int, lr: float = 0.01) -> Two:
    module = Two()
    optimizer = RunOptimizer(module, OptimConfig(name=name, lr=lr, weight_decay=0.1))
    for step in range(num_steps):
        weight, bias = gradients(step)
        module.weight.grad, module.bias.grad = torch.tensor(weight).float(), torch.tensor(bias).float()
        optimizer.step(lr * (1 - step / 40), TRUE)
    return module


def reference(
    num_steps: int, corrects: bool, has_trust: bool = False, lr: float = 0.01
) -> tuple[np.ndarray, np.ndarray]:
    """Adam in plain numpy: with or without bias correction, and with LAMB's scaling of what decays."""
    start = Two()
    found = []
    for number, parameter in enumerate((start.weight, start.bias)):
        value = parameter.detach().double().numpy().copy()
        decay = 0.1 if value.ndim > 1 else 0.0
        average, square = np.zeros_like(value), np.zeros_like(value)
        for step in range(num_steps):
            gradient = gradients(step)[number]
            average = 0.9 * average + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            scale = (1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)) if corrects else (1, 1)
            update = average / scale[0] / (np.sqrt(square / scale[1]) + 1e-6) + decay * value
            if has_trust and decay:
                update *= np.linalg.norm(value) / np.linalg.norm(update)
            value = value - lr * (1 - step / 40) * update
        found.append(value)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("official_adam", {"corrects": False}),
        ("adamw", {"corrects": True}),
        ("lamb", {"corrects": True, "has_trust": True}),
    ],
)
def test_twenty_steps_equal_plain_numpy(name, settings):
    module, (weight, bias) = train(name, 20), reference(20, **settings)
    np.testing.assert_allclose(module.weight.detach(), weight, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(module.bias.detach(), bias, rtol=2e-5, atol=2e-6)


def test_lamb_scales_without_decay_too():
    @torch.no_grad()
    def moved(name: str) -> float:
        module, start = Two(), Two()
        with torch.no_grad():
            module.weight *= 10
            start.weight *= 10
        optimizer = RunOptimizer(module, OptimConfig(name=name, lr=0.01, weight_decay=0.0))
        module.weight.grad, module.bias.grad = torch.ones(4, 3), torch.ones(4)
        optimizer.step(0.01, TRUE)
        return float((module.weight - start.weight).norm() / start.weight.norm())

    assert moved("lamb") == pytest.approx(0.01, rel=1e-3)
    assert moved("adamw") != pytest.approx(0.01, rel=1e-1)


def test_official_adam_is_not_adamw():
    official, corrected = train("official_adam", 5), train("adamw", 5)
    assert (official.bias - corrected.bias).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_muon_moves_a_matrix_by_a_rotation(dtype):
    torch.manual_seed(0)
    matrices = torch.randn(3, 16, 8) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    orthogonal = orthogonalise(matrices.to(dtype)).float()
    values = torch.linalg.svdvals(orthogonal)
    assert values.min() > 0.6 and values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    similarity = (orthogonal * (u @ v)).sum((-2, -1)) / (orthogonal.norm(dim=(-2, -1)) * (u @ v).norm(dim=(-2, -1)))
    assert similarity.min() > 0.97  # the nearest rotation, not just any


def orthogonal_by_numpy(matrix: np.ndarray) -> np.ndarray:
    """Newton and Schulz's iteration with the numbers of Jordan et al. 2024."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal_by_numpy(matrix.T).T
    matrix = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        gram = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.7750 * gram + 2.0315 * gram @ gram) @ matrix
    return matrix


def test_muon_steps_equal_plain_numpy():
    """Nesterov's momentum of 0.95, each stacked matrix orthogonalised by itself, Liu et al.'s scale, decay, and AdamW for the rest."""
    torch.manual_seed(0)
    objective = build_objective(presets.tiny(vocab_size=50), SPECIAL)
    layer = objective.discriminator.body.layers[0]
    watched = {layer.qkv.weight: 3, layer.ffn_in.weight: 1, layer.ffn_out.weight: 1}
    values = {one: one.detach().double().numpy().copy() for one in watched}
    momenta = {one: np.zeros_like(value) for one, value in values.items()}
    optimizer = RunOptimizer(objective, OptimConfig(name="muon", weight_decay=0.1))
    for lr in (0.02, 0.01, 0.03):
        for parameter in objective.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(lr, TRUE)
        for one, num_stacked in watched.items():
            gradient = one.grad.double().numpy()
            momenta[one] = 0.95 * momenta[one] + 0.05 * gradient
            parts = np.split(0.05 * gradient + 0.95 * momenta[one], num_stacked)
            scale = 0.2 * max(parts[0].shape) ** 0.5
            update = scale * np.concatenate([orthogonal_by_numpy(part) for part in parts])
            values[one] = values[one] - lr * 0.1 * values[one] - lr * update
    for one, value in values.items():
        np.testing.assert_allclose(one.detach(), value, rtol=1e-4, atol=1e-5)


def test_muon_in_bf16_takes_almost_the_step_of_float32():
    steps = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        objective = build_objective(presets.tiny(vocab_size=50), SPECIAL)
        optimizer = RunOptimizer(objective, OptimConfig(name="muon", weight_decay=0.0), muon_dtype=dtype)
        before = {name: one.detach().clone() for name, one in objective.named_parameters()}
        for parameter in objective.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(0.01, TRUE)
        assert all(one.dtype == torch.float32 for one in (*objective.parameters(), *optimizer.state().values()))
        steps.append({name: one.detach() - before[name] for name, one in objective.named_parameters()})
    for name, step in steps[0].items():
        is_matrix = ".layers." in name and step.ndim == 2
        assert (steps[1][name] - step).norm() <= (0.1 if is_matrix else 0.0) * step.norm(), name
    assert any(not torch.equal(steps[1][name], step) for name, step in steps[0].items())


def test_muon_orthogonalises_query_key_and_value_each_by_itself():
    objective = build_objective(presets.modern_tiny(vocab_size=50), SPECIAL)
    groups = parameter_groups(objective, 0.01, has_muon=True)
    stacked = {group["num_stacked"]: group for group in groups if group["is_for_muon"]}
    layer = objective.discriminator.body.layers[0]
    assert any(each is layer.qkv.weight for each in stacked[3]["params"])
    assert any(each is layer.ffn_in.weight for each in stacked[2]["params"])
    assert any(each is layer.ffn_out.weight for each in stacked[1]["params"])


@pytest.mark.parametrize("preset", sorted(presets.PRESETS))
@pytest.mark.parametrize("has_muon", [False, True])
def test_every_parameter_is_in_exactly_one_group_and_tied_ones_once(preset, has_muon):
    with torch.device("meta"):  # no memory, no time
        objective = build_objective(presets.PRESETS[preset](), SPECIAL)
    groups = parameter_groups(objective, 0.01, has_muon)
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(parameter) for parameter in objective.parameters()}
    for group in groups:
        for parameter in group["params"]:
            assert (group["weight_decay"] == 0) == (parameter.ndim < 2)


def test_biases_and_norms_do_not_decay_and_all_else_does():
    objective = build_objective(presets.tiny(vocab_size=50), SPECIAL)
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    without = {
        names[id(one)]
        for group in parameter_groups(objective, 0.1)
        if not group["weight_decay"]
        for one in group["params"]
    }
    assert without == {name for name in names.values() if "bias" in name or "norm" in name}


@pytest.mark.parametrize("name", ["official_adam", "adamw", "lamb", "muon"])
def test_a_step_without_a_finite_gradient_changes_nothing(name):
    objective = build_objective(presets.modern_tiny(vocab_size=50), SPECIAL)
    optimizer = RunOptimizer(objective, OptimConfig(name=name))
    for parameter in objective.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    before = {key: value.clone() for key, value in {**objective.state_dict(), **optimizer.state()}.items()}
    optimizer.step(0.1, torch.tensor(False))
    for key, value in {**objective.state_dict(), **optimizer.state()}.items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", ["official_adam", "adamw", "lamb", "muon"])
def test_good_and_bad_steps_without_looking_as_on_a_gpu_equal_those_with_looking(name):
    """A GPU decides by itself; the CPU obeys the same number."""
    found = []
    for can_look in (True, False):
        torch.manual_seed(0)
        objective = build_objective(presets.modern_tiny(vocab_size=50), SPECIAL)
        optimizer = RunOptimizer(objective, OptimConfig(name=name))
        optimizer.can_look = can_look
        for is_finite in (True, False, True, True):
            for parameter in objective.parameters():
                parameter.grad = torch.randn_like(parameter) if is_finite else torch.full_like(parameter, torch.nan)
            optimizer.step(0.01, torch.tensor(is_finite))
        found.append({**objective.state_dict(), **optimizer.state()})
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


@pytest.mark.parametrize("name", ["official_adam", "adamw", "lamb", "muon"])
def test_state_goes_out_and_in(name):
    def make() -> tuple[nn.Module, RunOptimizer]:
        torch.manual_seed(0)
        objective = build_objective(presets.modern_tiny(vocab_size=50), SPECIAL)
        return objective, RunOptimizer(objective, OptimConfig(name=name))

    (one, first), (two, second) = make(), make()

    def step(objective: nn.Module, optimizer: RunOptimizer, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in objective.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step(0.01, TRUE)

    step(one, first, 1)
    two.load_state_dict(one.state_dict())
    second.load_state({key: value.clone() for key, value in first.state().items()})
    step(one, first, 2)
    step(two, second, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_difference_that_begins_at_zero_moves_with_lamb_as_far_as_with_adam():
    words = [nn.Embedding(6, 4) for _ in range(2)]
    pair = nn.ModuleList([words[0], GDESEmbedding(words[1], words[0])])
    optimizer = RunOptimizer(pair, OptimConfig(name="lamb", lr=0.01, weight_decay=0.0))
    for _ in range(10):
        pair[1].delta.grad = torch.ones(6, 4)
        optimizer.step(0.01, TRUE)
    torch.testing.assert_close(pair[1].delta, torch.full((6, 4), -0.1), rtol=1e-3, atol=0)
