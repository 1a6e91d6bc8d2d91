"""`prism score`: P(right) of every step, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import (
    A_CRITIC,
    LOADING,
    REMOTE,
    Options,
    Store,
    critic_options,
    out_file,
    prm_options,
    ray_options,
    with_settings,
)
from prism_prm.cli.ui import conclude, tell

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.data.formats import ReadOptions
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.ray import RaySettings

EXAMPLES = """
**Examples**

- With a published PRM:

  `prism score solutions.jsonl --prm Qwen/Qwen2.5-Math-PRM-7B --out scores.parquet`

- In half precision:

  `prism score trees/ --prm runs/my-prm --out scores.parquet --dtype bfloat16`

- On all cores or GPUs of this machine:

  `prism score trees/ --prm runs/my-prm --out scores.parquet --ray`

- On 64 GPUs of the Ray cluster that this machine belongs to:

  `prism score trees/ --prm runs/my-prm --out scores.parquet --ray auto --workers 64`

**A line of input:** `{"problem": "What is 1 + 2?", "steps": ["Add them.", "1 + 2 = 3"]}`
"""


ALL_OF_LOADING = (
    "family", "adapter", "compat", "dtype", "device", "device_map", "attn", "token_budget", "context", "on_too_long",
    "cache", "cache_gb", "allow_pickle", "trust_remote_code",
)  # fmt: skip


@with_settings(
    loading=Options(LOADING, {"PRM": ALL_OF_LOADING, "Remote PRM": REMOTE}),
    critic=critic_options(),
    cluster=ray_options(),
    reading=Options("prism_prm.data.formats:ReadOptions", {"Reading": ("split_steps", "on_bad_record")}),
)
def score(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(help="Files, folders or hub datasets: problems with steps, trees, or pools of solutions."),
    ],
    prm: Annotated[
        str,
        typer.Option(
            help=f"The PRM: a folder, a hub id, a LoRA adapter, a training run, prism:URL, vllm:URL, or {A_CRITIC}."
        ),
    ],
    out: Annotated[Path, out_file(".parquet", "The table to write (Parquet).")],
    format: Annotated[
        str,
        typer.Option(
            help="The format of the input. With auto, the fields of the records decide. pool is a pool of solutions."
        ),
    ] = "auto",
    loading: LoadSettings,
    critic: CriticSettings,
    store: Store = None,
    chunk: Annotated[
        int,
        typer.Option(
            min=1,
            max=10**6,
            help="How many trees are scored and saved together. A stopped run loses at most this many.",
        ),
    ] = 64,
    reading: ReadOptions,
    cluster: RaySettings,
) -> None:
    """Score every step of solutions or trees with a PRM.

    Writes one row per step: its ids, the family's named log-odds, the probability that it is right, and the hash of the
    model. Rerun the same command to resume. With --ray the work is spread over cores, GPUs and machines.
    """
    from prism_prm.backends.open_scorer import check_scorer
    from prism_prm.data.inputs import find_sources

    how = prm_options(loading, critic=critic, ray=cluster.given)
    check_scorer(prm, how)
    find_sources(inputs)
    from prism_prm.evaluate.score_files import score_files

    report = score_files(prm, inputs, out, format=format, options=reading, store=store, chunk=chunk, prm_options=how)
    facts = {"out": str(out), "trees": report.trees, "steps": report.steps, "too_long": report.too_long}
    facts |= {"unjudged": report.unjudged} if report.unjudged else {}
    conclude(lambda: facts, lambda: tell(f"{report.steps:,} steps of {report.trees:,} trees → {out}"))
