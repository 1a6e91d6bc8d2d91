"""The report of `prism label`: values, labels and matched pairs, what they cost, and how wrong the labels are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prism_prm.data.pair_rules import annotated_pairs
from prism_prm.report import Report, escaped, finish, number, percent, styles
from prism_prm.search.label_checks import LabelNoise
from prism_prm.search.label_engine import LabelResult
from prism_prm.search.label_methods import METHODS
from prism_prm.stats import Interval
from prism_prm.tree import Step, StepTree

if TYPE_CHECKING:
    from prism_prm.search.recipes import LabelRecipe

GAPS = (0.0, 0.25, 0.5, 0.75)
"""Pairs are counted from these gaps on."""


@dataclass(frozen=True, slots=True)
class LabelRun:
    """All that a run found."""

    recipe: LabelRecipe
    task: str
    found: Mapping[str, Sequence[LabelResult]]
    """By stage: "labels" has one per problem, "second" and "check" one per tree, where there are such stages."""
    trees: Sequence[StepTree]
    consensus: Counter[str]
    """How labels fared with the second opinion; empty without one."""
    noise: LabelNoise | None
    critic: dict[str, Any] | None = None
    """What a critic's second opinion has cost; None without one."""
    notes: Sequence[str] = ()
    """Warnings, and what the task lacks."""


def make_report(run: LabelRun) -> Report:
    """The page and its metrics."""
    metrics = _metrics(run)
    settings = run.recipe.label
    report = Report(
        f"Labels: {settings.method} on {run.task}",
        subtitle=f"{number(metrics['num_problems'])} problems, {run.recipe.policy.name}, rule {settings.rule}",
        finding=_finding(metrics),
        metrics=metrics,
    )
    report.notes(run.notes)
    _draw_values(run.trees, report)
    report.table(["", "count"], summary_rows(metrics), caption="What was labelled, and what it cost")
    report.counts("reason", metrics["left_out"], caption="Left out")
    at: dict[int, list[Step]] = {}
    for tree in run.trees:
        for depth, step in zip(tree.depths(), tree.nodes, strict=True):
            at.setdefault(depth, []).append(step)
    rows = []
    for depth, steps in sorted(at.items()):
        labels = [step.label for step in steps if step.label is not None]
        estimates = [step.estimate for step in steps if step.estimate is not None]
        rows.append(
            [
                str(depth + 1), number(len(steps)), number(len(labels)),
                percent(float(np.mean([label > 0.5 for label in labels])) if labels else None),
                number(float(np.mean([one.value for one in estimates])) if estimates else None, 2),
                number(sum(one.rollouts for one in estimates) / len(steps), 1),
            ]
        )  # fmt: skip
    headers = ["position", "steps", "labelled", "right (%)", "mean value", "rollouts per step"]
    report.table(headers, rows, caption="Steps by position, alternatives included")
    if run.noise is not None:
        facts = metrics["label_noise"]
        report.text("## How wrong the labels are")
        caption = "Labels from rollouts against exact ones, 95 % intervals"
        report.table(NOISE_HEADERS, noise_rows(facts), caption=caption)
        report.text(noise_note(facts))
        report.counts("reason", dict(sorted(run.noise.counts.items())), caption="Left out of this comparison")
    report.text(_introduction(run))
    return report


def _metrics(run: LabelRun) -> dict[str, Any]:
    steps = [step for tree in run.trees for step in tree.nodes]
    labels = [step.label for step in steps if step.label is not None]
    left_out: Counter[str] = Counter()
    found = run.found["labels"]
    for one in found:
        left_out.update(one.counts)
    gaps = [pair.gap for tree in run.trees for pair in annotated_pairs(tree)]
    metrics: dict[str, Any] = {
        "settings": asdict(run.recipe),
        "task": run.task,
        "num_problems": len(found),
        "num_trees": len(run.trees),
        "num_solved": sum(sum(one.reached) for one in found),
        "num_steps": len(steps),
        "num_labelled": len(labels),
        "num_right": sum(label > 0.5 for label in labels),
        **_cost(found),
        "pairs": {f"{least:g}": sum(gap is None or gap >= least for gap in gaps) for least in GAPS},
        "left_out": dict(sorted(left_out.items())),
    }
    metrics |= {f"{name}_cost": _cost(run.found[name]) for name in ("second", "check") if name in run.found}
    if run.recipe.second_policy or run.recipe.consensus:
        metrics["consensus"] = dict(run.consensus)
    if run.critic is not None:
        metrics["critic"] = run.critic
    if run.noise is not None:
        noise = run.noise
        groups = {
            name: {**asdict(group), "fpr": asdict(group.fpr), "fnr": asdict(group.fnr)}
            for name, group in noise.groups.items()
        }
        numbers = {name: getattr(noise, name) for name in ("solved", "solved_wrongly", "solved_wrongly_unnoticed")}
        metrics["label_noise"] = {**numbers, "groups": groups, "counts": dict(noise.counts)}
    return metrics


def _cost(found: Sequence[LabelResult]) -> dict[str, int]:
    return {"rollouts": sum(one.rollouts for one in found), "policy_tokens": sum(one.tokens for one in found)}


def _finding(metrics: dict[str, Any]) -> str:
    labelled = metrics["num_labelled"]
    right = percent(metrics["num_right"] / labelled) if labelled else "no"
    text = (
        f"{number(labelled)} of {number(metrics['num_steps'])} steps are labelled, {right} % of them right, from "
        f"{number(metrics['rollouts'])} rollouts; they make {number(metrics['pairs']['0'])} matched pairs"
    )
    if noise := metrics.get("label_noise"):
        every = noise["groups"]["all"]
        text += (
            f". In the checked sample, {percent(every['fpr']['value'])} % of wrong steps are called right and "
            f"{percent(every['fnr']['value'])} % of right ones wrong"
        )
    return f"{text}."


def _draw_values(trees: Sequence[StepTree], report: Report) -> None:
    of: dict[str, list[float]] = {"solutions": [], "alternatives": []}
    most = 1
    for tree in trees:
        trunk = set(tree.trunk)
        for i, step in enumerate(tree.nodes):
            if step.estimate is not None:
                of["solutions" if i in trunk else "alternatives"].append(step.estimate.value)
                most = max(most, step.estimate.rollouts)
    caption = "How often rollouts from a step reach the right answer, for solutions and the alternatives beside them."
    alt = "Histogram of estimated values of steps, for solutions and for alternatives"
    with report.figure("values", caption=caption, alt=alt) as axes:
        edges = (np.arange(most + 2) - 0.5) / most  # a bin for each share of that many rollouts
        drawn = [name for name in of if of[name]]
        if drawn:
            values = [of[name] for name in drawn]
            weights = [np.full(len(some), 1 / len(some)) for some in values]
            colors = [style.color for name, style in styles(list(of)).items() if name in drawn]
            axes.hist(values, edges, weights=weights, label=drawn, color=colors)
        finish(axes, f"value: right answers in up to {most} rollouts (%)", "share of steps (%)", percent="xy")


def summary_rows(metrics: dict[str, Any]) -> list[list[str]]:
    """What a run made, for a table."""
    solved = f"{number(metrics['num_solved'])} of {number(metrics['num_trees'])}"
    names = {
        "num_problems": "problems", "num_trees": "trees", "num_steps": "steps", "num_labelled": "labelled steps",
        "num_right": "labelled right", "rollouts": "rollouts", "policy_tokens": "policy tokens",
    }  # fmt: skip
    critic_costs = {}  # in this run; replies that were kept before cost nothing
    if critic := metrics.get("critic"):
        critic_costs["critic tokens"] = critic["prompt_tokens"] + critic["completion_tokens"]
        critic_costs |= {"critic cost": critic["cost"]} if critic["cost"] else {}
    further = {"second_cost": "of the second policy", "check_cost": "for the check"}
    return [
        *([words, number(metrics[name])] for name, words in names.items()),
        *(
            [f"{names[name]} {words}", number(count)]
            for stage, words in further.items()
            for name, count in metrics.get(stage, {}).items()
        ),
        ["solutions with the right answer", solved],
        *([f"matched pairs, gap ≥ {least}", number(count)] for least, count in metrics["pairs"].items()),
        *([f"consensus: {words}", number(count)] for words, count in metrics.get("consensus", {}).items()),
        *([name, number(count)] for name, count in critic_costs.items()),
    ]


NOISE_HEADERS = ("steps", "wrong", "called right: FPR (%)", "right", "called wrong: FNR (%)")


def noise_rows(noise: dict[str, Any]) -> list[list[str]]:
    """The noise of labels by group, for a table."""
    rows = []
    for name, group in noise["groups"].items():
        fpr, fnr = (percent(Interval(**group[rate])) for rate in ("fpr", "fnr"))
        rows.append([name, number(group["wrong"]), fpr, number(group["right"]), fnr])
    return rows


def noise_note(noise: dict[str, Any]) -> str:
    """How many right answers were reached through wrong steps."""
    return (
        f"Of {number(noise['solved'])} solutions with the right answer, {number(noise['solved_wrongly'])} have a wrong "
        f"step; in {number(noise['solved_wrongly_unnoticed'])} of them the labels call every wrong step right."
    )


def _introduction(run: LabelRun) -> str:
    settings = run.recipe.label
    text = (
        f"## How to read this\n\n**{settings.method}**: {METHODS[settings.method].about}. A value is the share of "
        f"rollouts from a step that reach the right answer; up to {settings.rollouts} rollouts per step, at "
        f"temperature {settings.sampling.temperature:g}. The rule `{settings.rule}` makes labels of values. A pair's "
        "gap is the difference of its two values."
    )
    if settings.method != "monte-carlo":
        text += " Rollouts stop when the label is decided, so values are coarse: use them for labels, not as values."
    if run.recipe.second_policy:
        text += f" Labels are kept where rollouts of {escaped(run.recipe.second_policy)} give the same one."
    if run.recipe.consensus:
        text += f" Labels are kept where the scores of {escaped(run.recipe.consensus)} give the same one."
    return text
