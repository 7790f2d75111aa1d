"""Compare recipes of pretraining at equal budgets: how much language each model knows, mean and standard error over seeds.

    python benchmarks/quality.py --data shards/mine --out quality/3m --budget 3m --pairs blimp/data
    python benchmarks/quality.py --data shards/mine --out quality/30m --budget 30m --pairs blimp/data --glue glue --seeds 5
    python benchmarks/quality.py --data shards/mine --out quality/flops --flops 2e13 --recipes recipes.yaml --only hot,bert

A budget is CPU time of one core: a few steps of each recipe are timed, and the number of steps follows, so that other work on the
machine hardly matters. With --flops it is matrix products instead. The same command resumes; finished parts are not run again.

A file of recipes (YAML or JSON) has for each name a preset, what is changed in it, and who trains it:

    hot: {preset: modern_mini, changes: {objective: {temperature: 2}}}
    bert: {preset: mini, changes: {objective: {kind: mlm}, generator: null, discriminator: {body: bert}}, trained_by: transformers}

`trained_by: transformers` is its Trainer (pip install accelerate), `nothing` leaves the weights random. With --glue, every model is
fine-tuned --tunings times at the rate that is best for its recipe, chosen on train rows of QQP and QNLI, which are not scored.
"""

import argparse
import functools
import importlib.util
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import quality_parts as parts
from quality_parts import Recipe, Result

from electrakit.common.errors import UserError, prefix_errors
from electrakit.common.json_files import read_file, write_json
from electrakit.common.progress import print_message
from electrakit.config.base import closest, read_fields
from electrakit.config.presets import PRESETS
from electrakit.data.corruptions import WAYS
from electrakit.finetune.read_glue import read_split, require_file
from electrakit.finetune.tasks import TASKS
from electrakit.measure.minimal_pairs import read_pairs
from electrakit.model.auto import ADAM_SHARE, GENERATOR_DEPTH, LADDER, OBJECTIVE

MASKED_LM: dict[str, Any] = {"objective": {"kind": "mlm"}, "generator": None}
# How `auto` starts and optimises a body of this size; the masked LM gets the same.
START: dict[str, Any] = {
    "init_embeddings": "counts",
    "init_attention": "neighbours",
    "optim": {"lr": LADDER[0].lr, "adam_lr": LADDER[0].lr * ADAM_SHARE},
}
AUTO: dict[str, Any] = {
    "share": "layers",
    "generator": {"num_layers": round(LADDER[0].num_layers * GENERATOR_DEPTH)},
    "objective": {field.name: getattr(OBJECTIVE, field.name) for field in fields(OBJECTIVE)},
}
RECIPES = {
    "auto": Recipe("modern_mini", {**START, **AUTO}),
    "masked_lm": Recipe("modern_mini", {**START, **MASKED_LM}),
    "modern_mini": Recipe("modern_mini", {"objective": {"temperature": 2}}),
    "mini": Recipe("mini"),
    # Of mini's size, without dropout, and at mini's rate: Trainer's 5e-5 is for fine-tuning.
    "bert": Recipe("mini", {**MASKED_LM, "discriminator": {"body": "bert"}}, trained_by="transformers"),
    "random": Recipe("modern_mini", trained_by="nothing"),
}
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "rte")
RATE_TASKS = ("qqp", "qnli")
RATES = (3e-4, 1e-3, 3e-3)
EPOCHS, FEWER_EPOCHS = 3, {"sst2": 1}  # SST-2 has as many rows as the other four three times over
RATE_ROWS, NUM_HELD_OUT = 2_500, 1_000  # of the train split of each of RATE_TASKS: to train, to score
PAIRS, GENERATOR_PAIRS, MEAN = "minimal pairs", "minimal pairs, generator", "mean of tasks"
YARDSTICKS = (*WAYS, PAIRS, GENERATOR_PAIRS, *(TASKS[name].title for name in GLUE_TASKS), MEAN)
ONE_CORE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}

Key = tuple[Any, ...]
"""The name of a recipe, the seed, and what else identifies a part."""


def main() -> None:
    options = parse_arguments()
    os.environ.update(ONE_CORE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave tidily, as for Ctrl-C
    try:
        print(benchmark(options), end="")
    except (UserError, KeyboardInterrupt) as error:
        is_stopped = isinstance(error, KeyboardInterrupt)
        problem = "stopped; start the same command again to resume" if is_stopped else error
        print(f"quality.py: {problem}", file=sys.stderr)
        sys.exit(130 if is_stopped else 2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="SHARDS", help="shards that all recipes are trained on")
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder for all runs, results.json and results.md")
    add("--budget", default="3m", help="CPU time of one core for each run, such as 30s, 10m or 2h (3m)")
    add("--flops", type=float, help="instead of a budget: FLOPs of the matrix products of each run")
    add("--pairs", type=Path, help="BLiMP's folder data/, or a file in its layout")
    add("--glue", type=Path, help="the folder of GLUE: fine-tune CoLA, SST-2, MRPC, STS-B and RTE")
    add("--recipes", type=Path, metavar="FILE", help=f"YAML or JSON; by default {', '.join(RECIPES)}")
    add("--only", metavar="NAME,...", help="these recipes only")
    add("--seeds", type=int, default=3, help="trainings of each recipe (3)")
    add("--tunings", type=int, default=1, help="fine-tunings of each model on each task (1)")
    add("--jobs", type=int, default=2, help="processes at a time, each on one core")
    options = parser.parse_args()
    for name in ("seeds", "tunings", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; give 1 or more")
    if options.flops is not None and not 0 < options.flops < float("inf"):
        parser.error(f"--flops is {options.flops}; give a number above 0, such as 2e13")
    return options


def benchmark(options: argparse.Namespace) -> str:
    """Every recipe: plan, train, measure, fine-tune. Between these, results so far are written. Returns the table."""
    recipes = choose(read_recipes(options.recipes) if options.recipes else RECIPES, options.only)
    check_inputs(options, recipes)
    results = Results(options, recipes)
    budget = {"budget": options.budget, "flops": options.flops}
    plans = results.run(
        {
            (name,): Part(options.out / name / "plan.json", parts.plan, recipe=recipe, data=options.data, **budget)
            for name, recipe in recipes.items()
        }
    )
    folders = {
        (name, seed): options.out / name / f"seed_{seed}" for (name,) in plans for seed in range(1, options.seeds + 1)
    }
    training = {}
    for (name, seed), folder in folders.items():
        inputs = {"recipe": recipes[name], "data": options.data, "seed": seed, "plan": plans[name,]}
        training[name, seed] = Part(folder / "training.json", parts.train, **inputs, folder=folder)
    results.training = results.run(training)
    yardsticks = {}
    for key in results.training:
        folder, model = folders[key], folders[key] / "model"
        yardsticks[*key, "corruptions"] = Part(
            folder / "corruptions.json", parts.measure_corruptions, model=model, data=options.data
        )
        if options.pairs:
            yardsticks[*key, PAIRS] = Part(folder / "pairs.json", parts.measure_pairs, model=model, pairs=options.pairs)
        if options.pairs and recipes[key[0]].has_generator:
            yardsticks[*key, GENERATOR_PAIRS] = Part(
                folder / "generator_pairs.json", parts.measure_pairs, model=folder / "generator", pairs=options.pairs
            )
    for (name, seed, yardstick), found in results.run(yardsticks).items():
        results.add(name, str(seed), {yardstick: found[PAIRS]} if yardstick == GENERATOR_PAIRS else found)
    if options.glue:
        score_words(options, results)
        finetune_all(options, {key: folders[key] for key in results.training}, results)
    return results.write()


def score_words(options: argparse.Namespace, results: "Results") -> None:
    """Linear models on words: no training."""
    place, inputs = options.out / "words", {"tasks": GLUE_TASKS, "glue": options.glue}
    vectors = Part(place / "vectors.json", parts.score_counted_vectors, **inputs, shards=options.data)
    todo = {("tf-idf",): Part(place / "tf_idf.json", parts.score_tf_idf, **inputs), ("counted vectors",): vectors}
    for (name,), found in results.run(todo).items():
        results.add(name, "1", found)


def finetune_all(options: argparse.Namespace, folders: Mapping[Key, Path], results: "Results") -> None:
    """Find the best rate of each recipe, then score every model with it."""
    held_out = options.out / "held_out"
    write_held_out(options.glue, held_out)

    def tuning(key: Key, name: str, task: str, glue: Path, rate: float, seeds: int) -> Part:
        place = folders[key] / name / f"{task}_{rate:g}"
        inputs = {"model": folders[key] / "model", "task": task, "glue": glue, "lr": rate, "seeds": seeds}
        inputs["epochs"] = FEWER_EPOCHS.get(task, EPOCHS)
        return Part(place.with_name(f"{place.name}.json"), parts.finetune_model, **inputs, out=place)

    tried = {
        (*key, rate, task): tuning(key, "rates", task, held_out, rate, seeds=1)
        for key in folders
        for rate in RATES
        for task in RATE_TASKS
    }
    results.rates = choose_rates(results.run(tried))
    scored = {
        (*key, task): tuning(key, "glue", task, options.glue, results.rates[key[0]], options.tunings)
        for task in GLUE_TASKS
        for key in folders
        if key[0] in results.rates
    }
    for (name, seed, task), found in results.run(scored).items():
        for number, score in enumerate(found["scores"], 1):
            results.add(name, f"{seed}.{number}", {TASKS[task].title: score})


def choose_rates(tried: Mapping[Key, Result]) -> dict[str, float]:
    """By recipe, the rate with the highest mean over seeds and tasks. Keys are recipe, seed, rate, task."""
    scores: dict[str, dict[float, list[float]]] = {}
    for (name, _, rate, _), found in tried.items():
        scores.setdefault(name, {}).setdefault(rate, []).extend(found["scores"])
    return {name: max(rates, key=lambda rate: statistics.fmean(rates[rate])) for name, rates in scores.items()}


# --- recipes and data ------------------------------------------------------------------------------------------------


def read_recipes(path: Path) -> dict[str, Recipe]:
    content = read_file(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: names and their recipes are needed, got {content!r}")
    known, recipes = [entry.name for entry in fields(Recipe)], {}
    for name, recipe in content.items():
        with prefix_errors(f"{path}, recipe {name}: "):
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise UserError("its name is also that of a folder: letters, digits, - and _ only")
            if not isinstance(recipe, dict) or "preset" not in recipe:
                raise UserError(f"preset is missing; write {{preset: modern_mini, changes: {{...}}}}, not {recipe!r}")
            if unknown := [entry for entry in recipe if entry not in known]:
                raise UserError(f"{unknown[0]} is unknown; there are {', '.join(known)}")
            recipes[name] = read_fields(Recipe, recipe, strict=True)
    return recipes


def choose(recipes: dict[str, Recipe], only: str | None) -> dict[str, Recipe]:
    names = list(recipes) if only is None else only.split(",")
    if unknown := [name for name in names if name not in recipes]:
        raise UserError(f"--only {unknown[0]}: there is no such recipe; there are {', '.join(recipes)}")
    return {name: recipes[name] for name in names}


def check_inputs(options: argparse.Namespace, recipes: Mapping[str, Recipe]) -> None:
    """Find mistakes before hours of training."""
    for name, recipe in recipes.items():
        with prefix_errors(f"recipe {name}: "):
            if recipe.preset not in PRESETS:
                meant = closest(recipe.preset, PRESETS)
                way_out = f"did you mean {meant}?" if meant else f"there are {', '.join(PRESETS)}"
                raise UserError(f"{recipe.preset!r} is no preset; {way_out}")
            config = recipe.config(options.data)
            if recipe.trained_by == "transformers":
                if config.discriminator.body not in ("bert", "albert") or config.objective.kind != "mlm":
                    raise UserError("transformers trains objective.kind mlm, and discriminator.body bert or albert")
                if importlib.util.find_spec("accelerate") is None:
                    raise UserError("Trainer needs pip install accelerate; or name other recipes with --only")
    with prefix_errors("--"):
        parts.seconds_of(options.budget)
    if options.pairs:
        read_pairs(options.pairs)
    if options.glue:
        needed = [(name, split) for name in GLUE_TASKS for split in ("train", "dev")] + [
            (name, "train") for name in RATE_TASKS
        ]
        for name, split in needed:
            require_file(str(options.glue), TASKS[name], TASKS[name].split(split))


def write_held_out(glue: Path, out: Path) -> None:
    """Some train rows of the tasks that choose the rate, as GLUE's files: a fifth of them is dev.tsv, the rest train.tsv."""
    for task in (TASKS[name] for name in RATE_TASKS):
        rows = read_split(str(glue), task, task.split("train"))
        assert rows.labels is not None and rows.second is not None and task.labels is not None
        labels = [task.labels[int(label)] for label in rows.labels]
        lines = ["\t".join(each) for each in zip(rows.first, rows.second, labels, strict=True)]
        random.Random(0).shuffle(lines)
        lines = lines[: RATE_ROWS + NUM_HELD_OUT]
        num_held_out = len(lines) * NUM_HELD_OUT // (RATE_ROWS + NUM_HELD_OUT)
        (out / task.title).mkdir(parents=True, exist_ok=True)
        for split, some in (("dev", lines[:num_held_out]), ("train", lines[num_held_out:])):
            content = "\n".join(["\t".join((*task.columns, task.label)), *some]) + "\n"
            (out / task.title / f"{split}.tsv").write_text(content, encoding="utf-8")


# --- parts and results -----------------------------------------------------------------------------------------------


class Part:
    """A call in a process of its own, and the file of its result."""

    def __init__(self, file: Path, function: Any, **arguments: Any) -> None:
        self.file, self.log = file, file.with_suffix(".log")
        self.call = functools.partial(function, **arguments)
        plain = json.dumps(arguments, default=lambda value: asdict(value) if isinstance(value, Recipe) else str(value))
        self.arguments = json.loads(plain)

    def result(self) -> Result | None:
        """What an earlier start has found; with other arguments it is an error."""
        if not self.file.exists():
            return None
        content = read_file(self.file)
        for name, now in self.arguments.items():
            if (before := content["arguments"].get(name)) != now:
                raise UserError(f"{self.file} was made with {name} {before}, not {now}; use another --out")
        return content["result"]

    def run(self) -> Result | None:
        """None if it failed; then the log tells why."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        process = multiprocessing.get_context("spawn").Process(target=self.perform)
        process.start()
        process.join()
        return self.result()

    def perform(self) -> None:
        with self.log.open("a") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        try:
            write_json(self.file, {"arguments": self.arguments, "result": self.call()})
        except UserError as error:
            sys.exit(str(error))

    def problem(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "the process was killed")
        return f"{last} ({self.log})"


class Results:
    """What was found so far."""

    def __init__(self, options: argparse.Namespace, recipes: Mapping[str, Recipe]) -> None:
        self.options, self.recipes = options, recipes
        self.training: dict[Key, Result] = {}
        """By recipe and seed."""
        self.scores: dict[str, dict[str, dict[str, float]]] = {name: {} for name in recipes}
        """By recipe, trial and yardstick. Trial 2 is the model of seed 2, trial 2.1 its first fine-tuning."""
        self.details: dict[str, Result] = {}
        self.rates: dict[str, float] = {}
        self.failed: dict[str, str] = {}

    def run(self, todo: Mapping[Key, Part]) -> dict[Key, Result]:
        """The results of those parts that did not fail, by key. What was found before is written first."""
        self.write()
        found = {key: result for key, part in todo.items() if (result := part.result()) is not None}
        pool = ThreadPoolExecutor(self.options.jobs)
        try:
            running = {pool.submit(part.run): key for key, part in todo.items() if key not in found}
            for number, done in enumerate(as_completed(running), 1):
                key, result = running[done], done.result()
                title, progress = " ".join(map(str, key)), f"{number} of {len(running)}"
                if result is None:
                    self.failed[title] = todo[key].problem()
                    print_message(f"{title} failed: {self.failed[title]}; {progress}", "bold yellow")
                else:
                    found[key] = result
                    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
                    values = ", ".join(f"{name} {value:,.4g}" for name, value in numbers.items())
                    print_message(f"{title}: {values}; {progress}")
        finally:
            for child in multiprocessing.active_children():  # after an interrupt
                child.terminate()
            pool.shutdown(cancel_futures=True)
        self.details |= {" ".join(map(str, key)): found[key] for key in todo if key in found}
        return {key: found[key] for key in todo if key in found}

    def add(self, name: str, trial: str, found: Mapping[str, Any]) -> None:
        """The yardsticks of a model; after the last task also their mean."""
        scores = self.scores.setdefault(name, {}).setdefault(trial, {})
        scores |= {yardstick: found[yardstick] for yardstick in YARDSTICKS if yardstick in found}
        tasks = [scores.get(TASKS[task].title) for task in GLUE_TASKS]
        if None not in tasks:
            scores[MEAN] = statistics.fmean(tasks)

    def write(self) -> str:
        """Write results.json and results.md. Returns the table."""
        table = markdown(self.rows())
        content = {
            "settings": {name: str(value) for name, value in vars(self.options).items() if value is not None},
            "recipes": {name: asdict(recipe) for name, recipe in self.recipes.items()},
            "rates": self.rates,
            "scores": self.scores,
            "parts": self.details,
            "failed": self.failed,
        }
        self.options.out.mkdir(parents=True, exist_ok=True)
        write_json(self.options.out / "results.json", content)
        (self.options.out / "results.md").write_text(table, encoding="utf-8")
        return table

    def rows(self) -> list[list[str]]:
        """The header, then each recipe, then linear models on words."""
        known = {each for trials in self.scores.values() for scores in trials.values() for each in scores}
        columns = [each for each in YARDSTICKS if each in known]
        rows = [["recipe", "steps", "M tokens", "CPU minutes", *(["lr"] if self.rates else []), *columns]]
        for name, trials in self.scores.items():
            runs = [found for key, found in self.training.items() if key[0] == name]
            row = [name, f"{runs[0]['steps']:,}" if runs else "", f"{runs[0]['tokens'] / 1e6:.2f}" if runs else ""]
            row.append(spread([run["cpu_seconds"] / 60 for run in runs], 1))
            row += [f"{self.rates[name]:g}" if name in self.rates else ""] if self.rates else []
            for each in columns:
                values = [scores[each] for scores in trials.values() if each in scores]
                row.append(spread(values, 3) if each in WAYS else spread([100 * value for value in values], 1))
            rows.append(row)
        return rows


def spread(values: Sequence[float], digits: int) -> str:
    """The mean ± its standard error, which takes two values."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}"


def markdown(rows: Iterable[Sequence[str]]) -> str:
    header, *others = rows
    line = ["---", *["--:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, line, *others))


if __name__ == "__main__":
    main()
