from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from prism_prm.cli import main
from prism_process import write_command

GOOD = json.dumps({"problem": "1+1?", "steps": ["a = 1", "b = 2", "c = a + b = 3"], "label": -1}) + "\n"
RATED = {"completions": [{"text": "a", "rating": 2}], "human_completion": None, "chosen_completion": 0}
PRM800K = json.dumps({"question": {"problem": "p"}, "label": {"steps": [RATED]}})


def prism(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit status of the command."""
    monkeypatch.setattr(sys, "argv", ["prism", *map(str, arguments)])
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


BAD_INPUTS = {
    "not JSON": (f"{GOOD}hello\n", "in.jsonl:2: not JSON", "'hello'; each line must be one record"),
    "truncated last line": (GOOD + GOOD[:30], "in.jsonl:2: the last line is truncated", "copied completely?"),
    "missing field": ('{"problem": "p", "steps": ["a"], "label": 0}\n{"problem": "p", "label": 0}\n',
                      "in.jsonl:2: Object missing required field `steps`", "fix the record"),
    "rating outside the scale": (PRM800K, "in.jsonl:1: rating 2 is not one of -1, 0, 1, null", "'a'"),
    "label outside the scale": (GOOD.replace("-1", "5"), "in.jsonl:1: label 5 is not the index of one of 3 steps", ""),
    "empty text": (GOOD.replace("b = 2", " "), "in.jsonl:1: step 2 has an empty text", "every step needs one"),
    "unknown format": ('{"text": "a"}\n', "in.jsonl:1: a record with the fields ['text'] is in no known format",
                       "Known: prm800k"),
    "empty file": ("", "in.jsonl: the file is empty", "downloaded completely?"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_explained_and_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, *said = BAD_INPUTS[name]
    (tmp_path / "in.jsonl").write_text(content)
    assert prism(monkeypatch, "pairs", tmp_path / "in.jsonl", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert all(part in error for part in said)
    assert "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_wrong_format_names_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(GOOD)
    arguments = ("pairs", tmp_path / "in.jsonl", "--format", "prm800k", "--out", tmp_path / "out")
    assert prism(monkeypatch, *arguments) == 2
    assert "It looks like process-labels: use --format process-labels." in capsys.readouterr().err


def test_empty_folder_and_unreadable_gzip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert prism(monkeypatch, "pairs", tmp_path / "empty", "--out", tmp_path / "out") == 2
    assert "empty: nothing to read; no file ends in .jsonl" in capsys.readouterr().err
    torn = gzip.compress(GOOD.encode() * 5000)[:-40]
    for content, said in ((b"plain text", ":1: the last line is truncated"), (torn, ": cannot be unpacked as gzip")):
        (tmp_path / "a.jsonl.gz").write_bytes(content)
        assert prism(monkeypatch, "pairs", tmp_path / "a.jsonl.gz", "--out", tmp_path / "out") == 2
        assert f"a.jsonl.gz{said}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_skip_goes_on_and_lists_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(f"{GOOD}hello\n{GOOD}")
    arguments = ("pairs", tmp_path / "in.jsonl", "--out", tmp_path / "out", "--on-bad-record", "skip")
    assert prism(monkeypatch, *arguments, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["trees"] == 2
    assert summary["bad_records"]["reasons"] == {"not-json": 1}
    assert "in.jsonl:2: not JSON" in summary["bad_records"]["first"][0]
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert prism(monkeypatch, *arguments) == 0
    assert "skipped: " in capsys.readouterr().err
    (tmp_path / "in.jsonl").write_text("hello\n")
    assert prism(monkeypatch, "pairs", tmp_path / "in.jsonl", "--out", tmp_path / "o", "--on-bad-record", "skip") == 2
    assert "no tree is left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--lookahead", "some"), "--lookahead some: must be a whole number or one of all, none"),
        (("--split", "train=0.9"), "add to 1"),
        (("--set", "min_gap=0"), "--set min_gap=0: must be 1 or more"),
        (("--out", __file__), "is a file; name a folder"),
        (("--exclude", "missing.jsonl"), "missing.jsonl: no such file"),
    ],
)
def test_settings_are_checked_first(
    option: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "in.jsonl").write_text(GOOD)
    assert prism(monkeypatch, "pairs", tmp_path / "in.jsonl", "--out", tmp_path / "out", *option) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pairs_then_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text(GOOD)
    out = tmp_path / "out"
    assert prism(monkeypatch, "pairs", tmp_path / "in.jsonl", "--out", out, "--set", "audit=off") == 0
    assert "lookahead pairs" in capfd.readouterr().out
    assert prism(monkeypatch, "export", out, "--format", "trl-preference") == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert rows[0] == {"prompt": "1+1?\n\n", "chosen": "a = 1", "rejected": "b = 2"}
    assert len(rows) == 3
    assert prism(monkeypatch, "export", out, "--format", "trl-stepwise", "--out", tmp_path / "s.jsonl") == 0
    assert "Writing: 1 records" in capfd.readouterr().err
    wrong = ("--split", "nosuch", "--out", tmp_path / "no.jsonl")
    assert prism(monkeypatch, "export", out, "--format", "jsonl", *wrong) == 2
    assert "no tree is in the split 'nosuch'" in capfd.readouterr().err
    assert not (tmp_path / "no.jsonl").exists()
    assert prism(monkeypatch, "pairs", tmp_path / "s.jsonl", "--out", tmp_path / "again", "--json") == 0
    assert json.loads(capfd.readouterr().out)["labels"]["positive"] == 3


def test_export_ends_quietly_when_its_reader_does(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(GOOD * 3000)
    write_command(tmp_path / "prism")
    command = (
        f"{tmp_path}/prism pairs {tmp_path}/in.jsonl --set audit=off --out {tmp_path}/out >/dev/null 2>&1 && "
        f"{tmp_path}/prism export {tmp_path}/out --format jsonl | head -1"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_the_acceptance_command(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = real_data / "prm800k" / "phase1_train.jsonl"
    options = ("--lookahead", "all", "--set", "audit=off", "--out", tmp_path, "--json")
    assert prism(monkeypatch, "pairs", file, *options) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["trees"], summary["positions"]) == (942, 15311)
    assert (summary["pairs"]["annotated"], summary["pairs"]["lookahead"]) == (26621, 209749)
