"""Every verb that writes: files that are not ours are never changed or removed, and an input is never inside an output."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import electrakit as ek
from electrakit.common.ownership import MARKER
from electrakit.finetune import download
from electrakit.finetune.tasks import TASKS
from electrakit.report.figures import FIGURES
from tests.helpers.command_line import electra
from tests.helpers.tiny_glue import WORDS, write_glue, write_model

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow"
PRECIOUS = b"precious"


class Command(NamedTuple):
    """How a verb is called, what it reads, and what it may write."""

    arguments: Callable[[Path], list[Any]]
    """The inputs, in a folder -> the arguments without the output."""
    names: tuple[str, ...]
    """In the folder of the output; of a verb that writes a file, none."""
    inputs: tuple[str, ...]
    """Folders and files that it reads, and that must not be replaced."""
    flag: str = "--out"
    can_overwrite: bool = False


MODEL = ("config.json", "model.safetensors", "tokenizer.json", "generator/config.json", "notes.txt")
RESULTS = ("config.json", "results.json")
TUNING = ["--device", "cpu", "--workers", 1, "--epochs", 1, "--length", 16]


def finetune_arguments(place: Path) -> list[Any]:
    files = ["--train", place / "train.tsv", "--dev", place / "train.tsv", "--test", place / "train.tsv"]
    return ["finetune", place / "model", *files, "--threads", 1, *TUNING]


COMMANDS = {
    "tokenizer": Command(
        lambda place: ["tokenizer", place / "corpus.txt", "--vocab-size", 90, "--workers", 1],
        ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "notes.txt"),
        ("corpus.txt",),
        can_overwrite=True,
    ),
    "prepare": Command(
        lambda place: [
            *("prepare", place / "corpus.txt", "--tokenizer", place / "tokenizer"),
            *("--workers", 1, "--length", 32),
        ],
        (
            *("manifest.json", "sources.jsonl", "skipped.jsonl", "train-00000.bin", "valid-00003.bin.partial"),
            *("tokenizer/vocab.txt", ".prepare/plan.json", ".prepare/progress.json", ".prepare/seen.bin"),
        ),
        ("tokenizer",),
    ),
    "pretrain": Command(
        lambda place: [
            *("pretrain", "tiny", "--data", place / "shards", "--steps", 1, "--length", 32),
            *("--init-discriminator", place / "hf"),
        ],
        (
            *("config.json", "environment.json", "status.json", "metrics.jsonl"),
            *("checkpoints/step_0000001/notes.txt", "tensorboard/notes.txt"),
        ),
        ("shards", "hf"),
        flag="--run",
    ),
    "export": Command(lambda place: ["export", place / "run"], MODEL, ("run",), can_overwrite=True),
    "convert": Command(lambda place: ["convert", place / "tensorflow"], MODEL, ("tensorflow",), can_overwrite=True),
    "convert deberta": Command(
        lambda place: ["convert", "deberta", place / "microsoft"], MODEL, ("microsoft",), can_overwrite=True
    ),
    "finetune": Command(
        finetune_arguments,
        (
            *RESULTS,
            *("results.html", "model/config.json", "test.tsv"),
            *("seed_1.json", "seed_1/config.json", "seed_1.test.safetensors"),
        ),
        ("model", "train.tsv"),
    ),
    "glue": Command(
        lambda place: ["glue", place / "model", "--data", place / "glue", "--tasks", "rte", "--seeds", 1, *TUNING],
        (
            *RESULTS,
            *("results.md", "results.html", "scores.png", "losses.png", "submission.zip"),
            *("rte/seed_1.json", "rte/seed_1/config.json", "rte/notes.txt"),
        ),
        ("model", "glue"),
    ),
    "search": Command(
        lambda place: ["search", place / "model", "--data", place / "glue", "--task", "rte", "--trials", 1, *TUNING],
        (*RESULTS, "results.md", "best.json", "search.db", "trials/0001/seed_1.json"),
        ("model", "glue"),
    ),
    "report": Command(lambda place: ["report", place / "run", "--no-png"], (), ("run",), can_overwrite=True),
    "predict": Command(
        lambda place: ["predict", place / "classifier", place / "train.tsv"],
        (),
        ("classifier", "train.tsv"),
        can_overwrite=True,
    ),
    "score": Command(
        lambda place: ["score", place / "hf", place / "corpus.txt"], (), ("hf", "corpus.txt"), can_overwrite=True
    ),
    "measure": Command(lambda place: ["measure", place / "hf", "--data", place / "shards"], (), ("hf", "shards")),
}  # fmt: skip
FOLDERS = [verb for verb, command in COMMANDS.items() if command.names]
FILES = [verb for verb, command in COMMANDS.items() if not command.names]


@pytest.fixture(scope="module")
def inputs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each thing that a verb reads."""
    place = tmp_path_factory.mktemp("inputs")
    shutil.copy(shards.parent / "corpus.txt", place)
    shutil.copytree(shards.parent / "tokenizer", place / "tokenizer")
    shutil.copytree(shards, place / "shards")
    shutil.copytree(GOLDEN, place / "tensorflow")
    put(place / "microsoft" / "pytorch_model.bin")
    settings = {
        "length": 32,
        "vocab_size": 120,
        "batch_size": 8,
        "micro_batch": 8,
        "precision": "fp32",
        "valid_rows": 8,
    }
    run = ek.pretrain(ek.presets.tiny(data=place / "shards", run=place / "run", steps=2, **settings))
    ek.export(run, place / "hf")
    write_model(place / "model")
    lines = [f"{word} {'good' if number % 2 else 'bad'}\t{number % 2}" for number, word in enumerate(WORDS[:12])]
    (place / "train.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    files = {"train": place / "train.tsv", "dev": place / "train.tsv"}
    ek.finetune(place / "model", **files, out=place / "tuned", epochs=1, device="cpu", threads=1, length=16)
    (place / "tuned" / "model").rename(place / "classifier")
    write_glue(place / "glue")
    return place


def tree(folder: Path) -> dict[str, bytes | Path | None]:
    """Everything that is there: contents of files, targets of links."""
    found: dict[str, bytes | Path | None] = {}
    for path in sorted(folder.rglob("*")):
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path.relative_to(folder).as_posix()] = content
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    assert electra(*arguments) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("electra: ")]
    assert len(lines) == 1 and "Traceback" not in error, error
    return lines[0]


def put(path: Path, content: bytes = PRECIOUS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# Files of others under our names


@pytest.mark.promise(
    "Files of others", "a foreign file under each of our names, every verb", "refused, nothing written"
)
@pytest.mark.parametrize(
    ("verb", "name"), [(verb, name) for verb in FOLDERS for name in (*COMMANDS[verb].names, MARKER)]
)
def test_a_file_of_others_under_one_of_our_names_is_refused_and_nothing_is_written(
    inputs, tmp_path, capsys, verb, name
):
    command, out = COMMANDS[verb], tmp_path / "out"
    put(out / name)
    before = tree(tmp_path)
    line = refused(capsys, *command.arguments(inputs), command.flag, out)
    assert str(out) in line and Path(name).parts[0] in line.replace("/.prepare", " .prepare"), line
    if command.can_overwrite:  # what is not ours stays, also then
        refused(capsys, *command.arguments(inputs), command.flag, out, "--overwrite")
    assert tree(tmp_path) == before


@pytest.mark.promise(
    "Files of others", "a foreign file at the place of an output file", "refused, or kept under another name"
)
@pytest.mark.parametrize("verb", FILES)
def test_a_file_of_others_where_a_file_goes_is_refused_or_kept_under_another_name(inputs, tmp_path, capsys, verb):
    command, out = COMMANDS[verb], put(tmp_path / "out.tsv")
    arguments = [*command.arguments(inputs), "--out", out]
    before = tree(tmp_path)
    assert str(out) in refused(capsys, *arguments)
    assert tree(tmp_path) == before
    if command.can_overwrite:
        assert electra(*arguments, "--overwrite") == 0
        assert (tmp_path / "out.1.tsv").read_bytes() == PRECIOUS != out.read_bytes()
        written = out.read_bytes()
        assert electra(*arguments) == 0  # what we wrote is recognised
        assert not (tmp_path / "out.2.tsv").exists() and len(out.read_bytes()) == len(written)


@pytest.mark.promise("Files of others", "foreign pictures beside a report", "refused")
@pytest.mark.parametrize("name", [*FIGURES, "glue"])
def test_pictures_of_others_are_refused(inputs, tmp_path, capsys, name):
    picture = put(tmp_path / "out" / f"{name}.png")
    before = tree(tmp_path)
    assert str(picture) in refused(capsys, "report", inputs / "run", "--out", tmp_path / "out.html")
    assert tree(tmp_path) == before


@pytest.mark.promise("Files of others", "an output of another verb", "refused")
@pytest.mark.parametrize("verb", ["run", "shards", "hf", "tokenizer", "classifier"])
def test_a_folder_of_ours_of_another_kind_is_refused(inputs, tmp_path, capsys, verb):
    shutil.copytree(inputs / verb, tmp_path / "out")
    kind = {"run": "export", "shards": "pretrain"}.get(verb, "pretrain")
    before = tree(tmp_path)
    assert "holds" in refused(capsys, *COMMANDS[kind].arguments(inputs), COMMANDS[kind].flag, tmp_path / "out")
    assert tree(tmp_path) == before


# Inputs and outputs


@pytest.mark.promise("Files of others", "input = output, input inside output, links", "refused, nothing written")
@pytest.mark.parametrize("how", ["same", "link", "around", "link around", "dots"])
@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb in COMMANDS for name in COMMANDS[verb].inputs])
def test_an_input_is_never_the_output_nor_inside_it(inputs, tmp_path, capsys, verb, name, how):
    command, place, inside = COMMANDS[verb], tmp_path / "place", tmp_path / "folder" / name
    place.mkdir()
    inside.parent.mkdir()
    for path in inputs.iterdir():
        (place / path.name).symlink_to(inside if path.name == name else path)
    if (inputs / name).is_dir():
        shutil.copytree(inputs / name, inside)
    else:
        shutil.copy(inputs / name, inside)
    (tmp_path / "around").symlink_to(inside.parent)
    out = {
        "same": inside,
        "link": place / name,
        "around": inside.parent,
        "link around": tmp_path / "around",
        "dots": inside.parent / ".." / "folder" / name,
    }[how]
    before = tree(tmp_path)
    for more in ([], ["--overwrite"]) if command.can_overwrite else ([],):
        assert str(out) in refused(capsys, *command.arguments(place), command.flag, out, *more)
        assert tree(tmp_path) == before


def test_scores_for_the_card_are_never_inside_the_export(inputs, tmp_path, capsys):
    put(tmp_path / "out" / "glue" / "results.json")
    arguments = ["export", inputs / "run", "--glue", tmp_path / "out" / "glue", "--out", tmp_path / "out"]
    assert "holds the input" in refused(capsys, *arguments)


@pytest.mark.promise("Files of others", "a report at the place of a file of its run", "refused, nothing written")
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "checkpoints/report.html"])
def test_a_report_never_takes_the_place_of_what_it_is_made_of(inputs, tmp_path, capsys, name):
    run = Path(shutil.copytree(inputs / "run", tmp_path / "run"))
    before = tree(tmp_path)
    refused(capsys, "report", run, "--no-png", "--overwrite", "--out", run / name)
    assert tree(tmp_path) == before


@pytest.mark.promise("Files of others", "output inside a part of an input", "refused, nothing written")
@pytest.mark.parametrize(
    ("verb", "inside"),
    [
        ("export", "run/checkpoints/mine"),
        ("export", "run/tensorboard/mine"),
        ("finetune", "model/generator/mine"),
        ("pretrain", "shards/tokenizer/mine"),
        ("predict", "classifier/out.tsv"),
        ("score", "hf/scores.tsv"),
        ("measure", "hf/measure.json"),
    ],
)
def test_an_output_is_never_inside_a_part_of_an_input(inputs, tmp_path, capsys, verb, inside):
    shutil.copytree(inputs, tmp_path / "place", symlinks=True)
    before = tree(tmp_path)
    refused(capsys, *COMMANDS[verb].arguments(tmp_path / "place"), COMMANDS[verb].flag, tmp_path / "place" / inside)
    assert tree(tmp_path) == before


@pytest.mark.long
def test_results_may_lie_in_the_run_and_in_the_model(inputs, tmp_path):
    run, model = (Path(shutil.copytree(inputs / name, tmp_path / name)) for name in ("run", "model"))
    assert ek.export(run, run / "hf").path == run / "hf"
    assert ek.report([run], out=run / "report.html", png=False).exists()
    files = {"train": inputs / "train.tsv", "dev": inputs / "train.tsv"}
    ek.finetune(model, **files, out=model / "mine", epochs=1, device="cpu", threads=1, length=16)
    assert (model / "mine" / "model").is_dir()


# What is ours


def test_a_model_in_the_working_directory_survives_finetuning_into_it(inputs, tmp_path, capsys, monkeypatch):
    shutil.copytree(inputs / "model", tmp_path / "model")
    put(tmp_path / "model" / "notes.txt")
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = [argument if argument != inputs / "model" else "model" for argument in finetune_arguments(inputs)]
    assert "holds the input model" in refused(capsys, *arguments, "--out", ".")
    assert tree(tmp_path) == before


@pytest.mark.promise("Files of others", "a file under a name that an earlier call did not write", "refused")
def test_a_name_that_an_earlier_call_did_not_write_is_not_ours(inputs, tmp_path, capsys):
    out = Path(shutil.copytree(inputs / "tuned", tmp_path / "out"))  # without --test
    put(out / "test.tsv")
    before = tree(out)
    assert "test.tsv was not written by electrakit" in refused(capsys, *finetune_arguments(inputs), "--out", out)
    assert tree(out) == before


@pytest.mark.promise("Files of others", "notes of the user inside our folders", "kept")
def test_foreign_files_beside_ours_survive_a_second_call(inputs, tmp_path):
    out = tmp_path / "out"
    put(out / "notes.txt")
    arguments = [*finetune_arguments(inputs), "--out", out]
    assert electra(*arguments) == 0
    put(out / "model" / "notes.txt")
    assert electra(*arguments) == 0
    assert (out / "notes.txt").read_bytes() == (out / "model" / "notes.txt").read_bytes() == PRECIOUS
    assert json.loads((out / MARKER).read_text())["kind"] == "finetune"
    assert json.loads((out / "model" / MARKER).read_text())["kind"] == "model"
    # An earlier version wrote no marker.
    for folder in (out, out / "model", out / "seed_1"):
        (folder / MARKER).unlink()
    (out / "model" / "vocabulary.txt").write_bytes(PRECIOUS)
    assert electra(*arguments) == 0
    assert (out / "model" / "notes.txt").read_bytes() == (out / "model" / "vocabulary.txt").read_bytes() == PRECIOUS


@pytest.mark.promise("Files of others", "export --overwrite over changed files", "kept under another name")
def test_an_export_is_replaced_on_request_and_what_is_not_ours_is_kept(inputs, tmp_path, capsys):
    out = Path(shutil.copytree(inputs / "hf", tmp_path / "hf"))
    put(out / "notes" / "mine.txt")
    (out / "linked").symlink_to(inputs / "run")
    card = (out / "README.md").read_text()
    (out / "README.md").write_text(card + "more")
    arguments = ["export", inputs / "run", "--out", out]
    assert "would be lost" in refused(capsys, *arguments)
    assert electra(*arguments, "--overwrite") == 0
    assert (out / "notes" / "mine.txt").read_bytes() == PRECIOUS and (out / "linked").is_symlink()
    assert (out / "README.1.md").read_text() == card + "more" and not (out / "README.md").read_text().endswith("more")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("verb", ["tokenizer", "convert"])
def test_a_second_time_needs_overwrite(inputs, tmp_path, capsys, verb):
    out = tmp_path / "out"
    arguments = [*COMMANDS[verb].arguments(inputs), "--out", out]
    assert electra(*arguments) == 0
    put(out / "notes.txt")
    before = tree(out)
    assert "add --overwrite" in refused(capsys, *arguments)
    assert electra(*arguments, "--overwrite") == 0
    assert tree(out) == before  # the same bytes again, and the notes


@pytest.mark.promise("Files of others", "foreign files under our hidden names", "refused")
@pytest.mark.parametrize("hidden", [".out.unfinished/notes.txt", ".out.replaced/notes.txt"])
def test_hidden_names_beside_an_output_are_looked_into(inputs, tmp_path, capsys, hidden):
    put(tmp_path / hidden)
    before = tree(tmp_path)
    assert str(tmp_path / hidden.split("/")[0]) in refused(capsys, "export", inputs / "run", "--out", tmp_path / "out")
    assert tree(tmp_path) == before


def test_downloaded_files_of_others_are_kept(tmp_path, monkeypatch):
    item, name = TASKS["rte"].downloads[0], "RTE/train.tsv"
    monkeypatch.setattr(download, "fetch_bytes", lambda item: b"")
    monkeypatch.setattr(download, "unpack", lambda content: {name: b"released", "RTE/dev.tsv": b"released"})
    put(tmp_path / name)
    with pytest.raises(ek.UserError, match=r"train\.tsv is not the released file"):
        download.fetch(item, tmp_path)
    assert tree(tmp_path) == {"RTE": None, name: PRECIOUS}
