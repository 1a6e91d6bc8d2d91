"""The report of a comparison: tables as the papers print them, paired differences, and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prism_prm import __version__
from prism_prm.evaluation import figures, wording
from prism_prm.evaluation.compare import Compared, Run
from prism_prm.evaluation.evaluate import error_curve, histogram
from prism_prm.evaluation.measure import Measured, intervals, missing_splits
from prism_prm.evaluation.prmbench import SHORT
from prism_prm.report import LOOKS, NO_DATA, Report, looks, p_value, percent, signed_percent

PAPER_RATES = ("fpr", "fnr", "precision", "tpr", "tnr", "prm_score")
TESTED = ("fpr", "fnr", "precision", "f1", "negative_f1", "prm_score", "auroc", "fpr_at_tpr_90", "fpr_at_tpr_95",
          "calibration_error")  # fmt: skip


def build_comparison(
    runs: Sequence[Run], compared: Sequence[Compared], *, left_out: Sequence[str], rounds: bool
) -> Report:
    """The report; the first run is what the others are compared with. With `rounds`, runs are rounds in order."""
    names = [run.name for run in runs]
    report = Report(" against ".join(names) if len(names) == 2 else f"{len(names)} PRMs side by side")
    report.subtitle = "; ".join(runs[0].metrics["benchmarks"][one.bench]["described"] for one in compared)
    report.text(_introduction(names, left_out))
    for one in compared:
        _add_bench(report, one, rounds=rounds)
    report.metrics |= {
        "prism_prm": __version__,
        "runs": {run.name: {"folder": run.folder.name, **run.metrics["run"]} for run in runs},
        "benchmarks": {one.bench: _as_json(one) for one in compared},
    }
    return report


def _introduction(names: Sequence[str], left_out: Sequence[str]) -> str:
    without = f" Not in all runs, and so left out: {', '.join(left_out)}." if left_out else ""
    return f"""
All PRMs judged the same steps. Values are percentages with 95 % bootstrap intervals over problems. Differences from
**{names[0]}** are in percentage points and paired: the same problems are drawn for all, so what is hard for everybody
cancels out. p is two-sided and not corrected for the number of comparisons.{without}
"""


def _as_json(one: Compared) -> dict[str, Any]:
    first = one.runs[0]
    return {
        "thresholds": one.thresholds,
        "metrics": {name: intervals(tables) for name, tables in one.tables.items()},
        "differences": {
            name: {
                metric: one.tables[name]["steps"][metric].minus(one.tables[first]["steps"][metric])
                for metric in TESTED
                if metric in one.tables[name]["steps"] and metric in one.tables[first]["steps"]
            }
            for name in one.runs[1:]
        },
    }


def _add_bench(report: Report, one: Compared, *, rounds: bool) -> None:
    parts = ", ".join(f"{name} {one.thresholds[name]:.4g}" for name in one.runs)
    report.text(f"## {one.bench}\n\nThresholds: {parts}.")
    _add_rates(report, one)
    _add_differences(report, one)
    _add_figures(report, one)
    if rounds:
        _add_rounds(report, one)
    if one.bench == "prmbench":
        _add_classes(report, one)
    if one.bench == "processbench":
        _add_splits(report, one)


def _add_rates(report: Report, one: Compared) -> None:
    """The paper's table of rates, with how much of the first PRM's FPR is gone."""
    base = one.tables[one.runs[0]]["steps"]["fpr"].value
    rows = []
    for name in one.runs:
        table = one.tables[name]["steps"]
        gone = 1 - table["fpr"].value / base if base else float("nan")
        rows.append([name, *(wording.shown(table[metric]) for metric in PAPER_RATES), percent(gone)])
    headers = ["PRM", *(wording.RATES[metric] for metric in PAPER_RATES), "FPR reduction"]
    report.table(headers, rows, caption="Rates (steps pooled)")
    tables = [one.tables[name]["steps"] for name in one.runs]
    if ranking_rows := wording.metric_rows(wording.RANKINGS, tables):
        report.table(["metric", *one.runs], ranking_rows, caption="Without a threshold")


def _difference(a: Measured | None, b: Measured | None) -> list[str]:
    if a is None or b is None:
        return [NO_DATA, NO_DATA]
    found = a.minus(b)
    return [signed_percent(found.difference, found.low, found.high), p_value(found.p)]


def _add_differences(report: Report, one: Compared) -> None:
    first = one.tables[one.runs[0]]["steps"]
    labels = {**wording.RATES, **wording.RANKINGS}
    for name in one.runs[1:]:
        table = one.tables[name]["steps"]
        rows = [[labels[m], *_difference(table.get(m), first.get(m))] for m in TESTED if m in table or m in first]
        if one.bench == "processbench":
            means = (one.tables[which]["split:mean"]["f1"] for which in (name, one.runs[0]))
            rows.append(["Mean F1 of the splits ↑", *_difference(*means)])
        report.table(["metric", "difference", "p"], rows, caption=f"{name} minus {one.runs[0]}")


def _add_classes(report: Report, one: Compared) -> None:
    rows = []
    for name in one.runs:
        tables = one.tables[name]
        cells = [wording.shown(tables[t].get(key), with_interval=False) for _, t, key in wording.PRMBENCH_COLUMNS]
        rows.append([name, wording.shown(tables["overall"]["prm_score"], with_interval=False), *cells])
    headers = ["PRM", "Overall", *(header for header, _, _ in wording.PRMBENCH_COLUMNS)]
    report.table(headers, rows, caption="PRMScore by class and group")
    classes = list(one.tables[one.runs[0]]["classes"])
    with report.figure(
        "prmbench-classes",
        caption="PRMScore by class with 95 % intervals.",
        alt="PRMScore of every PRM by class",
        size=(6.4, 3.6),
    ) as axes:
        series = {name: [one.tables[name]["classes"][c].interval() for c in classes] for name in one.runs}
        figures.draw_bars(axes, [SHORT[c] for c in classes], series, looks(one.runs), ylabel="PRMScore (%)")


def _add_splits(report: Report, one: Compared) -> None:
    splits = [n.removeprefix("split:") for n in one.tables[one.runs[0]] if n.startswith("split:") and n != "split:mean"]
    keys = (("acc_error", "TPR"), ("acc_correct", "TNR"), ("f1", "F1"))
    headers = ["PRM", *(f"{split} {label}" for split in splits for _, label in keys), "mean F1"]
    rows = [
        [
            name,
            *(
                wording.shown(one.tables[name][f"split:{s}"][key], with_interval=False)
                for s in splits
                for key, _ in keys
            ),
            wording.shown(one.tables[name]["split:mean"]["f1"]),
        ]
        for name in one.runs
    ]
    missing = missing_splits(splits)
    note = f"; the mean is of these {len(splits)}, not of all four" if missing else ""
    report.table(
        headers,
        rows,
        caption=f"ProcessBench: error found (TPR), no error seen (TNR), F1 of the two{note}",
    )


def _add_figures(report: Report, one: Compared) -> None:
    look = looks(one.runs)
    curves = {name: curve for name in one.runs if (curve := error_curve(one.steps[name]))}
    if curves:
        with report.figure(
            f"{one.bench}-fpr-fnr",
            caption="FPR–FNR trade-off over all thresholds; lower left is better, markers are the thresholds used.",
            alt=f"FPR against FNR of {', '.join(curves)} on {one.bench}",
        ) as axes:
            figures.draw_error_curves(axes, curves, look, one.thresholds)
    for i, name in enumerate(one.runs):
        with report.figure(
            f"{one.bench}-distribution-{i + 1}",
            caption=f"{name}: scores of right steps (up) and of wrong steps (down); the dotted line is the threshold.",
            alt=f"Distribution of the scores of {name}",
            size=(5.2, 2.6),
        ) as axes:
            figures.draw_distribution(axes, histogram(one.steps[name]), one.thresholds[name], LOOKS)


def _add_rounds(report: Report, one: Compared) -> None:
    shown = ("prm_score", "fpr", "fnr", "precision")
    rows = [[name, *(wording.shown(one.tables[name]["steps"][metric]) for metric in shown)] for name in one.runs]
    report.table(["round", *(wording.RATES[m] for m in shown)], rows, caption="Training rounds")
    with report.figure(
        f"{one.bench}-rounds",
        caption="What the rounds of training change, with 95 % intervals.",
        alt=f"FPR, FNR and precision over the rounds {', '.join(one.runs)}",
    ) as axes:
        series = {
            wording.RATES[m]: [one.tables[name]["steps"][m].interval() for name in one.runs]
            for m in ("fpr", "fnr", "precision")
        }
        figures.draw_rounds(axes, one.runs, series, LOOKS)
