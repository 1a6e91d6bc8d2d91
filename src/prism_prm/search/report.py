"""The report of a search: accuracy against n and against tokens, what it cost, and PRMs compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from prism_prm.arrays import Ints
from prism_prm.critics.ledger import verdicts_in_words
from prism_prm.graders import unguarded
from prism_prm.report import Report, escaped, label, legend, looks, number, p_value, percent, signed_percent
from prism_prm.rerank.grading import GradedPool
from prism_prm.rerank.report import unlike_the_benchmark
from prism_prm.search.experiment import Point, plain_settings
from prism_prm.search.methods import METHODS
from prism_prm.search.recipe import SearchRecipe
from prism_prm.stats import Comparison, compare_means


def differences(points: Sequence[Point], clusters: Ints) -> list[tuple[str, str, int, Comparison]]:
    """(A, B, n, A minus B on the same problems): every later PRM against every earlier one."""
    names = list(dict.fromkeys(point.prm for point in points))
    at = {(point.prm, point.n): point for point in points}
    return [
        (a, b, n, compare_means(at[a, n].correct, at[b, n].correct, clusters))
        for i, b in enumerate(names)
        for a in names[i + 1 :]
        for n in dict.fromkeys(point.n for point in points)
    ]


def make_report(
    recipe: SearchRecipe,
    task: str,
    points: Sequence[Point],
    pools: Sequence[GradedPool],
    clusters: Ints,
    critics: Mapping[str, dict[str, Any]],
) -> Report:
    """The page and its metrics; `critics` are the summaries of those PRMs that are critics."""
    found = differences(points, clusters)
    method = recipe.search.method
    report = Report(
        f"Search: {method} on {task}",
        subtitle=f"{number(len(clusters))} problems, {recipe.policy.name}, select {recipe.selector}",
        finding=_finding(method, points, found),
        metrics=_metrics(recipe, task, points, pools, found) | {"critics": dict(critics)},
    )
    problems = [entry.problem for entry in pools[0].pool.problems]
    for note in unguarded(recipe.sandbox, problems) + unlike_the_benchmark(pools):
        report.text(note)
    _draw(points, report)
    _tabulate(points, report)
    for name, said in critics.items():
        report.text(f"{escaped(name)}, on the solutions found: {verdicts_in_words(said)}")
    if found:
        rows = [
            [f"{a} − {b}", str(n), signed_percent(gain.difference, gain.low, gain.high), p_value(gain.p)]
            for a, b, n, gain in found
        ]
        report.table(["PRMs", "n", "difference", "p"], rows, caption="PRMs compared (percentage points, paired)")
    _tabulate_answers(pools, report)
    report.text(_introduction(recipe, points))
    return report


def _finding(method: str, points: Sequence[Point], found: Sequence[tuple[str, str, int, Comparison]]) -> str:
    """The best PRM at the largest n, and what it gains on the first one."""
    most = max(point.n for point in points)
    best = max((point for point in points if point.n == most), key=lambda point: point.accuracy.value)
    guided = f" guided by {escaped(best.prm)}" if best.prm else ""
    text = f"With n = {most}, {method}{guided} solves {percent(best.accuracy.value)} % of the problems"
    first = points[0].prm
    gain = next((gain for a, b, n, gain in found if (a, b, n) == (best.prm, first, most)), None)
    if gain is not None:
        difference = signed_percent(gain.difference, gain.low, gain.high)
        text += f", {difference} points compared with {escaped(first)}"
    return f"{text}."


def aggregators_used(points: Sequence[Point]) -> str:
    """How each PRM's step scores became the score of a path, and why so; "" without a PRM."""
    return "; ".join(dict.fromkeys(f"{point.prm}: {point.aggregator}" for point in points if point.aggregator))


def _introduction(recipe: SearchRecipe, points: Sequence[Point]) -> str:
    search = recipe.search
    method = METHODS[search.method]
    text = "## How to read this\n\n"
    text += f"**{search.method}**: {method.about}. Steps are sampled at temperature {search.sampling.temperature:g}. "
    if used := aggregators_used(points):
        text += f"Step scores become a path's score by: {used}. "
    if method.independent:
        text += "Each value is the expectation over all ways to draw n of the sampled solutions. "
    text += (
        "Intervals are 95 % bootstrap intervals over problems. Policy tokens include dropped beams and lookaheads. PRM "
        "tokens are those that went through the model; cached key/values are not counted again."
    )
    return text


def _draw(points: Sequence[Point], report: Report) -> None:
    names = list(dict.fromkeys(point.prm for point in points))
    look = looks([*names, "oracle"])
    panels: list[tuple[str, Callable[[Point], float]]] = [
        ("n", lambda point: point.n),
        ("policy tokens per problem", lambda point: point.policy_tokens),
    ]
    caption = "Accuracy against the size of the search and against policy tokens; bands are 95 % intervals."
    alt = f"Accuracy of {', '.join(name or 'the search' for name in names)} against n and against policy tokens"
    with report.figure("accuracy", caption=caption, alt=alt, panels=2) as axes:
        for ax, (axis, x) in zip(axes, panels, strict=True):
            for name in names:
                own = [point for point in points if point.prm == name]
                _draw_line(ax, own, x, name or "accuracy", look[name])
            first = [point for point in points if point.prm == names[0]]
            style = {"color": look["oracle"].colour, "linestyle": look["oracle"].line, "marker": look["oracle"].marker}
            values = [100 * point.oracle.value for point in first]
            ax.plot(
                [x(point) for point in first], values, label=f"oracle{f' ({names[0]})' if names[0] else ''}", **style
            )
            ax.set_xscale("log", base=2)
            ax.set_xticks([x(point) for point in first], [number(round(x(point))) for point in first])
            ax.minorticks_off()
            ax.set_xlabel(axis)
            ax.set_ylabel("accuracy (%)")
            legend(ax)


def _draw_line(ax: Any, points: Sequence[Point], x: Callable[[Point], float], name: str, look: Any) -> None:
    at = [x(point) for point in points]
    ax.plot(
        at, [100 * point.accuracy.value for point in points], label=label(name), color=look.colour, linestyle=look.line,
        marker=look.marker,
    )  # fmt: skip
    if not any(math.isnan(point.accuracy.low) for point in points):
        low, high = ([100 * getattr(point.accuracy, side) for point in points] for side in ("low", "high"))
        ax.fill_between(at, low, high, color=look.colour, alpha=0.12, linewidth=0)


def _tabulate(points: Sequence[Point], report: Report) -> None:
    rows = [
        [
            point.prm or "–", str(point.n),
            percent(point.accuracy.value, point.accuracy.low, point.accuracy.high), percent(point.oracle.value),
            number(round(point.policy_tokens)), number(round(point.prm_tokens)), number(point.solutions, 1),
            number(point.seconds, 1),
        ]
        for point in points
    ]  # fmt: skip
    headers = ["PRM", "n", "accuracy (%) ↑", "oracle (%)", "policy tokens", "PRM tokens", "solutions", "seconds"]
    caption = "Accuracy, and the budget: tokens and solutions are means per problem, seconds of the whole run"
    report.table(headers, rows, caption=caption, best="columns")
    for note in filter(None, (point.empty_note() for point in points)):
        report.text(note)


def _tabulate_answers(pools: Sequence[GradedPool], report: Report) -> None:
    """How answers were found, and what could not be judged."""
    counts = _counts(pools)
    total = sum(len(pool.pool.solutions) for pool in pools)
    rows = [[name, number(count), percent(count / total)] for name, count in counts.items()]
    report.table(["answers", "solutions", "%"], rows, caption="How answers were found, and how they were judged")


def _counts(pools: Sequence[GradedPool]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for pool in pools:
        for field, words in (("method", "found by"), ("status", "judged")):
            counts.update({f"{words}: {value}": count for value, count in pool.count(field).items()})
    return dict(counts)


def _metrics(
    recipe: SearchRecipe,
    task: str,
    points: Sequence[Point],
    pools: Sequence[GradedPool],
    found: Sequence[tuple[str, str, int, Comparison]],
) -> dict[str, Any]:
    return {
        "settings": plain_settings(recipe),
        "task": task,
        "num_problems": len(points[0].correct),
        "points": [asdict(point) for point in points],
        "differences": [{"a": a, "b": b, "n": n, **asdict(gain)} for a, b, n, gain in found],
        "answers": _counts(pools),
    }
