"""Electric: its towers do not see what they predict, its loss is the paper's formula, and its optimum is the language itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.config.pretrain import override
from electrakit.model.networks import Discriminator, Generator, use_kernels
from electrakit.model.tie import tie
from electrakit.model.two_tower import TwoTower
from electrakit.objective.build import build_objective
from electrakit.objective.electric import Electric
from electrakit.objective.output import EvaluationSums
from electrakit.objective.randomness import row_keys

PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 30
TOKENS = {"pad_token_id": PAD, "mask_token_id": MASK, "mask_ignore_token_ids": [CLS, SEP]}
SIZE = NetworkConfig(
    vocab_size=VOCAB,
    num_layers=2,
    hidden_size=16,
    ffn_size=32,
    num_heads=2,
    embedding_size=16,
    max_length=24,
    sep_token_id=SEP,
    pad_token_id=PAD,
    dropout=0.0,
    attention_dropout=0.0,
)


def rows(num_rows: int = 4, length: int = 20) -> torch.Tensor:
    ids = torch.randint(5, VOCAB, (num_rows, length), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    ids[1:2, 12:] = PAD
    return ids


@pytest.mark.parametrize("body", ["classic", "modern"])
def test_each_prediction_depends_on_all_other_tokens_and_not_on_its_own(body):
    torch.manual_seed(0)
    network, ids = TwoTower(replace(SIZE, body=body)).eval(), rows(1, 10)
    for place in {*range(1, 9)} - {5}:  # [SEP], after which the segments change, is not predicted
        changed = ids.clone()
        changed[0, place] = 29 if ids[0, place] != 29 else 28
        difference = (network(changed) - network(ids)).abs().amax(-1)[0]
        assert difference[place] == 0
        assert (difference > 0).sum() == 9


def test_a_body_whose_attention_cannot_be_one_sided_is_refused():
    with pytest.raises(UserError, match=r"body is 'deberta': a two-tower model is classic or modern"):
        TwoTower(NetworkConfig(body="deberta", hidden_size=128, embedding_size=128))


def test_a_row_without_special_tokens_does_not_see_its_ends_either():
    network, ids = TwoTower(SIZE).eval(), torch.randint(5, VOCAB, (1, 6), generator=torch.Generator().manual_seed(1))
    for place in (0, 5):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] - 4) % 20 + 5
        assert torch.equal(network(changed)[0, place], network(ids)[0, place])


def test_padding_changes_nothing():
    network, ids = TwoTower(SIZE).eval(), rows()
    torch.testing.assert_close(network(ids[1:2, :12]), network(ids)[1:2, :12])


def test_both_towers_share_the_discriminators_embeddings():
    network, discriminator = TwoTower(SIZE), Discriminator(SIZE)
    tie(network, discriminator)
    for tower in (network.body, network.right_to_left):
        assert tower.embeddings.word.weight is discriminator.body.embeddings.word.weight
        assert tower.embeddings.position.weight is discriminator.body.embeddings.position.weight
    assert network.body.layers[0].qkv.weight is not network.right_to_left.layers[0].qkv.weight


def test_the_loss_is_that_of_the_paper():
    """In numpy, a token at a time: P(noise) = k q / (k q + (n - k) exp(-E)), and the noise model's likelihood."""
    torch.manual_seed(0)
    electric, ids = Electric(TwoTower(SIZE), Discriminator(SIZE), **TOKENS, gen_weight=2.0, disc_weight=3.0), rows()
    nn.init.normal_(electric.generator.output_bias)
    out = electric.eval()(ids, row_keys(0, 0, range(4)))
    logits = electric.generator(ids).detach().double().numpy()
    logits[..., [PAD, CLS, SEP, MASK]] = -np.inf
    noise = np.exp(logits - np.logaddexp.reduce(logits, -1, keepdims=True))
    energies = electric.discriminator(out.corrupted).detach().double().numpy()
    likelihoods, losses = [], []
    for row, tokens in enumerate(ids.numpy()):
        scored = [place for place, token in enumerate(tokens) if token > MASK]
        chosen = {int(place) for place in out.positions[row][out.counts[row]]}
        n, k = len(scored), len(chosen)
        assert 0 < k < n
        for place in scored:
            token = int(out.corrupted[row, place])
            assert place in chosen or token == tokens[place]
            q, p = noise[row, place, token], np.exp(-energies[row, place])
            chance = k * q / (k * q + (n - k) * p)
            losses.append(-np.log(chance if place in chosen else 1 - chance))
            likelihoods.append(np.log(noise[row, place, tokens[place]]))
    assert out.disc_loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert out.mlm_loss.item() == pytest.approx(-np.mean(likelihoods), rel=1e-5)
    assert out.loss.item() == pytest.approx(2 * out.mlm_loss.item() + 3 * out.disc_loss.item(), rel=1e-6)
    assert out.num_tokens.tolist() == [len(losses)] * 2
    sums = EvaluationSums().add(out).result()
    assert sums["mlm_loss"] == pytest.approx(out.mlm_loss.item()) and sums["disc_loss"] == pytest.approx(
        out.disc_loss.item()
    )


def test_each_network_learns_from_its_own_loss_only():
    torch.manual_seed(0)
    electric, ids = Electric(TwoTower(SIZE), Discriminator(SIZE), **TOKENS), rows()
    electric(ids).disc_loss.backward()
    assert all(weight.grad is None for weight in electric.generator.parameters())
    electric.zero_grad()
    electric(ids).mlm_loss.backward()
    assert all(weight.grad is None for weight in electric.discriminator.parameters())


def test_energies_begin_where_every_token_is_equally_likely():
    config = override(presets.tiny(), {"objective": {"kind": "electric"}, "vocab_size": 1_000})
    built = build_objective(config, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}).eval()
    ids = torch.randint(5, 1_000, (2, 20))
    assert built.replaced_logits(ids).mean().item() == pytest.approx(np.log(1_000), abs=1)


class TripleEnergies(nn.Module):
    """A table: the energy of each token between each two neighbours."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.num_tokens, self.table = num_tokens, nn.Embedding(num_tokens**3, 1)
        nn.init.constant_(self.table.weight, 1.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        before, after = ids.roll(1, -1), ids.roll(-1, -1)
        return self.table((before * self.num_tokens + ids) * self.num_tokens + after).squeeze(-1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*not told what is padding")
def test_the_energies_of_a_known_language_are_its_log_probabilities():
    """A Markov chain: the probability of a token among all others is that of its two steps, over those of all tokens there."""
    torch.manual_seed(0)
    num_words, length = 4, 22
    steps = torch.softmax(1.5 * torch.randn(num_words, num_words), -1)
    both = steps[:, :, None] * steps[None]  # before, token, after
    truth = (both / both.sum(1, keepdim=True)).log()

    def sentences(num_rows: int) -> torch.Tensor:
        words = [torch.randint(num_words, (num_rows,))]
        for _ in range(length - 3):
            words.append(torch.multinomial(steps[words[-1]], 1)[:, 0])
        ends = (torch.full((num_rows,), CLS), torch.full((num_rows,), SEP))
        return torch.stack([ends[0], *(word + 5 for word in words), ends[1]], -1)

    size = replace(SIZE, vocab_size=5 + num_words, num_layers=1)
    # One noise token in a row: the neighbours of the others are almost always the data's.
    electric = Electric(TwoTower(size), TripleEnergies(9), **TOKENS, sep_token_id=SEP, mask_prob=0.05, disc_weight=5.0)
    slow = [weight for name, weight in electric.named_parameters() if name.startswith("generator")]
    groups = [{"params": slow, "lr": 1e-2}, {"params": electric.discriminator.parameters()}]
    optimizer = torch.optim.Adam(groups, lr=1e-1)
    num_steps = 200
    for step in range(num_steps):
        optimizer.param_groups[1]["lr"] = 1e-1 * (1 - step / num_steps)
        optimizer.zero_grad()
        out = electric(sentences(96))
        out.loss.backward()
        optimizer.step()
    table = -electric.discriminator.model.table.weight.view(9, 9, 9)[5:, 5:, 5:].detach()
    weights = both / both.sum()
    error = ((table - truth).abs() * weights).sum().item()
    pairs = torch.stack([table.flatten(), truth.flatten()])
    covariance = torch.cov(pairs, aweights=weights.flatten())
    correlation = (covariance[0, 1] / covariance.diag().prod().sqrt()).item()
    # Normalised by itself: nothing but the loss has made the sum 1.
    totals = (table.exp().sum(1) * both.sum(1) / both.sum()).sum().item()
    assert error < 0.15 and correlation > 0.97 and totals == pytest.approx(1, abs=0.1)


def test_what_electric_cannot_do_is_said():
    with pytest.raises(UserError, match="two_tower"):
        Electric(Generator(SIZE), Discriminator(SIZE), **TOKENS)
    for changes, words in [
        ({"objective": {"temperature": 2.0}}, "objective.temperature is 2.0"),
        ({"objective": {"disallow_correct": True}}, "disallow_correct"),
        ({"objective": {"loss_on": "masked"}}, "use loss_on=all"),
        ({"objective": {"official": True}}, "official"),
        ({"generator": None}, "generator=None"),
        ({"ngrams": True}, "ngrams"),
        ({"init_generator": "x"}, "init_generator"),
        ({"share": "layers", "generator": {"hidden_size": 256, "num_heads": 4, "ffn_size": 1024}}, "share='layers'"),
        ({"generator": {"body": "bert", "hidden_size": 128}}, "classic or modern"),
    ]:
        with pytest.raises(UserError, match=words):
            presets.electric_small(**changes)


@pytest.mark.parametrize("is_training", [True, False])
def test_with_kernels_the_noise_model_computes_the_same(is_training, monkeypatch):
    """Also a few tokens at a time."""
    monkeypatch.setattr("electrakit.objective.electric.MAX_LOGITS", 7 * VOCAB)
    outputs, gradients = [], []
    for is_fast in (False, True):
        torch.manual_seed(0)
        electric, ids = Electric(TwoTower(SIZE), Discriminator(SIZE), **TOKENS), rows()
        nn.init.normal_(electric.generator.output_bias)
        assert use_kernels(electric, is_fast) == is_fast
        with torch.set_grad_enabled(is_training):
            outputs.append(electric(ids, row_keys(0, 0, range(4))))
        if is_training:
            outputs[-1].loss.backward()
        gradients.append({name: one.grad for name, one in electric.named_parameters() if one.grad is not None})
    assert torch.equal(outputs[0].corrupted, outputs[1].corrupted) and (outputs[0].corrupted != ids).any()
    torch.testing.assert_close(outputs[1].metrics, outputs[0].metrics, rtol=1e-5, atol=1e-6)
    assert gradients[0].keys() == gradients[1].keys() and bool(gradients[0]) == is_training
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-4, atol=1e-6, msg=name)


def test_in_bf16_the_kernel_is_close_to_float32():
    losses, gradients = [], []
    for is_half in (False, True):
        torch.manual_seed(0)
        electric, ids = Electric(TwoTower(SIZE), Discriminator(SIZE), **TOKENS), rows()
        use_kernels(electric)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            output = electric(ids, row_keys(0, 0, range(4)))
        output.mlm_loss.backward()
        losses.append(output.mlm_loss.item())
        gradients.append(electric.generator.body.embeddings.word.weight.grad.flatten())
    assert losses[0] == pytest.approx(losses[1], rel=1e-2) and losses[0] != losses[1]
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99
