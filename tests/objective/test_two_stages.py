"""A generator that is trained first, and a discriminator that starts from it."""

import pytest
import torch

from electrakit.model.networks import Discriminator, Generator
from electrakit.objective.electra import Electra
from electrakit.objective.randomness import row_keys
from tests.helpers.tiny_models import VOCAB, our_config

torch.set_num_threads(1)
SMALL = {"num_layers": 1, "hidden_size": 16, "ffn_size": 16, "num_heads": 1, "dropout": 0.0, "attention_dropout": 0.0}


def test_both_stages_learn():
    """Rows of eight words: the generator finds out which, the discriminator that all others are replaced."""
    torch.manual_seed(0)
    config, first_stage = our_config(**SMALL), 30
    objective = Electra(
        Generator(config), Discriminator(config), mask_token_id=4, num_tokens=VOCAB, generator_steps=first_stage
    )
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-2)
    words, found = [], []
    for step in range(2 * first_stage):
        objective.begin_step(step)
        output = objective(torch.randint(5, 13, (8, 16)))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        if step < first_stage:
            words.append(output.mlm_loss.item())
            assert output.disc_loss is None and objective.discriminator.score.weight.grad is None
        else:
            found.append(output.disc_loss.item())
            assert objective.generator.output_bias.grad is None
    assert words[-1] < words[0] - 0.3
    assert found[-1] < found[0] - 0.1


def test_a_validation_measures_both_networks_in_both_stages():
    config = our_config(**SMALL)
    objective = Electra(Generator(config), Discriminator(config), mask_token_id=4, num_tokens=VOCAB, generator_steps=3)
    objective.eval()
    for step in (0, 3):
        objective.begin_step(step)
        output = objective(torch.randint(5, VOCAB, (2, 16)))
        torch.testing.assert_close(output.loss, output.mlm_loss + 50 * output.disc_loss)


@pytest.mark.long
def test_compiled_both_stages_compute_the_same():
    config, results = our_config(**SMALL), []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        pair = Generator(config), Discriminator(config)
        objective = Electra(*pair, mask_token_id=4, num_tokens=VOCAB, generator_steps=1)
        call = torch.compile(objective, fullgraph=True, backend="aot_eager") if is_compiled else objective
        for step in (0, 1):
            objective.begin_step(step)
            objective.zero_grad()
            output = call(torch.full((2, 16), 7), row_keys(0, step, range(2)))
            output.loss.backward()
            results.append((output.loss, [one.grad for one in objective.parameters() if one.grad is not None]))
    torch.testing.assert_close(results[:2], results[2:])
