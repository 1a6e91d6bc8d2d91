from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prism_prm.errors import PrismError
from prism_prm.grading.process_pool import Outcome, ProcessPool
from waiting import until

HERE = Path(__file__).parent


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessPool]:
    """Workers whose calls end by their CPU time alone."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr("prism_prm.grading.process_pool.WALL_FACTOR", 1000.0)
    with ProcessPool("hanging", count=2, cpu_seconds=0.3, memory_bytes=1 << 30) as workers:
        yield workers


def test_outcomes_come_in_order_whatever_goes_wrong_between(workers: ProcessPool) -> None:
    bad = ["loop", "loop_in_c", "crash", "fail", "eat_memory"]
    calls = [("double", (0,))]
    for i, name in enumerate(bad, 1):
        calls += [(name, ()), ("double", (i,))]  # type: ignore[list-item]
    advanced: list[int] = []
    outcomes = workers.run(calls, advanced.append)
    assert outcomes[::2] == [Outcome("ok", 2 * i) for i in range(len(bad) + 1)]
    statuses = dict(zip(bad, (outcome.status for outcome in outcomes[1::2]), strict=True))
    assert statuses == {
        "loop": "timeout", "loop_in_c": "timeout", "crash": "error", "fail": "error", "eat_memory": "error",
    }  # fmt: skip
    details = {name: outcome.detail for name, outcome in zip(bad, outcomes[1::2], strict=True)}
    assert details["fail"] == "ValueError: bad text"
    assert "status 7" in details["crash"]
    assert "MemoryError" in details["eat_memory"]
    assert sum(advanced) == len(calls)


def test_a_call_that_sleeps_is_ended_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    with ProcessPool("hanging", count=1, cpu_seconds=0.1) as workers:
        assert workers.run([("sleep", ())]) == [Outcome("timeout", detail="ended by the time limit")]


def test_a_worker_that_died_while_idle_is_replaced(workers: ProcessPool) -> None:
    workers.run([("double", (1,))] * 2)
    for worker in workers._workers:
        if worker._process is not None:
            worker._process.kill()
            worker._process.wait()
    assert workers.run([("double", (i,)) for i in range(4)]) == [Outcome("ok", 2 * i) for i in range(4)]


def test_runs_of_other_threads_keep_their_outcomes_when_calls_hang_and_crash(workers: ProcessPool) -> None:
    def run(i: int) -> list[Outcome]:
        return workers.run([("double", (i,)), (("loop", "crash", "fail")[i % 3], ()), ("double", (-i,))])

    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(run, range(12)))
    for i, (first, bad, last) in enumerate(outcomes):
        assert (first, last) == (Outcome("ok", 2 * i), Outcome("ok", -2 * i))
        assert bad.status == ("timeout", "error", "error")[i % 3]


def test_a_run_that_another_thread_closes_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    has_begun = threading.Event()
    with ProcessPool("hanging", count=2, cpu_seconds=600) as workers, ThreadPoolExecutor(1) as threads:
        run = threads.submit(workers.run, [("double", (1,)), ("loop", ())], lambda _: has_begun.set())
        has_begun.wait()
        workers.close()
        with pytest.raises(PrismError, match=r"closed by another thread|could not start"):
            run.result()
        assert workers.run([("double", (3,))]) == [Outcome("ok", 6)]


def test_a_worker_that_cannot_start_says_how_to_see_why() -> None:
    with (
        ProcessPool("no_such_module", count=1) as workers,
        pytest.raises(PrismError, match=r"could not start.*no_such_module"),
    ):
        workers.run([("anything", ())])


def test_an_interrupt_ends_the_run_and_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # no `if __name__ == "__main__"` is needed
    script.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job starts with it ignored
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from prism_prm.grading.process_pool import ProcessPool\n"
        "workers = ProcessPool('hanging', count=2, cpu_seconds=600)\n"
        "workers.run([('double', (1,))] * 2)\n"
        "print(*(worker._process.pid for worker in workers._workers if worker._process), flush=True)\n"
        f"workers.run([('loop_and_say', ({str(tmp_path)!r},))] * 4)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert children
    until(lambda: len(list(tmp_path.glob("loops-*"))) == 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert "KeyboardInterrupt" in errors
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from prism_prm.grading.process_pool import ProcessPool\n"
        "workers = ProcessPool('hanging', count=1)\n"
        "workers.run([('double', (1,))])\n"
        "print(workers._workers[0]._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    child = int(out.stdout)

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(is_gone)
