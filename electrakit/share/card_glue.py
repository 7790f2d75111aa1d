"""Results of `electra glue` in; what the card says of them, and their entries in the Hub's model-index, out."""

from typing import TYPE_CHECKING, Any

from electrakit.share.words import percent, runs, table

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

SPLITS = {"mnli": {"dev": "validation_matched", "dev_mismatched": "validation_mismatched"}}  # ours -> of the Hub's GLUE
ONE_SPLIT = {"dev": "validation"}  # of all others
USED = {  # of a task's results
    *("title", "metric", "median", "medians", "sd", "min", "max"),
    *("seeds", "collapsed", "warnings"),
}
METRICS = {"matthews": "matthews_correlation", "spearman": "spearmanr"}  # as the Hub calls them


def eval_results(glue: dict[str, Any]) -> list["EvalResult"]:
    """One for each dev set that is the released one: a score on other rows is none of that dataset."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="text-classification",
            task_name="Text classification",
            dataset_type="nyu-mll/glue",
            dataset_name=f"GLUE {task['title']}",
            dataset_config=name,
            dataset_split=theirs,
            metric_type=METRICS.get(task["metric"], task["metric"]),
            metric_name=f"{task['metric']}, median of {runs(len(task['seeds']))}",
            metric_value=round(task["medians"][split][task["metric"]], 4),
        )
        for name, task in glue["tasks"].items()
        for split, theirs in SPLITS.get(name, ONE_SPLIT).items()
        if split in task["medians"] and is_released(task, split)
    ]


def is_released(task: dict[str, Any], split: str) -> bool:
    """Whether it has as many rows as were released; electra glue warns if not."""
    start, reason = f"{task['title']} {split} has ", " rows, the released one "
    return not any(warning.startswith(start) and reason in warning for warning in task["warnings"])


def glue_section(glue: dict[str, Any] | None) -> str:
    """Medians and spread of each task, and all that must not be overlooked."""
    if not glue or not glue["tasks"]:
        return "## GLUE\n\nNot measured."
    tasks, average = glue["tasks"], glue["average"]
    rows = []
    for task in tasks.values():
        figures = [percent(task[figure]) for figure in ("median", "sd", "min", "max")]
        failed = f"{len(task['collapsed'])} of {len(task['seeds'])}" if task["collapsed"] else "–"
        rows.append((task["title"], task["metric"], *figures, str(len(task["seeds"])), failed))
    num_seeds = max(len(task["seeds"]) for task in tasks.values())
    note = f"Dev scores × 100 of fine-tuning, the median of {runs(num_seeds)} with different seeds, and how far they spread."
    if average["value"] is not None:
        which = (
            "the eight tasks (without WNLI)"
            if average["is_complete"]
            else f"these {len(average['tasks'])} tasks only, which is not the average of the papers"
        )
        note += f" The average over {which}: **{percent(average['value'])}**."
    if "mnli" in tasks:
        note += " MNLI is the mean of its matched and its mismatched part."
    header = ("task", "metric", "median", "sd", "min", "max", "runs", "collapsed")
    return "\n\n".join(["## GLUE", note, table(header, rows), *_mind(glue)])


def _mind(glue: dict[str, Any]) -> list[str]:
    """As a list, if there is anything."""
    found = [f"{'; '.join(task['warnings'])}." for task in glue["tasks"].values() if task["warnings"]]
    if glue.get("weights") is None:
        found.append("The results do not say which weights were scored: that it was this model is not checked.")
    return ["Mind:\n\n" + "\n".join(f"- {one}" for one in found)] if found else []
