"""`report_theory`, the report of `prism theory`: closed forms with numbers and simulations, gradients of the losses,
and pointwise against pairwise training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from prism_prm.aggregate import check_aggregator
from prism_prm.config import Count, Natural, Range, Share, check
from prism_prm.console import progress
from prism_prm.data.inputs import find_sources, keep_inputs
from prism_prm.errors import ConfigError
from prism_prm.job import Job
from prism_prm.lab.theory import closed_forms, simulation
from prism_prm.report import STYLES, Report, draw_curve, finish, number, percent, styles

NUM_TRIALS = 50_000
FIGURE_N = 2 ** np.arange(0, 11)


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """The verifier for which the closed forms are shown."""

    p: Annotated[float, Range(above=0, most=1)] = 0.3
    """The share of right solutions."""
    alpha: Share = 0.2
    """The verifier's FPR on whole solutions."""
    beta: Share = 0.2
    """The verifier's FNR on whole solutions."""
    ns: tuple[Count, ...] = (1, 2, 4, 8, 16, 32, 64)
    """The numbers of solutions for which accuracy is shown."""
    seed: Natural = 0
    """The seed for everything random."""

    def __post_init__(self) -> None:
        check(self)


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
        aggregator: combines step scores into a solution's score; default: that of the PRM in `scores`, else min.
        threshold: solutions with a higher score are accepted; default: that of the PRM in `scores`, else 0.5.
        answer_field: the field of the pool with the reference answer, if it is not `answer`.

    Example:
        >>> report = report_theory("theory", VerifierSettings(p=0.4, alpha=0.1), simulate=False)
        >>> (Path("theory") / "report.html").exists()
        True
    """
    from prism_prm.evaluate.compare import load_run  # imported here, or `prism theory --help` takes a second longer
    from prism_prm.lab.theory.dominance import add_runs
    from prism_prm.lab.theory.scored_pool import add_pool

    settings = settings or VerifierSettings()
    if runs and len(runs) != 2:
        raise ConfigError(f"--runs compares two runs; got {len(runs)}")
    if scores is not None and not pool:
        raise ConfigError("--scores needs --pool, the pool that was scored")
    if aggregator is not None:
        check_aggregator(aggregator)
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigError(f"threshold {threshold} is not in [0, 1]")
    read = [load_run(str(run)).folder / "metrics.json" for run in runs]
    find_sources([*pool, *([scores] if scores is not None else [])])
    keep_inputs([*read, *pool, scores], [Path(out) / "metrics.json"])
    with Job(out):
        with progress("simulating" + ", training small networks" * simulate, 1 + bool(runs) + bool(pool)) as advance:
            report = Report("What verifier errors cost", "closed forms, checked by simulation")
            p, alpha = settings.p, settings.alpha
            limit, without = (float(closed_forms.ceiling(p, alpha, beta)) for beta in (settings.beta, 0.0))
            report.finding = (
                f"With {percent(p)} % right solutions, a verifier that accepts {percent(alpha)} % of the wrong ones "
                f"keeps Best-of-N below {percent(limit)} %, however many are drawn; without its false negatives the "
                f"limit would be {percent(without)} %, without its false positives 100 %."
            )
            _add_best_of_n(report, settings)
            _add_compounding(report)
            _add_margins(report)
            if simulate:
                _add_simulation(report)
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


def _add_best_of_n(report: Report, settings: VerifierSettings) -> None:
    """P(N) with both terms, its approximation, and a simulation."""
    p, alpha, beta = settings.p, settings.alpha, settings.beta
    limit, accepted = float(closed_forms.ceiling(p, alpha, beta)), float(closed_forms.accept_rate(p, alpha, beta))
    with report.figure(
        "fp-versus-fn",
        caption=f"False positives (β = 0) put a ceiling on Best-of-N; false negatives (α = 0) delay it. p = {p:g}.",
        alt="Best-of-N accuracy over N: curves with false positives level off below 100 %, those with false negatives "
        "reach it",
    ) as axes:
        lines = dict(zip((0.1, 0.3, 0.6), ("-", "--", ":"), strict=True))
        for rate, line in lines.items():
            style = {"color": STYLES[1].color, "linestyle": line}
            accuracy = closed_forms.best_of_n(p, rate, 0, FIGURE_N)
            axes.plot(FIGURE_N, accuracy, **style, label=f"FPR {percent(rate, digits=0)} %")
            axes.axhline(float(closed_forms.ceiling(p, rate)), linewidth=0.6, **style)
        for rate, line in lines.items():
            style = {"color": STYLES[0].color, "linestyle": line}
            accuracy = closed_forms.best_of_n(p, 0, rate, FIGURE_N)
            axes.plot(FIGURE_N, accuracy, **style, label=f"FNR {percent(rate, digits=0)} %")
        finish(axes, "N", "right solution picked (%)", ns=FIGURE_N[::2].tolist())
    report.text(f"""
## Best-of-N under a verifier that errs

With a share p = {p:g} of right solutions, FPR α = {alpha:g} and FNR β = {beta:g}, the verifier accepts
q = (1−p)α + p(1−β) = {accepted:.3f} of all solutions, and Best-of-N is right with

P(N) = [1−(1−q)^N] · p(1−β)/q + (1−q)^N · pβ/(1−q).

The limit is the precision p(1−β)/q = {percent(limit)} %. Without false negatives it is p/(p+(1−p)α) =
{percent(float(closed_forms.ceiling(p, alpha)))} %, and it falls with α at the rate
{float(closed_forms.ceiling_slope(p, alpha)):.3f}. Without false positives the limit is 100 % for every β < 1. The paper
uses the first term alone, which for N = 1 gives p(1−β) instead of p.
""")
    rows = []
    for n in settings.ns:
        simulated = closed_forms.simulate_best_of_n(p, alpha, beta, n, num_trials=NUM_TRIALS, seed=settings.seed + n)
        exact, leading = closed_forms.best_of_n(p, alpha, beta, n), closed_forms.leading_term(p, alpha, beta, n)
        rows.append([str(n), percent(float(exact)), percent(float(leading)), percent(simulated)])
    report.table(
        ["N", "P(N)", "first term alone", "simulated"], rows, caption=f"Best-of-N (%), {NUM_TRIALS:,} trials per N"
    )
    report.metrics["best_of_n"] = {"settings": asdict(settings), "ceiling": limit, "table": rows}
    targets = (0.9, 0.99)
    rows = [
        [percent(b, digits=0), *(number(closed_forms.samples_to_reach(target, p, b)) for target in targets)]
        for b in (0.0, 0.2, 0.5, 0.8, 0.9)
    ]
    report.table(
        ["β (%)", *(f"N for {percent(target, digits=0)} %" for target in targets)],
        rows,
        caption=f"What false negatives cost: samples to reach a target (p = {p:g}, α = 0)",
    )


def _add_compounding(report: Report) -> None:
    """From step rates to solution rates, and to a search that picks at every step."""
    report.text("""
## Step errors compound

If a solution passes only when all its T steps pass, and the PRM's errors on the steps are independent, a right solution
is lost with β = 1−(1−b)^T, and a wrong one passes only if every one of its wrong steps is over-credited. A guided
search that picks one of m candidates at each step stays right with P(m)^T: a false positive costs at every step.
""")
    rows = []
    for steps in (1, 5, 10, 20):
        p, alpha, beta = closed_forms.solution_rates(0.1, 0.5, 0.05, steps)
        search = float(closed_forms.guided_search(0.9, 0.5, 0.05, 4, steps))
        strict = float(closed_forms.guided_search(0.9, 0.1, 0.25, 4, steps))
        rows.append([str(steps), *(percent(x) for x in (p, alpha, beta, search, strict))])
    report.table(
        ["steps T", "right solutions p", "α of solutions", "β of solutions", "search, lenient", "search, strict"],
        rows,
        caption="Steps wrong 10 % of the time; lenient PRM: step FPR 50 %, FNR 5 %; strict: 10 % and 25 %; m = 4",
    )
    rows = [
        [f"{margin:+.2f}", *(f"{float(closed_forms.policy_ratio(1.0, margin, t)):.3g}" for t in (1.0, 0.1, 0.05))]
        for margin in (-0.3, -0.05, 0.0, 0.05, 0.3)
    ]
    report.table(
        ["margin of rewards", "β_KL = 1", "β_KL = 0.1", "β_KL = 0.05"],
        rows,
        caption="KL-regularized policy: π*(right)/π*(wrong) where the reference policy is indifferent",
    )


def _add_margins(report: Report) -> None:
    """The gradients of the losses on center and margin."""
    floor = closed_forms.SC_FLOOR
    report.text(f"""
## Center and margin

With a = (s⁺+s⁻)/2 and m = s⁺−s⁻ the policy's ratio depends on m alone. The step-contrastive loss −log σ(m) has no
gradient on a. The pointwise loss also pulls a toward ½. On scores in [0, 1] the step-contrastive loss cannot fall
below −log σ(1) = {floor:.3f}; on log-odds it can. FPR(τ) = P(m < 2(a−τ)) and FNR(τ) = P(m ≤ 2(τ−a)): wider
margins lower both, as long as the center does not move.
""")
    rows = []
    for right, wrong in ((0.85, 0.80), (0.40, 0.45), (0.95, 0.30)):
        a, m = closed_forms.center_margin(np.array(right), np.array(wrong))
        bce, sc = closed_forms.bce_gradient(a, m), closed_forms.sc_gradient(m)
        values = (float(sc[0]), float(sc[1]), float(bce[0]), float(bce[1]))
        rows.append([f"{right:.2f} / {wrong:.2f}", f"{float(m):+.2f}", *(f"{value:+.2f}" for value in values)])
    report.table(
        ["s⁺ / s⁻", "m", "SC ∂a", "SC ∂m", "pointwise ∂a", "pointwise ∂m"],
        rows,
        caption="Gradients on center and margin (the paper's two examples, and an easy pair)",
    )
    rng = np.random.default_rng(0)
    center = 0.5 + 0.15 * rng.normal(size=NUM_TRIALS)
    rows = []
    for mean in (0.2, 0.4, 0.6):
        margin = mean + 0.15 * rng.normal(size=NUM_TRIALS)
        fpr, fnr = closed_forms.rates_from_margins(center, margin, 0.5)
        safe = closed_forms.safe_thresholds(center + margin / 2, center - margin / 2, 0.2, 0.2)
        shown = "none" if safe is None else f"{safe[0]:.2f} to {safe[1]:.2f}"
        rows.append([f"{mean:g}", percent(fpr), percent(fnr), shown])
    report.table(
        ["mean margin", "FPR at ½", "FNR at ½", "thresholds with both ≤ 20 %"],
        rows,
        caption="Wider margins around the same centers: both rates fall, and more thresholds work",
    )


def _add_simulation(report: Report) -> None:
    """Pointwise against pairwise training, for each kind of labels."""
    report.text("""
## Pointwise against pairwise training, simulated

Two networks with the same initial weights see the same matched pairs; one learns each step's label separately, the
other which of the two is better. With *relative* labels ("the better of the two is right") a step's label depends on
its partner, which pointwise training does not see. An *absolute* label depends on the step alone. The
difference between the two figures is what pairwise training gains from labels that only make sense in pairs.
""")
    for one in (simulation.SimulationSettings(labels="relative"), simulation.SimulationSettings(labels="absolute")):
        result = simulation.simulate(one)
        edges = simulation.EDGES
        with report.figure(
            f"simulation-{one.labels}",
            caption=f"{one.labels.capitalize()} labels: pairs ranked correctly by true margin; {len(one.seeds)} seeds, "
            f"{one.num_pairs:,} training pairs, {one.num_test_pairs:,} test pairs each, 95 % bands.",
            alt=f"Pairwise accuracy by true margin with {one.labels} labels, pointwise and pairwise training",
        ) as axes:
            for name, style in styles(simulation.OBJECTIVES).items():
                draw_curve(axes, (edges[:-1] + edges[1:]) / 2, result.accuracy[name], name, style)
            finish(axes, "true margin |s(a) − s(b)|", "pairs ranked correctly (%)")
        rows = [
            [name, percent(result.accuracy[name][0]), percent(result.overall[name])] for name in simulation.OBJECTIVES
        ]
        report.table(
            ["training", f"margin below {edges[1]:g}", "all pairs"],
            rows,
            caption=f"Pairs ranked correctly with {one.labels} labels (%) ↑",
            best="columns",
        )
        report.metrics[f"simulation_{one.labels}"] = {
            "settings": asdict(one), "edges": edges, "accuracy": result.accuracy, "seeds": result.seeds
        }  # fmt: skip
