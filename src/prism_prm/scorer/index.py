"""Rows by key, nearly all of them in temporary files: what is known of millions of steps takes memory for few of them.

The newest rows are in memory, sorted by key. When they are many they become a sorted run in a file, and runs of about
the same size are merged, so that there are few to look into. Runs are mapped, and their pages are given back
often: they stay in the system's page cache and not in this process.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np

from prism_prm.errors import PrismError

KEY_BYTES = 16
KEYS = np.dtype(f"S{KEY_BYTES}")
IN_MEMORY = 2**16
"""Rows that are kept in memory."""
_LOOKED_UP = 2**11
"""Keys after whose search the pages of the files are given back."""


class KeyIndex:
    """Rows of one type by keys of 16 bytes, which are hashes; of equal keys the first stays."""

    def __init__(self, row: np.dtype, *, in_memory: int = IN_MEMORY) -> None:
        self.in_memory = in_memory
        self._new = _Run(np.empty(0, KEYS), np.empty(0, row))
        self._runs: list[_Run] = []
        """Each at least twice as long as the next."""
        self._looked_up = 0

    def __len__(self) -> int:
        return sum(len(run.keys_N) for run in [self._new, *self._runs])

    def add(self, keys_N: np.ndarray, rows_N: np.ndarray) -> None:
        """Put rows under their keys, where there are none yet."""
        keys_N, first_N = np.unique(keys_N, return_index=True)
        missing_N = ~self.find(keys_N)[0]
        self.add_new(keys_N[missing_N], rows_N[first_N][missing_N])

    def add_new(self, keys_N: np.ndarray, rows_N: np.ndarray) -> None:
        """Put rows under different keys, none of which is there."""
        order_N = np.argsort(keys_N)
        self._new = _merged(self._new, _Run(keys_N[order_N], rows_N[order_N]))
        if len(self._new.keys_N) > self.in_memory:
            self._runs.append(_in_file([self._new]))
            self._new = _Run(self._new.keys_N[:0], self._new.rows_N[:0])
            while len(self._runs) > 1 and len(self._runs[-2].keys_N) < 2 * len(self._runs[-1].keys_N):
                self._runs[-2:] = [_in_file(self._runs[-2:])]

    def find(self, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the keys are there, and their rows; the rows of the others mean nothing."""
        is_there_N, rows_N = np.zeros(len(keys_N), bool), np.zeros(len(keys_N), self._new.rows_N.dtype)
        for run in [self._new, *reversed(self._runs)]:
            left_N = np.flatnonzero(~is_there_N)
            if not len(left_N):
                break
            if len(run.keys_N):
                at_N = np.minimum(np.searchsorted(run.keys_N, keys_N[left_N]), len(run.keys_N) - 1)
                here_N = run.keys_N[at_N] == keys_N[left_N]
                rows_N[left_N[here_N]] = run.rows_N[at_N[here_N]]
                is_there_N[left_N[here_N]] = True
        self._looked_up += len(keys_N)
        if self._looked_up > _LOOKED_UP:
            self._looked_up = 0
            for run in self._runs:
                run.give_back()
        return is_there_N, rows_N


class _Run:
    """Rows sorted by key."""

    def __init__(self, keys_N: np.ndarray, rows_N: np.ndarray, mapped: mmap.mmap | None = None) -> None:
        self.keys_N = keys_N
        self.rows_N = rows_N
        self.mapped = mapped

    def give_back(self) -> None:
        """Let go of the pages that were read."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):  # Windows has none
            self.mapped.madvise(mmap.MADV_DONTNEED)

    def part(self, first: int) -> _Run:
        """The rows whose keys begin with this byte."""
        start = int(np.searchsorted(self.keys_N, np.array(bytes([first]), KEYS)))
        end = int(np.searchsorted(self.keys_N, np.array(bytes([first + 1]), KEYS))) if first < 255 else None
        return _Run(self.keys_N[start:end], self.rows_N[start:end])


def _merged(one: _Run, other: _Run) -> _Run:
    at_N = np.searchsorted(one.keys_N, other.keys_N)
    return _Run(np.insert(one.keys_N, at_N, other.keys_N), np.insert(one.rows_N, at_N, other.rows_N))


def _in_file(runs: Sequence[_Run]) -> _Run:
    """Runs as one, in a temporary file."""
    try:
        return _written(runs)
    except OSError as error:  # without a name, it would be taken for one of the output
        raise PrismError(
            f"{tempfile.gettempdir()}: temporary files of scores cannot be written ({error.strerror}). To resume, make "
            "room there or set TMPDIR to another disk, and rerun the same command."
        ) from error


def _written(runs: Sequence[_Run]) -> _Run:
    """The same, part by part so that little of it is in memory."""
    size, row = sum(len(run.keys_N) for run in runs), runs[0].rows_N.dtype
    rows_from = size * KEY_BYTES
    with tempfile.TemporaryFile(prefix="prism-") as file:
        at = 0
        for part in _parts(runs):
            file.seek(at * KEY_BYTES)
            file.write(part.keys_N.tobytes())
            file.seek(rows_from + at * row.itemsize)
            file.write(part.rows_N.tobytes())
            at += len(part.keys_N)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    keys_N = np.frombuffer(mapped, KEYS, size)
    return _Run(keys_N, np.frombuffer(mapped, row, size, rows_from), mapped)


def _parts(runs: Sequence[_Run]) -> Iterator[_Run]:
    for first in range(256):
        part, *others = (run.part(first) for run in runs)
        for other in others:
            part = _merged(part, other)
        yield part
        for run in runs:
            run.give_back()
