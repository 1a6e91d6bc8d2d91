"""Key/values of texts, kept as a tree: each piece holds its own tokens and points to what it continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(eq=False, slots=True)
class Kept:
    """The key/values of a token sequence. Pieces are freed when nothing points to them any more."""

    ids: tuple[int, ...]
    """All tokens from the start."""
    base: Kept | None
    shared: int
    """How many tokens of `base` come first."""
    keys_values: Tensor = field(repr=False)
    """(layers, 2, heads, tokens after the shared ones, head size)."""

    def pieces(self, length: int) -> list[Tensor]:
        """The key/values of the first `length` tokens, in order."""
        found: list[Tensor] = []
        node: Kept | None = self
        while node is not None and length > 0:
            if length > node.shared:
                found.append(node.keys_values[..., : length - node.shared, :])
                length = node.shared
            node = node.base
        return found[::-1]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items two sequences share at their start."""
    size = min(len(a), len(b))
    if tuple(a[:size]) == tuple(b[:size]):
        return size
    return next(i for i in range(size) if a[i] != b[i])
