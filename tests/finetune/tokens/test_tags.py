"""Chunks: reading CoNLL files, F1 as conlleval and seqeval define it, and a tiny model that learns them."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import load_transformers_tokenizer
from electrakit.finetune.tasks import TOKEN_TASKS
from electrakit.finetune.tokens.model import load_token_model
from electrakit.finetune.tokens.tags import (
    NO_TAG,
    chunk_scores,
    chunks_of,
    encode_tags,
    read_chunks,
    tag_loss,
    tags_of,
    with_labels,
)
from tests.helpers.tiny_glue import write_model
from tests.helpers.tiny_models import tiny_discriminator
from tests.helpers.tiny_tokens import write_chunks

TASK = TOKEN_TASKS["chunking"]
FAST = {"epochs": 40, "batch_size": 8, "lr": 5e-3, "layer_decay": 1.0, "length": 32, "device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tags")
    sizes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_model(folder / "electra", **sizes)
    write_model(folder / "bert", "bert", **sizes)
    write_chunks(folder / "conll2000")
    return folder


def read(folder, content, split="train"):
    (folder / f"{split}.txt").write_bytes(content.encode())
    return read_chunks(str(folder), TASK, TASK.split(split))


def slow_chunks(tags):
    """Every pair of places is asked whether it is a chunk: it begins one, goes on to its end, and does not go on after it."""

    def begins(place):
        tag = tags[place]
        before = tags[place - 1] if place else "O"
        return tag != "O" and (tag[0] == "B" or before[2:] != tag[2:])

    return {
        (tags[start][2:], start, end)
        for start in range(len(tags))
        for end in range(start, len(tags))
        if begins(start)
        and all(tags[place] != "O" and not begins(place) for place in range(start + 1, end + 1))
        and (end + 1 == len(tags) or tags[end + 1] == "O" or begins(end + 1))
    }


def random_tags(chance):
    return chance.choices(["O", "B-NP", "I-NP", "B-VP", "I-VP", "B-a-b", "I-a-b"], k=chance.randint(1, 12))


def test_chunks_by_hand():
    assert chunks_of(["B-NP", "I-NP", "B-NP", "O", "I-VP", "I-NP", "B-NP"]) == {
        ("NP", 0, 1),
        ("NP", 2, 2),
        ("VP", 4, 4),
        ("NP", 5, 5),
        ("NP", 6, 6),
    }
    assert chunks_of([]) == chunks_of(["O", "O"]) == set()


def test_scores_by_hand():
    answers = [["B-NP", "I-NP", "O", "B-VP"], ["B-NP", "O"]]
    predicted = [["B-NP", "I-NP", "B-VP", "B-VP"], ["B-VP", "O"]]
    scores = chunk_scores(answers, predicted)  # 2 of 4 found are right, 2 of 3 true are found
    assert scores == {"f1": 4 / 7, "precision": 0.5, "recall": 2 / 3, "accuracy": 4 / 6}
    assert chunk_scores([["O"]], [["O"]])["f1"] == 0.0  # as in seqeval: nothing to find is no success


@pytest.mark.parametrize("seed", range(10))
def test_random_tags_have_the_chunks_of_a_slow_reference(seed):
    chance = random.Random(seed)
    for _ in range(100):
        tags = random_tags(chance)
        assert chunks_of(tags) == slow_chunks(tags), tags


def test_scores_are_those_of_seqeval():
    from seqeval import metrics

    chance = random.Random(0)
    for _ in range(50):
        answers = [random_tags(chance) for _ in range(8)]
        predicted = [
            [tag if chance.random() < 0.7 else chance.choice(random_tags(chance)) for tag in each] for each in answers
        ]
        scores = chunk_scores(answers, predicted)
        for name in ("f1", "precision", "recall", "accuracy"):
            assert scores[name] == pytest.approx(getattr(metrics, f"{name}_score")(answers, predicted)), name


def test_a_file_is_read_and_its_tags_are_the_labels(tmp_path):
    content = "-DOCSTART- -X- O\r\n\r\nHe PRP B-NP\r\nruns\tVBZ\tB-VP\r\n \r\n\r\n\r\nNow RB O\r\n"
    found = read(tmp_path, content)
    assert found.words == [["He", "runs"], ["Now"]] and found.tags == [["B-NP", "B-VP"], ["O"]]
    assert found.warnings == ("Chunking train has 2 sentences, the released one 8,936",)
    read(tmp_path, "So IN B-SBAR\nthat IN I-SBAR\n", "test")
    assert with_labels(str(tmp_path), TASK).labels == ("O", "B-NP", "B-SBAR", "I-SBAR", "B-VP")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("He PRP B-NP\nruns\n", r"train\.txt line 2 has one column, 'runs'; needed are a word and its tag"),
        (
            "He PRP B-NP\n\nruns VBZ VP\n",
            r"train\.txt line 3 has the tag 'VP'; tags are O, B-\.\.\. and I-\.\.\. \(IOB2\)",
        ),
        ("\n\n", r"train\.txt has no sentences"),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


def test_the_first_token_of_a_word_carries_its_tag_and_what_is_cut_is_outside(folder, tmp_path):
    read(tmp_path, 'bal."dem X B-NP\nfon X O\ngood X B-VP\nbad X I-VP\n')
    read(tmp_path, "x X O\n", "test")
    task, tokenizer = with_labels(str(tmp_path), TASK), load_transformers_tokenizer(str(folder / "bert"))
    examples = read_chunks(str(tmp_path), task, task.split("train"))
    rows = encode_tags(examples, tokenizer, 32, True)
    assert tokenizer.convert_ids_to_tokens(rows.ids) == ["[CLS]", "bal", ".", '"', "dem", "fon", "good", "bad", "[SEP]"]
    assert rows.word_of.tolist() == [-1, 0, -1, -1, -1, 1, 2, 3, -1]
    wanted = [NO_TAG if place < 0 else task.labels.index(examples.tags[0][place]) for place in rows.word_of]
    assert rows.targets(np.array([0])).tolist() == [wanted]
    logits = np.eye(len(task.labels))[np.maximum(wanted, 0)]
    assert tags_of(task, rows, logits) == examples.tags
    short = encode_tags(examples, tokenizer, 8, True)
    assert short.lengths.tolist() == [8]
    assert tags_of(task, short, logits[:8]) == [["B-NP", "O", "B-VP", "O"]]


def test_the_mean_loss_is_that_of_all_words():
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[NO_TAG, 1, 2, 0], [NO_TAG, 1, NO_TAG, NO_TAG]])
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TAG)
    assert tag_loss(TASK, logits, targets).mean() == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("name", ["squad", "chunking"])
def test_the_output_layer_is_not_that_of_pretraining(tmp_path, family, name):
    """A discriminator's has two labels, as the ends of a span and the tags of a small file have."""
    discriminator = tiny_discriminator(family, id2label={0: "original", 1: "replaced"})
    discriminator.save_pretrained(tmp_path)
    labels = ("O", "B-NP") if name == "chunking" else None
    model = load_token_model(str(tmp_path), replace(TOKEN_TASKS[name], labels=labels), FinetuneSettings()).model
    last = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)][-1]
    assert not torch.equal(last.weight, discriminator.classifier.weight)
    assert torch.equal(model.get_input_embeddings().weight, discriminator.get_input_embeddings().weight)


def test_a_tagger_of_the_same_labels_goes_on(tmp_path):
    labels = ("O", "B-NP")
    tagger = tiny_discriminator("bert", id2label=dict(enumerate(labels)))
    tagger.save_pretrained(tmp_path)
    model = load_token_model(str(tmp_path), replace(TASK, labels=labels), FinetuneSettings()).model
    assert torch.equal(model.classifier.weight, tagger.classifier.weight)


def test_words_that_are_cut_are_counted_and_said(folder, tmp_path):
    read(tmp_path, "bal X B-NP\n" * 70 + "\nbel X O\n")  # the model has 64 positions, two of them for [CLS] and [SEP]
    read(tmp_path, "bal X B-NP\n", "test")
    result = ek.finetune(
        folder / "bert", task="chunking", data=tmp_path, out=tmp_path / "out", **{**FAST, "epochs": 1, "length": 64}
    )
    cut = "Chunking train: 8 of 71 words are cut at 64 tokens and not learned from"
    assert json.loads((tmp_path / "out" / "seed_1.json").read_text())["warnings"].count(cut) == 1
    assert result.medians


@pytest.mark.parametrize("model", ["electra", "bert"])
def test_a_tiny_model_learns_the_chunks(folder, tmp_path, model):
    result = ek.finetune(folder / model, task="chunking", data=folder, out=tmp_path / "out", **FAST)
    assert result.medians["dev"]["f1"] > 0.98
    assert result.task == "tags: 5 tags of words: O, B-NP, I-NP, B-VP, I-VP"
    assert result.test is None  # test.txt is what is scored
    examples = read_chunks(str(folder), TASK, TASK.split("dev"))
    lines = (tmp_path / "out" / "predictions.txt").read_text().splitlines()
    said = [line.split() for line in lines if line]
    assert [fields[:2] for fields in said] == [
        [word, tag]
        for words, tags in zip(examples.words, examples.tags, strict=True)
        for word, tag in zip(words, tags, strict=True)
    ]
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "out" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    inputs = tokenizer(examples.words[0], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        best = again(**inputs).logits[0].argmax(-1)[1:-1]
    assert [again.config.id2label[int(number)] for number in best] == [fields[2] for fields in said[: len(best)]]
    if model == "bert":
        words_of_a_file_are_tagged(tmp_path / "out" / "model", folder / "conll2000" / "test.txt", said, tmp_path)


def words_of_a_file_are_tagged(model, path, said, tmp_path):
    """The file that was scored, as it is and without its tags."""
    found = ek.predict(model, path, out=tmp_path / "tagged.txt", device="cpu")
    lines = (tmp_path / "tagged.txt").read_text().splitlines()
    assert [line.split() for line in lines if line] == [[word, "XX", tag, tagged] for word, tag, tagged in said]
    (tmp_path / "words.txt").write_text("\n".join(line.split()[0] if line else "" for line in lines))
    assert ek.predict(model, tmp_path / "words.txt", device="cpu") == found
    assert [tag for sentence in found for tag in sentence.tags] == [tagged for *_, tagged in said]
    (tmp_path / "long.txt").write_text("bal\n" * 70)  # the model has 64 positions, two of them for [CLS] and [SEP]
    assert ek.predict(model, tmp_path / "long.txt", device="cpu")[0].tags[62:] == ["O"] * 8


@pytest.mark.long
def test_beside_a_dev_file_the_test_file_is_a_test(folder, tmp_path):
    write_chunks(tmp_path / "data", ("train.txt", "dev.txt"))
    write_chunks(tmp_path / "data", ("test.txt",), num_sentences=5)  # the first of those that are learned
    result = ek.finetune(folder / "electra", task="chunk", data=tmp_path / "data", out=tmp_path / "out", **FAST)
    assert result.test["test"]["f1"] > 0.98
    assert (tmp_path / "out" / "test_predictions.txt").read_text().count("\n\n") == 5
    result = json.loads((tmp_path / "out" / "seed_1.json").read_text())
    assert result["kind"] == "tags" and result["files"] == ["predictions.txt"]


def test_a_run_that_learns_nothing_is_marked(folder, tmp_path):
    result = ek.finetune(
        folder / "bert", task="chunking", data=folder, out=tmp_path / "out", **{**FAST, "lr": 1e-12, "epochs": 8}
    )
    assert any("did not fall" in reason for reason in result.collapsed["1"])
