"""The lookahead audit: which later steps may be legitimate already at the earlier point.

Two marks. A near-duplicate of the current step (nearly the same words and signs, the same quantities) says the same
thing, so it is right there too. A step that uses no quantity introduced in between (by the current step or any up to
the candidate) may follow from what is known already. Quantities are numbers and one-letter names.
Texts equal but for white space and case never become negatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from typing import Literal

import numpy as np
import numpy.typing as npt

Mark = Literal["near_duplicate", "no_new_quantity"]

NEAR_DUPLICATE = 0.8
"""Share of common tokens (Jaccard) from which two steps with the same quantities say the same."""

_TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[-+*/=<>^!%|−×÷·≤≥≠≈±√∞]|[^\W\d_a-z]+")
"""Words, numbers, and the signs that change what a formula says; in lower case, the most frequent first."""
_BLOCK = 1 << 20
"""How many words of 64 tokens are compared at once: memory stays small for long solutions too."""
_WORDS = frozenset("ai")
"""One-letter words that are hardly ever quantities."""


def tokens(text: str) -> frozenset[str]:
    """The distinct numbers, words and signs of a text, in lower case."""
    return frozenset(_TOKEN.findall(text.lower()))


@lru_cache(maxsize=1 << 16)
def is_quantity(token: str) -> bool:
    """Whether a token names a quantity: a number, or one letter that is no word."""
    return token[0].isdecimal() or (len(token) == 1 and token.isalpha() and token not in _WORDS)


def quantities(found: Iterable[str]) -> set[str]:
    """Those of the tokens that name quantities."""
    return {token for token in found if is_quantity(token)}


def normalise_step(text: str) -> str:
    """The text without differences of white space and case."""
    return " ".join(text.lower().split())


def mark(problem: str, steps: Sequence[str], current: int, candidate: int) -> Mark | None:
    """Why `candidate`, a later step of the solution, may be legitimate in the place of `current`; None if it is not."""
    here, there = tokens(steps[current]), tokens(steps[candidate])
    if len(here & there) >= NEAR_DUPLICATE * len(here | there) and quantities(here) == quantities(there):
        return "near_duplicate"
    known = quantities(token for text in [problem, *steps[:current]] for token in tokens(text))
    between = quantities(token for text in steps[current:candidate] for token in tokens(text))
    return None if quantities(there) & (between - known) else "no_new_quantity"


@dataclass(frozen=True, slots=True)
class TrunkAudit:
    """The same for all steps of a solution at once: `mark` is a look-up here."""

    similar: npt.NDArray[np.bool_]
    """For every two steps whether they are near-duplicates."""
    needs: npt.NDArray[np.int64]
    """For every step the latest earlier step that introduced a quantity it uses; -1 where there is none.

    So a candidate uses something introduced in between iff its latest need is at or after the current step.
    """

    @classmethod
    def of(cls, problem: str, steps: Sequence[str]) -> TrunkAudit:
        """One matrix of which text has which token gives both: row 0 is the problem, the steps follow."""
        found = [_TOKEN.findall(text.lower()) for text in (problem, *steps)]
        numbers = dict(zip(dict.fromkeys(chain.from_iterable(found)), count(), strict=False))
        columns = list(map(numbers.__getitem__, chain.from_iterable(found)))
        has = np.zeros((len(found), -len(numbers) // 64 * -64), dtype=bool)
        has[np.repeat(np.arange(len(found)), [len(row) for row in found]), columns] = True
        quantity = has[:, [i for token, i in numbers.items() if is_quantity(token)]]
        first = quantity.argmax(axis=0) if quantity.size else np.zeros(0, dtype=np.int64)
        rows = np.arange(len(found))[:, None]
        latest = np.where(quantity & (first < rows), first, 0).max(axis=1, initial=0)
        codes: dict[bytes, int] = {}
        used = np.array([codes.setdefault(row.tobytes(), len(codes)) for row in quantity[1:]], dtype=np.int64)
        return cls(_similar(has[1:]) & (used[:, None] == used), latest[1:] - 1)


def _similar(has_LV: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """For every two of L steps whether they share nearly all of their tokens, of V in all (V a multiple of 64).

    Sets as bits, not a matrix product: products this small lose more to the threads of BLAS than they take.
    """
    bits_LW = np.packbits(has_LV, axis=1).view(np.uint64)
    rows = max(1, _BLOCK // max(1, bits_LW.size))
    blocks = [
        np.bitwise_count(bits_LW[i : i + rows, None] & bits_LW[None]).sum(axis=-1, dtype=np.int64)
        for i in range(0, len(bits_LW), rows)
    ]
    common_LL = np.concatenate([np.zeros((0, len(bits_LW)), dtype=np.int64), *blocks])
    sizes_L = common_LL.diagonal()
    similar: npt.NDArray[np.bool_] = common_LL >= NEAR_DUPLICATE * (sizes_L[:, None] + sizes_L - common_LL)
    return similar
