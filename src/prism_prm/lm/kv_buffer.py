"""The key/values of a batch in one piece of memory, which new tokens are written into.

transformers' own cache is copied whole for every token.

Shapes: B rows, N key/value heads, T columns of memory, D head size.
"""

from __future__ import annotations

from torch import Tensor
from transformers import Cache

SPARE = 32
"""Columns that are added at least."""


class Columns(Cache):  # type: ignore[misc]
    """A cache whose rows all have the same number of columns, `length`."""

    def __init__(self, num_layers: int, memory: Tensor | None = None, length: int = 0) -> None:
        super().__init__(layers=[])
        self.num_layers = num_layers
        self.memory = memory
        """(layers, 2, B, N, T, D); without one it is made when something is written."""
        self.length = length
        """How many columns of the memory are used."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object) -> tuple[Tensor, Tensor]:
        """Write new columns into a layer; all that it holds then. The last layer completes them."""
        rows, heads, width, size = key_states.shape
        end = self.length + width
        memory = self.memory
        if memory is None or end > memory.shape[-2]:
            # Twice as many each time, so that a column is moved twice at most on average.
            grown = key_states.new_empty((self.num_layers, 2, rows, heads, end + max(SPARE, self.length), size))
            if memory is not None:
                grown[..., : self.length, :] = memory[..., : self.length, :]
            self.memory = memory = grown
        memory[layer_idx, 0, :, :, self.length : end] = key_states
        memory[layer_idx, 1, :, :, self.length : end] = value_states
        if layer_idx == self.num_layers - 1:
            self.length = end
        return memory[layer_idx, 0, :, :, :end], memory[layer_idx, 1, :, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Columns that are complete."""
        return self.length

    @property
    def num_rows(self) -> int:
        """B."""
        assert self.memory is not None, "something was written"
        return self.memory.shape[2]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values (B, N, length, D) of a layer."""
        assert self.memory is not None, "something was written"
        return self.memory[index, 0, :, :, : self.length], self.memory[index, 1, :, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep some rows only."""
        if self.memory is not None:
            self.memory = self.memory.index_select(2, rows)

    def copy(self, row: int, start: int, end: int) -> Tensor:
        """(layers, 2, N, columns, D) of one row, as memory of its own."""
        assert self.memory is not None, "something was written"
        return self.memory[:, :, row, :, start:end].clone()
