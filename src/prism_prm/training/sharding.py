"""Weights, gradients and optimiser state sharded over processes with FSDP2, by torch itself.

accelerate starts the processes and holds a copy of the model in each (DDP). Its own FSDP works on GPUs only and cannot
be tested without them, so sharding calls torch: the same code runs on CPUs (gloo), where it is tested, and on GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator

POLICIES = {
    "no": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
"""Mixed precision → the dtypes in which layers are gathered and run, and gradients are summed."""


def shard(model: Any, layers: Any, accelerator: Accelerator) -> None:
    """Leave each process its part of every parameter, on its device; a layer is whole only while it runs."""
    policy = POLICIES.get(accelerator.mixed_precision)
    if policy is None:
        raise ConfigError(
            f"mixed precision {accelerator.mixed_precision!r} does not work with sharding; use one of {list(POLICIES)}."
        )
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)


def is_sharded(model: torch.nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor with all its parts, in CPU memory; every process calls this."""
    full: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.to("cpu", copy=True)  # also of what is there: uneven parts are gathered with padding behind them


def placed_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the other's device, and in parts if the other is; every process calls this."""
    moved = tensor.to(other.device, other.dtype)
    return distribute_tensor(moved, other.device_mesh, other.placements) if isinstance(other, DTensor) else moved


def gather(model: torch.nn.Module, *, keep: bool) -> None:
    """Put whole weights into a sharded model, in CPU memory, on the processes that `keep` them; all call this.

    The model can then be merged and saved like any other, but not run.
    """
    found: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for part in model.modules():
        for name, parameter in part.named_parameters(recurse=False):
            assert isinstance(parameter, DTensor), f"{name} is not sharded between updates"
            if parameter not in found:  # a head that is the embedding too stays so
                full = whole(parameter.detach())
                found[parameter] = torch.nn.Parameter(full, parameter.requires_grad) if keep else parameter
            setattr(part, name, found[parameter])
