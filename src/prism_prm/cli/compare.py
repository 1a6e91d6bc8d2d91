"""`prism compare`: several evaluated PRMs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.options import out_folder
from prism_prm.cli.ui import conclude, report_facts, tell

EXAMPLES = """
**Examples**

- Two PRMs:

  `prism compare eval/base eval/prism --out eval/base-vs-prism`

- The rounds of a curriculum:

  `prism compare base=eval/base CL1=eval/round-1 CL2=eval/round-2 CL3=eval/round-3 --rounds --out eval/rounds`
"""


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Folders written by `prism eval`, or NAME=FOLDER. Differences are taken from the first."),
    ],
    out: Annotated[Path, out_folder("Folder for the report.")],
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Treat the runs as rounds of a curriculum, in this order.")
    ] = False,
    draws: Annotated[
        int, typer.Option(min=100, max=10**6, help="The number of bootstrap draws of problems for the intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed for the draws.")] = 0,
) -> None:
    """Put PRMs side by side: rates, classes, splits, rounds, and paired differences with p-values.

    All runs must be on the same items; differences are taken from the first run. The report opens with a control, the
    first run's scores shifted to the other's FNR and FPR, which shows whether the change is more than a shift.
    """
    from prism_prm.evaluate.compare import compare_runs
    from prism_prm.report import PAGE

    compare_runs(runs, out, rounds=rounds, num_draws=draws, seed=seed)
    conclude(lambda: report_facts(out), lambda: tell(out / PAGE))
