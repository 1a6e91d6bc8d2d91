"""`compare_rates`: is a PRM better than another one shifted, judged by their printed TPR and FPR alone?

A table of a paper has no scores, so the ROC curve of the base PRM is modeled: the scores of right and of wrong steps
are normal, which makes z(TPR) a straight line in z(FPR), through the printed point. Its slope is the SD of the wrong
steps' scores over that of the right steps'; 1 means equal variances. `compare_runs` needs no model, but scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

import numpy as np

from prism_prm import __version__
from prism_prm.arrays import Floats
from prism_prm.errors import ConfigError
from prism_prm.job import Job
from prism_prm.metrics import FN, FP, TN, TP, prmbench_score
from prism_prm.paths import check_name
from prism_prm.report import NO_DATA, Report, escaped, percent

SLOPES = (0.8, 1.0, 1.2)
"""Slopes of the ROC curve for which the shift is computed."""
TOLERANCE = 0.01
"""Differences in FPR up to this do not count: printed rates are rounded, and have no intervals."""
VERDICTS = {
    "within": "{name} is within what a shift of {base} gives",
    "more": "{name} is more than a shift of {base}",
    "less": "{name} is less than a shift of {base} gives",
}
"""The meaning of each verdict."""

_NORMAL = NormalDist()
_PREVALENCES = np.arange(0.005, 1, 0.005)
"""The shares of right steps that are tried for printed PRMScores."""
_PRINTED = 0.0005
"""Half of the last printed digit of a PRMScore."""
_CUTS = np.arange(-8, 8, 0.001)
"""The thresholds that are tried for the best PRMScore, in SDs above the mean of the wrong steps."""


@dataclass(frozen=True)
class Rates:
    """The TPR and FPR of a PRM, as shares."""

    tpr: float
    fpr: float
    printed: float | None = None
    """The PRMScore that the table prints, as a share."""

    @property
    def d_prime(self) -> float:
        """z(TPR) − z(FPR): the distance of right from wrong steps in SDs, which a shift does not change."""
        return _NORMAL.inv_cdf(self.tpr) - _NORMAL.inv_cdf(self.fpr)

    def shifted_fpr(self, tpr: float, slope: float = 1.0) -> float:
        """The FPR after a shift of the threshold to another TPR."""
        moved = (_NORMAL.inv_cdf(self.tpr) - _NORMAL.inv_cdf(tpr)) / slope
        return _NORMAL.cdf(_NORMAL.inv_cdf(self.fpr) - moved)

    def prm_score(self, prevalence: float) -> float:
        """PRMScore where this share of the steps is right."""
        return float(_prm_scores(np.array([self.tpr]), np.array([self.fpr]), prevalence)[0])

    def best_shifted(self, prevalence: float) -> Rates:
        """The point with the highest PRMScore that a shift reaches (equal variances)."""
        tpr, fpr = (np.array([_NORMAL.cdf(mean - cut) for cut in _CUTS]) for mean in (self.d_prime, 0.0))
        best = int(np.argmax(_prm_scores(tpr, fpr, prevalence)))
        return Rates(float(tpr[best]), float(fpr[best]))


def _prm_scores(tpr: Floats, fpr: Floats, prevalence: float) -> Floats:
    counts = np.empty((len(tpr), 4))
    counts[:, TP], counts[:, FN] = prevalence * tpr, prevalence * (1 - tpr)
    counts[:, FP], counts[:, TN] = (1 - prevalence) * fpr, (1 - prevalence) * (1 - fpr)
    return prmbench_score(counts)


@dataclass(frozen=True)
class Prevalence:
    """The share of right steps that printed PRMScores imply."""

    value: float
    """The best one; if two ranges fit, of the higher range, because most steps of benchmarks are right."""
    ranges: tuple[tuple[float, float], ...]
    """Those that fit as well, up to the rounding of one printed digit."""
    misfit: float
    """The largest difference of a printed PRMScore from that of its rates."""


def infer_prevalence(rates: Sequence[Rates]) -> Prevalence | None:
    """The prevalence with the smallest misfit to the printed PRMScores; None if none is printed."""
    misfits = [
        [abs(own.prm_score(share) - own.printed) for share in _PREVALENCES] for own in rates if own.printed is not None
    ]
    if not misfits:
        return None
    worst = np.max(misfits, axis=0)
    near = np.flatnonzero(worst <= worst.min() + _PRINTED)
    ranges = np.split(near, np.flatnonzero(np.diff(near) > 1) + 1)
    best = int(ranges[-1][worst[ranges[-1]].argmin()])
    ends = tuple((float(_PREVALENCES[some[0]]), float(_PREVALENCES[some[-1]])) for some in ranges)
    return Prevalence(float(_PREVALENCES[best]), ends, float(worst[best]))


@dataclass(frozen=True)
class RateControl:
    """The rates of a PRM, and those of the base PRM shifted to the same TPR."""

    base: str
    name: str
    base_rates: Rates
    rates: Rates

    @cached_property
    def shifted(self) -> dict[float, float]:
        """Slope → the FPR of the base PRM at this PRM's TPR."""
        return {slope: self.base_rates.shifted_fpr(self.rates.tpr, slope) for slope in SLOPES}

    @property
    def verdict(self) -> str:
        """One of VERDICTS: the FPR is in the range that the slopes give, or more than TOLERANCE below or above it."""
        if self.rates.fpr < min(self.shifted.values()) - TOLERANCE:
            return "more"
        return "less" if self.rates.fpr > max(self.shifted.values()) + TOLERANCE else "within"

    def finding(self) -> str:
        """The verdict, in words and numbers."""
        low, high = min(self.shifted.values()), max(self.shifted.values())
        return (
            f"{VERDICTS[self.verdict].format(name=self.name, base=self.base)}: at TPR {percent(self.rates.tpr)} % its "
            f"FPR is {percent(self.rates.fpr)} %, that of {self.base} shifted {percent(self.shifted[1.0])} % "
            f"({percent(low)} to {percent(high)} % for ROC slopes {SLOPES[0]} to {SLOPES[-1]})."
        )


def compare_rates(
    rates: Mapping[str, Sequence[float]], out: str | Path | None = None, *, prevalence: float | None = None
) -> Report:
    """Compare PRMs by their printed TPR and FPR: is each one better than the first one shifted?

    Printed rates have no intervals, so neither has the verdict. With scores, use `compare_runs`.

    Args:
        rates: name → TPR and FPR in percent, and the PRMScore if it is printed too; TPR is the share of right steps
            that are judged good, FPR that of wrong steps. The others are compared with the first.
        out: folder for the report, if it is to be written.
        prevalence: the share of right steps, in (0, 1), which PRMScore depends on. By default the one that fits the
            printed PRMScores; without these there is no PRMScore.

    Example:
        >>> report = compare_rates({"base": (95.36, 69.34), "new": (87.3, 47.13)}, prevalence=0.86)
        >>> report.metrics["control"]["new"]["verdict"]
        'within'
    """
    known = {check_name(name): _checked(name, pair) for name, pair in rates.items()}
    if len(known) < 2:
        raise ConfigError("give the rates of at least two PRMs, e.g. base=95.36,69.34 new=87.3,47.13")
    if prevalence is not None and not 0 < prevalence < 1:
        raise ConfigError(f"prevalence {prevalence:g}: must be above 0 and below 1")
    report = _build_report(known, prevalence)
    if out is not None:
        with Job(out):
            report.write(out)
    return report


def _checked(name: str, pair: Sequence[float]) -> Rates:
    if len(pair) not in (2, 3):
        raise ConfigError(f"{name} has {len(pair)} rates; give TPR and FPR in percent, and PRMScore if it is printed")
    given = f"{name}={','.join(f'{value:g}' for value in pair)}"
    for rate, value in zip(("TPR", "FPR", "PRMScore"), pair, strict=False):
        if not 0 < value < 100:
            raise ConfigError(f"{given}: the {rate} must be above 0 and below 100 percent, or d′ is undefined")
    if max(pair) < 1:
        raise ConfigError(f"{given}: all rates are below 1 percent; give percent, not shares")
    return Rates(*(value / 100 for value in pair))


def _build_report(known: Mapping[str, Rates], prevalence: float | None) -> Report:
    base, *others = known
    controls = {name: RateControl(base, name, known[base], known[name]) for name in others}
    report = Report(" against ".join(known) if len(known) == 2 else f"{len(known)} PRMs by their printed rates")
    report.subtitle = "By printed rates alone"
    findings = [control.finding() for control in controls.values()]
    inferred = infer_prevalence(list(known.values())) if prevalence is None else None
    if inferred is not None:
        prevalence = inferred.value
        fitting = " or ".join(f"{percent(low)} to {percent(high)}" for low, high in inferred.ranges)
        findings.append(
            f"The printed PRMScores imply that {percent(prevalence)} % of the steps are right ({fitting} % fit as "
            f"well); they differ from those of the rates by up to {percent(inferred.misfit)} points."
        )
    elif prevalence is not None:
        findings += [
            f"The printed PRMScore of {name} is {percent(own.printed)}, but its rates give "
            f"{percent(own.prm_score(prevalence))}: the prevalence or a printed number is off."
            for name, own in known.items()
            if own.printed is not None and abs(own.prm_score(prevalence) - own.printed) > TOLERANCE
        ]
    headers = ["PRM", "TPR ↑", "FPR ↓", "d′ ↑", *(f"shifted, slope {slope}" for slope in SLOPES)]
    rows = []
    for name, own in known.items():
        shifted = [percent(fpr) for fpr in controls[name].shifted.values()] if name in controls else [NO_DATA] * 3
        d_prime = f"{own.d_prime:.3f}".replace("-", "−")
        rows.append([name, percent(own.tpr, digits=2), percent(own.fpr, digits=2), d_prime, *shifted])
    report.metrics |= {
        "prism_prm": __version__,
        "prevalence": prevalence,
        "inferred_prevalence": None if inferred is None else asdict(inferred),
        "rates": {name: {"tpr": own.tpr, "fpr": own.fpr, "d_prime": own.d_prime} for name, own in known.items()},
        "control": {
            name: {
                "verdict": control.verdict,
                "shifted_fpr": {str(slope): fpr for slope, fpr in control.shifted.items()},
            }
            for name, control in controls.items()
        },
    }
    if prevalence is not None:
        best = known[base].best_shifted(prevalence)
        score = best.prm_score(prevalence)
        headers += ["PRMScore ↑", *["printed"] * any(own.printed is not None for own in known.values())]
        for row, (name, own) in zip(rows, known.items(), strict=True):
            row += [percent(own.prm_score(prevalence)), percent(own.printed)]
            del row[len(headers) :]
            report.metrics["rates"][name] |= {"prm_score": own.prm_score(prevalence), "printed_score": own.printed}
        report.metrics["best_shift"] = {"tpr": best.tpr, "fpr": best.fpr, "prm_score": score}
        findings.append(
            f"The best PRMScore that a shift of {base} reaches is {percent(score)} (TPR {percent(best.tpr)} %, FPR "
            f"{percent(best.fpr)} %)."
        )
    report.metrics["findings"] = findings
    report.finding = " ".join(map(escaped, findings))
    report.table(headers, rows, caption=f"Rates (%), and the FPR of {base} shifted to the same TPR")
    report.text(f"""
## How to read this

d′ is z(TPR) − z(FPR). The ROC curve of {escaped(base)} is modeled as a line of z(TPR) in z(FPR) through its printed
point; slope 1 means equal variances of right and wrong steps. A PRM is more than a shift if its FPR is more than
{100 * TOLERANCE:g} point below those of all slopes, and less if it is above them. Printed rates have no intervals, so
neither has the verdict. Best-of-N, search and reinforcement learning need no threshold and are not judged here.
""")
    if prevalence is not None:
        report.text(f"PRMScore is computed from the rates, with {percent(prevalence)} % of the steps right.")
    return report
