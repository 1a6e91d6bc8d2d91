"""Rows → batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism_prm.packing.rows import Row


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """What a PRM's `forward` takes."""

    input_ids_BL: Tensor
    position_ids_BL: Tensor
    end_BL: Tensor
    read_row_R: Tensor
    read_col_R: Tensor
    owners: tuple[tuple[int, int], ...]
    """For each read (index of the tree in what was packed, node)."""
    hidden_BLH: Tensor | None = None
    """The frozen layers' activations, if cached; the model then continues from there."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """The same batch on a device."""
        names = ("input_ids_BL", "position_ids_BL", "end_BL", "read_row_R", "read_col_R", "hidden_BLH")
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking)
            for name in names
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **moved)


def merge_rows(rows: Sequence[Row], row_tokens: int) -> list[Row]:
    """Several tree parts per row, longest first where they fit: for block masks, which skip what is not seen."""
    shelves: list[list[Row]] = []
    space: list[int] = []
    for row in sorted(rows, key=len, reverse=True):
        at = next((i for i, free in enumerate(space) if len(row) <= free), len(shelves))
        if at == len(shelves):
            shelves.append([])
            space.append(max(row_tokens, len(row)))
        shelves[at].append(row)
        space[at] -= len(row)
    return [_joined(shelf) for shelf in shelves]


def _joined(rows: Sequence[Row]) -> Row:
    offsets = [0, *np.cumsum([len(row) for row in rows]).tolist()]
    return Row(
        np.concatenate([row.ids_L for row in rows]),
        np.concatenate([row.positions_L for row in rows]),
        np.concatenate([row.ends_L + offset for row, offset in zip(rows, offsets[:-1], strict=True)]),
        tuple(col + offset for row, offset in zip(rows, offsets[:-1], strict=True) for col in row.reads),
        tuple(owner for row in rows for owner in row.owners),
        tuple(start + offset for row, offset in zip(rows, offsets[:-1], strict=True) for start in row.starts),
    )


def batch_rows(rows: Sequence[Row], token_budget: int) -> list[list[Row]]:
    """Rows of similar length together, as many as `token_budget` tokens allow with padding; longest first.

    A batch that is already worth its launch takes no row that would be a fifth padding.
    """
    batches: list[list[Row]] = []
    for row in sorted(rows, key=len, reverse=True):
        longest, size = (len(batches[-1][0]), len(batches[-1])) if batches else (0, 0)
        is_like = len(row) >= 0.8 * longest or longest * size < token_budget / 4
        if batches and is_like and (size + 1) * longest <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def collate(rows: Sequence[Row], *, pad_id: int = 0, multiple: int = 1) -> PackedBatch:
    """The rows as tensors, padded on the right to a multiple; a padding token sees and is seen by itself alone."""
    length = -(-max(len(row) for row in rows) // multiple) * multiple
    ids_BL = np.full((len(rows), length), pad_id, np.int64)
    positions_BL = np.zeros((len(rows), length), np.int64)
    ends_BL = np.tile(np.arange(1, length + 1), (len(rows), 1))
    for i, row in enumerate(rows):
        ids_BL[i, : len(row)] = row.ids_L
        positions_BL[i, : len(row)] = row.positions_L
        ends_BL[i, : len(row)] = row.ends_L
    return PackedBatch(
        torch.from_numpy(ids_BL),
        torch.from_numpy(positions_BL),
        torch.from_numpy(ends_BL),
        torch.tensor([i for i, row in enumerate(rows) for _ in row.reads], dtype=torch.int64),
        torch.tensor([col for row in rows for col in row.reads], dtype=torch.int64),
        tuple(owner for row in rows for owner in row.owners),
    )


def read_index(batch: PackedBatch) -> Mapping[tuple[int, int], int]:
    """(tree, node) → the read that shows it, for picking the two nodes of a pair."""
    return {owner: i for i, owner in enumerate(batch.owners)}
