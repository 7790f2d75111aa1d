"""Nothing in, the whole walk out: builtin text to tokenizer, shards, a trained pair, a transformers model and a report; offline."""

from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from electrakit import presets
from electrakit.config import DemoConfig
from electrakit.data.shards import prepare
from electrakit.data.summary import print_summary
from electrakit.data.tokenizer import train_tokenizer
from electrakit.doctor.examine import examine
from electrakit.doctor.findings import print_findings
from electrakit.errors import UserError
from electrakit.share.export import export
from electrakit.share.report import report
from electrakit.share.showcase import Showcase, Swap, print_guesses, print_swaps
from electrakit.train.loop import pretrain
from electrakit.train.run_folder import Run

CORPUS = "builtin:python"
VOCAB_SIZE = 8_000
LENGTH = 128
RECIPE: dict[str, Any] = {
    # In minutes the generator's best samples are too good for the discriminator; hotter ones are something to find (docs/log.md).
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
# Each odd word is the right one of another sentence: how common a word is cannot give it away, only what stands around it.
MISPLACED = [
    Swap("return the name of the {} as a string .", right="file", odd="exist"),
    Swap("the value must be between 0 and {} .", right="1", odd="file"),
    Swap("raise an error if the file does not {} .", right="exist", odd="1"),
    Swap("if the list is {} , nothing is done .", right="empty", odd="list"),
    Swap("this function returns a {} of strings .", right="list", odd="empty"),
]
FIGURES = {
    "mlm_loss": "generator: loss",
    "gen_acc": "generator: share of masked words guessed",
    "disc_loss": "discriminator: loss",
    "disc_auc": "discriminator: AUC (0.5 is chance), samples at temperature 2",
}


def demo(config: DemoConfig) -> None:
    """Walk from text to a trained pair; stages that are done already are not done again."""
    console = Console(highlight=False)
    tokenizer, shards = config.out / "tokenizer", config.out / "shards"
    settings = presets.modern_mini(data=shards, run=config.out / "run", budget=config.budget, **RECIPE)
    console.print(
        "[bold]ElectraKit demo[/]: the English prose inside this Python installation becomes training data, and then a model."
    )

    console.print(Rule(f"1. a tokenizer: {VOCAB_SIZE:,} word pieces", align="left"))
    if (tokenizer / "tokenizer.json").exists():
        console.print(f"{tokenizer} is there already.", markup=False)
    else:
        train_tokenizer([CORPUS], vocab_size=VOCAB_SIZE, out=tokenizer, workers=config.workers)

    console.print(Rule(f"2. shards: rows of {LENGTH} tokens", align="left"))
    try:
        prepare([CORPUS], tokenizer=tokenizer, length=LENGTH, out=shards, workers=config.workers)
    except UserError as error:
        raise UserError(
            f"{error} (other packages are another corpus: rm -r {config.out} starts the demo afresh)"
        ) from None
    print_summary(shards, console)

    console.print(Rule("3. what the doctor says", align="left"))
    print_findings(examine([shards], workers=config.workers))

    console.print(Rule(f"4. training: {config.budget}", align="left"))
    run = pretrain(settings)
    if not run.is_complete:
        raise UserError(f"stopped at step {run.step}; start the demo again to go on")
    console.print(validation_table(run))

    console.print(Rule("5. what it has learned", align="left"))
    showcase = Showcase(run.checkpoint)
    console.print("The [bold green]generator's[/] best guesses for a masked word:")
    print_guesses(showcase, MASKED, console)
    console.print(
        "How likely the discriminator thinks that a word was replaced: an [bold magenta]odd[/] one, and below it the "
        "[bold cyan]right[/] one. First words that are rare in this text:"
    )
    print_swaps(showcase, RARE, console)
    console.print("Then common words in the wrong place, where only the context can tell; it takes longer to learn:")
    print_swaps(showcase, MISPLACED, console)

    console.print(Rule("6. a model for everybody, and a page about the run", align="left"))
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


def validation_table(run: Run) -> Table:
    """The first validation beside the last."""
    table = Table("on text it has not seen", "at the start", "now")
    first, last = run.metrics("valid")[0], run.metrics("valid")[-1]
    for name, label in FIGURES.items():
        table.add_row(label, f"{first[name]:.3f}", f"{last[name]:.3f}")
    return table
