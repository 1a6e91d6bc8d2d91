"""`prism demo`: the whole pipeline in a small world, from nothing to a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prism_prm.cli.options import Command, Out
from prism_prm.cli.ui import conclude_report, print_table
from prism_prm.config import Natural, Range, check
from prism_prm.console import say


@dataclass(frozen=True, slots=True)
class DemoCommand:
    """The settings of `prism demo`."""

    seeds: Annotated[int, Range(1, 1000)] = 1
    """The number of worlds to run. Several worlds give intervals."""
    first_seed: Natural = 0
    """The seed of the first world."""
    full: bool = False
    """Add all ablations, out-of-distribution tests, every way to give credit in RL, and the asymmetry map."""
    quick: bool = False
    """Run a much smaller world in about a minute, to check that everything works. Its numbers mean nothing."""

    def __post_init__(self) -> None:
        check(self)


def demo(settings: DemoCommand, out: Path) -> None:
    """Train a policy, a biased base PRM and PRISM in a world where every step's truth is known, and compare them.

    Training, re-ranking, search and reinforcement learning use the same code as a large run; only the models and
    problems are small. Ends with a table and the path of report.html. Rerun to resume.
    """
    from prism_prm.lab.demo.findings import summary
    from prism_prm.lab.demo.report import QUICK
    from prism_prm.lab.demo.run_demo import run_demo
    from prism_prm.report import percent

    found = run_demo(
        out, seeds=settings.seeds, first_seed=settings.first_seed, full=settings.full, quick=settings.quick
    )

    def show() -> None:
        # A terminal has no room for intervals, nor for many columns; the report has them.
        headers, rows = summary(found, show=lambda mean: percent(mean.value, digits=0))
        columns = list(zip(headers, *rows, strict=True))
        print_table("Summary (%)", columns[0], columns[1:])
        if settings.quick:
            say(QUICK)

    conclude_report(out, show)


COMMAND = Command(
    DemoCommand,
    demo,
    out=Out("The output folder. Finished parts in it are reused.", default="prism-demo"),
    options={"--seeds": "seeds", "--full": "full", "--quick": "quick"},
    examples={
        "One world, in about six minutes": "prism demo",
        "Five worlds with all ablations": "prism demo --full --seeds 5",
        "A check that everything runs": "prism demo --quick --out /tmp/demo",
    },
)
