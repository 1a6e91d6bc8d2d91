"""GPUs to plan for: memory, peak operations and bandwidth, as their makers state them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from prism_prm.config import Count, Positive, Range, check
from prism_prm.errors import ConfigError
from prism_prm.plan.costs import Memory

GIB = 2**30
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
RESERVED_GIB = 2.0
"""What a GPU does not give to tensors: the driver's context, communication buffers, fragments."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; operations without sparsity."""

    memory: float
    """GiB."""
    bf16: float
    """TFLOP/s with 16-bit tensor cores."""
    fp32: float
    """TFLOP/s in plain 32 bits."""
    bandwidth: float
    """GB/s."""


GPUS: dict[str, Gpu] = {
    "rtx3090": Gpu(24, 71, 35.6, 936),
    "rtx4090": Gpu(24, 165, 82.6, 1008),
    "l4": Gpu(24, 121, 30.3, 300),
    "l40s": Gpu(48, 362, 91.6, 864),
    "a6000": Gpu(48, 155, 38.7, 768),
    "a100-40": Gpu(40, 312, 19.5, 1555),
    "a100-80": Gpu(80, 312, 19.5, 2039),
    "h100": Gpu(80, 989, 67, 3350),
    "h200": Gpu(141, 989, 67, 4800),
    "b200": Gpu(180, 2250, 75, 8000),
}
"""Name → GPU. H100, H200 and B200 are the SXM modules."""


@dataclass(frozen=True)
class Fit:
    """A case by name, what it takes and whether that is there."""

    name: str
    memory: Memory
    fits: bool


@dataclass(frozen=True)
class Cluster:
    """What to plan for."""

    gpu: str = "a6000"
    """The GPU: rtx3090, rtx4090, l4, l40s, a6000, a100-40, a100-80, h100, h200 or b200. Any other name needs
    --gpu-memory and --gpu-tflops, as does cpu, for which attention is planned in blocks."""
    count: Count = 1
    """The number of GPUs."""
    gpu_memory: Positive | None = None
    """The memory of one GPU in GiB. By default that of the named GPU."""
    gpu_tflops: Positive | None = None
    """The peak TFLOP/s of one GPU in the run's precision. By default that of the named GPU."""
    utilisation: Annotated[float, Range(above=0, most=1)] = 0.4
    """The share of the peak that is reached. It includes communication, kernels and waiting for data."""

    def __post_init__(self) -> None:
        check(self)
        if self.gpu not in GPUS and (self.gpu_memory is None or self.gpu_tflops is None):
            raise ConfigError(
                f"Unknown GPU {self.gpu!r}. Known: {', '.join(GPUS)}; for another give --gpu-memory and --gpu-tflops."
            )

    @property
    def on_cpu(self) -> bool:
        return self.gpu == "cpu"

    @property
    def room(self) -> float:
        """Bytes of one GPU that tensors can have."""
        return ((self.gpu_memory or GPUS[self.gpu].memory) - RESERVED_GIB) * GIB

    def fit(self, name: str, memory: Memory) -> Fit:
        return Fit(name, memory, memory.peak <= self.room)

    def speed(self, compute: int) -> float:
        """Operations per second that one GPU reaches, with so many bytes per number."""
        known = GPUS.get(self.gpu)
        peak = self.gpu_tflops or (known.bf16 if compute <= 2 else known.fp32)  # type: ignore[union-attr]
        return peak * 1e12 * self.utilisation

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that one GPU reads at its best, if known."""
        return GPUS[self.gpu].bandwidth * 1e9 if self.gpu in GPUS else None
