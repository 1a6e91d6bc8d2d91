"""What a search did round by round, dropped candidates included: written while it runs, and read to be looked at.

One file per search, `rounds/<name>.jsonl`. Its first line says how the search was made. Then each problem has a line
when it begins, `{"search": 0, "key": "the problem"}`, and one per round:

    {"search": 0, "new": [[0, "x = 2", 0.91, ""], [0, "x = 3", 0.2, ""], [0, 1, 0.91, ""]], "kept": [1]}

A step is [the number of the step before it (0: the problem), text, P(right), how the solution ended there]; the steps
of a problem are numbered from 1 in the order of the file. A text that the same line had before is its step's number.
The file can be removed: nothing that a search finds or resumes depends on it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from prism_prm.errors import DataError
from prism_prm.files import JsonLines, whole_file
from prism_prm.search.tree import SearchNode

FOLDER = "rounds"
DIGITS = 4
"""Decimals of a score: these files are to be looked at."""


@dataclass(frozen=True, slots=True)
class SearchRound:
    """A round of one problem, as an engine tells of it."""

    problem: int
    new: Sequence[SearchNode]
    """All that was written, in the order of the steps' numbers."""
    looks_ahead: bool
    """Whether that was only to see where candidates lead."""
    kept: Sequence[SearchNode] | None
    """What is continued or stays in the result; None before that is decided. In the last round, the result in order."""
    is_last: bool


ToldRound = dict[str, Any]
"""A line of the file without the number of its search."""


class Rounds:
    """Writes a search's file; what an earlier run wrote of problems that it has not finished is taken out."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any], done: Collection[str]) -> None:
        self.path = Path(path)
        kept: dict[int, int] = {}  # the searches of problems that are done → their new numbers
        with whole_file(self.path) as aside, aside.open("wb") as file:
            file.write(msgspec.json.encode(made_with) + b"\n")
            for line in _lines(self.path) if done else ():
                if line.get("key") in done:
                    kept[line["search"]] = len(kept)
                if line.get("search") in kept:
                    file.write(msgspec.json.encode(line | {"search": kept[line["search"]]}) + b"\n")
        self._count = len(kept)
        self._lines = JsonLines(self.path)
        self._numbers: dict[str, int] = {}
        self._done = done

    def __enter__(self) -> Rounds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def add(self, key: str, told: ToldRound) -> None:
        """Write a round of the problem with this key; workers elsewhere may search again what is done."""
        if key in self._done:
            return
        if key not in self._numbers:
            self._numbers[key] = self._count
            self._lines.append({"search": self._count, "key": key})
            self._count += 1
        self._lines.append({"search": self._numbers[key], **told})


def told_round(round: SearchRound, *, likelihood: bool) -> ToldRound:
    """What the file says of a round."""
    before: dict[str, int] = {}
    steps = []
    for node in round.new:
        assert node.parent is not None, "a root is not written"
        text: str | int = before.setdefault(node.step, node.number)
        ending = "" if node.written.ending == "stop" else node.written.ending
        one = [node.parent.number, node.step if text == node.number else text, _short(node.probability), ending]
        steps.append([*one, _short(node.log_likelihood)] if likelihood else one)
    told: ToldRound = {"new": steps}
    if round.looks_ahead:
        told["ahead"] = True
    if round.kept is not None:
        told["kept"] = [node.number for node in round.kept]
    if round.is_last:
        told["last"] = True
    return told


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def _lines(path: Path, beginning: bytes = b"") -> Iterator[dict[str, Any]]:
    """All whole lines but the first, or those with this beginning; a file that grows may end in half of one."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number > 1 and line.endswith(b"\n") and line.startswith(beginning):
                yield _record(path, number, line)


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path}:{number}: not a round of a search ({error}); remove the file.") from None


@dataclass(slots=True)
class SeenStep:
    """A step that a search wrote."""

    parent: int
    """The number of the step before it; 0 for the first step of a solution."""
    text: str
    score: float | None
    """P(right); None where the PRM did not score it."""
    ending: str
    """"" where the solution goes on, "end" where the policy ended it, "cut" where it was cut."""
    round: int
    ahead: bool
    """Whether it was only written to see where a candidate leads."""
    likelihood: float | None = None
    """The log-likelihood of the solution up to here, where the search ranks by it."""


@dataclass(slots=True)
class Seen:
    """One problem's search as far as its file tells."""

    key: str
    """The problem, numbered among equal ones."""
    steps: list[SeenStep] = field(default_factory=list)
    """Step number 1 comes first."""
    kept: list[list[int] | None] = field(default_factory=list)
    """For each round the numbers of the steps that were kept; None where that was decided later."""
    result: list[int] | None = None
    """The last steps of the solutions in order; None while the search runs."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a round."""
        for parent, text, score, ending, *rest in line["new"]:
            if not 0 <= parent <= len(self.steps):
                raise ValueError(f"a step after step {parent}, which is not there")
            said = self.steps[text - 1].text if isinstance(text, int) else str(text)
            ahead, likelihood = bool(line.get("ahead")), rest[0] if rest else None
            self.steps.append(SeenStep(parent, said, score, ending, len(self.kept), ahead, likelihood))
        self.kept.append(line.get("kept"))
        if line.get("last"):
            self.result = line["kept"]

    def path(self, number: int) -> list[int]:
        """The numbers of the steps that lead to one."""
        found = []
        while number:
            found.append(number)
            number = self.steps[number - 1].parent
        return found[::-1]


def made_with(path: str | Path) -> dict[str, Any]:
    """How the search of a file was made."""
    path = Path(path)
    with path.open("rb") as file:
        return _record(path, 1, file.readline())


def read_rounds(path: str | Path, *, only: int | None = None) -> list[Seen]:
    """The searches of a file in the order in which they began, or only one of them; the last may still run."""
    path = Path(path)
    found: dict[int, Seen] = {}
    for line in _lines(path, b"" if only is None else f'{{"search":{only},'.encode()):
        with _sense(path):
            if "key" in line:
                found[line["search"]] = Seen(line["key"])
            else:
                found[line["search"]].add(line)
    return list(found.values())


@dataclass(slots=True)
class Outline:
    """How far the search of a problem is."""

    key: str
    num_steps: int = 0
    num_rounds: int = 0
    is_done: bool = False


def outline(path: str | Path) -> list[Outline]:
    """The searches of a file without their steps."""
    path = Path(path)
    found: list[Outline] = []
    for line in _lines(path):
        with _sense(path):
            if "key" in line:
                found.append(Outline(line["key"]))
                continue
            own = found[line["search"]]
            own.num_steps += len(line["new"])
            own.num_rounds += 1
            own.is_done = own.is_done or bool(line.get("last"))
    return found


@contextlib.contextmanager
def _sense(path: Path) -> Iterator[None]:
    """A file that holds something else is an error that says so."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the rounds of a search ({error!r}); remove the file.") from None
