"""`prism label`: label steps by rollouts of a policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.cli.options import Command, Out, narrow, prm_options
from prism_prm.cli.ui import conclude_report, print_table
from prism_prm.config import Count
from prism_prm.console import say
from prism_prm.models.load_settings import LoadSettings
from prism_prm.ray import RaySettings
from prism_prm.search.recipes import LabelRecipe


@dataclass(frozen=True, slots=True)
class LabelCommand(LabelRecipe):
    """The settings of `prism label`."""

    judges: Count | None = None
    """The number of processes that judge answers. By default one per core."""
    load: LoadSettings = field(default_factory=LoadSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    ray: RaySettings = field(default_factory=RaySettings)


def label(settings: LabelCommand, out: Path) -> None:
    """Label steps by how often a policy's rollouts from them reach the right answer.

    The policy solves every problem and writes alternatives under each prefix, which gives matched pairs. Writes
    trees.parquet, metrics.json and a report. Rerun to resume. A server's key is read from $OPENAI_API_KEY.
    """
    from prism_prm.search.label_report import NOISE_HEADERS, noise_note, noise_rows, summary_rows
    from prism_prm.search.label_task import label_task

    metrics = label_task(
        narrow(settings, LabelRecipe), out, judges=settings.judges, ray=settings.ray.given,
        prm_options=prm_options(settings, ray=None),
    )  # fmt: skip

    def show() -> None:
        print_table("Labels", ["", "count"], summary_rows(metrics))
        if left_out := metrics["left_out"]:
            print_table("Left out", ["reason", "count"], [[reason, f"{count:,}"] for reason, count in left_out.items()])
        if noise := metrics.get("label_noise"):
            print_table("Labels against exact ones", NOISE_HEADERS, noise_rows(noise))
            say(noise_note(noise))

    say(f"Labeled trees: {out / 'trees.parquet'}")
    conclude_report(out, show)


COMMAND = Command(
    LabelCommand,
    label,
    argument="task",
    out=Out("Folder for trees.parquet, metrics.json and the report."),
    options={
        "--policy": "policy.name", "--task-data": "task_data", "--limit": "limit", "--method": "label.method",
        "--rollouts": "label.rollouts", "--alternatives": "label.alternatives", "--rule": "label.rule",
        "--second-policy": "second_policy", "--consensus": "consensus", "--check": "check", "--seed": "label.seed",
        "--dtype": ("load.dtype", "policy.dtype"), "--device": ("load.device", "policy.device"),
        "--ray": "ray.address",
    },
    examples={
        "Your own problems (fields problem, answer), with a local policy":
            "prism label problems.jsonl --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct --out labels",
        "Fewer rollouts, and the policy behind a server":
            "prism label problems.jsonl --policy openai:http://localhost:8000/v1 --method adaptive --out labels",
        "From labels to pairs":
            "prism pairs labels/trees.parquet --min-value-gap 0.5 --min-rollouts 4 --out pairs",
    },
)  # fmt: skip
