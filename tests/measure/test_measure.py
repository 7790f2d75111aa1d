"""The yardsticks of `electra measure`: equal to slow loops over transformers, and to scikit-learn."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.metrics
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit import UserError, export, measure, pretrain, report
from electrakit.data.corruptions import CorruptedRows
from electrakit.measure import probes
from electrakit.measure.corruptions import auc, corruption_scores, spaced
from electrakit.measure.measure import find_place
from electrakit.measure.minimal_pairs import minimal_pairs, parse_pair, read_pairs, sentence_scores
from electrakit.measure.open import open_networks
from electrakit.measure.results import measures_from_json, measures_notes, measures_table, merge_into_file
from tests.helpers.command_line import electra
from tests.helpers.slow_scores import SENTENCES, slow_score
from tests.helpers.tiny_pairs import VOCABULARY, write_discriminator, write_generator, write_pair


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]], **more: str) -> Path:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, **more}) for good, bad in pairs]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def blimp(tmp_path) -> Path:
    folder = write_pairs(tmp_path / "blimp", "first", list(pairwise(SENTENCES)), linguistics_term="islands")
    write_pairs(folder, "second", [("the cat sat", "the chef sat")], UID="two", linguistics_term="islands")
    return write_pairs(folder, "third", [("The CAT", "the cat"), ("play golf", "golf play")])


# Token scores and minimal pairs


@pytest.mark.parametrize(
    ("write", "family"),
    [
        (write_discriminator, "electra"),
        (write_discriminator, "bert"),
        (write_discriminator, "deberta-v2"),
        (write_generator, "bert"),
        (write_generator, "electra"),
    ],
)
def test_sentence_scores_are_those_of_a_slow_loop_over_transformers(tmp_path, write, family):
    folder = write(tmp_path / f"{family}_{'words' if write is write_generator else 'replaced'}", family)
    (network,) = open_networks(folder)
    assert sentence_scores(network, SENTENCES) == pytest.approx(
        [slow_score(folder, text) for text in SENTENCES], rel=1e-4
    )


def test_pairs_are_counted_by_paradigm_and_phenomenon(tmp_path, blimp):
    folder = write_discriminator(tmp_path / "electra")
    (network,) = open_networks(folder)
    found = minimal_pairs(network, read_pairs(blimp))
    scores = dict(zip(SENTENCES, sentence_scores(network, SENTENCES), strict=True))
    first = np.mean([scores[good] > scores[bad] for good, bad in pairwise(SENTENCES)])
    good, bad = sentence_scores(network, ["the cat sat", "the chef sat"])
    golf, play = sentence_scores(network, ["play golf", "golf play"])
    # The tokens of "The CAT" and "the cat" are the same: a half.
    wanted = {"first": first, "two": float(good > bad), "third": (0.5 + float(golf > play)) / 2}
    assert found.paradigms == pytest.approx(wanted)
    assert found.accuracy == pytest.approx(np.mean(list(wanted.values())))
    assert found.phenomena == pytest.approx({"islands": (wanted["first"] + wanted["two"]) / 2})
    assert found.num_pairs == found.num_of == 7


def test_a_limit_takes_evenly_spaced_pairs_of_each_file(tmp_path, blimp):
    (network,) = open_networks(write_discriminator(tmp_path / "electra"))
    found = minimal_pairs(network, read_pairs(blimp), limit=2)
    assert found.num_pairs == 5 and found.num_of == 7


def test_masked_lms_score_a_hundred_pairs_of_a_file_by_default(tmp_path):
    pairs = write_pairs(tmp_path / "pairs", "many", [("the cat", "cat the")] * 150)
    discriminator, generator = open_networks(write_pair(tmp_path / "pair"))
    files = read_pairs(pairs)
    assert [minimal_pairs(one, files).num_pairs for one in (discriminator, generator)] == [150, 100]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is not a JSON object"),
        ('{"sentence_good": "a"}', "line 1 has no sentence_bad; it has sentence_good"),
        ('{"sentence_good": "a", "sentence_bad": 3}', "line 1: sentence_bad is 3; it must be a text"),
        ('{"sentence_good": " ", "sentence_bad": "b"}', "line 1: sentence_good is ' '"),
        ("", "has no pairs"),
    ],
)
def test_a_bad_file_is_named_with_its_line_and_key(tmp_path, line, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(UserError, match=r"pairs\.jsonl") as error:
        read_pairs(path)
    assert message in str(error.value) and "\n" not in str(error.value)


@given(line=st.text(max_size=30) | st.builds(json.dumps, st.recursive(st.none() | st.text(), st.lists, max_leaves=3)))
def test_any_line_is_a_pair_or_a_user_error(line):
    with pytest.raises(UserError):
        parse_pair(line, Path("pairs.jsonl"), 1)


def test_a_folder_without_pairs_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no \.jsonl file"):
        read_pairs(tmp_path)
    with pytest.raises(UserError, match=r"cannot read --pairs .*nothing: No such file"):
        read_pairs(tmp_path / "nothing")


# Corruptions


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda each: len(set(each)) == 2),
    seed=st.integers(0, 99),
    num_values=st.sampled_from([2, 5, 1000]),
)
def test_auc_is_that_of_scikit_learn(labels, seed, num_values):
    scores = np.random.default_rng(seed).integers(0, num_values, len(labels)) / 7
    found = auc(np.array(labels), scores)
    assert found.value == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores))


def test_the_standard_error_of_auc_is_its_spread_over_samples():
    chance = np.random.default_rng(0)
    labels = np.arange(300) < 100
    found = [auc(labels, chance.normal(size=300) + labels) for _ in range(400)]
    spread = np.std([one.value for one in found])
    assert np.mean([one.standard_error for one in found]) == pytest.approx(spread, rel=0.1)
    assert math.isnan(auc(np.ones(3, bool), np.arange(3.0)).value)


def test_corruptions_score_the_chosen_tokens_of_each_row(tmp_path):
    folder = write_pair(tmp_path / "pair")
    chance = np.random.default_rng(0)
    ids = chance.integers(5, len(VOCABULARY), (6, 12))
    ids[:, 0], ids[:, -1] = 2, 3
    ids[3, 7:] = [3, 0, 0, 0, 0]
    is_changed = chance.random(ids.shape) < 0.3
    is_scored = (ids > 4) & (chance.random(ids.shape) < 0.7)
    rows = CorruptedRows(ids, is_changed, is_scored)
    discriminator, generator = open_networks(folder)
    found = corruption_scores(discriminator, {"one": rows})["one"]
    model = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    tensor = torch.tensor(ids)
    with torch.no_grad():
        logits = model(tensor, attention_mask=tensor != 0).logits.numpy()
    wanted = sklearn.metrics.roc_auc_score(is_changed[is_scored], logits[is_scored])
    assert found.value == pytest.approx(wanted) and found.num_tokens == is_scored.sum()
    assert 0 < corruption_scores(generator, {"one": rows})["one"].value < 1


def test_spaced_keeps_so_many_of_those_that_are_true():
    is_chosen = np.arange(100).reshape(10, 10) % 3 == 0
    assert spaced(is_chosen, 7).sum() == 7 and not (spaced(is_chosen, 7) & ~is_chosen).any()
    assert (spaced(is_chosen, 1000) == is_chosen).all() and not spaced(is_chosen & False).any()


# Probes


def made_up(num_classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    chance = np.random.default_rng(1)
    features = chance.normal(size=(200, 8))
    outputs = features @ chance.normal(size=(8, num_classes)) + chance.normal(size=(200, num_classes))
    targets = outputs[:, 0] if num_classes == 1 else outputs.argmax(-1)
    return torch.tensor(features), torch.tensor(targets, dtype=torch.double)


def test_ridge_is_that_of_scikit_learn():
    features, targets = made_up(1)
    theirs = sklearn.linear_model.Ridge(alpha=0.3 * 200).fit(features, targets).predict(features)
    for form in (features, features.to_sparse()):
        model = probes.fit(form, targets, probes.squared_error, 1, 0.3)
        assert model(features)[:, 0].numpy() == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_logistic_regression_is_that_of_scikit_learn(num_classes):
    features, targets = made_up(num_classes)
    theirs = sklearn.linear_model.LogisticRegression(C=1 / (0.05 * 200), tol=1e-8, max_iter=1000).fit(features, targets)
    loss, num_outputs = (probes.two_classes, 1) if num_classes == 2 else (probes.many_classes, num_classes)
    for form in (features, features.to_sparse()):
        outputs = probes.fit(form, targets, loss, num_outputs, 0.05)(features)
        ones = outputs.sigmoid() if num_classes == 2 else outputs.softmax(-1)
        chances = torch.cat([1 - ones, ones], -1) if num_classes == 2 else ones
        assert chances.numpy() == pytest.approx(theirs.predict_proba(features), abs=1e-4)


def write_table(path: Path, rows: list[tuple[str, ...]], header: str = "sentence\tlabel") -> Path:
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def tables(tmp_path) -> tuple[Path, Path]:
    """Whether there is a cat: counting knows it."""
    chance = np.random.default_rng(0)
    rows = []
    for number in range(80):
        words = list(chance.choice(["the", "a", "chef", "ate", "meal", "window", "warm"], 4))
        rows.append((" ".join([*words, "cat"] if number % 3 == 0 else words), "yes" if number % 3 == 0 else "no"))
    folder = tmp_path / "cats"
    folder.mkdir()
    return write_table(folder / "train.tsv", rows[:60]), write_table(folder / "dev.tsv", rows[60:])


def test_states_are_pooled_over_real_tokens(tmp_path):
    folder = write_generator(tmp_path / "words", "bert")
    (network,) = open_networks(folder)
    found = probes.text_states(network, SENTENCES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    body = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval().base_model
    for place, text in enumerate(SENTENCES):
        with torch.no_grad():
            states = body(**tokenizer(text, return_tensors="pt"))[0][0]
        assert found["mean"][place].tolist() == pytest.approx(states.mean(0).tolist(), abs=1e-4)
        assert found["cls"][place].tolist() == pytest.approx(states[0].tolist(), abs=1e-4)


@pytest.mark.long
def test_probes_are_shown_beside_counting_and_the_majority(tmp_path, tables):
    train, dev = tables
    body = transformers.ElectraForPreTraining.from_pretrained(write_discriminator(tmp_path / "electra")).electra
    headless = tmp_path / "headless"
    body.save_pretrained(headless)
    open_networks(tmp_path / "electra")[0].tokenizer.save(headless)
    (found,) = measure(headless, train=train, dev=dev)
    (one,) = measure(tmp_path / "electra", train=train, dev=dev)
    assert found.network == "encoder" and one.network == "discriminator" and found.probes == one.probes
    probe = found.probes["cats"]
    assert probe.metric == "accuracy" and (probe.num_train, probe.num_dev) == (60, 20)
    assert probe.baselines["words"]["accuracy"] == 1.0
    assert probe.baselines["majority"]["accuracy"] == pytest.approx(13 / 20)
    assert (
        probe.scores["mean"]["accuracy"] > 13 / 20
    )  # the word is a thirtieth of the vocabulary: a linear model sees it
    assert measures_table([found]).header == ["network", "cats mean", "cats [CLS]"]
    with pytest.raises(UserError, match="has no head that scores tokens"):
        measure(headless, pairs=write_pairs(tmp_path / "pairs", "one", [("a", "the")]))


def test_two_texts_and_numbers_are_probed_by_ridge(tmp_path):
    chance = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        first, second = (chance.choice(VOCABULARY[5:25], 3, replace=False) for _ in range(2))
        rows.append((" ".join(first), " ".join(second), f"{len({*first} & {*second}) + 0.5}"))
    train, dev = (
        write_table(tmp_path / f"{name}.tsv", part, "sentence1\tsentence2\tscore")
        for name, part in (("overlap", rows[:45]), ("dev", rows[45:]))
    )
    (found,) = measure(write_discriminator(tmp_path / "electra"), train=train, dev=dev)
    probe = found.probes["overlap"]
    assert probe.metric == "spearman" and "majority" not in probe.baselines
    assert probe.baselines["words"]["spearman"] > 0.8


# The verb


def test_a_run_is_measured_and_its_file_keeps_earlier_steps(tiny, blimp, tables, tmp_path, capsys):
    run = pretrain(tiny(steps=6, save_every=3, keep_last=2))
    first = run.path / "checkpoints" / "step_0000003"
    measure(first, rows=8)
    file = run.path / "measure.json"
    assert {one["step"] for one in json.loads(file.read_text())["networks"]} == {3}
    train, dev = tables
    code = electra(
        *("measure", run.path, "--rows", 8, "--pairs", blimp, "--pairs-limit", 2), *("--train", train, "--dev", dev)
    )
    assert code == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown for word in ("swapped", "blimp", "cats", "chance", "tf-idf of words", "generator", "islands")
    )
    found = measures_from_json(json.loads(file.read_text()))
    assert [(one.step, one.network) for one in found] == [
        (3, "discriminator"),
        (3, "generator"),
        (6, "discriminator"),
        (6, "generator"),
    ]
    (ways,) = found[2].corruptions.values()
    assert list(ways) == ["frequency", "neighbours", "swapped", "elsewhere"]

    # A second look at the same step keeps what it does not measure again, also under another name.
    moved = run.path.rename(tmp_path / "moved")
    measure(moved, rows=4)
    again = measures_from_json(json.loads((moved / "measure.json").read_text()))
    assert len(again) == 4 and again[2].pairs == found[2].pairs and again[2].probes == found[2].probes
    assert again[2].corruptions != found[2].corruptions and {one.model for one in again} == {"moved"}

    # Card and report show them.
    card = (export(moved, tmp_path / "hf").path / "README.md").read_text()
    assert "## Yardsticks" in card and "| moved discriminator | 6 |" in card and "tf-idf of words" in card
    page = report([moved], out=tmp_path / "report.html", png=False).read_text()
    assert "Yardsticks" in page and "moved discriminator" in page
    (moved / "measure.json").write_text("{}")
    assert "Yardsticks" not in report([moved], out=tmp_path / "report.html", png=False).read_text()
    with pytest.raises(UserError, match=r"measure\.json is not what electra measure wrote"):
        measure(moved, rows=4)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"networks": [1]}', '{"networks": [], "notes": "theirs"}'])
def test_a_file_with_anything_else_is_refused_and_stays(tmp_path, content):
    (tmp_path / "measure.json").write_text(content)
    with pytest.raises(UserError, match=r"measure\.json is not what electra measure wrote"):
        merge_into_file(tmp_path / "measure.json", [], is_of_run=False)
    assert (tmp_path / "measure.json").read_text() == content


def test_an_exported_folder_is_not_changed_and_out_takes_all(tmp_path, blimp):
    folders = [write_pair(tmp_path / name, seed=seed) for name, seed in (("one", 1), ("two", 5))]
    before = sorted(folders[0].rglob("*"))
    out = tmp_path / "out" / "all.json"
    found = measure(folders, pairs=blimp, out=out)
    assert sorted(folders[0].rglob("*")) == before
    assert measures_from_json(json.loads(out.read_text())) == found and len(found) == 4
    assert "all" not in measures_notes(found)[0] and "7 of 7 pairs" in measures_notes(found)[0]


def test_what_cannot_be_measured_is_said_in_one_line(tmp_path, tiny, shards, blimp, tables, capsys):
    folder = write_pair(tmp_path / "pair")
    for arguments, message in (
        ([folder], "nothing to measure of"),
        ([folder, "--data", shards], "has another vocabulary"),
        ([folder, "--train", tables[0]], "--dev is missing"),
        ([folder, "--pairs", blimp, "--pairs-limit", 0], "--pairs-limit must be above 0"),
        ([folder, "--pairs", blimp, "--label", "x"], "--text and --label name columns"),
        ([folder, "--pairs", blimp, "--out", tmp_path], "is a folder; name a file"),
    ):
        assert electra("measure", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error


def test_a_checkpoint_belongs_to_its_run(tiny):
    run = pretrain(tiny(steps=2))
    of_run, of_checkpoint = find_place(str(run.path), None), find_place(str(run.checkpoint), None)
    assert (of_run.name, of_run.step, of_run.data) == (of_checkpoint.name, of_checkpoint.step, of_checkpoint.data)
    assert of_run.step == 2 and of_run.data is not None
