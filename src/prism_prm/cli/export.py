"""`prism export`: pairs and trees for other trainers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

EXAMPLES = """
Examples

For TRL's RewardTrainer or DPOTrainer: `prism export pairs --format trl-preference --split train --out train.jsonl`

For a trainer of labelled steps: `prism export pairs --format trl-stepwise --out steps.jsonl`

Look at some pairs: `prism export pairs --format jsonl | head -3`
"""


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `prism pairs` wrote.")],
    format: Annotated[
        Literal["trl-stepwise", "trl-preference", "jsonl"],
        typer.Option(
            help="trl-stepwise: prompt, completions, labels. trl-preference: prompt, chosen, rejected. "
            "jsonl: everything about each pair, with its texts."
        ),
    ],
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="A .jsonl file; standard output without it.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
) -> None:
    """Write pairs or labelled solutions as JSON lines that other trainers read."""
    from prism_prm.cli.ui import progress, say
    from prism_prm.export import EXPORTS, export_pairs

    if out is not None:
        with progress("Writing", None, unit="records") as advance:
            count = export_pairs(folder, format, out, split=split, advance=advance)
        say(f"{count:,} records in {out}")
        return
    import msgspec

    try:
        for record in EXPORTS[format](folder, split=split):
            sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
