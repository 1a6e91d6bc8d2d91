"""`prism search`: solve a task with a policy and a PRM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import (
    LOADING,
    REMOTE,
    Families,
    Options,
    Store,
    critic_options,
    families_of,
    numbers,
    out_folder,
    prm_options,
    ray_options,
    with_settings,
)
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.console import say
from prism_prm.paths import named_places

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.ray import RaySettings
    from prism_prm.search.search_report import Point

EXAMPLES = """
**Examples**

- Guided beam search at three sizes, on your own problems (fields `problem` and `answer`):

  `prism search --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct --prm runs/my-prm --task problems.jsonl
  --method beam -n 4,16,64 --out beam`

- Two PRMs compared, the policy behind a server (vLLM, SGLang, llama.cpp, `transformers serve`):

  `prism search --policy openai:http://localhost:8000/v1 --prm base=prms/base --prm prism=prms/prism
  --task math-500-100 --method dvts -n 16 --out dvts`

- Solutions without a PRM, to be re-ranked later with `prism rerank samples/pools/n64.jsonl`:

  `prism search --policy hf:my-policy --task gsm8k --method sample -n 64 --out samples`

- A code task, whose programs are run in a sandbox:

  `prism search --policy openai:http://localhost:8000/v1 --task livecodebench-v6 --since 2024-08-01 --method sample
  -n 16 --select public-tests --out code`

- A shipped recipe:

  `prism search --recipe recipes/search/math500-qwen2.5-math-1.5b.toml --prm runs/my-prm --out beam`
"""


PANELS = {
    "Policy": (
        "policy.name", "search.sampling.temperature", "policy.prompting.system", "policy.prompting.user",
        "policy.prompting.template",
    ),
    "PRM": ("prm",),
    "Task": ("task", "task_data", "answer_field", "limit"),
    "Code": ("since", "until", "errata", "sandbox"),
    "Search": (
        "search.method", "select", "n", "search.expand", "search.lookahead", "search.prm_weight", "search.aggregator",
        "search.max_steps", "search.sampling.max_tokens", "search.max_policy_tokens", "search.seed", "at_once",
    ),
    "Server": (
        "policy.model", "policy.tokenizer", "policy.concurrency", "policy.retry.timeout", "policy.retry.retries",
    ),
}  # fmt: skip


@with_settings(
    given=Options(
        "prism_prm.search.recipes:SearchRecipe",
        PANELS,
        names={"policy.name": "--policy", "n": "-n", "search.max_policy_tokens": "--budget"},
        parse={"n": numbers},
        as_given=True,
    ),
    loading=Options(LOADING, {"Local models": ("dtype", "device"), "Remote PRM": REMOTE}),
    critic=critic_options(),
    cluster=ray_options(),
)
def search(
    *,
    out: Annotated[Path, out_folder("Folder for pools, metrics.json and the report.")],
    recipe: Annotated[Path | None, typer.Option(help="A TOML file of settings. Options override it.")] = None,
    given: dict[str, Any],
    family: Families = None,
    loading: LoadSettings,
    critic: CriticSettings,
    store: Store = None,
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
        typer.Option("--set", help="Set any setting, e.g. --set search.sampling.top_p=0.95. May be repeated."),
    ] = None,
) -> None:
    """Search for solutions of a task's problems, batched over problems, and measure how many are solved.

    Writes pools that `prism rerank` reads, metrics.json, and a report with accuracy against n and against tokens.
    Rerun the same command to resume a stopped search. With --ray the work is spread over cores, GPUs and machines. A
    server's key is read from $OPENAI_API_KEY.
    """
    from prism_prm.config import read_settings
    from prism_prm.report import PAGE
    from prism_prm.search.recipes import SearchRecipe
    from prism_prm.search.search_task import search_task

    given |= {"policy.dtype": loading.dtype, "policy.device": loading.device}
    chosen = read_settings(SearchRecipe, recipe, assignments or [], given)
    families = families_of(family, named_places(chosen.prm))
    how = prm_options(loading, families=families, critic=critic, ray=cluster.given)
    points = search_task(chosen, out, prm_options=how, judges=judges, store=store)

    def show() -> None:
        _show(points)
        tell(out / PAGE)

    say(f"Pools: {out / 'pools'}")
    conclude(lambda: report_facts(out), show)


def _show(points: Sequence[Point]) -> None:
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
