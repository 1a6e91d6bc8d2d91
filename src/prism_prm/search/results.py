"""What a search found, and its journal: one line per problem that is done, so that a stopped run goes on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from prism_prm.errors import ConfigError, DataError
from prism_prm.files import JsonLines
from prism_prm.pools import Solution
from prism_prm.search.tree import Node, Spent


@dataclass(frozen=True, slots=True)
class FoundSolution:
    """One solution."""

    steps: tuple[str, ...]
    scores: tuple[float, ...] | None
    """P(right) of each step; None where the PRM has not scored all of them."""
    tokens: int
    ended: bool
    """Whether the policy ended it; otherwise it was cut."""
    log_likelihood: float | None = None

    def in_pool(self) -> Solution:
        """As a pool holds it."""
        return Solution(self.steps, "\n\n".join(self.steps), scores=self.scores, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """All that a search found for one problem."""

    problem: int
    solutions: tuple[FoundSolution, ...]
    policy_tokens: int
    prm_tokens: int


def found(problem: int, nodes: Sequence[Node], spent: Spent) -> Found:
    """The record of a problem's solutions, in their order."""
    solutions = []
    for node in nodes:
        scores = node.probabilities()
        solutions.append(
            FoundSolution(
                tuple(node.steps()),
                None if scores is None else tuple(scores),
                node.num_tokens,
                node.written.ending == "end",
                node.log_likelihood,
            )
        )
    return Found(problem, tuple(solutions), spent.policy_tokens, spent.prm_tokens)


class Journal:
    """Appends what was found; opens only onto work that was made in the same way."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.done: dict[str, Found] = {}
        """Key of a problem → what was found; the records' own numbers are of no meaning here."""
        self.seconds = 0.0
        """Of all runs that wrote to it."""
        made = msgspec.to_builtins(made_with)
        self._lines = JsonLines(self.path, sync=True)
        before = self._read()
        if not self.done:  # a search that has done nothing yet may be mended
            self._lines.rewrite([{"made_with": made}])
        elif changed := [key for key in {**before, **made} if before.get(key) != made.get(key)]:
            raise ConfigError(
                f"{self.path}: the search there was made with other settings ({', '.join(changed)}). Choose another "
                "--out, or remove that folder."
            )
        self._before = self.seconds

    def _read(self) -> dict[str, Any]:
        """Take in what is there; what it was made with."""
        try:
            first, *rest = self._lines.read() or [{"made_with": {}}]
            for record in rest:
                self.done[record["problem"]] = msgspec.convert(record["found"], Found)
                self.seconds = record["seconds"]
            return dict(first["made_with"])
        except (DataError, msgspec.MsgspecError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path}: not a journal of prism search ({error}). Choose another --out.") from error

    def append(self, problem: str, found: Found, seconds: float) -> None:
        """Note a problem as done; `seconds` is how long this run has taken so far."""
        self.done[problem] = found
        self.seconds = self._before + seconds
        self._lines.append({"problem": problem, "found": found, "seconds": self.seconds})

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
