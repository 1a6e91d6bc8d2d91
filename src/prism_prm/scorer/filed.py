"""The files of the score store: one per portion, with its keys and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.errors import DataError
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import whole_file
from prism_prm.scorer.index import KEY_BYTES, KEYS

_REMEDY = "not a file of the score store; remove it to score it again"


def row_of(outputs: Sequence[str]) -> np.dtype:
    """What is known of a step: its log-odds, and whether there are none because it is too long, or not judged."""
    return np.dtype([("log_odds", "<f8", (len(outputs),)), ("too_long", "?"), ("unjudged", "?")])


def write_filed(path: Path, keys_N: np.ndarray, rows_N: np.ndarray, outputs: Sequence[str]) -> None:
    """Write keys and their rows, whole or not at all; the column `unjudged` is there only if a step is."""
    is_known_N = ~rows_N["too_long"] & ~rows_N["unjudged"]
    assert np.isfinite(rows_N["log_odds"][is_known_N]).all(), "a score is a number, unless it says why not"
    data = pa.py_buffer(keys_N.tobytes())
    columns = {"key": pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys_N), [None, data])}
    columns |= {name: pa.array(np.ascontiguousarray(rows_N["log_odds"][:, i])) for i, name in enumerate(outputs)}
    for name in ("too_long", "unjudged"):
        if name == "too_long" or rows_N[name].any():
            columns[name] = pa.array(np.ascontiguousarray(rows_N[name]))
    with whole_file(path) as aside:
        pq.write_table(pa.table(columns), aside)


def read_filed(path: Path, outputs: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The keys of a file, and their rows."""
    fields = [("key", pa.binary(KEY_BYTES)), *((name, pa.float64()) for name in outputs), ("too_long", pa.bool_())]
    try:
        with reading_parquet(path, _REMEDY):
            found = pq.read_table(path)
            fields += [("unjudged", pa.bool_())] * ("unjudged" in found.column_names)
            schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])
            table = fitted(path, found, schema)
    except DataError as error:
        raise error if _REMEDY in str(error) else DataError(f"{error}; {_REMEDY}", reason=error.reason) from None
    keys_N = np.frombuffer(b"".join(table["key"].to_pylist()), KEYS)
    rows_N = np.zeros(len(keys_N), row_of(outputs))
    for i, name in enumerate(outputs):
        rows_N["log_odds"][:, i] = table[name].to_numpy()
    for name in ("too_long", "unjudged"):
        if name in table.column_names:
            rows_N[name] = table[name].to_numpy()
    if not np.isfinite(rows_N["log_odds"][~rows_N["too_long"] & ~rows_N["unjudged"]]).all():
        raise DataError(f"{path}: a score is not a finite number; {_REMEDY}", reason="out-of-range")
    return keys_N, rows_N
