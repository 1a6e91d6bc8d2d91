"""Read trees from sources as a stream: detect the format, decode, and count everything that is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from prism_prm.data.formats import Draft, Format, ReadOptions, added_formats, detect, find_format
from prism_prm.data.inputs import Source, as_places, decode, find_sources, rows
from prism_prm.errors import DataError
from prism_prm.tree import StepTree

SHOWN_BAD_RECORDS = 10


@dataclass(slots=True)
class ReadReport:
    """Counts of what was read and what was left out."""

    bytes: int = 0
    """The number of bytes read so far."""
    records: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    """Records by format."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records that the options leave out, by reason."""
    bad: Counter[str] = field(default_factory=Counter)
    """Bad records that were skipped, by reason."""
    first_bad: list[str] = field(default_factory=list)
    """Messages of the first bad records."""


class Reader:
    """One pass over some sources: iterate over `drafts`, then look at `report`.

    With `unlabeled` it also reads steps without labels, for scoring.
    """

    def __init__(
        self,
        inputs: Iterable[str | Path],
        *,
        format: str = "auto",
        options: ReadOptions | None = None,
        unlabeled: bool = False,
    ) -> None:
        self.format = format
        self._wanted = None if format == "auto" else find_format(format)
        self.unlabeled = unlabeled
        self.options = options or ReadOptions()
        self.sources = find_sources(inputs)
        self.report = ReadReport()

    def drafts(self) -> Iterator[tuple[Source, Draft]]:
        """Yield every tree that can be read, with its source."""
        report, options = self.report, self.options
        seen: set[str] = set()
        added = cache(added_formats)

        def count_bytes(size: int, _more: str = "", /) -> None:
            report.bytes += size

        for source in self.sources:
            format: Format | None = None
            try:
                for row in rows(source, count_bytes):
                    try:
                        format = format or detect(
                            decode(row, dict[str, Any]), wanted=self._wanted, added=added,
                            with_solutions=options.split_steps, with_unlabeled=self.unlabeled,
                        )  # fmt: skip
                        record = decode(row, format.record)
                        reason = format.drop_reason(record, options)
                        drafts = [] if reason else format.read(record, options)
                    except DataError as error:
                        self._count_bad(DataError(f"{row.where}: {error}", reason=error.reason))
                        continue
                    report.records += 1
                    report.formats[format.name] += 1
                    if reason:
                        report.dropped[reason] += 1
                    for draft in drafts:
                        if format.unique_names:
                            if draft.name in seen:
                                report.dropped["duplicate-name"] += 1
                                continue
                            seen.add(draft.name)
                        draft.where = row.where
                        yield source, draft
            except DataError as error:
                self._count_bad(error)

    def _count_bad(self, error: DataError) -> None:
        """Count a record that cannot be read, or raise its error."""
        if self.options.on_bad_record == "fail":
            raise error
        self.report.bad[error.reason] += 1
        if len(self.report.first_bad) < SHOWN_BAD_RECORDS:
            self.report.first_bad.append(str(error))


def read_trees(
    path: str | Path | Iterable[str | Path], format: str = "auto", *, options: ReadOptions | None = None
) -> Iterator[StepTree]:
    """Stream the trees of labeled solutions, numbered in the order of reading.

    Args:
        path: a file, folder or hub dataset, or several.
        format: prm800k, math-shepherd, stepwise, process-labels, bug-fixes, prmbench, or auto to detect it.
        options: how to read ratings, and what to leave out.

    Example:
        >>> tree = next(read_trees("labeled.jsonl"))
        >>> [(step.text, step.label) for step in tree.nodes]
        [('1 + 1 = 2', 1.0), ('2 + 1 = 3', 1.0), ('3 + 1 = 5', 0.0)]
    """
    reader = Reader(as_places(path), format=format, options=options)
    return (draft.tree(tree_id) for tree_id, (_, draft) in enumerate(reader.drafts()))
