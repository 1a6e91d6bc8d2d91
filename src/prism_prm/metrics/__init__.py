"""Metrics of step scores, as pure functions of numpy arrays; NaN means "no data", never a silent zero.

A step is judged good iff its score is greater than the threshold, strictly. The positive class is the right step, so
a false positive is a wrong step that was judged good. `counts` holds what follows from TP, FP, TN and FN, `ranking`
what needs no threshold, `items` what is counted per solution (first errors, ProcessBench).
"""

from prism_prm.metrics.counts import (
    FN,
    FP,
    RATES,
    TN,
    TP,
    calibration_error,
    calibration_gaps,
    confusion,
    prmbench_f1,
    prmbench_score,
    sum_counts,
)
from prism_prm.metrics.items import (
    OUTCOMES,
    first_bad,
    first_error_outcomes,
    processbench_rates,
    processbench_tallies,
)
from prism_prm.metrics.ranking import (
    RANKINGS,
    Ranking,
    pairwise_accuracy,
    pairwise_by_margin,
    threshold_for_tpr,
)

__all__ = [
    "FN",
    "FP",
    "OUTCOMES",
    "RANKINGS",
    "RATES",
    "TN",
    "TP",
    "Ranking",
    "calibration_error",
    "calibration_gaps",
    "confusion",
    "first_bad",
    "first_error_outcomes",
    "pairwise_accuracy",
    "pairwise_by_margin",
    "prmbench_f1",
    "prmbench_score",
    "processbench_rates",
    "processbench_tallies",
    "sum_counts",
    "threshold_for_tpr",
]
