"""What is known of a run in, a model card out: README.md as the Hugging Face Hub reads it, and a picture of the losses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from electrakit import __version__
from electrakit.run_files import Line, RunFiles
from electrakit.share.card_glue import eval_results, glue_section
from electrakit.share.onnx_files import Measured
from electrakit.share.usage import how_to_use
from electrakit.share.words import counted, duration, in_words, millions, table

CURVES = "training.png"  # the picture, beside the card
LOCAL = {  # settings that say nothing about the model: where, when and how fast things are written and computed
    *("data", "run", "on_checkpoint", "wandb", "micro_batch", "plain", "compile", "recompute", "fsdp", "deterministic"),
    *("log_every", "valid_every", "save_every", "keep_last", "keep_at"),
}
NOT_USED = {"discriminator", "generator", "share", "objective"}  # by a run with networks and an objective of one's own
PAPER_POSITIONS = 1_000_000 * 128 * 128  # that ELECTRA-Small saw: steps, rows, tokens
BARELY_BETTER = 0.6  # an AUC below this: little more than chance
SCHEDULES = {"official": "linear decay", "linear": "linear decay", "cosine_restarts": "cosine decay with restarts"}

VALIDATION = {  # figure -> what it is, and of which network
    "mlm_loss": ("generator", "loss (nats per chosen token)"),
    "gen_acc": ("generator", "right guesses"),
    "sampled_acc": ("generator", "right samples"),
    "disc_loss": ("discriminator", "loss"),
    "disc_acc": ("discriminator", "right verdicts"),
    "disc_auc": ("discriminator", "AUC (0.5 is chance)"),
    "disc_precision": ("discriminator", "precision"),
    "disc_recall": ("discriminator", "recall"),
    "replaced_rate": ("discriminator", "share of tokens that were replaced"),
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a card says. The second half differs between the networks of a run."""

    name: str
    place: str
    """What `from_pretrained` is told."""
    run: RunFiles
    step: int
    seconds: float
    flops: float
    """As the paper counts them, and the report."""
    manifest: dict[str, Any] | None
    """Of the shards, if they are still there."""
    sources: list[str]
    """Names of the files that they were made of, the largest first."""
    glue: dict[str, Any] | None
    licence: str | None
    network: str = "discriminator"
    is_custom: bool = False
    """The networks are not those of the settings."""
    has_generator: bool = False
    head: Literal["words", "replaced"] | None = None
    class_name: str = ""
    model_type: str = ""
    num_parameters: int = 0
    num_encoder: int = 0
    max_positions: int | None = None
    difference: float = 0.0
    onnx: list[Measured] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.run.settings.get("objective", {}).get("kind", "electra"))

    @property
    def validation(self) -> Line | None:
        """The last one up to this checkpoint."""
        return next((line for line in reversed(self.run.valid) if line["step"] <= self.step), None)

    @property
    def num_rows(self) -> int:
        """That the training has read."""
        return self.step * int(self.run.settings.get("batch_size") or 0)


def write_card(facts: Facts, path: Path) -> None:
    """Front matter, and a section for each thing that people ask."""
    front = metadata(facts).to_yaml(line_break="\n")
    sections = [
        introduction(facts),
        how_to_use(facts),
        training_data(facts),
        training(facts),
        validation(facts),
        glue_section(facts.glue) if facts.network == "discriminator" else None,
        onnx(facts),
        limits(facts),
        licence(facts),
        made_with(facts),
    ]
    path.write_text(f"---\n{front.strip()}\n---\n\n" + "\n\n".join(filter(None, sections)) + "\n", encoding="utf-8")


def metadata(facts: Facts) -> Any:
    """As the Hub reads it: huggingface_hub checks the form."""
    from huggingface_hub import ModelCardData

    base = facts.run.settings.get(f"init_{facts.network}")
    results = eval_results(facts.glue) if facts.glue and facts.network == "discriminator" else []
    return ModelCardData(
        library_name="transformers",
        license=facts.licence,
        pipeline_tag="fill-mask" if facts.head == "words" else None,
        base_model=base if isinstance(base, str) and _is_hub_name(base) else None,
        tags=["electra", "electrakit", "pretraining", *([] if facts.model_type == "electra" else [facts.model_type])],
        model_name=facts.name if results else None,
        eval_results=results or None,
    )


# --- sections ----------------------------------------------------------------------------------------------------------

OBJECTIVES = {
    "electra": "to tell which tokens of a text a small generator has replaced (ELECTRA, Clark et al. 2020)",
    "mlm": "to guess masked tokens (as BERT)",
    "replace_mlm": "to guess the originals of tokens that a small generator has replaced (Replace MLM of the ELECTRA paper)",
    "all_tokens_mlm": "to guess the originals of all tokens, some replaced by a small generator (All-Tokens MLM of the ELECTRA paper)",
}


def introduction(facts: Facts) -> str:
    size = f"`{facts.class_name}`, {millions(facts.num_parameters)} parameters"
    if facts.network == "generator":
        return (
            f"# {facts.name}: the generator\n\nThe small masked language model that made the replacements while "
            f"[{facts.name}](../README.md) was trained: {size}. For most tasks you want that model, not this one."
        )
    beside = " The generator that it was trained with is in `generator/`." if facts.has_generator else ""
    return (
        f"# {facts.name}\n\nA text encoder, trained {OBJECTIVES[facts.kind]}: {size}, {millions(facts.num_encoder)} of them in the "
        f"encoder. Fine-tune it for classification, tagging or question answering.{beside}"
    )


def training_data(facts: Facts) -> str:
    lines = ["## Training data", "**TODO**: say what this text is, where it comes from, and in which language it is."]
    rows = facts.run.data.get("rows", {})
    if facts.manifest is None:
        lines.append(
            f"{rows.get('train', 0):,} rows of {facts.run.data.get('length')} tokens (the shards were gone when this card was written)."
        )
        return "\n\n".join(lines)
    counts, train = facts.manifest["counts"], facts.manifest["splits"]["train"]
    sources = facts.manifest.get("plan", {}).get("sources", {})
    known = {
        "sources": _sources(facts.sources, sources),
        "documents": f"{counts['documents']:,}",
        "tokens": f"{counts['tokens']:,}, of them {train['tokens']:,} for training",
        "rows": f"{train['rows']:,} of {facts.manifest['length']} tokens for training, {rows.get('valid', 0):,} for validation",
        "vocabulary": f"{facts.manifest['vocab_size']:,} word pieces",
    }
    return "\n\n".join([*lines, table(("item", "value"), known.items())])


def _sources(names: Sequence[str], known: dict[str, Any]) -> str:
    text = f"{counted(known.get('files', len(names)), 'file')}, {known.get('bytes', 0) / 1e6:,.1f} MB"
    if not names:
        return text
    shown = ", ".join(f"`{name.replace('|', '-').replace('`', '')}`" for name in names[:3])
    return f"{text}: {shown}" if len(names) <= 3 else f"{text}; the largest are {shown}"


def training(facts: Facts) -> str:
    settings, run = facts.run.settings, facts.run
    optim, objective = settings.get("optim", {}), settings.get("objective", {})
    epochs = facts.num_rows / max(1, run.data.get("rows", {}).get("train", 0))
    of_all = (
        "" if facts.step == settings.get("steps") or settings.get("budget") else f" of {settings.get('steps', 0):,}"
    )
    known = {
        "steps": f"{facts.step:,}{of_all}, of {settings.get('batch_size')} rows of {settings.get('length')} tokens",
        "tokens": f"{in_words(_num_tokens(facts))} seen, {epochs:.2f} times the training data",
        "compute": None
        if facts.is_custom
        else f"{facts.flops:.2e} FLOPs, counted as in the ELECTRA paper".replace("+", ""),
        "time": f"{duration(facts.seconds)} on {_hardware(run.environment)}",
        "precision": settings.get("precision"),
        "objective": None if facts.is_custom else _objective(facts.kind, objective),
        "networks share": settings.get("share") if settings.get("generator") and not facts.is_custom else None,
        "optimizer": f"{optim.get('name')}, learning rate {optim.get('lr'):g}, {counted(optim.get('warmup_steps'), 'step')} of warm-up, "
        f"then {SCHEDULES.get(optim.get('schedule'), optim.get('schedule'))}; weight decay {optim.get('weight_decay')}",
        "seed": settings.get("seed"),
        "software": ", ".join(
            f"{name} {value}" for name, value in run.environment.get("versions", {}).items() if value
        ),
    }
    networks = "The networks are of its author's own making." if facts.is_custom else _networks(settings)
    hidden = LOCAL | (NOT_USED if facts.is_custom else set())
    told = {name: _public(name, value) for name, value in settings.items() if name not in hidden}
    return "\n\n".join(
        [
            "## Training",
            table(("item", "value"), ((name, str(value)) for name, value in known.items() if value is not None)),
            networks,
            f"![losses of generator and discriminator over the training]({CURVES})",
            f"<details><summary>All settings</summary>\n\n```json\n{json.dumps(told, indent=1)}\n```\n\n</details>",
        ]
    )


def _networks(settings: dict[str, Any]) -> str:
    shown = {
        "body": "body",
        "num_layers": "layers",
        "hidden_size": "width",
        "ffn_size": "feed-forward",
        "num_heads": "heads",
        "embedding_size": "embeddings",
        "max_length": "positions",
        "dropout": "dropout",
    }
    networks = {name: settings[name] for name in ("discriminator", "generator") if settings.get(name)}
    rows = [(name, *(str(network.get(key, "–")) for key in shown)) for name, network in networks.items()]
    return table(("network", *shown.values()), rows)


def _objective(kind: str, objective: dict[str, Any]) -> str:
    text = f"{kind}, {100 * objective.get('mask_prob', 0):g} % of the tokens chosen"
    if objective.get("whole_words"):
        text += ", whole words"
    return text


def validation(facts: Facts) -> str | None:
    line = facts.validation
    if line is None:
        return None
    own = {"mlm_loss": "discriminator", "gen_acc": "discriminator"} if facts.kind == "mlm" else {}
    rows = [
        (own.get(name, network), label, f"{line[name]:.3f}")
        for name, (network, label) in VALIDATION.items()
        if line.get(name) is not None
    ]
    if facts.kind in ("replace_mlm", "all_tokens_mlm"):
        rows = [(who, what.replace("right verdicts", "right guesses"), value) for who, what, value in rows]
    step = f"step {line['step']:,}"
    num_rows = min(facts.run.settings.get("valid_rows", 0), facts.run.data.get("rows", {}).get("valid", 0))
    intro = f"On {num_rows:,} rows that were not trained on, at {step}:"
    return "\n\n".join(["## Validation", intro, table(("network", "figure", "value"), rows)])


def onnx(facts: Facts) -> str | None:
    if not facts.onnx:
        return None
    rows = [
        (
            f"`{one.file}`" if one.file else "torch",
            f"{one.num_bytes / 1e6:,.1f}",
            f"{one.milliseconds:.1f}",
            "–" if one.difference is None else f"{one.difference:.2g}",
            "–" if one.agreement is None else f"{100 * one.agreement:.1f} %",
        )
        for one in facts.onnx
    ]
    header = ("file", "MB", "ms per row", "largest difference of logits", "same decisions")
    where = f"Compared with torch on rows of {facts.run.data.get('length')} tokens, on the machine that exported it:"
    return "\n\n".join(["## ONNX", where, table(header, rows)])


def limits(facts: Facts) -> str:
    """What a reader should not find out the hard way."""
    found = [
        "It knows what stands in its training data, with all mistakes and prejudices of that text; nothing was filtered out for "
        "being wrong, offensive or private."
    ]
    share = _num_positions(facts) / PAPER_POSITIONS
    if share < 0.5:
        found.append(
            f"It is trained little: ELECTRA-Small of the paper saw {in_words(PAPER_POSITIONS)} positions, this model "
            f"{in_words(_num_positions(facts))} ({100 * share:.2g} %)."
        )
    auc = (facts.validation or {}).get("disc_auc")
    if facts.kind == "electra" and auc is not None and auc < BARELY_BETTER:
        found.append(
            f"The discriminator finds replaced tokens hardly better than chance (AUC {auc:.3f} on text that it has not seen)."
        )
    if facts.head == "replaced":
        found.append(
            "Its head was made for pretraining: it finds words that a small generator put in, which is no detector of mistakes, "
            "lies, or text that a machine wrote."
        )
    if facts.kind == "all_tokens_mlm" and facts.network == "discriminator":
        found.append("The gate that copies tokens in All-Tokens MLM has no place in transformers: it is left out here.")
    length = facts.run.settings.get("length")
    if facts.max_positions and length and facts.max_positions > length and facts.model_type != "modernbert":
        found.append(
            f"It takes {facts.max_positions} tokens, but the positions behind {length} were never trained: fine-tune on longer "
            "texts before you rely on them."
        )
    if facts.network == "discriminator" and not (facts.glue or {}).get("tasks"):
        found.append("It was not measured on any task that people use.")
    found.append("Without fine-tuning its states are no good sentence embeddings.")
    return "## Limits\n\n" + "\n".join(f"- {one}" for one in found)


def licence(facts: Facts) -> str:
    if facts.licence:
        return f"## Licence\n\n{facts.licence}. The training data has licences of its own."
    return (
        "## Licence\n\n**TODO: no licence has been chosen.** Until the owner of this model adds one (`license:` at the top of this "
        "file, and a sentence here), nobody else has the right to use it. Mind the licences of the training data."
    )


def made_with(facts: Facts) -> str:
    how = f"up to {facts.difference:.1g}" if facts.difference else "bit for bit"
    return (
        f"---\n\nMade with ElectraKit {__version__}. After writing, this folder was loaded again with transformers: its logits are those "
        f"of the trained network, {how}."
    )


def _num_positions(facts: Facts) -> int:
    return facts.num_rows * int(facts.run.settings.get("length") or 0)


def _num_tokens(facts: Facts) -> float:
    """Without padding where the shards say how much of it there is."""
    if facts.manifest is None:
        return float(_num_positions(facts))
    train = facts.manifest["splits"]["train"]
    return facts.num_rows * train["tokens"] / max(1, train["rows"])


def _hardware(environment: dict[str, Any]) -> str:
    device, processes = environment.get("device", "unknown hardware"), environment.get("processes", 1)
    threads = environment.get("threads")
    if processes != 1:
        return f"{processes} processes ({device})"
    return f"{device}, {counted(threads, 'thread')}" if threads and "Processor" in device else device


def _public(name: str, value: Any) -> Any:
    """A setting without the folders of this machine."""
    is_place = name.startswith("init_") and isinstance(value, str) and not _is_hub_name(value)
    return Path(value).name if is_place else value


def _is_hub_name(name: str) -> bool:
    return name.count("/") <= 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
