"""Logs of a run: log.jsonl, and TensorBoard or Weights & Biases if `report_to` names them."""

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
"""The values of an update that go to the trackers."""


def check_reporters(report_to: tuple[str, ...]) -> None:
    """Raise if a tracker of the recipe is not installed, before hours of work."""
    if "wandb" in report_to and importlib.util.find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb")


class RunLog:
    """One line per update. On resume, lines after the last checkpoint are removed.

    Trackers count updates over all rounds, and start with the first value. TensorBoard purges points that were logged
    after the last checkpoint.
    """

    def __init__(self, folder: Path, report_to: tuple[str, ...], settings: dict[str, Any]) -> None:
        self._lines = JsonLines(folder / "log.jsonl")
        self._step = len(self._lines.read())
        self._folder, self._report_to, self._settings = folder, report_to, settings
        self._trackers: list[GeneralTracker] | None = None

    def resume(self, round_name: str, updates_done: int) -> None:
        """Remove the lines of this round from update `updates_done` on."""
        lines = self._lines.read()
        kept = [line for line in lines if line["round"] != round_name or line["update"] < updates_done]
        if len(kept) < len(lines):
            self._lines.rewrite(kept)
        self._step = len(kept)

    def update(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        self._send({f"train/{key}": line[key] for key in SENT})
        self._step += 1

    def validation(self, metrics: Mapping[str, Any]) -> None:
        """Log the validation metrics after the updates so far."""
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

                name, folder = self._folder.name, str(self._folder)
                self._trackers.append(
                    WandBTracker("prism-prm", name=name, dir=folder, config=self._settings, resume="allow")
                )
            for tracker in self._trackers:
                tracker.start()
        for tracker in self._trackers:
            tracker.log(numbers, step=self._step)
