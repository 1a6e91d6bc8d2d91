"""Single calls become batches; rewards load once per process, however many threads, copies and calls there are."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import fake, said

from prism_prm import ConfigError, DataError, PRMReward, example_folder, example_prm
from prism_prm.backends import load_prm
from prism_prm.rl import reward as reward_module
from prism_prm.rl.connectors import batcher
from prism_prm.rl.connectors.batcher import MicroBatcher, configured_batcher

GOOD = "0.9 a\n\n0.5 b\n\n0.8 #### 3"


@pytest.fixture(autouse=True)
def no_rewards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reward_module, "_REWARDS", {})
    monkeypatch.setattr(reward_module, "_OPENED", {})
    monkeypatch.setattr(batcher, "_BATCHERS", {})
    return


def number(i: int) -> str:
    return f"0.{i:03} a\n\n0.999 #### 3"


def test_coroutines_become_batches() -> None:
    calls = MicroBatcher(PRMReward(fake()), wait=0.2)

    async def together() -> list[Any]:
        return await asyncio.gather(*(calls.judge("p", number(i)) for i in range(1, 65)))

    judged = asyncio.run(together())
    assert [one.reward for one in judged] == pytest.approx([i / 1000 for i in range(1, 65)])
    assert sum(calls.sizes) == 64
    assert max(calls.sizes) > 8, "they were judged together"
    calls.close()


def test_threads_and_two_event_loops() -> None:
    calls = MicroBatcher(PRMReward(fake(), verifiable=1.0))

    def one_thread(start: int) -> list[float]:
        async def many() -> list[Any]:
            asked = (calls.judge("p", number(i), reference=str(2 + i % 2)) for i in range(start, start + 20))
            return await asyncio.gather(*asked)

        return [one.reward for one in asyncio.run(many())]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(one_thread, range(1, 161, 20)))
    expected = [i / 1000 + (i % 2) for i in range(1, 161)]
    assert [reward for part in found for reward in part] == pytest.approx(expected)
    assert sum(calls.sizes) == 160 == calls.reward.counts["completions"]
    calls.close()


def test_the_most_per_batch_and_what_was_cut() -> None:
    calls = MicroBatcher(PRMReward(fake()), wait=0.2, most=3)
    asked = [calls.submit("p", GOOD, cut=i == 4) for i in range(7)]
    assert [one.result(10).reward for one in asked] == [pytest.approx(0.5)] * 4 + [0.0] + [pytest.approx(0.5)] * 2
    assert list(calls.sizes) == [3, 3, 1]
    calls.close()


def test_an_error_reaches_every_call_and_the_next_batch_works() -> None:
    def right(step: str) -> float:
        if "boom" in step:
            raise RuntimeError("the PRM is broken")
        return said(step)

    calls = MicroBatcher(PRMReward(fake(right)), wait=0.1)
    asked = [calls.submit("p", text) for text in (GOOD, "boom #### 3")]
    for one in asked:
        with pytest.raises(RuntimeError, match="the PRM is broken"):
            one.result(10)
    assert calls.submit("p", GOOD).result(10).reward == pytest.approx(0.5)
    with pytest.raises(DataError, match="must be strings, not str and NoneType"):
        calls.submit("p", None)  # type: ignore[arg-type]
    calls.close()


def test_a_bonus_needs_a_reference() -> None:
    calls = MicroBatcher(PRMReward(fake(), verifiable=1.0), wait=0.1)
    without, right = calls.submit("p", GOOD), calls.submit("p", GOOD, reference="3")
    assert right.result(30).reward == pytest.approx(1.5)
    with pytest.raises(ConfigError, match="needs reference answers"):
        without.result(10)
    calls.close()


def test_a_batcher_works_after_it_was_closed_pickled_or_forked() -> None:
    calls = MicroBatcher(PRMReward(fake()))
    assert calls.submit("p", GOOD).result(10).reward == pytest.approx(0.5)
    calls.close()
    assert calls.submit("p", GOOD).result(10).reward == pytest.approx(0.5)
    copy = pickle.loads(pickle.dumps(calls))
    assert copy.submit("p", GOOD).result(10).reward == pytest.approx(0.5)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        reward = -1.0
        try:
            reward = calls.submit("p", GOOD).result(10).reward
        finally:
            os.write(write, repr(reward).encode())
            os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(read, 100)) == pytest.approx(0.5)
    for one in (calls, copy):
        one.close()


def count_loads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    loads: list[object] = []
    scorer = fake()

    def opened(prm: object, _options: object = None) -> Any:
        loads.append(prm)
        threading.Event().wait(0.05)  # other threads arrive meanwhile
        return scorer

    monkeypatch.setattr(load_prm, "open_prm", opened)
    return loads


def test_eight_threads_load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = count_loads(monkeypatch)
    one = PRMReward("some/prm")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: one.judge(["p"], [GOOD]), range(8)))
    assert loads == ["some/prm"]
    assert one.counts["completions"] == 8

    def configured(_: int) -> MicroBatcher:
        return configured_batcher({"prm": "some/prm"})

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(configured, range(8))))) == 1
    assert loads == ["some/prm"] * 2, "another reward, loaded once"


def test_copies_in_a_process_share_what_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = count_loads(monkeypatch)
    first, other = pickle.dumps(PRMReward("some/prm")), pickle.dumps(PRMReward("some/prm"))
    for _ in range(16):
        assert pickle.loads(first).judge(["p"], [GOOD])[0].reward == pytest.approx(0.5)
    assert len(loads) == 1
    pickle.loads(other).judge(["p"], [GOOD])
    assert len(loads) == 2, "another reward may have been made for other weights in the same folder"
    changing = fake()
    one = pickle.loads(pickle.dumps(PRMReward(changing)))
    two = pickle.loads(pickle.dumps(PRMReward(changing)))
    assert one.scorer is not two.scorer, "a loaded PRM brings its weights, as they are now"


def identity_of_scorer(reward: PRMReward) -> tuple[int, int, float]:
    return os.getpid(), id(reward.scorer), reward.judge(["1+1+2-1"], ["1+1=2\n\n2+2=4\n\n4-1=3\n\n#### 3"])[0].reward


def test_a_process_pool_loads_once_per_process() -> None:
    expected = example_prm("prism").solution_score("1+1+2-1", ["1+1=2", "2+2=4", "4-1=3", "#### 3"])
    reward = PRMReward(example_folder("prism"))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(identity_of_scorer, [reward] * 4))
    assert len({(process, scorer) for process, scorer, _ in found}) == len({process for process, _, _ in found}) == 1
    assert [score for _, _, score in found] == pytest.approx([expected] * 4, abs=1e-6)


def test_a_wrong_prm_raises_before_any_call(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="missing"):
        configured_batcher({"prm": str(tmp_path / "missing")})


def test_connectors_need_no_trl_and_a_served_prm_no_torch() -> None:
    code = """
import sys
for name in ("trl", "torch", "transformers", "sympy", "scipy", "pyarrow", "datasets"):
    sys.modules[name] = None  # importing it raises
import prism_prm.rl, prism_prm.rl.spans, prism_prm.rl.credit
from prism_prm.errors import PrismError
from prism_prm.rl.connectors.batcher import MicroBatcher
from prism_prm.rl.reward import PRMReward
from prism_prm.backends.open_scorer import PrmOptions
try:
    PRMReward("prism:http://127.0.0.1:9", prm_options=PrmOptions(prm_retries=0)).scorer
except PrismError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "http://127.0.0.1:9" in out.stdout, out.stderr
    assert "no connection" in out.stdout
