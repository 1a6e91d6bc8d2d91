"""`prism compare`: several evaluated PRMs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prism_prm.cli.options import Command, Out
from prism_prm.cli.ui import conclude, report_facts, tell
from prism_prm.config import Natural, Range, check


@dataclass(frozen=True, slots=True)
class CompareCommand:
    """The settings of `prism compare`."""

    runs: tuple[str, ...] = ()
    """Folders of `prism eval`, or NAME=FOLDER. Differences are taken from the first."""
    rounds: bool = False
    """Treat the runs as rounds of a curriculum, in this order."""
    num_draws: Annotated[int, Range(100)] = 1000
    """The number of bootstrap draws of problems for the intervals."""
    seed: Natural = 0
    """The seed for the draws."""

    def __post_init__(self) -> None:
        check(self)


def compare(settings: CompareCommand, out: Path) -> None:
    """Put PRMs side by side: rates, classes, splits, rounds, and paired differences with p-values.

    All runs must be on the same items. The report opens with a control: the first run's scores shifted to the other's
    FNR and FPR, which shows whether the change is more than a shift of the threshold.
    """
    from prism_prm.evaluate.compare import compare_runs
    from prism_prm.report import PAGE

    compare_runs(settings.runs, out, rounds=settings.rounds, num_draws=settings.num_draws, seed=settings.seed)
    conclude(lambda: report_facts(out), lambda: tell(out / PAGE))


COMMAND = Command(
    CompareCommand,
    compare,
    argument="runs",
    out=Out("Folder for the report."),
    options={"--rounds": "rounds"},
    examples={
        "Two PRMs": "prism compare eval/base eval/prism --out eval/base-vs-prism",
        "The rounds of a curriculum":
            "prism compare base=eval/base CL1=eval/round-1 CL2=eval/round-2 --rounds --out eval/rounds",
    },
)  # fmt: skip
