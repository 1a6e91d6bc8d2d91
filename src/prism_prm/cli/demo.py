"""`prism demo`: the whole pipeline in a small world, from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.options import out_folder
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.console import say

EXAMPLES = """
**Examples**

- One world:

  `prism demo`

- Five worlds with all ablations:

  `prism demo --full --seeds 5`

- A check that everything runs:

  `prism demo --quick --out /tmp/demo`
"""


def demo(
    out: Annotated[Path, out_folder("The output folder. Finished parts in it are reused.")] = Path("prism-demo"),
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of worlds to run. Several worlds give intervals.")
    ] = 1,
    first_seed: Annotated[int, typer.Option(min=0, max=10**9, help="The seed of the first world.")] = 0,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Add all ablations, out-of-distribution tests, every way to give credit in RL, and the asymmetry map.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run a much smaller world in about a minute, to check that everything works. Its "
            "numbers mean nothing.",
        ),
    ] = False,
) -> None:
    """Train a policy, a biased base PRM and PRISM in a world where every step's truth is known, and compare them.

    Training, re-ranking, search and reinforcement learning use the same code as a large run; only the models and
    problems are small. The command ends with a table and the path of report.html. Rerun it to resume a stopped demo.
    """
    from prism_prm.lab.demo.findings import summary
    from prism_prm.lab.demo.report import QUICK
    from prism_prm.lab.demo.run_demo import run_demo
    from prism_prm.report import PAGE, percent

    found = run_demo(out, seeds=seeds, first_seed=first_seed, full=full, quick=quick)

    def show() -> None:
        # A terminal has no room for intervals, nor for many columns; the report has them.
        headers, rows = summary(found, show=lambda mean: percent(mean.value, digits=0))
        columns = list(zip(headers, *rows, strict=True))
        print_table("Summary (%)", columns[0], columns[1:])
        if quick:
            say(QUICK)
        tell(out / PAGE)

    conclude(lambda: report_facts(out), show)
