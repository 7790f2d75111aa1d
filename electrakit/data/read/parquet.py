"""Reads the values of one column of a parquet file or a Hugging Face dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electrakit.common.errors import UserError, first_line
from electrakit.common.safe_load import hub_problem
from electrakit.data.read.files import TOO_MUCH, Allowance
from electrakit.data.read.notes import Notes
from electrakit.data.read.parquet_pages import largest_refused

READ_BYTES = 2**20


def parquet_values(
    file: Any, name: str, field: str, max_bytes: int, notes: Notes, allowance: Allowance
) -> Iterator[Any]:
    """Texts, and what else is in the column; a text of more than `max_bytes` as a memoryview: one copy is enough."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{name} is a parquet file and needs pyarrow; pip install 'electrakit[parquet]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20)  # row groups can be large
        if field not in table.schema_arrow.names:
            notes.add(f"no column {field!r}; left out", f"{name} has {table.schema_arrow.names}")
            return
        num_groups, num_rows = table.metadata.num_row_groups, _rows_at_a_time(table)
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        notes.add("damaged parquet file; left out", f"{name}: {first_line(error, 80)}")
        return
    for number in range(num_groups):
        place = f"{name}: row group {number + 1} of {num_groups}"
        try:
            if num_bytes := largest_refused(file, table.metadata.row_group(number), field):
                notes.add(
                    "part of a parquet file that is too large to unpack; left out", f"{place}: {num_bytes:,} bytes"
                )
                continue
            for batch in table.iter_batches(num_rows, row_groups=[number], columns=[field]):
                for stored in batch.column(0):
                    value = _as_text(stored, max_bytes)
                    if isinstance(value, str | memoryview) and allowance.is_used_up(len(value)):
                        notes.add(TOO_MUCH, name)
                        return
                    yield value
        except UserError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            what = "damaged part of a parquet file; the rest of its row group is left out"
            notes.add(what, f"{place}: {first_line(error, 80)}")


def dataset_values(name: str, field: str) -> Iterator[Any]:
    """The values of a dataset's field: from a local folder, or streamed from the hub."""
    try:
        import datasets
        import huggingface_hub
    except ImportError:
        raise UserError(f"hf:{name} needs the datasets library; pip install 'electrakit[hf]'") from None
    if (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists():
        rows = datasets.load_from_disk(name)
        if isinstance(rows, dict) and "train" not in rows:
            raise UserError(
                f"the dataset {name!r} has no split 'train' but {sorted(rows)}; name the folder of one of them"
            )
        rows = rows["train"] if isinstance(rows, dict) else rows
    else:
        path, _, variant = name.partition(":")
        is_local = Path(path).exists() or huggingface_hub.constants.HF_HUB_OFFLINE
        if not is_local and (problem := hub_problem(path, "dataset")):
            raise UserError(
                f"cannot find the dataset {path!r} on the Hugging Face hub ({problem}); check its name and the network, "
                "or name a local folder"
            )
        rows = datasets.load_dataset(path, variant or None, split="train", streaming=True)
    for row in rows:
        if field not in row:
            raise UserError(f"the dataset {name!r} has no field {field!r} but {sorted(row)}; use --field")
        yield row.pop(field)


def _rows_at_a_time(table: Any) -> int:
    """So many rows of a parquet file that they are about a megabyte, 16 at the most: rows differ in length."""
    longest = max((group.total_byte_size // max(1, group.num_rows) for group in _row_groups(table)), default=0)
    return max(1, min(16, READ_BYTES // max(1, longest)))


def _row_groups(table: Any) -> Iterator[Any]:
    return map(table.metadata.row_group, range(table.metadata.num_row_groups))


def _as_text(value: Any, max_bytes: int) -> Any:
    """A value of a table's column: text even if it is stored as bytes, or is not quite UTF-8; a long one as it is."""
    buffer = value.as_buffer() if hasattr(value, "as_buffer") else None
    if buffer is not None and buffer.size > max_bytes:
        return memoryview(buffer)
    try:
        loaded = value.as_py()
    except UnicodeDecodeError:
        loaded = value.as_buffer().to_pybytes()
    return loaded.decode("utf-8", "surrogateescape") if isinstance(loaded, bytes) else loaded
