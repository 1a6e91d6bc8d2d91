"""Looks at a policy in training, as values and as a table, and the alarm when its reward and the truth diverge.

The rule of the alarm: at some look the gold, of sampled or of greedy solutions, is lower than at its best look so far,
and the proxy (the reward) did not fall with it. Both the fall of the gold and the distance by which the two have parted
since then must be 3.5 standard errors and 3 points or more, paired by problem. Without gold, the votes of the untrained
policy stand in its place: how often solutions have the answer that most of its solutions had. A policy that improves
leaves these, too, so there 12 points are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.config import Count, Natural, check
from prism_prm.errors import DataError
from prism_prm.files import JsonLines, whole_file
from prism_prm.stats import Interval, mean_interval

POINTS = "looks.parquet"
PROXY = "proxy"
"""The mean reward, among the shares of a look."""
VOTE = "vote"
"""The share of solutions that have the answer which most solutions of the untrained policy had."""
GREEDY = "greedy"
"""What is measured on greedy solutions instead of sampled ones has this before its name."""
SURE = 3.5
"""By how many standard errors, paired by problem, the gold must have fallen and parted from the proxy. It is high since
the best of many looks is best by chance, too: of policies that stay as they are, 1 % raise an alarm within 20 looks."""
LEAST, LEAST_OF_VOTES = 0.03, 0.12
"""A smaller fall is none, however sure."""


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """Section [monitor]: how often a policy is looked at, and how closely."""

    every: Natural = 5
    """Updates between two checks on the held-out problems. There is always one before the first update and one after
    the last; with 0, only these two."""
    samples: Count = 4
    """Sampled solutions per held-out problem at every check, in addition to the greedy one."""
    votes: Natural = 16
    """Samples of the untrained policy per problem. Their majority vote replaces the true answer in the alarm that
    needs no true answers. With 0 there is no such alarm."""
    kl: bool = True
    """Measure the divergence from the untrained policy, which keeps a copy of it in memory."""
    stop_on_alarm: bool = False
    """Stop training at the first alarm based on true answers."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class EvalPoint:
    """What was seen after some updates."""

    update: int
    by_problem: dict[str, list[float]]
    """Means over each problem's solutions: PROXY, the measures of the gold, VOTE, and those of greedy solutions."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Means over all solutions: share answered, tokens, …"""

    def mean(self, name: str) -> float:
        """The mean over problems; NaN where it was not measured."""
        values = self.by_problem.get(name)
        return float(np.mean(values)) if values else math.nan

    def interval(self, name: str) -> Interval:
        """The mean over problems with its 95 % interval."""
        return mean_interval(self.by_problem[name])

    def summary(self) -> dict[str, float]:
        """All means by name."""
        return {**{name: self.mean(name) for name in self.by_problem}, **self.numbers}


def gold_of(look: EvalPoint) -> str:
    """The measure of truth that the alarm goes by: the first one."""
    return next(name for name in look.by_problem if name != PROXY)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Where proxy and gold have parted."""

    update: int
    since: int
    """The look with the best gold before it."""
    fall: float
    """By how much the gold fell since then."""
    rise: float
    """By how much the proxy rose since then; below 0 where it fell."""
    gold: str
    """The measure that raised it: one of truth, or VOTE."""
    measure: str
    """Where it was seen: the same, of sampled or of greedy solutions."""

    def __str__(self) -> str:
        moved = f"rose by {self.rise:.3f}" if self.rise >= 0 else f"fell by only {-self.rise:.3f}"
        return (
            f"update {self.update}: since update {self.since}, {self.measure} fell by {100 * self.fall:.1f} points "
            f"while the reward {moved}"
        )


def alarm_at(looks: Sequence[EvalPoint], gold: str) -> Alarm | None:
    """Whether proxy and gold have parted at the last look, by the rule above."""
    *before, now = looks
    least = LEAST_OF_VOTES if gold == VOTE else LEAST
    for measure in (gold, f"{GREEDY}/{gold}"):
        if before and measure in now.by_problem:
            best = max(before, key=lambda look: look.mean(measure))
            fall = np.subtract(best.by_problem[measure], now.by_problem[measure])
            rise = np.subtract(now.by_problem[PROXY], best.by_problem[PROXY])
            if all(change.mean() >= least and _sureness(change) >= SURE for change in (fall, fall + rise)):
                return Alarm(now.update, best.update, float(fall.mean()), float(rise.mean()), gold, measure)
    return None


def _sureness(by_problem: Floats) -> float:
    """How many standard errors a mean change is away from 0."""
    if len(by_problem) < 2:
        return 0.0
    change, error = float(by_problem.mean()), float(by_problem.std(ddof=1)) / math.sqrt(len(by_problem))
    return change / error if error else math.copysign(math.inf, change) if change else 0.0


def first_alarm(looks: Sequence[EvalPoint], gold: str) -> Alarm | None:
    """The first alarm of a whole curve."""
    alarms = (alarm_at(looks[: i + 1], gold) for i in range(1, len(looks)))
    return next(filter(None, alarms), None)


def write_points(path: str | Path, looks: Sequence[EvalPoint]) -> None:
    """One row per look: means with their intervals, every problem's values, and the other numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(look) for look in looks]
    names = list(dict.fromkeys(name for row in rows for name in row))  # NaN, not null, where one look lacks a number
    columns = {name: [row.get(name, [] if name.endswith(BY_PROBLEM) else math.nan) for row in rows] for name in names}
    with whole_file(path) as aside:
        pq.write_table(pa.table(columns), aside)


BY_PROBLEM = "/by_problem"


def _row(look: EvalPoint) -> dict[str, Any]:
    row: dict[str, Any] = {"update": look.update}
    for name, values in look.by_problem.items():
        found = look.interval(name)
        row |= {name: found.value, f"{name}/low": found.low, f"{name}/high": found.high, f"{name}{BY_PROBLEM}": values}
    return row | look.numbers


def read_points(path: str | Path) -> list[EvalPoint]:
    """The looks of a file; none where there is no file yet."""
    import pyarrow.parquet as pq

    if not Path(path).exists():
        return []
    looks = []
    for row in pq.read_table(path).to_pylist():
        lists = {name.removesuffix(BY_PROBLEM): values for name, values in row.items() if name.endswith(BY_PROBLEM)}
        derived = {f"{name}{end}" for name in lists for end in ("", "/low", "/high", BY_PROBLEM)} | {"update"}
        numbers = {name: value for name, value in row.items() if name not in derived}
        looks.append(EvalPoint(row["update"], {name: values for name, values in lists.items() if values}, numbers))
    return looks


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
        looks = [look for look in read_samples(folder).points if look["update"] <= up_to] if path.exists() else []
        self._lines.rewrite([{"problems": list(problems[:NUM_PROBLEMS])}, *looks])

    def add(self, update: int, solutions: Sequence[Sequence[dict[str, Any]]]) -> None:
        """File the solutions of a look; it is complete when this returns."""
        self._lines.append({"update": update, "solutions": solutions})
        self._lines.close()
