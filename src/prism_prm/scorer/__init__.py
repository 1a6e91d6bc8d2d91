"""Score solutions, trees, and growing trees with any discriminative PRM; one table of scores for all uses.

Names are imported on first use: the help of a command reads `settings` without waiting for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_prm.scorer.load import init_prm, load_prm
    from prism_prm.scorer.prm import PRM, Prm
    from prism_prm.scorer.protocol import Scorer, TreeScores

__all__ = ["PRM", "Prm", "Scorer", "TreeScores", "init_prm", "load_prm"]

_OWNERS = {
    "PRM": "prm",
    "Prm": "prm",
    "Scorer": "protocol",
    "TreeScores": "protocol",
    "init_prm": "load",
    "load_prm": "load",
}


def __getattr__(name: str) -> Any:
    if name in _OWNERS:
        return getattr(importlib.import_module(f"prism_prm.scorer.{_OWNERS[name]}"), name)
    raise AttributeError(f"module 'prism_prm.scorer' has no attribute {name!r}")
