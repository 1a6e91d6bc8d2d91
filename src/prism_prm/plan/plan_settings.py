"""The settings of `--plan`: the hardware, and what replaces a model that is not on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from prism_prm.config import Count
from prism_prm.errors import ConfigError
from prism_prm.plan.costs import GPUS, Cluster


@dataclass(frozen=True)
class PlanSettings(Cluster):
    """Section [plan]: the GPUs to plan for, and what the plan assumes."""

    config: tuple[str, ...] = ()
    """Replaces the config of a model that is not on this machine: a folder with config.json, or a known size such as
    qwen2.5-7b. In a search, MODEL=PLACE replaces that of one model."""
    tokenizer: str | None = None
    """A folder with the tokenizer to count with. By default the model's own."""
    margins: Path | None = None
    """The margins of the pairs, written by `prism score --pairs`. By default a curriculum is planned as one round of
    all pairs, which is an upper bound."""
    solution_tokens: Count = 512
    """The assumed length of a solution of a search, in tokens."""

    @property
    def cluster(self) -> Cluster:
        """The GPUs alone, as `plan_run` takes them."""
        return Cluster(**{field.name: getattr(self, field.name) for field in fields(Cluster)})


def parse_hardware(text: str) -> tuple[str, int]:
    """The GPU and the number of GPUs of a text such as "h100" or "4xa6000"."""
    match = re.fullmatch(r"(?:([1-9]\d{0,5})[x×])?([a-z][\w.-]*)", text.strip().lower())
    if match is None:
        raise ConfigError(
            f"--plan {text}: expected a GPU such as h100, or several such as 4xa6000. Known: {', '.join(GPUS)}."
        )
    return match[2], int(match[1] or 1)
