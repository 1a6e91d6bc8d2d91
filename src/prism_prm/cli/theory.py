"""`prism theory`: the closed forms, checked by simulation and on real scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import Options, out_folder, with_settings
from prism_prm.cli.ui import conclude, report_facts, tell
from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from prism_prm.lab.theory.report_theory import VerifierSettings
    from prism_prm.report import Report

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

- A reward with errors, in Best-of-16, beam search and GRPO:

  `prism theory --map --world prism-demo --out theory`
"""

MAP = "Asymmetry map"


@with_settings(
    settings=Options("prism_prm.lab.theory.report_theory:VerifierSettings", {"": ("p", "alpha", "beta", "seed")})
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
    with_map: Annotated[
        bool,
        typer.Option(
            "--map",
            help="Add the asymmetry map: the accuracy of Best-of-16, beam search and GRPO in the demo's world, with a "
            "reward that errs at every pair of rates. Rerun to resume.",
            rich_help_panel=MAP,
        ),
    ] = False,
    world: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="The folder of a finished demo, whose policy and pool are used. By default a world is built in --out.",
            rich_help_panel=MAP,
        ),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="An error rate per step. May be repeated.",
            show_default="0, 0.1, 0.2, 0.3, 0.5",
            rich_help_panel=MAP,
        ),
    ] = None,
    grpo_rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="An error rate with which policies are trained. May be repeated.",
            show_default="every --rate",
            rich_help_panel=MAP,
        ),
    ] = None,
    updates: Annotated[
        int, typer.Option(min=0, max=10**9, help="Updates of each policy. With 0 none is trained.", rich_help_panel=MAP)
    ] = 40,
) -> None:
    """Show what verifier errors do to Best-of-N, search and training, and check it on real scores."""
    from prism_prm.lab.theory.report_theory import report_theory
    from prism_prm.report import PAGE

    if not with_map and (world or rate or grpo_rate):
        raise ConfigError("--world, --rate and --grpo-rate are for the asymmetry map; add --map")
    report = report_theory(
        out, settings, simulate=simulate, runs=runs or (), pool=pool or (), scores=scores, aggregator=aggregator,
        threshold=threshold, answer_field=answer_field,
    )  # fmt: skip
    if with_map:
        _add_map(report, out, world, rate, grpo_rate, updates, settings.seed)
    conclude(lambda: report_facts(out), lambda: tell(out / PAGE))


def _add_map(
    report: Report,
    out: Path,
    world: Path | None,
    rates: list[float] | None,
    grpo_rates: list[float] | None,
    updates: int,
    seed: int,
) -> None:
    """Measure what is not measured yet; the report has what there is, also when stopped."""
    from prism_prm.job import Job
    from prism_prm.lab.demo.asymmetry import AsymmetryMap, MapSettings, demo_world
    from prism_prm.lab.world.build import build_world, world_settings
    from prism_prm.models.load_lm import quiet_transformers

    with Job(out), quiet_transformers():
        built = demo_world(world) if world else build_world(world_settings(seed=seed), out / "world")
        settings = MapSettings(
            rates=tuple(rates or MapSettings().rates), policy_rates=tuple(grpo_rates) if grpo_rates else None,
            updates=updates, seed=seed,
        )  # fmt: skip
        asymmetry = AsymmetryMap(built, out / "map", settings)
        try:
            asymmetry.measure()
        finally:
            asymmetry.add_to(report)
            report.write(out)
