"""`prism compare`: several evaluated PRMs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.options import out_folder
from prism_prm.cli.ui import conclude, progress, report_facts, say, tell

EXAMPLES = """
Examples

`prism compare eval/base eval/prism --out eval/base-vs-prism`

`prism compare base=eval/base CL1=eval/round-1 CL2=eval/round-2 CL3=eval/round-3 --rounds --out eval/rounds`
"""


def compare(
    runs: Annotated[list[str], typer.Argument(help="Folders of `prism eval`, or NAME=FOLDER; the first is the base.")],
    out: Annotated[Path, out_folder("Folder for the report.")],
    rounds: Annotated[bool, typer.Option(help="The runs are rounds of a curriculum, in this order.")] = False,
    draws: Annotated[
        int, typer.Option(min=100, max=10**6, help="How many bootstrap draws of problems to take.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed of the draws.")] = 0,
) -> None:
    """Put PRMs side by side: rates, classes, splits, rounds, and paired differences with p-values.

    All runs must be on the same items; differences are taken from the first run. The report opens with a control: the
    first run with only its level moved to another's FNR and FPR, which shows whether a change is more than that.
    """
    from prism_prm.evaluation.compare import compare_runs
    from prism_prm.report import PAGE

    compare_runs(runs, out, rounds=rounds, num_draws=draws, seed=seed, bars=progress, say=say)
    conclude(lambda: report_facts(out), lambda: tell(out / PAGE))
