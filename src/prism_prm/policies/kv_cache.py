"""Key/values of texts, kept as a tree: each piece holds its own tokens and points to what it continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from torch import Tensor


@dataclass(eq=False, slots=True, weakref_slot=True)
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

    def lineage(self) -> Iterator[Kept]:
        """This piece and those that it continues."""
        node: Kept | None = self
        while node is not None:
            yield node
            node = node.base


class Holdings:
    """How many tokens have key/values that somebody still points to."""

    def __init__(self) -> None:
        self._pieces: WeakSet[Kept] = WeakSet()

    def add(self, kept: Kept) -> None:
        """Count a piece and what it continues, until it is freed."""
        for piece in kept.lineage():
            if piece in self._pieces:
                return
            self._pieces.add(piece)

    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return sum(piece.keys_values.shape[-2] for piece in self._pieces)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items two sequences share at their start."""
    size = min(len(a), len(b))
    if tuple(a[:size]) == tuple(b[:size]):
        return size
    return next(i for i in range(size) if a[i] != b[i])
