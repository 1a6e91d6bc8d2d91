"""All that was measured on a pool, for `curves.parquet`, `metrics.json` and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prism_prm.chosen import Choice
from prism_prm.rerank.curves import WITH_PRM, Curve, count_smaller
from prism_prm.rerank.grading import GradedPool
from prism_prm.rerank.selected import Selection
from prism_prm.rerank.solutions import write_table
from prism_prm.rerank.step_scores import StepScores
from prism_prm.stats import Comparison


@dataclass(frozen=True, slots=True)
class Difference:
    """The accuracy of A minus that of B, both with the same method and n, on the same draws."""

    a: str
    b: str
    """A PRM, or "" for the majority vote."""
    method: str
    aggregator: str
    b_aggregator: str
    """That of A, save where each PRM's own is compared; "" for the majority vote."""
    n: int
    gain: Comparison


@dataclass(frozen=True, slots=True)
class Results:
    """What was selected from a pool, and all that was measured on it."""

    title: str
    graded: GradedPool
    scores: Mapping[str, StepScores]
    """PRM → the scores it gave."""
    curves: Sequence[Curve]
    """Empty where no problem has a reference answer."""
    aggregators: Sequence[str]
    own_aggregator: Mapping[str, Choice[str]]
    """PRM → the one of them that selects, and why."""
    selections: Sequence[Selection]
    """Which solution each rule selects from all solutions of each problem."""
    num_draws: int
    sandbox: str = "auto"
    """What programs ran in, as asked for."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """PRM → tokens behind its scores: read by a PRM, read and written by a critic; none for scores from a file."""
    critics: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Critic → how it was asked, and what it has cost."""

    @property
    def ns(self) -> tuple[int, ...]:
        """The numbers of solutions drawn."""
        return self.curves[0].ns if self.curves else ()

    @property
    def smaller(self) -> dict[int, int]:
        """n → how many measured problems have fewer solutions than that, and take all they have."""
        return count_smaller(self.graded, self.ns)

    def curve(self, method: str, prm: str = "", aggregator: str = "") -> Curve:
        """The curve of one way to select."""
        wanted = (method, prm, aggregator)
        return next(curve for curve in self.curves if (curve.method, curve.prm, curve.aggregator) == wanted)

    @property
    def own_curves(self) -> list[Curve]:
        """What needs no PRM, and of each PRM the curves by its own aggregator."""
        return [c for c in self.curves if not c.prm or c.aggregator == self.own_aggregator[c.prm].value]

    def num_unscored(self, prm: str) -> int:
        """How many solutions have no score from a PRM."""
        return sum(own is None for own in self.scores[prm])

    def differences(self) -> list[Difference]:
        """Every PRM against the majority vote, and every later PRM against every earlier one."""
        prms = list(self.scores) if self.curves else []
        pairs = [(prm, "") for prm in prms] + [(a, b) for i, b in enumerate(prms) for a in prms[i + 1 :]]
        found = []
        for a, b in pairs:
            for how, other_how in self._compared_by(a, b):
                for method in WITH_PRM:
                    curve = self.curve(method, a, how)
                    other = self.curve(method, b, other_how) if b else self.curve("majority")
                    found += [Difference(a, b, method, how, other_how, n, curve.minus(other, n)) for n in self.ns]
        return found

    def _compared_by(self, a: str, b: str) -> list[tuple[str, str]]:
        """Aggregators of A and B: each PRM's own where these differ, and then the same one for both."""
        if not b:
            return [(how, "") for how in self.aggregators]
        own = (self.own_aggregator[a].value, self.own_aggregator[b].value)
        return [own] * (own[0] != own[1]) + [(how, how) for how in self.aggregators]

    def metrics(self, differences: Sequence[Difference]) -> dict[str, Any]:
        """What goes into `metrics.json`."""
        return {
            "num_problems": len(self.graded.pool.problems),
            "problems_without_solution": self.graded.pool.num_empty,
            "problems_without_reference": self.graded.num_unmeasured,
            "problems_with_fewer_solutions_than_n": self.smaller,
            "num_solutions": len(self.graded.pool.solutions),
            "own_aggregator": {prm: asdict(choice) for prm, choice in self.own_aggregator.items()},
            "num_draws": self.num_draws,
            "answers_found_by": dict(self.graded.count("method")),
            "answer_status": dict(self.graded.count("status")),
            "unscored_solutions": {prm: self.num_unscored(prm) for prm in self.scores},
            "tokens": dict(self.tokens),
            "critics": dict(self.critics),
            "curves": [{key: value for key, value in row.items() if key != "by_problem"} for row in self._curve_rows()],
            "differences": [
                {key: value for key, value in asdict(found).items() if key != "gain"} | asdict(found.gain)
                for found in differences
            ],
        }

    def _curve_rows(self) -> list[dict[str, Any]]:
        """One row per curve and n, with the expected accuracy of every problem; None where it is not measured."""
        rows = []
        for curve in self.curves:
            for n, point, values in zip(curve.ns, curve.points, curve.values, strict=True):
                known = dict(zip(self.graded.measured, values.tolist(), strict=True))
                row = {"method": curve.method, "prm": curve.prm, "aggregator": curve.aggregator, "n": n}
                by_problem = [known.get(problem) for problem in range(len(self.graded.grades))]
                rows.append(row | asdict(point) | {"by_problem": by_problem})
        return rows

    def write_curves(self, path: str | Path) -> None:
        """Write `curves.parquet`; where nothing is measured there is none, also not that of an earlier run."""
        if self.curves:
            write_table(self._curve_rows(), path)
        else:
            Path(path).unlink(missing_ok=True)
