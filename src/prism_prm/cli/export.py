"""`prism export`: pairs and trees for other trainers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from prism_prm.cli.options import out_file
from prism_prm.errors import ConfigError

EXAMPLES = """
**Examples**

- For TRL's RewardTrainer or DPOTrainer:

  `prism export pairs --format trl-preference --split train --out train.jsonl`

- For a trainer of labelled steps:

  `prism export pairs --format trl-stepwise --out steps.jsonl`

- Some pairs, to look at:

  `prism export pairs --format jsonl | head -3`
"""


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `prism pairs`.")],
    format: Annotated[
        Literal["trl-stepwise", "trl-preference", "jsonl"],
        typer.Option(
            metavar="FORMAT",
            help="trl-stepwise: prompt, completions, labels. trl-preference: prompt, chosen, rejected. "
            "jsonl: everything about each pair, with its texts.",
        ),
    ],
    out: Annotated[Path | None, out_file(".jsonl", "The .jsonl file to write. By default standard output.")] = None,
    split: Annotated[str | None, typer.Option(help="Write only this split. By default all.")] = None,
) -> None:
    """Write pairs or labelled solutions as JSON lines that other trainers read."""
    from prism_prm.cli.ui import conclude, tell, wants_json
    from prism_prm.console import progress
    from prism_prm.data.export import EXPORTS, export_pairs

    if out is not None:
        with progress("Writing", None, unit="records") as advance:
            count = export_pairs(folder, format, out, split=split, advance=advance)
        facts = {"out": str(out), "records": count}
        conclude(lambda: facts, lambda: tell(f"{count:,} records in {out}"))
        return
    if wants_json():
        raise ConfigError("--json needs --out; otherwise the records go to standard output")
    import msgspec

    try:
        for record in EXPORTS[format](folder, split=split):
            sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
