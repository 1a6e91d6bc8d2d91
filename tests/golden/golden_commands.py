"""Commands run in this process, and the files that they write, as plain values."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from prism_prm.cli import main


def prism(folder: Path, *words: object) -> None:
    """Run a command in the folder, on one thread, as the package is used; it must succeed."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["prism", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, words


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    return path


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file in order, whatever its encoding."""
    return pq.read_table(path).to_pylist()


def columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet file by name; lines of numbers are easier to compare than records."""
    return pq.read_table(path).to_pydict()


def digest(value: Any) -> str:
    """A hash of a plain value, for data whose text must not be stored."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
