"""`prism search`: solve a task with a policy and a PRM."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.cli.options import Command, Out, check_store, families_of, narrow, prm_options
from prism_prm.cli.plan import show_plan
from prism_prm.cli.ui import conclude_report, print_table
from prism_prm.config import Count
from prism_prm.console import say
from prism_prm.errors import ConfigError
from prism_prm.models.load_settings import LoadSettings
from prism_prm.paths import named_places
from prism_prm.plan.plan_settings import PlanSettings
from prism_prm.ray import RaySettings
from prism_prm.search.recipes import SearchRecipe


@dataclass(frozen=True, slots=True)
class SearchCommand(SearchRecipe):
    """The settings of `prism search`."""

    family: tuple[str, ...] = ()
    """The family of all PRMs, or NAME=FAMILY for one, if their folders do not name it."""
    store: Path | None = None
    """A folder of scores to reuse and extend, shared by all commands."""
    judges: Count | None = None
    """The number of processes that judge answers. By default one per core."""
    load: LoadSettings = field(default_factory=LoadSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    plan: PlanSettings = field(default_factory=PlanSettings)


def search(settings: SearchCommand, out: Path | None) -> None:
    """Search for solutions of a task's problems, and measure how many are solved.

    Writes pools that `prism rerank` reads, metrics.json, and a report with accuracy against n and tokens. Rerun to
    resume. A server's key is read from $OPENAI_API_KEY.
    """
    from prism_prm.search.search_task import search_task

    recipe = narrow(settings, SearchRecipe)
    if settings.plan.hardware:
        show_plan(recipe, settings.plan)
        return
    if out is None:
        raise ConfigError("--out is missing: name a folder for pools, metrics.json and the report")
    options = prm_options(settings, families=families_of(settings.family, named_places(settings.prm)))
    points = search_task(recipe, out, prm_options=options, judges=settings.judges, store=check_store(settings.store))

    def show() -> None:
        from prism_prm.report import number, percent
        from prism_prm.search.search_report import aggregators_used

        rows = [
            [
                point.prm or "–", str(point.n), percent(point.accuracy),
                percent(point.oracle.value), number(round(point.policy_tokens)), number(round(point.prm_tokens)),
            ]
            for point in points
        ]  # fmt: skip
        headers = ["PRM", "n", "accuracy (%)", "oracle (%)", "policy tokens", "PRM tokens"]
        print_table("Solved, and tokens per problem", headers, rows)
        if used := aggregators_used(points):
            say(f"Aggregator: {used}")
        for note in filter(None, (point.empty_note() for point in points)):
            say(note)

    say(f"Pools: {out / 'pools'}")
    conclude_report(out, show)


COMMAND = Command(
    SearchCommand,
    search,
    out=Out("Folder for pools, metrics.json and the report.", required=False),
    options={
        "--policy": "policy.name", "--prm": "prm", "--task": "task", "--task-data": "task_data", "--limit": "limit",
        "--method": "search.method", "-n": "n", "--select": "select", "--aggregator": "search.aggregator",
        "--seed": "search.seed", "--dtype": ("load.dtype", "policy.dtype"), "--store": "store",
        "--plan": "plan.hardware", "--ray": "ray.address",
    },
    examples={
        "Beam search at three sizes, on your own problems (fields problem, answer)":
            "prism search --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct --prm runs/my-prm "
            "--task problems.jsonl -n 4,16,64 --out beam",
        "Two PRMs, and the policy behind a server (vLLM, SGLang, llama.cpp, …)":
            "prism search --policy openai:http://localhost:8000/v1 --prm base=prms/base "
            "--prm prism=prms/prism --task math-500-100 --method dvts --out dvts",
        "Solutions without a PRM, to be re-ranked later":
            "prism search --policy hf:my-policy --task gsm8k --method sample -n 64 --out samples",
    },
)  # fmt: skip
