"""What ruined other implementations' results does not happen here.

Each test was seen to fail with the mistake put in; the comment under its name says which one line that was. (Ties, embeddings,
attention to padding and the optimizer's list are tested with the models.)
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from electrakit.config.network import NetworkConfig
from electrakit.model.networks import Discriminator, Generator
from electrakit.objective.electra import Electra
from electrakit.objective.mlm import AllTokensMLM, MaskedLM, ReplaceMLM
from electrakit.objective.output import EvaluationSums
from electrakit.objective.randomness import row_keys

torch.set_num_threads(1)
PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 40
TOKENS = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP]}


class Fixed(nn.Module):
    """The same scores for each token, whatever it reads; like a network, it can be told what is padding."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.scores.expand(*ids.shape, len(self.scores))


class ById(nn.Module):
    """A score for each id."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.scores[ids]


def rows(num_rows: int, length: int = 64) -> Tensor:
    ids = torch.randint(5, VOCAB, (num_rows, length), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def logits() -> Tensor:
    """The logits of a generator that is neither sure nor without a view."""
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))


def network(kind: type[nn.Module]) -> nn.Module:
    return kind(
        NetworkConfig(
            num_layers=1,
            num_heads=2,
            hidden_size=32,
            ffn_size=64,
            embedding_size=16,
            vocab_size=VOCAB,
            max_length=64,
            pad_token_id=PAD,
            sep_token_id=SEP,
        )
    )


def test_replacements_are_sampled_not_the_most_likely_token():
    # sample: return logits.argmax(-1)
    ids = rows(1000)
    electra = Electra(Fixed(logits()), ById(torch.zeros(VOCAB)), **TOKENS)
    out = electra(ids, row_keys(0, 0, range(1000)))
    written = out.corrupted.gather(-1, out.positions)[out.counts]
    wanted = logits().index_fill(0, torch.tensor([PAD]), -torch.inf).double().softmax(-1)
    counts = torch.bincount(written, minlength=VOCAB).double()
    assert counts[PAD] == 0
    assert stats.chisquare(counts[1:], wanted[1:] * len(written)).pvalue > 0.01


@pytest.mark.parametrize("name", ["electra", "electra_15", "masked_lm", "replace_mlm", "all_tokens_mlm"])
def test_padding_is_not_scored(name):
    # Electra.score: is_scored = ones; AllTokensMLM: ratio(losses, ones); the others: can_be_chosen that lets padding through
    torch.manual_seed(0)
    objective = {
        "electra": lambda: Electra(network(Generator), network(Discriminator), **TOKENS),
        "electra_15": lambda: Electra(network(Generator), network(Discriminator), loss_on="masked", **TOKENS),
        "masked_lm": lambda: MaskedLM(network(Generator), **TOKENS),
        "replace_mlm": lambda: ReplaceMLM(network(Generator), network(Generator), **TOKENS),
        "all_tokens_mlm": lambda: AllTokensMLM(network(Generator), network(Generator), **TOKENS),
    }[name]().eval()
    ids, keys = rows(8, 60), row_keys(0, 0, range(8))
    padded = torch.cat([ids, torch.full((8, 4), PAD)], -1)
    with torch.no_grad():
        plain, out = objective(ids, keys), objective(padded, keys)
    assert out.counts.sum() == plain.counts.sum()
    assert torch.equal(out.corrupted[:, 60:], padded[:, 60:])
    for metric, value in plain.metrics.items():
        torch.testing.assert_close(out.metrics[metric], value, rtol=1e-5, atol=1e-6, msg=metric)
    sums = (EvaluationSums().add(each).result() for each in (plain, out))
    assert next(sums) == pytest.approx(next(sums), rel=1e-5)


def test_special_tokens_are_scored():
    # Electra.score: is_scored = can_be_chosen(ids): the mean is over all real tokens, [CLS] and [SEP] included
    ids = rows(8)
    discriminator = ById(torch.zeros(VOCAB))
    unsure = logits().index_fill(0, torch.tensor([CLS]), -torch.inf)  # no [CLS] but the real ones
    out = Electra(Fixed(unsure), discriminator, **TOKENS)(ids)
    out.disc_loss.backward()
    assert torch.equal(out.is_scored, ids != PAD)
    assert discriminator.scores.grad[CLS] == pytest.approx(0.5 * 8 / ids.numel())  # sigmoid(0) - 0, for 8 of the tokens


@pytest.mark.parametrize(("logit", "share_called_replaced"), [(-3.0, 0.0), (3.0, 1.0)])
def test_accuracy_compares_the_logit_with_0(logit, share_called_replaced):
    # detection_metrics: predictions = logits.sigmoid() >= 0
    ids = rows(16)
    out = Electra(Fixed(logits()), ById(torch.full((VOCAB,), logit)), **TOKENS)(ids)
    assert out.disc_predictions.float().mean() == share_called_replaced
    wanted = out.replaced_rate if share_called_replaced else 1 - out.replaced_rate
    torch.testing.assert_close(out.disc_acc, wanted)
    assert EvaluationSums().add(out).result()["disc_acc"] == pytest.approx(wanted.item())


@pytest.mark.parametrize("kind", ["default", "official", "whole words"])
def test_every_position_of_full_rows_is_masked_equally_often(kind):
    # choose_positions: priority[:, :58], the last 9 % left out; choose_with_replacement: num_candidates * .91;
    # choose_words: order by position, so that choosing stops at the count. Words are of one token here.
    num_rows = 20_000
    more = {"official": {"official": True}, "whole words": {"is_continuation": torch.zeros(VOCAB, dtype=torch.bool)}}
    electra = Electra(Fixed(logits()), ById(torch.zeros(VOCAB)), **TOKENS, **more.get(kind, {}))
    ids = rows(num_rows)
    positions, counts, *_ = electra.masking(ids, electra.masking.draws(ids, row_keys(0, 0, range(num_rows))))
    hits = torch.bincount(positions[counts], minlength=64).numpy()
    assert hits[0] == hits[-1] == 0
    assert stats.chisquare(hits[1:-1]).pvalue > 0.01


def test_the_order_of_the_choices_says_nothing_about_the_position():
    # choose_positions: positions.sort(-1).values: those beyond the count would then always be the last ones of the row
    ids = rows(20_000)
    electra = Electra(Fixed(logits()), ById(torch.zeros(VOCAB)), **TOKENS)
    positions, *_ = electra.masking(ids, electra.masking.draws(ids, row_keys(0, 0, range(20_000))))
    for number in (0, positions.size(-1) - 1):
        hits = torch.bincount(positions[:, number], minlength=64).numpy()
        assert stats.chisquare(hits[1:-1]).pvalue > 0.01


@pytest.mark.parametrize("objective", [Electra, MaskedLM])
def test_random_tokens_are_put_at_chosen_positions_only(objective):
    # Masking.forward: torch.where(torch.rand(ids.shape) < self.random_share, random ids, inputs)
    ids = rows(200)
    if objective is Electra:
        model = Electra(Fixed(logits()), ById(torch.zeros(VOCAB)), num_tokens=VOCAB, random_token_prob=0.5, **TOKENS)
    else:
        model = MaskedLM(Fixed(logits()), num_tokens=VOCAB, **TOKENS)
    positions, counts, _, inputs, *_ = model.masking(ids, model.masking.draws(ids, row_keys(0, 0, range(200))))
    is_chosen = torch.zeros_like(ids).scatter_add(-1, positions, counts.long()) > 0
    assert torch.equal(inputs[~is_chosen], ids[~is_chosen])
    assert ((inputs != ids) & (inputs != MASK))[is_chosen].any()


def test_a_correct_sample_counts_as_original():
    # WithGenerator.forward: is_replaced = is_chosen(ids, positions, counts)
    ids = rows(50)
    sure_of_nine = torch.zeros(VOCAB).index_fill(0, torch.tensor([9]), 50.0)
    ids[:, 10:20] = 9
    out = Electra(Fixed(sure_of_nine), ById(torch.zeros(VOCAB)), **TOKENS)(ids, row_keys(0, 0, range(50)))
    is_chosen = torch.zeros_like(ids).scatter_add(-1, out.positions, out.counts.long()) > 0
    assert (is_chosen & (ids == 9)).any()
    assert not out.disc_labels[ids == 9].any()
    assert torch.equal(out.disc_labels, is_chosen & (ids != 9))


@pytest.mark.parametrize("name", ["electra", "masked_lm", "replace_mlm", "all_tokens_mlm"])
def test_every_parameter_moves_in_one_step(name):
    # WithGenerator.corrupt: mlm_loss.detach(); and in the test: the second of two loops over one named_parameters() iterator
    torch.manual_seed(0)
    objective = {
        "electra": lambda: Electra(network(Generator), network(Discriminator), **TOKENS),
        "masked_lm": lambda: MaskedLM(network(Generator), **TOKENS),
        "replace_mlm": lambda: ReplaceMLM(network(Generator), network(Generator), **TOKENS),
        "all_tokens_mlm": lambda: AllTokensMLM(network(Generator), network(Generator), **TOKENS),
    }[name]()
    names = dict(objective.named_parameters())
    no_decay = [parameter for parameter in names.values() if parameter.dim() < 2]
    decay = [parameter for parameter in names.values() if parameter.dim() >= 2]
    before = {name: parameter.detach().clone() for name, parameter in names.items()}
    optimizer = torch.optim.SGD([{"params": no_decay}, {"params": decay}], lr=0.1)
    objective(rows(8)).loss.backward()
    optimizer.step()
    still = [name for name, parameter in names.items() if torch.equal(parameter, before[name])]
    assert len(no_decay) > len(decay) > 0 and not still


def test_masked_rates_are_rates():
    # `if int(0.1)`: Masking.mask_tokens: if not int(self.random_share)
    ids = rows(400)
    electra = Electra(Fixed(logits()), ById(torch.zeros(VOCAB)), num_tokens=VOCAB, random_token_prob=0.1, **TOKENS)
    positions, counts, originals, inputs, *_ = electra.masking(
        ids, electra.masking.draws(ids, row_keys(0, 0, range(400)))
    )
    seen = inputs.gather(-1, positions)
    is_random = ((seen != MASK) & (seen != originals))[counts]
    assert is_random.float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert counts.sum() / ids.numel() == pytest.approx(0.15, abs=0.01)


def test_the_generator_sees_its_own_token_at_15_percent_of_the_chosen_positions_and_is_scored_there():
    # Masking.forward: counts = counts & (tokens != originals)
    ids = rows(400)
    electra = Electra(Fixed(logits()), ById(torch.zeros(VOCAB)), **TOKENS)
    positions, counts, originals, inputs, *_ = electra.masking(
        ids, electra.masking.draws(ids, row_keys(0, 0, range(400)))
    )
    is_own = (inputs.gather(-1, positions) == originals)[counts]
    assert is_own.float().mean().item() == pytest.approx(0.15, abs=0.02)
    assert counts.all() and np.unique(counts.sum(-1)).size == 1
