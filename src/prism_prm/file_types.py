"""Detect the type of a file by its first bytes, not its name, and say how to fix a file that cannot be read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from prism_prm.errors import DataError

HEAD = 512
"""Bytes needed to detect the type."""
BOM = b"\xef\xbb\xbf"
"""The byte order mark that some editors write before UTF-8; ignored."""

_SIGNATURES: dict[str, tuple[bytes, ...]] = {
    "gzip": (b"\x1f\x8b",),
    "parquet": (b"PAR1",),
    "zip": (b"PK\x03\x04",),
    "bzip2": (b"BZh",),
    "xz": (b"\xfd7zXZ\x00",),
    "zstd": (b"\x28\xb5\x2f\xfd",),
    "utf-16": (b"\xff\xfe", b"\xfe\xff"),
    "lfs": (b"version https://git-lfs",),
    "html": (b"<!doctype", b"<html", b"<head", b"<?xml"),
}
_REMEDIES = {
    "gzip": "a gzip file; decompress it with gunzip",
    "parquet": "a Parquet table; name a text file",
    "zip": "a zip archive; unzip it and name the file inside",
    "bzip2": "a bzip2 file; decompress it with bunzip2",
    "xz": "an xz file; decompress it with unxz",
    "zstd": "a zstd file; decompress it with unzstd",
    "utf-16": "UTF-16 text; convert it with: iconv -f UTF-16 -t UTF-8 OLD > NEW",
    "lfs": "a Git LFS pointer, not the file itself; run `git lfs pull` in the clone, or download the file",
    "html": "a web page, not the file itself; download the file by its raw link, signed in if necessary",
}


def kind_of_bytes(head: bytes) -> str:
    """The type of a file that starts with these bytes: one of the types above, or "text"."""
    words = head.removeprefix(BOM).lstrip().lower()
    for kind, signatures in _SIGNATURES.items():
        if (words if kind in ("lfs", "html") else head).startswith(signatures):
            return kind
    # UTF-16 without a byte order mark: ASCII characters (white space, brackets, quotes) contain a zero byte.
    return "utf-16" if len(head) > 1 and 0 in head[:2] and head[:2] != b"\0\0" else "text"


def check_kind(name: str | Path, head: bytes, readable: Collection[str] = ("text",)) -> str:
    """The type of a file that starts with `head`; raises DataError with a remedy if it is not in `readable`."""
    kind = kind_of_bytes(head)
    if kind in readable or kind == "text":
        return kind
    raise DataError(f"{name}: this is {_REMEDIES[kind]}", reason=f"is-{kind}")


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file, with or without a byte order mark."""
    data = Path(path).read_bytes()
    check_kind(path, data[:HEAD])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}); convert the file to UTF-8", reason="not-utf8") from None


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise DataError(f"{path}: nested too deeply to be read", reason="too-deep") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})", reason="not-json") from None


@contextlib.contextmanager
def reading_parquet(path: str | Path, remedy: str = "download it again") -> Iterator[None]:
    """Turn the errors of reading a Parquet file into a DataError with its path and a remedy."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                check_kind(path, file.read(HEAD), readable=("parquet",))
        message = f"{path}: cannot be read as Parquet ({' '.join(str(error).split())[:200]}); {remedy}"
        raise DataError(message, reason="unreadable-parquet") from error


def fitted(path: str | Path, table: Any, schema: Any, *, optional: Collection[str] = ()) -> Any:
    """Cast a table or batch to a schema; raises DataError for a missing column, a wrong type or an unexpected null.

    Columns in `optional` may be missing; they are filled with nulls.
    """
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name in optional and field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        if table.schema.names.count(field.name) != 1:
            found = f"found {table.schema.names}"
            raise DataError(f"{path}: expected one column {field.name!r}; {found}", reason="wrong-format")
        column = table.column(field.name)
        try:
            column = column if column.type == field.type else column.cast(field.type)
            column.validate(full=True)  # Arrow does not check the bytes of strings and indices by itself
        except (pa.ArrowException, UnicodeDecodeError):
            raise DataError(
                f"{path}: the column {field.name!r} holds {column.type}, expected {field.type}", reason="wrong-type"
            ) from None
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if any(_has_nulls(chunk, field) for chunk in chunks):
            raise DataError(f"{path}: the column {field.name!r} has a value that is null", reason="wrong-type")
        columns.append(column)
    return type(table).from_arrays(columns, schema=schema.with_metadata(table.schema.metadata))


def _has_nulls(array: Any, field: Any) -> bool:
    """Whether a value is null that must not be, at any depth."""
    import pyarrow as pa

    if array.null_count and not field.nullable:
        return True
    if pa.types.is_struct(field.type):
        array = array.drop_null() if array.null_count else array  # the fields of a null struct do not count
        return any(_has_nulls(part, own) for part, own in zip(array.flatten(), field.type, strict=True))
    return pa.types.is_list(field.type) and _has_nulls(array.flatten(), field.type.value_field)
