from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prism_prm import read_trees
from prism_prm.data.formats import ReadOptions
from prism_prm.data.inputs import Source, find_sources, rows
from prism_prm.data.reader import Reader
from prism_prm.errors import ConfigError, DataError

RECORDS = [{"problem": f"p{i} ∑", "steps": ["a\n\nb", "\\frac{1}{2}"], "label": i - 1} for i in range(3)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)


def write(folder: Path, kind: str) -> Path:
    path = folder / f"records.{kind}"
    if kind == "jsonl":
        path.write_text("\ufeff" + LINES.replace("\n", "\r\n\n"), encoding="utf-8")
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(LINES.encode()))
    elif kind == "json":
        path.write_text(json.dumps(RECORDS, indent=2, ensure_ascii=False), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(RECORDS), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "parquet"])
def test_every_kind_of_file_says_the_same(tmp_path: Path, kind: str) -> None:
    reader = Reader([write(tmp_path, kind)])
    drafts = [draft for _, draft in reader.drafts()]
    assert [(draft.problem, draft.texts) for draft in drafts] == [(r["problem"], r["steps"]) for r in RECORDS]
    assert [draft.labels for draft in drafts] == [[1.0, 1.0], [0.0, None], [1.0, 0.0]]
    assert reader.report.records == 3
    assert reader.report.formats == {"process-labels": 3}
    assert reader.report.bytes > 0


def test_json_may_be_lines_or_one_record(tmp_path: Path) -> None:
    lines, one = tmp_path / "lines.json", tmp_path / "one.json"
    lines.write_text(LINES)
    one.write_text(json.dumps(RECORDS[0], indent=1))
    assert len(list(read_trees(lines))) == 3
    assert len(list(read_trees(one))) == 1


def test_lines_are_named_in_json_arrays(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([RECORDS[0], {**RECORDS[1], "label": 9}], indent=2))
    with pytest.raises(DataError, match=r"a\.json:10: label 9 is not the index"):
        list(read_trees(file))


def test_a_folder_is_its_files_by_name(tmp_path: Path) -> None:
    write(tmp_path, "jsonl")
    write(tmp_path, "json")
    (tmp_path / "README.md").write_text("no data")
    assert [Path(source.name).name for source in find_sources([tmp_path])] == ["records.json", "records.jsonl"]
    assert len(list(read_trees(tmp_path))) == 6
    assert len(list(read_trees([tmp_path / "records.json", tmp_path]))) == 9


def test_names_that_are_no_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        find_sources([tmp_path / "missing.jsonl"])
    with pytest.raises(DataError, match="no such file or folder"):
        find_sources(["owner/name.jsonl"])
    (tmp_path / "a.csv").write_text("a")
    with pytest.raises(DataError, match=r"does not end in one of \.jsonl"):
        find_sources([tmp_path / "a.csv"])
    with pytest.raises(ConfigError, match="Unknown format 'xml'"):
        Reader([tmp_path], format="xml")
    assert find_sources(["owner/name", "owner/name:main:train"]) == [
        Source("owner/name", "hub"),
        Source("owner/name:main:train", "hub"),
    ]


def test_hub_data_sets_stream_all_splits(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(LINES)
    (tmp_path / "test.jsonl").write_text(LINES.splitlines()[0])
    found = list(rows(Source(str(tmp_path), "hub")))
    assert [row.where.removeprefix(str(tmp_path)) for row in found] == [
        ":train: row 0", ":train: row 1", ":train: row 2", ":test: row 0",
    ]  # fmt: skip
    assert found[2].data == RECORDS[2]
    assert len(list(rows(Source(f"{tmp_path}:test", "hub")))) == 1


def test_a_hub_data_set_that_cannot_be_loaded() -> None:
    with pytest.raises(DataError, match="hub dataset cannot be loaded"):
        list(rows(Source("nobody-at-all/nothing-at-all", "hub")))


def test_skipping_goes_on_and_counts(tmp_path: Path) -> None:
    good, bad = tmp_path / "b.jsonl", tmp_path / "a.jsonl"
    good.write_text(LINES)
    bad.write_text(f'no json\n{LINES}{json.dumps({**RECORDS[0], "label": 7})}\n{{"problem": "cut')
    (tmp_path / "c.jsonl").write_text("")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(LINES.encode())[:-12])
    reader = Reader([tmp_path], options=ReadOptions(on_bad_record="skip"))
    assert len(list(reader.drafts())) >= 6
    assert reader.report.bad == {"not-json": 1, "bad-rating": 1, "truncated": 1, "empty-file": 1, "unreadable-gzip": 1}
    assert reader.report.first_bad[0].startswith(f"{bad}:1: not JSON")


def test_other_encodings_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"problem": "é", "steps": ["a"], "label": 0}\n'.encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.jsonl:1: not UTF-8 .*convert the file"):
        list(read_trees(tmp_path))


def test_a_name_that_no_file_can_have_is_an_error() -> None:
    with pytest.raises(DataError, match="cannot be the name of a file"):
        find_sources(["x" * 5000])
