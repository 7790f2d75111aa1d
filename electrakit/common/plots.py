"""Draws charts with matplotlib in one style, and turns them into PNG bytes.

Figures are made without pyplot: there is no global state, and no display is needed. matplotlib is imported when the first one is made.
"""

import math
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

# Okabe and Ito's colours, which colour-blind people tell apart, darkened until each stands out from white paper (3 : 1).
PALETTE = ("#0072b2", "#d55e00", "#009470", "#b0578d", "#a87b00", "#2b8fc7", "#444444", "#6a4fb3")
LINE_STYLES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "D", "^")
MUTED = "#666666"
FONT_SIZE, LEGEND_FONT_SIZE = 9, 8


def look_of(place: int) -> tuple[str, Any, str]:
    """Colour, line style and marker of one of several lines."""
    return PALETTE[place % len(PALETTE)], LINE_STYLES[place % len(LINE_STYLES)], MARKERS[place % len(MARKERS)]


def new_figure(width: float, height: float, num_rows: int = 1, num_columns: int = 1) -> "tuple[Figure, list[Axes]]":
    """A figure of so many inches, and its axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e3e6ea", linewidth=0.6)
        axes.tick_params(labelsize=FONT_SIZE)
        axes.xaxis.label.set_fontsize(FONT_SIZE)
        axes.yaxis.label.set_fontsize(FONT_SIZE)
    return figure, panels


def draw_line(
    axes: "Axes",
    x: "ArrayLike",
    y: "ArrayLike",
    colour: str,
    *,
    raw: "ArrayLike | None" = None,
    line_style: Any = "-",
    label: str | None = None,
) -> None:
    """A curve; the raw values that it was smoothed from, if there are any, thin behind it."""
    if raw is not None:
        axes.plot(x, raw, color=colour, alpha=0.25, linewidth=0.7)
    axes.plot(x, y, color=colour, linestyle=line_style, linewidth=1.4, label=label)


def smoothed(values: "NDArray[np.float64]", sigma: float) -> "NDArray[np.float64]":
    """Gaussian smoothing over neighbours on both sides, so many points wide: nothing lags behind."""
    if sigma < 0.3 or not len(values):
        return values
    reach = min(len(values) - 1, math.ceil(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    known = np.isfinite(values)
    sums = np.convolve(np.where(known, values, 0.0), kernel)[reach : reach + len(values)]
    weights = np.convolve(known.astype(np.float64), kernel)[reach : reach + len(values)]
    return np.where(known, sums / np.maximum(weights, 1e-12), np.nan)


def number_steps(axes: "Axes") -> None:
    """The x axis counts training steps: 20k instead of 20000."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def frame_values(axes: "Axes", values: "ArrayLike") -> None:
    """Fit the y axis to these values, which may be fewer than those that are drawn."""
    low, high = np.min(values), np.max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    axes.set_ylim(low - room, high + room)


def add_legend(owner: "Axes | Figure", **settings: Any) -> None:
    """A legend without a frame, in axes or in a figure."""
    owner.legend(frameon=False, fontsize=LEGEND_FONT_SIZE, **settings)


def to_png(figure: "Figure", dpi: int) -> bytes:
    """The same bytes each time."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=dpi, metadata={"Software": "ElectraKit"})
    return content.getvalue()


def is_figure(head: bytes) -> bool:
    """Whether a file that begins like this is a PNG of ours."""
    return head.startswith(b"\x89PNG") and b"Software\0ElectraKit" in head
