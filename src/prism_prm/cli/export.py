"""`prism export`: pairs and trees for other trainers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prism_prm.cli.options import Command, Out
from prism_prm.cli.ui import conclude, tell, wants_json
from prism_prm.config import check
from prism_prm.console import progress
from prism_prm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """The settings of `prism export`."""

    folder: Path | None = None
    """A folder of `prism pairs`."""
    format: Literal["trl-stepwise", "trl-preference", "jsonl"] | None = None
    """trl-stepwise (prompt, completions, labels), trl-preference (prompt, chosen, rejected), or jsonl (everything about
    each pair)."""
    split: str | None = None
    """Write only this split. By default all."""

    def __post_init__(self) -> None:
        check(self)


def export(settings: ExportCommand, out: Path | None) -> None:
    """Write pairs or labeled solutions as JSON lines that other trainers read."""
    from prism_prm.data.export import EXPORTS, export_pairs

    folder, format = settings.folder, settings.format
    if folder is None or format is None:
        raise ConfigError("name a folder of `prism pairs` and a format, e.g. prism export pairs --format jsonl")
    if out is not None:
        with progress("Writing", None, unit="records") as advance:
            count = export_pairs(folder, format, out, split=settings.split, advance=advance)
        facts = {"out": str(out), "records": count}
        conclude(lambda: facts, lambda: tell(f"{count:,} records in {out}"))
        return
    if wants_json():
        raise ConfigError("--json needs --out; otherwise the records go to standard output")
    import msgspec

    try:
        for record in EXPORTS[format](folder, split=settings.split):
            sys.stdout.buffer.write(msgspec.json.encode(record) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


COMMAND = Command(
    ExportCommand,
    export,
    argument="folder",
    out=Out("The file to write. By default standard output.", ".jsonl", required=False),
    options={"--format": "format", "--split": "split"},
    examples={
        "For TRL's RewardTrainer or DPOTrainer":
            "prism export pairs --format trl-preference --split train --out train.jsonl",
        "Some pairs, to look at": "prism export pairs --format jsonl | head -3",
    },
)  # fmt: skip
