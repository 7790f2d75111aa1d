"""The same weights and the same draws: the same positions, ids, labels, losses and gradients as a slow reference."""

import copy

import pytest
import torch

from electrakit.config.network import NetworkConfig
from electrakit.model.networks import Discriminator, Generator
from electrakit.objective.electra import Electra
from electrakit.objective.randomness import draw, row_keys
from tests.parity.official_step import official_step

torch.set_num_threads(1)
PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 300
# Few, so that the generator samples some of them: then a chosen token is not a replaced one.
WORDS = torch.arange(5, VOCAB, 20)


def rows_of_text() -> torch.Tensor:
    """Two segments, one segment, a short row, one with [MASK] in its text, one with a single word."""
    torch.manual_seed(1)
    ids = WORDS[torch.randint(len(WORDS), (6, 64))]
    ids[:, 0], ids[:, -1], ids[0, 30] = CLS, SEP, SEP
    ids[2, 12], ids[2, 13:] = SEP, PAD
    ids[3, 5:20] = MASK
    ids[4, 2], ids[4, 3:] = SEP, PAD
    return ids


def pair(body: str) -> tuple[Generator, Discriminator]:
    torch.manual_seed(0)
    small = {
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": VOCAB,
        "max_length": 64,
        "pad_token_id": PAD,
        "sep_token_id": SEP,
    }
    small |= {"dropout": 0.0, "attention_dropout": 0.0, "body": body}
    size = {"classic": 24, "modern": 32}[body]
    generator = Generator(NetworkConfig(hidden_size=32, ffn_size=64, embedding_size=size, **small))
    discriminator = Discriminator(NetworkConfig(hidden_size=32, ffn_size=64, embedding_size=size, **small))
    generator.body.embeddings = discriminator.body.embeddings  # shared: both losses meet in these gradients
    for parameter in [*generator.parameters(), *discriminator.parameters()]:
        torch.nn.init.normal_(parameter, std=0.3)  # far from uniform, so that a wrong sample shows
    with torch.no_grad():
        generator.output_bias[WORDS] += 8.0
    return generator, discriminator


@pytest.mark.parametrize("body", ["classic", "modern"])
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_step_equals_the_slow_reference(body, official, seed):
    generator, discriminator = pair(body)
    ids, draws = rows_of_text(), draw(row_keys(seed, 7, range(6)), 64, 9)
    tokens = {"mask_token_id": MASK, "pad_token_id": PAD, "sep_token_id": SEP, "mask_ignore_token_ids": [CLS, SEP]}
    electra = Electra(generator, discriminator, official=official, **tokens)
    slow_electra = copy.deepcopy(electra)

    output = electra(ids, draws)
    output.loss.backward()
    slow = official_step(
        slow_electra.generator,
        slow_electra.discriminator,
        ids,
        draws,
        official=official,
        pad=PAD,
        cls=CLS,
        sep=SEP,
        mask=MASK,
    )
    slow["loss"].backward()

    chosen = [row[counts].tolist() for row, counts in zip(output.positions, output.counts, strict=True)]
    assert chosen == slow["chosen"]
    assert electra.masking(ids, draws).inputs.tolist() == slow["masked"]
    assert output.corrupted.tolist() == slow["corrupted"]
    assert output.disc_labels.long().tolist() == slow["labels"]
    assert 0 < slow["sampled_acc"] < 1
    assert output.sampled_acc.item() == pytest.approx(slow["sampled_acc"])
    for name in ("mlm_loss", "disc_loss", "loss"):
        torch.testing.assert_close(getattr(output, name).double(), slow[name].double(), rtol=1e-5, atol=1e-5)
    slow_gradients = {name: parameter.grad for name, parameter in slow_electra.named_parameters()}
    assert len(slow_gradients) > 30
    for name, parameter in electra.named_parameters():
        scale = slow_gradients[name].abs().max().clamp(min=1)  # the loss is 50 times a mean: gradients are far above 1
        torch.testing.assert_close(parameter.grad / scale, slow_gradients[name] / scale, rtol=1e-5, atol=1e-5)


def test_the_official_choice_hits_positions_twice_and_ours_does_not():
    """The official code: 13.8 % really masked, 7 % of these hit twice, at 128 tokens."""
    torch.manual_seed(0)
    ids = torch.randint(5, VOCAB, (4000, 128))
    ids[:, 0], ids[:, 60], ids[:, -1] = CLS, SEP, SEP
    tokens = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP], "num_tokens": VOCAB}
    rates = {}
    for official in (False, True):
        electra = Electra("uniform", torch.nn.Embedding(VOCAB, 1), official=official, **tokens)
        positions, counts, *_ = electra.masking(ids, electra.masking.draws(ids, row_keys(0, 0, range(4000))))
        assert counts.all() and positions.shape == (4000, 19)
        hits = torch.zeros_like(ids).scatter_add(-1, positions, counts.long())
        rates[official] = ((hits > 0).float().mean().item(), ((hits > 1).sum() / (hits > 0).sum()).item())
    assert rates[False] == (19 / 128, 0)
    assert rates[True] == pytest.approx((0.138, 0.07), abs=0.003)
