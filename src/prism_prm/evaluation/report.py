"""The report of one PRM: what was measured, the numbers with intervals, and figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prism_prm import __version__
from prism_prm.critics.asking import verdicts_in_words
from prism_prm.evaluation import display
from prism_prm.evaluation.benchmarks import find_benchmark
from prism_prm.evaluation.evaluate import EvalSettings, Evaluation, as_json
from prism_prm.evaluation.example import add_wrong_step
from prism_prm.evaluation.judged_steps import write_steps
from prism_prm.evaluation.measure import SubsetResult
from prism_prm.report import LOOKS, Report, escaped, looks, number, percent, remove_report, telling


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Whose scores these are."""

    name: str
    """Shown in tables and figures."""
    source: str
    """The PRM's folder or hub id, or the file the scores came from."""
    model_hash: str = ""
    tokens: int | None = None
    """Tokens behind the scores: read by a PRM, read and written by a critic. None if the scores came from a file."""
    critic: dict[str, Any] | None = None
    """How a critic was asked, and what it has cost; None for a PRM."""


def steps_file(folder: str | Path, bench: str) -> Path:
    """Where a run keeps the judged steps of a benchmark."""
    return Path(folder) / f"{bench}.steps.parquet"


def write_run(folder: str | Path, run: RunInfo, evaluations: list[Evaluation], settings: EvalSettings) -> Path:
    """Write the report, metrics.json, and the judged steps that `prism compare` reads; returns the page."""
    report = build_report(run, evaluations, settings)
    remove_report(folder)  # or a killed process could leave its steps beside another PRM's metrics
    for evaluation in evaluations:
        write_steps(steps_file(folder, evaluation.bench), evaluation.steps)
    return report.write(folder)


def build_report(run: RunInfo, evaluations: list[Evaluation], settings: EvalSettings) -> Report:
    """The report of a run."""
    report = Report(f"How well does {run.name} judge steps?", "; ".join(e.described for e in evaluations))
    report.metrics |= {
        "prism_prm": __version__,
        "run": asdict(run),
        "settings": asdict(settings.settled(None)),
        "benchmarks": {evaluation.bench: as_json(evaluation) for evaluation in evaluations},
    }
    report.finding = " ".join(_finding(run, evaluation) for evaluation in evaluations)
    for evaluation in evaluations:
        _add_benchmark(report, run, evaluation, alone=len(evaluations) == 1)
    report.text(_introduction(run, settings))
    return report


def _finding(run: RunInfo, evaluation: Evaluation) -> str:
    """The errors of both kinds in a sentence, and the benchmark's own number where it has one."""
    tables = evaluation.subsets["all"].tables
    passed, lost = (percent(tables["steps"][rate].value) for rate in ("fpr", "fnr"))
    own = find_benchmark(evaluation.bench).headlines(tables)
    *_, headline = ("", *(f"; {label.rstrip(' ↑↓')} is {percent(value.value)} %" for label, value in own.items()))
    return (
        f"On {evaluation.bench}, {escaped(run.name)} lets {passed} % of the wrong steps pass and rejects {lost} % of "
        f"the right ones (threshold {evaluation.threshold.value:.4g}){headline}."
    )


def _introduction(run: RunInfo, settings: EvalSettings) -> str:
    source = f"`{run.source}`" + (f" (model hash `{run.model_hash}`)" if run.model_hash and not run.critic else "")
    return f"""
## How to read this

Scores come from {source}.{_cost(run)} The positive class is the right step: a *false positive* is a wrong step that
was judged good, which is what misleads Best-of-N and search; a *false negative* is a right step that was judged bad,
which only costs samples. All values are percentages. Brackets are 95 % bootstrap intervals from
{settings.num_draws:,} draws of whole problems, because steps of one problem are not independent. "–" means "no data".
"""


def _cost(run: RunInfo) -> str:
    """Tokens behind the scores, and how a critic's verdicts were read."""
    tokens = "" if run.tokens is None else f" They took {run.tokens:,} tokens."
    if run.critic is None:
        return tokens
    return f"{tokens} {verdicts_in_words(run.critic)}"


def _add_benchmark(report: Report, run: RunInfo, evaluation: Evaluation, *, alone: bool) -> None:
    if not alone:
        report.text(f"## {evaluation.bench}")
    _add_curves(report, run, evaluation)
    whole, subsets = evaluation.subsets["all"], evaluation.subsets
    headers = ["metric", *(f"{name} ({subset.num_items:,} items)" for name, subset in subsets.items())]
    tables = [subset.tables["steps"] for subset in subsets.values()]
    benchmark = find_benchmark(evaluation.bench)
    benchmark.add_to_report(report, subsets)
    caption = f"Steps judged at threshold {evaluation.threshold.value:.4g} (%)"
    own = [benchmark.headlines(subset.tables) for subset in subsets.values()]
    rows = display.metric_rows(display.RATES, tables) + display.metric_rows({label: label for label in own[0]}, own)
    report.table(headers, rows, caption=caption)
    if evaluation.example is not None:
        called = telling("wrong step", [run.name])
        add_wrong_step(report, evaluation.example, {run.name: evaluation.steps}, caption=called)
    if ranking_rows := display.metric_rows(display.RANKINGS, tables):
        report.table(headers, ranking_rows, caption="Without a threshold: ranking and calibration of P(right) (%)")
    if first_rows := display.metric_rows(display.FIRST_ERRORS, tables):
        headers_here = ["first step judged bad", *headers[1:]]
        report.table(headers_here, first_rows, caption="Solutions with an error: was it found? (%)")
    if len(whole.groups) > 1 and benchmark.shows_groups:
        _add_groups(report, whole)
    if evaluation.pairs is not None:
        _add_pairs(report, run, evaluation)
    report.table(["count", *headers[1:]], _count_rows(subsets), caption="Judged steps, counted")
    report.text(_what_was_measured(evaluation))


def _what_was_measured(evaluation: Evaluation) -> str:
    whole, threshold = evaluation.subsets["all"], evaluation.threshold
    lines = [
        f"Measured: {evaluation.described}; {whole.num_steps:,} steps of {whole.num_problems:,} problems, "
        f"from {_files(evaluation.files)}."
    ]
    if evaluation.complete is False:
        lines.append("**This is only part of the benchmark**, so values do not compare with published ones.")
    if threshold.target_tpr is None:
        lines.append(f"A step is good iff its score is above {threshold.value:g} ({threshold.origin}).")
    else:
        lines.append(
            f"The threshold {threshold.value:.4f} was chosen for a TPR of {percent(threshold.target_tpr)} on "
            f"{threshold.heldout_problems:,} held-out problems ({threshold.heldout_right_steps:,} right steps, TPR "
            f"there {percent(threshold.heldout_tpr)}), which are not measured."
        )
    if "clean" in evaluation.subsets or "contaminated" in evaluation.subsets:
        lines.append("*Contaminated* items are on problems of the training data; *clean* ones are not.")
    else:
        lines.append("Whether the PRM was trained on these problems was not checked (`--trained-on`).")
    lines += [f"{count:,} {reason}." for reason, count in evaluation.notes.items() if count]
    return "\n".join(f"- {line}" for line in lines)


def _files(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{Path(name).name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{len(names)} files ({shown}, …; all are in `metrics.json`)"


def _count_rows(subsets: dict[str, SubsetResult]) -> list[list[str]]:
    names = {
        "tp": "right, judged good (TP)",
        "fn": "right, judged bad (FN)",
        "tn": "wrong, judged bad (TN)",
        "fp": "wrong, judged good (FP)",
    }
    rows = [[label, *(number(s.counts[name]) for s in subsets.values())] for name, label in names.items()]
    return [*rows, ["problems", *(number(s.num_problems) for s in subsets.values())]]


def _add_groups(report: Report, whole: SubsetResult) -> None:
    rows = [
        [name, *(display.shown(table.get(key)) for key in ("fpr", "fnr", "f1", "negative_f1", "auroc"))]
        for name, table in whole.groups.items()
    ]
    report.table(["group", "FPR ↓", "FNR ↓", "F1 ↑", "Negative F1 ↑", "AUROC ↑"], rows, caption="Steps by group (%)")


def _add_curves(report: Report, run: RunInfo, evaluation: Evaluation) -> None:
    """The trade-off of the two kinds of errors, and the scores behind it."""
    bench, threshold = evaluation.bench, evaluation.threshold.value
    with report.figure(
        f"{bench}-scores",
        caption=f"{display.SCORES} Wrong steps to its right are false positives."
        + display.TRADE * bool(evaluation.curve),
        alt=f"Distribution of the scores of right and wrong steps of {bench}, and FPR against FNR of {run.name}",
        panels=1 + bool(evaluation.curve),
    ) as panels:
        display.draw_distribution(panels[0] if evaluation.curve else panels, evaluation.histogram, threshold, LOOKS)
        if evaluation.curve:
            look = looks([run.name])
            display.draw_error_curves(panels[1], {run.name: evaluation.curve}, look, {run.name: threshold})


def _add_pairs(report: Report, run: RunInfo, evaluation: Evaluation) -> None:
    pairs: Any = evaluation.pairs
    rows = [
        [f"{low:g}–{high:g}", percent(found.value, found.low, found.high), number(size)]
        for low, high, found, size in zip(pairs.edges, pairs.edges[1:], pairs.bins, pairs.bin_sizes, strict=False)
    ]
    total = percent(pairs.overall.value, pairs.overall.low, pairs.overall.high)
    report.table(
        ["size of the margin", "accuracy", "pairs"],
        [*rows, ["all", total, number(pairs.num_pairs)]],
        caption="Pairs of a right and a wrong step under the same prefix: the right one scores higher",
    )
    with report.figure(
        f"{evaluation.bench}-pairs",
        caption="Close calls are where rankings go wrong.",
        alt="Pairwise accuracy by the size of the margin",
    ) as axes:
        display.draw_pair_accuracy(axes, pairs.edges, {run.name: pairs.bins}, looks([run.name]))
        axes.set_xlabel("size of the margin |score of right − score of wrong|")
