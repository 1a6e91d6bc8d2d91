"""Which steps to compare: annotated pairs, temporal lookahead, and the ablations; all from trees."""

from __future__ import annotations

from prism_prm.pairs.rules import annotated_pairs, lookahead_pairs
from prism_prm.pairs.settings import PairSettings

__all__ = ["PairSettings", "annotated_pairs", "lookahead_pairs"]
