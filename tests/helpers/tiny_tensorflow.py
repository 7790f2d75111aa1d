"""A tiny ELECTRA's variables as google-research/electra names them, and checkpoints of them without TensorFlow.

python tests/helpers/tiny_tensorflow.py FOLDER      # with TensorFlow: makes what lies in tests/golden/tensorflow
"""

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmno",
    *(f"##{letter}" for letter in "abcdefghijklmno"),
]
EMBEDDING, POSITIONS = 8, 12
Sizes = dict[str, tuple[int, int, int]]  # layers, width, feed-forward
SIZES: Sizes = {"electra": (2, 16, 40), "generator": (3, 12, 24)}
NUM_SHARDS = 3


def shapes(has_own_embeddings: bool = False, sizes: Sizes = SIZES) -> dict[str, tuple[int, ...]]:
    """Every variable of a pair: the generator has the discriminator's embeddings, or with `has_own_embeddings` its own."""
    found: dict[str, tuple[int, ...]] = {}
    for scope, (num_layers, width, ffn) in sizes.items():
        size = width if has_own_embeddings and scope == "generator" else EMBEDDING
        if has_own_embeddings or scope == "electra":
            rows = {"word": len(VOCAB), "position": POSITIONS, "token_type": 2}
            found |= {f"{scope}/embeddings/{kind}_embeddings": (num, size) for kind, num in rows.items()}
            found |= norm(f"{scope}/embeddings", size)
        if size != width:
            found |= dense(f"{scope}/embeddings_project", size, width)
        for number in range(num_layers):
            layer = f"{scope}/encoder/layer_{number}"
            for kind in ("query", "key", "value"):
                found |= dense(f"{layer}/attention/self/{kind}", width, width)
            found |= dense(f"{layer}/attention/output/dense", width, width) | norm(f"{layer}/attention/output", width)
            found |= dense(f"{layer}/intermediate/dense", width, ffn)
            found |= dense(f"{layer}/output/dense", ffn, width) | norm(f"{layer}/output", width)
        if scope == "electra":
            found |= dense("discriminator_predictions/dense", width, width)
            found |= dense("discriminator_predictions/dense_1", width, 1)
        else:
            found |= dense("generator_predictions/dense", width, size) | norm("generator_predictions", size)
            found["generator_predictions/output_bias"] = (len(VOCAB),)
    return found


def dense(name: str, num_in: int, num_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (num_in, num_out), f"{name}/bias": (num_out,)}


def norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/LayerNorm/gamma": (size,), f"{name}/LayerNorm/beta": (size,)}


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers from -0.5 to 0.5 (for a gamma from 0.5 to 1.5), a function of the name; whole-number arithmetic, the same anywhere."""
    state = np.arange(np.prod(shape, dtype=int), dtype=np.uint32) * np.uint32(2654435761) + np.uint32(
        zlib.crc32(name.encode())
    )
    state ^= state >> np.uint32(15)
    state *= np.uint32(2246822519)
    state ^= state >> np.uint32(13)
    found = (state >> np.uint32(8)).astype(np.float32) / np.float32(2**24) - np.float32(0.5)
    return (found + np.float32(name.endswith("gamma"))).reshape(shape)


def variables(has_own_embeddings: bool = False, sizes: Sizes = SIZES) -> dict[str, np.ndarray]:
    """The whole checkpoint: the weights, some of the optimizer's averages, the step."""
    weights = {name: numbers(name, shape) for name, shape in shapes(has_own_embeddings, sizes).items()}
    slots = [f"{name}/{slot}" for name in list(weights)[:6] for slot in ("adam_m", "adam_v")]
    averages = {name: numbers(name, weights[name.rpartition("/")[0]].shape) for name in slots}
    return weights | averages | {"global_step": np.array(1234, np.int64)}


# --- the writer: the format as LevelDB and TensorFlow describe it, byte by byte -----------------------------------------


def write_checkpoint(
    prefix: Path, tensors: dict[str, np.ndarray], num_shards: int = 1, entries: dict[str, bytes] | None = None
) -> Path:
    """Write a checkpoint; `entries` are put into the index instead of, or besides, those of the tensors."""
    places = {name: number % num_shards for number, name in enumerate(sorted(tensors))}
    offsets = [0] * num_shards
    table = {b"": field(1, num_shards) + field(3, field(1, 1))}
    files = [b""] * num_shards
    for name in sorted(tensors):
        data, shard = tensors[name].tobytes(), places[name]
        table[name.encode()] = entry(tensors[name], shard, offsets[shard])
        files[shard] += data
        offsets[shard] += len(data)
    table |= {name.encode(): value for name, value in (entries or {}).items()}
    for shard, data in enumerate(files):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table_bytes(table))
    return prefix


TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "float16": 19,
}


def entry(array: np.ndarray, at_shard: int, at_offset: int, **changes: Any) -> bytes:
    """BundleEntryProto; changes are for entries that lie."""
    values: dict[str, Any] = {"dtype": TYPES[str(array.dtype)], "shape": array.shape}
    values |= {"shard": at_shard, "offset": at_offset}
    values |= {"size": array.nbytes, "crc": masked(array.tobytes())} | changes
    shape = b"".join(field(2, field(1, size)) for size in values["shape"])
    plain = field(1, values["dtype"]) + field(2, shape) + field(3, values["shard"]) + field(4, values["offset"])
    return plain + field(5, values["size"]) + bytes([6 << 3 | 5]) + values["crc"].to_bytes(4, "little")


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def table_bytes(table: dict[bytes, bytes], keys_in_block: int = 20, restart_every: int = 16) -> bytes:
    content, handles = b"", {}
    keys = sorted(table)
    for first in range(0, len(keys), keys_in_block):
        part = keys[first : first + keys_in_block]
        content, handles[part[-1]] = with_block(content, {key: table[key] for key in part}, restart_every)
    content, meta = with_block(content, {}, restart_every)
    content, index = with_block(content, handles, 1)
    footer = (meta + index).ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little")
    return content + footer


def with_block(content: bytes, pairs: dict[bytes, bytes], restart_every: int) -> tuple[bytes, bytes]:
    """The content with one more block, and the block's handle."""
    block, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(pairs.items()):
        shared = 0
        if number % restart_every:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        else:
            restarts.append(len(block))
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    block += b"".join(place.to_bytes(4, "little") for place in [*restarts, len(restarts)])
    handle = varint(len(content)) + varint(len(block))
    return content + block + b"\0" + masked(block + b"\0").to_bytes(4, "little"), handle


def masked(data: bytes) -> int:
    crc = slow_crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def slow_crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = BYTE_TABLE[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


def _shifted(state: int) -> int:
    for _ in range(8):
        state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state


BYTE_TABLE = [_shifted(byte) for byte in range(256)]


# --- with TensorFlow -----------------------------------------------------------------------------------------------------


def main(folder: Path) -> None:
    """As many machines save it: each writes its part, one merges the indexes."""
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    everything = sorted(variables().items())
    parts = [str(folder / f"part-{number}-of-{NUM_SHARDS}") for number in range(NUM_SHARDS)]
    for number, part in enumerate(parts):
        names, values = zip(*everything[number::NUM_SHARDS], strict=True)
        tf.raw_ops.SaveV2(prefix=part, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(folder / "model.ckpt-1234"))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    print("TensorFlow", tf.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
