"""Score solutions, trees, and growing trees with any discriminative PRM; one table of scores for all uses.

Names are imported on first use: the help of a command reads `settings` without waiting for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_prm.protocol import Scorer, TreeScores
    from prism_prm.scorer.load import init_prm, load_prm
    from prism_prm.scorer.prm import PRM, Prm

__all__ = ["PRM", "Prm", "Scorer", "TreeScores", "init_prm", "load_prm"]

_OWNERS = {
    "PRM": "prism_prm.scorer.prm",
    "Prm": "prism_prm.scorer.prm",
    "Scorer": "prism_prm.protocol",
    "TreeScores": "prism_prm.protocol",
    "init_prm": "prism_prm.scorer.load",
    "load_prm": "prism_prm.scorer.load",
}


def __getattr__(name: str) -> Any:
    if name in _OWNERS:
        return getattr(importlib.import_module(_OWNERS[name]), name)
    raise AttributeError(f"module 'prism_prm.scorer' has no attribute {name!r}")
