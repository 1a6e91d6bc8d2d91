"""Checkpoints of a round: whole tensors in safetensors files, which any number of processes can resume from."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from prism_prm.errors import PrismError
from prism_prm.files import whole_folder
from prism_prm.train.model import placed_like, whole

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE_FILE = "progress.json"
FILE_BYTES = 2**31
"""About how large a file gets: the main process holds one file's tensors at a time."""


class Checkpoints:
    """The checkpoints in a folder. All processes call every method."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def last(self) -> Path | None:
        """The newest one."""
        return max((path for path in self._all() if (path / STATE_FILE).exists()), default=None)

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("update-*")) if self.folder.is_dir() else []

    def updates_done(self) -> int:
        """The updates that need not be made again."""
        last = self.last()
        return 0 if last is None else int(_read_progress(last)["updates_done"])

    def save(
        self, done: int, plan: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator
    ) -> None:
        """Write one, then remove older ones."""
        place = self.folder / f"update-{done:06d}"
        is_main = accelerator.is_main_process
        if is_main:
            for unfinished in self.folder.glob(".update-*.part"):  # of a killed run
                shutil.rmtree(unfinished, ignore_errors=True)
        with whole_folder(place) if is_main else contextlib.nullcontext() as aside:
            files = _write(_tensors(model, optimizer), aside)
            if aside:
                progress = {"updates_done": done, "plan": plan, "files": files}
                (aside / STATE_FILE).write_text(json.dumps(progress))
        if is_main:
            for old in self._all()[: -self.keep]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def load(self, plan: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Take over the last one's weights and optimiser; how many updates were made."""
        last = self.last()
        if last is None:
            return 0
        progress = _read_progress(last)
        if progress["plan"] != plan:
            raise PrismError(
                f"{last}: made for other pairs or settings; remove {self.folder} to start the round again."
            )
        try:
            _read(last, progress["files"], model, optimizer)
        except (OSError, SafetensorError, ValueError) as error:
            raise _foreign(last, error) from error
        return int(progress["updates_done"])


def _tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """All that an update changes, in the same order on every process: `name` of a weight, `name key` of its state."""
    for name, parameter in _trained(model):
        yield name, parameter.detach()
        for key, value in optimizer.state[parameter].items():
            yield f"{name} {key}", value


def _trained(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _write(tensors: Iterator[tuple[str, torch.Tensor]], folder: Path | None) -> int:
    """Write files of whole tensors, and count them; a process without a folder only gives its parts."""
    held: dict[str, torch.Tensor] = {}
    num_files = 0

    def flush() -> None:
        nonlocal num_files
        if held and folder:
            save_file(held, folder / f"state-{num_files:05d}.safetensors")
            num_files += 1
            held.clear()

    for name, tensor in tensors:
        full = whole(tensor)
        if folder:
            held[name] = full.contiguous()
            if sum(value.nbytes for value in held.values()) >= FILE_BYTES:
                flush()
    flush()
    return num_files


@torch.no_grad()
def _read(folder: Path, num_files: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    paths = sorted(folder.glob("state-*.safetensors"))
    if len(paths) != num_files:
        raise ValueError(f"{len(paths)} of {num_files} files")
    trained, found = dict(_trained(model)), set()
    for path in paths:
        for full_name, value in load_file(path).items():
            name, _, key = full_name.partition(" ")
            found.add(name)
            if name not in trained:
                continue
            parameter = trained[name]
            if not key:
                parameter.copy_(placed_like(value, parameter))
            else:  # AdamW keeps its count of updates on the CPU
                optimizer.state[parameter][key] = value if key == "step" else placed_like(value, parameter)
    if found != trained.keys():
        raise ValueError(f"it has other weights, e.g. {min(found ^ trained.keys())}")


def _read_progress(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / STATE_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"updates_done": int(found["updates_done"]), "plan": found["plan"], "files": int(found["files"])}
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(checkpoint, error) from None


def _foreign(checkpoint: Path, error: Exception) -> PrismError:
    return PrismError(
        f"{checkpoint}: not what `prism train` writes there ({error}); remove {checkpoint} to resume without it."
    )
