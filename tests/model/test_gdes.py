"""The discriminator's words are the generator's plus a difference: each loss moves its own, and what is saved is the sum."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForTokenClassification

from electrakit.common.errors import UserError
from electrakit.model.gdes import GDESEmbedding, gdes_tables, merge
from electrakit.model.huggingface.adapt import unwrap
from electrakit.model.huggingface.weights import to_transformers
from electrakit.model.networks import Discriminator, Generator, use_kernels
from electrakit.model.tie import shared_parameters, state_once, tie
from electrakit.objective.electra import Electra
from electrakit.objective.randomness import row_keys
from tests.helpers.tiny_models import VOCAB, our_config, tiny_discriminator, tiny_generator, x_transformer

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*has two segments, but no sep_token_id", "ignore:.*is not told what is padding"
)


class Plain(nn.Module):
    """A module of the user's own: ids to logits, of words or of one number."""

    def __init__(self, num_out: int, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.mix = nn.Linear(width, num_out)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.words(ids)
        return self.mix(torch.tanh(states + states.mean(1, keepdim=True)))


def make_pair(kind: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    if kind in ("classic", "modern"):
        config = our_config(body=kind, embedding_size=32, dropout=0.0, attention_dropout=0.0)
        return Generator(config), Discriminator(config)
    if kind == "plain":
        return Plain(VOCAB), Plain(1)
    if kind == "x_transformers":
        return x_transformer(), x_transformer()
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tiny_generator(kind, **quiet), tiny_discriminator(kind, **quiet)


def electra(kind: str, **settings: float) -> Electra:
    generator, discriminator = make_pair(kind)
    tie(generator, discriminator, share="gdes")
    more = {"discr_dim": 32, "discr_layer": "attn_layers"} if kind == "x_transformers" else {}
    return Electra(generator, discriminator, mask_token_id=4, sep_token_id=3, num_tokens=VOCAB, **more, **settings)


def only_table(objective: nn.Module) -> GDESEmbedding:
    (table,) = set(gdes_tables(objective).values())
    return table


def rows() -> Tensor:
    return torch.randint(5, VOCAB, (4, 16), generator=torch.Generator().manual_seed(0))


KINDS = ("classic", "modern", "bert", "deberta-v2", "plain", "x_transformers")


def gradients(kind: str, **weights: float) -> dict[str, Tensor]:
    objective = electra(kind, **weights)
    torch.manual_seed(1)
    objective(rows()).loss.backward()
    return {name: one.grad for name, one in objective.named_parameters() if one.grad is not None and one.grad.any()}


@pytest.mark.parametrize("kind", KINDS)
def test_each_loss_moves_its_own_table_and_one_pass_gives_the_gradients_of_two(kind):
    objective = electra(kind)
    table = only_table(objective)
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    of_generator, of_delta = names[id(table.generator_table)], names[id(table.delta)]
    assert of_generator.startswith("generator.") and of_delta.startswith("discriminator.")
    words, found, both = (gradients(kind, gen_weight=g, disc_weight=d) for g, d in ((1, 0), (0, 50), (1, 50)))
    assert of_generator in words and of_delta not in words
    assert of_delta in found and of_generator not in found
    assert not words.keys() & found.keys()
    assert both.keys() == words.keys() | found.keys()
    for name, gradient in (words | found).items():
        assert torch.equal(both[name], gradient), name


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_shared_and_a_table_is_saved_once(kind):
    objective = electra(kind)
    generator, discriminator = unwrap(objective.generator), unwrap(objective.discriminator)
    assert not shared_parameters(generator, discriminator)
    table = only_table(objective)
    assert not any(parameter is table.generator_table for parameter in discriminator.parameters())
    assert torch.equal(table.weight, table.generator_table) and not table.delta.any()
    assert sum(name.endswith(".delta") for name in state_once(objective)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_the_pair_follows_its_own_generator(kind):
    objective = copy.deepcopy(electra(kind))
    table = only_table(objective)
    assert any(parameter is table.generator_table for parameter in objective.generator.parameters())
    ids = rows()[:, :8]
    before = table(ids)
    with torch.no_grad():
        table.generator_table.add_(1)
    torch.testing.assert_close(table(ids), before + 1)


@pytest.mark.parametrize("kind", ["classic", "modern", "bert", "deberta-v2", "plain"])
def test_merged_it_computes_the_same_without_its_generator(kind):
    objective = electra(kind).eval()
    with torch.no_grad():
        only_table(objective).delta.normal_()
    discriminator = unwrap(objective.discriminator)
    alone = copy.deepcopy(discriminator)
    merge(alone)
    assert not gdes_tables(alone) and "word" in " ".join(alone.state_dict())
    apply = (lambda model: model(rows()).logits) if kind in ("bert", "deberta-v2") else lambda model: model(rows())
    assert torch.equal(apply(alone), apply(discriminator))
    # The table of a network that has none of this: the difference is made for it.
    discriminator.load_state_dict(alone.state_dict())
    torch.testing.assert_close(apply(discriminator), apply(alone))


def test_it_goes_to_transformers_with_the_sum(tmp_path):
    objective = electra("modern").eval()
    with torch.no_grad():
        only_table(objective).delta.normal_()
    to_transformers(objective.discriminator).save_pretrained(tmp_path)
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    logits = theirs(rows()).logits
    torch.testing.assert_close(logits[..., 1] - logits[..., 0], objective.discriminator(rows()))
    assert gdes_tables(objective)  # it was not changed


def test_kernels_and_plain_torch_agree():
    results = []
    for is_fast in (False, True):
        objective = electra("modern")
        with torch.no_grad():
            only_table(objective).delta.normal_(std=0.02)
        use_kernels(objective, is_fast)
        torch.manual_seed(1)
        output = objective(rows())
        output.loss.backward()
        table = only_table(objective)
        results.append((output.loss, table.delta.grad, table.generator_table.grad))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_the_corrector_predicts_with_the_sum_and_moves_only_the_difference():
    config = our_config(embedding_size=32)
    generator, discriminator = make_pair("classic")
    tie(generator, discriminator, share="gdes")
    corrector = Generator(config)
    corrector.body = discriminator.body
    with torch.no_grad():
        discriminator.body.embeddings.word.delta.normal_()
    states = torch.randn(3, 32)
    table = discriminator.body.embeddings.word
    expected = F.linear(corrector.head(states), table.generator_table + table.delta, corrector.output_bias)
    logits = corrector.word_logits(states)
    assert torch.equal(logits, expected)
    logits.sum().backward()
    assert table.delta.grad.any() and table.generator_table.grad is None


def test_tied_again_it_keeps_its_difference():
    generator, discriminator = make_pair("bert")
    tie(generator, discriminator, share="gdes")
    with torch.no_grad():
        only_table(discriminator).delta.fill_(2.0)
    other = make_pair("bert")[0]
    tie(other, discriminator, share="gdes")
    table = only_table(discriminator)
    assert table.generator_table is other.get_input_embeddings().weight and table.delta.eq(2).all()
    with pytest.raises(UserError, match="call merge"):
        tie(other, discriminator, share="embeddings")


def test_what_cannot_be_shared_is_named():
    with pytest.raises(
        UserError, match=r"generator has size \(\d+, 8\) for words, discriminator \(\d+, 16\); make them equal"
    ):
        tie(Plain(VOCAB, width=8), Plain(1), share="gdes")
    with pytest.raises(UserError, match="BertForMaskedLM uses its word table in an output layer too"):
        tie(tiny_generator("bert"), tiny_generator("bert"), share="gdes")
    generator, discriminator = make_pair("plain")
    discriminator.words = nn.Embedding(VOCAB, 16, max_norm=1.0)
    with pytest.raises(UserError, match="knows a plain"):
        tie(generator, discriminator, share="gdes")
    generator.words = discriminator.words = nn.Embedding(VOCAB, 16)
    generator.mix = nn.Identity()
    with pytest.raises(UserError, match=r"share words\.weight; build them apart"):
        tie(generator, discriminator, share="gdes")


@pytest.mark.long
def test_compiled_it_computes_the_same():
    results = []
    for is_compiled in (False, True):
        objective = electra("modern")
        with torch.no_grad():
            only_table(objective).delta.normal_(std=0.02)
        call = torch.compile(objective, fullgraph=True, backend="aot_eager") if is_compiled else objective
        output = call(rows(), row_keys(0, 0, range(4)))
        output.loss.backward()
        table = only_table(objective)
        results.append((output.loss, table.delta.grad, table.generator_table.grad))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
