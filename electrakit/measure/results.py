"""What `measure` found: typed values, measure.json, and the table of them. It needs no torch: report and card read it."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from electrakit.common.errors import UserError
from electrakit.common.json_files import write_json
from electrakit.common.words import DASH, format_percent

BASELINES = {"majority": "majority class", "words": "tf-idf of words"}
Name = TypeVar("Name", str, tuple[str, str])


@dataclass(frozen=True)
class Auc:
    """How well changed tokens are told from others; 0.5 is chance."""

    value: float
    standard_error: float
    num_tokens: int
    """Tokens that were scored."""


@dataclass(frozen=True)
class MinimalPairs:
    """How often a network prefers the grammatical sentence of a pair; 0.5 is chance."""

    accuracy: float
    """The mean over paradigms."""
    standard_error: float
    num_pairs: int
    """Pairs that were scored."""
    num_of: int
    """Pairs in the files."""
    phenomena: dict[str, float] = field(default_factory=dict)
    paradigms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """Scores on the dev file of linear models on frozen states, and of counting."""

    metric: str
    """The one that tables show."""
    num_train: int
    num_dev: int
    scores: dict[str, dict[str, float]]
    """By features (`mean`: mean-pooled states, `cls`: the state of [CLS]), then by metric."""
    baselines: dict[str, dict[str, float]]
    """`majority`: the most frequent class of the train file; `words`: tf-idf of words; then by metric."""


@dataclass(frozen=True)
class NetworkMeasures:
    """What was measured of one network; each yardstick by the name of its data."""

    model: str
    network: str
    """discriminator, generator, masked LM, or encoder."""
    step: int | None = None
    """Of the checkpoint; None for a model that is not in a run."""
    corruptions: dict[str, dict[str, Auc]] = field(default_factory=dict)
    """Shards, then the way of corruption."""
    pairs: dict[str, MinimalPairs] = field(default_factory=dict)
    probes: dict[str, Probe] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        corruptions, pairs, probes = (values.get(name, {}) for name in ("corruptions", "pairs", "probes"))
        return cls(
            values["model"],
            values["network"],
            values.get("step"),
            {name: {way: Auc(**each) for way, each in ways.items()} for name, ways in corruptions.items()},
            {name: MinimalPairs(**each) for name, each in pairs.items()},
            {name: Probe(**each) for name, each in probes.items()},
        )

    @property
    def title(self) -> str:
        return f"{self.model} {self.network}"

    @property
    def key(self) -> tuple[str, int | None, str]:
        return self.model, self.step, self.network

    def merged(self, later: "NetworkMeasures") -> "NetworkMeasures":
        """These, with what was measured later in the place of the same yardsticks."""
        return replace(
            later,
            corruptions=self.corruptions | later.corruptions,
            pairs=self.pairs | later.pairs,
            probes=self.probes | later.probes,
        )


# measure.json


def measures_from_json(content: Any) -> list[NetworkMeasures]:
    """What measure.json holds; a ValueError if it is something else."""
    try:
        return [NetworkMeasures.from_json(values) for values in content["networks"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no measures: {error!r}") from None


def require_measures(path: Path | None) -> list[NetworkMeasures]:
    """What a file that is there already holds; something else is refused."""
    if path is None or not os.path.lexists(path):
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        measures = measures_from_json(content)
        if others := sorted(content.keys() - {"networks"}):  # it would be lost
            raise ValueError(f"it has {others[0]!r}, too")
        return measures
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not what electra measure wrote ({error}); move it away, or name another --out"
        ) from None


def merge_into_file(path: Path, measures: Sequence[NetworkMeasures], *, is_of_run: bool) -> None:
    """Add measures to a measure.json: what it holds of other networks, steps and data stays.

    is_of_run: all of it is about one run, which may have had another name.
    """
    kept: dict[Any, NetworkMeasures] = {one.key: one for one in require_measures(path)}
    if is_of_run:
        kept = {one.key: one for one in (replace(one, model=measures[0].model) for one in kept.values())}
    for one in measures:
        kept[one.key] = kept[one.key].merged(one) if one.key in kept else one
    found = sorted(kept.values(), key=lambda one: (one.model, one.step or 0))
    write_json(path.resolve(), {"networks": [asdict(one) for one in found]})  # a link stays one


# The table


class MeasuresTable(NamedTuple):
    header: list[str]
    rows: list[list[str]]
    """One for each network, then chance, and what counting gives."""


def measures_table(measures: Sequence[NetworkMeasures]) -> MeasuresTable:
    """A row for each network, a column for each yardstick; AUCs from 0 to 1, accuracies and correlations x 100."""
    corruptions = distinct((data, way) for one in measures for data, ways in one.corruptions.items() for way in ways)
    pairs = distinct(name for one in measures for name in one.pairs)
    probes = distinct((name, way) for one in measures for name, each in one.probes.items() for way in each.scores)
    has_steps = any(one.step is not None for one in measures)
    has_several = len({data for data, _ in corruptions}) > 1
    header = ["network", *["step"] * has_steps]
    header += [f"{data} {way}" if has_several else way for data, way in corruptions]
    header += [*pairs, *(f"{name} {'[CLS]' if way == 'cls' else way}" for name, way in probes)]
    rows = [
        [
            one.title,
            *[DASH if one.step is None else f"{one.step:,}"] * has_steps,
            *(format_auc(one.corruptions.get(data, {}).get(way)) for data, way in corruptions),
            *(format_score(one.pairs[name].accuracy if name in one.pairs else None) for name in pairs),
            *(format_probe(one.probes.get(name), way) for name, way in probes),
        ]
        for one in measures
    ]
    empty = [""] * has_steps
    chances = [*["0.500"] * len(corruptions), *["50.0"] * len(pairs), *[DASH] * len(probes)]
    rows += [["chance", *empty, *chances]] if corruptions or pairs else []
    any_network = {name: probe for one in measures for name, probe in one.probes.items()}
    for baseline, title in BASELINES.items() if probes else ():
        scores = [any_network[name].baselines.get(baseline, {}).get(any_network[name].metric) for name, _ in probes]
        if any(score is not None for score in scores):
            rows.append([title, *empty, *[DASH] * (len(corruptions) + len(pairs)), *map(format_score, scores)])
    return MeasuresTable(header, rows)


def distinct(values: Iterable[Name]) -> list[Name]:
    return list(dict.fromkeys(values))


def format_auc(found: Auc | None) -> str:
    return DASH if found is None or found.value is None or math.isnan(found.value) else f"{found.value:.3f}"


def format_probe(found: Probe | None, way: str) -> str:
    return DASH if found is None else format_score(found.scores.get(way, {}).get(found.metric))


def format_score(value: float | None) -> str:
    """JSON has null for the NaN of a correlation that is not defined."""
    return format_percent(None if value is None or math.isnan(value) else value)


def phenomena_table(measures: Sequence[NetworkMeasures], name: str) -> MeasuresTable:
    """The accuracy of each phenomenon of a set of minimal pairs: a column for each network."""
    measured = [one for one in measures if name in one.pairs]
    phenomena = sorted({phenomenon for one in measured for phenomenon in one.pairs[name].phenomena})
    rows = [[each, *(format_percent(one.pairs[name].phenomena.get(each)) for one in measured)] for each in phenomena]
    return MeasuresTable([name, *(one.title for one in measured)], rows)


def measures_notes(measures: Sequence[NetworkMeasures]) -> list[str]:
    """What the figures are, and on how much they rest."""
    notes = []
    aucs = [auc for one in measures for ways in one.corruptions.values() for auc in ways.values()]
    if errors := [auc.standard_error for auc in aucs if auc.standard_error is not None]:
        ways = ", ".join(distinct(way for one in measures for found in one.corruptions.values() for way in found))
        notes.append(f"{ways}: AUC of telling changed tokens from others; standard errors up to {max(errors):.3f}")
    for name in distinct(name for one in measures for name in one.pairs):
        of_name = [one.pairs[name] for one in measures if name in one.pairs]
        counts = " or ".join(distinct(f"{each.num_pairs:,}" for each in of_name))
        error = max(each.standard_error for each in of_name)
        notes.append(
            f"{name}: % of minimal pairs whose good sentence scores higher, mean over {len(of_name[0].paradigms)} paradigms; "
            f"{counts} of {of_name[0].num_of:,} pairs; standard errors up to {format_percent(error)}"
        )
    for name, probe in {name: probe for one in measures for name, probe in one.probes.items()}.items():
        notes.append(
            f"{name}: {probe.metric} × 100 of linear models on frozen states, mean-pooled and of [CLS]; "
            f"fitted on {probe.num_train:,} rows, scored on {probe.num_dev:,}"
        )
    return notes
