"""A run's log in, one picture out: the loss of each network over the training."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from electrakit.run_files import Line, RunFiles
from electrakit.share.charts import smoothed

SMOOTHING = 0.015  # of the run
PANELS = {  # of each network: its loss, and a figure that is easier to understand
    "generator": ("mlm_loss", "Generator: loss of guessing masked tokens", "tab:blue"),
    "discriminator": ("disc_loss", "Discriminator: loss of finding replaced tokens", "tab:orange"),
}


def draw_curves(run: RunFiles, last_step: int) -> bytes:
    """A PNG of loss over steps, a panel for each network: thin as logged, thick smoothed, dots on validation text."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    lines = [line for line in run.lines if line["step"] <= last_step]
    panels = [panel for panel in PANELS.values() if any(line.get(panel[0]) is not None for line in lines)]
    kind = run.settings.get("objective", {}).get("kind")
    figure = Figure(figsize=(5.2 * max(1, len(panels)), 3.4), layout="constrained")
    for place, (name, title, colour) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        train, valid = (_points(lines, split, name) for split in ("train", "valid"))
        valid = [(step, value) for step, value in valid if step > 0 or not train]  # as in the report
        if train:
            steps, values = zip(*train, strict=True)
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
            axes.plot(
                steps,
                smoothed(np.array(values), SMOOTHING * len(values)),
                color=colour,
                linewidth=1.6,
                label="training, smoothed",
            )
        if valid:
            axes.plot(*zip(*valid, strict=True), "o--", color="black", markersize=4, linewidth=0.8, label="validation")
        if kind == "mlm":
            title = "Loss of guessing masked tokens"
        elif kind != "electra" and name == "disc_loss":
            title = "Discriminator: loss of guessing originals"
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(*_range([value for _, value in (*train, *valid)]))
        if train or valid:
            axes.legend(frameon=False, fontsize=8)
    picture = BytesIO()
    figure.savefig(picture, dpi=150, metadata={"Software": None})  # the same bytes each time
    return picture.getvalue()


def _points(lines: Sequence[Line], split: str, name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if line["split"] == split and line.get(name) is not None]


def _range(values: Sequence[float]) -> tuple[float | None, float | None]:
    """From the lowest to the 99th of a hundred values: one spike shall not flatten the rest."""
    if len(values) < 2:
        return None, None
    ordered = sorted(values)
    low, high = ordered[0], ordered[int(0.99 * (len(ordered) - 1))]
    room = 0.06 * (high - low) or 0.1
    return low - room, high + room
