"""What a benchmark is: how it is read, and what it measures and shows beside what every benchmark does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from prism_prm.evaluation.items import ItemSet
from prism_prm.evaluation.judged_steps import Steps
from prism_prm.evaluation.measure import Measured, Measurer, SubsetResult, Tables
from prism_prm.metrics.counts import Bools
from prism_prm.report import Report
from prism_prm.statistics import NUM_DRAWS, SEED

REDUNDANCY_THRESHOLD = 0.15


@dataclass(frozen=True)
class Benchmark:
    """A value: `read` is all a benchmark needs; the rest is what makes it special."""

    read: Callable[..., ItemSet]
    """Takes the files, folders or hub ids; and a `split`, where it has any."""
    hub: str | None = None
    """Its home on the hub, read where no data is given."""
    has_splits: bool = False
    """Whether it can be a folder of `prism pairs`, with splits to choose from."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Groups whose items are in no total → what these are called; predictions may leave them out."""
    by_redundancy: tuple[str, ...] = ()
    """Groups whose steps are judged by their redundancy score, where a PRM has one."""
    measure: Callable[[Measurer], Tables] = lambda _: {}
    """Tables of its own metrics, by name; the measurer has all items, also those that are in no total."""
    headlines: Callable[[Tables], dict[str, Measured]] = lambda _: {}
    """Its own numbers to print and to compare PRMs by: label → one of the measured."""
    shows_groups: bool = True
    """Whether reports have the plain table of groups; not where `add_to_report` has a better one."""
    add_to_report: Callable[[Report, Mapping[str, SubsetResult]], None] = lambda *_: None
    """Its own part of the report on one PRM, given what was measured on all, clean and contaminated items."""
    add_to_comparison: Callable[[Report, Mapping[str, Tables]], None] = lambda *_: None
    """Its own part of a comparison, given every PRM's tables."""

    def in_total(self, steps: Steps) -> Steps:
        """The steps that are in totals."""
        names = [name for name in steps.group_names if name not in self.aside]
        return steps if len(names) == len(steps.group_names) else steps.only_groups(names)

    def judge(self, steps: Steps, threshold: float, redundancy_threshold: float = REDUNDANCY_THRESHOLD) -> Bools:
        """Which steps count as good: those above the threshold, or of some groups those that are not redundant."""
        good = steps.probability > threshold
        if steps.redundancy is None:
            return good
        by_redundancy = np.isin(steps.group_names, self.by_redundancy)[steps.step_group]
        return np.where(by_redundancy, ~(steps.redundancy > redundancy_threshold), good)

    def tables(
        self,
        steps: Steps,
        threshold: float,
        redundancy_threshold: float = REDUNDANCY_THRESHOLD,
        num_draws: int = NUM_DRAWS,
        seed: int = SEED,
    ) -> tuple[Measurer, Tables]:
        """The table `steps`, which every benchmark has, and its own ones; and the measurer of the totals."""

        def measurer(of: Steps) -> Measurer:
            return Measurer(of, threshold, num_draws, seed, self.judge(of, threshold, redundancy_threshold))

        total = measurer(self.in_total(steps))
        common = {**total.rates(), **total.rankings(), **total.calibration(), **total.first_errors()}
        return total, {"steps": common, **self.measure(total if total.steps is steps else measurer(steps))}
