"""Results of runs in, the protocol's figures out: medians with their spread, the best run, the average."""

import statistics
from collections.abc import Sequence
from typing import Any

from electrakit.evaluate.tasks import AVERAGED, TASKS

Result = dict[str, Any]


def score_of(result: Result) -> float:
    """A correlation of constant predictions is not defined: it counts as 0, and the run is marked as collapsed."""
    return 0.0 if result["score"] is None else float(result["score"])


def best_of(results: Sequence[Result], number: int = 1) -> list[Result]:
    """The runs with the highest dev scores; of equal ones the first seeds."""
    return sorted(results, key=lambda result: (-score_of(result), result["seed"]))[:number]


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """A task's runs: dev is their median, and no collapsed run is left out of it."""
    results = sorted(results, key=lambda result: result["seed"])
    scores = [score_of(result) for result in results]
    collapsed = {str(result["seed"]): result["collapsed"] for result in results if result["collapsed"]}
    names = {name: list(metrics) for name, metrics in results[0]["scores"].items()}
    return {
        "title": results[0]["title"],
        "metric": results[0]["metric"],
        "median": statistics.median(scores),
        "mean": statistics.fmean(scores),
        "sd": statistics.stdev(scores) if len(scores) > 1 else None,
        "min": min(scores),
        "max": max(scores),
        "seeds": [result["seed"] for result in results],
        "scores": scores,
        "best_seed": best_of(results)[0]["seed"],
        "collapsed": collapsed,
        "num_undefined": sum(result["score"] is None for result in results),
        "medians": {
            name: {metric: _median([result["scores"][name][metric] for result in results]) for metric in metrics}
            for name, metrics in names.items()
        },
        "start_from": results[0]["start_from"],
        "head": results[0]["head"],
        "settings": results[0]["identity"]["settings"],
        "warnings": list(dict.fromkeys(warning for result in results for warning in result["warnings"])),
        "seconds": sum(result["seconds"]["all"] for result in results),
    }


def _median(scores: Sequence[float | None]) -> float:
    return statistics.median(score or 0.0 for score in scores)


def average(tasks: dict[str, Any]) -> dict[str, Any]:
    """The mean of the medians over the eight tasks, or over those that were run: it says which. WNLI is never in it."""
    names = [name for name in AVERAGED if name in tasks]
    value = statistics.fmean(tasks[name]["median"] for name in names) if names else None
    return {"value": value, "tasks": names, "is_complete": len(names) == len(AVERAGED)}


def summarise_all(by_task: dict[str, Sequence[Result]]) -> dict[str, Any]:
    """All tasks, in the order of the table, and their average."""
    tasks = {name: summarise(by_task[name]) for name in TASKS if by_task.get(name)}
    return {"tasks": tasks, "average": average(tasks)}
