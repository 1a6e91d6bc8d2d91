"""Commands that can run in several processes under `accelerate launch`, and an error for those that cannot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import PartialState

    from prism_prm.scorer.store import Share

SHARING = ("score", "margins", "train", "grpo")
"""The commands that several processes may run together."""

_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where launchers say how many processes they started: accelerate and torchrun in the first, MPI in the others."""


def num_processes() -> int:
    """How many processes the launcher has started; 1 without one."""
    return max(int(os.environ.get(name, "1")) for name in _COUNTS)


def check_alone(command: str) -> None:
    """Refuse several processes of a command that each would do all the work, into the same files."""
    if command not in SHARING and num_processes() > 1:
        raise ConfigError(
            f"`prism {command}` runs in one process, but a launcher started {num_processes()}; start it without "
            f"`accelerate launch`, `torchrun` or `mpirun`. Commands that can use several: {', '.join(SHARING)}."
        )


def join_processes(device: str | None = None) -> PartialState:
    """accelerate's view of the launcher's processes, with this one's rank and device."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    # accelerate only counts processes on CPUs if it is told that they run there; each one is else the first of one.
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    has_gpus = kind is not None and kind.type != "mps"
    on_cpu = (device or "").startswith("cpu") or parse_flag_from_env("ACCELERATE_USE_CPU") or not has_gpus
    # Processes wait for each other between stages, which they may reach hours apart.
    state = PartialState(cpu=on_cpu, timeout=timedelta(days=1))
    if state.num_processes != num_processes():
        raise ConfigError(
            f"{num_processes()} processes were started, but accelerate sees {state.num_processes}; start them with "
            "`accelerate launch` or `torchrun`, or on CPUs with --device cpu"
        )
    return state


@contextlib.contextmanager
def share_of_work(device: str | None) -> Iterator[tuple[Share, str | None]]:
    """This process's share of the work, and its device."""
    from prism_prm.scorer.store import Share

    if num_processes() == 1:
        yield Share(), device
        return
    state = join_processes(device)
    try:
        yield Share(state.process_index, state.num_processes, state.wait_for_everyone), _own(device, state)
    finally:
        state.destroy_process_group()


def _own(device: str | None, state: PartialState) -> str:
    """`cuda` means a GPU per process; `cuda:1` is what the user wants of all of them."""
    if state.device.type == "cpu":
        return device or "cpu"
    return str(state.device) if device in (None, state.device.type) else str(device)
