"""The demo: from the prose of this Python installation to a tokenizer, shards, a trained pair, a transformers model and a report."""

import functools
from pathlib import Path
from typing import Any

import xxhash
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from electrakit import presets
from electrakit.cli.printing import print_summary
from electrakit.cli.showcase import Showcase, Swap, print_predictions, print_swaps
from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.hardware import num_cores
from electrakit.common.progress import progress
from electrakit.common.workers import WorkerPool
from electrakit.config.outputs import DemoConfig
from electrakit.data.prepare import prepare
from electrakit.data.read import docstrings
from electrakit.data.tokenizer import train_tokenizer
from electrakit.doctor.examine import examine
from electrakit.doctor.findings import print_findings
from electrakit.export.export import export
from electrakit.report.report import report
from electrakit.runs.files import PretrainRun
from electrakit.train.loop import pretrain

# Characters of text for each second of training. Two slow cores train on 12,000 tokens (55,000 characters) a second and so
# read it about twice; on faster machines repeating text a few times costs little (Muennighoff et al. 2023).
CHARACTERS_PER_SECOND = 25_000
MIN_CHARACTERS = 2_000_000  # for the vocabulary and for validation, however short the training is
# Of a source file. Parsing takes most of the time, and files with fewer docstrings are half of that for a fifth of the text.
MIN_DOCSTRING_SHARE = 0.2
VOCAB_SIZE = 8_000
LENGTH = 128
RECIPE: dict[str, Any] = {
    # Within minutes the generator's likeliest samples are too hard for the discriminator; a higher temperature makes some that it
    # can find (docs/log.md).
    "objective": {"temperature": 2.0},
    "optim": {"warmup_steps": 50},
    "valid_every": 250,
    "save_every": 250,
}
MASKED = [
    "Return the [MASK] of the file.",
    "If the file does not [MASK], an error is raised.",
    "The default [MASK] is used if none is given.",
    "This function returns a list of [MASK].",
]
RARE = [
    Swap("return the name of the {} as a string .", right="file", odd="banana"),
    Swap("the value must be between 0 and {} .", right="1", odd="purple"),
    Swap("this function returns a {} of strings .", right="list", odd="winter"),
]
# Each odd word is the right one of another sentence: only the context can give it away, not how rare it is.
MISPLACED = [
    Swap("return the name of the {} as a string .", right="file", odd="exist"),
    Swap("the value must be between 0 and {} .", right="1", odd="file"),
    Swap("raise an error if the file does not {} .", right="exist", odd="1"),
    Swap("if the list is {} , nothing is done .", right="empty", odd="list"),
    Swap("this function returns a {} of strings .", right="list", odd="empty"),
]
VALIDATION_METRICS = {
    "mlm_loss": "generator: loss",
    "gen_acc": "generator: share of masked words predicted",
    "disc_loss": "discriminator: loss",
    "disc_auc": "discriminator: AUC (0.5 is chance), samples at temperature 2",
}


def demo(config: DemoConfig) -> None:
    """Walk from text to a trained pair; stages that are done already are not done again."""
    console = Console(highlight=False)
    corpus, tokenizer, shards = config.out / "corpus.txt", config.out / "tokenizer", config.out / "shards"
    settings = presets.modern_mini(data=shards, run=config.out / "run", budget=config.budget, **RECIPE)
    console.print(
        "[bold]ElectraKit demo[/]: the English prose inside this Python installation becomes training data, and then a model."
    )

    console.print(Rule(f"1. a tokenizer: {VOCAB_SIZE:,} word pieces", align="left"))
    if not corpus.exists():
        with explain_write_errors(config.out):
            num_characters = max(MIN_CHARACTERS, int(CHARACTERS_PER_SECOND * (settings.budget_seconds or 0)))
            write_corpus(corpus, num_characters, config.workers)
    if (tokenizer / "tokenizer.json").exists():
        console.print(f"{tokenizer} is there already.", markup=False)
    else:
        train_tokenizer([corpus], vocab_size=VOCAB_SIZE, out=tokenizer, workers=config.workers)

    console.print(Rule(f"2. shards: rows of {LENGTH} tokens", align="left"))
    try:
        prepare([corpus], tokenizer=tokenizer, length=LENGTH, out=shards, workers=config.workers)
    except UserError as error:
        raise UserError(f"{error} (rm -r {config.out} starts the demo afresh)") from None
    print_summary(shards, console)

    console.print(Rule("3. what the doctor says", align="left"))
    print_findings(examine([shards], workers=config.workers))

    console.print(Rule(f"4. training: {config.budget}", align="left"))
    run = pretrain(settings)
    if not run.is_complete:
        raise UserError(f"stopped at step {run.step}; start the demo again to resume")
    console.print(validation_table(run))

    console.print(Rule("5. what it has learned", align="left"))
    showcase = Showcase(run.checkpoint)
    console.print("The [bold green]generator's[/] best predictions for a masked word:")
    print_predictions(showcase, MASKED, console)
    console.print(
        "How likely the discriminator thinks that a word was replaced: an [bold magenta]odd[/] one, and below it the "
        "[bold cyan]right[/] one. First words that are rare in this text:"
    )
    print_swaps(showcase, RARE, console)
    console.print("Then common words in the wrong place, where only the context can tell; it takes longer to learn:")
    print_swaps(showcase, MISPLACED, console)

    console.print(Rule("6. a model for transformers, and a page about the run", align="left"))
    exported = export(run, config.out / "hf")
    console.print(
        f"Written for transformers, opened again and compared: the largest difference of a logit is "
        f"{max(exported.differences.values()):.1g}."
    )
    page = report([run], out=config.out / "report.html", png=False)
    made = {
        tokenizer: "opens with transformers.AutoTokenizer.from_pretrained",
        shards: "read with electrakit.Batches: step number -> ids",
        exported.path: "the encoder, its card, and the generator: opens with transformers.AutoModel.from_pretrained",
        page: "the curves, and what the doctor says: open it in a browser",
    }
    for path, what in made.items():
        console.print(f"  {path}  {what}", markup=False, soft_wrap=True)
    console.print("[bold]Play[/] with it:")
    console.print(f"  electra play {exported.path}", markup=False)
    console.print("[bold]Next[/], with text of your own:")
    console.print("  electra tokenizer corpus/ --vocab-size 30522 --out tokenizer")
    console.print("  electra prepare corpus/ --tokenizer tokenizer --length 128 --out shards/mine")
    console.print("  electra pretrain electra_small --data shards/mine --run runs/mine")


def write_corpus(path: Path, num_characters: int, workers: int | None) -> None:
    """Extract about so much prose from Python's installed packages: a document for each source file, its paragraphs as lines."""
    files = sorted(docstrings.python_files(), key=shuffled_order)
    documents: list[str] = []
    num_found = 0
    with WorkerPool(workers or num_cores()) as pool, progress("extracting", num_characters) as update:
        extract = functools.partial(docstrings.paragraphs_of_file, min_docstring_share=MIN_DOCSTRING_SHARE)
        for paragraphs in docstrings.without_repeats(pool.map(extract, files)):
            documents += ["\n".join(paragraphs)] if paragraphs else []
            num_found += sum(map(len, paragraphs))
            update(min(num_found, num_characters))
            if num_found >= num_characters:
                break
    atomic_write(path, "\n\n".join(documents).encode("utf-8", "replace"))


def shuffled_order(file: Path) -> int:
    """A fixed order that mixes the packages, and does not depend on where Python is installed."""
    return xxhash.xxh3_64_intdigest("/".join(file.parts[-3:]).encode())


def validation_table(run: PretrainRun) -> Table:
    """The first validation beside the last."""
    table = Table("on text it has not seen", "at the start", "now")
    first, last = run.metrics("valid")[0], run.metrics("valid")[-1]
    for name, label in VALIDATION_METRICS.items():
        table.add_row(label, f"{first[name]:.3f}", f"{last[name]:.3f}")
    return table
