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
        + "\n".join(f"- {names[name]}: {alarm or 'no alarm'}" for name, alarm in alarms.items())
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
