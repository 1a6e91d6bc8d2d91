"""Read input rows from .jsonl and .json files (also .gz), .parquet files, folders, and hub datasets.

File names only decide which files are data; the first bytes of a file decide how to read it. Rows are not decoded yet:
JSON stays bytes until the format is known, so that `decode` decodes it once, into its own type.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError, DataError, shown
from prism_prm.file_types import BOM, HEAD, check_kind, reading_parquet
from prism_prm.paths import is_hub_id, is_offline, nearest, no_connection

SourceKind = Literal["jsonl", "json", "parquet", "hub"]
SUFFIXES: dict[str, SourceKind] = {
    ".jsonl": "jsonl", ".json": "json", ".jsonl.gz": "jsonl", ".json.gz": "json", ".parquet": "parquet",
}  # fmt: skip
TREE_TABLE = "trees.parquet"
"""A folder with this file was written by `prism pairs`; its other files are not input."""
T = TypeVar("T")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+){0,2}")


@dataclass(frozen=True, slots=True)
class Source:
    """A file or hub dataset to read."""

    name: str
    """The file's path or the dataset's id, as the user wrote it."""
    kind: SourceKind

    def size(self) -> int | None:
        """Return the size in bytes; None if it is not known before reading."""
        return None if self.kind == "hub" else Path(self.name).stat().st_size

    def sha256(self) -> str | None:
        """Return the hash of the file, as `sha256sum` prints it; None for a hub dataset."""
        if self.kind == "hub":
            return None
        with Path(self.name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class InputRow:
    """One record, not decoded: JSON bytes, or an object from a table."""

    where: str
    """For messages: `file:line`."""
    data: bytes | dict[str, Any]
    is_last_line: bool = False
    """Whether the line has no line break, so that it may be truncated."""


def kind_of(path: Path) -> SourceKind | None:
    """Return the kind of a file by its name."""
    return next((kind for suffix, kind in SUFFIXES.items() if path.name.endswith(suffix)), None)


def as_places(places: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """Return one place or several as a list; a string is one place."""
    return [places] if isinstance(places, str | Path) else list(places)


def total_size(sources: Iterable[Source]) -> int | None:
    """Return the size of all sources in bytes; None if one is not known before reading."""
    sizes = [source.size() for source in sources]
    return None if None in sizes else sum(filter(None, sizes))


def find_sources(inputs: str | Path | Iterable[str | Path]) -> list[Source]:
    """Return the files and datasets that the user names, in their order; a folder's files are sorted by name."""
    sources: list[Source] = []
    for place in as_places(inputs):
        path = Path(place)
        try:
            is_folder, is_file = path.is_dir(), path.is_file()
        except OSError as error:  # for example, a name that is too long
            message = f"{place}: cannot be the name of a file ({error.strerror})"
            raise DataError(message, reason="no-such-file") from None
        if is_folder:
            names = [path / TREE_TABLE] if (path / TREE_TABLE).is_file() else sorted(path.iterdir())
            kinds = [(file, kind_of(file)) for file in names if file.is_file()]
            data_files = [Source(str(file), kind) for file, kind in kinds if kind is not None]
            if not data_files:
                raise DataError(
                    f"{path}: nothing to read; no file ends in {', '.join(SUFFIXES)}", reason="empty-folder"
                )
            sources += data_files
        elif is_file:
            kind = kind_of(path)
            if kind is None:
                raise DataError(
                    f"{path}: the name does not end in one of {', '.join(SUFFIXES)}; rename or convert the file",
                    reason="unknown-suffix",
                )
            sources.append(Source(str(place), kind))
        elif _HUB_ID.fullmatch(str(place)) and kind_of(path) is None and is_hub_id(str(place).split(":")[0]):
            sources.append(Source(str(place), "hub"))
        else:
            raise DataError(f"{place}: no such file or folder.{nearest(place)}", reason="no-such-file")
    return sources


def keep_inputs(inputs: Iterable[object], written: Iterable[str | Path]) -> None:
    """Raise if an output would overwrite an input, however the paths are spelled; an output folder covers all in it.

    Inputs other than local files and folders, such as hub ids, are skipped.
    """
    read: list[Path] = []
    for place in inputs:
        if not isinstance(place, str | Path) or not os.path.exists(place):
            continue  # `Path.exists` would raise if a name is too long
        path = Path(place)
        if not path.is_dir():
            read.append(path)
        elif (path / TREE_TABLE).is_file():
            read += [file for file in (path / TREE_TABLE, path / "pairs.parquet") if file.is_file()]
        else:
            read += [file for file in path.iterdir() if file.is_file() and kind_of(file) is not None]
    for path in map(Path, written):
        for file in read:
            is_inside = path.is_dir() and file.resolve().is_relative_to(path.resolve())
            if is_inside or (path.is_file() and path.samefile(file)):
                raise ConfigError(f"{path}: {file} is an input and would be overwritten; name another --out")


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(row: InputRow, type_: Any) -> Any:
    """Decode a row as `type_`; errors use the field names of the user's file."""
    try:
        if isinstance(row.data, dict):
            return msgspec.convert(row.data, type_)
        if type_ not in _DECODERS:
            _DECODERS[type_] = msgspec.json.Decoder(type_)
        return _DECODERS[type_].decode(row.data)
    except msgspec.ValidationError as error:
        reason = "missing-field" if "missing required field" in str(error) else "wrong-type"
        message = f"{error}{_found_value(row, str(error))}; fix the record, or is it in another format?"
        raise DataError(message, reason=reason) from error
    except RecursionError:
        raise DataError("nested too deeply to be read; is this a data file?", reason="too-deep") from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error}); convert the file to UTF-8", reason="not-utf8") from error
    except msgspec.DecodeError as error:
        if row.is_last_line:
            raise DataError(
                f"the last line is truncated ({error}); was the file downloaded or copied completely?",
                reason="truncated",
            ) from error
        start = bytes(row.data[:60]).decode("utf-8", "replace").strip() if isinstance(row.data, bytes) else ""
        raise DataError(
            f"not JSON ({error}): found {start!r}; each line must be one record", reason="not-json"
        ) from error


def _found_value(row: InputRow, message: str) -> str:
    """Return the value that a message of msgspec is about; the message itself has only its path."""
    at = re.search(r" - at `\$(.*)`$", message)
    if at is None or "missing required field" in message:
        return ""
    try:
        value: Any = row.data if isinstance(row.data, dict) else msgspec.json.decode(row.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the row has more errors than this one
        return ""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", at[1]):
        if not isinstance(value, list if index else dict) or (key and key not in value):
            return ""  # a key of any name, which msgspec writes as […]
        value = value[int(index)] if index else value[key]
    return "" if "[...]" in at[1] else f", found {shown(value)}"


def rows(source: Source, advance: Advance = ignore) -> Iterator[InputRow]:
    """Yield the records of a source; the first bytes of a file decide how to read it."""
    is_empty = True
    for row in _hub_rows(source) if source.kind == "hub" else _file_rows(source, advance):
        is_empty = False
        yield row
    if is_empty:
        raise DataError(f"{source.name}: the file is empty; was it downloaded completely?", reason="empty-file")


def read_records(
    inputs: str | Path | Iterable[str | Path], read: Callable[[Any], T], type_: Any = dict[str, Any],
    advance: Advance = ignore,
) -> Iterator[tuple[InputRow, T]]:  # fmt: skip
    """Decode every record of some inputs as `type_` and yield what `read` makes of it; errors name file and line."""
    for source in find_sources(inputs):
        for row in rows(source, advance):
            try:
                result = read(decode(row, type_))
            except DataError as error:
                raise DataError(f"{row.where}: {error}", reason=error.reason) from error
            yield row, result


def _file_rows(source: Source, advance: Advance) -> Iterator[InputRow]:
    with Path(source.name).open("rb") as raw:
        kind = check_kind(source.name, raw.read(HEAD), readable=("gzip", "parquet"))
        raw.seek(0)
        if kind == "parquet" or (kind == "text" and source.kind == "parquet"):
            import pyarrow.parquet as pq

            size, number = Path(source.name).stat().st_size, 0
            with reading_parquet(source.name), pq.ParquetFile(source.name) as file:
                for batch in file.iter_batches(batch_size=256):
                    for record in batch.to_pylist():
                        yield InputRow(f"{source.name}: row {number}", record)
                        number += 1
                    advance(size * batch.num_rows // max(1, file.metadata.num_rows))
        elif kind == "gzip":
            done = 0
            try:
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    for row in _text_rows(source, io.BufferedReader(unzipped, 1 << 20)):
                        advance(raw.tell() - done)
                        done = raw.tell()
                        yield row
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{source.name}: cannot be unpacked as gzip ({error}); download it again, or unpack it by hand",
                    reason="unreadable-gzip",
                ) from error
        else:
            for row in _text_rows(source, raw):
                advance(len(row.data))
                yield row


def _text_rows(source: Source, file: io.BufferedReader) -> Iterator[InputRow]:
    """Yield the records of JSON lines, of one array, or, in a .json file, the single record."""
    head = file.peek(HEAD)[:HEAD]
    check_kind(source.name, head)
    is_array = head.removeprefix(BOM).lstrip()[:1] == b"["
    lines: Iterable[bytes] = file
    if is_array or source.kind == "json":
        data = file.read().removeprefix(BOM)
        if is_array:
            try:
                records = msgspec.json.decode(data, type=list[msgspec.Raw])
            except RecursionError:
                message = f"{source.name}: nested too deeply to be read; is this a data file?"
                raise DataError(message, reason="too-deep") from None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DataError(
                    f"{source.name}: not one JSON array ({error}); is it truncated? Write one array of records, or "
                    "one record per line",
                    reason="not-json",
                ) from error
            at, number = 0, 1
            for record in records:
                text = bytes(record)
                start = data.index(text, at)
                number += data.count(b"\n", at, start)
                yield InputRow(f"{source.name}:{number}", text)
                at = start + len(text)
                number += text.count(b"\n")
            return
        try:
            msgspec.json.decode(data, type=msgspec.Raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            lines = io.BytesIO(data)
        else:
            yield InputRow(f"{source.name}:1", data)
            return
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.isspace():
            yield InputRow(f"{source.name}:{number}", line, not line.endswith(b"\n"))


def _hub_rows(source: Source) -> Iterator[InputRow]:
    """Yield the rows of `owner/name`, `owner/name:split` or `owner/name:config:split`; by default of all splits."""
    from datasets import load_dataset

    if not is_offline() and (problem := no_connection()):
        raise DataError(f"{source.name}: no such file, and {problem}. Name a local file.", reason="no-such-file")
    name, *rest = source.name.split(":")
    config, split = (rest[0] if len(rest) == 2 else None), (rest[-1] if rest else None)
    try:
        loaded = load_dataset(name, config, split=split, streaming=True)
        for part, records in {split: loaded}.items() if split else loaded.items():
            for number, record in enumerate(records):
                yield InputRow(f"{name}:{part}: row {number}", record)
    except Exception as error:  # the hub client raises many kinds, which mean the same to the user
        raise DataError(
            f"{source.name}: no such file, and the hub dataset cannot be loaded ({type(error).__name__}: {error}). "
            "Check the name and the network, or name a local file",
            reason="no-such-file",
        ) from error
