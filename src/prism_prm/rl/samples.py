"""Solutions of a few held-out problems at every look, kept in `samples.jsonl` for people to read.

The first line has the problems' texts, and every further one the solutions of one look, problem by problem:

    {"update": 5, "solutions": [[{"text": "…", "reward": 0.8, "right": true}, …, {"text": "…", "right": false}], …]}

The last solution of a problem is the greedy one, which has no reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_prm.errors import DataError
from prism_prm.files import JsonLines

SAMPLES = "samples.jsonl"
NUM_PROBLEMS, NUM_SAMPLES = 8, 4
"""Held-out problems, and sampled solutions of each, that are kept."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What a run wrote over time."""

    problems: list[str]
    looks: list[dict[str, Any]]
    """Each with its `update` and the `solutions` of every problem."""


def read_samples(folder: str | Path) -> Samples:
    """The samples of a run's folder; none where it kept none."""
    path = Path(folder) / SAMPLES
    first, *looks = JsonLines(path).read() or [{"problems": []}]
    try:
        for look in looks:
            if len(look["solutions"]) != len(first["problems"]) or not isinstance(look["update"], int):
                raise ValueError("not the solutions of its problems")
        return Samples(list(first["problems"]), looks)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the samples of a run ({error!r}); remove the file.") from None


class SamplesFile:
    """Adds looks to a run's file; those of updates that are done again are taken out first."""

    def __init__(self, folder: str | Path, problems: Sequence[str], *, up_to: int) -> None:
        path = Path(folder) / SAMPLES
        self._lines = JsonLines(path)
        looks = [look for look in read_samples(folder).looks if look["update"] <= up_to] if path.exists() else []
        self._lines.rewrite([{"problems": list(problems[:NUM_PROBLEMS])}, *looks])

    def add(self, update: int, solutions: Sequence[Sequence[dict[str, Any]]]) -> None:
        """File the solutions of a look; it is complete when this returns."""
        self._lines.append({"update": update, "solutions": solutions})
        self._lines.close()
