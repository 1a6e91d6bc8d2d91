"""ROC dominance: when does PRM A have an FPR no higher than PRM B's at EVERY TPR?

The paper assumes that A's scores are B's shifted by a constant: right steps up by δ, wrong steps down by δ. Scores in
[0, 1] cannot be shifted like that: the highest right score would leave the interval. Three statements do hold.

1. ROC curves do not change under an increasing map of a model's scores, so the shift may be on the log-odds, which have
   no bounds.
2. If on some common scale A's right scores are B's plus δ₁ and A's wrong scores are B's minus δ₂, then A dominates
   iff δ₁ + δ₂ ≥ 0: at TPR ρ the threshold moves by δ₁, so FPR_A(ρ) = P(wrong_B > τ_B(ρ) + δ₁ + δ₂).
3. With no shift at all: place each wrong step among the right ones, V = share of right steps that score higher. FPR at
   TPR ρ is P(V < ρ), so A dominates B iff V_A is stochastically larger than V_B: exactly, for any scores and any ties.

`check_dominance` measures 3, with intervals; `check_shift` measures how far 1 and 2 are from true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.evaluate.benchmarks import find_benchmark
from prism_prm.evaluate.compare import load_runs, load_steps, shared_benches
from prism_prm.evaluate.measure import Steps
from prism_prm.metrics import Ranking
from prism_prm.report import NO_DATA, STYLES, Report, finish, number, percent, signed_percent
from prism_prm.stats import cluster_draws

LEVELS = np.linspace(0.01, 0.99, 99)
"""The TPRs at which curves are compared."""


def fpr_at_tprs(tp: Floats, fp: Floats) -> Floats:
    """The FPR at the highest threshold that reaches each TPR of LEVELS."""
    first = np.searchsorted(tp, LEVELS * tp[-1] - 1e-9 * tp[-1])
    return np.asarray(fp[first] / fp[-1])


VERDICTS = {
    "A dominates": "{a} dominates: its FPR is never higher, and significantly lower at some TPRs",
    "A mostly": "{a} is lower wherever the two differ significantly, but not lower everywhere",
    "B dominates": "{b} dominates: its FPR is never higher, and significantly lower at some TPRs",
    "B mostly": "{b} is lower wherever the two differ significantly, but not lower everywhere",
    "neither": "neither dominates: each is significantly lower at some TPRs",
    "undecided": "undecided: the two differ significantly nowhere",
}
"""Verdict → meaning."""


@dataclass(frozen=True)
class Dominance:
    """FPR of A minus FPR of B at the TPRs in LEVELS; negative is better."""

    fpr_a: Floats
    fpr_b: Floats
    low: Floats
    high: Floats
    """A simultaneous 95 % band for all levels (bootstrap of the largest deviation, by cluster)."""
    worst: float
    """The largest difference: dominance needs ≤ 0."""
    verdict: str
    """One of VERDICTS, by the band."""


def check_dominance(
    right: Bools, scores_a: Floats, scores_b: Floats, clusters: Ints, *, num_draws: int = 500, seed: int = 0
) -> Dominance:
    """Compare two ROC curves over the same steps; needs right and wrong steps."""
    assert right.any(), "no right step"
    assert not right.all(), "no wrong step"
    ranking_a, ranking_b = Ranking.of(right, scores_a), Ranking.of(right, scores_b)
    fpr_a, fpr_b = (fpr_at_tprs(*ranking.cumulative()) for ranking in (ranking_a, ranking_b))
    difference = fpr_a - fpr_b
    sorted_a, sorted_b = clusters[ranking_a.order], clusters[ranking_b.order]
    deviations = []
    for draw in cluster_draws(int(clusters.max()) + 1, num_draws, seed):
        curve_a, curve_b = ranking_a.cumulative(draw[sorted_a]), ranking_b.cumulative(draw[sorted_b])
        if curve_a[0][-1] > 0 and curve_a[1][-1] > 0:
            deviations.append(fpr_at_tprs(*curve_a) - fpr_at_tprs(*curve_b) - difference)
    spread = np.std(deviations, axis=0)
    # Studentized, so that the flat ends of the curves do not get the width of the middle.
    scaled = np.abs(deviations) / np.where(spread > 0, spread, 1)
    half = float(np.quantile(scaled.max(axis=1), 0.95)) * spread
    low, high = difference - half, difference + half
    return Dominance(fpr_a, fpr_b, low, high, float(difference.max()), _verdict(difference, low, high))


def _verdict(difference: Floats, low: Floats, high: Floats) -> str:
    worse, better = bool((low > 0).any()), bool((high < 0).any())
    if worse and better:
        return "neither"
    if better:
        return "A dominates" if (difference <= 0).all() else "A mostly"
    if worse:
        return "B dominates" if (difference >= 0).all() else "B mostly"
    return "undecided"


@dataclass(frozen=True)
class Shift:
    """How well "A's scores are B's plus a constant" fits one kind of step."""

    delta: float
    """The shift that fits best: the median difference of quantiles, A − B."""
    distance: float
    """Kolmogorov–Smirnov distance after the shift; 0 for a pure shift."""
    unshifted: float
    """The distance before the shift."""
    room: float
    """How far B's scores could move in this direction without leaving [0, 1]; infinite on log-odds."""


def check_shift(scores_a: Floats, scores_b: Floats, *, direction: int, bounded: bool) -> Shift:
    """Fit a shift of B's scores onto A's; `direction` is +1 for right steps and −1 for wrong ones."""
    levels = np.linspace(0.005, 0.995, 199)
    delta = float(np.median(np.quantile(scores_a, levels) - np.quantile(scores_b, levels)))
    room = float("inf")
    if bounded:
        room = float(1 - scores_b.max()) if direction > 0 else float(scores_b.min())
    return Shift(delta, ks_distance(scores_a, scores_b + delta), ks_distance(scores_a, scores_b), room)


def ks_distance(a: Floats, b: Floats) -> float:
    """The largest difference between two empirical distribution functions."""
    at = np.concatenate([a, b])
    below_a = np.searchsorted(np.sort(a), at, side="right") / len(a)
    below_b = np.searchsorted(np.sort(b), at, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def log_odds(probability: Floats, limit: float = 1e-6) -> Floats:
    """The log-odds of probabilities, clipped by `limit`: rounding can make them 0 or 1."""
    clipped = np.clip(probability, limit, 1 - limit)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def add_runs(report: Report, folders: Sequence[str], *, seed: int = 0) -> None:
    """Add a section on ROC dominance for each benchmark that two runs of `prism eval` share; A is the first run."""
    runs = load_runs(folders)
    first, second = (run.name for run in runs)
    report.text("""
## ROC dominance

The paper's theorem assumes that pairwise training shifts all right steps up by δ and all wrong steps down by δ. Scores
in [0, 1] cannot shift like that: the best right steps have no room. What holds instead:

1. ROC curves do not change under an increasing map, so the shift may be on the log-odds.
2. If right steps shift up by δ₁ and wrong ones down by δ₂ on a common scale, then A dominates iff δ₁ + δ₂ ≥ 0.
3. With no shift at all, A's FPR is no higher at every TPR iff the share of right steps that score above a wrong step
   is stochastically larger under A. That is exact, and it is what the figures show.
""")
    for bench in shared_benches(runs)[0]:
        benchmark = find_benchmark(bench)
        steps = {name: benchmark.in_total(own) for name, own in load_steps(runs, bench).items()}
        add_dominance(report, bench, first, second, steps[first], steps[second], seed=seed)


def add_dominance(report: Report, bench: str, name_a: str, name_b: str, a: Steps, b: Steps, *, seed: int = 0) -> None:
    """Add a section on A (e.g. pairwise training) against B (e.g. pointwise) over the same steps."""
    judged = a.judged & b.judged
    if a.hard or b.hard or not a.right[judged].any() or not a.wrong[judged].any():
        report.text(f"### {bench}\n\nNot checked: it needs scores, and both right and wrong steps.")
        return
    right = a.right[judged]
    problems, clusters = np.unique(a.step_cluster[judged], return_inverse=True)
    found = check_dominance(right, a.probability[judged], b.probability[judged], clusters, seed=seed)
    best = float((found.fpr_a - found.fpr_b).min())
    report.text(f"""
### {bench}: {name_a} against {name_b}

At equal TPR, **{VERDICTS[found.verdict].format(a=name_a, b=name_b)}**. FPR of {name_a} minus FPR of {name_b}
is {signed_percent(found.worst)} points at worst and {signed_percent(best)} at best, over {len(problems):,}
problems.
""")
    rows = []
    for scale, bounded, transform in (("probability", True, lambda x: x), ("log-odds", False, log_odds)):
        for kind, direction in (("right", 1), ("wrong", -1)):
            mask = (a.right if kind == "right" else a.wrong) & judged
            shift = check_shift(
                transform(a.probability[mask]), transform(b.probability[mask]), direction=direction, bounded=bounded
            )
            room = number(shift.room) if bounded else NO_DATA
            cells = (f"{shift.delta:+.3f}", room, number(shift.unshifted), number(shift.distance))
            rows.append([f"{kind} steps, {scale}", *cells])
    report.table(
        ["scores", "best shift", "room in [0, 1]", "distance before", "distance after"],
        rows,
        caption="Is it a shift? Kolmogorov–Smirnov distance of the two PRMs before and after the best shift (0: pure)",
    )
    with report.figure(
        f"dominance-{bench}",
        caption=f"FPR of {name_a} minus FPR of {name_b} at equal TPR; below zero {name_a} is better. The band is "
        "simultaneous for all TPRs.",
        alt=f"Difference of FPR between {name_a} and {name_b} over TPR: {percent(found.worst)} at worst",
    ) as axes:
        axes.fill_between(LEVELS, found.low, found.high, color=STYLES[0].color, alpha=0.2, linewidth=0)
        axes.plot(LEVELS, found.fpr_a - found.fpr_b, color=STYLES[0].color)
        axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8)
        finish(axes, "TPR (%)", "difference of FPR (points)", percent="xy")
    report.metrics.setdefault("dominance", {})[bench] = {
        "a": name_a, "b": name_b, "verdict": found.verdict, "worst": found.worst, "tpr": LEVELS,
        "fpr_a": found.fpr_a, "fpr_b": found.fpr_b, "low": found.low, "high": found.high,
    }  # fmt: skip
