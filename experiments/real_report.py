"""The tables and figures of docs/lab/results.md, from the results of `experiments/real_run.py`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prism_prm.evaluate.report import draw_error_curves
from prism_prm.report import NO_DATA, STYLES, Report, finish, percent, signed_percent
from prism_prm.stats import Interval, over_seeds

Metrics = dict[str, Any]
Cell = Callable[[Metrics], Metrics]
"""The metrics of a bench → one interval."""


def of_steps(name: str) -> Cell:
    return lambda bench: _metric(bench, "metrics", "steps", name)


def of_group(group: str, name: str) -> Cell:
    return lambda bench: _metric(bench, "groups", group, name)


def of_table(table: str, name: str) -> Cell:
    return lambda bench: _metric(bench, "metrics", table, name)


def _metric(bench: Metrics, *keys: str) -> Metrics:
    found: Any = bench["subsets"]["all"]
    for key in keys:
        found = found[key]
    return dict(found)


COLUMNS: dict[str, list[tuple[str, str, Cell]]] = {
    "held-out": [
        ("AUROC", "labeled", of_steps("auroc")),
        ("FPR", "labeled", of_steps("fpr")),
        ("FNR", "labeled", of_steps("fnr")),
        ("FPR at TPR 90", "labeled", of_steps("fpr_at_tpr_90")),
        ("AUROC, steps of annotated pairs, pooled", "pairs", of_group("annotated", "auroc")),
        ("AUROC, lookahead pairs", "pairs", of_group("lookahead", "auroc")),
    ],
    "prmbench": [
        ("PRMScore", "prmbench", of_table("overall", "prm_score")),
        ("AUROC", "prmbench", of_steps("auroc")),
        ("FPR", "prmbench", of_steps("fpr")),
        ("FNR", "prmbench", of_steps("fnr")),
        ("FPR at TPR 90", "prmbench", of_steps("fpr_at_tpr_90")),
    ],
    "processbench": [
        ("F1 gsm8k", "processbench", of_table("split:gsm8k", "f1")),
        ("F1 math", "processbench", of_table("split:math", "f1")),
        ("AUROC", "processbench", of_steps("auroc")),
        ("FPR", "processbench", of_steps("fpr")),
        ("FNR", "processbench", of_steps("fnr")),
        ("FPR at TPR 90", "processbench", of_steps("fpr_at_tpr_90")),
    ],
}


CAPTIONS = {
    "held-out": "Held-out problems of PRM800K: labeled steps, and the two kinds of pairs separately",
    "prmbench": "Part of PRMBench",
    "processbench": "Part of ProcessBench",
}


def make_report(out: Path, prms: Sequence[str], first_seed: Sequence[str], paper: Path) -> Report:
    """All tables and figures, in percent with 95 % intervals over problems; `paper` is the folder of its run."""
    report = Report(
        "SmolLM2-135M on PRM800K phase 1", "Made by experiments/real_run.py; steps are judged at threshold 0.5."
    )
    for what in COLUMNS:
        report.table(headers(what), eval_rows(out, what, first_seed), caption=CAPTIONS[what])
    add_seeds(report, out, prms)
    add_reranking(report, out)
    add_margins(report, paper)
    add_distributions(report, out, ["base", "lookahead-pointwise", "log-odds", "prism"])
    return report


def headers(what: str) -> list[str]:
    return ["", *(header for header, _, _ in COLUMNS[what])]


def eval_rows(out: Path, what: str, names: Sequence[str]) -> list[list[str]]:
    """A row per PRM."""
    return [[name, *map(_shown, measured(out, what, name))] for name in names]


def measured(out: Path, what: str, name: str) -> list[Metrics]:
    """One interval per column."""
    benches = json.loads((out / "eval" / what / name / "metrics.json").read_text())["benchmarks"]
    return [cell(benches[bench]) for _, bench, cell in COLUMNS[what]]


def add_seeds(report: Report, out: Path, names: Sequence[str]) -> None:
    """Held-out problems: means over the seeds of arms that have several, and their differences, paired by seed."""
    seeds = {arm: [name for name in names if name == arm or name.startswith(f"{arm}-seed")] for arm in names}
    values = {
        arm: np.array([[one["value"] for one in measured(out, "held-out", run)] for run in runs])
        for arm, runs in seeds.items()
        if len(runs) > 1
    }
    base = np.array([one["value"] for one in measured(out, "held-out", "base")])
    rows = [[arm, *_over_seeds(found, percent)] for arm, found in values.items()]
    rows += [[f"{arm} − base", *_over_seeds(found - base, signed_percent)] for arm, found in values.items()]
    for (a, of_a), (b, of_b) in itertools.combinations(values.items(), 2):
        rows.append([f"{b} − {a}", *_over_seeds(of_b - of_a, signed_percent)])
    caption = "Held-out problems: means over seeds of training, with Student's 95 % interval over seeds"
    report.table(headers("held-out"), rows, caption=caption)


def _over_seeds(values: np.ndarray, show: Callable[..., str]) -> list[str]:
    found = [over_seeds(column) for column in values.T]
    return [show(one) for one in found]


def add_reranking(report: Report, out: Path) -> None:
    """The accuracy of every selection rule by n; with a PRM, by the minimum over the steps."""
    curves = pq.read_table(out / "rerank" / "curves.parquet").to_pylist()
    found: dict[tuple[str, str], dict[int, Metrics]] = {}
    for row in curves:
        if row["aggregator"] in ("", None, "min"):
            found.setdefault((row["prm"] or "", row["method"]), {})[row["n"]] = row
    ns = sorted({n for by_n in found.values() for n in by_n})
    rows = [
        [" ".join(filter(None, key)), *(_shown(by_n[n]) if n in by_n else NO_DATA for n in ns)]
        for key, by_n in found.items()
    ]
    report.table(["", *(f"n = {n}" for n in ns)], rows, caption="Part of the MATH-500 pool, re-ranked")


def add_margins(report: Report, run: Path) -> None:
    """The distribution of the base PRM's margins on the training pairs, and the curriculum's bins."""
    facts = json.loads((run / "margins.json").read_text())
    rows = [[kind, f"{count:,}"] for kind, count in {**facts["bins"], **facts["dropped"]}.items()]
    report.table(
        ["margin", "pairs"], [*rows, ["all", f"{facts['pairs']:,}"]], caption="The paper's bins on this base PRM"
    )
    edges, counts = facts["histogram"]["edges"], facts["histogram"]["counts"]
    with report.figure(
        "margins",
        caption="The base PRM's margin r⁺ − r⁻ on the training pairs; the paper drops what is below 0.1.",
        alt="Histogram of the base PRM's margins for annotated and lookahead pairs",
    ) as axes:
        for style, (kind, values) in zip(STYLES, counts.items(), strict=False):
            axes.stairs(values, edges, color=style.color, linestyle=style.line, label=kind)
        axes.axvline(0.1, color=STYLES[-1].color, linestyle=":")
        finish(axes, "margin", "pairs", percent="")


def add_distributions(report: Report, out: Path, names: Sequence[str]) -> None:
    """FPR against FNR over all thresholds on held-out steps."""
    curves = {}
    for name in names:
        metrics = json.loads((out / "eval" / "held-out" / name / "metrics.json").read_text())
        curves[name] = metrics["benchmarks"]["labeled"]["curve"]
    with report.figure(
        "held-out-fpr-fnr",
        caption="Held-out steps: every threshold trades false positives for false negatives; the markers are at 0.5.",
        alt="FPR against FNR on held-out PRM800K steps for the base PRM and three arms",
    ) as axes:
        draw_error_curves(axes, curves, dict.fromkeys(curves, 0.5))


def _shown(interval: Metrics) -> str:
    value, low, high = (np.nan if interval.get(key) is None else interval[key] for key in ("value", "low", "high"))
    return percent(Interval(value, low, high, 0))
