"""The report of `prism label`: values, labels, matched pairs, their cost, and the error rates of the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prism_prm.data.pair_rules import annotated_pairs
from prism_prm.report import Report, escaped, finish, number, percent, styles
from prism_prm.search.label_checks import LabelNoise
from prism_prm.search.label_engine import LabelResult
from prism_prm.search.label_methods import METHODS
from prism_prm.search.recipes import LabelRecipe
from prism_prm.stats import Interval
from prism_prm.tree import Step, StepTree

GAPS = (0.0, 0.25, 0.5, 0.75)
"""Pairs are counted with at least these gaps."""


@dataclass(frozen=True, slots=True)
class LabelRun:
    """The results of a run."""

    recipe: LabelRecipe
    task: str
    results: Mapping[str, Sequence[LabelResult]]
    """By stage: "labels" has one result per problem; "second" and "check", if there are such stages, one per tree."""
    trees: Sequence[StepTree]
    consensus: Counter[str]
    """Counts of labels by the outcome of the second opinion; empty without one."""
    noise: LabelNoise | None
    critic: dict[str, Any] | None = None
    """The cost of a critic's second opinion; None without one."""
    notes: Sequence[str] = ()
    """Warnings, and notes on the task."""


def make_report(run: LabelRun) -> Report:
    """Build the report."""
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
    report.table(["", "count"], summary_rows(metrics), caption="Labels and their cost")
    report.counts("reason", metrics["left_out"], caption="Left out")
    by_depth: dict[int, list[Step]] = {}
    for tree in run.trees:
        for depth, step in zip(tree.depths(), tree.nodes, strict=True):
            by_depth.setdefault(depth, []).append(step)
    rows = []
    for depth, steps in sorted(by_depth.items()):
        labels = [step.label for step in steps if step.label is not None]
        estimates = [step.estimate for step in steps if step.estimate is not None]
        rows.append(
            [
                str(depth + 1), number(len(steps)), number(len(labels)),
                percent(float(np.mean([label > 0.5 for label in labels])) if labels else None),
                number(float(np.mean([estimate.value for estimate in estimates])) if estimates else None, 2),
                number(sum(estimate.rollouts for estimate in estimates) / len(steps), 1),
            ]
        )  # fmt: skip
    headers = ["position", "steps", "labeled", "right (%)", "mean value", "rollouts per step"]
    report.table(headers, rows, caption="Steps by position, including alternatives")
    if run.noise is not None:
        facts = metrics["label_noise"]
        report.text("## Error rates of the labels")
        caption = "Labels from rollouts compared with exact ones, with 95 % intervals"
        report.table(NOISE_HEADERS, noise_rows(facts), caption=caption)
        report.text(noise_note(facts))
        report.counts("reason", dict(sorted(run.noise.counts.items())), caption="Left out of this comparison")
    report.text(_introduction(run))
    return report


def _metrics(run: LabelRun) -> dict[str, Any]:
    steps = [step for tree in run.trees for step in tree.nodes]
    labels = [step.label for step in steps if step.label is not None]
    left_out: Counter[str] = Counter()
    results = run.results["labels"]
    for result in results:
        left_out.update(result.counts)
    gaps = [pair.gap for tree in run.trees for pair in annotated_pairs(tree)]
    metrics: dict[str, Any] = {
        "settings": asdict(run.recipe),
        "task": run.task,
        "num_problems": len(results),
        "num_trees": len(run.trees),
        "num_solved": sum(sum(result.reached) for result in results),
        "num_steps": len(steps),
        "num_labeled": len(labels),
        "num_right": sum(label > 0.5 for label in labels),
        **_cost(results),
        "pairs": {f"{least:g}": sum(gap is None or gap >= least for gap in gaps) for least in GAPS},
        "left_out": dict(sorted(left_out.items())),
    }
    metrics |= {f"{name}_cost": _cost(run.results[name]) for name in ("second", "check") if name in run.results}
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


def _cost(results: Sequence[LabelResult]) -> dict[str, int]:
    return {
        "rollouts": sum(result.rollouts for result in results),
        "policy_tokens": sum(result.tokens for result in results),
    }


def _finding(metrics: dict[str, Any]) -> str:
    labeled = metrics["num_labeled"]
    right = percent(metrics["num_right"] / labeled) if labeled else "no"
    text = (
        f"{number(labeled)} of {number(metrics['num_steps'])} steps are labeled, {right} % of them right, from "
        f"{number(metrics['rollouts'])} rollouts; they make {number(metrics['pairs']['0'])} matched pairs"
    )
    if noise := metrics.get("label_noise"):
        overall = noise["groups"]["all"]
        text += (
            f". In the checked sample, {percent(overall['fpr']['value'])} % of wrong steps are called right and "
            f"{percent(overall['fnr']['value'])} % of right ones wrong"
        )
    return f"{text}."


def _draw_values(trees: Sequence[StepTree], report: Report) -> None:
    by_kind: dict[str, list[float]] = {"solutions": [], "alternatives": []}
    most = 1
    for tree in trees:
        trunk = set(tree.trunk)
        for i, step in enumerate(tree.nodes):
            if step.estimate is not None:
                by_kind["solutions" if i in trunk else "alternatives"].append(step.estimate.value)
                most = max(most, step.estimate.rollouts)
    caption = "How often rollouts from a step reach the right answer, for steps of solutions and their alternatives."
    alt = "Histogram of estimated values of steps, for solutions and for alternatives"
    with report.figure("values", caption=caption, alt=alt) as axes:
        edges = (np.arange(most + 2) - 0.5) / most  # a bin for each possible number of hits
        drawn = [name for name in by_kind if by_kind[name]]
        if drawn:
            values = [by_kind[name] for name in drawn]
            weights = [np.full(len(own), 1 / len(own)) for own in values]
            colors = [style.color for name, style in styles(list(by_kind)).items() if name in drawn]
            axes.hist(values, edges, weights=weights, label=drawn, color=colors)
        finish(axes, f"value: right answers in up to {most} rollouts (%)", "share of steps (%)", percent="xy")


def summary_rows(metrics: dict[str, Any]) -> list[list[str]]:
    """The rows of the table of labels and their cost."""
    solved = f"{number(metrics['num_solved'])} of {number(metrics['num_trees'])}"
    names = {
        "num_problems": "problems", "num_trees": "trees", "num_steps": "steps", "num_labeled": "labeled steps",
        "num_right": "labeled right", "rollouts": "rollouts", "policy_tokens": "policy tokens",
    }  # fmt: skip
    critic_costs = {}  # of this run; cached replies cost nothing
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
    """The rows of the table of error rates."""
    rows = []
    for name, group in noise["groups"].items():
        fpr, fnr = (percent(Interval(**group[rate])) for rate in ("fpr", "fnr"))
        rows.append([name, number(group["wrong"]), fpr, number(group["right"]), fnr])
    return rows


def noise_note(noise: dict[str, Any]) -> str:
    """How many solutions reach the right answer through a wrong step."""
    return (
        f"Of {number(noise['solved'])} solutions with the right answer, {number(noise['solved_wrongly'])} have a wrong "
        f"step; in {number(noise['solved_wrongly_unnoticed'])} of them the labels call every wrong step right."
    )


def _introduction(run: LabelRun) -> str:
    settings = run.recipe.label
    text = (
        f"## How to read this\n\n**{settings.method}**: {METHODS[settings.method].about}. A value is the fraction of "
        f"rollouts from a step that reach the right answer; up to {settings.rollouts} rollouts per step, at "
        f"temperature {settings.sampling.temperature:g}. The rule `{settings.rule}` turns values into labels. A pair's "
        "gap is the difference of its two values."
    )
    if settings.method != "monte-carlo":
        text += " Rollouts stop when the label is decided, so values are coarse: use only the labels."
    if run.recipe.second_policy:
        text += f" Only labels that rollouts of {escaped(run.recipe.second_policy)} confirm are kept."
    if run.recipe.consensus:
        text += f" Only labels that the scores of {escaped(run.recipe.consensus)} confirm are kept."
    return text
