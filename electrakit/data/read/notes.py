"""Notes about the corpus for the user: what was damaged, left out or read in another way, how often, and where."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_PLACES = 1000  # remembered of each note
BEFORE_IS_KEPT = "what came before is kept"


@dataclass
class CorpusNote:
    """One kind of problem, with how often and where it occurred."""

    problem: str
    kept: str = ""  # what of the damaged text is kept, as a phrase
    count: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return f"{self.problem}; {self.kept}" if self.kept else self.problem


class Notes:
    """All notes, by their text, in the order in which they first occurred."""

    def __init__(self, notes: Iterable[CorpusNote] = ()) -> None:
        self.by_text = {note.text: note for note in notes}

    def add(self, problem: str, place: str, count: int = 1, kept: str = "") -> None:
        # Names in archives can be anything.
        place = "".join(letter if letter.isprintable() else "?" for letter in place)
        self.merge([CorpusNote(problem, kept, count, [place])])

    def merge(self, others: Iterable[CorpusNote]) -> None:
        for other in others:
            note = self.by_text.setdefault(other.text, CorpusNote(other.problem, other.kept))
            note.count += other.count
            if len(note.places) < MAX_PLACES:
                new = [place for place in other.places if place not in note.places]
                note.places += new[: MAX_PLACES - len(note.places)]

    def __iter__(self) -> Iterator[CorpusNote]:
        return iter(self.by_text.values())

    def clear(self) -> None:
        self.by_text.clear()

    @property
    def total(self) -> int:
        return sum(note.count for note in self)

    @property
    def counts(self) -> Counter[str]:
        return Counter({note.text: note.count for note in self})

    @property
    def places(self) -> dict[str, list[str]]:
        return {note.text: note.places for note in self}

    def as_json(self, max_places: int = MAX_PLACES) -> dict[str, Any]:
        return {note.text: {"count": note.count, "first": note.places[:max_places]} for note in self}
