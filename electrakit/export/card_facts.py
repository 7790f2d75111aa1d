"""What a model card states: facts of the run, of each network, and of its GLUE results."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from electrakit.common.errors import UserError
from electrakit.common.words import DASH, count_runs, format_percent
from electrakit.config.corpus import SHARDS_SOURCES
from electrakit.config.outputs import ExportConfig
from electrakit.config.pretrain import PretrainConfig
from electrakit.data.manifest import Manifest, read_manifest
from electrakit.export.onnx import OnnxMeasurement
from electrakit.finetune.results import RESULTS_FILE, GlueResults
from electrakit.finetune.tasks import TASKS
from electrakit.measure.results import NetworkMeasures, measures_from_json
from electrakit.model.counts import HeadKind, flops_per_step
from electrakit.model.huggingface.write_model import TrainedNetwork
from electrakit.runs.files import MetricsLine, RunFiles, read_progress
from electrakit.runs.settings import read_config

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

# Our metrics -> names on the Hub, where they differ.
HUB_METRICS = {"matthews": "matthews_correlation", "spearman": "spearmanr"}


# GLUE


def read_glue(folder: Path, is_required: bool) -> GlueResults | None:
    """The results in a folder that `electra glue` wrote; None if there are none."""
    path = folder / RESULTS_FILE
    if not path.exists():
        if is_required:
            raise UserError(
                f"--glue {folder} has no {RESULTS_FILE}; name the folder that electra glue wrote (its --out)"
            )
        return None
    try:
        return GlueResults.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read; run electra glue again, or leave --glue out") from None


def scores_of_weights(
    results: GlueResults | None, weights: str, folder: Path, config: ExportConfig
) -> tuple[GlueResults | None, list[str]]:
    """The results if they are those of these weights, and notes for the user. Other results are refused if they were asked for."""
    if results is None or results.weights == weights:
        return results, []
    if results.weights is None:
        return results, [f"{folder} does not say which weights it scored: not checked, the card says so"]
    what = f"{folder} has the scores of other weights than these (of {results.model})"
    if config.glue is not None:
        raise UserError(
            f"--glue {what}; export without it, score that with electra glue {config.out}, and export again with its --out"
        )
    return None, [f"{what}: left out of the card; electra glue {config.out} scores these"]


def task_rows(results: GlueResults) -> list[list[str]]:
    """Median and spread of each task."""
    return [
        [
            task.title,
            task.metric,
            *map(format_percent, (task.median, task.sd, task.min, task.max)),
            str(len(task.seeds)),
            f"{len(task.collapsed)} of {len(task.seeds)}" if task.collapsed else DASH,
        ]
        for task in results.tasks.values()
    ]


def glue_warnings(results: GlueResults) -> list[str]:
    """What must not be overlooked."""
    warnings = [f"{'; '.join(task.warnings)}." for task in results.tasks.values() if task.warnings]
    if results.weights is None:
        warnings.append("The results do not say which weights were scored: that it was this model is not checked.")
    return warnings


def eval_results(results: GlueResults) -> list["EvalResult"]:
    """Entries of the Hub's model-index, one for each released dev set: a score on other rows is no score of that dataset."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="text-classification",
            task_name="Text classification",
            dataset_type="nyu-mll/glue",
            dataset_name=f"GLUE {task.title}",
            dataset_config=name,
            dataset_split=TASKS[name].split(split).hf,
            metric_type=HUB_METRICS.get(task.metric, task.metric),
            metric_name=f"{task.metric}, median of {count_runs(len(task.seeds))}",
            metric_value=round(task.medians[split][task.metric], 4),
        )
        for name, task in results.tasks.items()
        for split in task.medians
        if task.is_released(split)
    ]


# The run and its networks


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The same for the cards of both networks."""

    name: str
    place: str
    """The argument of `from_pretrained`."""
    run: RunFiles
    config: PretrainConfig
    step: int
    seconds: float
    flops: float
    """Counted as in the paper and in the report."""
    manifest: Manifest | None
    """Of the shards, if they are still there."""
    sources: list[str]
    """Names of the files that they were made of, the largest first."""
    licence: str | None
    glue: GlueResults | None = None
    measures: list[NetworkMeasures] = field(default_factory=list)
    """What `electra measure` found at this step."""

    @property
    def kind(self) -> str:
        return self.config.objective.kind

    @property
    def validation(self) -> MetricsLine | None:
        """The last one up to this checkpoint."""
        return next((line for line in reversed(self.run.valid) if line["step"] <= self.step), None)

    @property
    def num_rows(self) -> int:
        """Rows that training has read."""
        return self.step * self.config.batch_size

    @property
    def num_positions(self) -> int:
        return self.num_rows * self.config.length

    @property
    def num_tokens(self) -> float:
        """Without padding, where the shards tell how much of it there is."""
        if self.manifest is None:
            return float(self.num_positions)
        train = self.manifest.splits["train"]
        return self.num_rows * train.tokens / max(1, train.rows)


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """What the card of one network says of it."""

    name: str
    head: HeadKind | None
    is_custom: bool
    """The networks are not those of the settings."""
    has_generator: bool
    class_name: str
    model_type: str
    num_parameters: int
    num_encoder: int
    max_positions: int | None
    difference: float
    """The largest difference of logits between the trained network and the exported one."""
    onnx: list[OnnxMeasurement] = field(default_factory=list)


def facts_of_run(config: ExportConfig, run: RunFiles, checkpoint: Path, shards: Path | None) -> RunFacts:
    progress, pretrain_config = read_progress(checkpoint), read_config(run.path).settings
    manifest, sources, measures = None, [], []
    with contextlib.suppress(ValueError):  # none, or damaged
        measures = [one for one in measures_from_json(run.measured) if one.step == progress.step]
    with contextlib.suppress(UserError, OSError, ValueError, KeyError):
        if shards is not None:
            manifest = read_manifest(shards)
            lines = (shards / SHARDS_SOURCES).read_text(encoding="utf-8").splitlines()
            sources = sorted(map(json.loads, lines), key=lambda each: -each["bytes"])
    return RunFacts(
        name=(config.push or config.out.resolve().name).rpartition("/")[2],
        place=config.push or str(config.out),
        run=run,
        config=pretrain_config,
        step=progress.step,
        seconds=progress.seconds,
        flops=flops_per_step(pretrain_config) * progress.step,
        manifest=manifest,
        sources=[Path(each["name"]).name for each in sources],
        licence=config.licence,
        measures=measures,
    )


def facts_of_network(
    network: TrainedNetwork, has_generator: bool, difference: float, measured: list[OnnxMeasurement]
) -> NetworkFacts:
    return NetworkFacts(
        name=network.name,
        head=network.head,
        is_custom=network.is_custom,
        has_generator=has_generator,
        class_name=type(network.model).__name__,
        model_type=network.model.config.model_type,
        num_parameters=sum(weight.numel() for weight in network.model.parameters()),
        num_encoder=sum(weight.numel() for weight in network.model.base_model.parameters()),
        max_positions=getattr(network.model.config, "max_position_embeddings", None),
        difference=difference,
        onnx=[one for one in measured if one.network == network.name],
    )
