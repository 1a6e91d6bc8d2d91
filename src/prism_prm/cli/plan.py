"""What `--plan` shows: what a run will take, before it is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prism_prm.cli.ui import conclude, print_table, tell
from prism_prm.plan.costs import GIB

if TYPE_CHECKING:
    from prism_prm.plan.plan_run import Plan, ScoringJob
    from prism_prm.plan.plan_settings import PlanSettings
    from prism_prm.search.recipes import SearchRecipe
    from prism_prm.train.recipe import Recipe

_SHORT = {"gradients": "grads", "optimizer": "optim", "activations": "activ", "temporary": "temp"}
"""Parts of memory as the columns of a narrow table name them."""


def show_plan(what: Recipe | SearchRecipe | ScoringJob, settings: PlanSettings) -> None:
    """Plan a run without loading weights, and show tokens, operations, memory per GPU, disk and hours."""
    from prism_prm.plan.plan_run import plan_run

    found = plan_run(
        what, settings.cluster(), config=settings.config, tokenizer=settings.tokenizer, margins=settings.margins,
        solution_tokens=settings.solution_tokens,
    )  # fmt: skip
    conclude(found.facts, lambda: _show(found))


def _show(found: Plan) -> None:
    from prism_prm.report import number

    cluster = found.cluster
    rows = []
    for stage in found.stages:
        times = f" × {stage.times}" if stage.times > 1 else ""
        ratio = f"{stage.ratio:.1f}" if stage.ratio else "–"
        updates = number(stage.updates) if stage.updates else "–"
        shown = [updates, number(stage.tokens), ratio, f"{stage.flops:.2e}", f"{stage.efficiency:.0%}"]
        rows.append([stage.name + times, *shown, f"{stage.hours * stage.times:.2f}"])
    headers = ["stage", "updates", "tokens", "packing", "FLOPs", "busy", "hours"]
    print_table(f"{found.kind} on {cluster.count} × {cluster.gpu}, at {cluster.utilization:.0%} of peak", headers, rows)
    parts = list(dict.fromkeys(part for one in found.fits for part in one.memory.parts))
    rows = [
        [
            one.name,
            *(f"{one.memory.parts[part] / GIB:.1f}" if part in one.memory.parts else "–" for part in parts),
            f"{one.memory.peak / GIB:.1f}",
            "yes" if one.fits else "no",
        ]
        for one in found.fits
    ]
    headers = ["", *(_SHORT.get(part, part) for part in parts), "peak", "fits"]
    print_table(f"GiB per GPU, of {cluster.room / GIB:.0f} usable", headers, rows)
    if found.remedies:
        tell(f"{found.fits[0].name} does not fit. Settings that make it fit:")
        for line in found.remedies:
            tell(f"  {line}")
    elif not any(one.fits for one in found.fits):
        tell("Nothing here fits, and no setting alone makes it fit.")
    disk = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in found.disk.items())
    tell(f"Disk: {sum(found.disk.values()) / 1e9:.1f} GB ({disk}).")
    tell(f"In all {found.flops:.2e} operations, {found.hours:.2f} hours, {found.hours * cluster.count:.1f} GPU hours.")
    for note in found.notes:
        tell(f"- {note}")
