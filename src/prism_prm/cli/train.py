"""`prism train`: a recipe from data to a trained PRM."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism_prm.cli.options import Command, Out, narrow
from prism_prm.cli.plan import show_plan
from prism_prm.cli.processes import join_processes, num_processes
from prism_prm.cli.ui import conclude, print_table, tell
from prism_prm.plan.plan_settings import PlanSettings
from prism_prm.train.recipe import Recipe, check_places

SHOWN = {
    "auroc": "AUROC", "fpr_at_tpr_90": "FPR at TPR 90", "fpr_at_0.5": "FPR at 0.5", "fnr_at_0.5": "FNR at 0.5",
    "pairwise_accuracy": "pairs ranked right", "threshold": "threshold",
}  # fmt: skip
"""Validation metrics of the first closing table; the second has the AUROCs with their intervals."""


@dataclass(frozen=True)
class TrainCommand(Recipe):
    """The settings of `prism train`."""

    plan: PlanSettings = field(default_factory=PlanSettings)


def train(settings: TrainCommand, out: Path) -> None:
    """Train a PRM: pairs, margins of the base PRM, curriculum rounds, validation, the best round.

    Rerun to resume. Every round writes a complete PRM folder under OUT/rounds, and OUT/run.json names the best one.
    With several GPUs, start it with `accelerate launch`.
    """
    recipe = narrow(settings, Recipe)
    if settings.plan.hardware:
        show_plan(recipe, settings.plan)
        return
    check_places(recipe)
    from accelerate import Accelerator

    from prism_prm.train.train_prm import train_prm

    if num_processes() > 1:
        join_processes()
    accelerator = Accelerator(mixed_precision=recipe.hardware.mixed_precision)
    finished = train_prm(recipe, out, accelerator=accelerator)
    if accelerator.is_main_process:
        conclude(lambda: finished, lambda: _show(finished, out))


def _show(finished: dict[str, Any], folder: Path) -> None:
    from prism_prm.evaluate.measure import AUROCS, NO_SIBLINGS

    names = [name for name in SHOWN if any(name in result for result in finished["rounds"].values())]
    rows = [
        [name, *(f"{result[key]:.3f}" if key in result else "–" for key in names)]
        for name, result in finished["rounds"].items()
    ]
    if names:
        print_table(f"Validation of {folder}", ["round", *(SHOWN[name] for name in names)], rows)
    aurocs = [name for name in AUROCS if any(name in result for result in finished["rounds"].values())]
    rows = [[name, *(_with_interval(result, key) for key in aurocs)] for name, result in finished["rounds"].items()]
    if aurocs:
        print_table("With 95 % intervals over problems", ["round", *(AUROCS[key] for key in aurocs)], rows)
        if "auroc_prefix" not in aurocs:
            tell(NO_SIBLINGS)
    if finished["beats_base"] is False:
        tell(f"No round is better than the base PRM in {finished['criterion']}.")
    tell(f"Best round by {finished['criterion']}: {finished['best']}")


def _with_interval(result: dict[str, Any], key: str) -> str:
    if f"{key}_low" not in result:  # a run of an earlier version, or of one problem
        return f"{result[key]:.3f}" if key in result else "–"
    return f"{result[key]:.3f} [{result[f'{key}_low']:.3f}, {result[f'{key}_high']:.3f}]"


COMMAND = Command(
    TrainCommand,
    train,
    argument="recipe",
    out=Out("The run's folder. By default runs/NAME for NAME.toml.", default="runs/{name}"),
    options={"--plan": "plan.hardware"},
    examples={
        "The paper's recipe":
            "prism train recipes/qwen2.5-math-prm-7b.toml --set 'data.inputs=[\"phase1_train.jsonl\"]'",
        "What it will take on four 48 GB cards": "prism train recipes/qwen2.5-math-prm-7b.toml --plan 4xa6000",
        "On four GPUs, with a part of the model on each":
            "accelerate launch --config_file recipes/accelerate/gpus.yaml -m prism_prm train "
            "recipes/qwen2.5-math-prm-7b.toml",
    },
)  # fmt: skip
