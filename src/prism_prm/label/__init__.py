"""Labels without annotators: a policy's rollouts from each step say how often it still leads to the right answer."""

from __future__ import annotations

from prism_prm.label.engine import Judging, Labelled, Labeller, by_answer, label_problems, label_trees
from prism_prm.label.methods import METHODS
from prism_prm.label.settings import LabelSettings

__all__ = [
    "METHODS", "Judging", "LabelSettings", "Labelled", "Labeller", "by_answer", "label_problems", "label_trees",
]  # fmt: skip
