"""Best-of-N predicted from p, α and β of whole solutions, compared with Best-of-N measured on a scored pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prism_prm.aggregate import CardValues, Choice, choose_aggregator, choose_threshold, solution_score
from prism_prm.arrays import Bools, Floats
from prism_prm.data.pools import read_pool
from prism_prm.data.tasks import TaskGrader
from prism_prm.errors import ConfigError, DataError
from prism_prm.lab.theory import closed_forms
from prism_prm.metrics import ratio
from prism_prm.report import STYLES, Report, draw_curve, finish, percent
from prism_prm.search.curves import best_of, default_ns
from prism_prm.search.grade_pool import check_measured, grade_pool, scores_in_file, scores_in_pool
from prism_prm.stats import Interval, cluster_draws, interval, mean_interval, resampled_sums


@dataclass(frozen=True)
class JudgedPool:
    """For each problem, which solutions are right, and their scores."""

    correct: tuple[Bools, ...]
    scores: tuple[Floats, ...]
    num_unscored: int = 0
    """Solutions without a score (e.g. without steps): they count as 0, so they are rejected and ranked last."""
    num_empty: int = 0
    """Problems without solutions, which are left out."""
    num_unmeasured: int = 0
    """Problems without a reference answer, which are left out."""


@dataclass(frozen=True)
class PoolPrediction:
    """Rates of the verifier "score > threshold" on whole solutions, and Best-of-N predicted and measured."""

    aggregator: Choice[str]
    threshold: Choice[float]
    num_problems: int
    num_solutions: int
    num_unscored: int
    num_empty: int
    num_unmeasured: int
    num_smaller: int
    """Problems with fewer solutions than the largest n: they use all of them."""
    p: Interval
    alpha: Interval
    beta: Interval
    ns: tuple[int, ...]
    predicted: tuple[float, ...]
    """With each problem's own share of right solutions, averaged over problems."""
    predicted_one_p: tuple[float, ...]
    """With one share for all problems, as in the usual formula."""
    ceiling: float
    """The limit of `predicted`."""
    measured: tuple[Interval, ...]
    """Best-of-N by the verdict, ties broken at random: exact expectation over draws from the pool."""
    measured_by_score: tuple[Interval, ...]
    """Best-of-N by the score itself."""


def predict(
    pool: JudgedPool, ns: Sequence[int], *, aggregator: Choice[str], threshold: Choice[float], seed: int = 0
) -> PoolPrediction:
    """Measure the rates, predict Best-of-N from them, and measure Best-of-N."""
    accepted = [scores > threshold.value for scores in pool.scores]
    sizes = np.array([len(right) for right in pool.correct])
    sums = np.array(
        [
            [right.sum(), len(right), (~right & good).sum(), (~right).sum(), (right & ~good).sum(), right.sum()]
            for right, good in zip(pool.correct, accepted, strict=True)
        ],
        dtype=np.float64,
    )
    num = len(sums)
    drawn = resampled_sums(sums, cluster_draws(num, seed=seed))
    total = sums.sum(axis=0)
    p, alpha, beta = (
        interval(float(ratio(total[i], total[i + 1])), ratio(drawn[:, i], drawn[:, i + 1]), num) for i in (0, 2, 4)
    )
    for name, rate, missing in (("FPR", alpha, "wrong"), ("FNR", beta, "right")):
        if np.isnan(rate.value):
            raise DataError(f"the pool has no {missing} solution, so the {name} is unknown; use a larger pool")
    own_p = np.array([right.mean() for right in pool.correct])

    def measured(scores: Sequence[Floats]) -> tuple[Interval, ...]:
        table = np.array([best_of(right, own, ns) for right, own in zip(pool.correct, scores, strict=True)])
        return tuple(mean_interval(column, seed=seed) for column in table.T)

    return PoolPrediction(
        aggregator, threshold, num, int(total[1]), pool.num_unscored, pool.num_empty, pool.num_unmeasured,
        int((sizes < max(ns)).sum()), p, alpha, beta, tuple(ns),
        tuple(float(closed_forms.best_of_n(own_p, alpha.value, beta.value, np.minimum(n, sizes)).mean()) for n in ns),
        tuple(float(closed_forms.best_of_n(p.value, alpha.value, beta.value, np.minimum(n, sizes)).mean()) for n in ns),
        float(closed_forms.ceiling(own_p, alpha.value, beta.value).mean()),
        measured([good.astype(np.float64) for good in accepted]),
        measured(pool.scores),
    )  # fmt: skip


def add_pool(
    report: Report,
    inputs: Sequence[str | Path],
    scores: str | Path | None,
    *,
    aggregator: str | None,
    threshold: float | None,
    seed: int = 0,
    answer_field: str | None = None,
) -> None:
    """Add a section that compares predicted and measured Best-of-N on a pool."""
    pool = read_pool(inputs, answer_field=answer_field)
    card: CardValues | None = None  # scores in the pool itself come without a card
    if scores is not None:
        step_scores, card = scores_in_file(scores, pool)
    elif (in_pool := scores_in_pool(pool)) is not None:
        step_scores = in_pool
    else:
        raise ConfigError("the pool has no scores; name a table with --scores (`prism rerank --prm` writes one)")
    with TaskGrader() as grader:
        graded = grade_pool(pool, grader)
    check_measured(graded)
    used_aggregator, used_threshold = choose_aggregator(aggregator, card), choose_threshold(threshold, card)
    values = np.array(
        [
            0.0 if own is None else solution_score(own, used_aggregator.value, solution.steps)
            for own, solution in zip(step_scores, pool.solutions, strict=True)
        ]
    )
    ends = np.cumsum([len(entry.solutions) for entry in pool.problems])[:-1]
    own, unscored_in = np.split(values, ends), np.split([steps is None for steps in step_scores], ends)
    known = [i for i in graded.measured if graded.grades[i]]
    judged = JudgedPool(
        tuple(graded.correct(i) for i in known), tuple(own[i] for i in known),
        sum(int(unscored_in[i].sum()) for i in known), len(graded.measured) - len(known), graded.num_unmeasured,
    )  # fmt: skip
    found = predict(judged, default_ns(graded), aggregator=used_aggregator, threshold=used_threshold, seed=seed)
    unscored = f" ({found.num_unscored:,} have no score and count as rejected)" if found.num_unscored else ""
    empty = f" ({found.num_empty:,} more have no solution and are left out)" if found.num_empty else ""
    empty += f" ({found.num_unmeasured:,} without a reference answer are left out)" if found.num_unmeasured else ""
    smaller = (
        f" {found.num_smaller:,} problems have fewer than {found.ns[-1]} solutions; at each N they use all of them."
        if found.num_smaller
        else ""
    )
    report.text(f"""
## Predicted and measured Best-of-N on a pool

{found.num_problems:,} problems{empty} with {found.num_solutions:,} solutions{unscored}.{smaller} A solution is accepted
if the {found.aggregator.value} ({found.aggregator.origin}) of its step scores is above
{found.threshold.value:g} ({found.threshold.origin}). On whole solutions p = {percent(found.p)} %,
α = {percent(found.alpha)} %, β = {percent(found.beta)} %. The prediction assumes the same error rates on all
problems; its error shows how much they depend on the problem. Its limit is {percent(found.ceiling)} %.
""")
    rows = [
        [str(n), percent(each_p), percent(real), percent(one_p), percent(by_score)]
        for n, each_p, real, one_p, by_score in zip(
            found.ns, found.predicted, found.measured, found.predicted_one_p, found.measured_by_score, strict=True
        )
    ]
    report.table(
        ["N", "predicted", "measured", "predicted, one p", "measured, by score"],
        rows,
        caption="Best-of-N (%): by the verdict with random ties, and by the score itself",
    )
    with report.figure(
        "pool-best-of-n",
        caption="Best-of-N by the verdict, predicted from p, α and β, and measured (95 % band over problems). By the "
        "score itself it can be better: scores tell more than verdicts.",
        alt="Predicted and measured Best-of-N accuracy over N",
    ) as axes:
        draw_curve(axes, found.ns, found.measured, "measured, by verdict", STYLES[0])
        draw_curve(axes, found.ns, found.predicted, "predicted", STYLES[1])
        draw_curve(axes, found.ns, found.predicted_one_p, "predicted with one p", STYLES[3])
        draw_curve(axes, found.ns, found.measured_by_score, "measured, by score", STYLES[2], band=False)
        finish(axes, "N", "right solution picked (%)", ns=found.ns)
    report.metrics["pool"] = found
