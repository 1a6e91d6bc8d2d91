"""What scoring gives: the named log-odds of a tree's nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism_prm.errors import ConfigError


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """Probabilities of log-odds, without overflow."""
    small = np.exp(-np.abs(log_odds))
    return np.asarray(np.where(log_odds >= 0, 1.0, small) / (1.0 + small))


@dataclass(frozen=True, slots=True)
class TreeScores:
    """The scores of one tree, one row per node.

    A node that was not asked for, or was left out by `on_too_long="skip"`, is NaN; a score is never NaN otherwise.
    """

    outputs: tuple[str, ...]
    log_odds_NO: np.ndarray
    too_long: tuple[int, ...] = ()
    """Nodes whose path exceeds the context: left unscored, or scored without their earliest steps."""

    @property
    def probability(self) -> np.ndarray:
        """P(the step is right) of each node."""
        return sigmoid(self.log_odds_NO[:, 0])

    def named(self, output: str) -> np.ndarray:
        """The probability of one named output, such as ReasonEval's redundancy, for each node."""
        if output not in self.outputs:
            raise ConfigError(f"This PRM has no output {output!r}; it has: {', '.join(self.outputs)}.")
        return sigmoid(self.log_odds_NO[:, self.outputs.index(output)])

    @property
    def scored(self) -> list[int]:
        """The nodes that have a score."""
        return np.flatnonzero(~np.isnan(self.log_odds_NO[:, 0])).tolist()
