"""`prism rerank`: Best-of-N and votes on a pool of solutions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import (
    A_CRITIC,
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
    words,
)  # fmt: skip
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.console import say
from prism_prm.paths import named_places

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.ray import RaySettings
    from prism_prm.search.rerank_pool import RerankSettings
    from prism_prm.search.rerank_report import RerankResults

EXAMPLES = """
**Examples**

- Votes without a PRM, and the accuracy of a perfect PRM:

  `prism rerank pool.jsonl --out rerank`

- With a PRM:

  `prism rerank pool.jsonl --prm Qwen/Qwen2.5-Math-PRM-7B --out rerank`

- Two PRMs compared on the same pool:

  `prism rerank pool.jsonl --prm base=prms/base --prm prism=prms/prism --out rerank`

- A PRM and a critic:

  `prism rerank pool.jsonl --prm mine=runs/my-prm --prm gpt=critic:openai:https://api.openai.com/v1
  --critic-model gpt-4o --critic processbench --out rerank`

- Two PRMs whose folders do not name their families:

  `prism rerank pool.jsonl --prm a=prms/a --prm b=prms/b --family a=qwen --family b=rlhflow --out rerank`

**A pool** has one record per problem. A solution is a text, a list of steps, or an object with more fields:

`{"problem": "…", "answer": "12", "solutions": ["a text", ["two", "steps"], {"text": "…", "answer": "12"}]}`
"""


LOADED = ("dtype", "device", "device_map", "token_budget", "on_too_long", "cache", "cache_gb")


@with_settings(
    settings=Options(
        "prism_prm.search.rerank_pool:RerankSettings",
        {
            "Selecting": ("aggregators", "ns", "num_draws", "seed"),
            "Answers": ("answer_field", "extract", "judges", "time_limit"),
            "Code": ("since", "until", "errata", "sandbox"),
        },
        names={"ns": "-n", "num_draws": "--draws"},
        parse={"aggregators": words, "ns": numbers, "extract": words},
    ),
    loading=Options(LOADING, {"PRM": LOADED, "Remote PRM": REMOTE}),
    critic=critic_options(),
    cluster=ray_options(),
)
def rerank(
    *,
    pool: Annotated[
        list[str], typer.Argument(help="Pool of solutions: .jsonl, .json, .parquet, a folder, or a hub dataset.")
    ],
    out: Annotated[Path, out_folder("Folder for tables, metrics.json and the report.")],
    prm: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Score with this PRM: a folder, a hub id, prism:URL, vllm:URL, {A_CRITIC}, or NAME=one of them. "
            "May be repeated."
        ),
    ] = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(help="Existing scores of this pool: scores.parquet, or NAME=file. May be repeated."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Take reference answers and tests from this task (math-500, humaneval, …) or file, not from the pool."
        ),
    ] = None,
    task_data: Annotated[
        str | None, typer.Option(help="The local file of --task. By default the task comes from the hub.")
    ] = None,
    settings: RerankSettings,
    family: Families = None,
    loading: LoadSettings,
    critic: CriticSettings,
    store: Store = None,
    cluster: RaySettings,
) -> None:
    """Select one of N solutions (Best-of-N, majority, PRM-weighted vote) and measure it, for n = 1, 2, 4, … N.

    Writes selected.jsonl with the solution that each rule selects. Programs are run in a sandbox, and vote by what they
    do on the public tests. Problems without a reference answer or hidden tests are not measured. Rerun the same command
    to resume: grades and scores are kept in the output folder.
    """
    from prism_prm.report import PAGE
    from prism_prm.search.rerank_pool import SELECTED, rerank_pool

    prms = named_places(prm or [])
    how = prm_options(loading, families=families_of(family, prms), critic=critic, ray=cluster.given)
    results = rerank_pool(
        pool, out, prms=prms, scores=named_places(scores or []), task=task, task_data=task_data,
        settings=settings, store=store, prm_options=how,
    )  # fmt: skip

    def show() -> None:
        _show(results)
        tell(out / PAGE)

    say(f"Selected: {out / SELECTED}")
    conclude(lambda: report_facts(out), show)


def _show(results: RerankResults) -> None:
    """The curves, and what could not be judged."""
    from prism_prm.aggregate import GIVEN
    from prism_prm.report import percent
    from prism_prm.search.rerank_report import notes, row_name

    # Who named aggregators wants to see them; otherwise each PRM's own, and the report has all.
    named = any(choice.origin == GIVEN for choice in results.own_aggregator.values())
    rows = [
        [row_name(curve, with_aggregator=named), *(percent(point.value) for point in curve.points)]
        for curve in (results.curves if named else results.own_curves)
    ]
    if rows:
        print_table("Expected accuracy (%)", ["selection", *(f"n={n}" for n in results.ns)], rows)
    pool = results.graded.pool
    for note in notes(results):
        say(note)
    guessed = results.graded.count("method")["last number"]
    failed = {status: count for status, count in results.graded.count("status").items() if status != "ok"}
    shown = [f"{count:,} {status}" for status, count in failed.items()]
    shown += [f"{guessed:,} guessed from the last number"] if guessed else []
    shown += [
        f"{results.num_unscored(prm):,} not scored by {prm}" for prm in results.scores if results.num_unscored(prm)
    ]
    if shown:
        say(f"Of {len(pool.solutions):,} solutions: {', '.join(shown)}.")
