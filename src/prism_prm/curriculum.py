"""The margin curriculum: which pairs are trained in which round, from easy to hard.

The margin of a pair is r⁺ − r⁻, scored by the PRM before training; it lies in [−1, 1]. A large margin is easy, a small
one hard. A pair with a negative margin contradicts the PRM and is dropped, unless a bin reaches down to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prism_prm.config import check
from prism_prm.errors import ConfigError, DataError

PAPER_BINS = ((0.5, 1.0), (0.3, 0.5), (0.2, 0.3), (0.1, 0.2))


@dataclass(frozen=True)
class Curriculum:
    """Section [curriculum]: bins of the margin, trained one after the other."""

    mode: Literal["bins", "none"] = "bins"
    """`bins`: one round per bin, from easy to hard. `none`: one round with the pairs of all bins, shuffled."""
    bins: tuple[tuple[float, float], ...] = PAPER_BINS
    """The bins [lo, hi) of the margin, the topmost [lo, hi], without gaps or overlaps. A bin below 0 keeps negative
    margins."""
    rescore: bool = False
    """Before each later round, score the pairs again with the PRM trained so far, and bin by the new margins."""

    def __post_init__(self) -> None:
        check(self)
        if not self.bins:
            raise ConfigError(
                "curriculum.bins is empty; the paper's are [[0.5, 1.0], [0.3, 0.5], [0.2, 0.3], [0.1, 0.2]]."
            )
        for lo, hi in self.bins:
            if not -1 <= lo < hi <= 1:
                raise ConfigError(f"curriculum.bins has [{lo}, {hi}]: expected -1 <= lo < hi <= 1.")
        for (lo, hi), (next_lo, next_hi) in zip(self.easy_to_hard, self.easy_to_hard[1:], strict=False):
            if next_hi != lo:
                kind = "hole" if next_hi < lo else "overlap"
                raise ConfigError(f"curriculum.bins has a {kind} between [{next_lo}, {next_hi}] and [{lo}, {hi}].")
        if self.rescore and self.mode == "none":
            raise ConfigError("curriculum.rescore needs several rounds, but mode = 'none' has only one.")

    @property
    def easy_to_hard(self) -> tuple[tuple[float, float], ...]:
        """The bins from the largest margins down, whatever order they were written in."""
        return tuple(sorted(self.bins, reverse=True))

    @property
    def takes_all(self) -> bool:
        """Whether every pair is trained in one round regardless of its margin, so no margins are needed."""
        return self.mode == "none" and self.easy_to_hard[0][1] == 1 and self.easy_to_hard[-1][0] == -1

    def round_names(self) -> list[str]:
        """A name per round, in order: "1_0.5_to_1", "2_0.3_to_0.5", …"""
        if self.mode == "none":
            return ["1_all"]
        return [f"{i}_{lo:g}_to_{hi:g}" for i, (lo, hi) in enumerate(self.easy_to_hard, start=1)]


@dataclass(frozen=True)
class Binned:
    """Pairs sorted into rounds by a table of margins."""

    rounds: tuple[NDArray[np.int64], ...]
    """For each round the indices of its pairs."""
    bin_sizes: dict[str, int]
    """Pairs per bin, also with mode `none`."""
    dropped: dict[str, int]
    """Pairs in no bin: `negative` margins, `below-lowest-bin` (not negative), `above-highest-bin`; and those left out
    to keep the ratio of lookahead pairs."""

    def refuse_empty(self, names: Iterable[tuple[int, str]]) -> None:
        """Raise DataError if one of these rounds (number, name) has no pairs."""
        empty = [name for number, name in names if not len(self.rounds[number])]
        if empty:
            remedy = "Merge bins in curriculum.bins, or give more data."
            if self.dropped.get("over-lookahead-ratio"):
                remedy = (
                    "lookahead_ratio allows lookahead pairs only beside annotated ones: remove it, or train on labels "
                    'with objective.name = "bce" and objective.on = "labels".'
                )
            raise DataError(f"rounds {empty} have no pairs (bins: {self.bin_sizes}; dropped: {self.dropped}). {remedy}")

    def mixed(self, kinds: NDArray[np.object_], ratio: float | None, seed: int) -> Binned:
        """Keep at most `ratio` lookahead pairs per annotated pair in each round, sampled with the seed."""
        if ratio is None:
            return self
        rounds = []
        for number, indices in enumerate(self.rounds):
            ahead = indices[kinds[indices] == "lookahead"]
            limit = int(ratio * (kinds[indices] == "annotated").sum())
            order = np.random.default_rng((seed, number)).permutation(len(ahead))
            rounds.append(np.setdiff1d(indices, ahead[order[limit:]]))
        left_out = sum(map(len, self.rounds)) - sum(map(len, rounds))
        return Binned(tuple(rounds), self.bin_sizes, {**self.dropped, "over-lookahead-ratio": left_out})


def assign(margins: NDArray[np.float64], curriculum: Curriculum) -> Binned:
    """Sort pairs into rounds by their margin; every pair is in one round, or counted as dropped."""
    if not np.isfinite(margins).all():
        bad = int(np.flatnonzero(~np.isfinite(margins))[0])
        raise DataError(f"margin {bad} is {margins[bad]}: a margin must be a number; score the pairs again.")
    bins = curriculum.easy_to_hard
    top, bottom = bins[0][1], bins[-1][0]
    members = [
        np.flatnonzero((margins >= lo) & ((margins < hi) if i else (margins <= hi))) for i, (lo, hi) in enumerate(bins)
    ]
    below = margins < bottom
    dropped = {
        "negative": int((below & (margins < 0)).sum()),
        "below-lowest-bin": int((below & (margins >= 0)).sum()),
        "above-highest-bin": int((margins > top).sum()),
    }
    assert sum(map(len, members)) + sum(dropped.values()) == len(margins), "every pair is somewhere"
    rounds = (np.sort(np.concatenate(members)),) if curriculum.mode == "none" else tuple(members)
    sizes = {f"{lo:g} to {hi:g}": len(member) for (lo, hi), member in zip(bins, members, strict=True)}
    return Binned(rounds, sizes, dropped)
