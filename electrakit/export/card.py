"""Writes the model card of a network: README.md as the Hugging Face Hub reads it, and a picture of the losses."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electrakit import __version__
from electrakit.common import plots
from electrakit.common.templates import render
from electrakit.common.words import count_runs, counted, format_duration, format_percent, format_words
from electrakit.config.pretrain import PretrainConfig
from electrakit.data.manifest import SourcesSummary
from electrakit.data.rows import DocumentCounts
from electrakit.export.card_facts import NetworkFacts, RunFacts, eval_results, glue_warnings, task_rows
from electrakit.finetune.results import GlueResults
from electrakit.measure.results import measures_notes, measures_table
from electrakit.runs.files import Environment, MetricsLine

# The plot of the losses, beside the card.
LOSSES_PLOT = "training.png"
SMOOTHING = 0.015  # of the run
LOSS_TITLES = {
    "mlm_loss": "Generator: loss of predicting masked tokens",
    "disc_loss": "Discriminator: loss of finding replaced tokens",
}
# Settings that say nothing about the model: where, when and how fast things are written and computed.
LOCAL = PretrainConfig.changeable() - {"steps", "budget"}
# Settings that a run with the user's own networks and objective does not use.
NOT_USED = {"discriminator", "generator", "share", "objective"}
# Positions that ELECTRA-Small saw: steps x rows x tokens.
PAPER_POSITIONS = 1_000_000 * 128 * 128
# An AUC below this is little more than chance.
WEAK_AUC = 0.6
SCHEDULES = {"official": "linear decay", "linear": "linear decay", "cosine_restarts": "cosine decay with restarts"}
OBJECTIVES = {
    "electra": "to tell which tokens of a text a small generator has replaced (ELECTRA, Clark et al. 2020)",
    "mlm": "to predict masked tokens (as BERT)",
    "replace_mlm": "to predict the originals of tokens that a small generator has replaced (Replace MLM of the ELECTRA paper)",
    "electric": "to give each token an energy, -log of its probability among the others (Electric, Clark et al. 2020b)",
    "all_tokens_mlm": "to predict the originals of all tokens, some replaced by a small generator (All-Tokens MLM of the ELECTRA paper)",
}
# Metric of the log -> network, and what it is.
VALIDATION = {
    "mlm_loss": ("generator", "loss (nats per chosen token)"),
    "gen_acc": ("generator", "accuracy of predictions"),
    "sampled_acc": ("generator", "accuracy of samples"),
    "disc_loss": ("discriminator", "loss"),
    "disc_acc": ("discriminator", "accuracy"),
    "disc_auc": ("discriminator", "AUC (0.5 is chance)"),
    "disc_precision": ("discriminator", "precision"),
    "disc_recall": ("discriminator", "recall"),
    "replaced_rate": ("discriminator", "share of tokens that were replaced"),
}
NETWORK_COLUMNS = {
    "body": "body",
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "ffn_size": "feed-forward",
    "num_heads": "heads",
    "embedding_size": "embeddings",
    "max_length": "positions",
    "dropout": "dropout",
}


def write_card(facts: RunFacts, network: NetworkFacts, folder: Path) -> None:
    """README.md of a network: front matter, and a section for each question that people ask."""
    settings, config = facts.run.settings, facts.config
    auc, max_positions = (facts.validation or {}).get("disc_auc"), network.max_positions
    glue = facts.glue if network.name == "discriminator" and facts.glue and facts.glue.tasks else None
    hidden = LOCAL | (NOT_USED if network.is_custom else set())
    text = render(
        "electrakit.export",
        "card.md.jinja",
        facts=facts,
        network=network,
        in_words=format_words,
        metadata=metadata(facts, network, glue).to_yaml(line_break="\n").strip(),
        place=json.dumps(facts.place),
        objective=OBJECTIVES[facts.kind],
        data=data_rows(facts),
        training=training_facts(facts, network.is_custom),
        network_columns=("network", *NETWORK_COLUMNS.values()),
        network_rows=network_rows(config),
        plot=LOSSES_PLOT,
        settings=json.dumps({name: public(name, settings[name]) for name in settings if name not in hidden}, indent=1),
        num_valid_rows=min(config.valid_rows, facts.run.data.rows.get("valid", 0)),
        validation=validation_rows(facts),
        measures=measures_table(facts.measures) if facts.measures and network.name == "discriminator" else None,
        measures_notes=measures_notes(facts.measures),
        glue=glue,
        task_rows=task_rows,
        glue_warnings=glue_warnings,
        runs=count_runs,
        percent=format_percent,
        onnx=[(f"`{one.file}`" if one.file else "torch", *one.cells()) for one in network.onnx],
        paper_positions=PAPER_POSITIONS,
        weak_auc=auc if facts.kind == "electra" and auc is not None and auc < WEAK_AUC else None,
        has_untrained_positions=(max_positions or 0) > config.length and network.model_type != "modernbert",
        trained_length=config.length,
        version=__version__,
    )
    # Sections that are left out leave empty lines.
    (folder / "README.md").write_text(re.sub(r"\n{3,}", "\n\n", text), encoding="utf-8")


def metadata(facts: RunFacts, network: NetworkFacts, glue: GlueResults | None) -> Any:
    """As the Hub reads it: huggingface_hub checks the form."""
    from huggingface_hub import ModelCardData

    base = getattr(facts.config, f"init_{network.name}")
    results = eval_results(glue) if glue else []
    family = [] if network.model_type == "electra" else [network.model_type]
    return ModelCardData(
        library_name="transformers",
        license=facts.licence,
        pipeline_tag="fill-mask" if network.head == "words" else None,
        base_model=base if base is not None and is_hub_name(base) else None,
        tags=["electra", "electrakit", "pretraining", *family],
        model_name=facts.name if results else None,
        eval_results=results or None,
    )


# Tables


def data_rows(facts: RunFacts) -> list[tuple[str, str]]:
    if facts.manifest is None:
        return []
    manifest, num_valid = facts.manifest, facts.run.data.rows.get("valid", 0)
    train, counts = manifest.splits["train"], manifest.counts or DocumentCounts()
    return [
        ("sources", describe_sources(facts.sources, manifest.sources)),
        ("documents", f"{counts.documents:,}"),
        ("tokens", f"{counts.tokens:,}, of them {train.tokens:,} for training"),
        ("rows", f"{train.rows:,} of {manifest.length} tokens for training, {num_valid:,} for validation"),
        ("vocabulary", f"{manifest.vocab_size:,} word pieces"),
    ]


def describe_sources(names: Sequence[str], known: SourcesSummary) -> str:
    text = f"{counted(known.files or len(names), 'file')}, {known.bytes / 1e6:,.1f} MB"
    if not names:
        return text
    # Neither may end the cell or the code in it.
    shown = ", ".join(f"`{name.replace('|', '-').replace('`', '')}`" for name in names[:3])
    return f"{text}: {shown}" if len(names) <= 3 else f"{text}; the largest are {shown}"


def training_facts(facts: RunFacts, is_custom: bool) -> list[tuple[str, str]]:
    config, environment = facts.config, facts.run.environment
    optim, objective = config.optim, config.objective
    epochs = facts.num_rows / max(1, facts.run.data.rows.get("train", 0))
    of_all = "" if facts.step == config.steps or config.budget else f" of {config.steps:,}"
    schedule = SCHEDULES.get(optim.schedule, optim.schedule)
    whole_words = ", whole words" if objective.whole_words else ""
    known = {
        "steps": f"{facts.step:,}{of_all}, of {config.batch_size} rows of {config.length} tokens",
        "tokens": f"{format_words(facts.num_tokens)} seen, {epochs:.2f} times the training data",
        "compute": f"{facts.flops:.2e} FLOPs, counted as in the ELECTRA paper".replace("+", ""),
        "time": f"{format_duration(facts.seconds)} on {describe_hardware(environment)}",
        "precision": config.precision,
        "objective": f"{facts.kind}, {100 * objective.mask_prob:g} % of the tokens chosen{whole_words}",
        "networks share": config.share if config.generator else None,
        "optimizer": f"{optim.name}, learning rate {optim.lr:g}, {counted(optim.warmup_steps, 'step')} of warm-up, "
        f"then {schedule}; weight decay {optim.weight_decay}",
        "seed": config.seed,
        "software": ", ".join(f"{name} {value}" for name, value in environment.versions.items() if value),
    }
    not_known = {"compute", "objective", "networks share"} if is_custom else set()
    return [(name, str(value)) for name, value in known.items() if value is not None and name not in not_known]


def describe_hardware(environment: Environment) -> str:
    device, processes, threads = environment.device or "unknown hardware", environment.processes, environment.threads
    if processes not in (None, 1):
        return f"{processes} processes ({device})"
    return f"{device}, {counted(threads, 'thread')}" if threads and "Processor" in device else device


def network_rows(config: PretrainConfig) -> list[tuple[str, ...]]:
    networks = sorted(config.networks.items())  # the discriminator first
    return [(name, *(str(getattr(network, key)) for key in NETWORK_COLUMNS)) for name, network in networks]


def validation_rows(facts: RunFacts) -> list[tuple[str, str, str]]:
    line = facts.validation or {}
    return [
        ("discriminator" if facts.kind == "mlm" else network, label, f"{line[name]:.3f}")
        for name, (network, label) in VALIDATION.items()
        if line.get(name) is not None
    ]


def public(name: str, value: Any) -> Any:
    """A setting without the folders of this machine."""
    is_path = name.startswith("init_") and isinstance(value, str) and not is_hub_name(value)
    return Path(value).name if is_path else value


def is_hub_name(name: str) -> bool:
    return name.count("/") <= 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


# The picture


def draw_losses(facts: RunFacts) -> bytes:
    """A PNG of loss over steps, a panel for each network: thin as logged, thick smoothed, dots on validation text."""
    lines = [line for line in facts.run.lines if line["step"] <= facts.step]
    names = [name for name in LOSS_TITLES if any(line.get(name) is not None for line in lines)]
    figure, panels = plots.new_figure(5.2 * max(1, len(names)), 3.4, num_columns=max(1, len(names)))
    for axes, name, colour in zip(panels, names, plots.PALETTE, strict=False):
        train, valid = (points_of(lines, split, name) for split in ("train", "valid"))
        valid = [(step, value) for step, value in valid if step > 0 or not train]  # as in the report
        if train:
            steps, values = zip(*train, strict=True)
            smooth = plots.smoothed(np.array(values), SMOOTHING * len(values))
            plots.draw_line(axes, steps, smooth, colour, raw=values, label="training, smoothed")
        if valid:
            axes.plot(*zip(*valid, strict=True), "o--", color="black", markersize=4, linewidth=0.8, label="validation")
        axes.set_title(title_of(name, facts.kind), fontsize=plots.FONT_SIZE)
        plots.number_steps(axes)
        drawn = sorted(value for _, value in (*train, *valid))
        # Up to the 99th of a hundred values: one spike shall not flatten the rest.
        if len(drawn) > 1:
            plots.frame_values(axes, drawn[: 1 + int(0.99 * (len(drawn) - 1))])
        if drawn:
            plots.add_legend(axes)
    return plots.to_png(figure, dpi=150)


def title_of(name: str, kind: str) -> str:
    if kind == "mlm":
        return "Loss of predicting masked tokens"
    if kind not in ("electra", "electric") and name == "disc_loss":
        return "Discriminator: loss of predicting originals"
    return LOSS_TITLES[name]


def points_of(lines: Sequence[MetricsLine], split: str, name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if line["split"] == split and line.get(name) is not None]
