"""Reinforcement learning with a PRM: rewards for existing trainers, and step-level credit.

`reward` scores completions, `credit` turns the scores of a group into advantages per step, `spans` assigns tokens to
steps, and `trainer` passes the advantages to TRL. `monitor` watches a policy in training, `exploits` finds what it
exploits, and `rounds` retrains the PRM with that. `connectors` has rewards for other frameworks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_prm.rl.credit import CREDITS
    from prism_prm.rl.reward import Judged, PRMReward
    from prism_prm.rl.trainer import StepGRPOTrainer

__all__ = ["CREDITS", "Judged", "PRMReward", "StepGRPOTrainer"]

_OWNERS = {"CREDITS": "credit", "Judged": "reward", "PRMReward": "reward", "StepGRPOTrainer": "trainer"}


def __getattr__(name: str) -> Any:
    if name in _OWNERS:
        return getattr(importlib.import_module(f"prism_prm.rl.{_OWNERS[name]}"), name)
    raise AttributeError(f"module 'prism_prm.rl' has no attribute {name!r}")
