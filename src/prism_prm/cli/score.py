"""`prism score`: P(right) of every step, in one table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from prism_prm.cli.options import Cache, CacheGb, Device, DType, Family, Store, TokenBudget
from prism_prm.cli.processes import share_of_work
from prism_prm.cli.ui import progress, say
from prism_prm.resume import locked_file

EXAMPLES = """
Examples

`prism score --prm Qwen/Qwen2.5-Math-PRM-7B solutions.jsonl --out scores.parquet`

`prism score --prm runs/my-prm trees/ --out scores.parquet --dtype bfloat16`

`accelerate launch --num_processes 8 -m prism_prm score --prm runs/my-prm trees/ --out scores.parquet`

A line of input: `{"problem": "What is 1 + 2?", "steps": ["Add them.", "1 + 2 = 3"]}`
"""


def score(
    inputs: Annotated[list[str], typer.Argument(help="Files, folders or hub data sets: problem and steps, or trees.")],
    prm: Annotated[str, typer.Option(help="Folder or hub id of a PRM, of a LoRA adapter of one, or a run's.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="The table to write (Parquet).")],
    format: Annotated[str, typer.Option(help="Format of the input; found by itself as a rule.")] = "auto",
    family: Family = None,
    adapter: Annotated[Path | None, typer.Option(help="LoRA adapter to merge into the PRM.")] = None,
    compat: Annotated[
        bool | None,
        typer.Option("--compat/--no-compat", help="Read as the published code does, quirk and all."),
    ] = None,
    dtype: DType = None,
    device: Device = None,
    device_map: Annotated[str | None, typer.Option(help="'auto' spreads the model over all GPUs.")] = None,
    attn: Annotated[
        Literal["sdpa", "flex"], typer.Option(help="Attention; flex puts several trees in a row (GPU).")
    ] = "sdpa",
    token_budget: TokenBudget = None,
    context: Annotated[int | None, typer.Option(min=1, help="Longest path in tokens; the model's own.")] = None,
    on_too_long: Annotated[
        Literal["error", "drop-left-steps", "skip"],
        typer.Option(help="A step whose path exceeds the context: stop, leave out the earliest steps, or no score."),
    ] = "error",
    store: Store = None,
    cache: Cache = None,
    cache_gb: CacheGb = 50.0,
    chunk: Annotated[int, typer.Option(min=1, help="Trees per part file: what a stop can cost.")] = 64,
    split_steps: Annotated[bool, typer.Option(help="Read plain solution texts too, cut into steps.")] = False,
    on_bad_record: Annotated[
        Literal["fail", "skip"], typer.Option(help="Stop at a bad record, or count it and go on.")
    ] = "fail",
    allow_pickle: Annotated[bool, typer.Option(help="Read pickled weights, which can run any code.")] = False,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code from the model's repository.")] = False,
) -> None:
    """Score every step of solutions or trees with a PRM.

    Writes one row per step: its ids, the family's named log-odds, the probability that it is right, and the hash of the
    model. A run that was stopped goes on where it was. Under `accelerate launch` the work is split over the processes.
    """
    from prism_prm.data import ReadOptions
    from prism_prm.scorer.table import score_files

    with share_of_work(device) as (share, own_device), locked_file(out) if share.rank == 0 else nullcontext():
        loading: dict[str, Any] = {
            "family": family, "adapter": adapter, "compat": compat, "dtype": dtype,
            "device": None if device_map else own_device, "device_map": device_map, "attn": attn,
            "token_budget": token_budget, "context": context, "on_too_long": on_too_long, "cache": cache,
            "cache_gb": cache_gb, "allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code,
        }  # fmt: skip
        options = ReadOptions(split_steps=split_steps, on_bad_record=on_bad_record)
        report = score_files(
            prm, inputs, out, format=format, options=options, store=store, portion=chunk, share=share, loading=loading,
            bars=progress, say=say,
        )  # fmt: skip
    if share.rank == 0:
        resumed = f"; {report.resumed} portions were there already" if report.resumed else ""
        say(f"{report.steps} steps of {report.trees} trees → {out}{resumed}")
