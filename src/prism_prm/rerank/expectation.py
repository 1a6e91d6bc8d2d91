"""The expected accuracy of selecting from n of a problem's N solutions, over all ways to draw them.

The pool is one large sample. Each value here is the expectation over ordered draws of n different solutions, so it does
not depend on one lucky draw. pass@n and Best-of-n have closed forms; votes are averaged over many seeded draws, the
same draws for every n and every PRM, so that comparisons are paired. Drawing in random order makes "the earlier of
equals" fair: tied solutions share their chance.

Shapes: N solutions, D draws, G groups of equal answers, K values of n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.rerank.select import TIE

NUM_DRAWS = 1000


def chance_of_none(num_solutions: int, n: int) -> Floats:
    """For r = 0 … N: the chance that none of r given solutions is among n drawn, C(N−r, n) / C(N, n)."""
    drawn = np.arange(num_solutions)
    factors = np.clip(num_solutions - n - drawn, 0, None) / (num_solutions - drawn)
    return np.concatenate([[1.0], np.cumprod(factors)])


def pass_at(correct_N: Bools, ns: Sequence[int]) -> Floats:
    """The oracle: the chance that at least one of n drawn solutions is right. Exact."""
    return np.array([1.0 - chance_of_none(len(correct_N), n)[int(correct_N.sum())] for n in ns])


def best_of(correct_N: Bools | Floats, scores_N: Floats, ns: Sequence[int]) -> Floats:
    """The chance that the best-scored of n drawn solutions is right; tied ones share it. Exact.

    Of any other value of solutions in the place of `correct_N`, this is the expectation.
    """
    order = np.argsort(-scores_N, kind="stable")
    ranked_scores, ranked_correct = scores_N[order], correct_N[order].astype(np.float64)
    starts = np.flatnonzero(np.concatenate([[True], ranked_scores[1:] != ranked_scores[:-1]]))
    ends = np.append(starts[1:], len(order))
    shares = np.add.reduceat(ranked_correct, starts) / (ends - starts)
    values = []
    for n in ns:
        none_above = chance_of_none(len(order), n)  # that no solution ranked before a place was drawn
        values.append(float(((none_above[starts] - none_above[ends]) * shares).sum()))
    return np.array(values)


def draw_orders(num_solutions: int, num_draws: int, seed: Sequence[int]) -> Ints:
    """(D, N) random orders of the solutions; the first n of a row are one draw of n."""
    orders_DN = np.tile(np.arange(num_solutions), (num_draws, 1))
    return np.random.default_rng(seed).permuted(orders_DN, axis=1)


def voted(groups_N: Ints, correct_N: Bools, weights_N: Floats, ns: Sequence[int], orders_DN: Ints) -> Floats:
    """The share of draws in which `vote` on the first n of each order gives a right answer.

    `groups_N` numbers equal answers alike, from 0 up; −1 casts no vote.
    """
    if not correct_N[groups_N >= 0].any():
        return np.zeros(len(ns))
    num_draws, num_groups = len(orders_DN), int(groups_N.max()) + 1
    rows = np.arange(num_draws)
    # One more column takes what those without an answer add; it is never looked at.
    total_DG = np.zeros((num_draws, num_groups + 1))
    first_DG = np.full((num_draws, num_groups + 1), len(groups_N))
    best_DG = np.full((num_draws, num_groups + 1), -np.inf)
    right_DG = np.zeros((num_draws, num_groups + 1), dtype=bool)
    shares = {}
    for place in range(max(ns)):
        drawn = orders_DN[:, place]
        group, weight = groups_N[drawn], weights_N[drawn]
        total_DG[rows, group] += weight
        first_DG[rows, group] = np.minimum(first_DG[rows, group], place)
        is_best = weight > best_DG[rows, group]
        best_DG[rows[is_best], group[is_best]] = weight[is_best]
        right_DG[rows[is_best], group[is_best]] = correct_N[drawn[is_best]]
        if place + 1 in ns:
            winner = _winner(total_DG[:, :num_groups], first_DG[:, :num_groups], len(groups_N))
            shares[place + 1] = float(right_DG[rows, winner].mean())
    return np.array([shares[n] for n in ns])


def _winner(total_DG: Floats, first_DG: Ints, absent: int) -> Ints:
    """Per draw the group with the most weight, of equals the one seen first.

    Where no group was drawn this is group 0, of which nothing is known to be right.
    """
    total_DG = np.where(first_DG < absent, total_DG, -np.inf)
    most_D1 = total_DG.max(axis=1, keepdims=True)
    is_top_DG = total_DG >= np.where(most_D1 > 0, most_D1 * (1 - TIE), most_D1)
    return np.asarray(np.where(is_top_DG, first_DG, absent + 1).argmin(axis=1))
