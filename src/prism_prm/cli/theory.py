"""`prism theory`: the closed forms, checked by playing them out and on real scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.options import out_folder
from prism_prm.cli.ui import conclude, progress, report_facts, tell

EXAMPLES = """
Examples

`prism theory --out theory` (closed forms, Monte-Carlo, figure of FP versus FN, simulation)

`prism theory --p 0.4 --alpha 0.1 --beta 0.3 --no-simulate --out theory`

`prism theory --runs eval/prism --runs eval/base --out theory` (does prism dominate base? is it a shift?)

`prism theory --pool pool.jsonl --scores scores.parquet --aggregator min --threshold 0.5 --out theory`
"""


def theory(
    out: Annotated[Path, out_folder("Folder for the report.")],
    p: Annotated[float, typer.Option(help="Share of right solutions.")] = 0.3,
    alpha: Annotated[float, typer.Option(help="FPR of the verifier, on solutions.")] = 0.2,
    beta: Annotated[float, typer.Option(help="FNR of the verifier, on solutions.")] = 0.2,
    simulate: Annotated[bool, typer.Option(help="Train small networks pointwise and pairwise (about 15 s).")] = True,
    runs: Annotated[
        list[str] | None, typer.Option(help="Two folders of `prism eval` (NAME=FOLDER): check ROC dominance, A then B.")
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="A pool of solutions: measure p, α and β on it and predict Best-of-N.")
    ] = None,
    scores: Annotated[Path | None, typer.Option(help="Scores of the pool's solutions, if it holds none.")] = None,
    aggregator: Annotated[
        str, typer.Option(help="From step scores to a solution's: last, min, product, mean, soft-min.")
    ] = "min",
    threshold: Annotated[float, typer.Option(help="A solution is accepted above this.")] = 0.5,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
) -> None:
    """Show what verifier errors do to Best-of-N, search and training; check it on real scores."""
    from prism_prm.report import PAGE
    from prism_prm.theory_report.closed_forms import VerifierSettings
    from prism_prm.theory_report.pipeline import report_theory

    settings = VerifierSettings(p, alpha, beta, seed=seed)
    report_theory(
        out, settings, simulate=simulate, runs=runs or (), pool=pool or (), scores=scores, aggregator=aggregator,
        threshold=threshold, bars=progress,
    )  # fmt: skip
    conclude(lambda: report_facts(out), lambda: tell(out / PAGE))
