"""Does one PRM have the lower FPR at every TPR? The paper's assumption and the exact criterion, on real scores."""

from __future__ import annotations

from collections.abc import Sequence

from prism_prm.evaluate.benchmarks import find_benchmark
from prism_prm.evaluate.compare import load_runs, load_steps, shared_benches
from prism_prm.evaluate.measure import Steps
from prism_prm.lab.theory import dominance
from prism_prm.report import NO_DATA, STYLES, Report, finish, number, percent, signed_percent


def add_runs(report: Report, folders: Sequence[str], *, seed: int = 0) -> None:
    """What the paper assumes and what holds, on each benchmark that two runs of `prism eval` share; A comes first."""
    runs = load_runs(folders)
    first, second = (run.name for run in runs)
    report.text("""
## ROC dominance

The paper's theorem assumes that training pairwise moves all right steps up by δ and all wrong steps down by δ. Scores
in [0, 1] cannot move like that: the best right steps have no room. What holds instead:

1. ROC curves do not change under an increasing map, so the shift may be on the log-odds.
2. If right steps move up by δ₁ and wrong ones down by δ₂ on a common scale, then A dominates iff δ₁ + δ₂ ≥ 0.
3. With no shift at all, A's FPR is no higher at every TPR iff the share of right steps that score above a wrong step
   is stochastically larger under A. That is exact, and it is what the figures show.
""")
    for bench in shared_benches(runs)[0]:
        benchmark = find_benchmark(bench)
        steps = {name: benchmark.in_total(own) for name, own in load_steps(runs, bench).items()}
        add_dominance(report, bench, first, second, steps[first], steps[second], seed=seed)


def add_dominance(report: Report, bench: str, name_a: str, name_b: str, a: Steps, b: Steps, *, seed: int = 0) -> None:
    """A section on A (say, pairwise training) against B (say, pointwise) over the same steps."""
    judged = a.judged & b.judged
    if a.hard or b.hard or not a.right[judged].any() or not a.wrong[judged].any():
        report.text(f"### {bench}\n\nNot checked: it needs scores, and both right and wrong steps.")
        return
    right, clusters = a.right[judged], a.step_cluster[judged]
    found = dominance.check_dominance(right, a.probability[judged], b.probability[judged], clusters, seed=seed)
    best = float((found.fpr_a - found.fpr_b).min())
    report.text(f"""
### {bench}: {name_a} against {name_b}

At equal TPR, **{dominance.VERDICTS[found.verdict].format(a=name_a, b=name_b)}**. FPR of {name_a} minus FPR of {name_b}
is {signed_percent(found.worst)} points at worst and {signed_percent(best)} at best, over {int(clusters.max()) + 1:,}
problems.
""")
    rows = []
    for scale, bounded, transform in (("probability", True, lambda x: x), ("log-odds", False, dominance.log_odds)):
        for kind, direction in (("right", 1), ("wrong", -1)):
            mask = (a.right if kind == "right" else a.wrong) & judged
            shift = dominance.check_shift(
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
        caption=f"FPR of {name_a} minus FPR of {name_b} at equal TPR; below zero {name_a} is better. The band holds "
        "for all TPRs at once.",
        alt=f"Difference of FPR between {name_a} and {name_b} over TPR: {percent(found.worst)} at worst",
    ) as axes:
        axes.fill_between(found.levels, found.low, found.high, color=STYLES[0].color, alpha=0.2, linewidth=0)
        axes.plot(found.levels, found.fpr_a - found.fpr_b, color=STYLES[0].color)
        axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8)
        finish(axes, "TPR (%)", "difference of FPR (points)", percent="xy")
    report.metrics.setdefault("dominance", {})[bench] = {
        "a": name_a, "b": name_b, "verdict": found.verdict, "worst": found.worst, "tpr": found.levels,
        "fpr_a": found.fpr_a, "fpr_b": found.fpr_b, "low": found.low, "high": found.high,
    }  # fmt: skip
