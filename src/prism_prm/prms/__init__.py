"""PRM families: how each lays out text, where it is read, and what its head says. One file each."""

from __future__ import annotations

from prism_prm.prms.base import Family, TextEncoder
from prism_prm.prms.math_shepherd import MathShepherd
from prism_prm.prms.qwen import Qwen
from prism_prm.prms.reasoneval import ReasonEval
from prism_prm.prms.rlhflow import RLHFlow
from prism_prm.prms.skywork import Skywork
from prism_prm.prms.token_classification import TokenClassification

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Qwen, TokenClassification, MathShepherd, RLHFlow, Skywork, ReasonEval)
}
"""Name → family; add yours here (docs/scoring.md says how)."""

__all__ = ["FAMILIES", "Family", "TextEncoder"]
