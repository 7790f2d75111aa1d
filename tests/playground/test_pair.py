"""Pairs of all kinds: found where they lie, answering as transformers does."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit import Electra, UserError, pretrain
from electrakit.objective.randomness import row_keys
from electrakit.playground.open import open_pair
from electrakit.playground.pair import Pair
from tests.helpers.tiny_pairs import VOCABULARY, write_discriminator, write_generator, write_pair

TEXT = "The café owner plays [MASK] golf, unhappily!"
FAMILIES = ["electra", "modernbert", "deberta-v2", "bert", "albert"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def pair(folder) -> Pair:
    return open_pair(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers(tmp_path, family):
    folder = write_pair(tmp_path / family, family)
    pair = open_pair(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = pair.encode(TEXT)
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert encoded.ids == inputs.input_ids[0].tolist()
    with torch.no_grad():
        kind = (
            transformers.ElectraForPreTraining if family == "electra" else transformers.AutoModelForTokenClassification
        )
        logits = kind.from_pretrained(folder).eval()(**inputs).logits[0]
    wanted = logits.sigmoid() if logits.ndim == 1 else logits.softmax(-1)[:, 1]
    assert pair.replaced(encoded.ids) == pytest.approx(wanted.tolist(), rel=1e-4)

    fill = transformers.pipeline("fill-mask", str(folder / "generator"), top_k=8)
    place = encoded.ids.index(tokenizer.mask_token_id) - 1
    found = pair.predictions(encoded, place, 8)
    assert [(prediction.token, pytest.approx(prediction.probability, rel=1e-4)) for prediction in found.best] == [
        (tokenizer.convert_ids_to_tokens(one["token"]), one["score"]) for one in fill(TEXT)
    ]


def test_a_classifier_with_one_label_is_the_logit(tmp_path):
    pair = open_pair(write_discriminator(tmp_path / "one", "bert", num_labels=1))
    ids = pair.encode(TEXT).ids
    model = transformers.BertForTokenClassification.from_pretrained(tmp_path / "one").eval()
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0, :, 0].sigmoid()
    assert pair.replaced(ids) == pytest.approx(wanted.tolist(), rel=1e-4)


def test_predictions_hide_the_token_and_rank_it(pair):
    encoded = pair.encode("the owner plays golf")
    found = pair.predictions(encoded, 2, 5)
    scores = pair.token_probabilities(encoded.ids, 3)
    with_other = [*encoded.ids]
    with_other[3] = VOCABULARY.index("cat")  # the generator does not see what stands there
    assert torch.equal(pair.token_probabilities(with_other, 3), scores)
    assert found.token == "plays" and found.probability == pytest.approx(scores[encoded.ids[3]].item())
    assert found.rank == 1 + sum(score > scores[encoded.ids[3]] for score in scores)
    assert found.best[0].probability == scores.max() and len(found.best) == 5


# --- text and tokens ---


@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from([*VOCABULARY, "É", "\n", "中", "😀", "  "])).map("".join))
def test_tokens_and_what_stands_between_them_are_the_text_again(pair, text):
    encoded = pair.encode(text)
    assert "".join(token.before + token.text for token in encoded.tokens) + encoded.tail == text
    assert len(encoded.ids) == len(encoded.tokens) + 2 <= pair.max_tokens


def test_normalised_tokens_lead_back_to_what_was_typed(pair):
    encoded = pair.encode("The CAFÉ unhappily")
    shown = [(token.token, token.text, token.word) for token in encoded.tokens]
    assert shown == [
        ("the", "The", 0),
        ("cafe", "CAFÉ", 1),
        ("un", "un", 2),
        ("##happi", "happi", 2),
        ("##ly", "ly", 2),
    ]


def test_what_the_model_has_no_room_for_is_counted_and_kept(pair):
    text = "golf " * 100
    encoded = pair.encode(text)
    assert len(encoded.ids) == pair.max_tokens == 64 and encoded.num_cut == 100 - 62
    assert "".join(token.before + token.text for token in encoded.tokens) + encoded.tail == text


@pytest.mark.parametrize(
    ("text", "place", "token", "wanted"),
    [
        ("The owner plays.", 1, "cafe", "The cafe plays."),
        ("unhappily", 1, "owner", "un ownerly"),
        ("the owner", 1, "##ly", "thely"),
        ("unhappily", 2, "##ed", "unhappied"),
        ("play, golf", 0, "the", "the, golf"),
    ],
)
def test_a_prediction_is_put_in_as_it_is_meant(pair, text, place, token, wanted):
    assert pair.text_with(pair.encode(text), place, token) == wanted


# --- the game ---


def test_a_round_is_what_the_objective_does_to_a_row(pair):
    encoded = pair.encode("the owner plays golf, and the cafe owner plays unhappily")
    special = pair.tokenizer.special_ids
    objective = Electra(
        pair.generator,
        pair.discriminator,
        mask_token_id=special["mask"],
        pad_token_id=special["pad"],
        sep_token_id=special["sep"],
        mask_ignore_token_ids=[special["cls"], special["sep"]],
        mask_prob=0.3,
        replace_prob=1.0,
        temperature=1.5,
    ).eval()
    ids = torch.tensor([encoded.ids])
    for seed in range(20):
        played = pair.corrupt(encoded, 0.3, 1.5, seed)
        with torch.no_grad():
            out = objective(ids, row_keys(seed, 0, [0]))
        assert played.corrupted == out.corrupted[0].tolist()
        assert played.is_replaced == out.disc_labels[0].tolist()
        assert sum(played.is_chosen) == out.counts.sum()
        assert not played.is_chosen[0] and not played.is_chosen[-1]


def test_special_tokens_are_never_chosen(pair):
    encoded = pair.encode("the [MASK] owner [SEP] plays golf")
    special = set(pair.tokenizer.special_ids.values())
    for seed in range(30):
        played = pair.corrupt(encoded, 0.9, 2.0, seed)
        assert played == pair.corrupt(encoded, 0.9, 2.0, seed) and any(played.is_replaced)
        for place, number in enumerate(encoded.ids):
            assert not (played.is_chosen[place] and number in special)
            assert played.is_chosen[place] or played.corrupted[place] == number


def test_a_right_sample_counts_as_original(tmp_path):
    pair = open_pair(write_pair(tmp_path))
    encoded = pair.encode("golf golf the golf")
    golf = encoded.ids[1]
    pair.generator.model.generator_lm_head.bias[golf] += 1000  # it says nothing else
    played = pair.corrupt(encoded, 0.9)
    assert played.is_chosen[1:-1] == [True] * 4
    assert played.is_replaced == [False, False, False, True, False, False]
    assert played.corrupted[1:-1] == [golf] * 4


def test_a_round_is_spelled_without_giving_itself_away(pair):
    encoded = pair.encode("The CAFÉ, unhappily")
    assert pair.spell(encoded.ids) == ["the", " cafe", " ,", " un", "happi", "ly"]
    parts = pair.spell(encoded.ids)
    direct = pair.replaced(encoded.ids)[1:-1]
    assert pair.replaced_in(parts) == pytest.approx(direct, rel=1e-4)  # the same tokens, found by their place


def test_another_tokenizer_reads_the_same_text(tmp_path, pair):
    other = open_pair(write_pair(tmp_path / "other", vocabulary=[*VOCABULARY[:-2], "unhappily"]))
    parts = pair.spell(pair.encode("the owner plays unhappily").ids)
    scores = other.replaced_in(parts)
    theirs = other.replaced(other.encode("the owner plays unhappily").ids)[1:-1]
    assert len(scores) == 6 and len(theirs) == 4
    assert scores == pytest.approx([*theirs[:3], *[theirs[3]] * 3])


# --- where it lies ---


def test_runs_checkpoints_and_single_networks_open(tiny, tmp_path):
    run = pretrain(tiny(steps=2))
    text = "some text"
    whole = open_pair(run.path)
    assert whole.replaced(whole.encode(text).ids) == open_pair(run.checkpoint).replaced(whole.encode(text).ids)
    assert open_pair(run.checkpoint).name == f"{run.path.name} {run.checkpoint.name}"
    alone = open_pair(run.checkpoint / "discriminator")
    assert alone.generator is None and alone.discriminator is not None
    with pytest.raises(UserError, match="has no generator"):
        alone.predictions(alone.encode(text), 0)
    words = open_pair(run.checkpoint / "generator")
    assert words.discriminator is None and words.generator is not None
    with pytest.raises(UserError, match="has no discriminator"):
        words.replaced(words.encode(text).ids)
    both = open_pair(run.checkpoint / "discriminator", generator=run.checkpoint / "generator")
    assert both.predictions(both.encode(text), 0) == whole.predictions(whole.encode(text), 0)


def test_a_masked_language_model_is_a_generator_wherever_it_lies(tiny):
    run = pretrain(tiny(steps=1, objective={"kind": "mlm"}, generator=None, share="nothing"))
    pair = open_pair(run)
    assert pair.generator is not None and pair.discriminator is None


def test_a_name_on_the_hub_is_taken_from_the_cache(tmp_path, monkeypatch, folder):
    import huggingface_hub.constants as hub

    snapshot = tmp_path / "models--me--mine" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(folder, snapshot)
    (tmp_path / "models--me--mine" / "refs").mkdir()
    (tmp_path / "models--me--mine" / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    pair = open_pair("me/mine")
    assert pair.name == "mine" and pair.generator is not None and pair.discriminator is not None


def damaged(folder: Path, tmp_path: Path, **changes) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return copy


def test_what_is_no_pair_is_refused_in_one_line(tmp_path, folder, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    cases = {
        tmp_path / "nothing/here": "there is no folder",
        tmp_path / "empty": "no model in .*empty",
        tmp_path / "file": "is a file",
        tmp_path / "run": "has no checkpoint yet",
        damaged(folder, tmp_path, architectures=["ElectraForSequenceClassification"]): "is a ElectraForSequenceClass",
    }
    for place, message in cases.items():
        with pytest.raises(UserError, match=message) as found:
            open_pair(place)
        assert "\n" not in str(found.value)


def test_pickles_code_and_half_a_model_are_refused(tmp_path, folder):
    pickled = tmp_path / "pickled"
    shutil.copytree(folder, pickled)
    (pickled / "model.safetensors").unlink()
    (pickled / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle"):
        open_pair(pickled)

    coded = damaged(folder, tmp_path, model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    (coded / "mine.py").write_text("raise SystemExit('owned')")
    with pytest.raises(UserError, match="wants to run Python code of its own") as found:
        open_pair(coded)
    assert "trust_remote_code" not in str(found.value)

    headless = tmp_path / "headless"
    shutil.copytree(folder, headless)
    transformers.ElectraModel.from_pretrained(folder).save_pretrained(headless)
    shutil.copy(folder / "config.json", headless)
    with pytest.raises(UserError, match=r"incomplete: discriminator_predictions.* is missing"):
        open_pair(headless)

    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cannot load .*cut"):
        open_pair(cut)


def test_networks_that_do_not_fit_are_refused(tmp_path, folder):
    other = write_generator(tmp_path / "other", vocabulary=[*VOCABULARY, "more"])
    alone = write_discriminator(tmp_path / "alone")
    with pytest.raises(UserError, match="another vocabulary"):
        open_pair(alone, generator=other)
    with pytest.raises(UserError, match="predicts no words"):
        open_pair(alone, generator=alone)
    with pytest.raises(UserError, match="has 3 labels"):
        open_pair(write_discriminator(tmp_path / "three", "bert", num_labels=3))
    small = write_discriminator(tmp_path / "small", vocab_size=len(VOCABULARY) - 1)
    with pytest.raises(UserError, match=re.escape(f"{len(VOCABULARY) - 1} embeddings for {len(VOCABULARY)} tokens")):
        open_pair(small)
