"""`prism label`: label steps by rollouts of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import LOADING, Options, critic_options, out_folder, prm_options, ray_options, with_settings
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.console import say

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.ray import RaySettings

EXAMPLES = """
**Examples**

- Your own problems (fields `problem` and `answer`), with a local policy:

  `prism label problems.jsonl --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct --rollouts 8
  --alternatives 4 --out labels`

- The same with fewer rollouts, and the policy behind a server:

  `prism label problems.jsonl --policy openai:http://localhost:8000/v1 --method adaptive
  --out labels`

- Only labels on which two policies agree:

  `prism label gsm8k --policy hf:my-policy --second-policy hf:another --out labels`

- Only labels that a critic confirms:

  `prism label gsm8k --policy hf:my-policy --consensus critic:openai:http://localhost:8000/v1
  --critic thinkprm --on-missing skip --out labels`

- How wrong the labels are, measured on exactly labelled solutions:

  `prism label problems.jsonl --policy hf:my-policy --check labelled.jsonl --out labels`

- On all cores or GPUs of this machine:

  `prism label problems.jsonl --policy hf:my-policy --out labels --ray`

- From labels to pairs:

  `prism pairs labels/trees.parquet --min-value-gap 0.5 --min-rollouts 4 --out pairs`
"""

PANELS = {
    "Policy": (
        "policy.name", "label.sampling.temperature", "policy.prompting.system", "policy.prompting.user",
        "policy.prompting.template", "label.sampling.max_step_tokens", "label.sampling.max_tokens",
    ),
    "Task": ("task_data", "answer_field", "limit", "sandbox"),
    "Labels": (
        "label.method", "label.rollouts", "label.alternatives", "label.solutions", "label.rule", "label.after_error",
        "label.confidence", "label.per_round", "label.max_policy_tokens", "label.seed", "at_once",
    ),
    "Doubt": ("second_policy", "second_model", "second_tokenizer", "consensus", "check", "check_limit"),
    "Server": (
        "policy.model", "policy.tokenizer", "policy.concurrency", "policy.retry.timeout", "policy.retry.retries",
    ),
}  # fmt: skip


@with_settings(
    given=Options(
        "prism_prm.search.recipes:LabelRecipe",
        PANELS,
        names={
            "policy.name": "--policy", "label.rule": "--label-rule", "label.max_policy_tokens": "--budget",
        },
        as_given=True,
    ),
    loading=Options(LOADING, {"Local models": ("dtype", "device")}),
    critic=critic_options(),
    cluster=ray_options(),
)  # fmt: skip
def label(
    *,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="A known task (math-500, gsm8k, …), or a file of problems with answers."),
    ] = None,
    out: Annotated[Path, out_folder("Folder for trees.parquet, metrics.json and the report.")],
    recipe: Annotated[Path | None, typer.Option(help="A TOML file of settings. Options override it.")] = None,
    given: dict[str, Any],
    loading: LoadSettings,
    critic: CriticSettings,
    judges: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="The number of processes that judge answers. By default one per core.",
            rich_help_panel="Task",
        ),
    ] = None,
    cluster: RaySettings,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set any setting, e.g. --set label.sampling.top_p=0.95. May be repeated."),
    ] = None,
) -> None:
    """Label steps without annotators: by how often a policy's rollouts from each step reach the right answer.

    The policy solves every problem and writes alternatives under each prefix, so that matched pairs of a right and a
    wrong step fall out. Writes trees.parquet, which `prism pairs`, `train`, `eval` and `score` read, metrics.json and a
    report. Rerun the same command to resume a stopped run. With --ray the work is spread over cores, GPUs and machines.
    A server's key is read from $OPENAI_API_KEY.
    """
    from prism_prm.config import read_settings
    from prism_prm.report import PAGE
    from prism_prm.search.label_task import label_task
    from prism_prm.search.recipes import LabelRecipe

    given |= {"policy.dtype": loading.dtype, "policy.device": loading.device}
    if task is not None:
        given["task"] = task
    chosen = read_settings(LabelRecipe, recipe, assignments or [], given)
    metrics = label_task(chosen, out, judges=judges, ray=cluster.given, prm_options=prm_options(loading, critic=critic))

    def show() -> None:
        _show(metrics)
        tell(out / PAGE)

    say(f"Labelled trees: {out / 'trees.parquet'}")
    conclude(lambda: report_facts(out), show)


def _show(metrics: dict[str, Any]) -> None:
    from prism_prm.search.label_report import NOISE_HEADERS, noise_note, noise_rows, summary_rows

    print_table("Labels", ["", "count"], summary_rows(metrics))
    if left_out := metrics["left_out"]:
        print_table("Left out", ["reason", "count"], [[reason, f"{count:,}"] for reason, count in left_out.items()])
    if noise := metrics.get("label_noise"):
        print_table("Labels against exact ones", NOISE_HEADERS, noise_rows(noise))
        say(noise_note(noise))
