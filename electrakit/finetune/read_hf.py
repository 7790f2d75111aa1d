"""Reads GLUE in the Hugging Face layout: a folder of parquet files or saved datasets, or a dataset of the hub."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from electrakit.common.errors import UserError, one_line
from electrakit.common.safe_load import hub_problem
from electrakit.finetune.read_glue import TextRow, find_folder
from electrakit.finetune.tasks import Split, Task

GLUE_ON_HUB = "nyu-mll/glue"


def read_hf(name: str, task: Task, split: Split) -> tuple[str, Iterator[TextRow]]:
    """What a split of `hf:name` is called in errors, and its rows."""
    source = f"hf:{name} {variant_of(task, split)} {split.hf}"
    dataset = load_splits(name, variant_of(task, split), split.folders or task.folders)
    if split.hf not in dataset:
        raise UserError(f"{source}: there is no split {split.hf!r} but {', '.join(map(repr, dataset))}")
    rows = dataset[split.hf]
    columns = task.hf_columns or task.columns
    for column in (*columns, *(["label"] if split.has_labels else [])):
        if column not in rows.column_names:
            raise UserError(f"{source} has no column {column!r} but {', '.join(map(repr, rows.column_names))}")
    fields = [[str(text or "") for text in rows[column]] for column in columns]  # by column: row by row takes minutes
    if split.has_labels:
        fields.append(spelled_labels(task, rows))
    return source, ((f"{source} row {number}", row) for number, row in enumerate(zip(*fields, strict=True), 1))


def spelled_labels(task: Task, rows: Any) -> list[str]:
    """The labels as the official files spell them; here classes are numbers."""
    names = getattr(rows.features.get("label"), "names", None)
    if names is None or not set(names) <= set(task.labels or ()):  # such as unacceptable, acceptable: ours are 0, 1
        names = task.hf_labels or task.labels or ()
    spelled = dict(enumerate(names))
    return [str(spelled.get(label, label) if isinstance(label, int) else label) for label in rows["label"]]


def has_hf(name: str, task: Task, split: Split) -> bool:
    if not Path(name).is_dir():
        reachable(name)  # that nothing can be read at all is no answer
    try:
        return split.hf in load_splits(name, variant_of(task, split), split.folders or task.folders)
    except UserError:
        return False


def variant_of(task: Task, split: Split) -> str:
    """The name of a task in the dataset; the diagnostic set is a task of its own."""
    return split.name if split.folders else task.name


def import_datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(f"hf:{name} needs the datasets library; pip install 'electrakit[hf]'") from None
    return datasets


@lru_cache(maxsize=4)
def reachable(name: str) -> str:
    """The full name of a dataset on the hub, if that can be reached or the dataset is cached."""
    name = GLUE_ON_HUB if name == "glue" else name
    is_cached = (Path(import_datasets(name).config.HF_DATASETS_CACHE) / name.replace("/", "___")).is_dir()
    if not is_cached and (problem := hub_problem(name, "dataset")):
        raise UserError(
            f"hf:{name} is no folder here, and the Hugging Face hub does not give it ({problem}); check its name and the network"
        )
    return name


def hf_files(name: str, task: Task) -> list[Path]:
    """The files of a task in a folder."""
    folder = find_folder(Path(name), task.folders)
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []


@lru_cache(maxsize=4)
def load_splits(name: str, variant: str, folders: tuple[str, ...]) -> Any:
    """All splits of a task."""
    datasets = import_datasets(name)
    if Path(name).is_dir():
        folder = find_folder(Path(name), folders)
        if folder is None:
            raise UserError(f"hf:{name} has no folder {variant!r}")
        if (folder / "dataset_dict.json").exists():
            return datasets.load_from_disk(str(folder))
        files: dict[str, list[str]] = {}
        for path in sorted(folder.glob("*.parquet")):
            files.setdefault(path.name.split("-")[0].removesuffix(".parquet"), []).append(str(path))
        if not files:
            raise UserError(f"{folder} holds neither dataset_dict.json nor train-*.parquet")
        return {
            split: datasets.Dataset.from_parquet(paths, keep_in_memory=True)  # nothing of it is left in a cache
            for split, paths in files.items()
        }
    hub_name = reachable(name)
    try:
        return datasets.load_dataset(hub_name, variant)
    except Exception as error:  # its own errors have no common class
        raise UserError(
            f"cannot load the dataset {hub_name!r} ({variant}): {one_line(error)}; check its name and the network, or name a folder"
        ) from None
