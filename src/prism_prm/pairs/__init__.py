"""Which steps to compare: annotated pairs, temporal lookahead, and the ablations; all from trees."""

from __future__ import annotations

from prism_prm.pairs.rules import PairSettings, annotated_pairs, lookahead_pairs

__all__ = ["PairSettings", "annotated_pairs", "lookahead_pairs"]
