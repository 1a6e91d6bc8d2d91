"""`prism train`: a recipe from data to a trained PRM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prism_prm.cli.processes import join_processes, num_processes
from prism_prm.cli.ui import print_table, progress, say

EXAMPLES = """
Examples

`prism train recipes/qwen2.5-math-prm-7b.toml --set 'data.inputs=["phase1_train.jsonl"]'`

`accelerate launch --config_file recipes/accelerate/fsdp.yaml -m prism_prm train recipes/qwen2.5-math-prm-7b.toml`
"""

SHOWN = {
    "auroc": "AUROC", "fpr_at_tpr_90": "FPR at TPR 90", "fpr_at_0.5": "FPR at 0.5", "fnr_at_0.5": "FNR at 0.5",
    "pairwise_accuracy": "pairs ranked right", "threshold": "threshold",
}  # fmt: skip
"""Validation metrics of the closing table."""


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe: one TOML file (see recipes/).")],
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="The run's folder. Default: runs/NAME for NAME.toml.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting, e.g. --set train.lr=2e-6. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print run.json to standard output at the end.")] = False,
) -> None:
    """Train a PRM: pairs, margins of the base PRM, curriculum rounds, validation, the best round.

    A run that was stopped goes on with the same command; what is done is not done again. Every round leaves a complete
    PRM folder under OUT/rounds, and OUT/run.json names the best one.
    """
    from prism_prm.training.recipe import load_recipe

    settings = load_recipe(recipe, assignments or [])
    from accelerate import Accelerator

    from prism_prm.training.pipeline import train_prm

    if num_processes() > 1:
        join_processes()
    accelerator = Accelerator(mixed_precision=settings.hardware.mixed_precision)
    folder = out or Path("runs") / recipe.stem
    finished = train_prm(settings, folder, accelerator=accelerator, bars=progress, say=say)
    if accelerator.is_main_process:
        _print(finished, folder)
        if as_json:
            import json

            typer.echo(json.dumps(finished))


def _print(finished: dict[str, Any], folder: Path) -> None:
    names = [name for name in SHOWN if any(name in result for result in finished["rounds"].values())]
    rows = [
        [name, *(f"{result[key]:.3f}" if key in result else "–" for key in names)]
        for name, result in finished["rounds"].items()
    ]
    if names:
        print_table(f"Validation of {folder}", ["round", *(SHOWN[name] for name in names)], rows)
    if finished["beats_base"] is False:
        say(f"No round is better than the base PRM in {finished['criterion']}.")
    say(f"Best round by {finished['criterion']}: {finished['best']}")
