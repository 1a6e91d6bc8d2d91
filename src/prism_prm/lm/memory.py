"""When memory runs out, run a batch in halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from prism_prm.errors import ModelError, is_out_of_memory

T = TypeVar("T")
R = TypeVar("R")


def halving(
    items: Sequence[T], run: Callable[[Sequence[T]], R], name: Callable[[T], str]
) -> Iterator[tuple[Sequence[T], R]]:
    """(items, result) of the whole batch, or of its halves if memory does not suffice, down to single items."""
    result = None
    try:
        result = run(items)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise ModelError(
                f"out of memory with {name(items[0])} alone: lower the token budget, or use a smaller dtype or "
                "another device"
            ) from error
    if result is not None:
        yield items, result
        return
    # Only here, outside the handler, are the failed batch's tensors let go; then cached blocks can be given back.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = (len(items) + 1) // 2
    yield from halving(items[:half], run, name)
    yield from halving(items[half:], run, name)
