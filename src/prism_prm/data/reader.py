"""Sources → trees, as a stream: find the format, decode, draft, and count everything that is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.data.draft import Draft
from prism_prm.data.formats import TREE_TABLE_KEYS, Format, added_formats, detect, find_format
from prism_prm.data.inputs import InputRow, Source, as_places, find_sources, rows
from prism_prm.data.read_options import ReadOptions
from prism_prm.errors import DataError, shown
from prism_prm.records import StepTree

SHOWN_BAD_RECORDS = 10


@dataclass(slots=True)
class ReadReport:
    """What was read and what was not."""

    bytes: int = 0
    """The number of bytes of the files read so far."""
    records: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    """Records by format."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records left out as the options say, by reason."""
    bad: Counter[str] = field(default_factory=Counter)
    """Bad records that were skipped, by reason."""
    first_bad: list[str] = field(default_factory=list)
    """Messages of the first bad records."""


class Reader:
    """One pass over some sources; iterate over `drafts`, then look at `report`.

    `unlabelled` also reads steps without labels: enough for scoring, not for training.
    """

    def __init__(
        self,
        inputs: Iterable[str | Path],
        *,
        format: str = "auto",
        options: ReadOptions | None = None,
        unlabelled: bool = False,
    ) -> None:
        self.format = format
        self._wanted = None if format == "auto" else find_format(format)
        self._added = cache(added_formats)
        self.unlabelled = unlabelled
        self.options = options or ReadOptions()
        self.sources = find_sources(inputs)
        self.report = ReadReport()
        self._seen: set[str] = set()

    def drafts(self) -> Iterator[tuple[Source, Draft]]:
        """Every tree that can be read, with its source."""
        for source in self.sources:
            try:
                for draft in self._of_source(source):
                    yield source, draft
            except DataError as error:
                self._bad(error)

    def _of_source(self, source: Source) -> Iterator[Draft]:
        found: Format | None = None
        for row in rows(source, self._advance):
            try:
                if found is None:
                    found = self._detect(row)
                yield from self._of_row(row, found)
            except DataError as error:
                self._bad(DataError(f"{row.where}: {error}", reason=error.reason))

    def _advance(self, size: int, _more: str = "", /) -> None:
        self.report.bytes += size

    def _detect(self, row: InputRow) -> Format:
        record = decode(row, dict[str, Any])
        if record.keys() >= TREE_TABLE_KEYS:
            from prism_prm.data.forest import TREE_TABLE_FORMAT

            return TREE_TABLE_FORMAT
        return detect(
            record,
            wanted=self._wanted,
            added=self._added,
            with_solutions=self.options.split_steps,
            with_unlabelled=self.unlabelled,
        )

    def _of_row(self, row: InputRow, format: Format) -> Iterator[Draft]:
        record = decode(row, format.record)
        reason = format.drop_reason(record, self.options)
        drafts = [] if reason else format.read(record, self.options)
        self.report.records += 1
        self.report.formats[format.name] += 1
        if reason:
            self.report.dropped[reason] += 1
        for draft in drafts:
            if format.unique_names and draft.name in self._seen:
                self.report.dropped["duplicate-name"] += 1
                continue
            if format.unique_names:
                self._seen.add(draft.name)
            draft.where = row.where
            yield draft

    def _bad(self, error: DataError) -> None:
        """Count what cannot be read, or stop at it."""
        if self.options.on_bad_record == "fail":
            raise error
        self.report.bad[error.reason] += 1
        if len(self.report.first_bad) < SHOWN_BAD_RECORDS:
            self.report.first_bad.append(str(error))


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(row: InputRow, type_: Any) -> Any:
    """The row as that type; errors use the names in the user's file."""
    try:
        if isinstance(row.data, dict):
            return msgspec.convert(row.data, type_)
        if type_ not in _DECODERS:
            _DECODERS[type_] = msgspec.json.Decoder(type_)
        return _DECODERS[type_].decode(row.data)
    except msgspec.ValidationError as error:
        reason = "missing-field" if "missing required field" in str(error) else "wrong-type"
        said = f"{error}{_found(row, str(error))}; correct the record, or is it in another format?"
        raise DataError(said, reason=reason) from error
    except RecursionError:
        raise DataError("nested too deeply to be read; is this a data file?", reason="too-deep") from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error}); convert the file to UTF-8", reason="not-utf8") from error
    except msgspec.DecodeError as error:
        if row.is_last_line:
            raise DataError(
                f"the last line is cut short ({error}); was the file downloaded or copied completely?",
                reason="truncated",
            ) from error
        start = bytes(row.data[:60]).decode("utf-8", "replace").strip() if isinstance(row.data, bytes) else ""
        raise DataError(
            f"not JSON ({error}): found {start!r}; each line must be one record", reason="not-json"
        ) from error


def _found(row: InputRow, message: str) -> str:
    """The value that a message of msgspec's is about: it names the place alone."""
    at = re.search(r" - at `\$(.*)`$", message)
    if at is None or "missing required field" in message:
        return ""
    try:
        value: Any = row.data if isinstance(row.data, dict) else msgspec.json.decode(row.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # more is wrong with it than the message says
        return ""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", at[1]):
        if not isinstance(value, list if index else dict) or (key and key not in value):
            return ""  # a key of any name, which msgspec shows as […]
        value = value[int(index)] if index else value[key]
    return "" if "[...]" in at[1] else f", found {shown(value)}"


def read_trees(
    path: str | Path | Iterable[str | Path], format: str = "auto", *, options: ReadOptions | None = None
) -> Iterator[StepTree]:
    """A stream of the trees of labelled solutions, numbered in the order of reading.

    Args:
        path: a file, folder or hub dataset, or several.
        format: prm800k, math-shepherd, stepwise, process-labels, prmbench, or auto, which looks at the records.
        options: how ratings are read, and what is left out.

    Example:
        >>> tree = next(read_trees("labelled.jsonl"))
        >>> [(step.text, step.label) for step in tree.nodes]
        [('1 + 1 = 2', 1.0), ('2 + 1 = 3', 1.0), ('3 + 1 = 5', 0.0)]
    """
    reader = Reader(as_places(path), format=format, options=options)
    return (draft.tree(tree_id) for tree_id, (_, draft) in enumerate(reader.drafts()))
