"""`prism theory`: the closed forms, checked by simulation and on real scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prism_prm.cli.options import Command, Out, narrow
from prism_prm.cli.ui import conclude_report
from prism_prm.config import Natural, Share
from prism_prm.errors import ConfigError
from prism_prm.lab.theory.report_theory import VerifierSettings


@dataclass(frozen=True, slots=True)
class TheoryCommand(VerifierSettings):
    """The settings of `prism theory`."""

    simulate: bool = True
    """Train small networks pointwise and pairwise (about 15 s)."""
    runs: tuple[str, ...] = ()
    """Two folders of `prism eval` (or NAME=FOLDER): check whether the first's ROC curve dominates the second's."""
    pool: tuple[str, ...] = ()
    """A pool of solutions on which p, α and β are measured to predict Best-of-N."""
    scores: Path | None = None
    """Scores of the pool's solutions, if the pool has none: a table, or JSON lines of {"name", "scores"}."""
    answer_field: str | None = None
    """The field of the pool that holds the reference answer, if it is not `answer`."""
    aggregator: str | None = None
    """How step scores become a solution's score: last, min, product, mean, soft-min or adjusted-min. By default as the
    PRM's card says, else min."""
    threshold: Share | None = None
    """Accept a solution whose score is above this. By default as the PRM's card says, else 0.5."""
    map: bool = False
    """Add the asymmetry map: the accuracy of Best-of-16, beam search and GRPO in the demo's world, with a reward that
    errs at every pair of rates."""
    world: Path | None = None
    """For the map: the folder of a finished demo. By default a world is built in --out."""
    rates: tuple[Share, ...] = ()
    """For the map: error rates per step. By default 0, 0.1, 0.2, 0.3 and 0.5."""
    grpo_rates: tuple[Share, ...] = ()
    """For the map: error rates with which policies are trained. By default all rates."""
    updates: Natural = 40
    """For the map: updates of each policy. With 0 none is trained."""

    def __post_init__(self) -> None:
        super(TheoryCommand, self).__post_init__()
        if not self.map and (self.world or self.rates or self.grpo_rates):
            raise ConfigError("world, rates and grpo_rates are for the asymmetry map; add --map")
        if self.world is not None and not self.world.is_dir():
            raise ConfigError(f"--world {self.world}: no such folder; name the folder of a finished `prism demo`")


def theory(settings: TheoryCommand, out: Path) -> None:
    """Show what verifier errors do to Best-of-N, search and training, and check it on real scores."""
    from prism_prm.job import Job
    from prism_prm.lab.theory.report_theory import report_theory

    report = report_theory(
        out, narrow(settings, VerifierSettings), simulate=settings.simulate, runs=settings.runs, pool=settings.pool,
        scores=settings.scores, aggregator=settings.aggregator, threshold=settings.threshold,
        answer_field=settings.answer_field,
    )  # fmt: skip
    if settings.map:
        from prism_prm.lab.demo.asymmetry import AsymmetryMap, MapSettings, demo_world
        from prism_prm.lab.world.build import build_world, world_settings
        from prism_prm.models.load_lm import quiet_transformers

        with Job(out), quiet_transformers():
            seed = settings.seed
            world = settings.world
            built = demo_world(world) if world else build_world(world_settings(seed=seed), out / "world")
            map_settings = MapSettings(
                rates=settings.rates or MapSettings().rates, policy_rates=settings.grpo_rates or None,
                updates=settings.updates, seed=seed,
            )  # fmt: skip
            asymmetry = AsymmetryMap(built, out / "map", map_settings)
            try:
                asymmetry.measure()
            finally:  # a stopped map has what is measured so far
                asymmetry.add_to(report)
                report.write(out)
    conclude_report(out)


COMMAND = Command(
    TheoryCommand,
    theory,
    out=Out("Folder for the report."),
    options={
        "--p": "p", "--alpha": "alpha", "--beta": "beta", "--simulate/--no-simulate": "simulate", "--runs": "runs",
        "--pool": "pool", "--scores": "scores", "--aggregator": "aggregator", "--threshold": "threshold",
        "--map": "map", "--world": "world",
    },
    examples={
        "Your own error rates, without the simulation":
            "prism theory --p 0.4 --alpha 0.1 --beta 0.3 --no-simulate --out theory",
        "Does one PRM dominate another, and is it merely a shift":
            "prism theory --runs eval/prism --runs eval/base --out theory",
        "Predicted against measured Best-of-N":
            "prism theory --pool pool.jsonl --scores scores.parquet --aggregator min --out theory",
        "A reward with errors, in Best-of-16, beam search and GRPO":
            "prism theory --map --world prism-demo --out theory",
    },
)  # fmt: skip
