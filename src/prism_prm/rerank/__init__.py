"""Best-of-N and votes on pools of solutions: select one answer, and measure the accuracy."""

from prism_prm.rerank.select import SELECTORS, Vote, best_of_n, majority_vote, vote, weighted_vote

__all__ = ["SELECTORS", "Vote", "best_of_n", "majority_vote", "vote", "weighted_vote"]
