"""The tables of docs/results.md, from what `benchmarks/real_run.py` left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

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
        ("AUROC", "labelled", of_steps("auroc")),
        ("FPR", "labelled", of_steps("fpr")),
        ("FNR", "labelled", of_steps("fnr")),
        ("FPR at TPR 90", "labelled", of_steps("fpr_at_tpr_90")),
        ("AUROC, annotated pairs", "pairs", of_group("annotated", "auroc")),
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


def eval_table(out: Path, what: str, names: Sequence[str]) -> str:
    """A row per PRM: values in percent with their intervals over problems."""
    rows = []
    for name in names:
        benches = json.loads((out / "eval" / what / name / "metrics.json").read_text())["benchmarks"]
        rows.append([name, *(_shown(cell(benches[bench])) for _, bench, cell in COLUMNS[what])])
    return markdown(["", *(header for header, _, _ in COLUMNS[what])], rows)


def rerank_table(out: Path) -> str:
    """Accuracy of every way to select by n; with a PRM, its minimum over the steps."""
    curves = pq.read_table(out / "rerank" / "curves.parquet").to_pylist()
    chosen = [row for row in curves if row["aggregator"] in ("", None, "min")]
    ns = sorted({row["n"] for row in chosen})
    found: dict[tuple[str, str], dict[int, Metrics]] = {}
    for row in chosen:
        found.setdefault((row["prm"] or "", row["method"]), {})[row["n"]] = row
    rows = [
        [" ".join(filter(None, key)), *(_shown(by_n[n]) if n in by_n else "" for n in ns)]
        for key, by_n in found.items()
    ]
    return markdown(["", *(f"n = {n}" for n in ns)], rows)


def margin_table(out: Path, name: str) -> str:
    """How many pairs fell where before the curriculum."""
    facts = json.loads((out / name / "margins.json").read_text())
    rows = [[kind, f"{count:,}"] for kind, count in {**facts["bins"], **facts["dropped"]}.items()]
    return markdown(["margin", "pairs"], [*rows, ["all", f"{facts['pairs']:,}"]])


def _shown(interval: Metrics) -> str:
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if value is None:
        return "–"
    bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * value:.1f}{bounds}"


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
