"""A critic's session in a search: every new step is asked about; replies are kept by the critic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.protocol import StepSession, sigmoid
from prism_prm.records import StepTree

if TYPE_CHECKING:
    from prism_prm.critics.critic import Critic


@dataclass(frozen=True, eq=False, slots=True)
class CriticStep:
    """A step that was judged, or a problem itself (a root)."""

    path: tuple[str, ...]
    """The problem and the steps up to here."""
    log_odds: tuple[float, ...] = ()
    num_tokens: int = 0
    """Tokens read and written to judge it."""

    @property
    def depth(self) -> int:
        """How many steps come before it; -1 for a root."""
        return len(self.path) - 2

    @property
    def probability(self) -> float:
        """P(the step is right); NaN if it was not judged."""
        return float(sigmoid(np.asarray(self.log_odds[0])))


class CriticSession(StepSession[CriticStep]):
    """Growing trees of steps; a step holds all that is known of it, so nothing is kept here."""

    def __init__(self, critic: Critic, problems: Sequence[str]) -> None:
        self.critic = critic
        self.roots = [CriticStep((problem,)) for problem in problems]

    def extend(self, steps: Iterable[tuple[CriticStep, str]]) -> list[CriticStep]:
        """Judge one more step after each given one; equal steps after one share their node."""
        asked = list(steps)
        new = list(dict.fromkeys(asked))
        trees = [
            StepTree.chain(parent.path[0], [*parent.path[1:], text], tree_id=i) for i, (parent, text) in enumerate(new)
        ]
        judged = self.critic.judge(trees, [[len(tree.nodes) - 1] for tree in trees])
        made = {
            (parent, text): CriticStep((*parent.path, text), tuple(one.log_odds_NO[-1].tolist()), one.tokens)
            for (parent, text), one in zip(new, judged, strict=True)
        }
        return [made[one] for one in asked]
