"""Released pairs of Microsoft: files in their layout, made with transformers; what is refused, and that nothing in a pickle runs."""

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from electrakit.cli.verbs import parse_verb
from electrakit.common.errors import UserError
from electrakit.config.outputs import ConvertConfig, ConvertDebertaConfig
from electrakit.deberta import pickle_reader
from electrakit.deberta.convert import convert_deberta, read_pickle, read_sizes, summary, write_network

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "position_buckets": 8,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}
THEIRS = {
    "relative_attention": True,
    "position_biased_input": False,
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
}
PATH = Path("pytorch_model.bin")


def theirs(num_layers: int = 2) -> transformers.DebertaV2Config:
    return transformers.DebertaV2Config(**{**SIZES, "num_hidden_layers": num_layers}, **THEIRS, legacy=False)


def generator_tensors() -> tuple[transformers.PreTrainedModel, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = transformers.DebertaV2ForMaskedLM(theirs(1)).eval()
    return model, {**model.state_dict(), "deberta.embeddings.position_embeddings.weight": torch.randn(40, 32)}


def discriminator_tensors() -> tuple[transformers.PreTrainedModel, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    model = transformers.DebertaV2Model(theirs()).eval()
    head = {"dense": (32, 32), "LayerNorm": (32,), "classifier": (1, 32)}
    tensors = {f"deberta.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"mask_predictions.{name}.weight": torch.randn(shape) for name, shape in head.items()}
    return model, tensors | {f"mask_predictions.{name}.bias": torch.randn(shape[0]) for name, shape in head.items()}


@pytest.mark.long
def test_a_pair_in_their_layout_becomes_two_folders(tmp_path, monkeypatch):
    (generator, words), (body, detection) = generator_tensors(), discriminator_tensors()
    folder, out = tmp_path / "released", tmp_path / "hf"
    folder.mkdir()
    torch.save(words, folder / "pytorch_model.generator.bin", _use_new_zipfile_serialization=False)
    torch.save(detection, folder / "pytorch_model.bin")
    transformers.DebertaV2Config(**SIZES, **THEIRS).save_pretrained(folder)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
    made = convert_deberta(folder, out, num_heads=4)
    ids = torch.randint(1, 50, (2, 17))
    opened = transformers.AutoModelForMaskedLM.from_pretrained(out / "generator").eval()
    torch.testing.assert_close(opened(ids).logits, generator(ids).logits, rtol=0, atol=1e-5)
    opened = transformers.AutoModel.from_pretrained(out).eval()
    torch.testing.assert_close(opened(ids)[0], body(ids)[0], rtol=0, atol=1e-5)
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "model.safetensors", "mask_predictions.safetensors", "generator"),
        *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "electrakit.json"),
    }
    for words in (
        "2 layers of 32, 50 tokens",
        "enhanced mask decoder",
        "mask_predictions.safetensors",
    ):
        assert words in summary(made)
    with pytest.raises(UserError, match="already holds a converted model"):
        convert_deberta(folder, out)


class Runs:
    """What a hostile pickle would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Takes:
    """What a pickle may do: take as much memory as it names."""

    def __reduce__(self):
        return bytearray, (2**30,)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("in torch's file", "Trying to load unsupported GLOBAL posix.system"),
        ("a plain pickle", "Unsupported operand"),
        ("a list", "it holds a list"),
        ("larger than the file", "its tensors are larger"),
        ("more memory than the file", "MemoryError"),
        ("compressed", "unpacked it is larger than the file"),
        ("empty", "EOFError"),
    ],
)
def test_hostile_files_are_refused_and_run_nothing(kind, reason, tmp_path):
    path, trace = tmp_path / "pytorch_model.bin", tmp_path / "it ran"
    if kind == "in torch's file":
        torch.save({"a": Runs(trace)}, path)
    elif kind == "a plain pickle":
        path.write_bytes(pickle.dumps(Runs(trace)))
    elif kind == "a list":
        torch.save([torch.zeros(1)], path)
    elif kind == "larger than the file":
        torch.save({"a": torch.zeros(1).expand(10**13)}, path)
    elif kind == "compressed":
        torch.save({"a": torch.zeros(10**6)}, tmp_path / "whole")
        with zipfile.ZipFile(tmp_path / "whole") as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as small:
            for name in whole.namelist():
                small.writestr(name, whole.read(name))
    elif kind == "more memory than the file":
        path.write_bytes(pickle.dumps({"a": Takes()}, protocol=2))
    else:
        path.touch()
    with pytest.raises(
        UserError, match=rf"pytorch_model.bin is not read: {reason}.*; only a state dict of plain tensors is"
    ):
        read_pickle(path)
    assert not trace.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.parametrize(
    "deed",
    [
        "open('{folder}/made', 'w')",
        "open('/etc/passwd')",
        "socket.socket()",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 0)",
        "os.unlink('{folder}/there')",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))",
        "bytearray(2**27)",
    ],
)
def test_the_reader_can_do_nothing_once_it_is_locked(deed, tmp_path):
    (tmp_path / "there").touch()
    code = f"""import os, resource, socket, sys
sys.path.insert(0, {str(Path(pickle_reader.__file__).parent)!r})
from pickle_reader import lock
lock(2**26)
assert len(bytearray(2**24)) == 2**24
try:
    {deed.format(folder=tmp_path)}
except (OSError, ValueError, MemoryError) as error:
    os.write(1, b"refused")
os._exit(0)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("refused", "")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


IN_A_CONTAINER = """
import platform, sys
from pathlib import Path
from electrakit.common.errors import UserError
from electrakit.deberta.convert import read_pickle
from electrakit.deberta.pickle_reader import ALLOW, JUMP_IF_EQUAL, LOAD, REFUSE, RETURN, install_filter

prctl = {"x86_64": 157, "aarch64": 167}[platform.machine()]
install_filter([(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, prctl), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)])
try:
    read_pickle(Path(sys.argv[1]))
except UserError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_where_there_is_no_sandbox_the_file_is_not_blamed(tmp_path):
    """As in a container that refuses seccomp."""
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(1)}, path)
    found = subprocess.run([sys.executable, "-c", IN_A_CONTAINER, str(path)], capture_output=True, text=True)
    assert found.stdout == (
        f"{path} is a pickle, which is read safely only on Linux with seccomp (x86_64 or aarch64), and here the kernel refuses seccomp "
        "(prctl 38: Operation not permitted): convert it on such a machine and copy the folder\n"
    )


@pytest.mark.parametrize("name", ["generator", "discriminator"])
@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_a_missing_or_extra_tensor_is_named(name, change, tmp_path):
    tensors = {"generator": generator_tensors, "discriminator": discriminator_tensors}[name]()[1]
    key = "deberta.encoder.layer.0.output.dense.bias"
    if change == "missing":
        del tensors[key]
    elif change == "unknown":
        tensors[key := "deberta.encoder.layer.0.output.gate"] = torch.zeros(3)
    else:
        tensors[key] = torch.zeros(3)
    sizes = read_sizes(tensors, SIZES, 4, PATH)
    with pytest.raises(UserError, match=rf"{key} .*{change}"):
        write_network(name, tensors, sizes, tmp_path, PATH)


def test_a_head_with_a_missing_tensor_is_named(tmp_path):
    tensors = discriminator_tensors()[1]
    del tensors["mask_predictions.dense.bias"]
    with pytest.raises(UserError, match=r"mask_predictions.dense.bias is missing"):
        write_network("discriminator", tensors, read_sizes(tensors, SIZES, 4, PATH), tmp_path, PATH)
    with pytest.raises(UserError, match=r"word_embeddings.weight is missing"):
        read_sizes({}, {}, None, PATH)


def test_what_released_files_have_besides_is_passed_over(tmp_path):
    tensors = {**generator_tensors()[1], **discriminator_tensors()[1]}
    assert "lm_predictions.lm_head.bias" in tensors and "deberta.embeddings.position_embeddings.weight" in tensors
    # deberta-v3-xsmall and mdeberta-v3-base: the differences of GDES, beside the sums.
    for table in ("word", "position"):
        name = f"deberta.embeddings.{table}_embeddings"
        tensors[f"{name}._weight"] = torch.ones_like(tensors[f"{name}.weight"])
    write_network("discriminator", tensors, read_sizes(tensors, SIZES, 4, PATH), tmp_path, PATH)
    written = load_file(tmp_path / "model.safetensors")
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(written[words], tensors[f"deberta.{words}"])


def test_the_positions_of_the_mask_decoder_are_kept_beside_the_generator(tmp_path):
    tensors = generator_tensors()[1]
    sizes = read_sizes(tensors, SIZES, 4, PATH)
    write_network("generator", dict(tensors), sizes, tmp_path, PATH)
    name = "deberta.embeddings.position_embeddings.weight"
    assert torch.equal(load_file(tmp_path / "mask_decoder.safetensors")["weight"], tensors[name])
    tensors[name] = tensors[name][:9]
    with pytest.raises(UserError, match=r"position_embeddings.weight has the shape \(9, 32\), wanted is \(40, 32\)"):
        write_network("generator", tensors, sizes, tmp_path, PATH)


def test_settings_that_do_not_fit_the_tensors_are_named(tmp_path):
    tensors = discriminator_tensors()[1]
    with pytest.raises(UserError, match=r"its hidden size 32 does not divide by 5 heads; name their number"):
        read_sizes(tensors, {}, 5, PATH)
    for wrong in ({"pad_token_id": 50}, {"hidden_dropout_prob": "much"}):
        with pytest.raises(UserError, match=r"cannot load 'pytorch_model\.bin': .*(adding_idx|hidden_dropout_prob)"):
            write_network("discriminator", tensors, read_sizes(tensors, wrong, 4, PATH), tmp_path / "out", PATH)
    assert not (tmp_path / "out").exists()


def test_both_spellings_on_the_command_line():
    wanted = ConvertDebertaConfig(folder=Path("v3"), out=Path("hf"))
    assert parse_verb(["convert", "deberta", "v3", "--out", "hf"]) == wanted
    assert parse_verb(["convert-deberta", "v3", "--out", "hf"]) == wanted
    folder = parse_verb(["convert", "deberta", "--out", "hf"])  # a TensorFlow checkpoint in a folder of this name
    assert folder == ConvertConfig(checkpoint=Path("deberta"), out=Path("hf"))


def test_a_folder_without_their_files_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no pytorch_model.bin"):
        convert_deberta(tmp_path, tmp_path / "out")
