"""Encoders in, yardsticks out: `electra measure`."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import require_apart
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.config.outputs import MeasureConfig
from electrakit.data.corruptions import CorruptedRows, corrupted_rows
from electrakit.data.tokenizer_files import load_tokenizer
from electrakit.measure.corruptions import corruption_scores
from electrakit.measure.minimal_pairs import minimal_pairs, read_pairs
from electrakit.measure.open import OpenNetwork, open_networks
from electrakit.measure.probes import counting_baselines, probe, read_probe_data
from electrakit.measure.results import NetworkMeasures, merge_into_file, require_measures
from electrakit.runs import layout
from electrakit.runs.files import is_run, read_run

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Place:
    """A model to measure, and the run that it belongs to, if any."""

    name: str
    path: str
    """What is opened: of a run, its newest checkpoint."""
    run: Path | None
    step: int | None
    data: Path | None
    """The shards of its corruptions."""


def measure(
    models: AnyPath | Iterable[AnyPath],
    *,
    data: AnyPath | None = None,
    rows: int = 256,
    pairs: AnyPath | None = None,
    pairs_limit: int | None = None,
    train: AnyPath | None = None,
    dev: AnyPath | None = None,
    text: Sequence[str] | None = None,
    label: str | None = None,
    out: AnyPath | None = None,
) -> list[NetworkMeasures]:
    """Measure how much language encoders know; MeasureConfig explains the settings.

    Every network of a model is measured: a discriminator, and the generator beside it. The figures of a run are also written to its
    measure.json, or with `out` those of all models to that file; what these files hold of other steps and data stays.
    """
    config = MeasureConfig(**locals())
    places = [find_place(name, config.data) for name in config.models]
    if config.pairs is None and config.train is None and (idle := [one for one in places if one.data is None]):
        raise UserError(f"nothing to measure of {idle[0].path}: add --data SHARDS, --pairs FILE, or --train and --dev")
    pair_files = None if config.pairs is None else read_pairs(config.pairs)
    probe_data = None
    if config.train is not None and config.dev is not None:
        probe_data = read_probe_data(config.train, config.dev, config.text, config.label)
        baselines = counting_baselines(probe_data)
    for place in places:
        require_measures(file_of(place, config))
    corruptions: dict[Path, dict[str, CorruptedRows]] = {}
    found = []
    for place in places:
        networks = open_networks(place.path)
        if probe_data is None and all(network.head is None for network in networks):
            raise UserError(
                f"{place.path} has no head that scores tokens, only states: measure it with --train and --dev"
            )
        measured = []
        for network in networks:
            result = NetworkMeasures(place.name, network.name, place.step)
            if place.data is not None and network.head is not None:
                check_vocabulary(network, place.data)
                if place.data not in corruptions:
                    corruptions[place.data] = corrupted_rows(place.data, config.rows)
                    if next(iter(corruptions[place.data].values())).ids.size == 0:
                        raise UserError(
                            f"the shards {place.data} have no valid split, whose rows are corrupted; name others"
                        )
                check_length(network, corruptions[place.data], place.data)
                scores = corruption_scores(network, corruptions[place.data])
                result = replace(result, corruptions={name_of(place.data): scores})
            if pair_files is not None and config.pairs is not None and network.head is not None:
                scored = minimal_pairs(network, pair_files, config.pairs_limit)
                result = replace(result, pairs={name_of(config.pairs): scored})
            if probe_data is not None:
                result = replace(result, probes={probe_data.name: probe(network, probe_data, baselines)})
            measured.append(result)
        file = file_of(place, config)
        if file is not None:
            with explain_write_errors(file):
                merge_into_file(file, measured, is_of_run=config.out is None)
        found += measured
    return found


def file_of(place: Place, config: MeasureConfig) -> Path | None:
    """Where the figures of a model are written. Nothing goes into models that are no run."""
    if config.out is None:
        return place.run and place.run / layout.MEASURE_FILE
    inputs = (config.data, config.pairs, config.train, config.dev)
    require_apart(config.out, [place.path, *inputs], may_be_inside=False)
    return config.out


def find_place(model: str, data: Path | None) -> Place:
    """A run is measured at its newest checkpoint, and by default on rows of its own shards."""
    path = Path(model).expanduser()
    run = path if is_run(path) else layout.run_of_checkpoint(path.resolve())
    if run is None or not is_run(run):
        return Place(name_of(path), model, None, None, data)
    checkpoint = layout.newest_checkpoint(run) if run == path else path.resolve()
    if checkpoint is None:
        raise UserError(f"the run {run} has no checkpoint yet; wait for its first one")
    step = int(checkpoint.name.removeprefix(layout.STEP))
    return Place(name_of(run), os.fspath(checkpoint), run, step, data or read_run(run).shards)


def name_of(path: Path) -> str:
    """The last part of a path; BLiMP's own folder is called data."""
    path = path.resolve() if path.exists() else path
    return path.parent.name if path.name == "data" and path.parent.name else path.stem if path.is_file() else path.name


def check_vocabulary(network: OpenNetwork, shards: Path) -> None:
    """Rows of the shards are ids of its vocabulary."""
    theirs = load_tokenizer(shards / SHARDS_TOKENIZER)
    if theirs.vocabulary != network.tokenizer.vocabulary:
        raise UserError(
            f"{network.model} has another vocabulary ({network.tokenizer.summary}) than the shards {shards} "
            f"({theirs.summary}), so it cannot read their rows; name shards made with its tokenizer, or measure --pairs only"
        )


def check_length(network: OpenNetwork, corruptions: dict[str, CorruptedRows], shards: Path) -> None:
    length = next(iter(corruptions.values())).ids.shape[1]
    if length > network.max_tokens:
        raise UserError(
            f"{network.model} takes {network.max_tokens} tokens, the rows of {shards} have {length}; name shards with shorter rows"
        )
