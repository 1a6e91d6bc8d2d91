"""The trees that `prism score` scores, read from files as they are needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from prism_prm.data import Reader, ReadOptions, ReadReport
from prism_prm.data.inputs import TREE_TABLE, find_sources, total_size
from prism_prm.errors import ConfigError
from prism_prm.pools import holds_pool, iter_pool, trees_of
from prism_prm.records import StepTree
from prism_prm.tables import iter_trees


class TreesToScore:
    """The trees of some inputs, read anew whenever they are iterated. A table of ours keeps its ids."""

    def __init__(self, inputs: Sequence[str | Path], format: str = "auto", options: ReadOptions | None = None) -> None:
        self.inputs = inputs
        self.format = format
        self.options = options or ReadOptions()
        self._report: ReadReport | None = None
        self._bytes = self._told = self._done = 0

    def __iter__(self) -> Iterator[StepTree]:
        self._bytes = 0
        found = False
        for tree in self._read():
            found = True
            yield tree
        if not found:
            raise ConfigError(f"{', '.join(map(str, self.inputs))}: there is nothing to score")

    @property
    def left_out(self) -> Counter[str]:
        """Records that were not read so far, by reason."""
        return self._report.dropped + self._report.bad if self._report else Counter()

    def check(self) -> None:
        """Refuse inputs without a tree, and those whose first one cannot be read, before a model is loaded."""
        next(iter(self))

    def size(self) -> int | None:
        """Bytes to read, where that is known."""
        return total_size(find_sources(self.inputs))

    def newly_read(self, done: int) -> int:
        """Bytes that were read since this was asked before; `done` more trees are finished."""
        self._done += done
        new, self._told = self._bytes - self._told, self._bytes
        return new

    def described(self, rates: str) -> str:
        """How many trees are finished, and how fast."""
        return f"{self._done:,} trees" + (f", {rates}" if rates else "")

    def _read(self) -> Iterator[StepTree]:
        if len(self.inputs) == 1 and _is_tree_table(path := Path(self.inputs[0])):
            yield from iter_trees(path, advance=self._advance)
        elif self.format == "pool" or (self.format == "auto" and holds_pool(self.inputs)):
            yield from trees_of(iter_pool(self.inputs, self._advance))
        else:
            reader = Reader(self.inputs, format=self.format, options=self.options, unlabelled=True)
            self._report = reader.report
            for number, (_, draft) in enumerate(reader.drafts()):
                self._bytes = reader.report.bytes
                yield draft.tree(number)
            self._bytes = reader.report.bytes

    def _advance(self, size: int, _more: str = "", /) -> None:
        self._bytes += size


def _is_tree_table(path: Path) -> bool:
    return path.name == TREE_TABLE or (path / TREE_TABLE).is_file()
