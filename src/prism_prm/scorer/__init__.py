"""Score solutions, trees, and growing trees with any discriminative PRM; one table of scores for all uses."""

from __future__ import annotations

from prism_prm.scorer.open import init_prm, load_prm
from prism_prm.scorer.prm import PRM, Prm
from prism_prm.scorer.protocol import Scorer
from prism_prm.scorer.results import TreeScores

__all__ = ["PRM", "Prm", "Scorer", "TreeScores", "init_prm", "load_prm"]
