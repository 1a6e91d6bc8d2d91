"""Commands whose work several processes share under `accelerate launch`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prism_prm.scorer.table import Share


@contextlib.contextmanager
def share_of_work(device: str | None) -> Iterator[tuple[Share, str | None]]:
    """This process's share of the work, and its device."""
    from prism_prm.scorer.table import Share

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Share(), device
        return
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu")
    try:
        yield Share(state.process_index, state.num_processes, state.wait_for_everyone), device or str(state.device)
    finally:
        state.destroy_process_group()
