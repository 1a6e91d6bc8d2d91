"""`compare_runs`: compare evaluated PRMs on the same steps and the same bootstrap draws, and write a report.

A PRM that calls fewer steps good always has fewer false positives. So each PRM is compared with a control: the first
PRM, with its scores shifted until it has the same FNR (or FPR). Only a difference from the control is a gain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prism_prm import __version__, metrics
from prism_prm.arrays import Floats
from prism_prm.console import progress, say
from prism_prm.data.inputs import keep_inputs
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks import find_benchmark
from prism_prm.evaluate.measure import (
    AUROCS,
    NO_SIBLINGS,
    RANKINGS,
    RATES,
    Measured,
    Measurer,
    Steps,
    Table,
    Tables,
    all_rates,
    error_curve,
    histogram,
    intervals,
    known_aurocs,
    metric_rows,
    read_steps,
    shown,
)
from prism_prm.evaluate.report import (
    SCORES,
    TRADE,
    WrongStep,
    add_wrong_step,
    draw_distribution,
    draw_error_curves,
    figure_name,
    read_wrong_step,
    steps_file,
)
from prism_prm.file_types import read_json
from prism_prm.job import Job
from prism_prm.metrics import MATCHES, Ranking, Shifts
from prism_prm.paths import split_name
from prism_prm.report import NO_DATA, STYLES, Report, draw_curve, escaped, finish, percent, signed_percent, telling
from prism_prm.stats import NUM_DRAWS, SEED, Comparison, cluster_sums, resampled_sums

SHOWN = 3
"""How many names a message lists."""
PAPER_RATES = ("fpr", "fnr", "precision", "tpr", "tnr", "prm_score")
TESTED = ("fpr", "fnr", "precision", "f1", "negative_f1", "prm_score", *AUROCS, "fpr_at_tpr_90", "fpr_at_tpr_95",
          "calibration_error")  # fmt: skip


@dataclass(frozen=True)
class EvalRun:
    """The folder of one `prism eval`."""

    name: str
    folder: Path
    metrics: dict[str, Any]

    @property
    def benches(self) -> list[str]:
        """The benchmarks that it was evaluated on."""
        return list(self.metrics["benchmarks"])

    def threshold(self, bench: str) -> float:
        """The threshold that it was judged at."""
        return float(self.metrics["benchmarks"][bench]["threshold"]["value"])


class _Named(msgspec.Struct):
    name: str


class _Threshold(msgspec.Struct):
    value: float


class _Benchmark(msgspec.Struct):
    threshold: _Threshold


class _Metrics(msgspec.Struct):
    """The required content of metrics.json."""

    run: _Named
    benchmarks: dict[str, _Benchmark]


def load_run(given: str) -> EvalRun:
    """Load a run from `FOLDER` or `NAME=FOLDER`."""
    name, place = split_name(given)
    folder = Path(place)
    path = folder / "metrics.json"
    try:
        metrics = read_json(path)
        json.dumps(metrics, ensure_ascii=False).encode()  # raises on half of a surrogate pair, which JSON can escape
        known = msgspec.convert(metrics, _Metrics)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: no such file; name folders written by `prism eval`, and rerun `prism eval` if it was stopped"
        ) from None
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        raise DataError(f"{path}: not the metrics of `prism eval` ({error})") from error
    if not known.benchmarks:
        raise DataError(f"{path}: has no benchmark; rerun `prism eval`")
    return EvalRun(name or known.run.name, folder, metrics)


def load_runs(given: Sequence[str]) -> list[EvalRun]:
    """Load two or more runs, and make their names unique."""
    if len(given) < 2:
        raise ConfigError("name at least two runs to compare")
    runs = [load_run(run) for run in given]
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return runs
    # Runs of one PRM are named by their folders.
    runs = [replace(run, name=run.folder.name) if names.count(run.name) > 1 else run for run in runs]
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError(f"runs have the same name ({', '.join(names)}); give them names: NAME=FOLDER")
    return runs


def shared_benches(runs: Sequence[EvalRun]) -> tuple[list[str], list[str]]:
    """The benchmarks that all runs have, and those that only some have."""
    every = list(dict.fromkeys(bench for run in runs for bench in run.benches))
    shared = [bench for bench in every if all(bench in run.benches for run in runs)]
    if not shared:
        by_run = "; ".join(f"{run.name}: {', '.join(run.benches)}" for run in runs)
        raise DataError(f"no benchmark is in all runs ({by_run}); rerun `prism eval` with the same --bench for all")
    return shared, [bench for bench in every if bench not in shared]


def load_steps(runs: Sequence[EvalRun], bench: str) -> dict[str, Steps]:
    """Load the judged steps of every run. Raises unless all runs have the same texts with the same labels."""
    steps = {run.name: read_steps(steps_file(run.folder, bench)) for run in runs}
    for run in runs:
        if steps[run.name].item_content is None:
            raise DataError(
                f"{run.name}: {steps_file(run.folder, bench)} was written by an earlier version without hashes of the "
                "texts, so it cannot be compared safely; rerun `prism eval`"
            )
    first, a = runs[0].name, steps[runs[0].name]
    for other in runs[1:]:
        b = steps[other.name]
        for name, mine, theirs in ((first, a, b), (other.name, b, a)):
            known = set(theirs.items)
            if extra := [item for item in mine.items if item not in known]:
                raise DataError(
                    f"{bench}: {name} has {len(extra):,} of {len(mine.items):,} items that the other run does not have "
                    f"({', '.join(extra[:SHOWN])}, …). Only runs on the same items can be compared: rerun `prism eval` "
                    "with the same --data, --limit, --target-tpr and seed for both"
                )
        content_a, content_b = (dict(zip(run.items, run.item_content or (), strict=True)) for run in (a, b))
        if differing := [item for item, content in content_a.items() if content_b[item] != content]:
            raise DataError(
                f"{bench}: {first} and {other.name} have {len(differing):,} of {len(a.items):,} items with the same "
                f"names but other texts or labels ({', '.join(differing[:SHOWN])}, …); evaluate both on the same files"
            )
        columns = ((a.starts, b.starts), (a.parent, b.parent), (a.label, b.label))
        if a.items != b.items or not all(np.array_equal(*pair) for pair in columns):
            raise DataError(
                f"{bench}: {first} and {other.name} have the same items in a different order; evaluate both on the "
                "same files"
            )
    return steps


@dataclass(frozen=True)
class Compared:
    """One benchmark: every PRM's steps and tables, all measured on the same draws."""

    bench: str
    thresholds: dict[str, float]
    steps: dict[str, Steps]
    """By PRM: the steps that count in totals."""
    tables: dict[str, Tables]
    """By PRM and name of the table."""
    controls: dict[str, Control]
    """By PRM; empty if the first PRM's scores cannot be shifted."""
    example: WrongStep | None = None
    """The wrong step that the first PRM scores highest, if its run has one."""

    @property
    def runs(self) -> list[str]:
        """The names of the PRMs; the others are compared with the first."""
        return list(self.tables)


def compare_bench(runs: Sequence[EvalRun], bench: str, *, num_draws: int = NUM_DRAWS, seed: int = SEED) -> Compared:
    """Measure all runs on the same draws."""
    benchmark = find_benchmark(bench)
    steps = load_steps(runs, bench)
    thresholds = {run.name: run.threshold(bench) for run in runs}
    redundancy = {run.name: float(run.metrics["settings"]["redundancy_threshold"]) for run in runs}
    measured = {
        name: benchmark.tables(own, thresholds[name], redundancy[name], num_draws, seed) for name, own in steps.items()
    }
    totals = {name: total for name, (total, _) in measured.items()}
    first = totals[runs[0].name]
    # Steps that are good, or bad, at every threshold get the scores 1 and 0, which no shift moves.
    easiest, hardest = (benchmark.judge(first.steps, t, redundancy[runs[0].name]) for t in (-np.inf, np.inf))
    movable = np.where(hardest, 1.0, np.where(easiest, first.steps.probability, 0.0))
    return Compared(
        bench, thresholds, {name: total.steps for name, total in totals.items()},
        {name: tables for name, (_, tables) in measured.items()},
        make_controls(totals, movable),
        read_wrong_step(runs[0].metrics["benchmarks"][bench].get("example")),
    )  # fmt: skip


def compare_runs(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    rounds: bool = False,
    num_draws: int = NUM_DRAWS,
    seed: int = SEED,
) -> Report:
    """Compare evaluated PRMs (rates, classes, paired differences with p-values), and write a report.

    The report opens with a control: is each PRM better than the first one with its scores shifted?

    Args:
        runs: folders written by `evaluate_prm`, or NAME=FOLDER; all on the same items. The others are compared with
            the first.
        out: folder for the report.
        rounds: treat the runs as rounds of a curriculum, in this order.
        num_draws: bootstrap draws of problems.
        seed: the seed for the draws.

    Example:
        >>> settings = EvalSettings(num_draws=100)
        >>> for name in ("base", "mine"):
        ...     prm = init_prm("my-lm", seed=len(name))
        ...     _ = evaluate_prm(prm, "labeled", f"eval-{name}", data="labeled.jsonl", name=name, settings=settings)
        >>> report = compare_runs(["eval-base", "eval-mine"], "compared", num_draws=100)
        >>> report.title
        'base against mine'
    """
    loaded = load_runs([str(run) for run in runs])
    keep_inputs([run.folder / "metrics.json" for run in loaded], [Path(out) / "metrics.json"])
    shared, left_out = shared_benches(loaded)
    if left_out:
        say(f"left out, because not in all runs: {', '.join(left_out)}")
    compared = []
    with Job(out):
        for bench in shared:
            with progress(f"comparing on {bench}", num_draws, unit="draws") as advance:
                compared.append(compare_bench(loaded, bench, num_draws=num_draws, seed=seed))
                advance(num_draws)
            for line in _findings(compared[-1]):
                say(line)
        report = build_comparison(loaded, compared, left_out=left_out, rounds=rounds)
        report.write(out)
    return report


def build_comparison(
    runs: Sequence[EvalRun], compared: Sequence[Compared], *, left_out: Sequence[str], rounds: bool
) -> Report:
    """Build the report. The other runs are compared with the first; with `rounds`, runs are rounds in order."""
    names = [run.name for run in runs]
    report = Report(" against ".join(names) if len(names) == 2 else f"{len(names)} PRMs side by side")
    report.subtitle = "; ".join(runs[0].metrics["benchmarks"][one.bench]["described"] for one in compared)
    findings = [
        line
        for one in compared
        for line in [f"On {one.bench}, {headline(control)}" for control in one.controls.values()] or _findings(one)
    ]
    report.finding = " ".join(map(escaped, findings))
    for one in compared:
        if len(compared) > 1:
            report.text(f"## {one.bench}")
        _add_benchmark(report, one, rounds=rounds)
    tokens = {run.name: run.metrics["run"].get("tokens") for run in runs}
    if any(tokens.values()):
        caption = "Tokens behind the scores: read by a PRM, read and written by a critic ↓"
        report.counts("PRM", tokens, caption=caption, unit="tokens")
    without = f" Left out, because not in all runs: {', '.join(left_out)}." if left_out else ""
    report.text(f"""
## How to read this

All PRMs judged the same steps. Values are percentages with 95 % bootstrap intervals over problems. Differences from
**{escaped(names[0])}** are in percentage points and paired: the same problems are drawn for every PRM, so problems that
are hard for all of them cancel out. p is two-sided and not corrected for the number of comparisons.{without}
""")
    report.metrics |= {
        "prism_prm": __version__,
        "runs": {run.name: {"folder": run.folder.name, **run.metrics["run"]} for run in runs},
        "benchmarks": {one.bench: _as_json(one) for one in compared},
    }
    return report


def _findings(one: Compared) -> list[str]:
    """For each PRM, whether it is better than the first one shifted."""
    if not one.controls:
        return [
            f"{one.bench}: {one.runs[0]} cannot be shifted (only verdicts, or a threshold of 0 or 1), so there is no "
            "control."
        ]
    return [f"{one.bench}: {finding(control)}" for control in one.controls.values()]


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
        "control": {
            name: {
                "verdict": control.verdict,
                "finding": finding(control),
                "steps_that_no_shift_moves": control.num_fixed,
                **{
                    f"at_{match}": {
                        "shift_of_log_odds": shifted.shift.interval(),
                        "matched": control.is_matched(match),
                        "metrics": intervals(shifted.rates),
                        "differences": {rate: control.difference(match, rate) for rate in shifted.rates},
                    }
                    for match, shifted in control.at.items()
                },
            }
            for name, control in one.controls.items()
        },
    }


def _add_benchmark(report: Report, one: Compared, *, rounds: bool) -> None:
    first, *others = one.runs
    benchmark, tables = find_benchmark(one.bench), {name: own["steps"] for name, own in one.tables.items()}
    curves = {name: curve for name in one.runs if (curve := error_curve(one.steps[name]))}
    with report.figure(
        figure_name(one.bench, "scores"),
        caption=SCORES + TRADE * bool(curves),
        alt=f"FPR against FNR, and distributions of scores, of {', '.join(one.runs)} on {one.bench}",
        panels=bool(curves) + len(one.runs),
    ) as panels:
        if curves:
            draw_error_curves(panels[0], curves, one.thresholds)
        for axes, name in zip(panels[bool(curves) :], one.runs, strict=True):
            draw_distribution(axes, histogram(one.steps[name]), one.thresholds[name], name)
    if rounds:
        names = ("prm_score", "fpr", "fnr", "precision")
        rows = [[name, *(shown(table[metric]) for metric in names)] for name, table in tables.items()]
        report.table(
            ["round", *(RATES[metric] for metric in names)], rows, caption="Training rounds (%)", best="columns"
        )
        with report.figure(
            figure_name(one.bench, "rounds"),
            caption="Metrics over the rounds of training, with 95 % intervals.",
            alt=f"FPR, FNR and precision over the rounds {', '.join(one.runs)}",
        ) as axes:
            for metric, style in zip(("fpr", "fnr", "precision"), STYLES, strict=False):
                points = [table[metric].interval() for table in tables.values()]
                draw_curve(axes, range(len(points)), points, RATES[metric], style)
            axes.set_xticks(range(len(one.runs)), one.runs)
            finish(axes, "", "%")

    base, rows = tables[first]["fpr"].value, []
    for name, table in tables.items():
        reduction = 1 - table["fpr"].value / base if base else float("nan")
        rows.append([name, *(shown(table[metric]) for metric in PAPER_RATES), percent(reduction)])
    headers = ["PRM", *(RATES[metric] for metric in PAPER_RATES), "FPR reduction ↑"]
    report.table(headers, rows, caption="Rates, steps pooled (%)", best="columns")
    if rows := metric_rows(RANKINGS, list(tables.values())):
        report.table(["metric", *one.runs], rows, caption="Without a threshold (%)", best="rows")
    for control in one.controls.values():
        add_control(report, control, tables[first])
    if one.example is not None and one.example.item in one.steps[first].items:
        add_wrong_step(report, one.example, one.steps, caption=telling("wrong step", [first]))
    labels = {**RATES, **RANKINGS}
    tested = {
        name: {labels[metric]: table[metric] for metric in TESTED if metric in table}
        | benchmark.headlines(one.tables[name])
        for name, table in tables.items()
    }
    for name in others:
        a, b = tested[name], tested[first]
        differences = [
            ([label], a[label].minus(b[label]) if label in a and label in b else None) for label in {**a, **b}
        ]
        report.differences(["metric"], differences, caption=f"{name} minus {first} (percentage points)")
    benchmark.add_to_comparison(report, one.tables)
    parts = ", ".join(f"{escaped(name)} {one.thresholds[name]:.4g}" for name in one.runs)
    siblings = "" if "auroc_prefix" in known_aurocs(tables.values()) else f" {NO_SIBLINGS}"
    report.text(f"Thresholds: {parts}.{siblings}")


# --- the control

TOLERANCE = 0.01
"""The maximum distance of the control's rate from the PRM's for which the two count as matched."""
FREE = {"fnr": "fpr", "fpr": "fnr"}
"""By matched rate: the other rate, on which the two are compared."""
VERDICTS = {
    "better": "{name} is better than {first} shifted",
    "worse": "{name} is worse than {first} shifted",
    "mixed": "{name} is better than {first} shifted in one of FPR and FNR, and worse in the other",
    "a shift": "{name} does not differ significantly from {first} shifted",
    "unmatched": "no shift of {first} reaches {name}'s rates (too many equal scores), so they cannot be compared",
}
"""The meaning of each verdict."""


@dataclass(frozen=True)
class Shifted:
    """The first PRM with its log-odds shifted by a constant, which is fitted in every draw."""

    shift: Measured
    rates: Table


@dataclass(frozen=True)
class Control:
    """One PRM, and the first PRM shifted to the same FNR and to the same FPR."""

    first: str
    name: str
    own: Table
    """The rates of the PRM itself."""
    at: dict[str, Shifted]
    """By matched rate: the first PRM shifted."""
    num_fixed: int
    """Steps that no shift moves: scores of exactly 0 or 1, and those judged by redundancy."""

    def difference(self, match: str, rate: str) -> Comparison:
        """The PRM minus the control with the same `match`."""
        return self.own[rate].minus(self.at[match].rates[rate])

    def is_matched(self, match: str) -> bool:
        """Whether the control reaches the PRM's rate."""
        return abs(self.own[match].value - self.at[match].rates[match].value) <= TOLERANCE

    @property
    def verdict(self) -> str:
        """One of VERDICTS, from the significant differences in the rates that are not matched."""
        matched = [self.difference(match, FREE[match]) for match in MATCHES if self.is_matched(match)]
        lower = any(difference.high < 0 for difference in matched)
        higher = any(difference.low > 0 for difference in matched)
        if not matched:
            return "unmatched"
        return {(True, False): "better", (False, True): "worse", (True, True): "mixed"}.get((lower, higher), "a shift")


def make_controls(measurers: Mapping[str, Measurer], scores: Floats) -> dict[str, Control]:
    """A control for every PRM but the first, whose scores are `scores`; empty if no shift changes its verdicts."""
    (name, first), *others = measurers.items()
    right, num_clusters = first.steps.right, first.steps.num_clusters
    keep = np.logical_and.reduce([measurer.steps.judged for measurer in measurers.values()])
    num_fixed = int(np.isin(scores[keep], (0, 1)).sum())
    if not 0 < first.threshold < 1 or num_fixed == keep.sum():
        return {}
    clusters = first.steps.step_cluster[keep]
    columns = np.concatenate([metrics.confusion(right, other.good)[keep] for _, other in others], axis=1)
    sums = cluster_sums(columns, clusters, num_clusters)
    # The first resample has every problem once, which gives the value itself; the draws follow.
    counts = np.concatenate([sums.sum(axis=0)[None], resampled_sums(sums, first.draws)])
    shifts = Shifts(Ranking.of(right[keep], scores[keep]))
    cuts, reached = shifts.fit(
        chain([np.ones(num_clusters, np.int64)], first.draws), clusters, counts.reshape(len(counts), len(others), 4)
    )
    amounts = shifts.amounts(first.threshold)[cuts]

    def measured(values: Floats) -> Measured:
        return Measured(float(values[0]), values[1:], num_clusters)

    def shifted(o: int, m: int) -> Shifted:
        rates = {rate: measured(values) for rate, values in all_rates(reached[:, o, m]).items()}
        return Shifted(measured(amounts[:, o, m]), rates)

    return {
        prm: Control(name, prm, other.rates(keep), {m: shifted(o, i) for i, m in enumerate(MATCHES)}, num_fixed)
        for o, (prm, other) in enumerate(others)
    }


def finding(control: Control) -> str:
    """Whether the PRM is better than the first one shifted, in words and numbers."""
    sentences = [f"{_verdict(control)}."]
    for match, moved in control.at.items():
        rate, target, reached = FREE[match], control.own[match].value, moved.rates[match].value
        short = "" if percent(reached) == percent(target) else f" (it reaches {percent(reached)} %)"
        sentences.append(
            f"At {control.name}'s {match.upper()} of {percent(target)} %{short}, {control.first} shifted has "
            f"{rate.upper()} {shown(moved.rates[rate])} %; {control.name} has {shown(control.own[rate])} %: "
            f"difference {signed_percent(control.difference(match, rate))} points."
        )
    return " ".join(sentences)


def headline(control: Control) -> str:
    """The finding in one sentence: the difference at the same FNR."""
    match = next(iter(MATCHES))
    rate = FREE[match]
    own, moved = control.own, control.at[match].rates
    if control.verdict == "unmatched":
        return f"{_verdict(control)}."
    return (
        f"{_verdict(control)}: at the same {match.upper()} ({percent(own[match].value)} %) its {rate.upper()} is "
        f"{percent(own[rate].value)} %, that of {control.first} shifted {percent(moved[rate].value)} %."
    )


def _verdict(control: Control) -> str:
    return VERDICTS[control.verdict].format(first=control.first, name=control.name)


def add_control(report: Report, control: Control, first: Table) -> None:
    """Add the table of one PRM beside the first one, as it is and shifted."""
    name, base = control.name, control.first
    rows = []
    for rate in ("fpr", "fnr", "precision", "prm_score"):
        moved = [shown(shifted.rates[rate]) for shifted in control.at.values()]
        differences = [signed_percent(control.difference(match, rate)) for match in control.at]
        rows.append([RATES[rate], shown(first[rate]), *moved, shown(control.own[rate]), *differences])
    shifts = []
    for shift in (shifted.shift.interval() for shifted in control.at.values()):
        bounds = "" if math.isnan(shift.low) else f" [{shift.low:.2f}, {shift.high:.2f}]"
        shifts.append(f"{shift.value:+.2f}{bounds}".replace("-", "−"))
    rows.append(["shift of log-odds", "0", *shifts, *[NO_DATA] * (1 + len(MATCHES))])
    moved_to = [f"{base} shifted to the same {match.upper()}" for match in control.at]
    minus = [f"difference at the same {match.upper()}" for match in control.at]
    caption = f"Is {name} better than {base} shifted? (%)"
    report.table(["metric", base, *moved_to, name, *minus], rows, caption=caption, best="rows", apart=minus)
    report.text(escaped(finding(control)))
    if control.num_fixed:
        report.text(
            f"{control.num_fixed:,} steps of {escaped(base)} score exactly 0 or 1, or are judged by redundancy. "
            "No shift moves them."
        )
