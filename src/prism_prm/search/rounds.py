"""The record of a search, round by round, including dropped candidates, for `prism view`.

There is one file per search, `rounds/<name>.jsonl`, which is written while it runs. The first line has its settings.
Then each problem has a line when it begins, `{"search": 0, "key": "the problem"}`, and one per round:

    {"search": 0, "new": [[0, "x = 2", 0.91, ""], [0, "x = 3", 0.2, ""], [0, 1, 0.91, ""]], "kept": [1]}

A step is [the number of the step before it (0: the problem), text, P(right), how the solution ended there]. The steps
of a problem are numbered from 1 in the order of the file. A text that repeats one of the same line is that step's
number. The file can be removed: neither the results of a search nor its resuming depend on it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.errors import DataError
from prism_prm.files import JsonLines, atomic_file
from prism_prm.search.tree import SearchNode

FOLDER = "rounds"
DIGITS = 4
"""Decimals of a score; these files are only for display."""


@dataclass(frozen=True, slots=True)
class SearchRound:
    """One round of one problem."""

    problem: int
    new: Sequence[SearchNode]
    """All new steps, in the order of their numbers."""
    looks_ahead: bool
    """Whether they are only a lookahead."""
    kept: Sequence[SearchNode] | None
    """Nodes that are continued or stay in the result; None if that is decided later. In the last round, the result."""
    is_last: bool


RoundRecord = dict[str, Any]
"""A line of the file without the number of its search."""


class Rounds:
    """Writes the file of a search. Problems that an earlier run did not finish are removed from it first."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any], done: Collection[str]) -> None:
        self.path = Path(path)
        kept: dict[int, int] = {}  # old number of a finished problem's search → new number
        with atomic_file(self.path) as partial, partial.open("wb") as file:
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

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def add(self, key: str, record: RoundRecord) -> None:
        """Write a round of the problem with this key."""
        if key in self._done:  # a Ray worker may search a finished problem again
            return
        if key not in self._numbers:
            self._numbers[key] = self._count
            self._lines.append({"search": self._count, "key": key})
            self._count += 1
        self._lines.append({"search": self._numbers[key], **record})


def record_round(round: SearchRound, *, likelihood: bool) -> RoundRecord:
    """The record of a round, for the file."""
    known: dict[str, int] = {}
    steps = []
    for node in round.new:
        assert node.parent is not None, "a root is not written"
        text: str | int = known.setdefault(node.step, node.number)
        ending = "" if node.written.ending == "stop" else node.written.ending
        step = [node.parent.number, node.step if text == node.number else text, _short(node.probability), ending]
        steps.append([*step, _short(node.log_likelihood)] if likelihood else step)
    record: RoundRecord = {"new": steps}
    if round.looks_ahead:
        record["ahead"] = True
    if round.kept is not None:
        record["kept"] = [node.number for node in round.kept]
    if round.is_last:
        record["last"] = True
    return record


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def _lines(path: Path, beginning: bytes = b"") -> Iterator[dict[str, Any]]:
    """All complete lines but the first that start with `beginning`. A file that grows may end in half a line."""
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
class RecordedStep:
    """A step of a recorded search."""

    parent: int
    """The number of the step before it; 0 for the first step of a solution."""
    text: str
    score: float | None
    """P(right); None if the PRM did not score it."""
    ending: str
    """"" if the solution continues, "end" if the policy ended it, "cut" if it was cut off."""
    round: int
    ahead: bool
    """Whether it is part of a lookahead."""
    likelihood: float | None = None
    """The log-likelihood of the solution up to here, if the search ranks by it."""


@dataclass(slots=True)
class RecordedSearch:
    """The search of one problem, as recorded so far."""

    key: str
    """The problem, numbered among equal ones."""
    steps: list[RecordedStep] = field(default_factory=list)
    """Step number 1 comes first."""
    kept: list[list[int] | None] = field(default_factory=list)
    """The numbers of the steps that each round kept; None if that was decided later."""
    result: list[int] | None = None
    """The last steps of the solutions, in order; None while the search runs."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round."""
        for parent, text, score, ending, *rest in line["new"]:
            if not 0 <= parent <= len(self.steps):
                raise ValueError(f"a step after step {parent}, which does not exist")
            step_text = self.steps[text - 1].text if isinstance(text, int) else str(text)
            ahead, likelihood = bool(line.get("ahead")), rest[0] if rest else None
            self.steps.append(RecordedStep(parent, step_text, score, ending, len(self.kept), ahead, likelihood))
        self.kept.append(line.get("kept"))
        if line.get("last"):
            self.result = line["kept"]

    def path(self, number: int) -> list[int]:
        """The numbers of the steps on the path to a step."""
        path = []
        while number:
            path.append(number)
            number = self.steps[number - 1].parent
        return path[::-1]


def made_with(path: str | Path) -> dict[str, Any]:
    """The settings of a recorded search."""
    path = Path(path)
    with path.open("rb") as file:
        return _record(path, 1, file.readline())


def read_rounds(path: str | Path, *, only: int | None = None) -> list[RecordedSearch]:
    """Read the searches of a file in the order in which they began, or only one of them. The last may still run."""
    path = Path(path)
    searches: dict[int, RecordedSearch] = {}
    for line in _lines(path, b"" if only is None else f'{{"search":{only},'.encode()):
        with _valid_rounds(path):
            if "key" in line:
                searches[line["search"]] = RecordedSearch(line["key"])
            else:
                searches[line["search"]].add(line)
    return list(searches.values())


@dataclass(slots=True)
class Outline:
    """The progress of one problem's search."""

    key: str
    num_steps: int = 0
    num_rounds: int = 0
    is_done: bool = False


def outline(path: str | Path) -> list[Outline]:
    """The searches of a file, without their steps."""
    path = Path(path)
    outlines: list[Outline] = []
    for line in _lines(path):
        with _valid_rounds(path):
            if "key" in line:
                outlines.append(Outline(line["key"]))
                continue
            own = outlines[line["search"]]
            own.num_steps += len(line["new"])
            own.num_rounds += 1
            own.is_done = own.is_done or bool(line.get("last"))
    return outlines


@contextlib.contextmanager
def _valid_rounds(path: Path) -> Iterator[None]:
    """Raise a clear error if the file has other content."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the rounds of a search ({error!r}); remove the file.") from None
