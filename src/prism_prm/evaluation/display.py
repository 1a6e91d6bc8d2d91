"""How metrics are named, shown and drawn, for reports and comparisons; a figure is drawn on axes it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prism_prm.evaluation.measure import Measured, Table
from prism_prm.report import NO_DATA, Look, label, legend, percent, percent_axes
from prism_prm.stats import Interval

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

SCORES = "Scores of right steps (up) and of wrong steps (down); the dotted line is the threshold."
TRADE = " Lower left is better; every threshold trades one error for the other. Markers show the thresholds in use."
"""Captions of the two figures that every report of scores has."""

GOOD, BAD = 0, 1
"""Right and wrong steps are drawn in the first and second look."""


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


def draw_error_curves(
    axes: Any,
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    looks: Mapping[str, Look],
    chosen: Mapping[str, float],
) -> None:
    """FPR against FNR over all thresholds, with a marker at the threshold of each PRM."""
    for name, curve in curves.items():
        look = looks[name]
        fpr, fnr = np.array(curve["fpr"]), np.array(curve["fnr"])
        axes.plot(fnr, fpr, color=look.colour, linestyle=look.line, label=label(name))
        at = int(np.argmin(np.abs(np.array(curve["threshold"]) - chosen[name])))
        axes.plot(fnr[at], fpr[at], color=look.colour, marker=look.marker, markersize=8, linestyle="none")
    axes.set_title("Errors at every threshold")
    axes.set_xlabel("FNR: right steps rejected (%)")
    axes.set_ylabel("FPR: errors passed (%)")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    percent_axes(axes.xaxis, axes.yaxis)
    legend(axes)


def draw_distribution(
    axes: Any, histogram: Mapping[str, Sequence[float]], threshold: float, looks: Sequence[Look], title: str = "Scores"
) -> None:
    """Scores of right steps upwards, of wrong steps downwards."""
    edges = np.array(histogram["edges"])
    width, middle = np.diff(edges), (edges[:-1] + edges[1:]) / 2
    for name, sign, look in (("right", 1, looks[GOOD]), ("wrong", -1, looks[BAD])):
        if name in histogram:
            heights = sign * np.array(histogram[name])
            axes.bar(middle, heights, width=width * 0.92, color=look.colour, label=f"{name} steps")
    axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8)
    axes.axvline(threshold, color=axes.xaxis.label.get_color(), linewidth=1, linestyle=":")
    axes.set_title(title)
    axes.set_xlabel("score of the step (%)")
    axes.set_ylabel("share of steps (%)")
    axes.set_xlim(0, 1)
    percent_axes(axes.xaxis)
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(100 * value):.0f}")
    legend(axes)


def draw_bars(
    axes: Any,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Interval]],
    looks: Mapping[str, Look],
    *,
    ylabel: str,
) -> None:
    """Groups of values with their intervals, one marker per PRM beside each other."""
    places = np.arange(len(labels), dtype=float)
    span = 0.7
    for i, (name, values) in enumerate(series.items()):
        offset = span * ((i + 0.5) / len(series) - 0.5)
        value = np.array([interval.value for interval in values])
        spread = np.array([[v.value - v.low, v.high - v.value] for v in values]).T
        look = looks[name]
        axes.errorbar(
            places + offset, value, yerr=np.nan_to_num(np.maximum(spread, 0)), fmt=look.marker, color=look.colour,
            capsize=2, linewidth=1.2, label=label(name),
        )  # fmt: skip
    axes.set_xticks(places, labels)
    axes.set_ylabel(ylabel)
    axes.grid(visible=False, axis="x")
    percent_axes(axes.yaxis)
    if len(series) > 1:
        legend(axes)


def draw_rounds(
    axes: Any, names: Sequence[str], series: Mapping[str, Sequence[Interval]], looks: Sequence[Look]
) -> None:
    """Metrics over training rounds, each with its interval."""
    at = np.arange(len(names))
    for (metric, values), look in zip(series.items(), looks, strict=False):
        value, low, high = (np.array([getattr(v, part) for v in values]) for part in ("value", "low", "high"))
        axes.fill_between(at, low, high, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(at, value, color=look.colour, linestyle=look.line, marker=look.marker, label=metric)
    axes.set_xticks(at, names)
    axes.set_ylabel("%")
    percent_axes(axes.yaxis)
    legend(axes)


def draw_pair_accuracy(
    axes: Any, edges: Sequence[float], series: Mapping[str, Sequence[Interval]], looks: Mapping[str, Look]
) -> None:
    """Pairwise accuracy by margin."""
    bounds = np.array(edges)
    middle = (bounds[:-1] + bounds[1:]) / 2
    for name, values in series.items():
        look = looks[name]
        value, low, high = (np.array([getattr(v, part) for v in values]) for part in ("value", "low", "high"))
        axes.fill_between(middle, low, high, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(middle, value, color=look.colour, linestyle=look.line, marker=look.marker, label=label(name))
    axes.set_ylabel("pairs ranked rightly (%)")
    percent_axes(axes.yaxis)
    legend(axes)
