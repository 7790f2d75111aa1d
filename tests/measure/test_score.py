"""`electra score`: one score for each line, equal to slow loops over transformers."""

import io

import pytest
import torch
import transformers

from electrakit import UserError, export, presets, pretrain, score
from electrakit.config.pretrain import override
from electrakit.measure.open import open_networks
from electrakit.playground.open import open_pair
from electrakit.runs.files import read_metrics
from tests.helpers.command_line import electra
from tests.helpers.slow_scores import SENTENCES, slow_score
from tests.helpers.tiny_pairs import write_discriminator, write_generator, write_pair

SMALL = {"num_layers": 1, "hidden_size": 32, "ffn_size": 64, "num_heads": 2, "embedding_size": 32}


@pytest.mark.parametrize(
    ("write", "family"),
    [(write_discriminator, "electra"), (write_generator, "electra"), (write_generator, "bert")],
)
def test_scores_are_those_of_a_slow_loop(tmp_path, write, family):
    kind = "words" if write is write_generator else "replaced"
    folder = write(tmp_path / f"{family}_{kind}", family)
    lines = [*SENTENCES, "", SENTENCES[0]]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    found = score(folder, tmp_path / "lines.txt")
    assert [one.text for one in found] == lines
    for one in found:
        expected = slow_score(folder, one.text) if one.text else 0.0
        assert one.score == pytest.approx(expected, abs=1e-4)
    assert found[0] == found[-1] and found[-2].num_tokens == 0


def test_standard_output_gets_the_same_bytes_as_a_file_whatever_its_encoding(tmp_path, monkeypatch):
    folder = write_discriminator(tmp_path / "hf", "electra")
    (tmp_path / "lines.txt").write_text("the ж — 日本\n", encoding="utf-8")
    assert electra("score", folder, tmp_path / "lines.txt", "--out", tmp_path / "scores.tsv") == 0
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert electra("score", folder, tmp_path / "lines.txt") == 0
    assert written.getvalue() == (tmp_path / "scores.tsv").read_bytes()
    assert "日本" in written.getvalue().decode("utf-8")


@pytest.fixture(scope="module")
def electric(shards, tmp_path_factory):
    config = presets.electric_small(data=shards, run=tmp_path_factory.mktemp("runs") / "electric")
    settings = {"length": 32, "vocab_size": 120, "steps": 3, "batch_size": 8, "micro_batch": 8, "log_every": 1}
    settings |= {"valid_every": 2, "save_every": 2, "valid_rows": 16, "precision": "fp32"}
    return pretrain(override(config, settings, dict.fromkeys(config.networks, SMALL)))


@pytest.mark.parametrize("is_exported", [False, True])
def test_an_electric_is_scored_by_its_energies(electric, tmp_path, is_exported):
    place = electric.path
    if is_exported:
        place = tmp_path / "hf"
        export(electric, place)
        assert "-energy" in (place / "README.md").read_text()
        with pytest.raises(UserError, match="use electra score"):
            open_pair(place)
    (tmp_path / "lines.txt").write_text("ba be\nbe\n")
    [network] = open_networks(place)
    assert network.gives_energies and network.name == "discriminator"
    folder = place if is_exported else electric.checkpoint / "discriminator"
    model = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    assert model.config.electrakit_logits == "energy"
    for one in score(place, tmp_path / "lines.txt"):
        ids = torch.tensor(network.encode([one.text]))
        with torch.no_grad():
            assert one.score == pytest.approx(-model(ids).logits[0, 1:-1].sum().item(), abs=1e-4)


def test_the_log_of_an_electric_has_what_the_report_draws(electric):
    assert {"mlm_loss", "disc_loss", "disc_acc", "gen_acc", "replaced_rate"} <= electric.metrics()[0].keys()
    valid = [line for line in read_metrics(electric.path) if line["split"] == "valid"]
    assert {"disc_auc", "auc_swapped", "loss"} <= valid[-1].keys()
    assert valid[-1]["loss"] == pytest.approx(valid[-1]["mlm_loss"] + 50 * valid[-1]["disc_loss"])


def test_the_command_writes_a_table_or_prints_it(tmp_path, capsys):
    pair, lines = write_pair(tmp_path / "pair"), tmp_path / "lines.txt"
    lines.write_text("the\tcat\n" + "golf " * 600 + "\n")
    electra("score", str(pair), str(lines), "--out", str(tmp_path / "new" / "scores.tsv"))
    assert "2 lines; 1 are longer" in capsys.readouterr().out
    header, first, second = [row.split("\t") for row in (tmp_path / "new" / "scores.tsv").read_text().splitlines()]
    assert header == ["score", "tokens", "cut", "text"]
    assert first[1:] == ["2", "0", "the cat"] and int(second[1]) + int(second[2]) == 600
    electra("score", str(pair), str(lines), "--network", "generator")
    printed = capsys.readouterr().out.splitlines()[1].split("\t")
    assert float(printed[0]) == pytest.approx(score(pair, lines, network="generator")[0].score, abs=1e-5)
    assert printed[0] != first[0]


def test_bad_input_is_one_line(tmp_path):
    lines = tmp_path / "lines.txt"
    folder = write_discriminator(tmp_path / "electra", "electra")
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        score(folder, lines)
    lines.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="not UTF-8"):
        score(folder, lines)
    lines.write_text("\n\n")
    with pytest.raises(UserError, match="has no text"):
        score(folder, lines)
    lines.write_text("golf\n")
    with pytest.raises(UserError, match="has no generator"):
        score(folder, lines, network="generator")
    with pytest.raises(UserError, match="is a folder"):
        score(folder, lines, out=tmp_path)
    with pytest.raises(UserError, match="no folder"):
        score(tmp_path / "nothing here", lines)
