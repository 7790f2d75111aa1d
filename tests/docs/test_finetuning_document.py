"""The document on fine-tuning is true: every command in it is run on small data, with fewer seeds, trials and epochs."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.command_line import electra
from tests.helpers.documents import PROJECT, finetuning_commands
from tests.helpers.tiny_glue import WORDS, write_glue, write_model
from tests.helpers.tiny_tokens import mrqa_lines, squad, write_chunks, write_mrqa, write_squad

DOCUMENT = PROJECT / "docs" / "finetuning.md"
QUICK = {
    "glue": ["--epochs", "1", "--workers", "1", "--length", "32"],
    "finetune": ["--epochs", "1", "--threads", "1", "--length", "40"],
    "search": ["--epochs", "1", "--workers", "1", "--length", "32"],
    "predict": [],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The names that the document uses."""
    monkeypatch.chdir(tmp_path)
    write_glue(Path("glue"), num_train=12, num_dev=6, num_test=2)
    write_model(Path("hf/mine"))
    write_model(Path("hf/alectra"), "albert")
    write_squad(Path("squad"), num_questions=3)
    write_squad(Path("squad"), num_questions=3, is_second=True)
    for name in ("train", "dev"):
        write_mrqa(Path(f"newsqa/{name}.jsonl.gz"), mrqa_lines(3))
    write_chunks(Path("conll2000"), num_sentences=4)
    rows = "".join(f"{word} {sign}\t{sign}\n" for word in WORDS[:4] for sign in ("good", "bad"))
    for name in ("train", "dev", "test"):
        Path(f"{name}.tsv").write_text(f"text\tlabel\n{rows}")
    Path("more.csv").write_text("text\ngood bal\n")
    paragraph = squad()["data"][0]["paragraphs"][0]
    Path("questions.jsonl").write_text(json.dumps({"question": "bal", "context": paragraph["context"]}))
    Path("words.txt").write_text("bal\ndem\n\nfon\n")
    return tmp_path


@pytest.mark.long
def test_the_commands_run(folder, capsys):
    found = finetuning_commands()
    verbs = [shlex.split(command)[1] for command in found]
    assert set(verbs) == set(QUICK) and len(found) >= 17
    for command, verb in zip(found, verbs, strict=True):
        if "--download" in command:
            continue  # it needs the network
        quick = re.sub(r"--(seeds|trials) \d+", r"--\1 1", command)
        if verb in ("glue", "search") and "--seeds" not in quick:
            quick += " --seeds 1"
        if verb == "search" and "--trials" not in quick:
            quick += " --trials 1"
        if verb == "glue":
            quick += " --tasks rte mnli"
        assert electra(*shlex.split(quick)[1:], *QUICK[verb]) == 0, f"{command}\n{capsys.readouterr().err}"
    for name in (
        "runs/squad2/model",
        "runs/search/rte/best.json",
        "answers/null_odds.json",
        "runs/my-task/results.html",
    ):
        assert (folder / name).exists(), name
