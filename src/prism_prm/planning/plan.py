"""A plan: what a run takes, as numbers that a table or JSON can show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from prism_prm.costs import Memory
from prism_prm.planning.gpus import Cluster

SCORE_BYTES = 60
"""Bytes of a score in the store, with its key."""


@dataclass(frozen=True)
class Fit:
    """A case by name, what it takes and whether that is there."""

    name: str
    memory: Memory
    fits: bool


@dataclass(frozen=True)
class Stage:
    """One stage of a run."""

    name: str
    tokens: int
    """Tokens through the model, padding and idle passes included."""
    separate: int
    """Tokens that one sequence per step would have."""
    flops: int
    hours: float
    updates: int = 0
    examples: int = 0
    times: int = 1
    """How often the stage runs; the numbers are those of one time."""
    efficiency: float = 1.0
    """The share of the GPUs' time that is not spent waiting for the busiest of them."""

    @property
    def ratio(self) -> float | None:
        """How many times fewer tokens run than with one sequence per step."""
        return self.separate / self.tokens if self.tokens and self.separate else None


@dataclass(frozen=True)
class Plan:
    """What a run takes."""

    kind: str
    model: dict[str, Any]
    cluster: Cluster
    stages: list[Stage]
    fits: list[Fit]
    remedies: list[str]
    disk: dict[str, float]
    """Bytes, by what they are for."""
    notes: list[str] = field(default_factory=list)
    """What the numbers assume."""

    @property
    def hours(self) -> float:
        return sum(stage.hours * stage.times for stage in self.stages)

    @property
    def flops(self) -> int:
        return sum(stage.flops * stage.times for stage in self.stages)

    def facts(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "kind": self.kind, "model": self.model, "cluster": asdict(self.cluster),
            "room_bytes": self.cluster.room,
            "stages": [{**asdict(stage), "ratio": stage.ratio} for stage in self.stages],
            "hours": self.hours, "gpu_hours": self.hours * self.cluster.count, "flops": self.flops,
            "memory": [
                {"way": one.name, "fits": one.fits, "peak": one.memory.peak, **one.memory.parts} for one in self.fits
            ],
            "remedies": self.remedies, "disk": self.disk, "notes": self.notes,
        }  # fmt: skip
