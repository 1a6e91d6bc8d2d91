"""`prism demo`: the whole story in a small world, from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.ui import print_table, progress, say

EXAMPLES = """
Examples

`prism demo`

`prism demo --full --seeds 5`

`prism demo --quick --out /tmp/demo`
"""


def demo(
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for everything that is made; what is there is reused.")
    ] = Path("prism-demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many worlds; several give intervals.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="All ablations, tests out of distribution, and every credit in RL.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A much smaller world: everything works, about a minute.")] = (
        False
    ),
) -> None:
    """Train a policy, a biased base PRM and PRISM in a world where every step's truth is known, and compare them.

    Real training, re-ranking, search and reinforcement learning with the code of a large run; only the models and
    problems are small. Ends with a table and the path of report.html. Interrupted, the same command goes on where it
    was.
    """
    from prism_prm.demo.findings import summary
    from prism_prm.demo.pipeline import run_demo
    from prism_prm.report import PAGE, percent

    found = run_demo(out, seeds=seeds, first_seed=first_seed, full=full, quick=quick, bars=progress, say=say)
    # A terminal has no room for intervals, nor for many columns; the report has them.
    headers, rows = summary(found, show=lambda mean: percent(mean.value, digits=0))
    columns = list(zip(headers, *rows, strict=True))
    print_table("Summary (%)", columns[0], columns[1:])
    say(f"Report: {out / PAGE}")
