"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; a GPU where there is one.")]
DType = Annotated[str | None, typer.Option(help="auto, bfloat16, float16, float32; float32 on a CPU.")]
Family = Annotated[
    str | None, typer.Option(help="The PRM's family, where its folder does not say it; my_file.py:Mine runs that file.")
]
FitContext = Annotated[
    Literal["error", "drop-left-steps"],
    typer.Option("--on-too-long", help="A step whose path exceeds the context: stop, or leave out the earliest steps."),
]
TokenBudget = Annotated[int | None, typer.Option(min=1, help="Tokens per forward pass.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="Keep what the PRM's frozen layers make of texts here: PRMs that share them are then quick."),
]
Store = Annotated[
    Path | None,
    typer.Option(
        help="A folder of scores to reuse and add to, shared by score, margins, eval, rerank and search: a step that a "
        "PRM has scored is not scored again.",
    ),
]
CacheGb = Annotated[
    float, typer.Option(min=0, help="Room for --cache in GB; when it is full, the rest is computed each time.")
]
