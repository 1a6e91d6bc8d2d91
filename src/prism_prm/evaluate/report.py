"""The report on one PRM: tables with intervals, figures, and the wrong step that it scores highest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from prism_prm import __version__
from prism_prm.backends.critic_ledger import verdicts_in_words
from prism_prm.evaluate.benchmarks import find_benchmark
from prism_prm.evaluate.measure import (
    FIRST_ERRORS,
    NO_SIBLINGS,
    RANKINGS,
    RATES,
    Steps,
    intervals,
    known_aurocs,
    metric_rows,
    shown,
    write_steps,
)
from prism_prm.evaluate.reliability import draw_reliability
from prism_prm.report import (
    STYLES,
    Report,
    draw_curve,
    escaped,
    finish,
    most_telling,
    number,
    percent,
    remove_report,
    styles,
    telling,
)
from prism_prm.tree import ROOT, StepTree

if TYPE_CHECKING:
    from prism_prm.evaluate.evaluate_prm import EvalSettings, Evaluation

SCORES = "Scores of right steps (up) and of wrong steps (down); the dotted line is the threshold."
TRADE = " Lower left is better; every threshold trades one error for the other. Markers show the thresholds in use."
"""Captions of the two figures that every report of scores has."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The PRM behind the scores."""

    name: str
    """Its name in tables and figures."""
    source: str
    """The PRM's folder or hub id, or the file of scores."""
    model_hash: str = ""
    tokens: int | None = None
    """Tokens behind the scores: read by a PRM, read and written by a critic. None if the scores come from a file."""
    critic: dict[str, Any] | None = None
    """The settings and the cost of a critic; None for a PRM."""


def figure_name(bench: str, what: str) -> str:
    """The name of a figure of a benchmark; those of installed packages may have any name."""
    return f"{re.sub('[^a-z0-9]+', '-', bench.lower())}-{what}"


def steps_file(folder: str | Path, bench: str) -> Path:
    """The file of a run's judged steps of a benchmark."""
    return Path(folder) / f"{bench}.steps.parquet"


def write_run(folder: str | Path, run: RunInfo, evaluations: list[Evaluation], settings: EvalSettings) -> Path:
    """Write the report, metrics.json, and the judged steps for `prism compare`. Returns the path of the page."""
    report = Report(f"How well does {run.name} judge steps?", "; ".join(e.described for e in evaluations))
    report.metrics |= {
        "prism_prm": __version__,
        "run": asdict(run),
        "settings": asdict(settings.settled(None)),
        "benchmarks": {evaluation.bench: _as_json(evaluation) for evaluation in evaluations},
    }
    report.finding = " ".join(_finding(run, evaluation) for evaluation in evaluations)
    for evaluation in evaluations:
        _add_benchmark(report, run, evaluation, alone=len(evaluations) == 1)
    source = f"`{run.source}`" + (f" (model hash `{run.model_hash}`)" if run.model_hash and not run.critic else "")
    tokens = "" if run.tokens is None else f" They took {run.tokens:,} tokens."
    verdicts = "" if run.critic is None else f" {verdicts_in_words(run.critic)}"
    report.text(f"""
## How to read this

Scores come from {source}.{tokens}{verdicts} The positive class is the right step: a *false positive* is a wrong step
that is judged good, which misleads Best-of-N and search; a *false negative* is a right step that is judged bad, which
only costs samples. All values are percentages. Brackets are 95 % bootstrap intervals from {settings.num_draws:,} draws
of whole problems, because steps of one problem are not independent. "–" means "no data".
""")
    remove_report(folder)  # a killed process must not leave its steps beside another PRM's metrics
    for evaluation in evaluations:
        write_steps(steps_file(folder, evaluation.bench), evaluation.steps)
    return report.write(folder)


def _as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The content of metrics.json."""
    return {
        "described": evaluation.described,
        "complete": evaluation.complete,
        "files": evaluation.files,
        "split": evaluation.split,
        "notes": evaluation.notes,
        "threshold": asdict(evaluation.threshold),
        "subsets": {
            name: {
                "items": subset.num_items,
                "steps": subset.num_steps,
                "problems": subset.num_problems,
                "counts": subset.counts,
                "metrics": intervals(subset.tables),
                "groups": intervals(subset.groups),
                "group_counts": subset.group_counts,
            }
            for name, subset in evaluation.subsets.items()
        },
        "curve": evaluation.curve,
        "histogram": evaluation.histogram,
        "reliability": {name: found.as_json() for name, found in evaluation.reliability.items()},
        "calibration": evaluation.calibration,
        "pairs": None if evaluation.pairs is None else asdict(evaluation.pairs),
        "example": evaluation.example,
    }


def _finding(run: RunInfo, evaluation: Evaluation) -> str:
    """One sentence with FPR, FNR, and the benchmark's own headline if it has one."""
    tables = evaluation.subsets["all"].tables
    passed, lost = (percent(tables["steps"][rate].value) for rate in ("fpr", "fnr"))
    own = find_benchmark(evaluation.bench).headlines(tables)
    *_, headline = ("", *(f"; {label.rstrip(' ↑↓')} is {percent(value.value)} %" for label, value in own.items()))
    return (
        f"On {evaluation.bench}, {escaped(run.name)} lets {passed} % of the wrong steps pass and rejects {lost} % of "
        f"the right ones (threshold {evaluation.threshold.value:.4g}){headline}."
    )


def _add_benchmark(report: Report, run: RunInfo, evaluation: Evaluation, *, alone: bool) -> None:
    if not alone:
        report.text(f"## {evaluation.bench}")
    bench, threshold, subsets = evaluation.bench, evaluation.threshold, evaluation.subsets
    with report.figure(
        figure_name(bench, "scores"),
        caption=f"{SCORES} Wrong steps to its right are false positives." + TRADE * bool(evaluation.curve),
        alt=f"Distribution of the scores of right and wrong steps of {bench}, and FPR against FNR of {run.name}",
        panels=1 + bool(evaluation.curve),
    ) as panels:
        draw_distribution(panels[0], evaluation.histogram, threshold.value)
        for axes in panels[1:]:
            draw_error_curves(axes, {run.name: evaluation.curve}, {run.name: threshold.value})

    whole = subsets["all"]
    headers = ["metric", *(f"{name} ({subset.num_items:,} items)" for name, subset in subsets.items())]
    tables = [subset.tables["steps"] for subset in subsets.values()]
    benchmark = find_benchmark(bench)
    benchmark.add_to_report(report, subsets)
    caption = f"Steps judged at threshold {threshold.value:.4g} (%)"
    own = [benchmark.headlines(subset.tables) for subset in subsets.values()]
    rows = metric_rows(RATES, tables) + metric_rows({label: label for label in own[0]}, own)
    report.table(headers, rows, caption=caption)
    if evaluation.example is not None:
        caption = telling("wrong step", [run.name])
        add_wrong_step(report, evaluation.example, {run.name: evaluation.steps}, caption=caption)
    if ranking_rows := metric_rows(RANKINGS, tables):
        report.table(headers, ranking_rows, caption="Without a threshold: ranking and calibration of P(right) (%)")
    if evaluation.reliability:
        errors = ", ".join(f"{shown(found.error)} % {name}" for name, found in evaluation.reliability.items())
        on = "" if evaluation.calibration is None else f" Calibrated on {evaluation.calibration.on}."
        with report.figure(
            figure_name(bench, "reliability"),
            caption=f"Of the steps with a score of 80 %, 80 % should be right: the dotted line. Calibration error: "
            f"{errors}.{on}",
            alt=f"Reliability diagram of {run.name} on {bench}",
        ) as axes:
            draw_reliability(axes, evaluation.reliability)
    if first_rows := metric_rows(FIRST_ERRORS, tables):
        headers_here = ["first step judged bad", *headers[1:]]
        report.table(headers_here, first_rows, caption="Solutions with an error: was it found? (%)")
    if len(whole.groups) > 1 and benchmark.shows_groups:
        columns = {key: RATES[key] for key in ("fpr", "fnr", "f1", "negative_f1")} | known_aurocs(whole.groups.values())
        rows = [[name, *(shown(table.get(key)) for key in columns)] for name, table in whole.groups.items()]
        report.table(["group", *columns.values()], rows, caption="Steps by group (%)")
    if (pairs := evaluation.pairs) is not None:
        rows = [
            [f"{low:g}–{high:g}", percent(accuracy), number(size)]
            for low, high, accuracy, size in zip(
                pairs.edges, pairs.edges[1:], pairs.bins, pairs.bin_sizes, strict=False
            )
        ]
        report.table(
            ["size of the margin", "accuracy", "pairs"],
            [*rows, ["all", percent(pairs.overall), number(pairs.num_pairs)]],
            caption="Pairs of a right and a wrong step after the same prefix: how often the right one scores higher",
        )
        with report.figure(
            figure_name(bench, "pairs"),
            caption="Most ranking errors are on pairs with a small margin.",
            alt="Pairwise accuracy by the size of the margin",
        ) as axes:
            middles = np.convolve(pairs.edges, [0.5, 0.5], "valid")
            draw_curve(axes, middles, pairs.bins, run.name, STYLES[0])
            finish(axes, "size of the margin |score of right − score of wrong|", "pairs ranked correctly (%)")
    outcomes = {
        "tp": "right, judged good (TP)",
        "fn": "right, judged bad (FN)",
        "tn": "wrong, judged bad (TN)",
        "fp": "wrong, judged good (FP)",
    }
    counts = [[label, *(number(part.counts[name]) for part in subsets.values())] for name, label in outcomes.items()]
    counts.append(["problems", *(number(part.num_problems) for part in subsets.values())])
    report.table(["count", *headers[1:]], counts, caption="Number of judged steps")

    files = ", ".join(f"`{Path(name).name}`" for name in evaluation.files[:3])
    if len(evaluation.files) > 3:
        files = f"{len(evaluation.files)} files ({files}, …; all are in `metrics.json`)"
    lines = [
        f"Measured: {evaluation.described}; {whole.num_steps:,} steps of {whole.num_problems:,} problems, from {files}."
    ]
    if evaluation.complete is False:
        lines.append("**This is only part of the benchmark**, so values cannot be compared with published ones.")
    if threshold.target_tpr is None:
        lines.append(f"A step is judged good if its score is above {threshold.value:g} ({threshold.origin}).")
    else:
        lines.append(
            f"The threshold {threshold.value:.4f} was chosen for a TPR of {percent(threshold.target_tpr)} on "
            f"{threshold.heldout_problems:,} held-out problems ({threshold.heldout_right_steps:,} right steps, TPR "
            f"there {percent(threshold.heldout_tpr)}), which are not measured."
        )
    if ranking_rows and "auroc_prefix" not in known_aurocs(tables):
        lines.append(NO_SIBLINGS)
    if "clean" in subsets or "contaminated" in subsets:
        lines.append("*Contaminated* items are on problems of the training data; *clean* ones are not.")
    else:
        lines.append("Whether the PRM was trained on these problems was not checked (`--trained-on`).")
    report.notes(lines + [f"{count:,} {reason}." for reason, count in evaluation.notes.items() if count])


def draw_error_curves(
    axes: Any, curves: Mapping[str, Mapping[str, Sequence[float]]], chosen: Mapping[str, float]
) -> None:
    """Draw FPR against FNR over all thresholds, with a marker at the threshold of each PRM."""
    for name, style in styles(list(chosen)).items():
        if curve := curves.get(name):
            nearest = int(np.argmin(np.abs(np.array(curve["threshold"]) - chosen[name])))
            draw_curve(axes, curve["fnr"], curve["fpr"], name, style, mark=nearest)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    x, y = "FNR: right steps rejected (%)", "FPR: errors accepted (%)"
    finish(axes, x, y, title="Errors at every threshold", percent="xy")


def draw_distribution(
    axes: Any, histogram: Mapping[str, Sequence[float]], threshold: float, title: str = "Scores"
) -> None:
    """Draw the scores of right steps upward, and of wrong steps downward."""
    edges = np.array(histogram["edges"])
    width, middle = np.diff(edges), (edges[:-1] + edges[1:]) / 2
    for name, sign, style in (("right", 1, STYLES[0]), ("wrong", -1, STYLES[1])):
        if name in histogram:
            heights = sign * np.array(histogram[name])
            axes.bar(middle, heights, width=width * 0.92, color=style.color, label=name)
    axes.axhline(0, color=axes.xaxis.label.get_color(), linewidth=0.8)
    axes.axvline(threshold, color=axes.xaxis.label.get_color(), linewidth=1, linestyle=":")
    axes.set_xlim(0, 1)
    finish(axes, "score of the step (%)", "share of steps (%)", title=title, percent="x")
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(100 * value):.4g}")


@dataclass(frozen=True, slots=True)
class WrongStep:
    """A wrong step and the steps before it, with their texts."""

    item: str
    problem: str
    nodes: tuple[int, ...]
    """Nodes of the item; the last is the wrong step."""
    texts: tuple[str, ...]


def find_wrong_step(trees: Iterable[StepTree], steps: Mapping[str, Steps]) -> WrongStep | None:
    """The wrong step on which PRMs differ most, or that a single PRM scores highest; None if there is none.

    Texts are found by the items' names. If the names are not unique, there is no example.
    """
    first = next(iter(steps.values()))
    all_trees = list(trees)
    known = {tree.name: tree for tree in all_trees}
    if len(known) < len(all_trees):
        return None
    letters: list[int] = []  # the length of the text up to each node
    for tree in (known[name] for name in first.items):
        start = len(letters)
        for node, parent in zip(tree.nodes, tree.parents, strict=True):
            letters.append(len(node.text) + (0 if parent == ROOT else letters[start + parent]))
    wrong = np.flatnonzero(first.wrong)
    chosen = most_telling({prm: own.probability[wrong] for prm, own in steps.items()}, [letters[i] for i in wrong])
    if chosen is None:
        return None
    item = int(first.step_item[wrong[chosen]])
    tree = known[first.items[item]]
    path = tree.path(int(wrong[chosen] - first.starts[item]))
    return WrongStep(tree.name, tree.problem, path, tuple(tree.texts(path)))


def add_wrong_step(report: Report, example: WrongStep, steps: Mapping[str, Steps], *, caption: str) -> None:
    """Add the example with every PRM's scores."""
    first = next(iter(steps.values()))
    rows = first.starts[first.items.index(example.item)] + np.array(example.nodes)
    scores = {prm: own.probability[rows].tolist() for prm, own in steps.items()}
    truths = [{1: "right", 0: "wrong"}.get(label, "") for label in first.label[rows].tolist()]
    report.example(example.problem, example.texts, scores, truths=truths, caption=caption)


def read_wrong_step(saved: Any) -> WrongStep | None:
    """The example in metrics.json; None if it has none, as in files of older versions."""
    try:
        return msgspec.convert(saved, WrongStep)
    except msgspec.ValidationError:
        return None
