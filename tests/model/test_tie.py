"""What a pair shares is one parameter, whatever is done to it later; what does not fit is named."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForTokenClassification
from x_transformers import Encoder, TransformerWrapper

from electrakit.common.errors import UserError
from electrakit.model.huggingface.adapt import as_discriminator, as_generator
from electrakit.model.huggingface.weights import from_transformers
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.tie import (
    check_output_table,
    load_state_once,
    shared_parameters,
    state_once,
    tie,
    warn_of_untied_copies,
)
from electrakit.objective.electra import Electra
from tests.helpers import tiny_models
from tests.helpers.tiny_models import FAMILIES, VOCAB, our_config, reformer

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:.*has two segments, but no sep_token_id")


def with_embeddings(family: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Embeddings as wide as the layers, so that families can be mixed."""
    return {**({"embedding_size": 32} if family in ("electra", "albert") else {}), **changes}


def tiny_generator(family: str, **changes: Any) -> Any:
    return tiny_models.tiny_generator(family, **with_embeddings(family, changes))


def tiny_discriminator(family: str, **changes: Any) -> Any:
    if family == "electra":
        return tiny_models.tiny_pretraining_electra(**with_embeddings(family, changes))
    return tiny_models.tiny_discriminator(family, **with_embeddings(family, changes))


def electra_pair(**changes: Any) -> tuple[Any, Any]:
    """As in the paper: the generator is narrower, the embeddings are of one size."""
    return tiny_generator("electra", hidden_size=16, embedding_size=24, **changes), tiny_discriminator(
        "electra", embedding_size=24
    )


def our_pair(body: str = "classic", **changes: Any) -> tuple[Generator, Discriminator]:
    config = our_config(body=body, **{**({} if body == "classic" else {"embedding_size": 32}), **changes})
    return Generator(config), Discriminator(config)


def x_transformer(heads: int, size: int) -> TransformerWrapper:
    layers = Encoder(dim=32, depth=1, heads=heads, attn_dim_head=size)
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=16, attn_layers=layers)


def ids() -> Tensor:
    return torch.randint(5, VOCAB, (2, 16), generator=torch.Generator().manual_seed(0))


def word_table(model: Any) -> nn.Parameter:
    return model.get_input_embeddings().weight


def assert_shared_and_trained_together(generator: Any, discriminator: Any, pair: nn.Module) -> None:
    """The tables are one object, listed once, and a step of the pair moves both by the same amount."""
    output = generator.get_output_embeddings().weight
    assert word_table(generator) is word_table(discriminator) is output
    listed = [id(parameter) for parameter in pair.parameters()]
    assert len(listed) == len(set(listed)) and id(output) in listed
    before = output.detach().clone()
    loss = generator(ids()).logits.float().square().mean() + discriminator(ids()).logits.float().square().mean()
    loss.backward()
    torch.optim.SGD(pair.parameters(), lr=1.0).step()
    pair.zero_grad()
    assert not torch.equal(output, before)
    assert torch.equal(word_table(generator), word_table(discriminator)) and torch.equal(word_table(generator), output)


# Embeddings

FULL = {"word_embeddings.weight", "position_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"}
SHARED_EMBEDDINGS = {
    "electra": FULL | {"token_type_embeddings.weight"},
    "bert": FULL | {"token_type_embeddings.weight"},
    "albert": FULL | {"token_type_embeddings.weight"},
    "distilbert": FULL,
    "roberta": FULL | {"token_type_embeddings.weight"},
    "deberta-v2": FULL,
    "modernbert": {"tok_embeddings.weight", "norm.weight"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_of_one_family_shares_its_embeddings_and_the_output_table(family: str) -> None:
    generator, discriminator = tiny_generator(family), tiny_discriminator(family)
    tie(generator, discriminator)
    shared = shared_parameters(generator, discriminator)
    inside = {name.split("embeddings.", 1)[1] for name in shared if "embeddings." in name}
    assert inside == SHARED_EMBEDDINGS[family]
    assert generator.get_output_embeddings().weight is word_table(discriminator)
    assert len(shared) == len(inside) + 1  # the output table, and nothing of the encoder
    assert_shared_and_trained_together(generator, discriminator, nn.ModuleList([generator, discriminator]))


def test_a_word_table_that_is_parametrized_is_left_alone() -> None:
    generator, discriminator = tiny_generator("bert"), tiny_discriminator("bert")
    nn.utils.parametrizations.weight_norm(discriminator.get_input_embeddings())
    Electra(generator, discriminator, mask_token_id=4)  # it looks for tables that were copied
    assert not shared_parameters(generator, discriminator)


def test_the_projection_to_the_hidden_size_is_not_shared() -> None:
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    assert not any("embeddings_project" in name for name in shared_parameters(generator, discriminator))
    generator = tiny_generator("deberta-v2", hidden_size=16, embedding_size=32)
    discriminator = tiny_discriminator("deberta-v2", embedding_size=32)
    tie(generator, discriminator)  # its LayerNorm stands behind the projection and has the hidden size
    assert not any("embed_proj" in name or "LayerNorm" in name for name in shared_parameters(generator, discriminator))


MIXED = [
    ("bert", "albert", {"word", "position", "segment", "norm"}),
    ("albert", "bert", {"word", "position", "segment", "norm"}),
    ("bert", "electra", {"word", "position", "segment", "norm"}),
    ("distilbert", "electra", {"word", "position", "norm"}),
    ("electra", "deberta-v2", {"word", "position", "norm"}),
    ("bert", "roberta", {"word", "segment", "norm"}),  # RoBERTa counts positions from behind its pad id
    ("bert", "modernbert", {"word", "norm"}),
]


@pytest.mark.parametrize(("family", "other", "parts"), MIXED)
def test_a_mixed_pair_shares_what_both_have(family: str, other: str, parts: set[str]) -> None:
    generator, discriminator = tiny_generator(family), tiny_discriminator(other)
    tie(generator, discriminator)
    parts_of = {"word_emb": "word", "position_emb": "position", "token_type_emb": "segment", "LayerNorm": "norm"}
    shared = [name for name in shared_parameters(generator, discriminator) if "embeddings." in name]
    assert {part for key, part in parts_of.items() if any(key in name for name in shared)} == parts
    assert_shared_and_trained_together(generator, discriminator, nn.ModuleList([generator, discriminator]))


def test_other_sizes_across_families_leave_only_the_word_table_a_must() -> None:
    generator, discriminator = tiny_generator("bert", max_position_embeddings=32), tiny_discriminator("albert")
    tie(generator, discriminator)
    assert not any("position" in name for name in shared_parameters(generator, discriminator))
    with pytest.raises(
        UserError, match=r"generator has size \(100, 16\) for word.weight, discriminator \(100, 32\); make them equal"
    ):
        tie(tiny_generator("bert", hidden_size=16), tiny_discriminator("albert"))


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"embedding_size": 16}, r"\(100, 16\) for word.weight, discriminator \(100, 32\)"),
        ({"vocab_size": 90}, r"\(90, 32\) for word.weight, discriminator \(100, 32\)"),
        ({"max_position_embeddings": 32}, r"\(32, 32\) for position.weight, discriminator \(66, 32\)"),
    ],
)
def test_sizes_that_do_not_fit_are_both_named_with_the_way_out(changes: dict[str, int], sizes: str) -> None:
    generator, discriminator = tiny_generator("electra", **changes), tiny_discriminator("electra")
    before = [id(parameter) for parameter in generator.parameters()]
    with pytest.raises(UserError, match=f"generator has size {sizes}; make them equal or use share='nothing'"):
        tie(generator, discriminator)
    assert [id(parameter) for parameter in generator.parameters()] == before  # nothing half done


@pytest.mark.parametrize("body", ["classic", "modern", "deberta"])
def test_a_generator_of_the_discriminators_first_layers(body: str) -> None:
    config = replace(our_pair(body)[1].config, num_layers=3)
    discriminator = Discriminator(config)
    generator = Generator(replace(config, num_layers=2))
    tie(generator, discriminator, share="layers")
    theirs = dict(discriminator.named_parameters())
    own = [name for name, weight in generator.named_parameters() if theirs.get(name) is not weight]
    assert own and not any(name.startswith(("body.layers.", "body.embeddings.")) for name in own)
    states = []
    discriminator.body.layers[1].register_forward_hook(lambda _, __, output: states.append(output))
    generator.body.layers[1].register_forward_hook(lambda _, __, output: states.append(output))
    discriminator.eval()(ids()), generator.eval()(ids())
    assert torch.equal(*states)
    with pytest.raises(UserError, match="cannot share layers"):
        tie(Generator(replace(config, num_layers=4)), discriminator, share="layers")


@pytest.mark.parametrize("body", ["classic", "modern", "deberta"])
def test_our_own_pair_shares_its_embeddings(body: str) -> None:
    generator, discriminator = our_pair(body)
    before = discriminator.eval()(ids())
    tie(generator, discriminator)
    shared = shared_parameters(generator, discriminator)
    assert shared == [name for name, _ in generator.named_parameters() if name.startswith("body.embeddings.")]
    assert torch.equal(discriminator(ids()), before)  # what is shared is the discriminator's
    nn.init.zeros_(discriminator.body.embeddings.word.weight)
    assert torch.equal(generator(ids()), generator.output_bias.expand(2, 16, -1))  # the output table is that table


def test_our_generator_shares_with_a_transformers_discriminator() -> None:
    generator, _ = our_pair(embedding_size=32)
    discriminator = tiny_discriminator("electra")
    tie(generator, discriminator)
    assert generator.body.embeddings.word.weight is word_table(discriminator)
    assert len(shared_parameters(generator, discriminator)) == 5


def test_adapters_are_tied_like_the_models_inside() -> None:
    generator, discriminator = electra_pair()
    tie(as_generator(generator), as_discriminator(discriminator))
    assert word_table(generator) is word_table(discriminator) is generator.generator_lm_head.weight


def test_plain_modules_share_tables_of_the_same_name() -> None:
    generator, discriminator = reformer(32, absolute_position_emb=True), reformer(64, absolute_position_emb=True)
    tie(generator, nn.Sequential(discriminator, nn.Linear(64, 1)))
    assert shared_parameters(generator, discriminator) == ["token_emb.weight", "pos_emb.emb.weight"]
    generator, discriminator = (
        TransformerWrapper(num_tokens=VOCAB, max_seq_len=16, emb_dim=16, attn_layers=Encoder(dim=dim, depth=1, heads=2))
        for dim in (16, 32)
    )
    tie(generator, discriminator)
    assert shared_parameters(generator, discriminator) == ["token_emb.emb.weight", "pos_emb.emb.weight"]


def test_plain_modules_without_a_common_table_are_an_error() -> None:
    with pytest.raises(
        UserError,
        match=r"only the generator has token_emb.weight, only the discriminator 0.weight; assign them yourself",
    ):
        tie(reformer(32), nn.Sequential(nn.Embedding(VOCAB, 8), nn.Linear(8, 1)))
    with pytest.raises(UserError, match=r"size \(100, 8\) for token_emb.weight, discriminator \(100, 16\)"):
        tie(reformer(32, emb_dim=8), reformer(32))


class Words(nn.Module):
    """A plain module whose tables have the names one gives them."""

    def __init__(
        self, words: str, positions: str, vocab_size: int = VOCAB, num_positions: int = 16, out: int = 1
    ) -> None:
        super().__init__()
        self.add_module(words, nn.Embedding(vocab_size, 8))
        self.add_module(positions, nn.Embedding(num_positions, 8))
        self.out = nn.Linear(8, out, bias=False)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        words, positions, out = self.children()
        return out(words(ids) + positions(torch.arange(ids.size(1))))


def test_plain_modules_do_not_share_positions_alone() -> None:
    message = "the word tables must have the same name; only the generator has words.weight, only the discriminator tokens.weight"
    with pytest.raises(UserError, match=f"cannot share embeddings: {message}; assign them yourself"):
        tie(Words("words", "positions"), Words("tokens", "positions"))
    swapped = Words("positions", "words")  # what has a row for each token is the word table
    with pytest.raises(UserError, match="the word tables must have the same name"):
        tie(Words("words", "positions"), swapped)


def test_a_plain_modules_word_table_is_that_of_its_vocabulary_if_it_says_so() -> None:
    generator, discriminator = Words("words", "places", 64, 512), Words("tokens", "places", 64, 512)
    with pytest.raises(UserError, match=r"only the generator has words.weight, only the discriminator tokens.weight"):
        tie(generator, discriminator)  # fewer tokens than positions (bytes, for instance), and nothing says so
    generator.num_tokens = discriminator.num_tokens = 64
    with pytest.raises(UserError, match=r"only the generator has words.weight, only the discriminator tokens.weight"):
        tie(generator, discriminator)
    generator, discriminator = Words("words", "places"), Words("words", "positions")
    generator.num_tokens = discriminator.num_tokens = VOCAB
    tie(generator, discriminator)  # here it is certain that only positions differ
    assert shared_parameters(generator, discriminator) == ["words.weight"]


class Holder(nn.Module):
    """A plain module whose `embeddings` are what one gives it."""

    def __init__(self, embeddings: nn.Module, out: int = 1) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.out = nn.Linear(8, out, bias=False)


def table_alone() -> nn.Module:
    return nn.Embedding(VOCAB, 8)


def table_and_norm() -> nn.Module:
    return nn.Sequential(nn.Embedding(VOCAB, 8), nn.LayerNorm(8))


def two_tables() -> nn.Module:
    return nn.ModuleDict({"tokens": nn.Embedding(VOCAB, 8), "positions": nn.Embedding(16, 8)})


def words_inside_words() -> nn.Module:
    return nn.ModuleDict({"word": nn.Sequential(nn.Embedding(VOCAB, 8)), "position": nn.Embedding(16, 8)})


HOLDINGS = [
    (table_alone, ["embeddings.weight"]),
    (table_and_norm, ["embeddings.0.weight"]),
    (two_tables, ["embeddings.tokens.weight", "embeddings.positions.weight"]),
    (words_inside_words, ["embeddings.word.0.weight", "embeddings.position.weight"]),
]


@pytest.mark.parametrize(("embeddings", "names"), HOLDINGS)
def test_what_is_called_embeddings_may_be_anything(embeddings: Any, names: list[str]) -> None:
    generator, discriminator = Holder(embeddings(), out=VOCAB), Holder(embeddings())
    generator.out.weight = generator.get_parameter(names[0])
    tie(generator, discriminator)
    assert shared_parameters(generator, discriminator) == [*names, "out.weight"]
    assert generator.get_parameter(names[0]) is discriminator.get_parameter(names[0])

    generator = Holder(embeddings(), out=VOCAB)
    generator.out.weight = generator.get_parameter(names[0])
    generator.embeddings = discriminator.embeddings  # the output layer still holds the old table
    with pytest.warns(UserWarning, match=r"out.weight of generator Holder has the shape of the word table"):
        check_output_table(generator, discriminator)
    apart = Holder(copy.deepcopy(discriminator.embeddings), out=VOCAB)
    with pytest.warns(UserWarning, match="equal word embeddings in two parameters"):
        warn_of_untied_copies(apart, discriminator)


@pytest.mark.parametrize("other", ["xlm", "bert"])
def test_a_transformers_model_says_which_table_holds_its_words(other: str) -> None:
    """XLM's `embeddings` are the table itself."""
    sizes = {"n_layers": 1, "n_heads": 2, "n_words": VOCAB, "max_position_embeddings": 66}
    ids = {"pad_index": 0, "pad_token_id": 0, "bos_token_id": 1, "mask_token_id": 4}
    config = AutoConfig.for_model("xlm", emb_dim=32, **sizes, **ids)
    generator = AutoModelForMaskedLM.from_config(config)
    discriminator = (
        AutoModelForTokenClassification.from_config(config) if other == "xlm" else tiny_discriminator("bert")
    )
    tie(generator, discriminator)
    assert word_table(generator) is word_table(discriminator) is generator.get_output_embeddings().weight
    shares_positions = any("position" in name for name in shared_parameters(generator, discriminator))
    assert shares_positions == (other == "xlm")


# Mistakes of other implementations


def test_embeddings_stay_one_parameter_when_the_pair_changes_its_type() -> None:
    """Copies, and tensors put in by `.data =`, part at `.to()` or at the first step."""
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    pair = nn.ModuleList([generator, discriminator])
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        pair.to(dtype)
        assert word_table(discriminator).dtype == dtype
        assert_shared_and_trained_together(generator, discriminator, pair)
    generator.to(torch.float64)  # one of the two alone
    assert word_table(generator) is word_table(discriminator)


def test_the_output_layer_does_not_keep_the_old_table() -> None:
    for generator, discriminator in [electra_pair(), (tiny_generator("bert"), tiny_discriminator("albert"))]:
        old = generator.get_output_embeddings().weight
        tie(generator, discriminator)
        assert generator.get_output_embeddings().weight is word_table(discriminator)
        assert all(parameter is not old for _, parameter in generator.named_parameters(remove_duplicate=False))
    generator, discriminator = reformer(32, weight_tie_embedding=True), reformer(64)
    tie(generator, discriminator)
    assert generator.out[1].tensor is discriminator.token_emb.weight  # a plain module's own output table follows too


def test_the_output_layer_of_a_reformer_follows_an_assigned_table() -> None:
    generator, discriminator = reformer(32, weight_tie_embedding=True), reformer(64, return_embeddings=True)
    # as electra-pytorch shows; the output layer still holds the old table
    generator.token_emb = discriminator.token_emb
    assert generator.out[1].tensor is not discriminator.token_emb.weight
    Electra(generator, nn.Sequential(discriminator, nn.Linear(64, 1)), mask_token_id=4)
    assert generator.out[1].tensor is discriminator.token_emb.weight
    generator = reformer(32, weight_tie_embedding=True)
    generator.token_emb = discriminator.token_emb
    tie(generator, discriminator)
    assert generator.out[1].tensor is discriminator.token_emb.weight


def test_output_layers_that_are_known_to_be_apart_stay_so_in_silence() -> None:
    """electra-pytorch's usage as it stands: its output layers have the table's shape."""
    discriminator = reformer(64, return_embeddings=True)
    pairs = [
        (reformer(32), nn.Sequential(discriminator, nn.Linear(64, 1)), "token_emb", discriminator.token_emb),
        (x_transformer(2, 16), wide := x_transformer(2, 16), "token_emb", wide.token_emb),
    ]
    for generator, scorer, name, table in pairs:
        setattr(generator, name, table)
        before = [id(parameter) for parameter in generator.parameters()]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Electra(generator, scorer, mask_token_id=4)
        assert [id(parameter) for parameter in generator.parameters()] == before


def test_a_plain_output_layer_that_may_hold_an_old_table_is_told() -> None:
    generator, discriminator = Words("words", "positions", out=VOCAB), Words("words", "positions")
    generator.out.weight = generator.words.weight
    generator.words = discriminator.words
    for look in (tie, lambda *pair: Electra(*pair, mask_token_id=4)):
        pair = copy.deepcopy(nn.ModuleList([generator, discriminator]))
        with pytest.warns(UserWarning, match=r"out.weight of generator Words has the shape of the word table"):
            look(*pair)
    generator, discriminator = Words("words", "positions", out=VOCAB), Words("words", "positions")
    generator.out.weight = generator.words.weight
    apart = Words("words", "positions", out=VOCAB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tie(generator, discriminator)
        Electra(generator, discriminator, mask_token_id=4)
        tie(apart, discriminator)
        Electra(apart, discriminator, mask_token_id=4)
    assert generator.out.weight is discriminator.words.weight
    assert apart.out.weight is not discriminator.words.weight  # an output layer of its own stays one


def test_released_weights_are_tied(tmp_path: Path) -> None:
    """A pair that was trained tied and is loaded one by one has equal tables, and would train apart."""
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    generator.save_pretrained(tmp_path / "generator")
    discriminator.save_pretrained(tmp_path / "discriminator")
    loaded = (
        type(generator).from_pretrained(tmp_path / "generator"),
        type(discriminator).from_pretrained(tmp_path / "discriminator"),
    )
    for pair in (loaded, (from_transformers(loaded[0]), from_transformers(loaded[1]))):
        with pytest.warns(
            UserWarning, match=r"equal word embeddings in two parameters.* call tie\(generator, discriminator\)"
        ):
            Electra(*pair, mask_token_id=4, sep_token_id=3)
        tie(*pair)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Electra(*pair, mask_token_id=4, sep_token_id=3)
            Electra(*electra_pair(), mask_token_id=4, sep_token_id=3)  # a new pair may be apart


def test_an_untied_output_layer_is_tied_with_the_embeddings() -> None:
    generator, discriminator = electra_pair(tie_word_embeddings=False)
    assert generator.generator_lm_head.weight is not word_table(generator)
    tie(generator, discriminator)
    assert generator.generator_lm_head.weight is word_table(discriminator)
    generator.tie_weights()
    assert generator.generator_lm_head.weight is word_table(discriminator)


@pytest.mark.parametrize("share", ["embeddings", "encoder"])
def test_tied_parameters_are_listed_once_in_an_optimizer(share: Any) -> None:
    generator, discriminator = tiny_generator("electra"), tiny_discriminator("electra")
    tie(generator, discriminator, share)
    pair = nn.ModuleList([as_generator(generator), as_discriminator(discriminator)])
    listed = [id(parameter) for parameter in pair.parameters()]
    assert len(listed) == len(set(listed))
    assert len(listed) < len([*generator.parameters(), *discriminator.parameters()])
    optimizer = torch.optim.SGD(pair.parameters(), lr=1.0)
    for parameter in pair.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = word_table(generator).detach().clone()
    optimizer.step()
    torch.testing.assert_close(word_table(discriminator).detach(), before - 1)  # one step, not two


# Encoder and nothing


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_models_of_any_family_share_everything_but_the_heads(family: str) -> None:
    generator, discriminator = tiny_generator(family), tiny_discriminator(family)
    tie(generator, discriminator, "encoder")
    shared = {id(parameter) for parameter in generator.base_model.parameters()}
    assert shared == {id(parameter) for parameter in discriminator.base_model.parameters()}
    own = {id(parameter) for parameter in discriminator.parameters()} - shared
    assert own and not own & {id(parameter) for parameter in generator.parameters()}
    assert_shared_and_trained_together(generator, discriminator, nn.ModuleList([generator, discriminator]))


def test_our_equal_networks_and_plain_ones_share_their_bodies() -> None:
    for body in ("classic", "modern"):
        generator, discriminator = our_pair(body)
        tie(generator, discriminator, "encoder")
        shared = shared_parameters(generator, discriminator)
        assert shared == [name for name, _ in generator.named_parameters() if name.startswith("body.")]
    plain, headless = reformer(32), reformer(32, return_embeddings=True)
    tie(plain, nn.Sequential(headless, nn.Linear(32, 1)), "encoder")
    assert {id(parameter) for parameter in headless.parameters()} < {id(parameter) for parameter in plain.parameters()}
    wide, narrow = (
        TransformerWrapper(
            num_tokens=VOCAB, max_seq_len=16, logits_dim=dim, attn_layers=Encoder(dim=32, depth=1, heads=2)
        )
        for dim in (VOCAB, 1)
    )
    tie(wide, narrow, "encoder")
    own = [name for name, _ in wide.named_parameters() if name not in shared_parameters(wide, narrow)]
    assert own == ["to_logits.weight"]


def test_bodies_that_differ_are_refused_with_the_first_difference() -> None:
    with pytest.raises(
        UserError, match=r"generator has size \(16, 24\) for embeddings_project.weight, discriminator \(32, 24\)"
    ):
        tie(*electra_pair(), "encoder")
    with pytest.raises(UserError, match=r"size None for encoder.layer.1.\S+, discriminator \(32, 32\)"):
        tie(tiny_generator("bert", num_hidden_layers=1), tiny_discriminator("bert"), "encoder")
    with pytest.raises(UserError, match="cannot share the encoder"):
        tie(tiny_generator("bert"), tiny_discriminator("distilbert"), "encoder")


@pytest.mark.parametrize(
    ("generator", "discriminator", "message"),
    [
        (
            lambda: tiny_generator("bert", num_attention_heads=4),
            lambda: tiny_discriminator("bert"),
            "num_attention_heads 4, .* 2",
        ),
        (
            lambda: tiny_generator("bert", hidden_act="relu"),
            lambda: tiny_discriminator("bert"),
            "hidden_act relu, .* gelu",
        ),
        (lambda: tiny_generator("bert"), lambda: tiny_discriminator("roberta"), "model_type bert, .* roberta"),
        (lambda: our_pair(num_heads=4)[0], lambda: our_pair()[1], "num_heads 4, discriminator 2"),
        (lambda: our_pair("modern", rotary_base=5e4)[0], lambda: our_pair("modern")[1], "rotary_base 50000.0"),
        (lambda: x_transformer(4, 8), lambda: x_transformer(2, 16), "heads 4, discriminator 2"),
    ],
)
def test_equal_models_use_their_weights_in_the_same_way(generator: Any, discriminator: Any, message: str) -> None:
    """All of these have weights of the same names and shapes."""
    with pytest.raises(UserError, match=f"cannot share the encoder: generator has .*{message}"):
        tie(generator(), discriminator(), "encoder")


def test_nothing_shares_nothing_and_keeps_the_generators_own_tables_one() -> None:
    generator, discriminator = electra_pair()
    tie(generator, discriminator, "nothing")
    assert shared_parameters(generator, discriminator) == []
    assert generator.generator_lm_head.weight is word_table(generator)
    tie(generator, discriminator)
    with pytest.raises(UserError, match="share='nothing', but generator and discriminator share"):
        tie(generator, discriminator, "nothing")
    with pytest.raises(UserError, match="share='all' is unknown"):
        tie(generator, discriminator, "all")


# Still shared afterwards


def test_tying_twice_is_tying_once() -> None:
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    before = [id(parameter) for parameter in generator.parameters()]
    tie(generator, discriminator)
    assert [id(parameter) for parameter in generator.parameters()] == before


def test_a_copy_of_the_pair_shares_among_itself() -> None:
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    pair = copy.deepcopy(nn.ModuleList([generator, discriminator]))
    assert_shared_and_trained_together(pair[0], pair[1], pair)
    assert word_table(pair[0]) is not word_table(generator)


def test_the_pair_is_tied_again_where_torch_makes_new_parameters() -> None:
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    nn.ModuleList([generator, discriminator]).to("meta")
    tie(generator, discriminator)
    assert word_table(generator) is word_table(discriminator) is generator.generator_lm_head.weight


def test_loading_a_state_dict_keeps_the_pair_tied() -> None:
    generator, discriminator = electra_pair()
    tie(generator, discriminator)
    pair = nn.ModuleList([generator, discriminator])
    state = {name: tensor.clone() + 1 for name, tensor in pair.state_dict().items()}
    pair.load_state_dict(state)
    assert torch.equal(word_table(generator), state["1.electra.embeddings.word_embeddings.weight"])
    assert_shared_and_trained_together(generator, discriminator, pair)


@pytest.mark.parametrize("share", ["nothing", "embeddings", "encoder"])
def test_a_safetensors_round_trip_keeps_the_pair_tied(share: Any, tmp_path: Path) -> None:
    saved, loaded = (nn.ModuleList([tiny_generator("bert"), tiny_discriminator("bert")]) for _ in range(2))
    for pair in (saved, loaded):
        tie(pair[0], pair[1], share)
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.add_(1)
    save_file(state_once(saved), tmp_path / "pair.safetensors")
    load_state_once(loaded, load_file(tmp_path / "pair.safetensors"))
    save_model(saved, str(tmp_path / "theirs.safetensors"))
    clone = copy.deepcopy(loaded)
    load_model(clone, str(tmp_path / "theirs.safetensors"))
    for pair in (loaded, clone):
        assert shared_parameters(pair[0], pair[1]) == shared_parameters(saved[0], saved[1])
        assert all(torch.equal(pair.state_dict()[name], tensor) for name, tensor in saved.state_dict().items())


def test_saved_weights_that_do_not_fit_are_named() -> None:
    apart, tied = (nn.ModuleList([tiny_generator("bert"), tiny_discriminator("bert")]) for _ in range(2))
    tie(tied[0], tied[1])
    with pytest.raises(UserError, match=r"1.bert.embeddings\S+ is unknown to this model but in the saved weights"):
        load_state_once(tied, state_once(apart))
    with pytest.raises(UserError, match=r"1.bert.embeddings\S+ is missing from the saved weights"):
        load_state_once(apart, state_once(tied))
    larger = {name: torch.cat([value, value]) for name, value in state_once(tied).items()}
    with pytest.raises(UserError, match=r"has shape .* in the saved weights, .* in this model"):
        load_state_once(tied, larger)


class Pair(nn.Module):
    """Both networks in one module, as the objective has them."""

    def __init__(self) -> None:
        super().__init__()
        generator, discriminator = electra_pair()
        tie(generator, discriminator)
        self.generator, self.discriminator = as_generator(generator), as_discriminator(discriminator)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.generator(ids, positions).square().mean() + self.discriminator(ids).square().mean()


def train_one_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    pair = Pair()
    wrapped = nn.parallel.DistributedDataParallel(pair)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(2):
        rows = torch.randint(5, VOCAB, (2, 16), generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        wrapped(rows, torch.arange(3).expand(2, 3)).backward()
        optimizer.step()
    generator, discriminator = pair.generator.model, pair.discriminator.model
    assert word_table(generator) is word_table(discriminator) is generator.get_output_embeddings().weight
    torch.save(word_table(generator).detach().clone(), f"{folder}/{rank}.pt")
    dist.barrier()  # a process that leaves first can hang the other while it tears down
    del wrapped
    dist.destroy_process_group()


@pytest.mark.long
def test_two_processes_under_ddp_keep_the_pair_tied_and_equal(tmp_path: Path) -> None:
    mp.spawn(train_one_of_two, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, word_table(Pair().generator.model))
