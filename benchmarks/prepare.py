"""Compare the speed of `electra prepare` with the libraries it uses: ratios of medians over interleaved rounds.

    python benchmarks/prepare.py corpus/ --tokenizer tokenizer        # your text
    python benchmarks/prepare.py builtin:python                       # the prose inside this Python
    python benchmarks/prepare.py corpus/ --kind unigram               # another kind of tokenizer

Without --tokenizer, one with 30,522 entries is trained first, on the first 10 MB of the text, which takes a minute or two.
Use --mb 40 or more for figures: `electra prepare` is measured with its start-up, which is most of the time on a few MB.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from rich.console import Console
from rich.table import Table

import electrakit
from electrakit.common.hardware import num_cores
from electrakit.common.workers import WorkerPool
from electrakit.config.corpus import CorpusConfig, TokenizerKind
from electrakit.data.read.formats import read_batch
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import cut_inputs, find_inputs
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer

LENGTH = 128
TRAINING_CHARACTERS = 10_000_000  # that a tokenizer is trained on
ALONE, PREPARE = "tokenizers.encode_batch_fast alone", "electra prepare"
PURE_PYTHON = "pure Python, line by line, one process"


def read_documents(inputs: list[str], num_bytes: float) -> list[list[str]]:
    config = CorpusConfig(inputs=tuple(inputs))
    documents, size = [], 0
    with WorkerPool(config.num_workers) as workers:
        for batch in cut_inputs(find_inputs(config, Notes()), config, workers):
            read_now = [document.lines for document in read_batch(batch, config)[0]]
            documents += read_now
            size += sum(len(line) + 1 for lines in read_now for line in lines)
            if size > num_bytes:
                break
    return documents


def train_tokenizer(documents: list[list[str]], kind: TokenizerKind, folder: Path) -> Path:
    """On a part of the text: how fast it encodes does not depend on how much it was trained on."""
    sizes = accumulate(sum(len(line) + 1 for line in lines) for lines in documents)
    some = [lines for lines, size in zip(documents, sizes, strict=True) if size <= TRAINING_CHARACTERS] or documents[:1]
    write_corpus(some, folder / "training.txt")
    return electrakit.train_tokenizer([folder / "training.txt"], kind=kind, vocab_size=30_522, out=folder / "tokenizer")


def write_corpus(documents: list[list[str]], path: Path) -> None:
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")


# --- what is compared ------------------------------------------------------------------------------------------


def prepare_end_to_end(corpus: Path, tokenizer: Path, fast: bool) -> float:
    """The real command in a new process, including its start-up."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "shards")
        code = f"import electrakit\nelectrakit.prepare([{str(corpus)!r}], tokenizer={str(tokenizer)!r}, out={out!r}, length={LENGTH})"
        started = time.perf_counter()
        path = [] if fast else [str(without_tokie())]
        path += filter(None, [os.environ.get("PYTHONPATH")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
        return time.perf_counter() - started


def without_tokie() -> Path:
    """A folder that makes `import tokie` fail if it is first on the path, also in worker processes."""
    folder = Path(tempfile.gettempdir()) / "electrakit-benchmark-without-tokie"
    folder.mkdir(exist_ok=True)
    (folder / "tokie.py").write_text("raise ImportError('left out for the benchmark')\n")
    return folder


def encode_batch_fast(lines: list[str], tokenizer: TokenizerFiles) -> float:
    """The tokenizers library alone with all threads: no reading, no rows, no files."""
    started = time.perf_counter()
    for start in range(0, len(lines), 10_000):
        tokenizer.tokenizer.encode_batch_fast(lines[start : start + 10_000], add_special_tokens=False)
    return time.perf_counter() - started


def pure_python(documents: list[list[str]], vocabulary: dict[str, int]) -> float:
    """Line by line in Python in one process, with the tokenizer of the official code, of which transformers has a copy."""
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

    splitter, pieces = BasicTokenizer(do_lower_case=True), WordpieceTokenizer(vocabulary, unk_token="[UNK]")
    started = time.perf_counter()
    rows: list[list[int]] = []
    for lines in documents:
        buffer: list[int] = []
        for line in lines:
            buffer += [vocabulary[piece] for word in splitter.tokenize(line) for piece in pieces.tokenize(word)]
            while len(buffer) >= LENGTH - 2:
                rows.append([2, *buffer[: LENGTH - 2], 3])
                buffer = buffer[LENGTH - 2 :]
        if buffer:
            rows.append([2, *buffer, 3, *[0] * (LENGTH - 2 - len(buffer))])
    return time.perf_counter() - started


def read_batches(shards: Path) -> float:
    """Tokens per second on one core, from cached shards, in training order."""
    batches = electrakit.Batches(shards, 128)
    batches(0)
    num_steps = max(200, min(2000, batches.num_rows // 128))
    started = time.perf_counter()
    for step in range(num_steps):
        batches(step)
    return num_steps * 128 * batches.length / (time.perf_counter() - started)


def peak_memory(corpus: Path, tokenizer: Path) -> float:
    """Peak resident memory in MB of `electra prepare`, sampled often: the main process and all its workers together."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["prepare", str(corpus), "--tokenizer", str(tokenizer), "--out", str(Path(folder) / "shards")]
        process = subprocess.Popen(
            [sys.executable, "-m", "electrakit", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, sum(map(resident_mb, [process.pid, *children_of(process.pid)])))
            time.sleep(0.02)
        return peak


def children_of(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def resident_mb(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--tokenizer")
    parser.add_argument("--kind", choices=("wordpiece", "unigram", "bpe"), default="wordpiece")
    parser.add_argument("--mb", type=float, default=40, help="how much text to use")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        documents = read_documents(options.inputs, options.mb * 1e6)
        random.Random(0).shuffle(documents)
        corpus = folder / "corpus.txt"
        write_corpus(documents, corpus)
        loaded = load_tokenizer(options.tokenizer or train_tokenizer(documents, options.kind, folder))
        loaded.save(folder / "used")
        tokenizer = folder / "used"
        # What runs in this process has no start-up to measure, so a part of the text is enough; speeds are per byte.
        some = documents[: max(1, len(documents) // 4)]
        few = documents[: max(1, len(documents) // 40)]
        some_lines = [line for lines in some for line in lines]
        sizes = {
            "all": corpus.stat().st_size,
            "some": sum(len(line.encode()) + 1 for line in some_lines),
            "few": sum(len(line.encode()) + 1 for lines in few for line in lines),
        }
        vocabulary = {token: number for number, token in enumerate(loaded.vocabulary)}
        runs: dict[str, tuple[str, Callable[[], float]]] = {
            ALONE: ("some", lambda: encode_batch_fast(some_lines, loaded)),
            PREPARE: ("all", lambda: prepare_end_to_end(corpus, tokenizer, fast=True)),
        }
        if loaded.kind == "wordpiece":
            runs["electra prepare without tokie"] = ("all", lambda: prepare_end_to_end(corpus, tokenizer, fast=False))
            runs[PURE_PYTHON] = ("few", lambda: pure_python(few, vocabulary))
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, (size, run) in runs.items():
                speeds[name].append(sizes[size] / 1e6 / run())
        shutil.rmtree(folder / "shards", ignore_errors=True)
        electrakit.prepare([corpus], tokenizer=tokenizer, out=folder / "shards", length=LENGTH)
        used = {name: sizes[size] for name, (size, _) in runs.items()}
        print_table(speeds, used, read_batches(folder / "shards"), peak_memory(corpus, tokenizer))


def print_table(
    speeds: dict[str, list[float]], num_bytes: dict[str, int], tokens_per_second: float, memory: float
) -> None:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    alone = medians[ALONE]
    slow = medians.get(PURE_PYTHON)
    title = f"{num_cores()} cores; electra prepare from its start to its end, the others without start-up"
    table = Table(title=title, title_justify="left")
    for column in ("", "MB of text", "MB/s (median)", "range", "× encode_batch_fast", "× pure Python"):
        table.add_column(column, justify="left" if not column else "right")
    for name, values in speeds.items():
        table.add_row(
            name,
            f"{num_bytes[name] / 1e6:.1f}",
            f"{medians[name]:.2f}",
            f"{min(values):.2f}–{max(values):.2f}",
            f"{medians[name] / alone:.2f}",
            f"{medians[name] / slow:.1f}" if slow else "",
        )
    console = Console(width=120)
    console.print(table)
    ratios = [ours / theirs for ours, theirs in zip(speeds[PREPARE], speeds[ALONE], strict=True)]
    console.print(
        f"{PREPARE} in MB/s, as a multiple of {ALONE} on the same cores: {statistics.median(ratios):.2f} "
        f"(rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
    console.print(f"Batches, one core, cached: {tokens_per_second / 1e6:.0f} M tokens/s")
    console.print(f"Peak memory of prepare, main process and workers: {memory:.0f} MB")


if __name__ == "__main__":
    main()
