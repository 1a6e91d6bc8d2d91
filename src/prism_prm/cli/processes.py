"""Training in several processes under `accelerate launch`, and an error for commands that use Ray instead."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import PartialState

SHARING = ("train", "grpo")
"""The commands that several processes may run together."""

ON_RAY = ("score", "eval", "rerank", "search", "label")
"""The commands that can spread their work over a Ray cluster."""

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
            f"`accelerate launch`, `torchrun` or `mpirun`, which are for training ({', '.join(SHARING)})."
            + (f" To spread it over cores, GPUs and machines: `prism {command} … --ray`." if command in ON_RAY else "")
        )


def join_processes() -> PartialState:
    """accelerate's view of the launcher's processes, with this one's rank and device."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    # accelerate counts processes on CPUs only with cpu=True; otherwise each one would be the first of one.
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    has_gpus = kind is not None and kind.type != "mps"
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not has_gpus
    # Processes wait for each other between stages, which they may reach hours apart.
    state = PartialState(cpu=on_cpu, timeout=timedelta(days=1))
    if state.num_processes != num_processes():
        raise ConfigError(
            f"{num_processes()} processes were started, but accelerate sees {state.num_processes}; start them with "
            "`accelerate launch` or `torchrun`, and on the CPUs of a machine with GPUs set ACCELERATE_USE_CPU=1"
        )
    return state
