"""Correction, counts beside or instead of a generator, [MASK] for the discriminator, and a temperature that changes."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.model.networks import Discriminator, Generator, use_kernels
from electrakit.model.ngrams import WEIGHTS, Neighbours, NGrams
from electrakit.objective.electra import Electra
from electrakit.objective.randomness import row_keys
from tests.helpers.tiny_rows import MASK, PAD, TOKENS, VOCAB, rows
from tests.helpers.tiny_rows import SIZE as WITH_DROPOUT

SIZE = replace(WITH_DROPOUT, dropout=0.0, attention_dropout=0.0)


def ngrams() -> NGrams:
    """Of text in which each token is often followed by the next number."""
    tokens = torch.arange(VOCAB)
    words = (tokens + 1) % VOCAB
    after = Neighbours(torch.arange(VOCAB + 1), words.int(), torch.full((VOCAB,), 900).int())
    nothing = Neighbours(torch.zeros(VOCAB + 1).long(), torch.zeros(0).int(), torch.zeros(0).int())
    places = {sign * distance: nothing for distance in WEIGHTS for sign in (-1, 1)} | {-1: after}
    return NGrams(torch.full((VOCAB,), 1000), places, PAD)


def with_corrector(**more) -> Electra:
    torch.manual_seed(0)
    generator = more.pop("generator", None) or Generator(SIZE)
    discriminator, corrector = Discriminator(SIZE), Generator(SIZE)
    corrector.body = discriminator.body
    return Electra(generator, discriminator, corrector=corrector, correct_weight=2.0, **TOKENS, **more)


def keys(ids: torch.Tensor) -> torch.Tensor:
    return row_keys(0, 0, range(len(ids)))


def test_correction_is_the_cross_entropy_of_the_originals_given_the_corrupted_rows():
    electra, ids = with_corrector().eval(), rows()
    output = electra(ids, keys(ids))
    logits = electra.corrector(output.corrupted, output.positions)
    targets = ids.gather(1, output.positions).masked_fill(~output.counts, -100)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(output.correct_loss, expected)
    parts = output.mlm_loss + 50 * output.disc_loss + 2 * output.correct_loss
    torch.testing.assert_close(output.loss, parts)
    is_right = (logits.argmax(-1) == ids.gather(1, output.positions)) & output.counts
    assert output.correct_acc.item() == pytest.approx(is_right.sum().item() / output.counts.sum().item())


def test_with_kernels_correction_and_counts_give_the_same_losses_and_gradients():
    results = []
    for is_wanted in (False, True):
        electra, ids = with_corrector(ngrams=ngrams(), keep_mask_prob=0.3), rows()
        use_kernels(electra, is_wanted)
        output = electra(ids, keys(ids))
        output.loss.backward()
        results.append((output, {name: weight.grad for name, weight in electra.named_parameters()}))
    (plain, gradients), (fused, others) = results
    assert torch.equal(plain.corrupted, fused.corrupted)
    for name in ("loss", "mlm_loss", "disc_loss", "correct_loss"):
        torch.testing.assert_close(getattr(fused, name), getattr(plain, name), rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_the_corrector_shares_the_discriminators_body():
    electra = with_corrector()
    ids = rows()
    electra.zero_grad()
    electra(ids, keys(ids)).correct_loss.backward()
    moved = {name for name, weight in electra.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert any(name.startswith("discriminator.body") for name in moved)
    assert not any(name.startswith(("generator", "discriminator.score")) for name in moved)
    with pytest.raises(UserError, match=r"corrector\.body = discriminator\.body"):
        Electra(Generator(SIZE), Discriminator(SIZE), corrector=Generator(SIZE), correct_weight=1.0, **TOKENS)


def test_where_the_discriminator_reads_mask_it_corrects_but_does_not_detect():
    electra, ids = with_corrector(keep_mask_prob=0.5), rows(num_rows=40)
    output = electra(ids, keys(ids))
    is_mask = output.attended & ~output.is_scored
    assert (output.corrupted[is_mask] == MASK).all()
    is_chosen = torch.zeros_like(is_mask).scatter_(1, output.positions, output.counts)
    assert (is_mask <= is_chosen).all()
    assert 0.4 < is_mask.sum() / is_chosen.sum() < 0.6
    assert not (is_mask & output.disc_labels).any()
    assert output.num_tokens[1] == output.is_scored.sum()


def test_a_generator_with_counts_learns_what_they_leave_over():
    electra, ids = with_corrector(ngrams=ngrams()).eval(), rows()
    output = electra(ids, keys(ids))
    masked = electra.mask(ids, keys(ids)).masked
    logits = electra.generator(masked.inputs, masked.positions) + electra.ngrams(masked.inputs, masked.positions)
    targets = masked.originals.masked_fill(~masked.counts, -100)
    torch.testing.assert_close(output.mlm_loss, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


@pytest.mark.parametrize("kernels", [False, True])
def test_counts_alone_sample_by_the_neighbours(kernels):
    electra = with_corrector(generator=ngrams())
    use_kernels(electra, kernels)
    ids = torch.full((400, 12), 20)
    output = electra(ids, keys(ids))
    assert output.mlm_loss is None and electra.generator is None
    chosen = output.corrupted.gather(1, output.positions)[output.counts]
    beside = output.positions[output.counts] > 0
    # p(21) = (900 + 1000 / V) / (900 + 1000), unless the token before is masked too
    assert 0.3 < (chosen[beside] == 21).float().mean() < 0.55
    torch.testing.assert_close(output.loss, 50 * output.disc_loss + 2 * output.correct_loss)


def test_the_temperature_changes_with_the_progress_of_the_run():
    electra = with_corrector(temperature=4.0, final_temperature=1.0)
    assert float(electra.temperature) == 4.0
    electra.set_progress(0.5)
    assert float(electra.temperature) == 2.5
    electra.set_progress(1.0)
    same, ids = with_corrector(temperature=1.0), rows()
    for one in (electra, same):
        use_kernels(one, False)
    assert torch.equal(electra(ids, keys(ids)).corrupted, same(ids, keys(ids)).corrupted)
    assert "temperature" not in electra.state_dict()


@pytest.mark.parametrize("kernels", [False, True])
def test_a_high_temperature_samples_words_by_their_frequency(kernels):
    torch.manual_seed(0)
    frequencies = torch.full((VOCAB,), -30.0)
    frequencies[-1] = 0.0  # hardly any other word
    electra = Electra(
        Generator(SIZE), Discriminator(SIZE), temperature=1e4, log_frequencies=frequencies, mask_prob=0.5, **TOKENS
    )
    use_kernels(electra, kernels)
    ids = rows()
    out = electra(ids, keys(ids))
    assert (out.corrupted.gather(1, out.positions)[out.counts] == VOCAB - 1).all()


def test_frequencies_of_another_vocabulary_are_refused():
    with pytest.raises(UserError, match=f"log_frequencies are .7,.; one for each of the {VOCAB} tokens"):
        Electra(Generator(SIZE), Discriminator(SIZE), log_frequencies=torch.zeros(7), **TOKENS)
    with pytest.raises(UserError, match="must be finite"):
        Electra(Generator(SIZE), Discriminator(SIZE), log_frequencies=torch.zeros(VOCAB).log(), **TOKENS)
