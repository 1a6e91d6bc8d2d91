"""`MicroBatcher`: single calls from threads and coroutines become batches for one PRM.

Frameworks ask for one reward at a time, from many threads or coroutines. The calls that are waiting are judged
together, in one thread: completions of a problem share a packed tree, and the PRM is used by one thread only.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from prism_prm.errors import DataError
from prism_prm.rl.reward import Judged, PRMReward, configured_reward

WAIT = 0.01
"""Seconds that the first call of a batch waits for others. While a batch is scored, the next one fills up anyway."""
MOST = 256
"""The most completions per batch."""


class RewardFailure(BaseException):
    """A reward that could not be computed, raised where a framework swallows every `Exception` and trains on."""


@dataclass(frozen=True, slots=True)
class _Call:
    problem: str
    text: str
    cut: bool
    reference: object | None
    future: Future[Judged] = field(default_factory=Future)


class MicroBatcher:
    """Judges single completions in batches. Errors are raised in every call of the batch, never turned into rewards.

    The thread starts with the first call, also in a forked or unpickled copy.

    Args:
        reward: judges the completions.
        wait: seconds that the first call of a batch waits for others.
        most: the most completions per batch.
    """

    def __init__(self, reward: PRMReward, *, wait: float = WAIT, most: int = MOST) -> None:
        self.reward, self.wait, self.most = reward, wait, most
        self._start()

    def _start(self) -> None:
        self.sizes: deque[int] = deque(maxlen=1000)
        """The sizes of the last batches."""
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"reward": self.reward, "wait": self.wait, "most": self.most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = dict(state)
        self._start()

    def submit(self, problem: str, text: str, *, cut: bool = False, reference: object | None = None) -> Future[Judged]:
        """Queue one completion; `reference` is the right answer, if there is one."""
        given: tuple[Any, ...] = (problem, text)
        if not all(isinstance(one, str) for one in given):
            found = " and ".join(type(one).__name__ for one in given)
            raise DataError(f"problem and completion must be strings, not {found}", reason="wrong-type")
        if self._process != os.getpid():  # a thread does not survive a fork
            self._start()
        call = _Call(problem, text, cut, reference)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="prism-rewards", daemon=True)
                self._thread.start()
            self._calls.put(call)
        return call.future

    async def judge(self, problem: str, text: str, *, cut: bool = False, reference: object | None = None) -> Judged:
        """The outcome of one completion, for coroutines of any event loop."""
        return await asyncio.wrap_future(self.submit(problem, text, cut=cut, reference=reference))

    def close(self) -> None:
        """Finish the calls that wait, then end the thread, and the processes that judge answers."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._calls.put(None)
        if thread is not None:
            thread.join()
        self.reward.close()

    def _work(self) -> None:
        is_open = True
        while is_open:
            call = self._calls.get()
            end = time.monotonic() + self.wait
            batch = []
            while call is not None:
                batch.append(call)
                if len(batch) >= self.most:
                    break
                try:
                    call = self._calls.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    break
            is_open = call is not None
            # Only calls with a reference can get a bonus, so the two kinds are judged apart.
            for has_reference in (True, False):
                self._judge([one for one in batch if (one.reference is not None) is has_reference])

    def _judge(self, batch: list[_Call]) -> None:
        batch = [call for call in batch if call.future.set_running_or_notify_cancel()]
        if not batch:
            return
        self.sizes.append(len(batch))
        references = None if batch[0].reference is None else [call.reference for call in batch]
        try:
            judged = self.reward.judge(
                [call.problem for call in batch], [call.text for call in batch], cut=[call.cut for call in batch],
                references=references,
            )  # fmt: skip
            assert len(judged) == len(batch), "one outcome per completion"
        except BaseException as error:  # RewardFailure too; the caller gets it from its future
            for call in batch:
                call.future.set_exception(error)
            return
        for call, outcome in zip(batch, judged, strict=True):
            call.future.set_result(outcome)


_BATCHERS: dict[int, MicroBatcher] = {}
_LOCK = threading.Lock()


def configured_batcher(options: Mapping[str, Any] | None = None) -> MicroBatcher:
    """The batcher of the reward with these options; one per process for equal options. A wrong PRM raises at once.

    Options that are not given come from environment variables: `PRISM_RL_PRM`, `PRISM_RL_VERIFIABLE`, ….
    """
    reward = configured_reward(options)
    _ = reward.scorer
    with _LOCK:
        if id(reward) not in _BATCHERS:
            _BATCHERS[id(reward)] = MicroBatcher(reward)
        return _BATCHERS[id(reward)]


def logged(outcome: Judged) -> dict[str, float]:
    """The parts of a reward, as numbers for a framework's log."""
    return {
        "prm": outcome.prm_reward, "bonus": outcome.bonus, "gated": float(outcome.gated), "cut": float(outcome.cut),
        "steps": float(len(outcome.steps)), "unreadable_steps": float(outcome.num_unreadable),
    }  # fmt: skip


def step_scores(outcome: Judged) -> dict[str, list[Any]]:
    """The steps and P(right) of each for a JSON file, which has no NaN: a step that could not be read has None."""
    return {
        "steps": list(outcome.steps), "probabilities": [None if p != p else p for p in outcome.probabilities]
    }  # fmt: skip
