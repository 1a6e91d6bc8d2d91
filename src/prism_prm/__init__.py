"""prism-prm: train, measure and use process reward models.

Names are imported on first use, so that `import prism_prm` stays instant.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Prm": "prism_prm.scorer",
    "PrismError": "prism_prm.errors",
    "Step": "prism_prm.records",
    "StepPair": "prism_prm.records",
    "StepTree": "prism_prm.records",
    "TreeScores": "prism_prm.scorer",
    "init_prm": "prism_prm.scorer",
    "load_prm": "prism_prm.scorer",
    "annotated_pairs": "prism_prm.pairs",
    "lookahead_pairs": "prism_prm.pairs",
    "read_trees": "prism_prm.data",
    "split_steps": "prism_prm.data.steps",
}
"""Public name → the module that owns it."""

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'prism_prm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
