"""All that was measured on a pool, for `curves.parquet`, `metrics.json` and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import Choice, solution_score
from prism_prm.backends.critic_ledger import verdicts_in_words
from prism_prm.grading.code_benchmarks import count_packages, count_quirks
from prism_prm.grading.graders import unguarded
from prism_prm.report import (
    NO_DATA,
    Report,
    draw_curve,
    escaped,
    finish,
    most_telling,
    number,
    p_value,
    percent,
    signed_percent,
    styles,
    telling,
)
from prism_prm.search.curves import WITH_PRM, Curve, count_smaller
from prism_prm.search.grade_pool import GradedPool, StepScores, write_table
from prism_prm.search.select import Selection
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
class RerankResults:
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
            # Each PRM's own aggregators where these differ, and then the same one for both.
            if b:
                own = (self.own_aggregator[a].value, self.own_aggregator[b].value)
                compared = [own] * (own[0] != own[1]) + [(how, how) for how in self.aggregators]
            else:
                compared = [(how, "") for how in self.aggregators]
            for how, other_how in compared:
                for method in WITH_PRM:
                    curve = self.curve(method, a, how)
                    other = self.curve(method, b, other_how) if b else self.curve("majority")
                    found += [Difference(a, b, method, how, other_how, n, curve.minus(other, n)) for n in self.ns]
        return found

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


TITLES = {
    "mean": "one solution (pass@1)",
    "majority": "majority vote",
    "oracle": "oracle (pass@n)",
    "best-of-n": "Best-of-n",
    "weighted": "weighted vote",
    "public-tests": "public tests first",
}
_SIZE = (4.4, 3.7)
"""The size of a figure in inches: taller than most, for the long legend."""


def make_report(results: RerankResults) -> Report:
    """The page and its metrics."""
    pool = results.graded.pool
    subtitle = f"{number(len(pool.problems))} problems, {number(len(pool.solutions))} solutions"
    differences = results.differences()
    report = Report(results.title, subtitle=subtitle, metrics=results.metrics(differences))
    report.finding = "Every rule selected one solution of each problem; see `selected.jsonl`."
    if results.curves:
        report.finding = _finding(results)
        _draw_methods(results, report)
        rows = []
        for curve in results.own_curves:
            *others, last = curve.points
            cells = [row_name(curve, with_aggregator=False), *(percent(one.value) for one in others), percent(last)]
            if results.tokens:
                cells.append(number(results.tokens[curve.prm]) if curve.prm in results.tokens else NO_DATA)
            rows.append(cells)
        headers = ["selection", *(f"n = {n}" for n in results.ns), *["PRM tokens ↓"] * bool(results.tokens)]
        caption = "Expected accuracy (%) ↑, at the last n with its 95 % interval over problems"
        report.table(headers, rows, caption=caption, best="columns", apart=(TITLES["oracle"],))
    report.notes(notes(results))
    if results.curves:
        _add_example(results, report)
        _tabulate_differences(results, differences, report)
        if results.scores and len(results.aggregators) > 1:
            _compare_aggregators(results, report)
    selected: dict[str, list[int]] = {}
    for one in results.selections:
        counts = selected.setdefault(" · ".join(filter(None, (one.prm, TITLES[one.rule]))), [0, 0, 0])
        counts[0] += one.solution is not None
        counts[1] += one.answer is not None
        counts[2] += one.solution is None
    report.table(
        ["rule", "selected", "with an answer", "nothing to select"],
        [[name, *map(number, counts)] for name, counts in selected.items()],
        caption="Problems by whether the selected solution is right; `selected.jsonl` lists the selections",
    )
    unscored = {f"no score from {prm}": results.num_unscored(prm) for prm in results.scores}
    add_answers(report, [results.graded], unscored)
    if results.curves:
        report.text(f"""
## How to read this

Each value is the **expected accuracy of selecting one answer from n solutions**, over all ways to draw n of a problem's
solutions: exact for one solution, Best-of-n and the oracle; for the votes the mean of {number(results.num_draws)}
seeded draws. Intervals are 95 % bootstrap intervals over problems; comparisons are paired, on the same problems and
draws. Ties go to the solution, or to the group of equal answers, that was drawn first. A vote adds the scores of
solutions with equivalent answers; solutions without an answer cast no vote.
""")
    return report


def _finding(results: RerankResults) -> str:
    """The best rule at the most solutions, beside what needs no PRM."""
    most, one, majority = results.ns[-1], results.curve("mean"), results.curve("majority")
    plain = f"the majority vote {percent(majority.points[-1].value)} %, one solution {percent(one.points[-1].value)} %"
    own = [curve for curve in results.own_curves if curve.prm and curve.method in WITH_PRM]
    if not own:
        return f"Of {most} solutions, {plain} and the oracle {percent(results.curve('oracle').points[-1].value)} %."
    best = max(own, key=lambda curve: curve.points[-1].value)
    return (
        f"Of {most} solutions, the {TITLES[best.method]} by {escaped(best.prm)} is right on "
        f"{percent(best.points[-1].value)} % of the problems; {plain}."
    )


def without_solution(count: int, total: int) -> str:
    """A note on the number of problems without a solution; "" if there are none."""
    return f"{count:,} of {total:,} problems have no solution and count as unsolved." if count else ""


def unlike_the_benchmark(pools: Sequence[GradedPool]) -> list[str]:
    """How many programs the benchmarks' own harnesses may judge otherwise, by what they do."""
    asked = [
        (entry.problem.tests, grade.answer)
        for graded in pools
        for entry, grades in zip(graded.pool.problems, graded.grades, strict=True)
        for grade in grades
    ]
    counts = [f"{count:,} {what}" for what, count in count_quirks(asked).items()]
    packages = [f"{name} {count:,}" for name, count in count_packages(asked).most_common(10)]
    return [f"Programs that LiveCodeBench's harness may judge otherwise: {'; '.join(counts)}."] * bool(counts) + [
        f"Programs that import what the sandbox does not have, and so fail: {', '.join(packages)}."
    ] * bool(packages)


def notes(results: RerankResults) -> list[str]:
    """What is special about this pool and its scores, a line each: nothing is left out in silence."""
    pool, graded = results.graded.pool, results.graded
    found = [without_solution(pool.num_empty, len(pool.problems))] if results.curves else []
    if graded.num_unmeasured:
        what = "reference answer or hidden tests" if graded.has_tests else "reference answer"
        lack = f"{graded.num_unmeasured:,} of {len(pool.problems):,} problems have no {what}"
        done = "not measured" if results.curves else "there is nothing to measure"
        found.append(
            f"{lack}: solutions are selected, but {done}. Give the answers in the pool, or name their task (--task)."
        )
    if results.smaller:
        sizes = [len(graded.grades[i]) for i in graded.measured if graded.grades[i]]
        counts = ", ".join(f"{count:,} at n = {n}" for n, count in results.smaller.items())
        found.append(
            f"The problems have {min(sizes):,} to {max(sizes):,} solutions. At each n, a problem with fewer uses all "
            f"of them: {counts} (of {len(graded.measured):,})."
        )
    found += unguarded(results.sandbox, [entry.problem for entry in pool.problems]) + unlike_the_benchmark([graded])
    found += [f"Aggregator of {prm}: {choice}." for prm, choice in results.own_aggregator.items()]
    found += [f"{prm}: {verdicts_in_words(said)}" for prm, said in results.critics.items()]
    return [note for note in found if note]


def _draw_methods(results: RerankResults, report: Report) -> None:
    """As in the paper: accuracy against n, a line per PRM, and the vote that needs no PRM beside them."""
    systems = list(results.scores)
    methods = WITH_PRM if systems else ("majority",)
    style = styles([*systems, "majority", "oracle", "mean"])
    caption = "Expected accuracy against the number of solutions; bands are 95 % intervals."
    if systems:
        own = "; ".join(f"{prm}: {choice}" for prm, choice in results.own_aggregator.items())
        caption += f" Step scores become a solution's score by: {own}."
    shown = [*systems, "majority vote", "oracle", "one solution"]
    alt = f"Accuracy against n of {' and '.join(TITLES[method] for method in methods)}: {', '.join(shown)}"
    with report.figure("accuracy", caption=caption, alt=alt, size=_SIZE, panels=len(methods)) as panels:
        for axes, method in zip(panels, methods, strict=True):

            def plain(method: str, axes: Any = axes, *, band: bool = not systems) -> None:
                draw_curve(axes, results.ns, results.curve(method).points, TITLES[method], style[method], band=band)

            plain("oracle")
            for prm in systems:
                curve = results.curve(method, prm, results.own_aggregator[prm].value)
                draw_curve(axes, results.ns, curve.points, prm, style[prm])
            plain("majority")
            plain("mean", band=False)
            finish(axes, "solutions drawn, n", "accuracy (%)", title=TITLES[method], ns=results.ns)


def row_name(curve: Curve, *, with_aggregator: bool) -> str:
    """How a way to select is called in tables."""
    parts = (curve.prm, TITLES[curve.method], curve.aggregator if with_aggregator else "")
    return " · ".join(part for part in parts if part)


def _add_example(results: RerankResults, report: Report) -> None:
    """A wrong solution, with what every PRM says of its steps."""
    entries = [(entry.problem.text, one) for entry in results.graded.pool.problems for one in entry.solutions]
    grades = [grade for of_problem in results.graded.grades for grade in of_problem]
    wrong = [i for i, grade in enumerate(grades) if grade.correct is False]
    scores = {}
    for prm, own in results.scores.items():
        how = results.own_aggregator[prm].value
        scores[prm] = np.array([np.nan if (s := own[i]) is None else solution_score(s, how) for i in wrong])
    found = most_telling(scores, [sum(map(len, entries[i][1].steps)) for i in wrong])
    if found is not None:
        at = wrong[found]
        problem, solution = entries[at]
        said = {prm: one.tolist() for prm, own in results.scores.items() if (one := own[at]) is not None}
        report.example(problem, solution.steps, said, caption=telling("wrong solution", list(scores)))


def _compare_aggregators(results: RerankResults, report: Report) -> None:
    """Which aggregator to use with a PRM."""
    report.text("## Other aggregators")
    style = styles([*results.aggregators, "majority"])
    majority = results.curve("majority").points
    for i, prm in enumerate(results.scores, 1):
        caption = f"{prm}, by aggregator."
        alt = f"Accuracy against n of {prm} by aggregator: {', '.join(results.aggregators)}"
        with report.figure(f"aggregators-{i}", caption=caption, alt=alt, size=_SIZE, panels=len(WITH_PRM)) as panels:
            for axes, method in zip(panels, WITH_PRM, strict=True):
                for how in results.aggregators:
                    points = results.curve(method, prm, how).points
                    draw_curve(axes, results.ns, points, how, style[how], band=False)
                draw_curve(axes, results.ns, majority, TITLES["majority"], style["majority"], band=False)
                title = f"{prm}: {TITLES[method]}"
                finish(axes, "solutions drawn, n", "accuracy (%)", title=title, ns=results.ns)
    rows = [
        [row_name(curve, with_aggregator=True), *(percent(point.value) for point in curve.points)]
        for curve in results.curves
        if curve.prm
    ]
    headers = ["selection", *(f"n = {n}" for n in results.ns)]
    report.table(headers, rows, caption="Every aggregator: expected accuracy (%) ↑", best="columns")


def _cell(found: Difference) -> str:
    return f"{signed_percent(found.gain)} (p {p_value(found.gain.p)})"


def _tabulate_differences(results: RerankResults, differences: Sequence[Difference], report: Report) -> None:
    """Does a PRM help at all, and is one better than another?"""
    most = results.ns[-1]
    at_most = {(d.a, d.aggregator, d.method): d for d in differences if d.n == most and not d.b}
    gains = [
        [f"{prm} · {how}", *(_cell(at_most[prm, how, method]) for method in WITH_PRM)]
        for prm in results.scores
        for how in results.aggregators
    ]
    if gains:
        headers = ["PRM · aggregator", *(TITLES[method] for method in WITH_PRM)]
        caption = f"Gain over the majority vote at n = {most} (percentage points, paired) ↑"
        report.table(headers, gains, caption=caption, best="columns")
    rows: dict[str, list[str]] = {}
    for found in differences:
        if found.b:
            hows = dict.fromkeys([found.aggregator, found.b_aggregator])  # two where each has its own
            name = f"{found.a} − {found.b} · {TITLES[found.method]} · {' − '.join(hows)}"
            is_last = found.n == results.ns[-1]
            rows.setdefault(name, [name]).append(_cell(found) if is_last else signed_percent(found.gain.difference))
    if rows:
        headers = ["difference", *(f"n = {n}" for n in results.ns)]
        caption = "PRMs compared on the same pool (percentage points, paired), at the last n with its 95 % interval"
        report.table(headers, list(rows.values()), caption=caption)


def answer_counts(pools: Sequence[GradedPool]) -> dict[str, int]:
    """How answers were found, and how they were judged."""
    counts: Counter[str] = Counter()
    for pool in pools:
        for about, words in (("method", "found by"), ("status", "judged")):
            counts.update({f"{words}: {value}": count for value, count in pool.count(about).items()})
    return dict(counts)


def add_answers(report: Report, pools: Sequence[GradedPool], unscored: dict[str, int] | None = None) -> None:
    """How answers were found, and what could not be judged: never silent."""
    counts = dict(sorted(answer_counts(pools).items(), key=lambda one: (one[0].split(":")[0], -one[1])))
    total = sum(len(pool.pool.solutions) for pool in pools)
    caption = "How answers were found, and how they were judged"
    report.counts("answers", counts | (unscored or {}), caption=caption, unit="solutions", of=total)
    report.text(
        '"last number" is a guess, for solutions that state no answer. An answer whose comparison ran out of time '
        '("timeout"), failed ("error") or was too long was compared as text only. A program with one of these, or that '
        'took too much memory or printed too much, did not pass; "ok" ran to its end, right or wrong.'
    )
