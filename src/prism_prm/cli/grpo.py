"""`prism grpo`: train a policy with a PRM as its reward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import out_folder
from prism_prm.cli.processes import join_processes, num_processes
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.paths import check_folder

if TYPE_CHECKING:
    from prism_prm.rl.alarm import TrainedPolicy

EXAMPLES = """
**Examples**

- A small run on a CPU:

  `prism grpo recipes/rl/smollm2-135m-gsm8k.toml --set prm=runs/my-prm`

- In eight processes:

  `accelerate launch --num_processes 8 -m prism_prm grpo recipes/rl/qwen2.5-1.5b-prism.toml
  --set prm=runs/my-prm`

All settings: docs/grpo.md
"""


def grpo(
    recipe: Annotated[Path, typer.Argument(help="A recipe: one TOML file (see recipes/rl/).")],
    out: Annotated[Path | None, out_folder("The run's folder. By default runs/NAME for NAME.toml.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting, e.g. --set trainer.max_steps=20. May be repeated."),
    ] = None,
) -> None:
    """Train a policy by GRPO (TRL) with a PRM's scores as its reward, and monitor reward against truth.

    Every few updates the policy solves held-out problems; an alarm is raised when the reward rises while true accuracy
    falls. Tasks are solved before and after, as in `prism search`. Rerun the same command to resume from the last
    checkpoint.
    """
    from prism_prm.config import read_settings
    from prism_prm.rl.recipe import GrpoRecipe, check_places

    settings = read_settings(GrpoRecipe, recipe, assignments or [])
    folder = out or check_folder(str(Path("runs") / recipe.stem))
    check_places(settings)
    from prism_prm.rl.train_policy import train_policy

    is_main = num_processes() == 1 or join_processes().is_main_process
    curve = train_policy(settings, folder)
    if is_main:
        conclude(lambda: report_facts(folder), lambda: _print(curve, folder))


def _print(curve: TrainedPolicy, folder: Path) -> None:
    from prism_prm.report import PAGE, number, percent

    gold = curve.gold
    rows = [
        [str(look.update), number(look.mean("proxy")), percent(look.mean(gold)), percent(look.mean(f"greedy/{gold}"))]
        for look in (curve.points[0], curve.points[-1])
    ]
    print_table("Held-out problems", ["update", "mean reward", "solved, sampled (%)", "solved, greedy (%)"], rows)
    for alarm in filter(None, curve.alarms.values()):
        tell(f"Alarm at {alarm}.")
    tell(f"Policy: {curve.policy}")
    tell(folder / PAGE)
