"""`prism score`: P(right) of every step, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_prm.cli.options import LOADING, Options, Store, with_settings
from prism_prm.cli.processes import share_of_work
from prism_prm.cli.ui import progress, say
from prism_prm.errors import ConfigError
from prism_prm.resume import locked_file

if TYPE_CHECKING:
    from prism_prm.data import ReadOptions
    from prism_prm.records import StepTree
    from prism_prm.scorer.settings import LoadSettings

EXAMPLES = """
Examples

`prism score --prm Qwen/Qwen2.5-Math-PRM-7B solutions.jsonl --out scores.parquet`

`prism score --prm runs/my-prm trees/ --out scores.parquet --dtype bfloat16`

`accelerate launch --num_processes 8 -m prism_prm score --prm runs/my-prm trees/ --out scores.parquet`

A line of input: `{"problem": "What is 1 + 2?", "steps": ["Add them.", "1 + 2 = 3"]}`
"""


ALL_OF_LOADING = (
    "family", "adapter", "compat", "dtype", "device", "device_map", "attn", "token_budget", "context", "on_too_long",
    "cache", "cache_gb", "allow_pickle", "trust_remote_code",
)  # fmt: skip


@with_settings(
    loading=Options(LOADING, {"PRM": ALL_OF_LOADING}),
    reading=Options("prism_prm.data.options:ReadOptions", {"Reading": ("split_steps", "on_bad_record")}),
)
def score(
    *,
    inputs: Annotated[list[str], typer.Argument(help="Files, folders or hub data sets: problem and steps, or trees.")],
    prm: Annotated[str, typer.Option(help="Folder or hub id of a PRM, of a LoRA adapter of one, or a run's.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="The table to write (Parquet).")],
    format: Annotated[str, typer.Option(help="Format of the input; found by itself as a rule.")] = "auto",
    loading: LoadSettings,
    store: Store = None,
    chunk: Annotated[int, typer.Option(min=1, help="Trees per part file: what a stop can cost.")] = 64,
    reading: ReadOptions,
) -> None:
    """Score every step of solutions or trees with a PRM.

    Writes one row per step: its ids, the family's named log-odds, the probability that it is right, and the hash of the
    model. A run that was stopped goes on where it was. Under `accelerate launch` the work is split over the processes.
    """
    from prism_prm.scorer import load_prm
    from prism_prm.scorer.table import write_scores

    with share_of_work(loading.device) as (share, own), locked_file(out) if share.rank == 0 else nullcontext():
        trees = _read(inputs, format, reading)
        model = load_prm(prm, **asdict(replace(loading, device=None if loading.device_map else own)))
        if share.rank == 0 and model.memory_estimate() > 10**9:
            say(f"needs about {model.memory_estimate() / 1e9:.1f} GB of memory per process (an estimate)")
        with progress("scoring", len(trees), unit="trees", shown=share.rank == 0) as advance:
            report = write_scores(model, trees, out, store=store, portion=chunk, share=share, advance=advance)
    if share.rank == 0:
        resumed = f"; {report.resumed} portions were there already" if report.resumed else ""
        say(f"{report.steps} steps of {report.trees} trees → {out}{resumed}")
        if report.too_long:
            done = "left out" if loading.on_too_long == "skip" else "scored without their earliest steps"
            say(f"{report.too_long} steps exceeded the context of {model.context} tokens and were {done}")


def _read(inputs: Sequence[str], format: str, options: ReadOptions) -> list[StepTree]:
    """All trees; a table of ours keeps the ids it was written with."""
    from prism_prm.data import Reader
    from prism_prm.data.inputs import TREE_TABLE
    from prism_prm.tables import iter_trees

    if len(inputs) == 1:
        path = Path(inputs[0])
        if path.name == TREE_TABLE or (path / TREE_TABLE).is_file():
            return _some(list(iter_trees(path)), inputs)
    reader = Reader(inputs, format=format, options=options, unlabelled=True)
    trees = [draft.tree(i) for i, (_, draft) in enumerate(reader.drafts())]
    left_out = reader.report.dropped + reader.report.bad
    if left_out:
        say(f"left out: {', '.join(f'{n} {reason}' for reason, n in left_out.items())}")
    return _some(trees, inputs)


def _some(trees: list[StepTree], inputs: Sequence[str]) -> list[StepTree]:
    if not trees:
        raise ConfigError(f"{', '.join(inputs)}: there is nothing to score")
    return trees
