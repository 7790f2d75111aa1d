"""The whole walk with each kind of tokenizer: shards, a run that masks whole words, an export, measures, fine-tuning."""

import pytest
import transformers

import electrakit as ek
from electrakit.config.pretrain import override
from electrakit.playground.open import open_pair
from tests.helpers.scripts import TEXTS, train, write_corpus

SMALL = {"num_layers": 1, "hidden_size": 32, "ffn_size": 64, "num_heads": 2, "embedding_size": 32}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_from_text_to_predictions(tmp_path, kind):
    corpus = write_corpus(tmp_path)
    tokenizer = train(tmp_path / "tokenizer", kind, corpus)
    shards = ek.prepare([corpus], tokenizer=tokenizer, out=tmp_path / "shards", length=32, valid=0.2, workers=1)
    settings = {"length": 32, "steps": 2, "batch_size": 8, "micro_batch": 8, "log_every": 1, "valid_rows": 16}
    settings |= {"precision": "fp32", "objective": {"whole_words": True}, "optim": {"warmup_steps": 1}}
    config = ek.presets.tiny(data=shards, run=tmp_path / "run")
    run = ek.pretrain(override(config, settings, dict.fromkeys(config.networks, SMALL)))
    ek.export(run, tmp_path / "hf")
    ours = ek.load_tokenizer(tokenizer).tokenizer
    checkpoint = next((tmp_path / "run" / "checkpoints").glob("step_*")) / "discriminator"
    for folder in (shards / "tokenizer", checkpoint, tmp_path / "hf", tmp_path / "hf" / "generator"):
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        for text in TEXTS.values():
            assert theirs(text)["input_ids"] == ours.encode(text).ids, folder
    assert open_pair(tmp_path / "hf").encode(TEXTS["thai"]).ids == ours.encode(TEXTS["thai"]).ids
    ek.measure([tmp_path / "hf"], data=shards, out=tmp_path / "measure.json")
    rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate([*TEXTS.values()] * 2))
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    ek.finetune(
        tmp_path / "hf",
        train=tmp_path / "train.tsv",
        dev=tmp_path / "dev.tsv",
        out=tmp_path / "task",
        epochs=1,
        seeds=1,
    )
    saved = next(path.parent for path in (tmp_path / "task").rglob("tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(str(saved))
    assert all(theirs(text)["input_ids"] == ours.encode(text).ids for text in TEXTS.values())
