"""Files from outside: what they are by their first bytes, not their names, and the remedy if they cannot be read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from prism_prm.errors import DataError

HEAD = 512
"""Bytes that are enough to tell."""
BOM = b"\xef\xbb\xbf"
"""What some editors write before UTF-8; it says nothing."""

_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
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
    "gzip": "packed with gzip; unpack it with gunzip",
    "parquet": "a Parquet table; name a text file",
    "zip": "a zip archive; unpack it and name the file within",
    "bzip2": "packed with bzip2; unpack it with bunzip2",
    "xz": "packed with xz; unpack it with unxz",
    "zstd": "packed with zstd; unpack it with unzstd",
    "utf-16": "a text in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8 OLD > NEW",
    "lfs": "a Git LFS pointer, not the file itself; run `git lfs pull` where it was cloned, or download the file",
    "html": "a web page, not the file itself; download the file by its raw link, signed in if need be",
}


def kind_of_bytes(head: bytes) -> str:
    """What a file is that begins with these bytes: one of the kinds above, or "text"."""
    words = head.removeprefix(BOM).lstrip().lower()
    for kind, beginnings in _BEGINNINGS.items():
        if (words if kind in ("lfs", "html") else head).startswith(beginnings):
            return kind
    # Without a mark at its beginning, a text in UTF-16 shows by the zeros in its white space, brackets and quotes.
    return "utf-16" if len(head) > 1 and 0 in head[:2] and head[:2] != b"\0\0" else "text"


def check_kind(name: str | Path, head: bytes, readable: Collection[str] = ("text",)) -> str:
    """The kind of a file that begins with `head`; an error with the remedy where it is not one of the `readable`."""
    kind = kind_of_bytes(head)
    if kind in readable or kind == "text":
        return kind
    raise DataError(f"{name}: this is {_REMEDIES[kind]}", reason=f"is-{kind}")


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8, which may have a mark before it."""
    data = Path(path).read_bytes()
    check_kind(path, data[:HEAD])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}); convert the file to UTF-8", reason="not-utf8") from None


def read_json(path: str | Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise DataError(f"{path}: nested too deeply to be read", reason="too-deep") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})", reason="not-json") from None


@contextlib.contextmanager
def reading_parquet(path: str | Path, remedy: str = "download it again") -> Iterator[None]:
    """What goes wrong with a Parquet file while it is read, said in terms of the file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                check_kind(path, file.read(HEAD), readable=("parquet",))
        said = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: cannot be read as Parquet ({said}); {remedy}", reason="unreadable-parquet") from error


def fitted(path: str | Path, table: Any, schema: Any, *, optional: Collection[str] = ()) -> Any:
    """A table or batch with the columns of a schema, in its types; an error where one does not fit or has gaps.

    Columns that are `optional` may be missing: all their values are null then.
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
            column.validate(full=True)  # Arrow itself trusts the bytes of texts and of indices
        except (pa.ArrowException, UnicodeDecodeError):
            raise DataError(
                f"{path}: the column {field.name!r} holds {column.type}, expected {field.type}", reason="wrong-type"
            ) from None
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if any(_has_gaps(chunk, field) for chunk in chunks):
            raise DataError(f"{path}: the column {field.name!r} has a value that is null", reason="wrong-type")
        columns.append(column)
    return type(table).from_arrays(columns, schema=schema.with_metadata(table.schema.metadata))


def _has_gaps(array: Any, field: Any) -> bool:
    """Whether something is null that may not be, at any depth."""
    import pyarrow as pa

    if array.null_count and not field.nullable:
        return True
    if pa.types.is_struct(field.type):
        array = array.drop_null() if array.null_count else array  # what is null as a whole has no parts
        return any(_has_gaps(part, own) for part, own in zip(array.flatten(), field.type, strict=True))
    return pa.types.is_list(field.type) and _has_gaps(array.flatten(), field.type.value_field)
