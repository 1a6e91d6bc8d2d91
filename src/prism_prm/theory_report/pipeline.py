"""`report_theory`: what verifier errors do, as `prism theory` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism_prm.aggregate import check_aggregator
from prism_prm.console import progress
from prism_prm.data.inputs import find_sources, keep_inputs
from prism_prm.errors import ConfigError
from prism_prm.evaluation.compare import load_run
from prism_prm.report import Report
from prism_prm.theory.simulation import SimulationSettings
from prism_prm.theory_report.closed_forms import VerifierSettings, build_theory
from prism_prm.theory_report.roc_dominance import add_runs
from prism_prm.theory_report.scored_pool import add_pool


def report_theory(
    out: str | Path,
    settings: VerifierSettings | None = None,
    *,
    simulate: bool = True,
    runs: Sequence[str | Path] = (),
    pool: Sequence[str | Path] = (),
    scores: str | Path | None = None,
    aggregator: str | None = None,
    threshold: float | None = None,
    answer_field: str | None = None,
) -> Report:
    """Show what verifier errors do to Best-of-N, search and training, check it on real scores, and write a report.

    Args:
        out: folder for the report.
        settings: the verifier for which closed forms are shown, and the seed.
        simulate: also train small networks pointwise and pairwise (about 15 s).
        runs: two folders written by `evaluate_prm` (or NAME=FOLDER): check whether the first dominates the second in
            ROC.
        pool: files of a pool of solutions, on which p, α and β are measured to predict Best-of-N.
        scores: a table of the pool's scores, if the pool has none.
        aggregator: how step scores become a solution's score; default: that of the PRM that made `scores`, else min.
        threshold: a solution is accepted above this; default: that of the PRM that made `scores`, else 0.5.
        answer_field: the field of the pool that holds the reference answer, if it is not `answer`.

    Example:
        >>> report = report_theory("theory", VerifierSettings(p=0.4, alpha=0.1), simulate=False)
        >>> (Path("theory") / "report.html").exists()
        True
    """
    settings = settings or VerifierSettings()
    if runs and len(runs) != 2:
        raise ConfigError(f"--runs compares two runs; got {len(runs)}")
    if scores is not None and not pool:
        raise ConfigError("--scores also needs --pool, the pool that was scored")
    if aggregator is not None:
        check_aggregator(aggregator)
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigError(f"threshold {threshold} is not in [0, 1]")
    kinds = (SimulationSettings(labels="relative"), SimulationSettings(labels="absolute")) if simulate else ()
    read = [load_run(str(run)).folder / "metrics.json" for run in runs]
    find_sources([*pool, *([scores] if scores is not None else [])])
    keep_inputs([*read, *pool, scores], [Path(out) / "metrics.json"])
    with progress("playing out" + ", training small networks" * simulate, 1 + bool(runs) + bool(pool)) as advance:
        report = build_theory(settings, kinds)
        advance(1)
        if runs:
            add_runs(report, [str(run) for run in runs], seed=settings.seed)
            advance(1)
        if pool:
            add_pool(
                report, pool, scores, aggregator=aggregator, threshold=threshold, seed=settings.seed,
                answer_field=answer_field,
            )  # fmt: skip
            advance(1)
    report.write(out)
    return report
