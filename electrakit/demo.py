"""Nothing in, the whole walk out: builtin text to tokenizer to shards, in minutes, offline, on a CPU."""

from rich.console import Console
from rich.rule import Rule

from electrakit.config import DemoConfig
from electrakit.data.shards import prepare
from electrakit.data.summary import print_summary
from electrakit.data.tokenizer import train_tokenizer
from electrakit.doctor import examine, print_findings
from electrakit.errors import UserError

CORPUS = "builtin:python"
VOCAB_SIZE = 8_000
LENGTH = 128


def demo(config: DemoConfig) -> None:
    """Walk from text to shards; stages that are done already are not done again."""
    console = Console(highlight=False)
    tokenizer, shards = config.out / "tokenizer", config.out / "shards"
    console.print("[bold]ElectraKit demo[/]: the English prose inside this Python installation becomes training data.")

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

    console.print(Rule("made", align="left"))
    console.print(
        f"  {tokenizer}/  opens with transformers.AutoTokenizer.from_pretrained", markup=False, soft_wrap=True
    )
    console.print(f"  {shards}/     read with electrakit.Batches: step number -> ids", markup=False, soft_wrap=True)
    console.print("[bold]Next[/], with text of your own:")
    console.print("  electra tokenizer corpus/ --vocab-size 30522 --out tokenizer")
    console.print("  electra prepare corpus/ --tokenizer tokenizer --length 128 --out shards/mine")
    console.print("  electra doctor shards/mine")
