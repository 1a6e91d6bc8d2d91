"""A command that writes into a folder has it to itself; two at once end in a plain error, not in mixed files."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from prism_prm import init_prm
from prism_prm.cli import app
from prism_prm.errors import PrismError
from prism_prm.job import locked, locked_file
from prism_process import Process

STEPS = '{"problem": "What is 2 + 3?", "steps": ["2 + 3 = 5", "so 5"], "label": 1, "id": "own-1"}\n'
POOL = '{"problem": "What is 2 + 3?", "answer": "5", "solutions": ["\\\\boxed{5}", "\\\\boxed{6}"]}\n'


@pytest.fixture
def folder(tmp_path: Path, tiny_lm: Callable[..., Path]) -> Path:
    (tmp_path / "own.jsonl").write_text(STEPS * 3)
    (tmp_path / "pool.jsonl").write_text(POOL)
    (tmp_path / "task.jsonl").write_text('{"problem": "What is 2 + 3?", "answer": "5"}\n')
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    return tmp_path


COMMANDS = {
    "pairs": "pairs own.jsonl --out out",
    "eval": "eval --bench labeled --data own.jsonl --prm prm --out out",
    "theory": "theory --no-simulate --out out",
    "rerank": "rerank pool.jsonl --out out --set judges=1",
    "search": "search --policy hf:prm --task task.jsonl --method greedy --out out",
    "demo": "demo --quick --out out",
    "compare": "compare a=run b=run --out out",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_in_use_is_left_alone(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if name == "compare":
        words = COMMANDS["eval"].replace("--out out", "--out run").split()
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    with locked("out"):
        (folder / "out" / "theirs").write_text("half")
        with pytest.raises(PrismError, match=r"^out: another process is running here; wait for it, or name another"):
            CliRunner().invoke(app, COMMANDS[name].split(), catch_exceptions=False)
        assert sorted(path.name for path in (folder / "out").iterdir()) == [".lock", "theirs"]


@pytest.mark.parametrize("name", ["score", "pairs"])
def test_a_table_in_use_is_left_alone(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run = CliRunner()
    if name == "pairs":
        assert run.invoke(app, ["pairs", "own.jsonl", "--out", "pairs"], catch_exceptions=False).exit_code == 0
    words = {
        "score": "score own.jsonl --prm prm --out tables/a.parquet",
        "pairs": "score pairs --pairs --prm prm --out tables/a.parquet",
    }[name].split()
    with locked_file("tables/a.parquet"):
        with pytest.raises(PrismError, match=r"^tables/a\.parquet: another process is writing it"):
            run.invoke(app, words, catch_exceptions=False)
        other = [word.replace("/a.parquet", "/b.parquet") for word in words]
        assert run.invoke(app, other, catch_exceptions=False).exit_code == 0, "another table of that folder is free"
    assert sorted(path.name for path in (folder / "tables").iterdir()) == ["b.parquet"], "locks leave no trace"
    assert run.invoke(app, words, catch_exceptions=False).exit_code == 0


PAUSED = """
import os, signal
from prism_prm.cli import main
from prism_prm.search.engine import SearchEngine
run = SearchEngine.run
def paused(*words):
    os.kill(os.getpid(), signal.SIGSTOP)
    yield from run(*words)
SearchEngine.run = paused
main()
"""
"""`prism`, which stops before it searches until it is told to continue."""


def test_two_searches_at_once_do_not_mix_their_journals(world_policy: Path, tmp_path: Path) -> None:
    """The first holds the folder while the second tries; the first's journal is as if it were alone."""
    from prism_prm.lab.world.build import world_settings
    from prism_prm.lab.world.problems import draw_problems

    problems = draw_problems(world_settings("quick").problems, 4, np.random.default_rng(1))
    task = tmp_path / "task.jsonl"
    task.write_text("".join(json.dumps({"problem": p.text, "answer": p.answer}) + "\n" for p in problems))
    line = f"search --policy hf:{world_policy} --task {task}"
    words = [*line.split(), *["--method", "sample", "-n", "2", "--set", "judges=1", "--set", "max_steps=4", "--out"]]
    first = Process(*words, tmp_path / "out", code=PAUSED)
    try:
        while not (tmp_path / "out" / "journal").exists():
            assert first.poll() is None
            time.sleep(0.01)
        with pytest.raises(PrismError, match="another process is running here"):
            CliRunner().invoke(app, [*words, str(tmp_path / "out")], catch_exceptions=False)
        while first.poll() is None:  # whether it has stopped already or stops only now
            first.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        assert first.returncode == 0, first.communicate()
    finally:
        first.kill()
    assert CliRunner().invoke(app, [*words, str(tmp_path / "alone")], catch_exceptions=False).exit_code == 0
    journals = [(tmp_path / name / "journal" / "n2.jsonl").read_text().splitlines() for name in ("out", "alone")]
    parsed = [[json.loads(line) for line in lines] for lines in journals]
    for lines in parsed:
        for line in lines[1:]:
            line["seconds"] = 0
    assert parsed[0] == parsed[1]
    assert len(parsed[0]) == 1 + 4
