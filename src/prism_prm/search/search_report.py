"""The report of `prism search`: accuracy against n and against tokens, costs, and PRMs compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prism_prm.aggregate import Choice
from prism_prm.arrays import Floats, Ints
from prism_prm.backends.critic_ledger import verdicts_in_words
from prism_prm.grading.graders import unguarded
from prism_prm.report import NO_DATA, Report, draw_curve, escaped, finish, number, percent, signed_percent, styles
from prism_prm.search.controls import Controls, tabulate_adjusted, warnings
from prism_prm.search.grade_pool import GradedPool
from prism_prm.search.methods import METHODS
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.rerank_report import TITLES, add_answers, answer_counts, harness_notes, no_solution_note
from prism_prm.stats import Comparison, Interval, compare_means


@dataclass(frozen=True, slots=True)
class Point:
    """The result of one search at one size."""

    prm: str
    """"" without a PRM."""
    aggregator: Choice[str] | None
    """How step scores become those of paths and solutions; None without a PRM."""
    n: int
    accuracy: Interval
    oracle: Interval
    """How often a right solution is among those found."""
    policy_tokens: float
    """Mean per problem."""
    prm_tokens: float
    solutions: float
    """Mean per problem."""
    seconds: float
    """The time of the whole run over all problems; for independent samples, at the largest n."""
    correct: Floats
    """Whether each problem was solved, or the chance of it."""
    num_empty: int = 0
    """Problems without a solution, which count as unsolved."""

    def empty_note(self) -> str:
        """A note on problems without a solution; "" if there are none."""
        size = f"{self.prm}, n = {self.n}" if self.prm else f"n = {self.n}"
        note = no_solution_note(self.num_empty, len(self.correct))
        return note and f"{size}: {note}"


def differences(points: Sequence[Point], clusters: Ints) -> list[tuple[str, str, int, Comparison]]:
    """(A, B, n, A minus B on the same problems), for every later PRM A and earlier PRM B."""
    names = list(dict.fromkeys(point.prm for point in points))
    by_size = {(point.prm, point.n): point for point in points}
    return [
        (a, b, n, compare_means(by_size[a, n].correct, by_size[b, n].correct, clusters))
        for i, b in enumerate(names)
        for a in names[i + 1 :]
        for n in dict.fromkeys(point.n for point in points)
    ]


def make_report(
    recipe: SearchRecipe,
    task: str,
    points: Sequence[Point],
    pools: Sequence[GradedPool],
    controls: Mapping[str, Controls],
    clusters: Ints,
    critics: Mapping[str, dict[str, Any]],
) -> Report:
    """Build the report. `controls` are by pool; `critics` has the summaries of PRMs that are critics."""
    gains = differences(points, clusters)
    method = recipe.search.method
    report = Report(
        f"Search: {method} on {task}",
        subtitle=f"{number(len(clusters))} problems, {recipe.policy.name}, select {recipe.selector}",
        finding=_finding(method, points, gains),
        metrics={
            "settings": asdict(recipe) | {"select": recipe.selector, "n": recipe.ns},
            "task": task,
            "num_problems": len(points[0].correct),
            "points": [asdict(point) for point in points],
            "differences": [{"a": a, "b": b, "n": n, **asdict(gain)} for a, b, n, gain in gains],
            "answers": answer_counts(pools),
            "critics": dict(critics),
            "controls": {name: own.metrics() for name, own in controls.items()},
        },
    )
    problems = [entry.problem for entry in pools[0].pool.problems]
    report.notes(unguarded(recipe.sandbox, problems) + harness_notes(pools))
    _draw(points, report)
    rows = [
        [
            point.prm or NO_DATA, str(point.n),
            percent(point.accuracy), percent(point.oracle.value),
            number(round(point.policy_tokens)), number(round(point.prm_tokens)), number(point.solutions, 1),
            number(point.seconds, 1),
        ]
        for point in points
    ]  # fmt: skip
    headers = ["PRM", "n", "accuracy (%) ↑", "oracle (%)", "policy tokens", "PRM tokens", "solutions", "seconds"]
    caption = "Accuracy and cost; tokens and solutions are means per problem, seconds are those of the whole run"
    report.table(headers, rows, caption=caption, best="columns")
    report.notes(point.empty_note() for point in points)
    report.notes(
        f"{escaped(name)}, on the solutions found: {verdicts_in_words(summary)}" for name, summary in critics.items()
    )
    titles = {curve.method: TITLES[curve.method] for own in controls.values() for curve in own.curves}
    rows = [
        [name, str(n), *(percent(curves[rule].points[k].value) if rule in curves else NO_DATA for rule in titles)]
        for name, own in controls.items()
        for curves in [{curve.method: curve for curve in own.curves}]
        for k, n in enumerate(own.curves[0].ns)
    ]
    caption = "Accuracy (%) of rules that select from the same solutions without reading; a PRM has to beat them"
    report.table(["pool", "n", *titles.values()], rows, caption=caption)
    report.notes(line for own in controls.values() for line in warnings(own.agreements))
    tabulate_adjusted(report, [one for own in controls.values() for one in own.adjusted])
    compared = [([f"{a} − {b}", str(n)], gain) for a, b, n, gain in gains]
    report.differences(["PRMs", "n"], compared, caption="PRMs compared (percentage points, paired)")
    add_answers(report, pools)
    report.text(_introduction(recipe, points))
    return report


def _finding(method: str, points: Sequence[Point], gains: Sequence[tuple[str, str, int, Comparison]]) -> str:
    """One sentence: the best PRM at the largest n, and its gain over the first one."""
    most = max(point.n for point in points)
    best = max((point for point in points if point.n == most), key=lambda point: point.accuracy.value)
    guided = f" guided by {escaped(best.prm)}" if best.prm else ""
    text = f"With n = {most}, {method}{guided} solves {percent(best.accuracy.value)} % of the problems"
    first = points[0].prm
    gain = next((gain for a, b, n, gain in gains if (a, b, n) == (best.prm, first, most)), None)
    if gain is not None:
        text += f", {signed_percent(gain)} points compared with {escaped(first)}"
    return f"{text}."


def aggregators_used(points: Sequence[Point]) -> str:
    """The aggregator of each PRM, and the reason for it; "" without a PRM."""
    return "; ".join(dict.fromkeys(f"{point.prm}: {point.aggregator}" for point in points if point.aggregator))


def _introduction(recipe: SearchRecipe, points: Sequence[Point]) -> str:
    search = recipe.search
    method = METHODS[search.method]
    text = "## How to read this\n\n"
    text += f"**{search.method}**: {method.about}. Steps are sampled at temperature {search.sampling.temperature:g}. "
    if used := aggregators_used(points):
        text += f"Step scores become a path's score by: {used}. "
    if search.samples_once:
        text += "Each value is the expectation over all ways to draw n of the sampled solutions. "
    if not search.adaptive.is_fixed:
        text += f"The budget is adaptive (rule {search.adaptive.rule}): at most n solutions are drawn. "
        if search.adaptive.error is not None:
            counted = "weighted by scores" if search.adaptive.needs_scores else "a majority vote"
            text += (
                f"A problem ends when another answer would win with a chance of at most {search.adaptive.error:g}, by "
                f"its votes ({counted}); the selection is by {recipe.selector}. "
            )
    text += (
        "Intervals are 95 % bootstrap intervals over problems. Policy tokens include dropped beams and lookaheads. PRM "
        "tokens are those that ran through the model; cached key/values do not count again."
    )
    return text


def _draw(points: Sequence[Point], report: Report) -> None:
    by_prm: dict[str, list[Point]] = {}
    for point in points:
        by_prm.setdefault(point.prm, []).append(point)
    first, of_first = next(iter(by_prm.items()))
    style = styles([*by_prm, "oracle"])
    panels: dict[str, Callable[[Point], float]] = {
        "n": lambda point: point.n,
        "policy tokens per problem": lambda point: point.policy_tokens,
    }
    caption = "Accuracy against the size of the search and against policy tokens; bands are 95 % intervals."
    alt = f"Accuracy of {', '.join(name or 'the search' for name in by_prm)} against n and against policy tokens"
    with report.figure("accuracy", caption=caption, alt=alt, panels=len(panels)) as drawn:
        for axes, (label, x) in zip(drawn, panels.items(), strict=True):
            for name, own in by_prm.items():
                draw_curve(axes, [*map(x, own)], [point.accuracy for point in own], name or "accuracy", style[name])
            oracle = f"oracle ({first})" if first else "oracle"
            draw_curve(axes, [*map(x, of_first)], [point.oracle.value for point in of_first], oracle, style["oracle"])
            finish(axes, label, "accuracy (%)", ns=[*map(x, of_first)])
