"""Runs that use counts: they resume with the same bits, and give models that transformers opens."""

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F

import electrakit as ek
from electrakit import pretrain
from electrakit.cli.preset_arguments import config_from_arguments
from electrakit.common.errors import UserError
from electrakit.data.counts import count_pairs
from electrakit.model.counts import count_parameters
from electrakit.runs.files import PretrainRun
from electrakit.runs.settings import read_config
from electrakit.train.initial_weights import LOGIT_SPREAD
from electrakit.train.word_vectors import WINDOW, word_vectors
from tests.helpers.runs import begun

COUNTS = {"init_embeddings": "counts", "ngrams": True}
FLATTENED = {"temperature": 4.0, "final_temperature": 1.2, "flatten_to": "frequency"}
CORRECT = {"correct_weight": 1.0, "keep_mask_prob": 0.3, "temperature": 2.0, "final_temperature": 1.0}


@pytest.mark.long
@pytest.mark.parametrize(("preset", "has_network"), [("tiny", True), ("modern_tiny", False)])
def test_a_run_that_stops_and_resumes_ends_with_the_same_bits(tiny, preset, has_network):
    changes = {**COUNTS, "objective": CORRECT, **({} if has_network else {"generator": None})}
    resumed_exactly(tiny, preset, changes)


def resumed_exactly(tiny, preset: str, changes: dict) -> PretrainRun:
    """A whole run, after comparing it with one that was stopped and resumed, and its size with the count."""
    settings = {"steps": 8, **changes}
    whole = pretrain(tiny("whole", preset, **settings))
    pretrain(tiny("parts", preset, **settings), stop_after=3)
    parts = pretrain(tiny("parts", preset, **settings))
    ours, theirs = (load_file(run.checkpoint / "model.safetensors") for run in (parts, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sum(tensor.numel() for tensor in ours.values()) == count_parameters(read(whole)).total
    return whole


def read(run: PretrainRun) -> ek.presets.PretrainConfig:
    """The settings that the run has stored."""
    return read_config(run.path).settings


@pytest.mark.long
def test_without_a_generator_the_corrector_is_exported_as_the_masked_language_model(tiny, tmp_path):
    run = pretrain(tiny("run", "modern_tiny", **COUNTS, generator=None, objective=CORRECT))
    ek.export(run, tmp_path / "hf")
    words = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf" / "generator").eval()
    found = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "hf").eval()
    ids = torch.tensor([[2, 20, 4, 30, 3]])
    with torch.no_grad():
        torch.testing.assert_close(words.base_model(ids).last_hidden_state, found.base_model(ids).last_hidden_state)
    assert words(ids).logits.shape == (1, 5, read(run).discriminator.vocab_size)


def test_the_table_starts_as_counted_vectors_and_the_bias_as_log_frequencies(tiny, shards):
    objective = begun(tiny("run", init_embeddings="counts", objective={"correct_weight": 1.0}))
    counts = count_pairs(shards, range(1, WINDOW + 1))
    vectors, is_known = word_vectors(counts, 32)
    table = objective.discriminator.body.embeddings.word.weight
    assert table is objective.generator.body.embeddings.word.weight
    torch.testing.assert_close(table[is_known], vectors[is_known] * 0.02)
    frequencies = torch.from_numpy((counts.tokens + 0.5) / (counts.tokens + 0.5).sum()).float()
    for predictor in (objective.generator, objective.corrector):
        torch.testing.assert_close(predictor.output_bias.softmax(0), frequencies)
        logits = F.layer_norm(torch.randn(99, 32), (32,)) * predictor.head.norm.weight @ table[is_known].T
        assert logits.std().item() == pytest.approx(LOGIT_SPREAD, rel=0.1)
    assert objective.discriminator.score.bias.sigmoid().item() == pytest.approx(0.15)


@pytest.mark.long
def test_heads_that_begin_at_neighbours_do_so_in_both_networks_and_a_run_resumes_with_the_same_bits(tiny):
    changes = {"init_embeddings": "counts", "init_attention": "neighbours", "objective": FLATTENED}
    objective = begun(tiny("begun", "modern_tiny", **changes))
    bodies = objective.generator.body, objective.discriminator.body
    assert all(body.layers[0].qkv.weight[:, -1].abs().max() > 1 for body in bodies)
    resumed_exactly(tiny, "modern_tiny", changes)


def test_counted_vectors_fit_transformers_own_families(tiny):
    objective = begun(tiny("run", "alectra_small", init_embeddings="counts", batch_size=2))
    assert objective.generator.model.get_output_embeddings().bias.std() > 0.5


def test_the_command_line_spells_a_generator_of_counts():
    _, config = config_from_arguments(["mini", "--generator", "counts"], "show")
    assert config.generator is None and config.ngrams


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ngrams": True, "generator": None, "objective": {"kind": "mlm"}}, "ngrams are of the generator's samples"),
        ({"objective": {"keep_mask_prob": 0.2}}, "without correct_weight"),
        ({"objective": {"kind": "replace_mlm", "correct_weight": 1.0}}, "leave it out"),
        ({"optim": {"adam_lr": 1e-3}}, "goes with optim.name=muon"),
        ({"init_embeddings": "counts", "init_discriminator": "hf/x"}, "leave one of the two out"),
        ({"objective": {"final_temperature": 0.0}}, "must be above 0"),
        (
            {"objective": {"kind": "mlm", "flatten_to": "frequency"}, "generator": None},
            "use flatten_to=uniform",
        ),
        ({"objective": {"flatten_to": "frequency"}}, "changes nothing at temperature 1"),
        ({"objective": FLATTENED, "generator": None}, "use objective.flatten_to=uniform"),
        ({"init_attention": "neighbours"}, "body is 'classic': use modern"),
        ({"init_attention": "neighbours", "init_discriminator": "hf/x"}, "use init_attention=random"),
    ],
)
def test_what_does_not_fit_together_is_refused(tiny, changes, message):
    with pytest.raises(UserError, match=message):
        tiny("run", **changes)


@pytest.mark.long
def test_a_generator_of_shared_layers_resumes_with_the_same_bits_and_is_exported(tiny, tmp_path):
    whole = resumed_exactly(tiny, "modern_tiny", {"share": "layers", "generator": {"num_layers": 1}})
    ek.export(whole, tmp_path / "hf")
    words = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf" / "generator")
    found = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "hf")
    lower, first = (model.base_model.layers[0].state_dict() for model in (words, found))
    assert lower.keys() == first.keys() and all(torch.equal(lower[name], first[name]) for name in lower)
