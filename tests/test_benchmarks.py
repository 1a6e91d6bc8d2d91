"""The benchmarks have one form: a purpose, shared options, and a last line that a script can read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waiting import until

FOLDER = Path(__file__).parent.parent / "benchmarks"
BENCHMARKS = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))
LAST_LINE = re.compile(r"[a-z_]+: \d+\.\d\dx over .+ \(\d+\.\d\d–\d+\.\d\d\)\n")


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import _side_by_side

    return _side_by_side


def children() -> set[str]:
    """Processes that this one has started and not yet seen to end."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_the_last_line(side_by_side: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks/tree_scoring.py"])
    side_by_side.conclude([1.0, 2.0, 4.0], [10.0, 30.0, 48.0], peer="two sequences per pair")
    line = capsys.readouterr().out
    assert line == "tree_scoring: 12.00x over two sequences per pair (10.00–15.00)\n"
    assert LAST_LINE.fullmatch(line)


def test_rounds_take_turns(side_by_side: Any) -> None:
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) for name in ("a", "b")}  # type: ignore[misc]
    seconds = side_by_side.side_by_side(ways, repeats=2)
    assert order == ["a", "b", "a", "b"]
    assert {name: len(rounds) for name, rounds in seconds.items()} == {"a": 2, "b": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_busy_processes_end_with_the_block(side_by_side: Any) -> None:
    before = children()

    def stopped() -> None:
        assert len(children() - before) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side.side_by_side({"stopped": stopped}, repeats=1, beside=2)
    assert not children() - before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_that_of_the_block(side_by_side: Any) -> None:
    def peak(work: Callable[[], object]) -> float:
        with side_by_side.peak_memory() as found:
            work()
        return float(found.gib)

    nothing, own, after = peak(lambda: None), peak(lambda: bytearray(b"x") * 2**28), peak(lambda: None)
    assert own > nothing + 0.2
    assert after < own - 0.2, "what was freed does not count"


HOLDS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from _side_by_side import busy
with busy(1):
    print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read(), flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_busy_processes_end_with_a_benchmark_that_is_killed() -> None:
    command = [sys.executable, "-c", HOLDS, str(FOLDER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        spinning = int(holder.stdout.readline())
        holder.send_signal(signal.SIGKILL)
    until(lambda: not _runs(spinning))


def _runs(process: int) -> bool:
    """Whether a process is there and not only waiting to be buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(r'""".+[.:].*\n\n', text), "a purpose in one line"
    assert f"python benchmarks/{path.name}" in text
    assert text.count("= options(__doc__, repeats=") == 1
    assert text.count("conclude(") == 1
    assert "side_by_side(" in text or "peak_memory()" in text, "it says how much memory it took"


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_help(path: Path) -> None:
    shown = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--busy" in shown
    assert "--repeats" in shown
