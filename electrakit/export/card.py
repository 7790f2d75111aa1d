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
from electrakit.data.rows import DocumentCounts
from electrakit.export.card_facts import NetworkFacts, RunFacts, eval_results, glue_warnings, task_rows
from electrakit.runs.files import Environment, MetricsLine, RunFiles

# The picture, beside the card.
PICTURE = "training.png"
SMOOTHING = 0.015  # of the run
LOSSES = {
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
    settings, length = facts.run.settings, facts.run.settings.get("length")
    line, rows = facts.validation or {}, facts.run.data.rows
    auc, max_positions = line.get("disc_auc"), network.max_positions
    is_scored = network.name == "discriminator" and facts.glue is not None and bool(facts.glue.tasks)
    hidden = LOCAL | (NOT_USED if network.is_custom else set())
    text = render(
        "electrakit.export",
        "card.md.jinja",
        facts=facts,
        network=network,
        metadata=metadata(facts, network, is_scored).to_yaml(line_break="\n").strip(),
        place=json.dumps(facts.place),
        objective=OBJECTIVES[facts.kind],
        num_parameters=format_words(network.num_parameters),
        num_encoder=format_words(network.num_encoder),
        num_train_rows=rows.get("train", 0),
        length=facts.run.data.length,
        data=data_rows(facts),
        training=training_facts(facts, network.is_custom),
        network_columns=("network", *NETWORK_COLUMNS.values()),
        network_rows=network_rows(settings),
        picture=PICTURE,
        settings=json.dumps({name: public(name, settings[name]) for name in settings if name not in hidden}, indent=1),
        num_valid_rows=min(settings.get("valid_rows", 0), rows.get("valid", 0)),
        validation_step=line.get("step"),
        validation=validation_rows(facts),
        glue=facts.glue if is_scored else None,
        task_rows=task_rows,
        glue_warnings=glue_warnings,
        runs=count_runs,
        percent=format_percent,
        onnx=[(f"`{one.file}`" if one.file else "torch", *one.cells()) for one in network.onnx],
        share_of_paper=facts.num_positions / PAPER_POSITIONS,
        paper_positions=format_words(PAPER_POSITIONS),
        num_positions=format_words(facts.num_positions),
        weak_auc=auc if facts.kind == "electra" and auc is not None and auc < WEAK_AUC else None,
        has_untrained_positions=max_positions
        and length
        and max_positions > length
        and network.model_type != "modernbert",
        trained_length=length,
        version=__version__,
    )
    # Sections that are left out leave empty lines.
    (folder / "README.md").write_text(re.sub(r"\n{3,}", "\n\n", text), encoding="utf-8")


def metadata(facts: RunFacts, network: NetworkFacts, is_scored: bool) -> Any:
    """As the Hub reads it: huggingface_hub checks the form."""
    from huggingface_hub import ModelCardData

    base = facts.run.settings.get(f"init_{network.name}")
    results = eval_results(facts.glue) if is_scored and facts.glue else []
    family = [] if network.model_type == "electra" else [network.model_type]
    return ModelCardData(
        library_name="transformers",
        license=facts.licence,
        pipeline_tag="fill-mask" if network.head == "words" else None,
        base_model=base if isinstance(base, str) and is_hub_name(base) else None,
        tags=["electra", "electrakit", "pretraining", *family],
        model_name=facts.name if results else None,
        eval_results=results or None,
    )


# Tables


def data_rows(facts: RunFacts) -> list[tuple[str, str]]:
    if facts.manifest is None:
        return []
    manifest, train, num_valid = (
        facts.manifest,
        facts.manifest.splits["train"],
        facts.run.data.rows.get("valid", 0),
    )
    counts = manifest.counts or DocumentCounts()
    return [
        ("sources", describe_sources(facts.sources, manifest.plan.get("sources", {}))),
        ("documents", f"{counts.documents:,}"),
        ("tokens", f"{counts.tokens:,}, of them {train.tokens:,} for training"),
        ("rows", f"{train.rows:,} of {manifest.length} tokens for training, {num_valid:,} for validation"),
        ("vocabulary", f"{manifest.vocab_size:,} word pieces"),
    ]


def describe_sources(names: Sequence[str], known: dict[str, Any]) -> str:
    text = f"{counted(known.get('files', len(names)), 'file')}, {known.get('bytes', 0) / 1e6:,.1f} MB"
    if not names:
        return text
    # Neither may end the cell or the code in it.
    shown = ", ".join(f"`{name.replace('|', '-').replace('`', '')}`" for name in names[:3])
    return f"{text}: {shown}" if len(names) <= 3 else f"{text}; the largest are {shown}"


def training_facts(facts: RunFacts, is_custom: bool) -> list[tuple[str, str]]:
    settings, run = facts.run.settings, facts.run
    optim, objective, steps = settings.get("optim", {}), settings.get("objective", {}), settings.get("steps", 0)
    epochs = facts.num_rows / max(1, run.data.rows.get("train", 0))
    of_all = "" if facts.step == steps or settings.get("budget") else f" of {steps:,}"
    schedule = SCHEDULES.get(optim.get("schedule"), optim.get("schedule"))
    compute = f"{facts.flops:.2e} FLOPs, counted as in the ELECTRA paper".replace("+", "")
    whole_words = ", whole words" if objective.get("whole_words") else ""
    known = {
        "steps": f"{facts.step:,}{of_all}, of {settings.get('batch_size')} rows of {settings.get('length')} tokens",
        "tokens": f"{format_words(facts.num_tokens)} seen, {epochs:.2f} times the training data",
        "compute": None if is_custom else compute,
        "time": f"{format_duration(facts.seconds)} on {describe_hardware(run.environment)}",
        "precision": settings.get("precision"),
        "objective": None
        if is_custom
        else f"{facts.kind}, {100 * objective.get('mask_prob', 0):g} % of the tokens chosen{whole_words}",
        "networks share": settings.get("share") if settings.get("generator") and not is_custom else None,
        "optimizer": f"{optim.get('name')}, learning rate {optim.get('lr'):g}, {counted(optim.get('warmup_steps'), 'step')} of warm-up, "
        f"then {schedule}; weight decay {optim.get('weight_decay')}",
        "seed": settings.get("seed"),
        "software": ", ".join(f"{name} {value}" for name, value in run.environment.versions.items() if value),
    }
    return [(name, str(value)) for name, value in known.items() if value is not None]


def describe_hardware(environment: Environment) -> str:
    device, processes, threads = environment.device or "unknown hardware", environment.processes, environment.threads
    if processes not in (None, 1):
        return f"{processes} processes ({device})"
    return f"{device}, {counted(threads, 'thread')}" if threads and "Processor" in device else device


def network_rows(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    networks = {name: settings[name] for name in ("discriminator", "generator") if settings.get(name)}
    return [(name, *(str(network.get(key, "–")) for key in NETWORK_COLUMNS)) for name, network in networks.items()]


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


def draw_losses(run: RunFiles, last_step: int) -> bytes:
    """A PNG of loss over steps, a panel for each network: thin as logged, thick smoothed, dots on validation text."""
    lines = [line for line in run.lines if line["step"] <= last_step]
    names = [name for name in LOSSES if any(line.get(name) is not None for line in lines)]
    kind = run.settings.get("objective", {}).get("kind")
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
        axes.set_title(title_of(name, kind), fontsize=plots.FONT_SIZE)
        plots.number_steps(axes)
        drawn = sorted(value for _, value in (*train, *valid))
        # Up to the 99th of a hundred values: one spike shall not flatten the rest.
        if len(drawn) > 1:
            plots.frame_values(axes, drawn[: 1 + int(0.99 * (len(drawn) - 1))])
        if drawn:
            plots.add_legend(axes)
    return plots.to_png(figure, dpi=150)


def title_of(name: str, kind: str | None) -> str:
    if kind == "mlm":
        return "Loss of predicting masked tokens"
    if kind != "electra" and name == "disc_loss":
        return "Discriminator: loss of predicting originals"
    return LOSSES[name]


def points_of(lines: Sequence[MetricsLine], split: str, name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if line["split"] == split and line.get(name) is not None]
