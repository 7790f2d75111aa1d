"""The gradient of a generator that deceives is that of the expected reward."""

import torch
from torch import Tensor, nn

from electrakit.model.networks import Generator
from electrakit.objective.electra import Electra
from electrakit.objective.predict_masked import Sampling
from electrakit.objective.reinforce import advantages, log_probabilities, with_gradient_of_reward
from tests.helpers.tiny_models import VOCAB, our_config

torch.set_num_threads(1)
SMALL = {"num_layers": 1, "hidden_size": 16, "ffn_size": 16, "num_heads": 1, "dropout": 0.0, "attention_dropout": 0.0}


def test_over_many_samples_it_is_the_gradient_of_the_expected_reward():
    """Two positions of a row, four tokens, one of which is never sampled; each position's reward depends on its own token."""
    torch.manual_seed(0)
    logits = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    table = torch.tensor([[0.1, 2.0, 0.5, 9.0], [1.0, 0.2, 0.3, 9.0]], dtype=torch.float64)
    sampling = Sampling(torch.zeros(1, 2), temperature=2.0, without=(3,))
    probabilities = (logits / 2).index_fill(-1, torch.tensor([3]), -torch.inf).softmax(-1)
    expected = torch.autograd.grad(-(probabilities * table).sum(-1).mean(), logits)[0]
    num_rows = 50_000
    sampled = torch.stack([torch.multinomial(row, num_rows, replacement=True) for row in probabilities.detach()], dim=1)
    rewards = table.gather(1, sampled.T).T
    counts = torch.ones(num_rows, 2, dtype=torch.bool)
    log_probs = log_probabilities(logits.expand(num_rows, 2, 4), sampled, sampling)
    found = torch.autograd.grad(with_gradient_of_reward(torch.tensor(7.0), log_probs, rewards, counts), logits)[0]
    torch.testing.assert_close(found, expected, rtol=0.03, atol=4e-3)


def test_the_value_is_the_loss_and_positions_that_do_not_count_have_no_gradient():
    log_probs = torch.tensor([[-1.0, -2.0, -torch.inf], [-1.0, -1.0, -1.0]], requires_grad=True)
    counts = torch.tensor([[True, True, False], [True, False, False]])
    loss = with_gradient_of_reward(torch.tensor(7.0), log_probs, torch.ones(2, 3).cumsum(-1), counts)
    assert loss.item() == 7.0
    loss.backward()
    # Rewards 1 and 2: each one's baseline is the other. The second row has no other position.
    torch.testing.assert_close(log_probs.grad, torch.tensor([[1 / 3, -1 / 3, 0.0], [0.0, 0.0, 0.0]]))


def test_the_baseline_is_that_of_the_row_whatever_the_micro_batch():
    rewards, counts = torch.rand(4, 5), torch.rand(4, 5) < 0.7
    assert torch.equal(
        advantages(rewards, counts), torch.cat([one_row(*pair) for pair in zip(rewards, counts, strict=True)])
    )


def one_row(rewards: Tensor, counts: Tensor) -> Tensor:
    return advantages(rewards[None], counts[None])


def rows(step: int) -> Tensor:
    """Each token is followed by the next number: (8, 16)."""
    first = torch.randint(5, VOCAB - 16, (8, 1), generator=torch.Generator().manual_seed(step))
    return first + torch.arange(16)


class Gullible(nn.Module):
    """Takes tokens below 50 for originals, all others for replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return torch.where(ids < 50, -self.scale, self.scale)[..., None]


def test_the_generator_learns_to_deceive():
    """It samples what this discriminator believes, and forgets the words; an honest one learns the words."""
    results = {}
    for is_adversarial in (True, False):
        torch.manual_seed(0)
        objective = Electra(
            Generator(our_config(**SMALL)), Gullible(), mask_token_id=4, num_tokens=VOCAB, adversarial=is_adversarial
        )
        optimizer = torch.optim.AdamW(objective.generator.parameters(), lr=1e-2)
        for step in range(40):
            output = objective(rows(step))
            optimizer.zero_grad()
            output.mlm_loss.backward()
            optimizer.step()
        tokens = output.corrupted[output.disc_labels]
        results[is_adversarial] = (tokens < 50).float().mean().item(), output.mlm_loss.item()
        assert (output.reward is not None) == is_adversarial
    assert results[True][0] > 0.9 and output.reward is None
    assert results[True][1] > results[False][1] + 0.3
