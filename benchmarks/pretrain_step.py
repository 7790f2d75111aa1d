"""Compare the speed of a pretraining step with other code for ELECTRA: medians and ranges over interleaved rounds.

    python benchmarks/pretrain_step.py --out results                # about 10 minutes on two cores
    python benchmarks/pretrain_step.py --quick                      # under 2 minutes
    python benchmarks/pretrain_step.py --padding 0.5 --only electrakit filled plain transformers-masked
    python benchmarks/pretrain_step.py --processes --only electrakit processes
    python benchmarks/pretrain_step.py --length 512 --batch 8

ELECTRA-small on the CPU: forward, backward, clipping, AdamW. Every contender runs in its own process, with the same threads and allocator
settings; they take turns, and sleep in between. electra-pytorch is downloaded from PyPI once, into the user's cache.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pretrain_contenders import CONTENDERS, RATIOS, Contender, Settings
from pretrain_workers import PEAK, Ready, Worker, row_lengths, set_environment
from rich.console import Console
from rich.table import Table

from electrakit.common.code_cache import cache_folder
from electrakit.common.hardware import num_cores
from electrakit.model.counts import useful_flops

ELECTRA_PYTORCH = "0.1.2"
QUICK_SECONDS = 100
MAX_WAITING = 0.05  # share of a round that a contender may wait for a core
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
COLUMNS = "examples/s,range,tokens/s,GFLOP/s,of peak,MB/example,× peer"
console = Console(width=140)

Key = tuple[str, str]
"""A contender's key and a precision."""


def main() -> None:
    options = parse_arguments()
    keys, skipped = choose_contenders(options)
    precisions = choose_precisions(options)
    size = {"size": options.size, "length": options.length, "batch": options.batch, "threads": options.threads}
    settings = Settings(**size, padding=options.padding, clock=options.clock, attention=options.attention)
    packages = cache_folder() / "benchmarks" / f"electra-pytorch-{ELECTRA_PYTORCH}"
    if any(key.startswith("electra-pytorch") for key in keys) and (problem := fetch_electra_pytorch(packages)):
        skipped |= {key: problem for key in keys if key.startswith("electra-pytorch")}
        keys = [key for key in keys if key not in skipped]
    set_environment(options.threads, packages)
    used = {**asdict(settings), **vars(options), "precision": precisions}
    about = {"machine": describe_machine(), "versions": versions(), "settings": used}
    started = time.time()
    wanted = [(key, precision) for precision in precisions for key in (PEAK, *keys)]
    budget = QUICK_SECONDS if options.quick else math.inf
    ready, rounds, waits, failed = measure(wanted, settings, options.rounds, options.steps, budget)
    rows = [describe((key, precision), ready, rounds, settings) for key, precision in rounds if key != PEAK]
    report = {
        **about,
        "seconds": round(time.time() - started, 1),
        "load_average": {"before": about["machine"].pop("load_average"), "after": os.getloadavg()},
        "peak_gflops": {precision: max(rounds[PEAK, precision]) / 1e9 for precision in precisions},
        "contenders": rows,
        "waited_for_a_core": {" ".join(key): share for key, share in waits.items()},
        "ratios": ratios(rounds, precisions),
        "memory_over_thriftiest_peer": {precision: memory_ratio(rows, precision) for precision in precisions},
        "failed": {" ".join(key): problem for key, problem in failed.items()},
        "skipped": skipped,
    }
    print_report(report)
    if options.out:
        write_report(report, options.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--length", type=int, default=128, help="tokens per row")
    add("--batch", type=int, help="rows per step (32; with --quick 8)")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, help="turns of each contender (5; with --quick 3)")
    add("--steps", type=int, help="timed steps per turn (3; with --quick 1)")
    add("--quick", action="store_true", help="fewer rows and rounds, nothing compiled, one precision")
    add("--all", action="store_true", help="also pairs of BERT and ALBERT, and compiled transformers")
    add("--only", nargs="+", metavar="NAME", choices=list(CONTENDERS), help=f"of {', '.join(CONTENDERS)}")
    add("--padding", type=float, default=0.0, help="share of padding among the tokens")
    add("--processes", action="store_true", help="also two processes with half of the threads each")
    add("--bf16", action="store_true", help="bf16 even where the CPU has no instructions for it (very slow)")
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU time; for a busy machine, with --threads 1")
    add(
        "--attention", choices=["sdpa", "eager"], default="sdpa", help="attention of transformers (sdpa is its default)"
    )
    add("--size", choices=["small", "tiny"], default="small", help="tiny is for testing this script")
    add("--out", type=Path, metavar="DIR", help="folder for results.json and results.png")
    options = parser.parse_args()
    usual = (8, 3, 1) if options.quick else (32, 5, 3)
    for name, value in zip(("batch", "rounds", "steps"), usual, strict=True):
        setattr(options, name, value if getattr(options, name) is None else getattr(options, name))
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; give 1 or more")
    if not 0 <= options.padding < 0.9:
        parser.error(f"--padding is {options.padding}; give a share from 0 to below 0.9")
    has_processes = options.processes or "processes" in (options.only or ())
    if has_processes and (options.batch % 2 or options.threads < 2):
        parser.error(f"two processes need an even --batch and 2 --threads, not {options.batch} and {options.threads}")
    return options


def choose_contenders(options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The contenders that run, and the reasons for those that do not, where worth reporting."""
    if options.only:
        return options.only, {}
    wanted = {
        "always": True,
        "long": not options.quick,
        "all": options.all,
        "padding": options.padding > 0,
        "processes": options.processes,
    }
    keys = [key for key, contender in CONTENDERS.items() if wanted[contender.when]]
    return keys, {"compiled": "takes minutes to compile: not with --quick"} if options.quick else {}


def choose_precisions(options: argparse.Namespace) -> list[str]:
    """fp32, and bf16 if the CPU supports it."""
    has_bf16 = options.bf16 or bool(BF16_FLAGS & cpu_flags())
    if options.quick:
        return ["bf16" if has_bf16 else "fp32"]
    return ["fp32", "bf16"] if has_bf16 else ["fp32"]


def fetch_electra_pytorch(folder: Path) -> str | None:
    """Download it from PyPI once, without its dependencies (an old transformers). Returns the error, if any."""
    if (folder / "electra_pytorch").is_dir():
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary) / "packages"
        package = f"electra-pytorch=={ELECTRA_PYTORCH}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries",
            "1",
            "--no-deps",
            "--target",
            str(target),
            package,
        ]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            return "could not be installed: " + (result.stderr.strip().splitlines() or ["no message"])[-1]
        if not folder.exists():
            target.rename(folder)
    return None


# --- measuring -----------------------------------------------------------------------------------------------------------


def measure(
    wanted: list[Key], settings: Settings, num_rounds: int, num_steps: int, budget: float
) -> tuple[dict[Key, list[Ready]], dict[Key, list[float]], dict[Key, float], dict[Key, str]]:
    """For each process: its first steps, its speed in each round, how long it waited for a core, and its error.

    After the first, a round starts only if it should end within `budget` seconds.
    """
    started = time.monotonic()
    workers: dict[Key, Worker] = {}
    ready: dict[Key, list[Ready]] = {}
    rounds: dict[Key, list[float]] = {}
    waits: dict[Key, float] = {}
    failed: dict[Key, str] = {}
    try:
        for key, precision in wanted:
            with console.status(f"{key}, {precision}: building, first steps"):
                worker = workers[key, precision] = Worker(key, replace(settings, precision=precision))
                try:
                    ready[key, precision] = worker.wait_until_ready()
                    rounds[key, precision] = []
                except RuntimeError as error:
                    failed[key, precision] = str(error)
        last = 0.0  # seconds of the last round
        for number in range(num_rounds):
            begun = time.monotonic()
            if number and begun - started + last > budget:
                console.print(f"[yellow]{number} rounds instead of {num_rounds}: out of time.")
                break
            # in alternating order, so that no contender always follows the same one
            for key in list(rounds)[:: 1 if number % 2 == 0 else -1]:
                with console.status(f"round {number + 1} of {num_rounds}: {', '.join(key)}"):
                    try:
                        rate, waited = workers[key].round(num_steps)
                        rounds[key].append(rate)
                        waits[key] = max(waited, waits.get(key, 0.0))
                    except RuntimeError as error:
                        failed[key] = str(error)
                        del rounds[key]
            last = time.monotonic() - begun
    finally:
        for worker in workers.values():
            worker.close()
    return ready, rounds, waits, failed


def describe(
    key: Key, ready: dict[Key, list[Ready]], rounds: dict[Key, list[float]], settings: Settings
) -> dict[str, Any]:
    """A contender's results."""
    contender, precision = CONTENDERS[key[0]], key[1]
    lengths = row_lengths(settings).tolist()
    config = contender.config(settings)
    flops = statistics.mean(useful_flops(replace(config, length=length)) for length in lengths)
    speeds = [settings.batch * rate for rate in rounds[key]]
    speed = statistics.median(speeds)
    memory = [each.memory for each in ready[key]]
    return {
        "key": contender.key,
        "label": contender.label,
        "precision": precision,
        "is_peer": contender.is_peer,
        "same_work": contender.same_work,
        "examples_per_second": speed,
        "range": [min(speeds), max(speeds)],
        "rounds": speeds,
        "tokens_per_second": speed * statistics.mean(lengths),
        "gflop_per_example": flops / 1e9,
        "gflops": speed * flops / 1e9,
        "share_of_peak": speed * flops / max(rounds[PEAK, precision]),
        "memory_per_example": None if None in memory else sum(memory) / settings.batch,
        "times_fastest_peer": times_fastest_peer(contender, precision, rounds),
        "seconds_to_first_step": max(each.seconds for each in ready[key]),
        "first_loss": statistics.mean(each.loss for each in ready[key]),
    }


def fastest_peer(precision: str, rounds: dict[Key, list[float]]) -> Key | None:
    peers = [
        key
        for key in rounds
        if key[1] == precision and key[0] != PEAK and CONTENDERS[key[0]].is_peer and CONTENDERS[key[0]].same_work
    ]
    return max(peers, key=lambda key: statistics.median(rounds[key]), default=None)


def times_fastest_peer(contender: Contender, precision: str, rounds: dict[Key, list[float]]) -> float | None:
    peer = fastest_peer(precision, rounds)
    if peer is None or not contender.same_work or contender.fills_padding:
        return None
    return statistics.median(rounds[contender.key, precision]) / statistics.median(rounds[peer])


def ratios(rounds: dict[Key, list[float]], precisions: list[str]) -> list[dict[str, Any]]:
    """Ratios of speeds, round by round: what slows a round down affects both."""
    found = []
    for precision in precisions:
        for question, ours, theirs in RATIOS:
            fast = (ours, precision)
            slow = fastest_peer(precision, rounds) if theirs == "peer" else (theirs, precision)
            if slow in rounds and fast in rounds:
                values = [ours / theirs for ours, theirs in zip(rounds[fast], rounds[slow], strict=True)]
                middle = statistics.median(values)
                result = {"median": middle, "range": [min(values), max(values)], "over": slow[0]}
                found.append({"ratio": question, "precision": precision, **result})
    return found


def memory_ratio(rows: list[dict[str, Any]], precision: str) -> float | None:
    """electrakit's memory per example, relative to the peer that needs least."""
    memory = {row["key"]: row["memory_per_example"] for row in rows if row["precision"] == precision}
    peers = [memory[key] for key in memory if CONTENDERS[key].is_peer and CONTENDERS[key].same_work and memory[key]]
    return memory["electrakit"] / min(peers) if peers and memory.get("electrakit") else None


# --- report --------------------------------------------------------------------------------------------------------------


def cpu_info() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cpu_flags() -> set[str]:
    return set(cpu_info().get("flags", cpu_info().get("Features", "")).split())


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": cpu_info().get("model name", platform.processor() or platform.machine()),
        "cores": num_cores(),
        "vector_flags": sorted(flag for flag in cpu_flags() if flag.startswith(("avx", "amx", "sve", "bf16"))),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "load_average": os.getloadavg(),
    }


def versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("electrakit", "torch", "transformers", "numpy")}
    return {"python": platform.python_version(), **packages, "electra-pytorch": ELECTRA_PYTORCH}


def title(report: dict[str, Any]) -> str:
    """The settings and the machine in one line."""
    settings, machine = report["settings"], report["machine"]
    parts = [f"ELECTRA-{settings['size']}, length {settings['length']}, batch {settings['batch']}"]
    parts += [f"{settings['padding']:.0%} padding"] if settings["padding"] else []
    parts += [f"{settings['threads']} threads" if settings["threads"] > 1 else "1 thread"]
    parts += ["by CPU time"] if settings["clock"] == "cpu" else []
    return ", ".join(parts) + f"; {machine['cpu']}, {machine['cores']} cores"


def print_report(report: dict[str, Any]) -> None:
    peaks = ", ".join(f"{peak:.0f} GFLOP/s in {precision}" for precision, peak in report["peak_gflops"].items())
    table = Table(title=f"{title(report)}\nmatrix products reach {peaks}", title_justify="left")
    table.add_column("")
    table.add_column("")
    for column in COLUMNS.split(","):
        table.add_column(column, justify="right")
    for row in sorted(report["contenders"], key=lambda row: (row["precision"], -row["examples_per_second"])):
        table.add_row(
            f"[bold]{row['label']}" if not row["is_peer"] else row["label"],
            row["precision"],
            f"{row['examples_per_second']:.2f}",
            "–".join(f"{value:.2f}" for value in row["range"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{row['gflops']:.1f}",
            f"{row['share_of_peak']:.0%}",
            "" if row["memory_per_example"] is None else f"{row['memory_per_example'] / 1e6:.1f}",
            "" if row["times_fastest_peer"] is None else f"{row['times_fastest_peer']:.2f}",
        )
    console.print(table)
    for found in report["ratios"]:
        low, high = found["range"]
        console.print(
            f"{found['ratio']} ({found['over']}, {found['precision']}): {found['median']:.2f} × ({low:.2f}–{high:.2f})"
        )
    for precision, ratio in report["memory_over_thriftiest_peer"].items():
        if ratio is not None:
            console.print(f"electrakit's memory over the thriftiest peer's ({precision}): {ratio:.2f} ×")
    for name, problem in (report["skipped"] | report["failed"]).items():
        console.print(f"[yellow]{name}: {problem}", highlight=False)
    disturbed = {name: share for name, share in report["waited_for_a_core"].items() if share > MAX_WAITING}
    if disturbed and report["settings"]["clock"] == "wall":
        shares = ", ".join(f"{name} {share:.0%}" for name, share in disturbed.items())
        console.print(
            f"[bold yellow]Other programs used the cores for part of the time; do not quote these numbers. {shares}"
        )


def write_report(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")
    try:
        draw(report, folder / "results.png")
    except ImportError:
        console.print("[yellow]No chart: pip install matplotlib")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw a bar for each contender, with its range, the fastest on top."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = sorted(report["contenders"], key=lambda row: row["examples_per_second"])
    names = [f"{row['label']} ({row['precision']})" for row in rows]
    speeds = [row["examples_per_second"] for row in rows]
    reach = [[abs(row["examples_per_second"] - row["range"][side]) for row in rows] for side in (0, 1)]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(rows)), layout="constrained")
    colours = ["#9aa5b1" if row["is_peer"] else "#2563eb" if row["same_work"] else "#93b5f5" for row in rows]
    axes.barh(names, speeds, xerr=reach, color=colours, error_kw={"ecolor": "#333333", "capsize": 2})
    axes.set_xlabel("examples per second")
    axes.set_title(f"{title(report)}\ngrey: other code; light blue: other work", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
