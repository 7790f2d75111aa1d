"""The Hugging Face layout of GLUE in, sentences and labels out: a folder of parquet files or saved datasets, or the hub's."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from electrakit.errors import UserError
from electrakit.evaluate.read import Examples, Reading, find_folder
from electrakit.evaluate.tasks import Split, Task

HUB_NAME = "nyu-mll/glue"
SECONDS_TO_ANSWER = 20.0


def read_hf(name: str, task: Task, split: Split) -> Examples:
    """The rows of a split of `hf:name`."""
    source = f"hf:{name} {hf_name(task, split)} {split.hf}"
    dataset = load(name, hf_name(task, split), split.folders or task.folders)
    if split.hf not in dataset:
        raise UserError(f"{source}: there is no split {split.hf!r} but {', '.join(map(repr, dataset))}")
    rows = dataset[split.hf]
    has_labels = split.name == "train" or split.name.startswith("dev")
    columns = task.hf_columns or task.columns
    for column in (*columns, *(["label"] if has_labels else [])):
        if column not in rows.column_names:
            raise UserError(f"{source} has no column {column!r} but {', '.join(map(repr, rows.column_names))}")
    names = getattr(rows.features.get("label"), "names", None)
    if names is None or not set(names) <= set(task.labels or ()):  # such as unacceptable, acceptable: ours are 0, 1
        names = task.hf_labels or task.labels
    reading = Reading(task, source, has_labels)
    texts = [list(rows[column]) for column in columns]  # whole columns: row by row takes minutes
    labels = list(rows["label"]) if has_labels else [None] * len(rows)
    for number, (label, *values) in enumerate(zip(labels, *texts, strict=True), 1):
        known = number_of(task, label, names, f"{source} row {number}") if has_labels else None
        reading.add([str(value or "") for value in values], known)
    return reading.finish(split.num_rows, f"{task.title} {split.name}")


def number_of(task: Task, label: Any, names: Any, where: str) -> float:
    if task.labels is None:
        if not isinstance(label, float | int):
            raise UserError(f"{where} has the label {label!r}; {task.title} needs a number")
        return float(label)
    if isinstance(label, str) and label in task.labels:
        return task.labels.index(label)
    if not isinstance(label, int) or not 0 <= label < len(task.labels):
        raise UserError(f"{where} has the label {label!r}; {task.title} has {', '.join(task.labels)}")
    return task.labels.index(names[label])


def has_hf(name: str, task: Task, split: Split) -> bool:
    if not Path(name).is_dir():
        require_reachable(hub_name(name))  # that nothing can be read at all is no answer
    try:
        return split.hf in load(name, hf_name(task, split), split.folders or task.folders)
    except UserError:
        return False


def hf_name(task: Task, split: Split) -> str:
    return split.name if split.folders else task.hf_name or task.name


def import_datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(f"hf:{name} needs the datasets library; pip install 'electrakit[hf]'") from None
    return datasets


def hub_name(name: str) -> str:
    return HUB_NAME if name == "glue" else name


@lru_cache(maxsize=4)
def require_reachable(name: str) -> None:
    """One quick question to the hub, if the dataset is not in the cache: the datasets library would ask for minutes."""
    import huggingface_hub

    datasets = import_datasets(name)
    if (Path(datasets.config.HF_DATASETS_CACHE) / name.replace("/", "___")).is_dir():
        return
    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=SECONDS_TO_ANSWER)
    except Exception as error:  # of the network, of the hub, of the name
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"hf:{name} is no folder here, and the Hugging Face hub does not give it ({why}); check its name and the network"
        ) from None


def files_of(name: str, task: Task) -> list[Path]:
    """The files of a task in a folder."""
    folder = find_folder(Path(name), (task.hf_name or task.name, *task.folders))
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []


@lru_cache(maxsize=4)
def load(name: str, variant: str, folders: tuple[str, ...]) -> Any:
    """All splits of a task."""
    datasets = import_datasets(name)
    if Path(name).is_dir():
        folder = find_folder(Path(name), (variant, *folders))
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
    require_reachable(hub_name(name))
    try:
        return datasets.load_dataset(hub_name(name), variant)
    except Exception as error:  # its own errors have no common class
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"cannot load the dataset {hub_name(name)!r} ({variant}): {why}; check its name and the network, or name a folder"
        ) from None
