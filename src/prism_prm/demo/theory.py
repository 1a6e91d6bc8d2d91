"""Best-of-N as the paper's closed form predicts it from a PRM's errors on whole solutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.demo.measure import TPR
from prism_prm.metrics.ranking import threshold_for_tpr
from prism_prm.rerank.grading import GradedPool
from prism_prm.rerank.step_scores import StepScores
from prism_prm.theory.selection import best_of_n


def predicted_best_of_n(
    graded: GradedPool, pool: StepScores, aggregator: str, ns: Sequence[int]
) -> tuple[float, float, float, list[float]]:
    """(p, α, β, P(n) for each n), with p of every problem, and α and β of the pool at its 90 % threshold."""
    right = [graded.correct(i) for i in range(len(graded.grades))]
    correct = np.concatenate(right)
    scores = np.array([-np.inf if steps is None else log_score(steps, aggregator) for steps in pool])
    finite = np.where(np.isfinite(scores), scores, -1e9)
    threshold = threshold_for_tpr(correct, finite, TPR)
    accepted = finite > threshold
    alpha = float(accepted[~correct].mean()) if (~correct).any() else 0.0
    beta = float((~accepted)[correct].mean()) if correct.any() else 0.0
    shares = np.array([of_problem.mean() for of_problem in right])
    return float(shares.mean()), alpha, beta, [float(best_of_n(shares, alpha, beta, n).mean()) for n in ns]
