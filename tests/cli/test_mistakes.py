"""Ordinary mistakes on the command line: one line that says what is wrong, status 2, and nothing left behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from prism_prm.cli import main


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
        (("compare", "FILE", "FOLDER", "--out", "FOLDER/cmp"), "FILE/metrics.json: no such file; name folders"),
        (("export", "FOLDER", "--format", "jsonl", "--out", "FOLDER"), "is a directory"),
        (("score", "FILE", "--prm", "x", "--out", "FOLDER"), "is a directory"),
        (("score", "FOLDER", "--pairs", "--prm", "x", "--out", "FOLDER"), "is a directory"),
        (("train", "FILE", "--out", "FILE"), "is a file"),
        (("theory", "--out", "FILE"), "is a file"),
        (("demo", "--out", "FILE"), "is a file"),
        (("theory", "--no-simulate", "--out", "FILE/below"), "FILE is a file, not a folder"),
        (("pairs", "FILE", "--out", "FOLDER/p", "--set", "drop_finish=give_up, foo"),
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
    ("words", "message"),
    [
        (("margins", "pairs"), "there is no command `prism margins`: write `prism score PAIRS --pairs`"),
        (("look", "x.jsonl"), "there is no command `prism look`: write `prism score INPUT --show`"),
        (("plan", "x.toml"), "there is no command `prism plan`: write `prism train RECIPE --plan`"),
        (("serach",), "there is no command `prism serach`. Did you mean search?"),
        (("search", "--temperature", "1"), "prism search has no option --temperature: write -P temperature=VALUE"),
        (("search", "--expand", "2"), "prism search has no option --expand: write --set search.expand=VALUE"),
        (("eval", "--critic", "thinkprm"), "prism eval has no option --critic: write -C format=FORMAT"),
        (("eval", "--votes", "4"), "prism eval has no option --votes: write -C votes=VALUE"),
        (("score", "x", "--workers", "4"), "prism score has no option --workers: write -R workers=VALUE"),
        (("score", "x", "--no-compat"), "prism score has no option --no-compat: write --set load.compat=VALUE"),
        (("rerank", "x", "--agregators", "min"), "has no option --agregators. Did you mean --aggregators?"),
        (("rerank", "x", "--nonsense"), "prism rerank has no option --nonsense. See `prism rerank --help`."),
        (("theory", "--rate", "0.1"), "write --set rates=0,0.1,0.2"),
        (("search", "-C", "votse=4", "--out", "o"), "there is no setting votse. Did you mean critic.votes?"),
        (("search", "-C", "votes", "--out", "o"), "-C votes: expected KEY=VALUE"),
        (("search", "--set", "seed=x", "--out", "o"), "--set seed=x: must be a whole number"),
        (("search", "--set", "model=x", "--out", "o"), "model is ambiguous: policy.model or critic.model."),
    ],
)  # fmt: skip
def test_a_wrong_spelling_gets_the_right_one(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert message in mistake(monkeypatch, capsys, *words)
