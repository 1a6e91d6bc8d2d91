"""What can be said about loading a PRM: the options that all commands with a PRM share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prism_prm.ranges import Count, NotNegative, check

OnTooLong = Literal["error", "drop-left-steps", "skip"]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How a PRM is read and run; `load_prm` takes each of these by its name."""

    family: str | None = None
    """The PRM's family, where its folder does not name it; my_file.py:Mine is a class in a file of yours."""
    adapter: Path | None = None
    """A LoRA adapter (peft) to merge into the PRM."""
    compat: bool | None = None
    """Read the PRM as its published code does, quirks included."""
    dtype: str | None = None
    """The precision of the weights: auto (the checkpoint's own), bfloat16, float16 or float32. By default auto on a GPU
    and float32 on a CPU."""
    device: str | None = None
    """Where the model runs: cpu, cuda, cuda:1, … By default a GPU where there is one."""
    device_map: str | None = None
    """With auto, the model is spread over all GPUs."""
    attn: Literal["sdpa", "flex"] = "sdpa"
    """The attention kernel; flex puts several trees into a row and needs a GPU."""
    token_budget: Count | None = None
    """Tokens per forward pass, padding included. By default 16,384 on a GPU and 8,192 on a CPU."""
    context: Count | None = None
    """The longest path in tokens. By default the model's own limit."""
    on_too_long: OnTooLong = "error"
    """A step whose path exceeds the context: error stops, drop-left-steps scores it without the earliest steps, and
    skip (where it is offered) leaves it without a score."""
    cache: Path | None = None
    """A folder for the output of the PRM's frozen layers: PRMs that share these layers then score faster."""
    cache_gb: NotNegative = 50.0
    """The size limit of the cache folder in GB. Once it is full, the rest is computed each time."""
    allow_pickle: bool = False
    """Read pickled weights, which can run any code."""
    trust_remote_code: bool = False
    """Run code from the model's repository."""

    def __post_init__(self) -> None:
        check(self)
