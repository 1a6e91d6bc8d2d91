"""`prism serve`: PRMs behind HTTP."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import (
    A_CRITIC,
    LOADING,
    Families,
    Options,
    critic_options,
    families_of,
    prm_options,
    with_settings,
)
from prism_prm.cli.ui import conclude, tell
from prism_prm.paths import is_hub_id, named_places, split_name

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.serve.settings import ServeSettings

EXAMPLES = """
**Examples**

- A PRM for programs on this machine:

  `prism serve --prm runs/my-prm`

- Two PRMs, by names that clients ask for:

  `prism serve --prm base=prms/base --prm Qwen/Qwen2.5-Math-PRM-7B=prms/prism --port 8000`

- For other machines, with keys:

  `prism serve --prm runs/my-prm --host 0.0.0.0 --keys keys.txt`

- Watch a search that is running:

  `prism serve --results runs/beam`

- A critic, whose replies are paid for once:

  `prism serve --prm judge=critic:openai:http://localhost:8001/v1 --critic processbench`

Routes, limits and deployment: docs/serve.md
"""

LOADED = ("dtype", "device", "device_map", "attn", "token_budget", "context", "on_too_long", "trust_remote_code")


@with_settings(
    settings=Options(
        "prism_prm.serve.settings:ServeSettings",
        {
            "Access": ("host", "port", "keys", "allow_anyone", "log_text"),
            "Limits": ("max_requests", "max_tokens", "max_body", "deadline", "client_seconds"),
            "Batching": ("batch_items", "batch_tokens", "cache_mb"),
        },
    ),
    loading=Options(LOADING, {"PRM": LOADED}),
    critic=critic_options(),
)
def serve(
    *,
    prm: Annotated[
        list[str] | None,
        typer.Option(help=f"A PRM to serve: a folder, a hub id, {A_CRITIC}, or NAME=any of these. May be repeated."),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            help="Results to look at on the page at /, also while they are being made: a folder or NAME=folder, as for "
            "`prism view`. May be repeated."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="The texts of the results: the benchmark's files, or the solutions that were scored. By default those "
            "that the results name. May be repeated."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="For labelled and pairs: the split that was measured, if results do not say.")
    ] = None,
    settings: ServeSettings,
    family: Families = None,
    loading: LoadSettings,
    critic: CriticSettings,
) -> None:
    """Serve PRMs over HTTP, for people (a page at `/`) and programs.

    Programs are clients of vLLM (`/pooling`), OpenRLHF (`/get_reward`) and our own (`/v1/steps`).

    Requests in flight that share a problem are scored as one tree, and the states of prefixes are kept for the next
    request. When it is busy, the server answers with 429. SIGTERM or Ctrl-C lets accepted requests finish.
    """
    from prism_prm.serve.serve_prms import serve_prms

    prms = named_places(list(map(_with_name, prm or [])))
    how = prm_options(loading, families=families_of(family, prms), critic=critic)
    answered = serve_prms(prms, settings, prm_options=how, results=results or (), data=data or (), split=split)
    gc.freeze()  # or the interpreter would go through everything that torch has made before it ends
    conclude(lambda: {"requests": answered}, lambda: tell(f"{answered:,} requests answered"))


def _with_name(given: str) -> str:
    """A hub id is its own name as a whole: what clients call the model."""
    name, place = split_name(given)
    return f"{place}={place}" if not name and is_hub_id(place) else given
