"""`prism plan`: what a run will take, before it is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import LOADING, Options, with_settings
from prism_prm.cli.ui import conclude, print_table, tell
from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.plan.costs import Cluster
    from prism_prm.plan.plan_run import Plan

EXAMPLES = """
**Examples**

- A training recipe on four 48 GB cards:

  `prism plan recipes/qwen2.5-math-prm-7b.toml --gpu a6000 --count 4`

- Without the model, by a known size and another tokenizer:

  `prism plan recipes/qwen2.5-math-prm-7b.toml --gpu h100 --count 64 --config qwen2.5-72b
  --tokenizer my-tokenizer`

- Scoring:

  `prism plan --score solutions.jsonl --prm runs/my-prm --gpu l40s`

- A search:

  `prism plan recipes/search/math500-qwen2.5-math-1.5b.toml --set 'prm=["runs/prism"]'`

What the numbers assume: docs/scale.md
"""
_GIB = 2**30
_SHORT = {"gradients": "grads", "optimizer": "optim", "activations": "activ", "temporary": "temp"}
"""Parts of memory as the columns of a narrow table name them."""


@with_settings(
    cluster=Options(
        "prism_prm.plan.costs:Cluster",
        {"Hardware": ("gpu", "count", "gpu_memory", "gpu_tflops", "utilization")},
    ),
    loading=Options(LOADING, {"Scoring": ("family", "dtype", "attn", "token_budget", "context", "on_too_long")}),
)
def plan(
    *,
    recipe: Annotated[Path | None, typer.Argument(help="A recipe of `prism train` or `prism search`.")] = None,
    cluster: Cluster,
    config: Annotated[
        list[str] | None,
        typer.Option(
            help="Stands in for a model that is not at hand: a folder with config.json, or a known size such as "
            "qwen2.5-7b. In a search MODEL=PLACE stands in for one model. May be repeated.",
            rich_help_panel="Model",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="The tokenizer to count with, if the model's own is not at hand.",
            rich_help_panel="Model",
        ),
    ] = None,
    margins: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The margins of the pairs, from `prism margins`. With them the rounds of a curriculum are exact.",
        ),
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Instead of a recipe: what `prism score` would score. May be repeated.",
            rich_help_panel="Scoring",
        ),
    ] = None,
    prm: Annotated[
        str | None, typer.Option(help="The PRM to score with: a folder or a hub id.", rich_help_panel="Scoring")
    ] = None,
    loading: LoadSettings,
    solution_tokens: Annotated[
        int,
        typer.Option(min=1, max=10**6, help="Tokens per solution of a search.", rich_help_panel="Search"),
    ] = 512,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting of the recipe. May be repeated.")
    ] = None,
) -> None:
    """Say what a run will take: tokens, operations, memory per GPU, disk and hours.

    Reads the data, the tokenizer and the model's config, but no weights. Data is packed by the code that training and
    scoring use, so tokens and updates are exact; memory is checked against real runs (docs/scale.md).
    """
    from prism_prm.plan.plan_run import ScoringJob, plan_run, read_any

    if bool(recipe) == bool(score):
        raise ConfigError("give a recipe, or --score FILE with --prm")
    if score and not prm:
        raise ConfigError("--score needs --prm: the PRM to score with")
    found = plan_run(
        read_any(recipe, assignments or []) if recipe else ScoringJob(str(prm), tuple(score or ()), loading), cluster,
        config=config or [], tokenizer=tokenizer, margins=margins, solution_tokens=solution_tokens,
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
            *(f"{one.memory.parts[part] / _GIB:.1f}" if part in one.memory.parts else "–" for part in parts),
            f"{one.memory.peak / _GIB:.1f}",
            "yes" if one.fits else "no",
        ]
        for one in found.fits
    ]
    headers = ["", *(_SHORT.get(part, part) for part in parts), "peak", "fits"]
    print_table(f"GiB per GPU, of {cluster.room / _GIB:.0f} usable", headers, rows)
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
