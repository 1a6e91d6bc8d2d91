"""prism-prm: train, measure and use process reward models.

Names are imported on first use, so that `import prism_prm` stays instant.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "DataError": "prism_prm.errors",
    "EvalSettings": "prism_prm.evaluation.evaluate",
    "Judge": "prism_prm.answers",
    "ModelError": "prism_prm.errors",
    "PRM": "prism_prm.scorer",
    "PrismError": "prism_prm.errors",
    "Prm": "prism_prm.scorer",
    "Report": "prism_prm.report",
    "SearchSettings": "prism_prm.search",
    "Step": "prism_prm.records",
    "StepPair": "prism_prm.records",
    "StepTree": "prism_prm.records",
    "TreeScores": "prism_prm.scorer",
    "annotated_pairs": "prism_prm.pairs",
    "best_of_n": "prism_prm.rerank",
    "evaluate_steps": "prism_prm.evaluation.evaluate",
    "extract_answer": "prism_prm.answers",
    "init_prm": "prism_prm.scorer",
    "load_prm": "prism_prm.scorer",
    "open_policy": "prism_prm.policies",
    "load_task": "prism_prm.tasks",
    "lookahead_pairs": "prism_prm.pairs",
    "majority_vote": "prism_prm.rerank",
    "read_benchmark": "prism_prm.evaluation.benchmarks",
    "read_pool": "prism_prm.pools",
    "read_trees": "prism_prm.data",
    "solution_score": "prism_prm.aggregate",
    "split_steps": "prism_prm.data.steps",
    "steps_from_predictions": "prism_prm.evaluation.scores",
    "weighted_vote": "prism_prm.rerank",
}
"""Public name → the module that owns it."""

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'prism_prm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
