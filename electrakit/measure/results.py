"""What `measure` found, as typed values and as JSON. It needs no torch: report and card read it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class MinimalPairs:
    """How often a network prefers the grammatical sentence of a pair; 0.5 is chance."""

    accuracy: float
    """The mean over paradigms."""
    standard_error: float
    num_pairs: int
    """Pairs that were scored."""
    num_of: int
    """Pairs in the files."""
    phenomena: dict[str, float] = field(default_factory=dict)
    paradigms: dict[str, float] = field(default_factory=dict)
