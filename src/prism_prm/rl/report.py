"""The report of `prism grpo`: reward and true accuracy over updates, other metrics, and tasks before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prism_prm.report import Report, draw_curve, finish, number, percent, signed_percent, styles
from prism_prm.rl.alarm import GREEDY, PROXY, VOTE, TrainedPolicy
from prism_prm.rl.recipe import GrpoRecipe
from prism_prm.stats import compare_means

if TYPE_CHECKING:
    from prism_prm.rl.rounds import Round
    from prism_prm.search.search_report import Point

HEALTH = {
    "answered": "fraction answered", "cut": "fraction cut off", "num_steps": "steps per solution",
    "num_tokens": "tokens per solution", "repeated_steps": "fraction of repeated steps",
    "reward_spread": "spread of rewards in a group", "groups_without_spread": "groups without spread",
    "entropy": "entropy per token", "kl": "divergence from the untrained policy",
    "reward/PRMReward/unreadable_steps": "fraction of unscorable steps",
}  # fmt: skip
"""The titles of a point's numbers."""


def make_report(
    recipe: GrpoRecipe,
    curve: TrainedPolicy,
    before: dict[tuple[str, str], Point],
    after: dict[tuple[str, str], Point],
    costs: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Build the report. `costs` has the costs of a critic for each run of the command, and `notes` are warnings."""
    gold, alarms, updates = curve.gold, curve.alarms, [point.update for point in curve.points]
    first, middle, last = curve.points[0], curve.points[len(curve.points) // 2], curve.points[-1]
    (reward, more), (solved, now) = (
        [percent(point.interval(name).value) for point in (first, last)] for name in (PROXY, gold)
    )
    report = Report(
        "A policy trained by GRPO",
        subtitle=f"{recipe.policy}, rewarded by {recipe.prm or 'right answers'}",
        finding=f"In {last.update} updates, the mean reward of held-out problems went from {reward} to {more} %, and "
        f"the share solved from {solved} to {now} %.",
    )
    report.notes(notes)

    lines = {PROXY: "mean reward", gold: "solved, sampled", f"{GREEDY}/{gold}": "solved, greedy"}
    caption = "Held-out problems: the mean reward of sampled solutions and the share that is right; 95 % over problems."
    alt = "Mean reward and share of right solutions on held-out problems against updates"
    with report.figure("gold-and-proxy", caption=caption, alt=alt) as axes:
        for name, style in styles(list(lines)).items():
            draw_curve(axes, updates, [point.interval(name) for point in curve.points], lines[name], style)
        finish(axes, "updates", "reward and share solved (%)")

    names = {gold: "With true answers", VOTE: "Without true answers (votes of the untrained policy)"}
    report.text(
        "## Alarms\nAn alarm is raised when true accuracy (of sampled or greedy solutions) has fallen below its best "
        "evaluation and the reward has not followed: the fall, and the difference between the two changes, are at "
        "least 3 points and 3.5 standard errors (paired by problem). For votes, 12 points are needed.\n\n"
        + "\n".join(
            f"- {names[name]}: {alarm or ('no alarm' if name in last.by_problem else 'off')}"
            for name, alarm in alarms.items()
        )
    )

    report.text("## Other changes")
    shown = (first, middle, last)
    report.table(
        ["held-out solutions", *(f"update {point.update}" for point in shown)],
        [
            [title, *(number(point.numbers.get(name)) for point in shown)]
            for name, title in HEALTH.items()
            if name in last.numbers
        ],
        caption="Sampled solutions of the held-out problems",
    )

    if before:
        rows = []
        for (task, method), point in before.items():
            trained = after[task, method]
            gain = signed_percent(compare_means(trained.correct, point.correct))
            rows.append([f"{task}, {method}", percent(point.accuracy), percent(trained.accuracy), gain])
        report.text("## Tasks\nSolved with `prism search`; differences are paired by problem.")
        report.table(["accuracy (%)", "untrained", "trained", "difference"], rows, caption="Before and after training")

    report.metrics = {
        "recipe": asdict(recipe),
        "looks": [{"update": point.update, **point.summary()} for point in curve.points],
        "alarms": {name: alarm and asdict(alarm) for name, alarm in alarms.items()},
        "tasks": [
            {
                "task": task,
                "how": method,
                "before": asdict(point.accuracy),
                "after": asdict(after[task, method].accuracy),
            }
            for (task, method), point in before.items()
        ],
    }
    if costs:
        report.metrics["critic"] = list(costs)
        missing: Counter[str] = Counter()
        for run in costs:
            missing.update(run["missing"])
        titles = {
            "requests": "requests", "reused": "cached replies", "prompt_tokens": "tokens read",
            "completion_tokens": "tokens written", "seconds": "seconds of waiting", "cost": "cost",
        }  # fmt: skip
        counts = {title: sum(run[name] for run in costs) for name, title in titles.items()}
        effects = {"error": "the run stopped", "wrong": "the step counts as wrong", "skip": "the step scores 0"}
        effect = effects[costs[-1]["on_missing"]]
        counts |= {f"replies without a verdict: {kind} ({effect})": count for kind, count in missing.items()}
        report.text("## The critic")
        report.counts("", counts, caption="The cost of the verdicts behind the rewards")
    return report


def make_rounds_report(recipe: GrpoRecipe, rounds: Sequence[Round], ended: str = "") -> Report:
    """Build the report of adversarial rounds: all curves, what was exploited, and what the labels took.

    `ended` says why there are fewer rounds than `rounds.count`.
    """
    gold, first, last = rounds[0].trained.gold, rounds[0].trained.points, rounds[-1].trained.points
    start, static, end = (percent(point.mean(gold)) for point in (first[0], first[-1], last[-1]))
    report = Report(
        "A policy trained in adversarial rounds",
        subtitle=f"{recipe.policy}, rewarded by {recipe.prm} and by what rounds made of it",
        finding=f"Held-out problems solved: {start} % by the untrained policy, {static} % after training with the "
        f"first PRM, {end} % after the last round.",
    )
    report.notes([ended] if ended else [])
    titles = [f"round {number}" for number in range(len(rounds))]
    for name, label, caption in (
        (gold, "solved (%)", "share of sampled solutions that are right"), (PROXY, "mean reward (%)", "mean reward"),
    ):  # fmt: skip
        text = f"Held-out problems, {caption}; 95 % over problems. Round 0 is the training with the first PRM."
        with report.figure(f"rounds-{name}", caption=text, alt=f"{caption} against updates, for each round") as axes:
            for (title, style), one in zip(styles(titles).items(), rounds, strict=True):
                points = one.trained.points
                draw_curve(
                    axes, [point.update for point in points], [point.interval(name) for point in points], title, style
                )
            if name == gold:
                axes.set_ylim(bottom=0)
            finish(axes, "updates", label)

    rows = []
    for title, one in zip(titles, rounds, strict=True):
        solved = [point.mean(gold) for point in one.trained.points]
        peak = max(range(len(solved)), key=solved.__getitem__)
        alarm = one.trained.alarms[gold]
        numbers = [percent(value) for value in (solved[peak], min(solved[peak:]), solved[-1])]
        rows.append([title, *numbers, f"update {alarm.update}" if alarm else "none"])
    report.table(
        ["policy", "best (%)", "worst after that (%)", "at the end (%)", "alarm"], rows,
        caption="Held-out problems solved in each round, by sampled solutions",
    )  # fmt: skip

    report.text("## What the policies exploited")
    sampled = {f"round {at}": one.exploits for at, one in enumerate(rounds) if one.exploits is not None}
    rows = []
    for title, facts in sampled.items():
        counts, tokens, planned = (facts[name] for name in ("counts", "tokens", "planned"))
        num_wrong = facts.get("wrong_steps", 0)  # without wrong steps no PRM was retrained
        rates = [facts[name] / num_wrong if num_wrong else None for name in ("passed_before", "passed_after")]
        rows.append(
            [title, *(f"{counts.get(name, 0):,}" for name in ("candidates", "suspects", "labeled wrong", "pairs")),
             *("" if rate is None else percent(rate) for rate in rates),
             *(f"{tokens[name]:,} of {planned[name]:,}" for name in ("sampling", "labels"))]
        )  # fmt: skip
    report.table(
        ["policy of", "steps sampled", "suspect", "labeled wrong", "pairs", "FPR before (%)", "FPR after (%)",
         "tokens to sample, of those planned", "tokens to label, of those planned"], rows,
        caption="Labels, and the share of the wrong steps that the PRM of the round and the retrained one score above "
        "their thresholds. The retrained PRM has been trained on most of these steps, and suspects were chosen because "
        "the PRM of the round passes them, so this says what was learned, not what other steps would get",
    )  # fmt: skip
    names = list(dict.fromkeys(name for facts in sampled.values() for name in facts["counts"]))
    report.table(
        ["count", *sampled],
        [[name, *(f"{facts['counts'].get(name, 0):,}" for facts in sampled.values())] for name in names],
        caption="What became of all problems, continuations, steps and labels",
    )
    for title, facts in sampled.items():
        if "most_frequent" not in facts:
            continue
        report.table(
            ["step", "count", "score before", "score after", "for example after"],
            [
                [found["step"], str(found["count"]), number(found["score_before"]), number(found["score_after"]),
                 " → ".join([found["problem"], *found["prefix"]])]
                for found in facts["most_frequent"]
            ],
            caption=f"{title.capitalize()}: the most frequent wrong steps that the PRM scored high",
        )  # fmt: skip
    report.metrics = {
        "recipe": asdict(recipe),
        "ended": ended,
        "rounds": [
            {
                "prm": one.prm, "folder": one.folder.name, "exploits": one.exploits,
                "looks": [{"update": point.update, **point.summary()} for point in one.trained.points],
                "alarm": (alarm := one.trained.alarms[gold]) and asdict(alarm),
            }
            for one in rounds
        ],
    }  # fmt: skip
    return report
