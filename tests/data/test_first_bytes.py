"""What a file is, its first bytes say and not its name: read where that is harmless, else named with a remedy."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prism_prm.config import read_toml
from prism_prm.data.pools import read_pool
from prism_prm.data.reader import read_trees
from prism_prm.data.tables import iter_trees, read_pairs
from prism_prm.data.tasks import load_task
from prism_prm.errors import PrismError

TREE = {"problem": "p", "steps": ["a", "b"], "label": -1}
POOL = {"problem": "p", "answer": "1", "solutions": ["a", "b"]}
LINES = (json.dumps(TREE | POOL) + "\n").encode() * 2

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.jsonl", data)
    return file.getvalue()


def table(data: bytes) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([json.loads(line) for line in data.splitlines()]), file)
    return file.getvalue()


WRONG: dict[str, tuple[bytes, str]] = {
    "lfs": (POINTER, "Git LFS pointer.*git lfs pull"),
    "zip": (zipped(LINES), "zip archive.*unzip"),
    "bz2": (bz2.compress(LINES), "bzip2.*decompress"),
    "utf-16": (LINES.decode().encode("utf-16"), "UTF-16.*iconv -f UTF-16 -t UTF-8"),
    "utf-16-le": (LINES.decode().encode("utf-16-le"), "UTF-16.*iconv"),
    "utf-16-be": (LINES.decode().encode("utf-16-be"), "UTF-16.*iconv"),
    "html": (b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", "web page.*raw"),
    "html-2": (b"<html><head>", "web page.*raw"),
}

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "trees": ("data.jsonl", lambda path: list(read_trees(path))),
    "json": ("data.json", lambda path: list(read_trees(path))),
    "gz": ("data.jsonl.gz", lambda path: list(read_trees(path))),
    "parquet": ("data.parquet", lambda path: list(read_trees(path))),
    "pool": ("data.jsonl", read_pool),
    "task": ("data.jsonl", lambda path: load_task(str(path))),
    "recipe": ("data.toml", read_toml),
    "tree table": ("trees.parquet", lambda path: list(iter_trees(path))),
    "pairs": ("pairs.parquet", read_pairs),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_read_is_named_with_a_remedy(tmp_path: Path, kind: str, reader: str) -> None:
    name, read = READERS[reader]
    data, message = WRONG[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PrismError, match=f"{name}: this is .*{message}"):
        read(tmp_path / name)


@pytest.mark.parametrize("kind", ["lfs", "utf-16", "html"])
def test_also_within_gzip(tmp_path: Path, kind: str) -> None:
    data, message = WRONG[kind]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    with pytest.raises(PrismError, match=message):
        list(read_trees(tmp_path / "a.jsonl.gz"))


ARRAY = b"\xef\xbb\xbf \n[" + LINES.replace(b"\n", b",\n", 1) + b"]"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"])
@pytest.mark.parametrize(
    "data",
    [LINES, gzip.compress(LINES), ARRAY, gzip.compress(ARRAY), table(LINES)],
    ids=["lines", "gzip", "array", "gzip of an array", "parquet"],
)
def test_what_can_be_read_is_read_whatever_its_name(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert [tree.texts(tree.trunk) for tree in read_trees(path)] == [["a", "b"]] * 2
    assert len(read_pool(path).solutions) == 4
    assert [problem.answer for problem in load_task(str(path)).problems] == ["1", "1"]


def test_what_is_no_parquet_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(LINES)
    with pytest.raises(PrismError, match=r"a\.parquet: cannot be read as Parquet .*download it again"):
        list(read_trees(tmp_path / "a.parquet"))


@pytest.mark.parametrize("data", [gzip.compress(b"a = 1"), table(LINES)], ids=["gzip", "parquet"])
def test_a_recipe_is_a_text(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(data)
    with pytest.raises(PrismError, match=r"a\.toml: this is (a gzip file|a Parquet table)"):
        read_toml(tmp_path / "a.toml")


def test_lines_that_are_arrays_are_no_array_of_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'["q", "a"]\n["r", "b"]\n')
    with pytest.raises(PrismError, match=r"a\.jsonl: not one JSON array .* one record per line"):
        list(read_trees(tmp_path / "a.jsonl"))


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize("data", [DEEP, b'{"problem": ' + DEEP + b"}\n", b'{"a": ' * 100_000])
def test_a_record_nested_without_end(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    for read in (lambda path: list(read_trees(path)), read_pool, lambda path: load_task(str(path))):
        with pytest.raises(PrismError, match=f"{name}.*nested too deeply"):
            read(tmp_path / name)
