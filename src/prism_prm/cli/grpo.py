"""`prism grpo`: train a policy with a PRM as its reward."""

from __future__ import annotations

from pathlib import Path

from prism_prm.cli.options import Command, Out
from prism_prm.cli.processes import join_processes, num_processes
from prism_prm.cli.ui import conclude_report, print_table, tell
from prism_prm.rl.recipe import GrpoRecipe, check_places


def grpo(settings: GrpoRecipe, out: Path) -> None:
    """Train a policy by GRPO (TRL) with a PRM's scores as its reward, and monitor the reward against the truth.

    Every few updates the policy solves held-out problems; an alarm is raised when the reward rises while true accuracy
    falls. Rerun to resume from the last checkpoint. With several GPUs, start it with `accelerate launch`.
    """
    check_places(settings)
    from prism_prm.report import number, percent
    from prism_prm.rl.rounds import train_rounds
    from prism_prm.rl.train_policy import train_policy

    is_main = num_processes() == 1 or join_processes().is_main_process
    rounds = train_rounds(settings, out) if settings.rounds.count else []
    trained = rounds[-1].trained if rounds else train_policy(settings, out)
    if not is_main:
        return

    def show() -> None:
        gold = trained.gold
        if rounds:
            rows = [
                [f"round {at}", *(percent(one.trained.points[i].mean(gold)) for i in (0, -1))]
                for at, one in enumerate(rounds)
            ]
            print_table("Held-out problems solved, sampled (%)", ["", "untrained", "trained"], rows)
        rows = [
            [str(one.update), number(one.mean("proxy")), percent(one.mean(gold)), percent(one.mean(f"greedy/{gold}"))]
            for one in (trained.points[0], trained.points[-1])
        ]
        print_table("Held-out problems", ["update", "mean reward", "solved, sampled (%)", "solved, greedy (%)"], rows)
        for alarm in filter(None, trained.alarms.values()):
            tell(f"Alarm at {alarm}. {alarm.advice}")
        tell(f"Policy: {trained.policy}")

    conclude_report(out, show)


COMMAND = Command(
    GrpoRecipe,
    grpo,
    argument="recipe",
    out=Out("The run's folder. By default runs/NAME for NAME.toml.", default="runs/{name}"),
    options={"--prm": "prm", "--rounds": "rounds.count"},
    examples={
        "A small run on a CPU": "prism grpo recipes/rl/smollm2-135m-gsm8k.toml --prm runs/my-prm",
        "Retrain the PRM twice on what the policy exploits":
            "prism grpo recipes/rl/qwen2.5-1.5b-rounds.toml --rounds 2",
        "In eight processes":
            "accelerate launch --num_processes 8 -m prism_prm grpo recipes/rl/qwen2.5-1.5b-prism.toml "
            "--prm runs/my-prm",
    },
)  # fmt: skip
