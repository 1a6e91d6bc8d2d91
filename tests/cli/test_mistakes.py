"""Ordinary mistakes on the command line: one line that says what is wrong, status 2, and nothing left behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from prism_prm.cli import app, main


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the user reads; a traceback would come out as the exception itself."""
    monkeypatch.setattr(sys, "argv", ["prism", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    # Boxes and line breaks of usage errors are not part of what is said.
    return re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_a_line_break_in_a_name_does_not_break_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prism", "pairs", "no\nsuch\x1b[31m.jsonl", "--out", "out"])
    with pytest.raises(SystemExit):
        main()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no\\nsuch\\x1b[31m.jsonl: no such file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "FOLDER"), "FOLDER: not a file. Name a TOML file"),
        (("search", "--recipe", "FOLDER", "--out", "FOLDER"), "FOLDER: not a file. Name a TOML file"),
        (("compare", "FILE", "FOLDER", "--out", "FOLDER/cmp"), "FILE/metrics.json: no such file; give folders"),
        (("export", "FOLDER", "--format", "jsonl", "--out", "FOLDER"), "is a directory"),
        (("score", "FILE", "--prm", "x", "--out", "FOLDER"), "is a directory"),
        (("margins", "FOLDER", "--prm", "x", "--out", "FOLDER"), "is a directory"),
        (("train", "FILE", "--out", "FILE"), "is a file"),
        (("theory", "--out", "FILE"), "is a file"),
        (("demo", "--out", "FILE"), "is a file"),
        (("theory", "--no-simulate", "--out", "FILE/below"), "FILE is a file, not a folder"),
        (("pairs", "FILE", "--out", "FOLDER/p", "--drop-finish", "give_up, foo"),
         "Unknown finish reasons ['foo'] to drop. Known: solution, found_error, give_up, bad_problem."),
    ],
)  # fmt: skip
def test_a_line_and_no_traceback(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("FOLDER").mkdir()
    Path("FILE").write_text("seed = 0")
    assert message in mistake(monkeypatch, capsys, *arguments)
    assert list(Path("FOLDER").iterdir()) == []
    assert Path("FILE").read_text() == "seed = 0"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", "By default runs/NAME for NAME.toml."),
        ("margins", "as its second stage"),
        ("margins", "--on-too-long"),
        ("margins", "--family"),
        ("theory", "last, min, product, mean or soft-min"),
    ],
)
def test_help_says(command: str, words: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert words in re.sub(r"[\s│]+", " ", shown)
