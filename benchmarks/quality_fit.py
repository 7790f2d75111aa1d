"""How a yardstick grows with compute, by size of the body: a power law through the runs of quality.py, and what it predicts.

    python benchmarks/quality_fit.py quality/3m quality/10m quality/30m --recipe auto --at 1e15
    python benchmarks/quality_fit.py quality/*m --recipe auto,wider --yardstick neighbours --plot growth.png

Each --out folder of quality.py has runs of one budget. What is missing to 1 falls as a power of the FLOPs: log(1 - AUC) is a straight
line in log(FLOPs), which is fitted by least squares to the runs of each size. The range is that of a new run (90 %, Student's t), and
wide where there are few runs. A prediction beyond ten times the longest run is refused: nothing here says that the line goes on.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from quality import YARDSTICKS, markdown
from scipy import stats

from electrakit.common.errors import UserError
from electrakit.common.json_files import read_file
from electrakit.common.plots import add_legend, look_of, new_figure, to_png
from electrakit.config.pretrain import PretrainConfig
from electrakit.data.corruptions import WAYS
from electrakit.model.counts import useful_flops

LIKELY = 0.90  # that a new run is in the range
FARTHEST = 10  # times the FLOPs of the longest run
MIN_RUNS = 3  # two give a line and no range


@dataclass(frozen=True)
class Point:
    """A run."""

    size: str
    flops: float
    value: float


@dataclass(frozen=True)
class Growth:
    """log(1 - value) = intercept + slope * log(flops)."""

    flops: np.ndarray  # (N,): of the runs it was fitted to
    intercept: float
    slope: float
    deviation: float
    """Of the runs from the line, in log(1 - value)."""

    @classmethod
    def fit(cls, points: Iterable[Point]) -> "Growth":
        flops, values = (np.array(each) for each in zip(*((one.flops, one.value) for one in points), strict=True))
        line = stats.linregress(np.log(flops), np.log1p(-values))
        rest = np.log1p(-values) - line.intercept - line.slope * np.log(flops)
        return cls(flops, line.intercept, line.slope, float(np.sqrt((rest**2).sum() / (len(flops) - 2))))

    def predict(self, flops: float) -> tuple[float, float, float]:
        """The value of a new run, and its range."""
        x, logs = np.log(flops), np.log(self.flops)
        distance = (x - logs.mean()) ** 2 / ((logs - logs.mean()) ** 2).sum()
        half = stats.t.ppf((1 + LIKELY) / 2, len(logs) - 2) * self.deviation * np.sqrt(1 + 1 / len(logs) + distance)
        middle = self.intercept + self.slope * x
        value, low, high = (1 - float(np.exp(each)) for each in (middle, middle + half, middle - half))
        return value, low, high

    def reaches(self, flops: float) -> bool:
        return flops <= FARTHEST * self.flops.max()


def main() -> None:
    options = parse_arguments()
    try:
        points = [one for folder in options.folders for one in read_points(folder, options.recipe, options.yardstick)]
        growths = fit_sizes(points)
        if options.plot:
            options.plot.write_bytes(plot(points, growths, options.yardstick))
        print(markdown(table(points, growths, options.at)), end="")
    except UserError as error:
        print(f"quality_fit.py: {error}", file=sys.stderr)
        sys.exit(2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folders", type=Path, nargs="+", metavar="OUT", help="folders that quality.py has written")
    add("--recipe", default="auto", metavar="NAME,...", help="the runs of these recipes (auto)")
    add("--yardstick", default="neighbours", choices=YARDSTICKS, help="what is fitted (neighbours)")
    add("--at", type=float, nargs="*", default=[], metavar="FLOPS", help="predict the yardstick after so many FLOPs")
    add("--plot", type=Path, metavar="FILE", help="a PNG of the runs and the lines")
    return parser.parse_args()


def read_points(folder: Path, recipes: str, yardstick: str) -> list[Point]:
    """The runs of these recipes that have been measured."""
    content = read_file(folder / "results.json")
    found = []
    for name in recipes.split(","):
        for trial, scores in content["scores"].get(name, {}).items():
            run = content["parts"].get(f"{name} {trial.split('.')[0]}")
            if run is not None and run["steps"] and yardstick in scores:
                found.append(Point(size_of(run["settings"]), flops_of(run["settings"]), scores[yardstick]))
    if not found:
        known = ", ".join(content["scores"]) or "none"
        raise UserError(f"{folder} has no run of {recipes} with {yardstick}; recipes there: {known}")
    return found


def size_of(settings: Mapping[str, Any]) -> str:
    one = settings["discriminator"]
    return f"{one['num_layers']} × {one['hidden_size']}"


def flops_of(settings: dict[str, Any]) -> float:
    """Of the run's matrix products, padding included."""
    config = PretrainConfig.from_json(settings)
    return useful_flops(config) * config.batch_size * config.steps


def fit_sizes(points: Iterable[Point]) -> dict[str, Growth]:
    """By size, where there are runs enough, at different FLOPs."""
    by_size: dict[str, list[Point]] = {}
    for one in points:
        by_size.setdefault(one.size, []).append(one)
    return {
        size: Growth.fit(some)
        for size, some in by_size.items()
        if len(some) >= MIN_RUNS and len({one.flops for one in some}) > 1
    }


def table(points: Iterable[Point], growths: Mapping[str, Growth], at: Iterable[float]) -> list[list[str]]:
    """A row for each size: its runs, and each prediction with its range."""
    at = list(at)
    rows = [["size", "runs", "exponent", *(f"at {flops:.3g} FLOPs" for flops in at)]]
    for size in dict.fromkeys(one.size for one in points):
        row = [size, str(sum(one.size == size for one in points))]
        if size not in growths:
            rows.append([*row, "too few runs", *([""] * len(at))])
            continue
        growth = growths[size]
        row.append(f"{growth.slope:.3f}")
        for flops in at:
            value, low, high = growth.predict(flops)
            row.append(f"{value:.3f} ({low:.3f} to {high:.3f})" if growth.reaches(flops) else "too far")
        rows.append(row)
    return rows


def plot(points: Iterable[Point], growths: Mapping[str, Growth], yardstick: str) -> bytes:
    """Runs as dots, lines over their range and, with the range of a new run, ten times beyond it."""
    points = list(points)
    figure, (axes,) = new_figure(6.0, 3.6)
    for place, size in enumerate(dict.fromkeys(one.size for one in points)):
        colour, style, marker = look_of(place)
        some = [one for one in points if one.size == size]
        axes.plot([one.flops for one in some], [one.value for one in some], marker, color=colour, label=size)
        if size in growths:
            flops = np.geomspace(min(one.flops for one in some), FARTHEST * max(one.flops for one in some), 60)
            values, low, high = np.array([growths[size].predict(each) for each in flops]).T
            axes.plot(flops, values, color=colour, linestyle=style, linewidth=1.4)
            axes.fill_between(flops, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs of the matrix products")
    axes.set_ylabel(f"AUC: {yardstick}" if yardstick in WAYS else yardstick)
    add_legend(axes, title="layers × width")
    return to_png(figure, dpi=150)


if __name__ == "__main__":
    main()
