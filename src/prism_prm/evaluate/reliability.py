"""Reliability diagrams: are of the steps with P(right) 0.8 about 80 % right, before and after calibration?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prism_prm import metrics
from prism_prm.evaluate.measure import NUM_BINS, Measured, Measurer
from prism_prm.report import draw_curve, finish, styles

BEFORE, AFTER = "before calibration", "after calibration"


@dataclass(frozen=True)
class Reliability:
    """The calibration error of some steps, and its bins."""

    error: Measured
    bins: dict[str, list[float]]
    """Per bin with steps: mean probability, share of right steps, number of steps."""

    @classmethod
    def of(cls, measurer: Measurer) -> Reliability:
        steps, judged = measurer.steps, measurer.steps.judged
        bins = metrics.reliability(steps.right[judged], steps.probability[judged], NUM_BINS)
        return cls(measurer.calibration()["calibration_error"], bins)

    def as_json(self) -> dict[str, Any]:
        """For metrics.json."""
        return {"calibration_error": self.error.interval(), **self.bins}


def draw_reliability(axes: Any, found: Mapping[str, Reliability]) -> None:
    """Draw the share of right steps over the mean probability of each bin; the diagonal is perfect."""
    axes.plot([0, 1], [0, 1], color=axes.xaxis.label.get_color(), linewidth=1, linestyle=":")
    for name, style in styles(list(found)).items():
        draw_curve(axes, found[name].bins["probability"], found[name].bins["right"], name, style)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    finish(axes, "P(right) by the PRM (%)", "steps that are right (%)", title="Reliability", percent="xy")
