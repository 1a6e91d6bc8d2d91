"""What a run tells while it trains: log.jsonl always, TensorBoard and Weights & Biases as the recipe says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from prism_prm.errors import MissingExtraError
from prism_prm.files import write_text


def check_reporters(report_to: tuple[str, ...]) -> None:
    """Whether what the recipe reports to is installed: asked before hours of work, not after."""
    if "wandb" in report_to and importlib.util.find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb")


class RunLog:
    """One line per update; lines of updates that a killed run had not saved are removed when it goes on."""

    def __init__(self, folder: Path, report_to: tuple[str, ...], settings: dict[str, Any]) -> None:
        self.path = folder / "log.jsonl"
        self._tensorboard = _tensorboard(folder / "tensorboard") if "tensorboard" in report_to else None
        self._wandb = _wandb(folder, settings) if "wandb" in report_to else None
        self._step = 0

    def resume(self, round_name: str, updates_done: int) -> None:
        """Forget lines of this round from `updates_done` on."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        kept = [line for line in lines if line["round"] != round_name or line["update"] < updates_done]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self._step = len(kept)

    def update(self, line: dict[str, Any]) -> None:
        """Note one update."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        numbers = {f"train/{key}": line[key] for key in ("loss", "lr", "grad_norm", "tokens", "seconds")}
        self._send(numbers)
        self._step += 1

    def round(self, name: str, metrics: dict[str, Any]) -> None:
        """Note what a round was measured to be."""
        number = int(name.split("_", 1)[0])
        self._send({f"validation/{key}": value for key, value in metrics.items()}, step=number)

    def close(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _send(self, numbers: dict[str, Any], step: int | None = None) -> None:
        at = self._step if step is None else step
        if self._tensorboard is not None:
            for key, value in numbers.items():
                self._tensorboard.add_scalar(key, value, at)
        if self._wandb is not None:
            self._wandb.log({**numbers, "at": at})


def _tensorboard(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def _wandb(folder: Path, settings: dict[str, Any]) -> Any:
    import wandb  # type: ignore[import-not-found, unused-ignore]

    return wandb.init(project="prism-prm", name=folder.name, dir=str(folder), config=settings, resume="allow")
