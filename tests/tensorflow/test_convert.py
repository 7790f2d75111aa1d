"""Google's TensorFlow checkpoints: read bit for bit, computed with as in numpy, and damage of any kind is a message."""

import functools
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy.special import erf
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertTokenizer,
    ElectraForMaskedLM,
    ElectraForPreTraining,
)

import electrakit as ek
from electrakit.cli.main import main
from electrakit.tensorflow.checkpoint_reader import TensorFlowCheckpoint, masked_crc32c, numpy_crc32c
from electrakit.tensorflow.convert import convert, find_prefix, summary
from tests.helpers.tiny_tensorflow import (
    NUM_SHARDS,
    POSITIONS,
    SIZES,
    VOCAB,
    entry,
    field,
    masked,
    numbers,
    slow_crc32c,
    table_bytes,
    variables,
    with_block,
    write_checkpoint,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow"
PREFIX = GOLDEN / "model.ckpt-1234"
rows_of_ids = torch.tensor([[2, 7, 31, 9, 3, 12, 12, 30, 3, 0], [2, 4, 18, 3, 34, 5, 4, 4, 21, 3]])


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def write_tiny(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    return write_checkpoint(folder / "model.ckpt-1", tensors, num_shards=2)


# --- the reader --------------------------------------------------------------------------------------------------------


def test_every_tensor_that_tensorflow_wrote_is_read_bit_for_bit():
    checkpoint, expected = TensorFlowCheckpoint(PREFIX), variables()
    assert checkpoint.num_shards == NUM_SHARDS == len({one.shard for one in checkpoint.entries.values()})
    assert checkpoint.shapes == {name: array.shape for name, array in expected.items()}
    for name, array in expected.items():
        assert same(checkpoint.read(name), array), name


@given(st.binary(max_size=2000), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_the_fast_checksums_are_the_slow_one(data, repeats):
    data = data * repeats
    array = np.frombuffer(data, np.uint8)
    assert numpy_crc32c(array) == slow_crc32c(data)
    assert masked_crc32c(array) == masked(data)


def test_the_checksum_is_that_of_the_standard():
    expected = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E}  # RFC 3720, B.4
    for data, checksum in expected.items():
        assert numpy_crc32c(np.frombuffer(data, np.uint8)) == checksum


def test_a_checkpoint_is_read_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)  # an import of it fails
    with pytest.raises(ImportError):
        import google_crc32c  # noqa: F401
    assert same(TensorFlowCheckpoint(PREFIX).read("global_step"), variables()["global_step"])


DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]
ARRAYS = st.builds(
    lambda dtype, shape, name: (numbers(name, tuple(shape)) * 100).astype(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=4),
    st.text(max_size=3),
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(st.dictionaries(NAMES, ARRAYS, max_size=30), st.integers(1, 4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tensors_of_any_name_type_and_shape_come_back(tmp_path, tensors, num_shards):
    checkpoint = TensorFlowCheckpoint(write_checkpoint(tmp_path / "any", tensors, num_shards))
    assert set(checkpoint.entries) == set(tensors)
    assert all(same(checkpoint.read(name), array) for name, array in tensors.items())


def test_bfloat16_is_read_as_float32(tmp_path):
    halves = np.array([0x3F80, 0xC0A0, 0x0000], np.uint16)  # 1, -5, 0
    write_checkpoint(
        tmp_path / "a", {"x": halves.view(np.int16)}, entries={"x": entry(halves.view(np.int16), 0, 0, dtype=14)}
    )
    assert TensorFlowCheckpoint(tmp_path / "a").read("x").tolist() == [1, -5, 0]


# --- damage --------------------------------------------------------------------------------------------------------------

SMALL = {
    "electra/embeddings/LayerNorm/beta": numbers("beta", (8,)),
    "electra/embeddings/LayerNorm/gamma": numbers("gamma", (2, 3)),
    "global_step": np.array(1234, np.int64),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("small") / "small", SMALL, num_shards=2)


def files_of(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{prefix.name}.*"))


def copied(prefix: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for path in files_of(prefix):
        shutil.copy(path, folder)
    return folder / prefix.name


def check_same_or_error(prefix: Path) -> None:
    """What is read is what was written, or a message of one line names the file."""
    try:
        checkpoint = TensorFlowCheckpoint(prefix)
        found = {name: checkpoint.read(name) for name in checkpoint.entries}
    except ek.UserError as error:
        assert str(prefix) in str(error) and "\n" not in str(error)
    else:
        assert set(found) == set(SMALL)
        assert all(same(found[name], array) for name, array in SMALL.items())


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_byte_changes_nothing_or_is_reported(small, tmp_path, data):
    prefix = copied(small, tmp_path / "flipped")
    path = data.draw(st.sampled_from(files_of(prefix)))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    check_same_or_error(prefix)


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_cut_or_grown_changes_nothing_or_is_reported(small, tmp_path, data):
    prefix = copied(small, tmp_path / "cut")
    path = data.draw(st.sampled_from(files_of(prefix)))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] + data.draw(st.binary(max_size=60)))
    check_same_or_error(prefix)


@given(st.binary(max_size=40), st.binary(max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_index_with_good_checksums_around_nonsense_is_reported(tmp_path, header, nonsense):
    (tmp_path / "a.index").write_bytes(table_bytes({b"": header, b"x": nonsense}))
    (tmp_path / "a.data-00000-of-00001").write_bytes(b"abcd")
    try:
        checkpoint = TensorFlowCheckpoint(tmp_path / "a")
        checkpoint.read("x")
    except ek.UserError as error:
        assert str(tmp_path / "a") in str(error)


ONE = np.arange(6, dtype=np.float32)
LIES = {
    "a giant shape": ({"shape": (2**40, 2**40)}, "not what the shape"),
    "a giant size": ({"size": 2**62}, "not what the shape"),
    "both": ({"shape": (2**60,), "size": 2**62}, "ends at byte"),
    "a giant offset": ({"offset": 2**63}, "ends at byte"),
    "another shard": ({"shard": 99}, r"a\.data-00099-of-00001 is missing"),
    "text": ({"dtype": 7}, "type 7"),
    "an unknown type": ({"dtype": 999}, "type 999"),
    "hundred dimensions": ({"shape": (6, *[1] * 99)}, "not what the shape"),
    "nothing, in a giant shape": ({"shape": (0, 2**62, 2**62), "size": 0, "crc": 0xA282EAD8}, "has the shape"),
    "another checksum": ({"crc": 1}, "checksum differs"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_entry_that_lies_is_reported(tmp_path, lie):
    changes, message = LIES[lie]
    write_checkpoint(tmp_path / "a", {"x": ONE}, entries={"x": entry(ONE, 0, 0, **changes)})
    with pytest.raises(ek.UserError, match=message):
        TensorFlowCheckpoint(tmp_path / "a").read("x")


def test_what_is_not_read_is_reported(tmp_path):
    index = tmp_path / "a.index"
    cases = {
        "missing": None,
        "has 0 bytes": b"",
        "another kind of file": b"x" * 100,
        "header is missing": table_bytes({b"x": b""}),
        "big-endian": table_bytes({b"": field(1, 1) + field(2, 1)}),
    }
    for message, content in cases.items():
        if content is not None:
            index.write_bytes(content)
        with pytest.raises(ek.UserError, match=rf"a\.index.*{message}"):
            TensorFlowCheckpoint(tmp_path / "a")
    sliced = entry(ONE, 0, 0) + field(7, b"")
    write_checkpoint(tmp_path / "a", {"x": ONE}, entries={"x": sliced})
    with pytest.raises(ek.UserError, match="partitioned"):
        TensorFlowCheckpoint(tmp_path / "a").read("x")
    write_checkpoint(tmp_path / "a", {"x": ONE})
    (tmp_path / "a.data-00000-of-00001").unlink()
    with pytest.raises(ek.UserError, match=r"a\.data-00000-of-00001 is missing"):
        TensorFlowCheckpoint(tmp_path / "a").read("x")
    index.unlink()
    index.mkdir()
    with pytest.raises(ek.UserError, match=r"cannot read .*a\.index"):
        TensorFlowCheckpoint(tmp_path / "a")


def test_a_compressed_block_is_reported(tmp_path):
    content = table_bytes({b"": field(1, 1)})
    first = with_block(b"", {b"": field(1, 1)}, 16)[0]  # with a 0 behind it, for "not compressed", and the checksum
    assert content.startswith(first)
    block = first[:-5] + b"\1"
    compressed = block + masked(block).to_bytes(4, "little")
    (tmp_path / "a.index").write_bytes(compressed + content[len(first) :])
    with pytest.raises(ek.UserError, match="compressed"):
        TensorFlowCheckpoint(tmp_path / "a")


# --- the models ----------------------------------------------------------------------------------------------------------


def layer_norm(hidden: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = hidden - hidden.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}/LayerNorm/gamma"] + weights[f"{name}/LayerNorm/beta"]


def dense(hidden: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return hidden @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def gelu(hidden: np.ndarray) -> np.ndarray:
    return hidden * 0.5 * (1 + erf(hidden / np.sqrt(2)))


def encode(ids: np.ndarray, weights: dict[str, np.ndarray], body: str, embeddings: str, num_heads: int) -> np.ndarray:
    """A row of ids (T) without padding -> (T, H), as the paper and BERT's describe it, from the variables themselves."""
    is_second = (np.cumsum(ids == VOCAB.index("[SEP]")) - (ids == VOCAB.index("[SEP]"))) > 0
    place = f"{embeddings}/embeddings"
    hidden = weights[f"{place}/word_embeddings"][ids] + weights[f"{place}/position_embeddings"][: len(ids)]
    hidden = layer_norm(hidden + weights[f"{place}/token_type_embeddings"][is_second.astype(int)], weights, place)
    if f"{body}/embeddings_project/kernel" in weights:
        hidden = dense(hidden, weights, f"{body}/embeddings_project")
    for number in range(SIZES[body][0]):
        layer = f"{body}/encoder/layer_{number}"
        query, key, value = (
            dense(hidden, weights, f"{layer}/attention/self/{kind}").reshape(len(ids), num_heads, -1)
            for kind in ("query", "key", "value")
        )
        mixed = np.zeros_like(query)
        for head in range(num_heads):
            scores = np.exp(query[:, head] @ key[:, head].T / np.sqrt(query.shape[-1]))
            mixed[:, head] = scores / scores.sum(-1, keepdims=True) @ value[:, head]
        attended = dense(mixed.reshape(len(ids), -1), weights, f"{layer}/attention/output/dense")
        hidden = layer_norm(hidden + attended, weights, f"{layer}/attention/output")
        wide = gelu(dense(hidden, weights, f"{layer}/intermediate/dense"))
        hidden = layer_norm(hidden + dense(wide, weights, f"{layer}/output/dense"), weights, f"{layer}/output")
    return hidden


def slow_logits(tensors: dict[str, np.ndarray], ids: np.ndarray, num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """The discriminator's logits (T) and the generator's (T, V) of a row."""
    weights = {name: array.astype(np.float64) for name, array in tensors.items()}
    hidden = gelu(
        dense(encode(ids, weights, "electra", "electra", num_heads), weights, "discriminator_predictions/dense")
    )
    replaced = dense(hidden, weights, "discriminator_predictions/dense_1")[:, 0]
    body = "generator" if "generator/encoder/layer_0/output/dense/kernel" in weights else "electra"
    embeddings = "generator" if "generator/embeddings/word_embeddings" in weights else "electra"
    heads = 1 if body == "generator" else num_heads
    guess = gelu(dense(encode(ids, weights, body, embeddings, heads), weights, "generator_predictions/dense"))
    guess = layer_norm(guess, weights, "generator_predictions")
    words = guess @ weights[f"{embeddings}/embeddings/word_embeddings"].T + weights["generator_predictions/output_bias"]
    return replaced, words


def without_generator_body(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As with untied_generator=False: the generator is the discriminator's body with another head."""
    kept = {name: array for name, array in tensors.items() if not name.startswith("generator/")}
    kernel = "generator_predictions/dense/kernel"
    return kept | {kernel: numbers(kernel, (SIZES["electra"][1], tensors[kernel].shape[1]))}


KINDS = {
    "as released": lambda: variables(),
    "own embeddings": lambda: variables(has_own_embeddings=True),
    "one body": lambda: without_generator_body(variables()),
}


@pytest.mark.parametrize("num_heads", [None, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_a_slow_electra_on_the_variables(tmp_path, kind, num_heads):
    tensors = KINDS[kind]()
    prefix = PREFIX if kind == "as released" else write_tiny(tmp_path / "checkpoint", tensors)
    made = convert(prefix, tmp_path / "hf", num_heads=num_heads)
    discriminator = ElectraForPreTraining.from_pretrained(made.out).eval()
    generator = ElectraForMaskedLM.from_pretrained(made.generator).eval()
    sep, pad = VOCAB.index("[SEP]"), VOCAB.index("[PAD]")
    assert discriminator.config.pad_token_id == generator.config.pad_token_id == pad
    second = ((rows_of_ids == sep).cumsum(-1) - (rows_of_ids == sep).long() > 0).long()
    inputs = {"input_ids": rows_of_ids, "attention_mask": rows_of_ids != pad, "token_type_ids": second}
    with torch.no_grad():
        replaced, words = discriminator(**inputs).logits.numpy(), generator(**inputs).logits.numpy()
    for row, ids in enumerate(rows_of_ids.numpy()):
        real = ids[ids != pad]
        slow_replaced, slow_words = slow_logits(tensors, real, num_heads or 1)
        assert np.ptp(slow_replaced) > 0.1 and np.ptp(slow_words) > 0.1  # not a comparison of constants
        np.testing.assert_allclose(replaced[row, : len(real)], slow_replaced, atol=2e-5)
        np.testing.assert_allclose(words[row, : len(real)], slow_words, atol=2e-5)


@pytest.mark.parametrize(("width", "heads"), [(16, 1), (64, 1), (128, 2), (144, 2)])
def test_there_is_a_head_for_each_64_of_the_width(tmp_path, width, heads):
    sizes = {"electra": (1, width, 4), "generator": (1, 64, 4)}
    made = convert(write_tiny(tmp_path / "a", variables(sizes=sizes)), tmp_path / "hf")
    assert made.settings["discriminator"]["num_attention_heads"] == heads
    assert made.settings["generator"]["num_attention_heads"] == 1
    assert f"hidden size {width}, feed-forward 4, heads {heads}," in summary(made)


def test_every_tensor_is_used_or_named_as_left_out(tmp_path):
    tensors = variables() | {"generator_predictions/temperature": np.float32([1])}
    made = convert(write_tiny(tmp_path / "a", tensors), tmp_path / "hf")
    slots = {name for name in tensors if name.endswith(("adam_m", "adam_v"))}
    assert set(made.left_out) == slots | {"global_step", "generator_predictions/temperature"}
    assert "Left out: 12 of the optimizer, generator_predictions/temperature, global_step." in summary(made)
    assert made.num_steps == 1234
    weights = [ElectraForPreTraining.from_pretrained(made.out), ElectraForMaskedLM.from_pretrained(made.generator)]
    found = [
        np.sort(array.detach().numpy().ravel()).tobytes() for model in weights for array in model.state_dict().values()
    ]
    for name in set(tensors) - set(made.left_out):
        assert np.sort(tensors[name].ravel()).tobytes() in found, name


MISSING = [
    "electra/embeddings/word_embeddings",
    "electra/embeddings/LayerNorm/beta",
    "electra/embeddings_project/kernel",
    "electra/encoder/layer_1/attention/self/key/bias",
    "discriminator_predictions/dense_1/kernel",
    "generator/encoder/layer_0/intermediate/dense/kernel",
    "generator_predictions/output_bias",
]


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_tensor_is_named_and_nothing_is_written(tmp_path, name):
    tensors = variables()
    del tensors[name]
    prefix = write_tiny(tmp_path / "a", tensors)
    with pytest.raises(ek.UserError, match=f"lacks '{name}'"):
        convert(prefix, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_layer_that_is_missing_between_others_is_named(tmp_path):
    tensors = {
        name.replace("electra/encoder/layer_1/", "electra/encoder/layer_7/"): one for name, one in variables().items()
    }
    with pytest.raises(ek.UserError, match="lacks 'electra/encoder/layer_1/"):
        convert(write_tiny(tmp_path / "a", tensors), tmp_path / "hf")


def test_a_tensor_of_another_shape_or_type_is_named(tmp_path):
    name = "electra/encoder/layer_1/output/dense/kernel"
    for wrong in (numbers(name, (40, 15)), np.zeros((40, 16), np.int32)):
        with pytest.raises(ek.UserError, match=rf"{name}.*should be float32 of \(40, 16\)"):
            convert(write_tiny(tmp_path / "a", variables() | {name: wrong}), tmp_path / "hf")
    with pytest.raises(ek.UserError, match=r"word_embeddings.*a matrix"):
        flat = {"electra/embeddings/word_embeddings": np.zeros(7, np.float32)}
        convert(write_tiny(tmp_path / "a", variables() | flat), tmp_path / "hf")


def test_a_discriminator_may_be_alone(tmp_path):
    tensors = {name: array for name, array in variables().items() if not name.startswith("generator")}
    made = convert(write_tiny(tmp_path / "a", tensors), tmp_path / "hf")
    assert made.generator is None and not (made.out / "generator").exists()
    assert "has no generator" in summary(made) and "--init-generator" not in summary(made)


def test_a_checkpoint_of_something_else_is_reported(tmp_path):
    with pytest.raises(ek.UserError, match="no variables of google-research/electra; it has bert"):
        convert(write_tiny(tmp_path / "a", {"bert/pooler/dense/bias": ONE}), tmp_path / "hf")
    fine_tuned = {name: one for name, one in variables().items() if name.startswith("electra/")}
    with pytest.raises(ek.UserError, match=r"lacks 'discriminator_predictions.*not of fine-tuning"):
        convert(write_tiny(tmp_path / "b", fine_tuned), tmp_path / "hf")


@pytest.mark.promise("Models", "damaged TensorFlow checkpoint", "the right weights or none")
@given(st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_checkpoint_gives_the_right_weights_or_nothing(tmp_path, data):
    shutil.rmtree(tmp_path / "hf", ignore_errors=True)
    prefix = copied(PREFIX, tmp_path / "damaged")
    path = data.draw(st.sampled_from(files_of(prefix)))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        made = convert(prefix, tmp_path / "hf", vocab=GOLDEN / "vocab.txt")
    except ek.UserError as error:
        assert str(prefix) in str(error)
        assert [path.name for path in tmp_path.iterdir()] == ["damaged"]
    else:  # the byte was one of the optimizer's, or of no use
        found = load_file(made.out / "model.safetensors")
        assert all(torch.equal(found[name], one) for name, one in undamaged_weights().items())


@functools.cache
def undamaged_weights() -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        return load_file(convert(GOLDEN, Path(folder) / "hf").out / "model.safetensors")


# --- finding the files, and the tokenizer --------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_its_folder_its_prefix_or_one_of_its_files(tmp_path):
    for name in ("", "model.ckpt-1234", "model.ckpt-1234.index", "model.ckpt-1234.data-00001-of-00003"):
        assert find_prefix(GOLDEN / name) == PREFIX
    with pytest.raises(ek.UserError, match=r"ends in \.index"):
        find_prefix(tmp_path)
    for name in ("model.ckpt-5.index", "model.ckpt-10.index"):
        (tmp_path / name).touch()
    with pytest.raises(ek.UserError, match="several checkpoints"):
        find_prefix(tmp_path)
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/gone/model.ckpt-10"\nall_model_checkpoint_paths: "x"\n'
    )
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-10"
    with pytest.raises(ek.UserError, match=r"nothing.*\.index is missing"):
        convert(tmp_path / "nothing", tmp_path / "hf")


def test_the_folders_open_with_the_auto_classes_and_the_vocabulary_is_berts(tmp_path):
    made = convert(GOLDEN, tmp_path / "hf")
    assert isinstance(AutoModelForPreTraining.from_pretrained(made.out), ElectraForPreTraining)
    assert isinstance(AutoModelForMaskedLM.from_pretrained(made.generator), ElectraForMaskedLM)
    assert AutoModel.from_pretrained(made.out).config.hidden_size == SIZES["electra"][1]
    theirs = BertTokenizer(str(GOLDEN / "vocab.txt"))
    for folder in (made.out, made.generator):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.model_max_length == POSITIONS
        for texts in (("Abc éfg, héllo z",), ("a b [MASK]", "CAFE lamb")):
            assert dict(tokenizer(*texts)) == dict(theirs(*texts))


def test_a_vocabulary_that_does_not_fit_is_reported(tmp_path):
    prefix = write_tiny(tmp_path / "a", variables())
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*VOCAB, "more"]))
    with pytest.raises(ek.UserError, match=r"has 36 tokens.*35 rows"):
        convert(prefix, tmp_path / "hf", vocab=vocab)
    vocab.write_text("\n".join(VOCAB[:-1]))
    assert "The embeddings have 35 rows for 34 tokens." in summary(convert(prefix, tmp_path / "hf", vocab=vocab))
    (tmp_path / "a" / "vocab.txt").unlink()
    with pytest.raises(ek.UserError, match=r"no vocabulary at .*vocab\.txt.*--vocab"):
        convert(prefix, tmp_path / "hf2")


def test_heads_that_do_not_divide_the_width_are_reported(tmp_path):
    for num_heads in (3, 0):
        with pytest.raises(ek.UserError, match="--num-heads"):
            convert(GOLDEN, tmp_path / "hf", num_heads=num_heads)


def test_on_the_command_line_it_writes_once_and_refuses_politely(tmp_path, capsys):
    command = ["convert", str(GOLDEN), "--out", str(tmp_path / "hf"), "--num-heads", "2"]
    with pytest.raises(SystemExit) as stop:
        main(command)
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert "heads 2," in printed and f"--init-generator {tmp_path / 'hf' / 'generator'}" in printed
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(command)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and "already holds a converted model" in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, limits[1]))  # no file may be longer
    try:
        with pytest.raises(ek.UserError, match="cannot write"):
            convert(GOLDEN, tmp_path / "hf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_pretraining_continues_from_a_converted_pair(tmp_path):
    made = convert(GOLDEN, tmp_path / "hf", num_heads=2)
    (tmp_path / "corpus.txt").write_text(
        "\n\n".join(f"abc de fgh {'abcdefgh'[number % 8]} ij kl" for number in range(200))
    )
    shards = ek.prepare(
        [tmp_path / "corpus.txt"], tokenizer=made.out, length=POSITIONS, valid=0.1, out=tmp_path / "shards", workers=1
    )
    config = ek.presets.tiny(
        data=shards,
        run=tmp_path / "run",
        length=POSITIONS,
        steps=2,
        batch_size=4,
        valid_rows=4,
        init_discriminator=str(made.out),
        init_generator=str(made.generator),
        optim={"lr": 1e-12},  # so that the weights stay what they were
    )
    run = ek.pretrain(config)
    for name, kind, folder in (
        ("discriminator", ElectraForPreTraining, made.out),
        ("generator", ElectraForMaskedLM, made.generator),
    ):
        first, last = (
            kind.from_pretrained(folder).state_dict(),
            kind.from_pretrained(run.checkpoint / name).state_dict(),
        )
        assert all(torch.allclose(first[key], last[key], atol=1e-6) for key in first)
    card = (ek.export(run, tmp_path / "exported").path / "README.md").read_text()
    assert '"init_discriminator": "hf"' in card and "base_model" not in card and str(made.out) not in card
