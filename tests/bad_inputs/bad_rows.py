"""What a bad input is: a valid command, with one thing changed, and the words that the message must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Change = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """Leave the files alone."""


@dataclass(frozen=True)
class Row:
    """One bad input."""

    name: str
    command: tuple[str, ...]
    """As a user types it, in the folder of valid inputs."""
    words: tuple[str, ...]
    """What the message must say: where, and what was found there."""
    change: Change = nothing
    """Makes one file bad, in a copy of that folder."""
