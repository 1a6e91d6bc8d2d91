"""`prism train`: a recipe from data to a trained PRM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prism_prm.cli.options import out_folder
from prism_prm.cli.processes import join_processes, num_processes
from prism_prm.cli.ui import conclude, print_table, tell
from prism_prm.paths import check_folder

EXAMPLES = """
**Examples**

- The paper's recipe:

  `prism train recipes/qwen2.5-math-prm-7b.toml --set 'data.inputs=["phase1_train.jsonl"]'`

- On four GPUs, with a part of the model on each (`hardware.sharding = "fsdp"`, which this recipe sets):

  `accelerate launch --config_file recipes/accelerate/gpus.yaml -m prism_prm train recipes/qwen2.5-math-prm-7b.toml`

All settings: docs/training.md
"""

SHOWN = {
    "auroc": "AUROC", "fpr_at_tpr_90": "FPR at TPR 90", "fpr_at_0.5": "FPR at 0.5", "fnr_at_0.5": "FNR at 0.5",
    "pairwise_accuracy": "pairs ranked right", "threshold": "threshold",
}  # fmt: skip
"""Validation metrics of the closing table."""


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe: one TOML file (see recipes/).")],
    out: Annotated[Path | None, out_folder("The run's folder. By default runs/NAME for NAME.toml.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting, e.g. --set train.lr=2e-6. May be repeated.")
    ] = None,
) -> None:
    """Train a PRM: pairs, margins of the base PRM, curriculum rounds, validation, the best round.

    Rerun the same command to resume a stopped run. Every round writes a complete PRM folder under OUT/rounds, and
    OUT/run.json names the best one.
    """
    from prism_prm.train.recipe import check_places, load_recipe

    settings = load_recipe(recipe, assignments or [])
    folder = out or check_folder(str(Path("runs") / recipe.stem))
    check_places(settings)
    from accelerate import Accelerator

    from prism_prm.train.train_prm import train_prm

    if num_processes() > 1:
        join_processes()
    accelerator = Accelerator(mixed_precision=settings.hardware.mixed_precision)
    finished = train_prm(settings, folder, accelerator=accelerator)
    if accelerator.is_main_process:
        conclude(lambda: finished, lambda: _print(finished, folder))


def _print(finished: dict[str, Any], folder: Path) -> None:
    names = [name for name in SHOWN if any(name in result for result in finished["rounds"].values())]
    rows = [
        [name, *(f"{result[key]:.3f}" if key in result else "–" for key in names)]
        for name, result in finished["rounds"].items()
    ]
    if names:
        print_table(f"Validation of {folder}", ["round", *(SHOWN[name] for name in names)], rows)
    if finished["beats_base"] is False:
        tell(f"No round is better than the base PRM in {finished['criterion']}.")
    tell(f"Best round by {finished['criterion']}: {finished['best']}")
