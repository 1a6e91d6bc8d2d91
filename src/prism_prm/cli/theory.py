"""`prism theory`: the closed forms, checked by simulation and on real scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import Options, out_folder, with_settings
from prism_prm.cli.ui import conclude, progress, report_facts, tell

if TYPE_CHECKING:
    from prism_prm.theory_report.closed_forms import VerifierSettings

EXAMPLES = """
**Examples**

- Closed forms, Monte Carlo, false positives against false negatives, and the simulation:

  `prism theory --out theory`

- Your own error rates, without the simulation:

  `prism theory --p 0.4 --alpha 0.1 --beta 0.3 --no-simulate --out theory`

- Does one PRM dominate another, and is it merely a shift:

  `prism theory --runs eval/prism --runs eval/base --out theory`

- Predicted against measured Best-of-N:

  `prism theory --pool pool.jsonl --scores scores.parquet --aggregator min --threshold 0.5 --out theory`
"""


@with_settings(
    settings=Options("prism_prm.theory_report.closed_forms:VerifierSettings", {"": ("p", "alpha", "beta", "seed")})
)
def theory(
    *,
    out: Annotated[Path, out_folder("Folder for the report.")],
    settings: VerifierSettings,
    simulate: Annotated[bool, typer.Option(help="Train small networks pointwise and pairwise (about 15 s).")] = True,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            help="Two folders written by `prism eval` (or NAME=FOLDER): check whether the first's ROC curve dominates "
            "the second's."
        ),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(help="A pool of solutions on which p, α and β are measured to predict Best-of-N."),
    ] = None,
    scores: Annotated[Path | None, typer.Option(help="Scores of the pool's solutions, if the pool has none.")] = None,
    answer_field: Annotated[
        str | None, typer.Option(help="The field of the pool that holds the reference answer, if it is not `answer`.")
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option(
            help="How step scores become a solution's score: last, min, product, mean or soft-min. Without a card, "
            "min.",
            show_default="the PRM's card",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="A solution is accepted if its score is above this. Without a card, 0.5.",
            show_default="the PRM's card",
        ),
    ] = None,
) -> None:
    """Show what verifier errors do to Best-of-N, search and training, and check it on real scores."""
    from prism_prm.report import PAGE
    from prism_prm.theory_report.pipeline import report_theory

    report_theory(
        out, settings, simulate=simulate, runs=runs or (), pool=pool or (), scores=scores, aggregator=aggregator,
        threshold=threshold, answer_field=answer_field, bars=progress,
    )  # fmt: skip
    conclude(lambda: report_facts(out), lambda: tell(out / PAGE))
