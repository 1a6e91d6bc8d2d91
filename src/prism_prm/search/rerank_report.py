"""The results of re-ranking a pool: `curves.parquet`, `metrics.json` and the report."""

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
from prism_prm.search.adaptive_pool import CHARACTERS, AdaptiveResult
from prism_prm.search.controls import ALPHA, Controls, tabulate_adjusted, warnings
from prism_prm.search.curves import WITH_PRM, Curve, count_smaller
from prism_prm.search.grade_pool import GradedPool, StepScores, write_table
from prism_prm.search.select import Selection
from prism_prm.stats import Comparison, Interval


@dataclass(frozen=True, slots=True)
class Difference:
    """The accuracy of A minus that of B, with the same method and n, on the same draws."""

    a: str
    b: str
    """A PRM, or "" for the majority vote."""
    method: str
    aggregator: str
    b_aggregator: str
    """That of A, unless each PRM uses its own; "" for the majority vote."""
    n: int
    gain: Comparison


@dataclass(frozen=True, slots=True)
class Selector:
    """A way to select one of all solutions of a problem."""

    method: str
    prm: str
    aggregator: str
    accuracy: Interval
    gain: Comparison | None
    """Its accuracy minus that of the majority vote, paired; None for the majority vote itself."""
    tokens: float
    """Per problem, written by the policy and read by the scorer; estimated by characters where they are not counted."""


@dataclass(frozen=True, slots=True)
class RerankResults:
    """The selected solutions of a pool, and their accuracy."""

    title: str
    graded: GradedPool
    scores: Mapping[str, StepScores]
    """By PRM."""
    curves: Sequence[Curve]
    """Empty if no problem has a reference answer."""
    aggregators: Sequence[str]
    own_aggregator: Mapping[str, Choice[str]]
    """By PRM, the aggregator that selects, and the reason for it."""
    selections: Sequence[Selection]
    """The solution that each rule selects from all solutions of each problem."""
    num_draws: int
    sandbox: str = "auto"
    """The sandbox setting."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """By PRM, the tokens behind its scores: read by a PRM, read and written by a critic. Not for scores from a file."""
    critics: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """By critic, its settings and cost."""
    controls: Controls = field(default_factory=Controls)
    """Rules that select without reading, by length, order or source, and how close PRMs are to them."""
    adaptive: Sequence[AdaptiveResult] = ()
    """Adaptive budgets, simulated."""
    num_members: Mapping[str, int] = field(default_factory=dict)
    """The number of members of each ensemble of other scores."""

    @property
    def ns(self) -> tuple[int, ...]:
        """The numbers of solutions drawn."""
        return self.curves[0].ns if self.curves else ()

    @property
    def smaller(self) -> dict[int, int]:
        """By n, the number of measured problems with fewer solutions, which use all of them."""
        return count_smaller(self.graded, self.ns)

    def curve(self, method: str, prm: str = "", aggregator: str = "") -> Curve:
        """The curve of one selection rule."""
        wanted = (method, prm, aggregator)
        return next(curve for curve in self.curves if (curve.method, curve.prm, curve.aggregator) == wanted)

    @property
    def own_curves(self) -> list[Curve]:
        """The curves without a PRM, and those of each PRM with its own aggregator."""
        return [c for c in self.curves if not c.prm or c.aggregator == self.own_aggregator[c.prm].value]

    def num_unscored(self, prm: str) -> int:
        """The number of solutions without a score from a PRM."""
        return sum(own is None for own in self.scores[prm])

    def differences(self) -> list[Difference]:
        """Every PRM compared with the majority vote, and every later PRM with every earlier one."""
        prms = list(self.scores) if self.curves else []
        pairs = [(prm, "") for prm in prms] + [(a, b) for i, b in enumerate(prms) for a in prms[i + 1 :]]
        found = []
        for a, b in pairs:
            # First each PRM with its own aggregator, if these differ; then both with the same one.
            if b:
                own = (self.own_aggregator[a].value, self.own_aggregator[b].value)
                compared = [own] * (own[0] != own[1]) + [(name, name) for name in self.aggregators]
            else:
                compared = [(name, "") for name in self.aggregators]
            for mine, theirs in compared:
                for method in WITH_PRM:
                    curve = self.curve(method, a, mine)
                    other = self.curve(method, b, theirs) if b else self.curve("majority")
                    found += [Difference(a, b, method, mine, theirs, n, curve.minus(other, n)) for n in self.ns]
        return found

    def selectors(self) -> list[Selector]:
        """Every way to select one of all solutions, in order: without a scorer, by each scorer, and the oracle."""
        majority, most = self.curve("majority"), self.ns[-1]
        own = [curve for curve in self.own_curves if curve.method != "public-tests"]
        pool = self.graded.pool
        written = sum(len(step) for solution in pool.solutions for step in solution.steps) // CHARACTERS
        asked = sum(len(entry.problem.text) * len(entry.solutions) for entry in pool.problems) // CHARACTERS
        found = []
        for curve in sorted(own, key=lambda curve: curve.method == "oracle"):
            tokens = float(written)
            if curve.method == "mean":
                tokens = written * len(pool.problems) / max(1, len(pool.solutions))
            elif curve.prm:
                tokens += self.tokens.get(curve.prm, (written + asked) * self.num_members.get(curve.prm, 1))
            gain = None if curve.method == "majority" else curve.minus(majority, most)
            found.append(
                Selector(curve.method, curve.prm, curve.aggregator, curve.points[-1], gain, tokens / len(pool.problems))
            )
        return found

    def metrics(self, differences: Sequence[Difference]) -> dict[str, Any]:
        """The content of `metrics.json`."""
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
            "curves": [row for curve in self.curves for row in curve.rows()],
            "differences": [
                {key: value for key, value in asdict(difference).items() if key != "gain"} | asdict(difference.gain)
                for difference in differences
            ],
            "selectors": [asdict(selector) for selector in self.selectors()] if self.curves else [],
            "adaptive": [asdict(result) for result in self.adaptive],
            "controls": self.controls.metrics(),
        }

    def write_curves(self, path: str | Path) -> None:
        """Write `curves.parquet`, with the expected accuracy of every problem (null: not measured); if nothing is
        measured, remove that of an earlier run."""
        rows = []
        for curve in self.curves:
            for row, values in zip(curve.rows(), curve.values, strict=True):
                known = dict(zip(self.graded.measured, values.tolist(), strict=True))
                rows.append(row | {"by_problem": [known.get(problem) for problem in range(len(self.graded.grades))]})
        if rows:
            write_table(rows, path)
        else:
            Path(path).unlink(missing_ok=True)


TITLES = {
    "mean": "one solution (pass@1)",
    "majority": "majority vote",
    "oracle": "oracle (pass@n)",
    "best-of-n": "Best-of-n",
    "weighted": "weighted vote",
    "public-tests": "public tests first",
    "fewest-steps": "control: fewest steps",
    "most-steps": "control: most steps",
    "shortest": "control: shortest",
    "longest": "control: longest",
    "first": "control: first in the pool",
    "source-only": "control: by source alone",
}
_SIZE = (4.4, 3.7)
"""The size of a figure in inches; taller than most, for the long legend."""


def make_report(results: RerankResults) -> Report:
    """Build the report."""
    pool = results.graded.pool
    subtitle = f"{number(len(pool.problems))} problems, {number(len(pool.solutions))} solutions"
    differences = results.differences()
    report = Report(results.title, subtitle=subtitle, metrics=results.metrics(differences))
    report.finding = "Every rule selected one solution of each problem; see `selected.jsonl`."
    if results.curves:
        report.finding = _finding(results)
        if results.scores:
            _tabulate_selectors(results, report)
        _draw_methods(results, report)
        rows = []
        for curve in [*results.own_curves, *results.controls.curves]:
            *others, last = curve.points
            cells = [row_name(curve, with_aggregator=False), *(percent(point.value) for point in others), percent(last)]
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
        tabulate_adjusted(report, results.controls.adjusted)
        if results.scores and len(results.aggregators) > 1:
            _compare_aggregators(results, report)
        if results.adaptive:
            _tabulate_adaptive(results, report)
    selected: dict[str, list[int]] = {}
    for selection in results.selections:
        counts = selected.setdefault(joined(selection.prm, TITLES[selection.rule]), [0, 0, 0])
        counts[0] += selection.solution is not None
        counts[1] += selection.answer is not None
        counts[2] += selection.solution is None
    report.table(
        ["rule", "selected", "with an answer", "nothing to select"],
        [[name, *map(number, counts)] for name, counts in selected.items()],
        caption="Problems with a selected solution; `selected.jsonl` lists the selections",
    )
    unscored = {f"no score from {prm}": results.num_unscored(prm) for prm in results.scores}
    add_answers(report, [results.graded], unscored)
    if results.curves:
        report.text(f"""
## How to read this

Each value is the **expected accuracy of selecting one answer from n solutions**, over all ways to draw n of a problem's
solutions: exact for one solution, Best-of-n and the oracle; for the votes the mean of {number(results.num_draws)}
seeded draws. Intervals are 95 % bootstrap intervals over problems; comparisons are paired, on the same problems and
draws. Ties go to the solution, or the group of equal answers, that was drawn first. A vote adds the scores of
solutions with equivalent answers; solutions without an answer cast no vote. **Controls** select without reading, by
length, by order, or by source (the one that is right most often on the other problems): a PRM has to beat them.
`adjusted-min` is `min` to the power 1 / (1 + 1/2 + … + 1/k) for k steps, which takes away the advantage of short
solutions.
""")
    return report


def _finding(results: RerankResults) -> str:
    """The best rule by scores at the largest n and those that need none, best first; and whether scores add anything
    to a vote."""
    most, single, majority = results.ns[-1], results.curve("mean"), results.curve("majority")
    own = [curve for curve in results.own_curves if curve.prm and curve.method in WITH_PRM]
    if not own:
        most_votes, one, oracle = (
            percent(curve.points[-1].value) for curve in (majority, single, results.curve("oracle"))
        )  # fmt: skip
        return f"Of {most} solutions, the majority vote {most_votes} %, one solution {one} % and the oracle {oracle} %."
    best = max(own, key=lambda curve: curve.points[-1].value)
    gain = best.minus(majority, most)
    vote = max((curve for curve in own if curve.method == "weighted"), key=lambda curve: curve.points[-1].value)
    added = vote.minus(majority, most)
    beats = _verdict(gain, len(own), "beats the vote", "does not demonstrably beat the vote")
    adds = _verdict(added, len(own) // 2, "add to the vote", "do not demonstrably add to the vote")
    name = f"the {TITLES[best.method]} by {escaped(best.prm)}"
    compared = [("the majority vote", majority), (name, best), ("one solution", single)]
    (first, accuracy), *others = (
        (rule, percent(curve.points[-1].value))
        for rule, curve in sorted(compared, key=lambda entry: -entry[1].points[-1].value)
    )
    return (
        f"Of {most} solutions, {first} is right on {accuracy} % of the problems, "
        f"{' and '.join(f'{rule} on {value} %' for rule, value in others)}. {name[0].upper()}{name[1:]} {beats}. As "
        f"weights, the scores of {escaped(vote.prm)} {adds}."
    )


def _verdict(gain: Comparison, num_tests: int, yes: str, no: str) -> str:
    """A claim with its interval; the best of several rules needs a smaller p (Bonferroni)."""
    p = min(1.0, gain.p * num_tests)
    return f"{yes if gain.difference > 0 and p < ALPHA else no} ({signed_percent(gain)}, corrected p {p_value(p)})"


def _tabulate_selectors(results: RerankResults, report: Report) -> None:
    """Add the table that answers whether a scorer pays."""
    rows = [
        [
            joined(one.prm, TITLES[one.method]), percent(one.accuracy),
            NO_DATA if one.gain is None else _signed(one.gain), number(round(one.tokens)),
        ]
        for one in results.selectors()
    ]  # fmt: skip
    report.table(
        ["selection", "accuracy (%) ↑", "− majority vote ↑", "tokens per problem ↓"],
        rows,
        caption=(
            f"Does a scorer pay? Selecting one of {results.ns[-1]} solutions, with 95 % intervals over problems; "
            "differences are paired. Tokens are written by the policy and read by the scorer, at four characters each "
            "where they were not counted"
        ),
    )


def _signed(gain: Comparison) -> str:
    return f"{signed_percent(gain)} (p {p_value(gain.p)})"


def _tabulate_adaptive(results: RerankResults, report: Report) -> None:
    """Add the table of adaptive budgets."""
    report.text("## Adaptive budgets")
    rows = [
        [
            joined(one.prm, one.rule), f"{one.solutions.value:.1f}",
            percent(one.saved), percent(one.accuracy), _signed(one.over_full), _signed(one.over_fixed),
            percent(one.differing),
        ]
        for one in results.adaptive
    ]  # fmt: skip
    report.table(
        [
            "rule", "solutions drawn", "tokens saved (%) ↑", "accuracy (%) ↑", "− full budget ↑", "− fixed budget ↑",
            "other answer (%) ↓",
        ],
        rows,
        caption=(
            f"Votes with an adaptive budget of at most {results.ns[-1]} solutions, simulated in random orders; tokens "
            "are those that the policy writes. The fixed budget draws as many solutions for every problem. Other "
            "answer: the share of problems whose answer is not that of the full budget"
        ),
    )  # fmt: skip


def no_solution_note(count: int, total: int) -> str:
    """A note on the number of problems without a solution; "" if there are none."""
    return f"{count:,} of {total:,} problems have no solution and count as unsolved." if count else ""


def harness_notes(pools: Sequence[GradedPool]) -> list[str]:
    """Notes on programs that the benchmark's own harness may judge differently."""
    programs = [
        (entry.problem.tests, grade.answer)
        for graded in pools
        for entry, grades in zip(graded.pool.problems, graded.grades, strict=True)
        for grade in grades
    ]
    counts = [f"{count:,} {what}" for what, count in count_quirks(programs).items()]
    packages = [f"{name} {count:,}" for name, count in count_packages(programs).most_common(10)]
    return [f"Programs that LiveCodeBench's harness may judge differently: {'; '.join(counts)}."] * bool(counts) + [
        f"Programs that import packages which the sandbox does not have, and so fail: {', '.join(packages)}."
    ] * bool(packages)


def notes(results: RerankResults) -> list[str]:
    """Notes on this pool and its scores, one line each, so that nothing is left out silently."""
    pool, graded = results.graded.pool, results.graded
    lines = [no_solution_note(pool.num_empty, len(pool.problems))] if results.curves else []
    if graded.num_unmeasured:
        what = "reference answer or hidden tests" if graded.has_tests else "reference answer"
        lack = f"{graded.num_unmeasured:,} of {len(pool.problems):,} problems have no {what}"
        done = "not measured" if results.curves else "there is nothing to measure"
        lines.append(
            f"{lack}: solutions are selected, but {done}. Add the answers to the pool, or name their task with --task."
        )
    if results.smaller:
        sizes = [len(graded.grades[i]) for i in graded.measured if graded.grades[i]]
        counts = ", ".join(f"{count:,} at n = {n}" for n, count in results.smaller.items())
        lines.append(
            f"The problems have {min(sizes):,} to {max(sizes):,} solutions. At each n, a problem with fewer uses all "
            f"of them: {counts} (of {len(graded.measured):,})."
        )
    lines += unguarded(results.sandbox, [entry.problem for entry in pool.problems]) + harness_notes([graded])
    lines += [f"Aggregator of {prm}: {choice}." for prm, choice in results.own_aggregator.items()]
    lines += [f"{prm}: {verdicts_in_words(summary)}" for prm, summary in results.critics.items()]
    lines += warnings(results.controls.agreements)
    return [line for line in lines if line]


def _draw_methods(results: RerankResults, report: Report) -> None:
    """Draw accuracy against n: a line per PRM, and the rules that need no PRM."""
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
    """The name of a selection rule in tables."""
    return joined(curve.prm, TITLES[curve.method], curve.aggregator if with_aggregator else "")


def joined(*parts: str) -> str:
    """A name of several parts, without empty ones."""
    return " · ".join(filter(None, parts))


def _add_example(results: RerankResults, report: Report) -> None:
    """Add a wrong solution with every PRM's step scores."""
    problems = results.graded.pool.problems
    solutions = [(entry.problem.text, solution) for entry in problems for solution in entry.solutions]
    grades = [grade for own in results.graded.grades for grade in own]
    wrong = [i for i, grade in enumerate(grades) if grade.correct is False]
    scores = {}
    for prm, own in results.scores.items():
        aggregator = results.own_aggregator[prm].value
        scores[prm] = np.array(
            [np.nan if (s := own[i]) is None else solution_score(s, aggregator, solutions[i][1].steps) for i in wrong]
        )
    chosen = most_telling(scores, [sum(map(len, solutions[i][1].steps)) for i in wrong])
    if chosen is not None:
        problem, solution = solutions[wrong[chosen]]
        step_scores = {
            prm: steps.tolist() for prm, own in results.scores.items() if (steps := own[wrong[chosen]]) is not None
        }
        report.example(problem, solution.steps, step_scores, caption=telling("wrong solution", list(scores)))


def _compare_aggregators(results: RerankResults, report: Report) -> None:
    """Add figures and a table of every PRM by aggregator."""
    report.text("## Other aggregators")
    style = styles([*results.aggregators, "majority"])
    majority = results.curve("majority").points
    for i, prm in enumerate(results.scores, 1):
        caption = f"{prm}, by aggregator."
        alt = f"Accuracy against n of {prm} by aggregator: {', '.join(results.aggregators)}"
        with report.figure(f"aggregators-{i}", caption=caption, alt=alt, size=_SIZE, panels=len(WITH_PRM)) as panels:
            for axes, method in zip(panels, WITH_PRM, strict=True):
                for aggregator in results.aggregators:
                    points = results.curve(method, prm, aggregator).points
                    draw_curve(axes, results.ns, points, aggregator, style[aggregator], band=False)
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


def _tabulate_differences(results: RerankResults, differences: Sequence[Difference], report: Report) -> None:
    """Add tables of the PRMs' gains over the majority vote, and over each other."""
    most = results.ns[-1]
    over_majority = {(d.a, d.aggregator, d.method): d for d in differences if d.n == most and not d.b}
    gains = [
        [f"{prm} · {aggregator}", *(_signed(over_majority[prm, aggregator, method].gain) for method in WITH_PRM)]
        for prm in results.scores
        for aggregator in results.aggregators
    ]
    if gains:
        headers = ["PRM · aggregator", *(TITLES[method] for method in WITH_PRM)]
        caption = f"Gain over the majority vote at n = {most} (percentage points, paired) ↑"
        report.table(headers, gains, caption=caption, best="columns")
    rows: dict[str, list[str]] = {}
    for difference in differences:
        if difference.b:
            aggregators = dict.fromkeys([difference.aggregator, difference.b_aggregator])  # two if each uses its own
            name = f"{difference.a} − {difference.b} · {TITLES[difference.method]} · {' − '.join(aggregators)}"
            cell = _signed(difference.gain) if difference.n == most else signed_percent(difference.gain.difference)
            rows.setdefault(name, [name]).append(cell)
    if rows:
        headers = ["difference", *(f"n = {n}" for n in results.ns)]
        caption = "PRMs compared on the same pool (percentage points, paired), at the last n with its 95 % interval"
        report.table(headers, list(rows.values()), caption=caption)


def answer_counts(pools: Sequence[GradedPool]) -> dict[str, int]:
    """How answers were found, and how they were judged."""
    counts: Counter[str] = Counter()
    for pool in pools:
        for name, words in (("method", "found by"), ("status", "judged")):
            counts.update({f"{words}: {value}": count for value, count in pool.count(name).items()})
    return dict(counts)


def add_answers(report: Report, pools: Sequence[GradedPool], unscored: dict[str, int] | None = None) -> None:
    """Add the table of how answers were found and judged."""
    counts = dict(sorted(answer_counts(pools).items(), key=lambda item: (item[0].split(":")[0], -item[1])))
    total = sum(len(pool.pool.solutions) for pool in pools)
    caption = "How answers were found, and how they were judged"
    report.counts("answers", counts | (unscored or {}), caption=caption, unit="solutions", of=total)
    report.text(
        '"last number" is a guess for solutions that state no answer. An answer whose comparison ran out of time '
        '("timeout"), failed ("error") or was too long was compared only as text. A program with one of these, or that '
        'used too much memory or printed too much, did not pass; "ok" means that it ran to its end, right or wrong.'
    )
