"""What scoring a run gives."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Scored:
    """The scores of all dev splits, and what it takes to see why."""

    is_finite: bool
    """Whether all logits are numbers."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """By split and metric."""
    collapsed: list[str] = field(default_factory=list)
    """What about the predictions says that nothing was learned."""
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """More for the result's file, by what it is and by split."""
    files: dict[str, str] = field(default_factory=dict)
    """Predictions in the format of others: name and content."""
