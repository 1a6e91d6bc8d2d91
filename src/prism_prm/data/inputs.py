"""What the user names → sources → rows: .jsonl, .json, both also as .gz, .parquet, a folder, or a hub dataset.

Names only say which files are data; the first bytes of a file decide how it is read. A row is not decoded yet: JSON
stays bytes until the format is known, so that `decode` decodes it once, into its own type.
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

Kind = Literal["jsonl", "json", "parquet", "hub"]
SUFFIXES: dict[str, Kind] = {
    ".jsonl": "jsonl", ".json": "json", ".jsonl.gz": "jsonl", ".json.gz": "json", ".parquet": "parquet",
}  # fmt: skip
TREE_TABLE = "trees.parquet"
"""The file that makes a folder one of ours; its neighbors are not input."""
T = TypeVar("T")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+){0,2}")


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read."""

    name: str
    """The file's path or the dataset's id, as the user wrote it."""
    kind: Kind

    def size(self) -> int | None:
        """Its bytes, or None where that is not known before reading."""
        return None if self.kind == "hub" else Path(self.name).stat().st_size

    def sha256(self) -> str | None:
        """The hash of the file, as `sha256sum` prints it; None for a hub dataset."""
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
    """Whether the line has no line break: a record cut short shows there."""


def kind_of(path: Path) -> Kind | None:
    """What a file's name says it is."""
    return next((kind for suffix, kind in SUFFIXES.items() if path.name.endswith(suffix)), None)


def as_places(given: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """One place or several, as a list: the letters of a path are not places."""
    return [given] if isinstance(given, str | Path) else list(given)


def total_size(sources: Iterable[Source]) -> int | None:
    """The bytes of all sources, or None where one does not say before it is read."""
    sizes = [source.size() for source in sources]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def find_sources(inputs: str | Path | Iterable[str | Path]) -> list[Source]:
    """The files and datasets that the user names, in their order; a folder gives its files by name."""
    sources: list[Source] = []
    for given in as_places(inputs):
        path = Path(given)
        try:
            is_folder, is_file = path.is_dir(), path.is_file()
        except OSError as error:  # a name too long, say
            why = f"{given}: cannot be the name of a file ({error.strerror})"
            raise DataError(why, reason="no-such-file") from None
        if is_folder:
            names = [path / TREE_TABLE] if (path / TREE_TABLE).is_file() else sorted(path.iterdir())
            found = [(file, kind_of(file)) for file in names if file.is_file()]
            inside = [Source(str(file), kind) for file, kind in found if kind is not None]
            if not inside:
                raise DataError(
                    f"{path}: nothing to read; no file ends in {', '.join(SUFFIXES)}", reason="empty-folder"
                )
            sources += inside
        elif is_file:
            kind = kind_of(path)
            if kind is None:
                raise DataError(
                    f"{path}: the name does not end in one of {', '.join(SUFFIXES)}; rename or convert the file",
                    reason="unknown-suffix",
                )
            sources.append(Source(str(given), kind))
        elif _HUB_ID.fullmatch(str(given)) and kind_of(path) is None and is_hub_id(str(given).split(":")[0]):
            sources.append(Source(str(given), "hub"))
        else:
            raise DataError(f"{given}: no such file or folder.{nearest(given)}", reason="no-such-file")
    return sources


def keep_inputs(inputs: Iterable[object], written: Iterable[str | Path]) -> None:
    """Refuse to write over files that are read, however they are spelled; a folder to write stands for all in it.

    Inputs that are no local files or folders, such as hub ids, are skipped.
    """
    read: list[Path] = []
    for given in inputs:
        if not isinstance(given, str | Path) or not os.path.exists(given):
            continue  # `Path.exists` would raise where a name is too long
        path = Path(given)
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
                raise ConfigError(f"{path}: {file} is an input, and would be lost; name another --out")


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


def rows(source: Source, advance: Advance = ignore) -> Iterator[InputRow]:
    """The records of a source, as a stream; the first bytes of a file say how it is read."""
    found = False
    for row in _hub(source) if source.kind == "hub" else _file(source, advance):
        found = True
        yield row
    if not found:
        raise DataError(f"{source.name}: the file is empty; was it downloaded completely?", reason="empty-file")


def read_records(
    inputs: str | Path | Iterable[str | Path], read: Callable[[Any], T], type_: Any = dict[str, Any],
    advance: Advance = ignore,
) -> Iterator[tuple[InputRow, T]]:  # fmt: skip
    """Every record of some inputs, decoded as `type_`, as `read` reads it; errors say where they are."""
    for source in find_sources(inputs):
        for row in rows(source, advance):
            try:
                found = read(decode(row, type_))
            except DataError as error:
                raise DataError(f"{row.where}: {error}", reason=error.reason) from error
            yield row, found


def _file(source: Source, advance: Advance) -> Iterator[InputRow]:
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
                    for row in _text(source, io.BufferedReader(unzipped, 1 << 20)):
                        advance(raw.tell() - done)
                        done = raw.tell()
                        yield row
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{source.name}: cannot be unpacked as gzip ({error}); download it again, or unpack it by hand",
                    reason="unreadable-gzip",
                ) from error
        else:
            for row in _text(source, raw):
                advance(len(row.data))
                yield row


def _text(source: Source, file: io.BufferedReader) -> Iterator[InputRow]:
    """Lines of records; or all of it one array, or, if it is named .json, one record."""
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
                why = f"{source.name}: nested too deeply to be read; is this a data file?"
                raise DataError(why, reason="too-deep") from None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DataError(
                    f"{source.name}: not one JSON array ({error}); was it cut short? Give one array of records, or "
                    "each line one record",
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


def _hub(source: Source) -> Iterator[InputRow]:
    """`owner/name`, `owner/name:split` or `owner/name:config:split`; without a split, all of them in turn."""
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
    except Exception as error:  # the hub client raises many kinds, all of which mean the same to the user
        raise DataError(
            f"{source.name}: no such file, and the hub dataset cannot be loaded ({type(error).__name__}: {error}). "
            "Check the name and the network; without one, give a local file",
            reason="no-such-file",
        ) from error
