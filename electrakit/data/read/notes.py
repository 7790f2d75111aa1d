"""Notes about the corpus for the user: what was damaged, left out or read in another way, how often, and where."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_PLACES = 1000  # remembered of each note


@dataclass
class Note:
    """One kind of problem, with how often and where it occurred."""

    problem: str
    kept: str = ""  # what of the damaged text is kept, as a phrase: "what came before is kept"
    count: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return f"{self.problem}; {self.kept}" if self.kept else self.problem

    def add(self, places: list[str], count: int) -> None:
        self.count += count
        if len(self.places) < MAX_PLACES:
            new = [place for place in places if place not in self.places]
            self.places += new[: MAX_PLACES - len(self.places)]


class Notes:
    """All notes, by their text, in the order in which they first occurred."""

    def __init__(self) -> None:
        self.by_text: dict[str, Note] = {}

    def add(self, problem: str, place: str, count: int = 1, kept: str = "") -> None:
        # Names in archives can be anything.
        place = "".join(letter if letter.isprintable() else "?" for letter in place)
        self._get(Note(problem, kept)).add([place], count)

    def merge(self, other: "Notes") -> None:
        for note in other:
            self._get(Note(note.problem, note.kept)).add(note.places, note.count)

    def _get(self, empty: Note) -> Note:
        return self.by_text.setdefault(empty.text, empty)

    def __iter__(self) -> Iterator[Note]:
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

    def as_json(self, max_places: int = MAX_PLACES, *, for_resume: bool = False) -> dict[str, Any]:
        """As the manifest has it; `for_resume`, with what `from_json` needs."""
        return {
            note.text: {"count": note.count, "first": note.places[:max_places]}
            | ({"kept": note.kept} if for_resume else {})
            for note in self
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Notes":
        notes = cls()
        for text, entry in stored.items():
            kept = str(entry.get("kept", ""))
            problem = text.removesuffix(f"; {kept}") if kept else text
            notes.by_text[text] = Note(problem, kept, int(entry["count"]), list(entry["first"]))
        return notes
