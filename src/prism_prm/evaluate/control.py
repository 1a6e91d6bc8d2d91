"""The control of a comparison: the first PRM, with its scores shifted until it errs as often as the other one.

A PRM that calls fewer steps good always has fewer false positives. Only its difference from this control is a gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from prism_prm import metrics
from prism_prm.arrays import Floats
from prism_prm.evaluate.benchmarks import Benchmark
from prism_prm.evaluate.measure import RATES, Measured, Measurer, Table, all_rates, intervals, shown
from prism_prm.metrics import MATCHES, Shifts
from prism_prm.report import NO_DATA, Report, escaped, percent, signed_percent
from prism_prm.stats import Comparison, cluster_sums, resampled_sums

TOLERANCE = 0.01
"""How far from the other PRM's rate the control may be for a difference to say anything."""
FREE = {"fnr": "fpr", "fpr": "fnr"}
"""The rate that is matched → the one that then tells the two apart."""
VERDICTS = {
    "better": "{name} is better than {first} shifted",
    "worse": "{name} is worse than {first} shifted",
    "mixed": "{name} is better than {first} shifted in one of FPR and FNR, and worse in the other",
    "a shift": "{name} does not differ significantly from {first} shifted",
    "unmatched": "no shift of {first} reaches {name}'s rates (too many equal scores), so they cannot be compared",
}
"""Verdict → what it means."""


@dataclass(frozen=True)
class Shifted:
    """The first PRM with its log-odds shifted by a constant, fitted again in every draw."""

    shift: Measured
    rates: Table


@dataclass(frozen=True)
class Control:
    """One PRM against the first one moved to its FNR, and to its FPR."""

    first: str
    name: str
    own: Table
    """The rates of the PRM itself."""
    at: dict[str, Shifted]
    """The rate that is matched → the first PRM moved there."""
    num_fixed: int
    """Steps that no shift moves: scores of exactly 0 or 1, and those judged by redundancy."""

    def difference(self, match: str, rate: str) -> Comparison:
        """The PRM minus the control that matches its `match`."""
        return self.own[rate].minus(self.at[match].rates[rate])

    def is_matched(self, match: str) -> bool:
        """Whether the control reaches the PRM's rate."""
        return abs(self.own[match].value - self.at[match].rates[match].value) <= TOLERANCE

    @property
    def verdict(self) -> str:
        """One of VERDICTS: what the two rates that are left free say where they surely differ."""
        matched = [self.difference(match, FREE[match]) for match in MATCHES if self.is_matched(match)]
        lower, higher = any(one.high < 0 for one in matched), any(one.low > 0 for one in matched)
        if not matched:
            return "unmatched"
        return {(True, False): "better", (False, True): "worse", (True, True): "mixed"}.get((lower, higher), "a shift")


def movable_scores(benchmark: Benchmark, of: Measurer, redundancy_threshold: float) -> Floats:
    """The scores, with 1 and 0 for steps that are good, or bad, whatever the threshold."""
    easiest, hardest = (benchmark.judge(of.steps, t, redundancy_threshold) for t in (-np.inf, np.inf))
    return np.where(hardest, 1.0, np.where(easiest, of.steps.probability, 0.0))


def make_controls(measurers: Mapping[str, Measurer], scores: Floats) -> dict[str, Control]:
    """A control for every PRM but the first, whose `scores` are given; none where no shift changes its verdicts."""
    (name, first), *others = measurers.items()
    right, num_clusters = first.steps.right, first.steps.num_clusters
    keep = np.logical_and.reduce([one.steps.judged for one in measurers.values()])
    num_fixed = int(np.isin(scores[keep], (0, 1)).sum())
    if not 0 < first.threshold < 1 or num_fixed == keep.sum():
        return {}
    clusters = first.steps.step_cluster[keep]
    columns = np.concatenate([metrics.confusion(right, other.good)[keep] for _, other in others], axis=1)
    sums = cluster_sums(columns, clusters, num_clusters)
    # The first resample is everything once: the value itself; the draws follow.
    counts = np.concatenate([sums.sum(axis=0)[None], resampled_sums(sums, first.draws)])
    shifts = Shifts.of(right[keep], scores[keep])
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
        called: Control(name, called, other.rates(keep), {m: shifted(o, i) for i, m in enumerate(MATCHES)}, num_fixed)
        for o, (called, other) in enumerate(others)
    }


def control_json(control: Control) -> dict[str, Any]:
    """What goes into metrics.json."""
    return {
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


def finding(control: Control) -> str:
    """Whether the PRM is more than the first one shifted, in words and numbers."""
    return f"{_verdict(control)}. " + " ".join(_sentence(control, match) for match in MATCHES)


def headline(control: Control) -> str:
    """The finding in one sentence: what is left of the difference at the same FNR."""
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


def _sentence(control: Control, match: str) -> str:
    rate, aim = FREE[match], control.own[match].value
    shifted = control.at[match].rates
    reached = shifted[match].value
    short = "" if percent(reached) == percent(aim) else f" (it reaches {percent(reached)} %)"
    return (
        f"At {control.name}'s {match.upper()} of {percent(aim)} %{short}, {control.first} shifted has "
        f"{rate.upper()} {shown(shifted[rate])} %; {control.name} has {shown(control.own[rate])} %: "
        f"difference {signed_percent(control.difference(match, rate))} points."
    )


def add_control(report: Report, control: Control, first: Table) -> None:
    """The table of one PRM beside the first one, as it is and shifted."""
    name, base = control.name, control.first
    rows = []
    for rate in ("fpr", "fnr", "precision", "prm_score"):
        moved = [shown(shifted.rates[rate]) for shifted in control.at.values()]
        differences = [signed_percent(control.difference(match, rate)) for match in control.at]
        rows.append([RATES[rate], shown(first[rate]), *moved, shown(control.own[rate]), *differences])
    shifts = []
    for found in (shifted.shift.interval() for shifted in control.at.values()):
        bounds = "" if math.isnan(found.low) else f" [{found.low:.2f}, {found.high:.2f}]"
        shifts.append(f"{found.value:+.2f}{bounds}".replace("-", "−"))
    rows.append(["shift of log-odds", "0", *shifts, *[NO_DATA] * (1 + len(MATCHES))])
    moved_to = [f"{base} shifted to the same {match.upper()}" for match in control.at]
    minus = [f"difference at the same {match.upper()}" for match in control.at]
    caption = f"Is {name} more than {base} shifted? (%)"
    report.table(["metric", base, *moved_to, name, *minus], rows, caption=caption, best="rows", apart=minus)
    report.text(escaped(finding(control)))
    if control.num_fixed:
        report.text(
            f"{control.num_fixed:,} steps of {escaped(base)} score exactly 0 or 1, or are judged by redundancy. "
            "No shift moves them."
        )
