"""Prints what a pretraining run would be: networks, costs, and warnings. Trains nothing and builds nothing."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from electrakit.cli.preset_arguments import config_from_arguments
from electrakit.common.words import format_number, format_size
from electrakit.config.pretrain import PretrainConfig, with_special_ids
from electrakit.data.manifest import Manifest, read_manifest
from electrakit.model.counts import (
    body_flops,
    count_parameters,
    estimate_memory,
    flops_per_step,
    flops_per_token,
    num_chosen,
    shared_parts,
)

USUAL_LR = {"official_adam": 5e-4, "adamw": 5e-4, "lamb": 2e-3, "muon": 3e-3}
"""ELECTRA-Small's in the paper, lmtuners' for LAMB; Muon's is modern_small's, which is not measured yet."""
SIZES = {
    "layers": "num_layers",
    "hidden size": "hidden_size",
    "feed-forward": "ffn_size",
    "heads": "num_heads",
    "embedding size": "embedding_size",
    "longest row": "max_length",
    "vocabulary": "vocab_size",
}


def show(arguments: Sequence[str], console: Console | None = None) -> None:
    """`electra show PRESET [--setting value ...]`: print the settings that would be used, sizes, costs and warnings."""
    name, config = config_from_arguments(arguments, verb="show")
    manifest = None if config.data is None else read_manifest(config.data)
    if manifest is not None:
        config = with_special_ids(config, manifest.special_ids)
    print_config(name, config, manifest, console or Console(highlight=False))


def print_config(name: str, config: PretrainConfig, manifest: Manifest | None, console: Console) -> None:
    """All tables, then the warnings."""
    console.print(facts_table(name, network_facts(config), "", *config.networks))
    console.print(facts_table("run", run_facts(config, manifest)))
    console.print(facts_table("cost", cost_facts(config)))
    for warning in find_warnings(config, manifest):
        console.print(f"[bold yellow]warning:[/] {escape(warning)}", soft_wrap=True)


# Tables


def facts_table(title: str, rows: Iterable[Sequence[str]], *header: str) -> Table:
    table = Table(*header, title=f"[bold]{escape(title)}", title_justify="left", show_header=bool(header))
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def network_facts(config: PretrainConfig) -> list[tuple[str, ...]]:
    """One row for each setting of a network, one column for each network."""
    networks = config.networks.values()
    count = count_parameters(config)
    of_its_own = " of its own" if shared_parts(config) else ""
    parameters = {"discriminator": f"{count.discriminator:,}", "generator": f"{count.generator:,}{of_its_own}"}
    return [
        ("body", *(network.body for network in networks)),
        *((label, *(f"{getattr(network, name):,}" for network in networks)) for label, name in SIZES.items()),
        ("dropout", *(f"{network.dropout:g}, attention {network.attention_dropout:g}" for network in networks)),
        ("parameters", *(parameters[name] for name in config.networks)),
        ("FLOPs per token", *(f"{flops:.3g}" for flops in flops_per_token(config).values())),
    ]


def run_facts(config: PretrainConfig, manifest: Manifest | None) -> list[tuple[str, str]]:
    optim = config.optim
    clip = "no clipping" if optim.max_grad_norm is None else f"clipped to {optim.max_grad_norm:g}"
    clip += ", each network by itself" if optim.decoupled and optim.max_grad_norm is not None else ""
    of_adam = "" if optim.adam_lr is None else f" (AdamW {optim.adam_lr:g})"
    about = "" if config.budget is None else "the clock decides; about "
    starts = {"counts": "word vectors from counts of the text", "neighbours": "attention heads at neighbouring tokens"}
    start = [starts[each] for each in (config.init_embeddings, config.init_attention) if each in starts]
    facts = [
        ("objective", objective_text(config)),
        ("shared", share_text(config)),
        *([("start", ", ".join(start))] if start else []),
        (
            "optimizer",
            f"{optim.name}, lr {optim.lr:g}{of_adam}, betas {optim.betas[0]:g} {optim.betas[1]:g}, eps {optim.eps:g}, "
            f"weight decay {optim.weight_decay:g}, {clip}",
        ),
        ("schedule", f"{optim.schedule}, {optim.warmup_steps:,} steps of warm-up"),
        ("steps", f"{about}{config.steps:,} of {config.batch_size:,} rows of {config.length:,} tokens"),
        ("tokens seen", f"{config.num_tokens:,} ({format_number(config.num_tokens)})"),
        ("precision", precision_text(config)),
        ("seed", str(config.seed)),
        (
            "every",
            f"log {config.log_every:,}, validation {config.valid_every:,}, checkpoint {config.save_every:,} steps"
            + (f" or {config.save_minutes:g} minutes" if config.save_minutes is not None else ""),
        ),
    ]
    if manifest is not None:
        num_rows = manifest.splits["train"].rows
        epochs = config.steps * config.batch_size / num_rows
        facts.append(("data", f"{config.data}: {num_rows:,} rows, seen {epochs:.3g} times"))
    if config.run is not None:
        facts.append(("run folder", str(config.run)))
    return facts


def precision_text(config: PretrainConfig) -> str:
    if config.plain:
        return "fp32, plain torch" if config.precision == "auto" else f"{config.precision}, plain torch"
    text = "bf16 where the machine has it, else fp32" if config.precision == "auto" else config.precision
    return text + (", compiled" if config.compile else "")


def objective_text(config: PretrainConfig) -> str:
    objective = config.objective
    parts = [objective.kind, f"{objective.mask_prob:.0%} masked (at most {num_chosen(config)} a row)"]
    if objective.kind == "mlm":
        parts.append(f"shown as in {objective.scheme}")
    else:
        source = "uniform replacements" if config.generator is None else f"{objective.replace_prob:.0%} shown as [MASK]"
        source = "noise of a two-tower model" if objective.kind == "electric" else source
        of_generator = "" if config.generator is None else f"{objective.gen_weight:g} generator + "
        parts += [source, f"loss = {of_generator}{objective.resolved_disc_weight:g} discriminator"]
    if objective.kind == "electra":
        parts.append(f"scored at {objective.loss_on} tokens")
    if objective.temperature != 1 or objective.final_temperature is not None:
        final = objective.final_temperature
        towards = f", flattened to {objective.flatten_to}" if objective.flatten_to != "uniform" else ""
        parts.append(f"temperature {objective.temperature:g}{'' if final is None else f' to {final:g}'}{towards}")
    if objective.generator_steps is not None:
        parts.append(
            f"{objective.generator_steps:,} steps of the generator alone, then the discriminator starts from it"
        )
    flags = {"disallow_correct": "never the original", "official": "official sampling", "whole_words": "whole words"}
    flags |= {"adversarial": "a generator that deceives"}
    return ", ".join([*parts, *(text for flag, text in flags.items() if getattr(objective, flag))])


def share_text(config: PretrainConfig) -> str:
    if config.generator is None:
        return "nothing: there is one network"
    if config.share == "gdes":
        return "gdes: the discriminator reads the generator's words plus a difference of its own"
    parts = shared_parts(config)
    if not parts:
        return "nothing"
    names = {"word": "words", "position": "positions", "segment": "segments", "embedding_norm": "their norm"}
    listed = [text for part, text in names.items() if part in parts]
    output = ", and the generator's output table"
    rests = {"encoder": ", everything but the heads", "layers": f", {config.generator.num_layers} layers{output}"}
    rest = rests.get(config.share, output)
    return f"{config.share}: {', '.join(listed)}{rest}"


def cost_facts(config: PretrainConfig) -> list[tuple[str, str]]:
    count, memory = count_parameters(config), estimate_memory(config)
    rows = min(config.micro_batch or config.batch_size, config.batch_size)
    step = flops_per_step(config)
    precision = "bf16" if config.precision == "bf16" else "fp32"
    what = "network" if config.objective.kind == "mlm" else "discriminator"
    is_kept = any(network.body == "deberta" for network in config.networks.values())
    attention = "attention weights included (our CPU kernels keep none)" if is_kept else "with fused attention"
    return [
        ("parameters", f"{count.total:,} ({format_number(count.total)}), each once"),
        ("kept after training", f"{count.encoder:,} ({format_number(count.encoder)}): the {what} without its head"),
        ("FLOPs per step", f"{step:.3g}"),
        (
            "FLOPs of the run",
            f"{step * config.steps:.3g} (as the paper counts: forward and backward, lookups as products)",
        ),
        (
            "memory",
            f"about {format_size(memory.total)} with {rows:,} rows at a time: weights {format_size(memory.weights)}, "
            f"gradients {format_size(memory.gradients)}, optimizer {format_size(memory.optimizer)}, "
            f"activations {format_size(memory.activations)}",
        ),
        (
            "activations of a row",
            f"{format_size(memory.activations / rows)} in {precision}, {attention}",
        ),
    ]


# Warnings


def find_warnings(config: PretrainConfig, manifest: Manifest | None = None) -> list[str]:
    """What is allowed but looks like a mistake; with the manifest of the shards, also what does not fit them."""
    found, optim, usual_lr = [], config.optim, USUAL_LR[config.optim.name]
    if config.generator is not None:
        ratio = body_flops(config.generator, config.length) / body_flops(config.discriminator, config.length)
        compared = "as large as" if ratio >= 1 else f"{ratio:.0%} of"
        if ratio > 0.5:
            found.append(
                f"the generator is {compared} the discriminator (its layers compute {ratio:.2g} times as much): replacements "
                "become too hard to tell; a quarter to a half of the width works best (paper, figure 3)"
            )
    if optim.lr >= 10 * usual_lr:
        found.append(
            f"optim.lr {optim.lr:g} is {optim.lr / usual_lr:,.3g} times the {usual_lr:g} that is usual with {optim.name}: "
            "training is likely to diverge"
        )
    if optim.warmup_steps >= config.steps:
        found.append(
            f"the warm-up of {optim.warmup_steps:,} steps is as long as the run of {config.steps:,}: the learning rate never "
            "reaches optim.lr; about a tenth of the run is usual"
        )
    if manifest is not None and config.discriminator.vocab_size != manifest.vocab_size:
        found.append(
            f"the networks have a vocabulary of {config.discriminator.vocab_size:,}, {config.data} has {manifest.vocab_size:,}: "
            f"training takes the latter; add --vocab-size {manifest.vocab_size} to see its numbers"
        )
    if manifest is not None and config.length != manifest.length:
        found.append(
            f"length is {config.length:,}, the rows of {config.data} have {manifest.length:,} tokens: "
            f"training takes the latter; add --length {manifest.length} to see its numbers"
        )
    return found
