"""How metrics are named and shown to people, in one place for reports and comparisons."""

from __future__ import annotations

from prism_prm.evaluation import prmbench
from prism_prm.evaluation.measure import Measured, Table
from prism_prm.report import NO_DATA, number, percent

RATES = {
    "fpr": "FPR ↓",
    "fnr": "FNR ↓",
    "precision": "Precision ↑",
    "tpr": "TPR ↑",
    "tnr": "TNR ↑",
    "f1": "F1 ↑",
    "negative_f1": "Negative F1 ↑",
    "accuracy": "Accuracy ↑",
    "prm_score": "PRMScore ↑",
}
"""Metrics that hang on the threshold, in percent; the arrow says which way is better."""

RANKINGS = {
    "auroc": "AUROC ↑",
    "auprc": "AUPRC of right steps ↑",
    "auprc_errors": "AUPRC of wrong steps ↑",
    "fpr_at_tpr_80": "FPR at TPR 80 ↓",
    "fpr_at_tpr_90": "FPR at TPR 90 ↓",
    "fpr_at_tpr_95": "FPR at TPR 95 ↓",
    "calibration_error": "Calibration error ↓",
}
"""Metrics that need no threshold, in percent."""

FIRST_ERRORS = {
    "first_error_exact": "found",
    "first_error_early": "an earlier step blamed",
    "first_error_late": "a later step blamed",
    "first_error_missed": "none blamed",
}

SIDE = {"first_error_acc": "First error judged bad ↑", "similarity": "Distance to the correct twin"}

PRMBENCH_COLUMNS = tuple(
    column
    for group, members in prmbench.GROUPS.items()
    for column in (*((prmbench.SHORT[name], "classes", name) for name in members), ("Avg", "groups", group))
)
"""(header, table, key) of the columns of PRMBench's table, as the papers print it."""


def shown(measured: Measured | None, *, with_interval: bool = True) -> str:
    """A share in percent with its interval."""
    if measured is None:
        return NO_DATA
    found = measured.interval()
    return percent(found.value, found.low, found.high) if with_interval else percent(found.value)


def metric_rows(names: dict[str, str], tables: list[Table]) -> list[list[str]]:
    """A row per metric, a column per table; metrics that no table has are left out."""
    return [
        [label, *(shown(table.get(name)) for table in tables)]
        for name, label in names.items()
        if any(name in table for table in tables)
    ]


def counted(count: int) -> str:
    """A count with thousands separators."""
    return number(count)
