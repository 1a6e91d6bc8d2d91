"""All that was measured on a pool, for `curves.parquet`, `metrics.json` and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prism_prm.rerank.curves import WITH_PRM, Curve
from prism_prm.rerank.grading import GradedPool
from prism_prm.rerank.solutions import write_table
from prism_prm.rerank.step_scores import StepScores
from prism_prm.statistics import Comparison


@dataclass(frozen=True, slots=True)
class Difference:
    """The accuracy of A minus that of B, both with the same method, aggregator and n, on the same draws."""

    a: str
    b: str
    """A PRM, or "" for the majority vote."""
    method: str
    aggregator: str
    n: int
    gain: Comparison


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured on a pool."""

    title: str
    graded: GradedPool
    scores: Mapping[str, StepScores]
    """PRM → the scores it gave."""
    curves: Sequence[Curve]
    aggregators: Sequence[str]
    num_draws: int

    @property
    def ns(self) -> tuple[int, ...]:
        """The numbers of solutions drawn."""
        return self.curves[0].ns

    def curve(self, method: str, prm: str = "", aggregator: str = "") -> Curve:
        """The curve of one way to select."""
        wanted = (method, prm, aggregator)
        return next(curve for curve in self.curves if (curve.method, curve.prm, curve.aggregator) == wanted)

    def num_unscored(self, prm: str) -> int:
        """How many solutions have no score from a PRM."""
        return sum(own is None for own in self.scores[prm])

    def differences(self) -> list[Difference]:
        """Every PRM against the majority vote, and every later PRM against every earlier one."""
        prms = list(self.scores)
        pairs = [(prm, "") for prm in prms] + [(a, b) for i, b in enumerate(prms) for a in prms[i + 1 :]]
        found = []
        for a, b in pairs:
            for aggregator in self.aggregators:
                for method in WITH_PRM:
                    curve = self.curve(method, a, aggregator)
                    other = self.curve(method, b, aggregator) if b else self.curve("majority")
                    found += [Difference(a, b, method, aggregator, n, curve.minus(other, n)) for n in self.ns]
        return found

    def metrics(self, differences: Sequence[Difference]) -> dict[str, Any]:
        """What goes into `metrics.json`."""
        return {
            "num_problems": len(self.graded.pool.problems),
            "problems_without_solution": self.graded.pool.num_empty,
            "num_solutions": len(self.graded.pool.solutions),
            "num_draws": self.num_draws,
            "answers_found_by": dict(self.graded.count("method")),
            "answer_status": dict(self.graded.count("status")),
            "unscored_solutions": {prm: self.num_unscored(prm) for prm in self.scores},
            "curves": [_without_problems(row) for row in self._curve_rows()],
            "differences": [
                {key: value for key, value in asdict(found).items() if key != "gain"} | asdict(found.gain)
                for found in differences
            ],
        }

    def _curve_rows(self) -> list[dict[str, Any]]:
        """One row per curve and n, with the expected accuracy of every problem."""
        return [
            {"method": curve.method, "prm": curve.prm, "aggregator": curve.aggregator, "n": n}
            | asdict(point)
            | {"by_problem": values.tolist()}
            for curve in self.curves
            for n, point, values in zip(curve.ns, curve.points, curve.values, strict=True)
        ]

    def write_curves(self, path: str | Path) -> None:
        """Write `curves.parquet`."""
        write_table(self._curve_rows(), path)


def _without_problems(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "by_problem"}
