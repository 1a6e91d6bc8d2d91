"""Where a model runs and in which precision."""

from __future__ import annotations

import torch

from prism_prm.errors import ConfigError, ModelError


def pick_device(device: torch.device | str | None) -> torch.device:
    """The device that was asked for, which must be here; by default a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"device {str(device)!r} cannot be used here ({reason}); cpu always works") from error


def pick_dtype(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype | str:
    """The dtype that was asked for by name; by default the checkpoint's own on a GPU, float32 on a CPU."""
    if isinstance(dtype, str) and dtype != "auto":
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise ConfigError(f"dtype={dtype!r} is not a torch dtype such as bfloat16, float16, float32")
        return found
    return dtype or (torch.float32 if device.type == "cpu" else "auto")
