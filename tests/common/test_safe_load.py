"""Loading: nothing that is named by a path can run code of its own, and the refusal says what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import electrakit as ek
from electrakit.common.safe_load import explain_load_errors, require_safe
from electrakit.config.finetune import FinetuneSettings
from electrakit.finetune.classifier import load_classifier, load_transformers_tokenizer, open_classifier
from electrakit.finetune.job import hidden_size
from electrakit.finetune.tasks import TASKS, TOKEN_TASKS
from electrakit.finetune.tokens.model import load_token_model
from electrakit.model.huggingface.write_model import open_model
from electrakit.train.initial_weights import load_model
from tests.helpers.tiny_glue import write_model

PLACES: dict[str, Callable[[str], Any]] = {  # everything in the package that opens a model
    "require_safe": require_safe,
    "classifier": lambda place: load_classifier(place, TASKS["rte"]),
    "finished classifier": open_classifier,
    "spans": lambda place: load_token_model(place, TOKEN_TASKS["squad"], FinetuneSettings()),
    "size": hidden_size,
    "pretraining": lambda place: load_model(place, "words"),
    "export": lambda place: open_model(Path(place)),
}
CODE = "from pathlib import Path\nPath({place!r}).write_text('run')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.promise("Models", "pickled weights", "refused, nothing runs")
@pytest.mark.parametrize("name", PLACES)
def test_pickled_weights_are_refused_everywhere(folder, name):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(
        ek.UserError, match=r"pytorch_model\.bin, a pickle that could run any code: .*save_pretrained"
    ) as error:
        PLACES[name](str(folder))
    assert "\n" not in str(error.value)


def test_microsofts_pickles_have_a_way_out_of_their_own(folder):
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "pytorch_model.generator.bin"):
        torch.save({}, folder / name)
    with pytest.raises(ek.UserError, match=rf"electra convert-deberta {folder} --out"):
        require_safe(str(folder))
    name = "microsoft/deberta-v3-small"
    with (
        pytest.raises(ek.UserError, match=f"{name}' has no .*electra convert-deberta FOLDER"),
        explain_load_errors(name),
    ):
        raise OSError("It cannot be loaded with `safetensors`. Please do not set `use_safetensors=True`.")


@pytest.mark.parametrize("name", PLACES)
def test_pickles_that_an_index_of_safetensors_names_are_refused_everywhere(folder, name):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    torch.save(weights, folder / "part.bin")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "part.bin")}))
    with pytest.raises(ek.UserError, match=r"has its weights in part\.bin \(by model.*, which is no safetensors"):
        PLACES[name](str(folder))
    index.write_text("[]")
    with pytest.raises(ek.UserError, match=r"index\.json cannot be read"):
        PLACES[name](str(folder))


def test_weights_in_several_files_are_loaded(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "part.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_classifier(str(folder), TASKS["rte"])


@pytest.mark.promise("Models", "Python code beside a model", "never run")
@pytest.mark.parametrize("name", PLACES)
def test_code_beside_a_model_is_refused_everywhere_and_never_run(folder, tmp_path, name):
    trace = tmp_path / "trace"
    (folder / "configuration_own.py").write_text(CODE.format(place=str(trace)))
    change(folder / "config.json", model_type="own", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    with pytest.raises(
        ek.UserError, match=r"wants to run Python code of its own \(auto_map\), which we never do; name"
    ) as error:
        PLACES[name](str(folder))
    assert "\n" not in str(error.value) and "trust_remote_code" not in str(error.value)
    assert not trace.exists()


def test_code_beside_a_model_that_transformers_knows_is_not_needed_and_not_run(folder, tmp_path):
    trace = tmp_path / "trace"
    (folder / "own.py").write_text(CODE.format(place=str(trace)))
    change(folder / "config.json", auto_map={"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"})
    assert load_classifier(str(folder), TASKS["rte"])
    assert not trace.exists()


@pytest.mark.promise("Models", "Python code beside a tokenizer", "never run")
def test_a_tokenizer_with_code_is_refused_or_read_without_it(folder, tmp_path):
    trace = tmp_path / "trace"
    (folder / "own.py").write_text(CODE.format(place=str(trace)))
    maps = {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}
    change(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=maps)
    try:
        load_transformers_tokenizer(str(folder))
    except ek.UserError as error:
        assert "wants to run Python code of its own" in str(error)
    assert ek.load_tokenizer(folder).special_ids["mask"] == 4  # from tokenizer.json, which is data
    assert not trace.exists()


def test_a_folder_that_is_no_model_is_named(folder, tmp_path):
    (folder / "config.json").write_text("[]")
    with pytest.raises(ek.UserError, match=r"config\.json cannot be read"):
        require_safe(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ek.UserError, match=r"has no config\.json"):
        require_safe(str(folder))
    with pytest.raises(ek.UserError, match="is not a folder"):
        require_safe(str(tmp_path / "not" / "there"))


def test_a_run_or_the_folder_of_a_fine_tuning_is_not_a_model_and_the_way_to_one_is_said(folder, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "step_0000010").mkdir(parents=True)
    (run / "config.json").write_text('{"settings": {}, "data": {}}')
    for name in ("model.safetensors", "state.json"):
        (run / "checkpoints" / "step_0000010" / name).write_text("{}")
    for place in (run, run / "checkpoints" / "step_0000010"):
        with pytest.raises(ek.UserError, match=f"'{place}' is a run, not a model; electra export {place} --out"):
            require_safe(str(place))
    with pytest.raises(ek.UserError, match=f"is not a model itself; name the one in it: {folder}$"):
        require_safe(str(tmp_path))  # with model/ in it
