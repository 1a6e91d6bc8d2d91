"""`prism search`: solve a task with a policy and a PRM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prism_prm.cli.options import Store
from prism_prm.cli.ui import console, print_table, progress, say
from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from prism_prm.search.engine import Watch
    from prism_prm.search.experiment import Point

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

- A shipped recipe: `prism search --recipe recipes/search/math500-qwen2.5-math-1.5b.toml --prm runs/my-prm --out beam`
"""
POLICY, SEARCH, TASK, SERVER, PRM = "Policy", "Search", "Task", "Server", "PRM"


def search(
    out: Annotated[
        Path, typer.Option("--out", "-o", file_okay=False, help="Folder for pools, metrics.json and the report.")
    ],
    recipe: Annotated[Path | None, typer.Option(help="TOML file of settings; options override it.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="hf:ID_OR_FOLDER of a model, or openai:BASE_URL of a server.", rich_help_panel=POLICY),
    ] = None,
    prm: Annotated[
        list[str] | None,
        typer.Option(help="PRM: folder or hub id, or NAME=place. Several are compared.", rich_help_panel=PRM),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="math-500, aime-2024, gsm8k, … or a file of problems.", rich_help_panel=TASK)
    ] = None,
    task_data: Annotated[
        str | None, typer.Option(help="Local file of --task; default: the hub.", rich_help_panel=TASK)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", rich_help_panel=TASK)] = None,
    method: Annotated[
        Literal["sample", "greedy", "best-of-n", "beam", "dvts", "particle"] | None,
        typer.Option(help="How to search; default beam.", rich_help_panel=SEARCH),
    ] = None,
    select: Annotated[
        Literal["argmax", "majority", "weighted"] | None,
        typer.Option(
            help="How solutions become one answer; default weighted, or majority without a PRM.", rich_help_panel=SEARCH
        ),
    ] = None,
    n: Annotated[
        str | None,
        typer.Option("-n", help="Solutions, or candidates per round; several sizes: 4,16,64.", rich_help_panel=SEARCH),
    ] = None,
    expand: Annotated[
        int | None,
        typer.Option(help="Samples per kept beam, of n/expand beams; default 4.", rich_help_panel=SEARCH),
    ] = None,
    lookahead: Annotated[
        int | None, typer.Option(help="Greedy steps ahead that a candidate is ranked by.", rich_help_panel=SEARCH)
    ] = None,
    prm_weight: Annotated[
        float | None,
        typer.Option(help="1: rank by the PRM alone (default); 0: by likelihood alone.", rich_help_panel=SEARCH),
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option(help="Path score: last (default), min, product, mean, soft-min.", rich_help_panel=SEARCH),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sampling; default 0.8.", rich_help_panel=POLICY)] = None,
    max_steps: Annotated[int | None, typer.Option(help="Of a solution; default 40.", rich_help_panel=SEARCH)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of a solution; default 2048.", rich_help_panel=SEARCH)] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Stop a problem when the policy has written so many tokens for it.", rich_help_panel=SEARCH),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of all sampling.", rich_help_panel=SEARCH)] = None,
    at_once: Annotated[
        int | None, typer.Option(help="Problems searched side by side; default 32.", rich_help_panel=SEARCH)
    ] = None,
    system: Annotated[str | None, typer.Option(help="System turn of the prompt.", rich_help_panel=POLICY)] = None,
    user: Annotated[str | None, typer.Option(help="User turn, with {problem} in it.", rich_help_panel=POLICY)] = None,
    template: Annotated[
        Literal["auto", "none"] | None,
        typer.Option(help="none: send problems as plain text, without a chat template.", rich_help_panel=POLICY),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Which of the server's models.", rich_help_panel=SERVER)] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Whose chat template to apply; default: the served model's.", rich_help_panel=SERVER),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests at a time; default 16.", rich_help_panel=SERVER)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for one whole answer; default 300.", rich_help_panel=SERVER)
    ] = None,
    retries: Annotated[
        int | None, typer.Option(help="Tries after a failure; default 5.", rich_help_panel=SERVER)
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Family of the PRMs, where their folder does not say it.", rich_help_panel=PRM)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the models here: auto, bfloat16, float16, float32.", rich_help_panel=PRM)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Of the models here: cpu, cuda, cuda:1, …", rich_help_panel=PRM)
    ] = None,
    store: Store = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that judge answers.", rich_help_panel=TASK)
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: search.sampling.top_p=0.95")
    ] = None,
) -> None:
    """Search for solutions of a task's problems, batched over problems, and measure how many are solved.

    Writes pools that `prism rerank` reads, metrics.json, and a report with accuracy against n and against tokens.
    Interrupted, the same command goes on where it was. The key of a server is read from $OPENAI_API_KEY.
    """
    from prism_prm.report import PAGE
    from prism_prm.search.pipeline import search_task
    from prism_prm.search.recipe import read_recipe

    given = {
        "policy.name": policy, "prm": prm or None, "task": task, "task_data": task_data, "limit": limit,
        "search.method": method, "select": select, "n": _sizes(n), "search.expand": expand,
        "search.lookahead": lookahead, "search.prm_weight": prm_weight, "search.aggregator": aggregator,
        "search.sampling.temperature": temperature, "search.max_steps": max_steps,
        "search.sampling.max_tokens": max_tokens, "search.max_policy_tokens": budget, "search.seed": seed,
        "at_once": at_once, "policy.prompting.system": system, "policy.prompting.user": user,
        "policy.prompting.template": template, "policy.model": model, "policy.tokenizer": tokenizer,
        "policy.concurrency": concurrency, "policy.patience.timeout": timeout, "policy.patience.retries": retries,
        "policy.dtype": dtype, "policy.device": device,
    }  # fmt: skip
    chosen = read_recipe(recipe, given, assignments or [])
    loading = {"family": family, "dtype": dtype, "device": device}
    points = search_task(chosen, out, loading=loading, workers=workers, store=store, bars=progress, live=_live)
    _show(points)
    say(f"Pools: {out / 'pools'}   Report: {out / PAGE}")


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise ConfigError(f"-n {text}: expected whole numbers, e.g. -n 4,16,64")
    return [int(word) for word in words]


@contextlib.contextmanager
def _live(label: str, total: int, done: int) -> Iterator[Callable[[Watch], None]]:
    """Problems, tokens per second, and the best score so far."""
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), bars.MofNCompleteColumn(),
        bars.TextColumn("problems"), bars.TimeElapsedColumn(), bars.TextColumn("{task.fields[more]}"),
    )  # fmt: skip
    with bars.Progress(*columns, console=console()) as bar:
        shown = bar.add_task(f"search, {label}", total=total, completed=done, more="")

        def watch(state: Watch) -> None:
            rate = state.spent.policy_tokens / state.seconds if state.seconds else 0.0
            more = f"{state.num_active} active   {rate:,.0f} tokens/s"
            if state.best == state.best:  # a number: something was scored
                more += f"   best {state.best:.3f}"
            bar.update(shown, completed=done + state.num_done, more=more)

        yield watch


def _show(points: Sequence[Point]) -> None:
    from prism_prm.report import number, percent

    rows = [
        [
            point.prm or "–", str(point.n), percent(point.accuracy.value, point.accuracy.low, point.accuracy.high),
            percent(point.oracle.value), number(round(point.policy_tokens)), number(round(point.prm_tokens)),
        ]
        for point in points
    ]  # fmt: skip
    headers = ["PRM", "n", "accuracy (%)", "oracle (%)", "policy tokens", "PRM tokens"]
    print_table("Solved, and tokens per problem", headers, rows)
    for note in filter(None, (point.empty_note() for point in points)):
        say(note)
