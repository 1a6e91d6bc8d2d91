"""The settings of `--plan`: the hardware, and what replaces a model that is not on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prism_prm.config import Count, Positive, Range, check
from prism_prm.errors import SettingError
from prism_prm.plan.costs import GPUS, Cluster


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Section [plan]: the GPUs to plan for, and what the plan assumes."""

    hardware: str = ""
    """Print what the run will take on this hardware, e.g. 4xa6000, and stop. GPUs: rtx3090, rtx4090, l4, l40s, a6000
    (the default), a100-40, a100-80, h100, h200, b200. Any other name, or cpu, needs gpu_memory and gpu_tflops."""
    gpu_memory: Positive | None = None
    """The memory of one GPU in GiB. By default that of the named GPU."""
    gpu_tflops: Positive | None = None
    """The peak TFLOP/s of one GPU in the run's precision. By default that of the named GPU."""
    utilization: Annotated[float, Range(above=0, most=1)] = 0.4
    """The share of the peak that is reached, including communication, kernels and waiting for data."""
    config: tuple[str, ...] = ()
    """Replaces the config of a model that is not on this machine: a folder with config.json, or a known size such as
    qwen2.5-7b. In a search, MODEL=CONFIG replaces that of one model."""
    tokenizer: str | None = None
    """A folder with the tokenizer to count with. By default the model's own."""
    margins: Path | None = None
    """The margins of the pairs, written by `prism score --pairs`. By default a curriculum is planned as one round of
    all pairs, which is an upper bound."""
    solution_tokens: Count = 512
    """The assumed length of a solution of a search, in tokens."""

    def __post_init__(self) -> None:
        check(self)
        if self.hardware:
            self.cluster()

    def cluster(self) -> Cluster:
        """The GPUs, as `plan_run` takes them."""
        match = re.fullmatch(r"(?:([1-9]\d{0,5})[x×])?([a-z][\w.-]*)", self.hardware.strip().lower())
        if match is None:
            known = ", ".join(GPUS)
            raise SettingError("hardware", self.hardware, f"must be a GPU, or several as in 4xa6000. Known: {known}")
        return Cluster(match[2], int(match[1] or 1), self.gpu_memory, self.gpu_tflops, self.utilization)
