"""`prism grpo`: train a policy with a PRM as its reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.processes import join_processes, num_processes
from prism_prm.cli.ui import print_table, progress, say

EXAMPLES = """
Examples

`prism grpo recipes/rl/smollm2-135m-gsm8k.toml --set prm=runs/my-prm`

`accelerate launch --num_processes 8 -m prism_prm grpo recipes/rl/qwen2.5-1.5b-prism.toml --set prm=runs/my-prm`
"""


def grpo(
    recipe: Annotated[Path, typer.Argument(help="A recipe: one TOML file (see recipes/rl/).")],
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="The run's folder. Default: runs/NAME for NAME.toml.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting, e.g. --set trainer.max_steps=20. Repeatable."),
    ] = None,
) -> None:
    """Train a policy by GRPO (TRL) with a PRM's scores as its reward, and watch reward against truth.

    Held-out problems are solved every few updates, and an alarm says when the reward rises while the truth falls. Tasks
    are solved before and after as `prism search` does it. Stopped, the same command goes on from the last checkpoint.
    """
    from prism_prm.report import PAGE, number, percent
    from prism_prm.rl.pipeline import train_policy
    from prism_prm.rl.recipe import read_grpo_recipe

    settings = read_grpo_recipe(recipe, assignments or [])
    main = True
    if num_processes() > 1:
        main = join_processes().is_main_process
    folder = out or Path("runs") / recipe.stem
    curve = train_policy(settings, folder, bars=progress, say=say)
    if not main:
        return
    gold = curve.gold
    rows = [
        [str(look.update), number(look.mean("proxy")), percent(look.mean(gold)), percent(look.mean(f"greedy/{gold}"))]
        for look in (curve.looks[0], curve.looks[-1])
    ]
    print_table("Held-out problems", ["update", "mean reward", "solved, sampled (%)", "solved, greedy (%)"], rows)
    for alarm in filter(None, curve.alarms.values()):
        say(f"Alarm at {alarm}.")
    say(f"Policy: {curve.policy}   Report: {folder / PAGE}")
