"""The trained policies: curves of true accuracy and reward over updates, and their final values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prism_prm.lab.demo.findings import Findings, best_scores, differences, find_curve, title_of
from prism_prm.lab.demo.reinforcement import ANSWER, ORACLE, STEPS, Run
from prism_prm.lab.theory.closed_forms import divergence
from prism_prm.report import (
    NO_DATA,
    Report,
    finish,
    nested,
    number,
    percent,
    signed_percent,
    styles,
)
from prism_prm.rl.alarm import GREEDY, PROXY, VOTE, Alarm, EvalPoint
from prism_prm.stats import over_seeds

SKIPPED = "Reinforcement learning was skipped: it needs TRL. Install it with: pip install 'prism-prm[rl]'"
MEASURES = {PROXY: "mean reward", ANSWER: "answer right", STEPS: "every step right", f"{GREEDY}/{ANSWER}": "greedy"}
"""Shares of a look and how they are called."""
BEST_OF_N = "Best-of-n"


def report_policies(found: Findings, report: Report) -> None:
    """The last section of the demo's report."""
    if not found.runs:
        report.text(f"## Reinforcement learning\n{SKIPPED}")
        return
    settings = found.results[0].rl
    assert settings is not None, "there are runs"
    report.text(f"""
## Reinforcement learning
The same policy was trained by TRL's GRPO, each time with another PRM as its reward: {settings.updates} updates of
{settings.prompts} problems × {settings.samples} solutions. A solution's reward is the lowest score of its steps, and 0
if it was cut or states no answer. *oracle* is the reward without errors. True accuracy is measured on
{settings.held_out} problems that no model has seen.
""")
    _figure(found, report)
    _over_optimisation(found, report)
    _ends(found, report)
    _differences(found, report)
    _alarms(found, report)
    if len(found.runs) > len(found.plain_runs):
        _credits(found, report)


def _figure(found: Findings, report: Report) -> None:
    runs = found.plain_runs
    style = nested(styles([title_of(run.prm) for run in runs]))
    caption = "True accuracy, and the reward. A reward that rises while accuracy falls is being hacked."
    alt = "Share of problems solved, and mean reward, against updates, for policies rewarded by each PRM and the oracle"
    panel_of = {ANSWER: "True accuracy: problems solved (%)", PROXY: "Mean reward (%)"}
    with report.figure("reinforcement", caption=caption, alt=alt, panels=2) as panels:
        for axes, (measure, title) in zip(panels, panel_of.items(), strict=True):
            for run in runs:
                curves = [result.policies[run].points for result in found.results]
                updates = [one.update for one in curves[0]]
                means = np.mean([[one.mean(measure) for one in curve] for curve in curves], axis=0)
                axes.plot(updates, means, markevery=4, **style[title_of(run.prm)])
            axes.set_ylim(0, 1)
            finish(axes, "updates", title=title, names_at_ends=True)


def _over_optimisation(found: Findings, report: Report) -> None:
    """Truth and reward against the distance from the untrained policy, for two ways to use a PRM."""
    prms = [run.prm for run in found.plain_runs if run.prm != ORACLE]
    lines = over_optimisation(found)
    ways = styles(list(next(iter(lines.values()))))
    caption = (
        "True accuracy (filled) and mean reward (hollow) against √KL from the untrained policy, by PRM. The divergence "
        "of Best-of-n is log n − (n−1)/n; that of GRPO is measured, and may fall again, so its looks are points "
        "without a line. Where reward rises and accuracy falls, the PRM is over-optimised."
    )
    alt = "Accuracy and reward against the square root of the divergence, for Best-of-n and GRPO, a panel per PRM"
    with report.figure("over-optimisation", caption=caption, alt=alt, size=(4.3, 3.6), panels=len(prms)) as drawn:
        for axes, prm in zip(drawn, prms, strict=True):
            for way, line in lines[prm].items():
                for measure, style in (("gold", "-"), ("proxy", "--")):
                    label = f"{way}, {'problems solved' if measure == 'gold' else 'reward'}"
                    axes.plot(
                        line["sqrt_kl"], line[measure], color=ways[way].color, marker=ways[way].marker, label=label,
                        linestyle=style if way == BEST_OF_N else "none",
                        markerfacecolor=ways[way].color if measure == "gold" else "none",
                    )  # fmt: skip
            axes.set_ylim(0, 1)
            finish(axes, "√KL from the untrained policy (√nats)", "solved, reward (%)", title=title_of(prm))


def over_optimisation(found: Findings) -> dict[str, dict[str, dict[str, list[float]]]]:
    """PRM → way to use it → points (√KL, gold, proxy), means over seeds. Both ways score by the lowest step."""
    lines = {}
    for run in found.plain_runs:
        if run.prm == ORACLE:
            continue
        gold = [[p.value for p in find_curve(curves, "best-of-n", run.prm, "min").points] for curves in found.curves]
        proxy = [
            best_scores(graded, result.scored[run.prm].pool, "min", found.ns)
            for graded, result in zip(found.graded, found.results, strict=True)
        ]
        curves = [result.policies[run].points for result in found.results]

        def mean(values: Any) -> list[float]:
            return [float(value) for value in np.mean(values, axis=0)]

        kl = mean([[look.numbers["kl"] for look in curve] for curve in curves])
        lines[run.prm] = {
            BEST_OF_N: {
                "sqrt_kl": np.sqrt(divergence(found.ns)).tolist(), "gold": mean(gold), "proxy": mean(proxy),
            },
            "GRPO": {
                # A measured divergence near 0 may be negative by chance.
                "sqrt_kl": np.sqrt(np.maximum(kl, 0)).tolist(),
                "gold": mean([[look.mean(ANSWER) for look in curve] for curve in curves]),
                "proxy": mean([[look.mean(PROXY) for look in curve] for curve in curves]),
            },
        }  # fmt: skip
    return lines


def _ends(found: Findings, report: Report) -> None:
    runs = found.plain_runs
    start = [percent(over_seeds(found.of_policy(runs[0], measure, 0))) for measure in MEASURES if measure != PROXY]
    rows = [["untrained", NO_DATA, NO_DATA, *start, number(0.0, 2)]]
    for run in runs:
        then = over_seeds(found.of_policy(run, PROXY, 0))
        cells = [percent(over_seeds(found.of_policy(run, measure))) for measure in MEASURES]
        kl = float(np.mean([result.policies[run].points[-1].numbers["kl"] for result in found.results]))
        rows.append([title_of(run.prm), percent(then), *cells, number(kl, 2)])
    headers = ["reward from", "mean reward before", *MEASURES.values(), "divergence (nats)"]
    report.table(
        headers, rows, caption="The policy before and after training, sampled solutions of held-out problems (%)"
    )


def _differences(found: Findings, report: Report) -> None:
    """Paired by seed; the targets are stated in docs/rl.md."""
    after = {run.prm: found.of_policy(run, ANSWER) for run in found.plain_runs}
    rows = []
    for run in found.plain_runs:
        cells = [
            signed_percent(differences(found.of_policy(run, measure), found.of_policy(run, measure, 0)))
            for measure in (PROXY, ANSWER, STEPS)
        ]
        rows.append([f"{title_of(run.prm)} − untrained", *cells])
    for a, b in (("prism", "base"), ("prism", "pointwise"), ("prism", "paper"), (ORACLE, "prism")):
        if a in after and b in after:
            rows.append(
                [f"{title_of(a)} − {title_of(b)}", NO_DATA, signed_percent(differences(after[a], after[b])), NO_DATA]
            )
    headers = ["difference", "mean reward", "answer right", "every step right"]
    report.table(headers, rows, caption="Differences in percentage points, paired by seed")


def _alarms(found: Findings, report: Report) -> None:
    rows = []
    for run in found.plain_runs:
        cells = []
        for gold in (ANSWER, VOTE):
            said = [_heard(result.policies[run].points, result.policies[run].alarms[gold]) for result in found.results]
            cells.append("; ".join(said))
        rows.append([title_of(run.prm), *cells])
    report.text(
        "The alarm is raised when true accuracy on held-out problems falls significantly and the reward does not fall "
        "with it (docs/grpo.md has the rule). Without true answers, the untrained policy's majority answers replace "
        "them."
    )
    caption = "Alarms, one per seed: the update, and by how many points true accuracy had fallen since its best look"
    report.table(["reward from", "by the truth", "without it"], rows, caption=caption)


def _heard(curve: Sequence[EvalPoint], alarm: Alarm | None) -> str:
    if alarm is None:
        return "silent"
    now = next(look for look in curve if look.update == alarm.update)
    best = max(look.mean(ANSWER) for look in curve if look.update < alarm.update)
    return f"{alarm.update} ({signed_percent(now.mean(ANSWER) - best)})"


def _credits(found: Findings, report: Report) -> None:
    """Every credit with and without a bond to the untrained policy."""
    ways = list(dict.fromkeys((run.credit, run.beta) for run in found.runs))
    rows = []
    for prm in dict.fromkeys(run.prm for run in found.runs):
        cells = [percent(over_seeds(found.of_policy(Run(prm, *way), ANSWER))) for way in ways]
        rows.append([title_of(prm), *cells])
    headers = ["reward from", *(f"{credit}, β = {beta:g}" for credit, beta in ways)]
    report.table(headers, rows, caption="Answer right after training (%), by credit and weight of the divergence")


def policy_metrics(found: Findings) -> list[dict[str, Any]]:
    """Every look of every policy, for metrics.json."""
    return [
        {
            run.name: {
                "looks": [{"update": look.update, **look.summary()} for look in result.policies[run].points],
                "alarms": {name: alarm and alarm.update for name, alarm in result.policies[run].alarms.items()},
            }
            for run in found.runs
        }
        for result in found.results
    ]
