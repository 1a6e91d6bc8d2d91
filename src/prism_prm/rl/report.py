"""The report of `prism grpo`: reward against truth over updates, what else changed, and tasks before and after."""

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
    from prism_prm.search.search_task import Point

HEALTH = {
    "answered": "share answered", "cut": "share cut", "num_steps": "steps per solution",
    "num_tokens": "tokens per solution", "repeated_steps": "share of repeated steps",
    "reward_spread": "spread of rewards in a group", "groups_without_spread": "groups without any",
    "entropy": "entropy per token", "kl": "divergence from the untrained policy",
    "reward/PRMReward/unreadable_steps": "share of unscorable steps",
}  # fmt: skip
"""Numbers of a look and how they are called."""


def make_report(
    recipe: GrpoRecipe,
    curve: TrainedPolicy,
    before: dict[tuple[str, str], Point],
    after: dict[tuple[str, str], Point],
    costs: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Report:
    """The page and its metrics; `costs` are those of a critic, each time the command ran, `notes` are warnings."""
    rewarded = recipe.prm or "right answers"
    report = Report(
        "A policy trained by GRPO", subtitle=f"{recipe.policy}, rewarded by {rewarded}", finding=_finding(curve)
    )
    report.notes(notes)
    _curves(curve, report)
    _alarms(curve, report)
    _health(curve, report)
    if before:
        _tasks(before, after, report)
    if costs:
        _costs(costs, report)
    report.metrics = {
        "recipe": asdict(recipe),
        "looks": [{"update": look.update, **look.summary()} for look in curve.points],
        "alarms": {name: alarm and asdict(alarm) for name, alarm in curve.alarms.items()},
        "tasks": [
            {"task": task, "how": how, "before": asdict(point.accuracy), "after": asdict(after[task, how].accuracy)}
            for (task, how), point in before.items()
        ],
    }
    if costs:
        report.metrics["critic"] = list(costs)
    return report


def _finding(curve: TrainedPolicy) -> str:
    """Whether the truth went the way of the reward."""
    first, last = curve.points[0], curve.points[-1]
    (reward, more), (solved, now) = (
        [percent(look.interval(name).value) for look in (first, last)] for name in (PROXY, curve.gold)
    )
    return (
        f"In {last.update} updates, the mean reward of held-out problems went from {reward} to {more} %, and the share "
        f"solved from {solved} to {now} %."
    )


def _curves(curve: TrainedPolicy, report: Report) -> None:
    gold = curve.gold
    lines = {PROXY: "mean reward", gold: "solved, sampled", f"{GREEDY}/{gold}": "solved, greedy"}
    updates = [one.update for one in curve.points]
    caption = "Held-out problems: the mean reward of sampled solutions and the share that is right; 95 % over problems."
    alt = "Mean reward and share of right solutions on held-out problems against updates"
    with report.figure("gold-and-proxy", caption=caption, alt=alt) as axes:
        for name, style in styles(list(lines)).items():
            draw_curve(axes, updates, [one.interval(name) for one in curve.points], lines[name], style)
        finish(axes, "updates", "reward and share solved (%)")


def _alarms(curve: TrainedPolicy, report: Report) -> None:
    names = {curve.gold: "By the truth", VOTE: "Without true answers (votes of the untrained policy)"}
    said = [f"- {names[name]}: {alarm or 'silent'}" for name, alarm in curve.alarms.items()]
    report.text(
        "## Alarms\nAn alarm is raised when true accuracy (of sampled or greedy solutions) has fallen below its best "
        "look and the reward has not followed: the fall, and the distance between the two changes, are at least "
        "3 points and 3.5 standard errors (paired by problem). For votes it takes 12 points.\n\n" + "\n".join(said)
    )


def _health(curve: TrainedPolicy, report: Report) -> None:
    first, last = curve.points[0], curve.points[-1]
    middle = curve.points[len(curve.points) // 2]
    rows = [
        [title, *(number(one.numbers.get(name)) for one in (first, middle, last))]
        for name, title in HEALTH.items()
        if name in last.numbers
    ]
    headers = ["held-out solutions", *(f"update {one.update}" for one in (first, middle, last))]
    report.text("## What else changed")
    report.table(headers, rows, caption="Sampled solutions of the held-out problems")


def _tasks(before: dict[tuple[str, str], Point], after: dict[tuple[str, str], Point], report: Report) -> None:
    rows = []
    for (task, how), point in before.items():
        now = after[task, how]
        gain = signed_percent(compare_means(now.correct, point.correct))
        rows.append([f"{task}, {how}", percent(point.accuracy), percent(now.accuracy), gain])
    report.text("## Tasks\nSolved as `prism search` solves them; differences are paired by problem.")
    report.table(["accuracy (%)", "untrained", "trained", "difference"], rows, caption="Before and after training")


def _costs(critic: Sequence[Mapping[str, Any]], report: Report) -> None:
    """What the verdicts behind the rewards have cost, and which were missing."""
    missing: Counter[str] = Counter()
    for run in critic:
        missing.update(run["missing"])
    policy = {"error": "the run stopped", "wrong": "its step counts as wrong", "skip": "its step scored 0"}
    names = {
        "requests": "requests", "reused": "kept replies", "prompt_tokens": "tokens read",
        "completion_tokens": "tokens written", "seconds": "seconds of waiting", "cost": "cost",
    }  # fmt: skip
    counts = {title: sum(run[name] for run in critic) for name, title in names.items()}
    told = policy[critic[-1]["on_missing"]]
    counts |= {f"answers without a verdict: {kind} ({told})": count for kind, count in missing.items()}
    report.text("## The critic")
    report.counts("", counts, caption="What the verdicts behind the rewards have cost")
