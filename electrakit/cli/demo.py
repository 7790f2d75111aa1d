"""The demo: from the prose of this Python installation to a tokenizer, shards, a trained pair, a transformers model and a report."""

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from electrakit.cli.printing import print_summary
from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.hardware import num_cores
from electrakit.common.ownership import require_free_file, require_replaceable
from electrakit.common.progress import progress
from electrakit.common.workers import WorkerPool
from electrakit.config.outputs import DemoConfig
from electrakit.config.pretrain import PretrainConfig
from electrakit.data.prepare import prepare
from electrakit.data.read import docstrings
from electrakit.data.tokenizer import train_tokenizer
from electrakit.doctor.examine import examine
from electrakit.doctor.findings import print_findings
from electrakit.export.export import export
from electrakit.playground.open import open_pair
from electrakit.playground.pair import Pair
from electrakit.report.report import is_page, report
from electrakit.runs.files import PretrainRun, run_folder
from electrakit.train.auto import choose_recipe
from electrakit.train.loop import pretrain

# Characters of text for each second of training. Two slow cores train on 6,000 tokens (28,000 characters) a second and so
# read it about once; on faster machines repeating text a few times costs little (Muennighoff et al. 2023).
CHARACTERS_PER_SECOND = 25_000
MIN_CORPUS_CHARACTERS = 2_000_000  # for the vocabulary and for validation, however short the training is
# Of a source file. Parsing takes most of the time, and files with fewer docstrings are half of that for a fifth of the text.
MIN_DOCSTRING_SHARE = 0.2
VOCAB_SIZE = 8_000
LENGTH = 128
NUM_PREDICTIONS = 5


@dataclass(frozen=True)
class Gap:
    """A sentence with a [MASK], and words that a person might have written there."""

    sentence: str
    right: tuple[str, ...]


MASKED = [
    Gap(
        "Return the [MASK] of the file.", right=("name", "path", "size", "type", "contents", "content", "length", "end")
    ),
    Gap("If the file does not [MASK], an error is raised.", right=("exist",)),
    Gap(
        "The default [MASK] is used if none is given.", right=("value", "name", "type", "format", "encoding", "method")
    ),
    Gap(
        "This function returns a list of [MASK].", right=("strings", "names", "values", "files", "objects", "integers")
    ),
]


@dataclass(frozen=True)
class Swap:
    """A sentence with a gap, {} between spaces, the word that belongs there, and one that is out of place."""

    sentence: str
    right: str
    odd: str


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
    "auc_frequency": "discriminator: AUC on words by frequency (0.5 is chance)",
    "auc_swapped": "discriminator: AUC on swapped neighbours",
}


def demo(config: DemoConfig) -> None:
    """The pipeline, from text to a trained pair; stages that are done already are not done again."""
    console = Console(highlight=False)
    corpus, tokenizer, shards = config.out / "corpus.txt", config.out / "tokenizer", config.out / "shards"
    # Read first: a mistake in it is found before anything is written.
    budget_seconds = PretrainConfig(budget=config.budget).budget_seconds
    # So are files of others in the way of what comes last.
    run_folder(config.out / "run").require_ours()
    require_replaceable(config.out / "hf", "export", refresh=True)
    require_free_file(config.out / "report.html", is_page, "a report")
    console.print(
        "[bold]ElectraKit demo[/]: the English prose inside this Python installation becomes training data, and then a model."
    )

    console.print(Rule(f"1. a tokenizer: {VOCAB_SIZE:,} word pieces", align="left"))
    if not corpus.exists():
        with explain_write_errors(config.out):
            num_characters = max(MIN_CORPUS_CHARACTERS, int(CHARACTERS_PER_SECOND * (budget_seconds or 0)))
            write_corpus(corpus, num_characters, config.workers)
    if (tokenizer / "tokenizer.json").exists():
        console.out(f"{tokenizer} is there already.")
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
    choice = choose_recipe(data=shards, run=config.out / "run", budget=config.budget)
    console.print("The settings for this time, this machine and this text, as `electra pretrain auto` chooses them:")
    for reason in choice.reasons:
        console.print(f"  {reason}", highlight=False, markup=False)
    run = pretrain(choice.config)
    if not run.is_complete:
        raise UserError(f"stopped at step {run.step}; start the demo again to resume")
    console.print(validation_table(run))

    console.print(Rule("5. what it has learned", align="left"))
    pair = open_pair(run.checkpoint)
    console.print("The generator's best predictions for a masked word:")
    print_predictions(pair, MASKED, console)
    console.print(
        "How likely the discriminator thinks that a word was replaced: an [bold magenta]odd[/] one, and below it the "
        "[bold cyan]right[/] one. First words that are rare in this text:"
    )
    print_swaps(pair, RARE, console)
    console.print("Then common words in the wrong place, where only the context can tell; it takes longer to learn:")
    print_swaps(pair, MISPLACED, console)

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
        console.out(f"  {path}  {what}")
    console.print("[bold]Play[/] with it:")
    console.out(f"  electra play {exported.path}")
    console.print("[bold]Next[/], with text of your own:")
    console.out("  electra tokenizer corpus/ --vocab-size 30522 --out tokenizer")
    console.out("  electra prepare corpus/ --tokenizer tokenizer --length 128 --out shards/mine")
    console.out("  electra pretrain auto --data shards/mine --run runs/mine --budget 1h")


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


def print_predictions(pair: Pair, gaps: Sequence[Gap], console: Console) -> None:
    """Each sentence with the generator's most likely words for its [MASK], and how often a sensible one is among them."""
    num_found = 0
    for gap in gaps:
        encoded = pair.encode(gap.sentence)
        place = encoded.ids.index(pair.special.mask) - 1  # without [CLS]
        line = Text("  " + gap.sentence.replace("[MASK]", "____"))
        line.highlight_words(["____"], "bold magenta")
        line.append("   ")
        predictions = pair.predictions(encoded, place, NUM_PREDICTIONS).best
        num_found += any(prediction.token in gap.right for prediction in predictions)
        for prediction in predictions:
            line.append(f" {prediction.token}", style="bold green" if prediction.token in gap.right else "bold")
            line.append(f" {prediction.probability:.0%}", style="dim")
        console.print(line, soft_wrap=True)
    console.print(
        f"  {num_found} of {len(gaps)} have a word among these that a person might write there (in green).",
        style="bold",
    )


def print_swaps(pair: Pair, swaps: Sequence[Swap], console: Console) -> None:
    """Each sentence with the odd word and with the right one, and how often the odd word was doubted more."""
    num_found = 0
    for swap in swaps:
        odd, right = (score_gap(pair, swap.sentence, word) for word in (swap.odd, swap.right))
        comparison = ("  higher", "green") if odd > right else ("  not higher", "red")
        num_found += odd > right
        before, after = swap.sentence.split("{}")
        width = max(len(swap.odd), len(swap.right))
        for word, style, score, end in (
            (swap.odd, "bold magenta", odd, comparison),
            (swap.right, "bold cyan", right, ""),
        ):
            room = " " * (width - len(word) + 1)
            line = Text.assemble("   ", before, (word, style), after, room, (f"{score:6.1%}", "bold"), end)
            console.print(line, soft_wrap=True)
    console.print(
        f"  {num_found} of {len(swaps)} odd words got a higher probability than the right word there.", style="bold"
    )


def score_gap(pair: Pair, sentence: str, word: str) -> float:
    """The discriminator's probability that this word in the gap was replaced.

    The mean over the word's tokens, so that long words have no advantage.
    """
    before, _ = sentence.split("{}")
    start, length = (len(pair.encode(text).tokens) for text in (before, word))
    scores = pair.replaced(pair.encode(sentence.replace("{}", word)).ids)[1:-1]  # without [CLS] and [SEP]
    return statistics.fmean(scores[start : start + length])
