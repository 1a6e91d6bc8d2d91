"""`prism look`: solutions in the terminal, each step with what PRMs say of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import (
    A_CRITIC,
    LOADING,
    REMOTE,
    Families,
    Options,
    critic_options,
    families_of,
    prm_options,
    with_settings,
)
from prism_prm.cli.ui import conclude
from prism_prm.paths import named_places

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.data.formats import ReadOptions
    from prism_prm.evaluate.look_at import LookedAt
    from prism_prm.models.load_settings import LoadSettings

EXAMPLES = """
**Examples**

- The first solutions of a file:

  `prism look solutions.jsonl --prm Qwen/Qwen2.5-Math-PRM-7B`

- Two PRMs side by side:

  `prism look pool.jsonl --prm base=prms/base --prm prism=prms/prism --limit 3`

- With another threshold:

  `prism look solutions.jsonl --prm runs/my-prm --threshold 0.8`

**A line of input:** `{"problem": "What is 1 + 2?", "steps": ["Add them.", "1 + 2 = 3"]}`
"""


LOADED = ("dtype", "device", "device_map", "token_budget", "context")


@with_settings(
    loading=Options(LOADING, {"PRM": LOADED, "Remote PRM": REMOTE}),
    critic=critic_options(),
    reading=Options("prism_prm.data.formats:ReadOptions", {"Reading": ("split_steps", "on_bad_record")}),
)
def look(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(help="Files, folders or hub datasets: problems with steps, trees, or pools of solutions."),
    ],
    prm: Annotated[
        list[str],
        typer.Option(
            help=f"Score with this PRM: a folder, a hub id, prism:URL, vllm:URL, {A_CRITIC}, or NAME=one of them. "
            "May be repeated."
        ),
    ],
    limit: Annotated[int, typer.Option(min=1, max=10**6, help="Show this many solutions, starting with the first.")] = (
        10
    ),
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="A step counts as right above this probability.", show_default="the PRM's card"
        ),
    ] = None,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Show no colours; so does the environment variable NO_COLOR.")
    ] = False,
    format: Annotated[
        str,
        typer.Option(
            help="The format of the input. With auto, the fields of the records decide. pool is a pool of solutions."
        ),
    ] = "auto",
    family: Families = None,
    loading: LoadSettings,
    critic: CriticSettings,
    reading: ReadOptions,
) -> None:
    """Print solutions with each step's mark (✓ right, ✗ wrong, ? not scored), colour and probability.

    Also shows the first step below the threshold and the score of the solution. With several PRMs their numbers stand
    side by side. Nothing is written to disk.
    """
    from prism_prm.backends.open_scorer import check_scorer
    from prism_prm.data.inputs import find_sources

    prms = named_places(prm)
    how = prm_options(loading, families=families_of(family, prms), critic=critic)
    for name, place in prms.items():
        check_scorer(place, how, name)
    find_sources(inputs)
    from prism_prm.evaluate.look_at import look_at

    found = look_at(
        prms, inputs, limit=limit, threshold=threshold, format=format, options=reading, prm_options=how,
    )  # fmt: skip
    conclude(lambda: _facts(found), lambda: _show(found, no_color=no_color))


def _show(found: list[LookedAt], *, no_color: bool) -> None:
    from rich.console import Console

    from prism_prm.cli.step_lines import show

    show(Console(no_color=no_color or None, highlight=False, markup=False, emoji=False), found)


def _facts(found: list[LookedAt]) -> dict[str, Any]:
    return {
        "solutions": [
            {
                "name": one.tree.name,
                "problem": one.tree.problem,
                "steps": [node.text for node in one.tree.nodes],
                "parents": list(one.tree.parents),
                "prms": [asdict(judged) for judged in one.by_prm],
            }
            for one in found
        ]
    }
