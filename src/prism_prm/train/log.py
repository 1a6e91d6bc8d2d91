"""Logs of a run: log.jsonl always, TensorBoard and Weights & Biases if the recipe says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.errors import MissingExtraError
from prism_prm.files import JsonLines

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

SENT = ("loss", "lr", "grad_norm", "tokens", "seconds")
"""What of an update's line the trackers draw."""


def check_reporters(report_to: tuple[str, ...]) -> None:
    """Whether what the recipe reports to is installed: asked before hours of work, not after."""
    if "wandb" in report_to and importlib.util.find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb")


class RunLog:
    """One line per update; lines of updates that a killed run had not saved are removed when it resumes.

    Trackers count updates over all rounds. They start with their first value; TensorBoard does not draw later updates
    that an earlier start of the run sent.
    """

    def __init__(self, folder: Path, report_to: tuple[str, ...], settings: dict[str, Any]) -> None:
        self._lines = JsonLines(folder / "log.jsonl")
        self._step = len(self._lines.read())
        self._folder, self._report_to, self._settings = folder, report_to, settings
        self._trackers: list[GeneralTracker] | None = None

    def resume(self, round_name: str, updates_done: int) -> None:
        """Forget lines of this round from `updates_done` on."""
        lines = self._lines.read()
        kept = [line for line in lines if line["round"] != round_name or line["update"] < updates_done]
        if len(kept) < len(lines):
            self._lines.rewrite(kept)
        self._step = len(kept)

    def update(self, line: dict[str, Any]) -> None:
        """Note one update."""
        self._lines.append(line)
        self._send({f"train/{key}": line[key] for key in SENT})
        self._step += 1

    def validated(self, metrics: Mapping[str, Any]) -> None:
        """Note what the PRM was measured to be after the updates so far."""
        self._send({f"validation/{key}": value for key, value in metrics.items()})

    def close(self) -> None:
        self._lines.close()
        for tracker in self._trackers or ():
            tracker.finish()

    def _send(self, numbers: dict[str, Any]) -> None:
        if self._trackers is None:
            self._trackers = []
            if "tensorboard" in self._report_to:
                from accelerate.tracking import TensorBoardTracker

                self._trackers.append(TensorBoardTracker("tensorboard", self._folder, purge_step=self._step))
            if "wandb" in self._report_to:
                from accelerate.tracking import WandBTracker

                name, place = self._folder.name, str(self._folder)
                self._trackers.append(
                    WandBTracker("prism-prm", name=name, dir=place, config=self._settings, resume="allow")
                )
            for tracker in self._trackers:
                tracker.start()
        for tracker in self._trackers:
            tracker.log(numbers, step=self._step)
