"""The demo's report: what was trained, and its effect on false positives, Best-of-N and RL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from prism_prm.data.tables import iter_trees
from prism_prm.evaluate.measure import AUROCS, histogram
from prism_prm.evaluate.report import add_wrong_step, draw_distribution, find_wrong_step
from prism_prm.lab.demo.findings import (
    BASE,
    GUIDED_NS,
    NATURAL,
    SUMMARY,
    Findings,
    StepNumbers,
    at_n,
    best_scores,
    differences,
    find_curve,
    predicted_best_of_n,
    summary,
    title_of,
)
from prism_prm.lab.demo.reinforcement import ANSWER, ORACLE, SKIPPED, STEPS, PolicyRun
from prism_prm.lab.demo.settings import ARMS
from prism_prm.lab.theory.closed_forms import divergence
from prism_prm.lab.world.oracle import VERDICTS
from prism_prm.lab.world.trees import PERTURBATIONS
from prism_prm.report import NO_DATA, Report, finish, nested, number, percent, signed_percent, styles, telling
from prism_prm.report.figures import draw_dots
from prism_prm.rl.alarm import GREEDY, PROXY, VOTE, Alarm, EvalPoint
from prism_prm.search.curves import Curve
from prism_prm.stats import over_seeds

MEASURES = {PROXY: "mean reward", ANSWER: "answer right", STEPS: "every step right", f"{GREEDY}/{ANSWER}": "greedy"}
"""Measure of an evaluation point → title."""
BEST_OF_N = "Best-of-n"
OURS = "prism"
NUM_DRAWN = 4
"""PRMs in line plots: the base PRM and the arms of every demo. More would be unreadable; tables have all."""
QUICK = "This quick run only checks that everything works: its world is so small that its numbers mean nothing."


def make_report(found: Findings, command: str, *, quick: bool = False) -> Report:
    """The report with its metrics."""
    seeds, first, drawn = len(found.results), found.results[0], found.prms[:NUM_DRAWN]
    settings = first.world.settings
    report = Report("PRISM in the embedded world", subtitle=f"{command}: {seeds} seed{'s' if seeds > 1 else ''}")
    report.finding = QUICK if quick else _finding(found)
    report.text(
        "The *embedded world* is a small synthetic task that ships with the package: arithmetic modulo "
        f"{settings.modulus}, one operation per step. The truth about every step is known."
    )
    failed = [(arm, one.seed, reason) for one in found.results for arm, reason in one.failed.items()]
    if failed:
        report.text("**Not trained, so in no table:**")
        report.notes(f"{ARMS[arm].title}, seed {seed}: {reason}" for arm, seed, reason in failed)
    _draw_best_of_n(found, report, far=False)
    _summarize(found, report, far=False)

    natural = {title_of(prm): first.scored[prm].steps.only_groups([NATURAL]) for prm in drawn}
    wrong = find_wrong_step(iter_trees(first.world.trees(NATURAL)), natural)
    if wrong is not None:
        caption = f"{telling('wrong step', list(natural))}; results are modulo {settings.modulus}"
        add_wrong_step(report, wrong, natural, caption=caption)
    arms = "\n".join(f"- **{ARMS[name].title}**: {ARMS[name].about}" for name in found.prms if name != BASE)
    several = "Values are means over seeds with Student's 95 % interval; differences are paired by seed."
    report.text(f"""
## What was compared

A tiny policy ({settings.policy.layers} layers of width {settings.policy.hidden}) was trained from scratch on chains of
arithmetic modulo {settings.modulus}, until {percent(settings.policy.target, digits=0)} % of its steps were right. The
**base PRM** was trained on {number(settings.base_trees)} problems whose labels let
{percent(settings.passing_errors, digits=0)} % of the wrong steps pass, some kinds nearly always and others hardly ever.
Everything else starts from it, with exact labels on {number(settings.pair_trees)} other problems and the same number
of epochs and pairs per update, each with its own learning rate, chosen on development seeds:

{arms}

FPR is the share of wrong steps that are judged right, FNR that of right steps judged wrong. "At TPR 90" means at the
threshold that keeps 90 % of the right steps. {several if seeds > 1 else "One seed: no interval."}
""")
    _compare(found, report)
    if seeds > 1:
        n = found.reference_ns[1]
        panel_of = {
            "FPR at TPR 90 (%)": {prm: found.of_class(prm, NATURAL) for prm in found.prms},
            f"Best-of-{n} (%)": {prm: found.of_pool("best-of-n", prm, n) for prm in found.prms},
        }
        alt = f"FPR at TPR 90 and Best-of-{n} of each PRM, a dot per seed"
        size = (4.4, 0.3 * len(found.prms) + 1)
        with report.figure("seeds", caption="A dot per seed, a bar at the mean.", alt=alt, size=size, panels=2) as both:
            for axes, (label, values) in zip(both, panel_of.items(), strict=True):
                draw_dots(axes, {title_of(prm): of_seeds for prm, of_seeds in values.items()})
                finish(axes, label, percent="x")

    sets = {"base PRM's problems": "base", "arms' problems": "annotated", "natural test set": NATURAL}
    shares = {}
    for about, name in sets.items():
        counts = [result.world.verdicts()[name] for result in found.results]
        total = sum(sum(count.values()) for count in counts)
        shares[about] = {verdict: sum(count.get(verdict, 0) for count in counts) / total for verdict in VERDICTS}
    rows = [
        [verdict.replace("_", " "), *(percent(of_set[verdict]) for of_set in shares.values())] for verdict in VERDICTS
    ]
    report.text("## The steps that policies write\nMost are right, and most errors are wrong results.")
    report.table(["verdict", *shares], rows, caption="The oracle's verdicts on all steps (%)")

    report.text("## Over-credit\nHow each PRM scores the natural test set's right and wrong steps.")
    caption = "P(right) given to right steps (up) and to wrong steps (down), first seed; the dotted line is 0.5."
    alt = f"Histograms of scores of right and wrong steps for {', '.join(natural)}"
    with report.figure("scores", caption=caption, alt=alt, size=(2.35, 2.5), panels=len(natural)) as panels:
        for axes, (title, steps) in zip(panels, natural.items(), strict=True):
            draw_distribution(axes, histogram(steps), 0.5, title)

    groups = (NATURAL, *PERTURBATIONS)
    rates = {prm: [over_seeds(found.of_class(prm, group)) for group in groups] for prm in found.prms}
    rows = [[title_of(prm), *map(percent, rates[prm])] for prm in found.prms]
    report.text("## Which errors are credited")
    shown = [group.replace("_", " ") for group in groups]
    caption = "FPR at TPR 90 by class of error; all classes but natural are injected errors."
    alt = "Bars of FPR at TPR 90 by error class for each PRM"
    with report.figure("classes", caption=caption, alt=alt, size=(4.4, 0.55 * len(groups) + 1)) as axes:
        width = 0.8 / len(drawn)
        for i, (prm, style) in enumerate(styles(drawn).items()):
            lengths = [mean.value for mean in rates[prm]]
            axes.barh(np.arange(len(groups)) + i * width, lengths, width, color=style.color, label=title_of(prm))
        axes.set_yticks(np.arange(len(groups)) + 0.4 - width / 2, shown)
        axes.invert_yaxis()
        finish(axes, "FPR (%)", percent="x")
    caption = "FPR (%) ↓ at the threshold that keeps 90 % of the right steps"
    report.table(["PRM", *shown], rows, caption=caption, best="columns")

    rows = []
    for name in found.prms[1:]:
        for key, values in first.rounds[name].items():
            cells = [percent(values.get(metric)) for metric in (*AUROCS, "fpr_at_tpr_90", "fpr_at_0.5", "fnr_at_0.5")]
            rows.append([f"{title_of(name)} · {key}", *cells])
    report.text("## Rounds\nValidation problems of the first seed; `0_base` is the PRM that training started from.")
    headers = ["round", *AUROCS.values(), "FPR at TPR 90 ↓", "FPR at 0.5 ↓", "FNR at 0.5 ↓"]
    report.table(headers, rows, caption="Validation by round (%)")
    _tabulate_best_of_n(found, report, far=False)

    ns, rows = found.ns, []
    for prm in found.prms:
        aggregator = found.aggregator(prm).value
        measured = [at_n(find_curve(found.curves[0], "best-of-n", prm, aggregator), n) for n in ns]
        p, alpha, beta, predicted = predicted_best_of_n(found.graded[0], first.scored[prm].pool, aggregator, ns)
        rows.append([f"{title_of(prm)}: predicted", percent(alpha), percent(beta), *map(percent, predicted)])
        rows.append([f"{title_of(prm)}: measured", "", "", *map(percent, measured)])
    report.text(
        "## Theory\nA yes-or-no verifier with the solution-level error rates α (FPR) and β (FNR) of each PRM at its "
        f"90 % threshold, and the policy's share of right solutions ({percent(p)} %), predicts Best-of-N by the "
        "paper's closed form. The measured value uses the full score, which ranks among the accepted solutions too."
    )
    report.table(["Best-of-N (%)", "α", "β", *(f"n = {n}" for n in ns)], rows, caption="Predicted and measured")

    if found.far_steps:
        report.text("## Out of distribution\nLonger problems, solved by another policy with other errors.")
        _draw_best_of_n(found, report, far=True)
        _summarize(found, report, far=True)
        _tabulate_best_of_n(found, report, far=True)
    report_policies(found, report)
    report.metrics = _metrics(found)
    return report


def _summarize(found: Findings, report: Report, *, far: bool) -> None:
    """The summary as two tables that fit a page: how PRMs judge steps, and the results of using them."""
    headers, rows = summary(found, far=far)
    where = "out of distribution" if far else "in distribution"
    steps = range(1, 1 + len(SUMMARY))
    for about, columns in (("judging steps", steps), ("using the PRM", range(steps.stop, len(headers)))):
        chosen = [[row[0], *(row[i] for i in columns)] for row in rows]
        report.table(
            [headers[0], *(headers[i] for i in columns)],
            [row for row in chosen if set(row[1:]) != {NO_DATA}],
            caption=f"Summary (%), {where}: {about}",
            best="columns",
        )


def _finding(found: Findings) -> str:
    """The effect of PRISM on false positives, Best-of-N and RL, compared with the base PRM and pointwise training."""
    n = found.reference_ns[1]

    def reached(prm: str) -> list[str]:
        values = (found.of_class(prm, NATURAL), found.of_pool("best-of-n", prm, n))
        return [f"{percent(over_seeds(of_seeds).value)} %" for of_seeds in values]

    ours = OURS if OURS in found.prms else found.prms[-1]
    (fpr, best), (base_fpr, base_best) = reached(ours), reached(BASE)
    text = (
        f"With {title_of(ours)}, {fpr} of the wrong steps pass (FPR at TPR 90) instead of the base PRM's {base_fpr}, "
        f"and Best-of-{n} solves {best} of the problems instead of {base_best}"
    )
    if "pointwise" in found.prms:
        text += "; pointwise training reaches {} and {}".format(*reached("pointwise"))
    text += "."
    runs = {run.prm: run for run in found.plain_runs}
    named = [prm for prm in (BASE, "pointwise", ours) if prm in runs]
    if named:
        start = percent(over_seeds(found.of_policy(runs[named[0]], ANSWER, 0)).value)
        after = {prm: percent(over_seeds(found.of_policy(runs[prm], ANSWER)).value) for prm in named}
        ends = ", ".join(f"{share} % with {title_of(prm)}" for prm, share in after.items())
        text += f" Reinforcement learning with the PRM as reward takes the policy from {start} % solved to {ends}."
    return text


def _compare(found: Findings, report: Report) -> None:
    """Each arm against the base PRM and against pointwise training, paired by seed."""
    n_few, n_many = found.reference_ns
    compared = ("FPR at TPR 90 ↓", "injected errors: FPR at TPR 90 ↓", "FNR at 0.5 ↓")
    rows = []
    pairs = [(prm, BASE) for prm in found.prms[1:]]
    pairs += [(prm, "pointwise") for prm in found.prms[1:] if prm != "pointwise" and "pointwise" in found.prms]
    for a, b in pairs:
        cells = [
            signed_percent(differences(found.of_steps(a, SUMMARY[name]), found.of_steps(b, SUMMARY[name])))
            for name in compared
        ]
        best = differences(found.of_pool("best-of-n", a, n_many), found.of_pool("best-of-n", b, n_many))
        beam = differences(found.of_guided(a, GUIDED_NS[-1]), found.of_guided(b, GUIDED_NS[-1]))
        rows.append([f"{title_of(a)} − {title_of(b)}", *cells, signed_percent(best), signed_percent(beam)])
    headers = ["difference", *compared, f"Best-of-{n_many}", f"beam search {GUIDED_NS[-1]}"]
    report.table(headers, rows, caption="Differences in percentage points, paired by seed")
    growth = []
    for prm in found.prms:
        more, fewer = (found.of_pool("best-of-n", prm, n) for n in (n_many, n_few))
        wide, narrow = (found.of_guided(prm, n) for n in reversed(GUIDED_NS))
        growth.append([title_of(prm), *map(signed_percent, (differences(more, fewer), differences(wide, narrow)))])
    caption = "Do more samples help? More minus fewer, percentage points"
    beams = " − ".join(f"beam search {n}" for n in reversed(GUIDED_NS))
    report.table(["PRM", f"Best-of-{n_many} − Best-of-{n_few}", beams], growth, caption=caption)


def _draw_best_of_n(found: Findings, report: Report, *, far: bool) -> None:
    curves = found.far_curves if far else found.curves
    drawn = found.prms[:NUM_DRAWN]
    lines = [("best-of-n", prm, found.aggregator(prm).value) for prm in drawn]
    lines += [("majority", "", ""), ("oracle", "", ""), ("mean", "", "")]
    names = [*map(title_of, drawn), "majority vote", "oracle", "one solution"]
    style = nested(styles(names))
    caption = "Accuracy against the number of solutions" + (", out of distribution." if far else ".")
    alt = "Accuracy against n for Best-of-N and the weighted vote of every PRM, majority vote and oracle"
    with report.figure(f"{'far-' * far}best-of-n", caption=caption, alt=alt, size=(4.4, 3.7), panels=2) as panels:
        for axes, method in zip(panels, ("best-of-n", "weighted"), strict=True):
            for (kind, prm, aggregator), name in zip(lines, names, strict=True):
                chosen = [find_curve(seed, method if prm else kind, prm, aggregator) for seed in curves]
                values = np.mean([[point.value for point in curve.points] for curve in chosen], axis=0)
                axes.plot(chosen[0].ns, values, **style[name])
            title = "Best-of-n" if method == "best-of-n" else "weighted vote"
            ns = chosen[0].ns
            finish(axes, "solutions drawn, n", "accuracy (%)", title=title, ns=ns, names_at_ends=True)


def _tabulate_best_of_n(found: Findings, report: Report, *, far: bool) -> None:
    if not far:
        prms_by: dict[str, list[str]] = {}
        for prm in found.prms:
            prms_by.setdefault(str(found.aggregator(prm)), []).append(title_of(prm))
        used = "; ".join(one if len(prms_by) == 1 else f"{one} ({', '.join(prms)})" for one, prms in prms_by.items())
        report.text(f"## Best-of-N\nAggregator of step scores: {used}. Each value is an expectation.")
    ns = (found.far_curves if far else found.curves)[0][0].ns
    lines = [(f"{title_of(prm)} · {method}", method, prm) for method in ("best-of-n", "weighted") for prm in found.prms]
    lines += [(method, method, "") for method in ("majority", "oracle")]
    rows = [
        [name, *(percent(over_seeds(found.of_pool(method, prm, n, far=far))) for n in ns)]
        for name, method, prm in lines
    ]
    caption = f"Accuracy (%) ↑{', out of distribution' * far}"
    report.table(["selection", *(f"n = {n}" for n in ns)], rows, caption=caption, best="columns", apart=("oracle",))


def _metrics(found: Findings) -> dict[str, Any]:
    def steps(numbers: Mapping[str, StepNumbers]) -> dict[str, Any]:
        return {name: asdict(one) for name, one in numbers.items()}

    def pool(curves: Sequence[Curve]) -> list[dict[str, Any]]:
        names = ("method", "prm", "aggregator", "ns")
        return [
            {name: getattr(curve, name) for name in names} | {"accuracy": [point.value for point in curve.points]}
            for curve in curves
        ]

    def guided(far: bool) -> list[dict[str, dict[int, float]]]:
        shares = {(prm, n): found.of_guided(prm, n, far=far) for prm in found.prms for n in GUIDED_NS}
        return [
            {prm: {n: shares[prm, n][i] for n in GUIDED_NS} for prm in found.prms} for i in range(len(found.results))
        ]

    return {
        "seeds": [result.seed for result in found.results],
        "steps": [steps(seed) for seed in found.steps],
        "aggregators": {prm: asdict(found.aggregator(prm)) for prm in found.prms},
        "pool": [pool(curves) for curves in found.curves],
        "far_steps": [steps(seed) for seed in found.far_steps],
        "guided": guided(far=False),
        "far_pool": [pool(curves) for curves in found.far_curves],
        "far_guided": guided(far=True) if found.far_steps else [],
        "policies": [
            {
                run.name: {
                    "looks": [{"update": point.update, **point.summary()} for point in result.policies[run].points],
                    "alarms": {name: alarm and alarm.update for name, alarm in result.policies[run].alarms.items()},
                }
                for run in found.runs
            }
            for result in found.results
        ],
        "over_optimization": over_optimization(found),
        "verdicts": [result.world.verdicts() for result in found.results],
    }


def report_policies(found: Findings, report: Report) -> None:
    """Add the section on reinforcement learning."""
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
    runs = found.plain_runs
    drawn = nested(styles([title_of(run.prm) for run in runs]))
    caption = "True accuracy, and the reward. A reward that rises while accuracy falls is being hacked."
    alt = "Share of problems solved, and mean reward, against updates, for policies rewarded by each PRM and the oracle"
    panel_of = {ANSWER: "True accuracy: problems solved (%)", PROXY: "Mean reward (%)"}
    with report.figure("reinforcement", caption=caption, alt=alt, panels=2) as panels:
        for axes, (measure, title) in zip(panels, panel_of.items(), strict=True):
            for run in runs:
                curves = [result.policies[run].points for result in found.results]
                updates = [one.update for one in curves[0]]
                means = np.mean([[one.mean(measure) for one in curve] for curve in curves], axis=0)
                axes.plot(updates, means, markevery=4, **drawn[title_of(run.prm)])
            axes.set_ylim(0, 1)
            finish(axes, "updates", title=title, names_at_ends=True)

    # True accuracy and reward against the distance from the untrained policy, for two ways to use a PRM.
    lines = over_optimization(found)
    ways = styles(list(next(iter(lines.values()))))
    caption = (
        "True accuracy (filled) and mean reward (hollow) against √KL from the untrained policy, by PRM. The divergence "
        "of Best-of-n is log n − (n−1)/n; that of GRPO is measured and may decrease, so GRPO is shown as points "
        "without a line. Where reward rises and accuracy falls, the PRM is over-optimized."
    )
    alt = "Accuracy and reward against the square root of the divergence, for Best-of-n and GRPO, a panel per PRM"
    with report.figure("over-optimization", caption=caption, alt=alt, size=(4.3, 3.6), panels=len(lines)) as panels:
        for axes, (prm, by_way) in zip(panels, lines.items(), strict=True):
            for way, line in by_way.items():
                for measure, style in (("gold", "-"), ("proxy", "--")):
                    label = f"{way}, {'problems solved' if measure == 'gold' else 'reward'}"
                    axes.plot(
                        line["sqrt_kl"], line[measure], color=ways[way].color, marker=ways[way].marker, label=label,
                        linestyle=style if way == BEST_OF_N else "none",
                        markerfacecolor=ways[way].color if measure == "gold" else "none",
                    )  # fmt: skip
            axes.set_ylim(0, 1)
            finish(axes, "√KL from the untrained policy (√nats)", "solved, reward (%)", title=title_of(prm))

    def each(run: PolicyRun, measure: str, at: int = -1) -> str:
        """One value per seed. Policies end high or low, so an interval of their mean would mislead."""
        return ", ".join(percent(value) for value in found.of_policy(run, measure, at))

    start = [each(runs[0], measure, 0) for measure in MEASURES if measure != PROXY]
    rows = [["untrained", NO_DATA, NO_DATA, *start, number(0.0, 2)]]
    for run in runs:
        cells = [each(run, measure) for measure in MEASURES]
        kl = float(np.mean([result.policies[run].points[-1].numbers["kl"] for result in found.results]))
        rows.append([title_of(run.prm), each(run, PROXY, 0), *cells, number(kl, 2)])
    headers = ["reward from", "mean reward before", *MEASURES.values(), "divergence (nats)"]
    caption = "The policy before and after training, sampled solutions of held-out problems (%)"
    report.table(headers, rows, caption=caption + ", one value per seed" * (len(found.results) > 1))

    def gaps(of_a: Sequence[float], of_b: Sequence[float]) -> str:
        return ", ".join(signed_percent(x - y) for x, y in zip(of_a, of_b, strict=True))

    after = {run.prm: found.of_policy(run, ANSWER) for run in runs}
    rows = []
    for run in runs:
        of = {measure: (found.of_policy(run, measure), found.of_policy(run, measure, 0)) for measure in MEASURES}
        rows.append([f"{title_of(run.prm)} − untrained", *(gaps(*of[measure]) for measure in (PROXY, ANSWER, STEPS))])
    for a, b in (("prism", "base"), ("prism", "pointwise"), ("prism", "paper"), (ORACLE, "prism")):
        if a in after and b in after:
            rows.append([f"{title_of(a)} − {title_of(b)}", NO_DATA, gaps(after[a], after[b]), NO_DATA])
    headers = ["difference", "mean reward", "answer right", "every step right"]
    report.table(headers, rows, caption="Differences in percentage points, one per seed")

    def raised(curve: Sequence[EvalPoint], alarm: Alarm | None) -> str:
        if alarm is None:
            return "silent"
        now = next(point for point in curve if point.update == alarm.update)
        best = max(point.mean(ANSWER) for point in curve if point.update < alarm.update)
        return f"{alarm.update} ({signed_percent(now.mean(ANSWER) - best)})"

    rows = []
    for run in runs:
        of_seeds = [result.policies[run] for result in found.results]
        cells = ["; ".join(raised(one.points, one.alarms[gold]) for one in of_seeds) for gold in (ANSWER, VOTE)]
        rows.append([title_of(run.prm), *cells])
    report.text(
        "The alarm is raised when true accuracy on held-out problems falls significantly and the reward does not fall "
        "with it. Without true answers, the untrained policy's majority answers replace them."
    )
    caption = "Alarms, one per seed: the update, and how many points true accuracy had fallen from its maximum"
    report.table(["reward from", "by the truth", "without it"], rows, caption=caption)
    if len(found.runs) > len(runs):  # every credit with and without a KL penalty
        credits = list(dict.fromkeys((run.credit, run.beta) for run in found.runs))
        rows = []
        for prm in dict.fromkeys(run.prm for run in found.runs):
            cells = [each(PolicyRun(prm, *way), ANSWER) for way in credits]
            rows.append([title_of(prm), *cells])
        headers = ["reward from", *(f"{credit}, β = {beta:g}" for credit, beta in credits)]
        report.table(headers, rows, caption="Answer right after training (%), by credit and weight of the divergence")


def over_optimization(found: Findings) -> dict[str, dict[str, dict[str, list[float]]]]:
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

        kl = mean([[point.numbers["kl"] for point in curve] for curve in curves])
        lines[run.prm] = {
            BEST_OF_N: {
                "sqrt_kl": np.sqrt(divergence(found.ns)).tolist(), "gold": mean(gold), "proxy": mean(proxy),
            },
            "GRPO": {
                # A measured divergence near 0 may be negative by chance.
                "sqrt_kl": np.sqrt(np.maximum(kl, 0)).tolist(),
                "gold": mean([[point.mean(ANSWER) for point in curve] for curve in curves]),
                "proxy": mean([[point.mean(PROXY) for point in curve] for curve in curves]),
            },
        }  # fmt: skip
    return lines
