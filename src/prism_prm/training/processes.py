"""The processes of a run: how they may be started, and what is said if one of them is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from prism_prm.errors import ConfigError, PrismError

if TYPE_CHECKING:
    from accelerate import Accelerator


def check_launch(accelerator: Accelerator) -> None:
    """Refuse a launcher that shards the weights in its own way."""
    kind = str(accelerator.distributed_type.value)
    if any(name in kind.upper() for name in ("FSDP", "DEEPSPEED", "MEGATRON")):
        raise ConfigError(
            f"accelerate was started with {kind}. Launch without it (recipes/accelerate/gpus.yaml), and set "
            'hardware.sharding = "fsdp" in the recipe to shard the weights.'
        )


@contextlib.contextmanager
def noticing_losses() -> Iterator[None]:
    """An error that says so if another process ended in the middle of the work: killed, or with an error of its own."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):  # gloo has no class for it
            raise PrismError(
                "Another process of this run has ended, so this one cannot go on. If it gives no error of its own, it "
                "was killed, perhaps for lack of memory. Rerun the command, with any number of processes, to resume."
            ) from error
        raise
