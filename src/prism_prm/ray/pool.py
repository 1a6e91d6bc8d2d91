"""A pool of Ray actors that is fed chunks: a few in flight each, and a lost worker costs only those.

The driver starts a new worker in place of a lost one, checks that it holds what the first one held, and gives the lost
chunks to whoever is free. A chunk that was first in line at a worker that died is suspected of having killed it;
after `TRIES` such deaths the run ends and names it. A place whose workers do nothing but die is given up after as many,
and the others go on. Neither counts workers that were lost with their node, or whose node does not answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from prism_prm import __version__
from prism_prm.console import say
from prism_prm.errors import ConfigError, ModelError, PrismError
from prism_prm.job import Chunk, Held, Result, Work
from prism_prm.ray.cluster import Connection, FolderCopy, pack
from prism_prm.ray.worker import Broken, Done, Lacks, Ready, Refusal, Worker

IN_FLIGHT = 2
"""Chunks at a worker: one that it works on, and one that waits there, so that it is never idle."""
TRIES = 4
"""How many workers may die of a chunk, or in a row in one place before one of them has finished anything."""
SECONDS_BEFORE_NOTE = 30.0
"""Seconds without any worker after which a note says what is waited for."""

HINT = "If memory is short, use fewer workers per node, or smaller chunks."

SHOWN = 8
"""Workers whose rates are shown one by one."""


@dataclass(slots=True)
class _Task:
    """A chunk on its way."""

    chunk: Chunk[Any]
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Slot:
    """The place of a worker, which several may hold one after the other."""

    number: int
    actor: Any = None
    starting: Any = None
    """What `prepare` will answer, until it has."""
    node: str = ""
    process: int = 0
    deaths: int = 0
    """Of workers that finished nothing, in a row."""
    queue: deque[tuple[Any, _Task]] = field(default_factory=deque)
    """What will be answered, and the tasks, in the order in which the worker does them."""
    items: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Lost:
    """A worker that is gone, or must go."""

    why: str
    with_node: bool = False
    """Whether its whole node is gone or out of reach, so that nothing is to be learned from it."""


class RayPool(Generic[Held]):
    """Workers of a cluster; see `Workers`."""

    def __init__(
        self,
        cluster: Connection,
        make: Callable[[Mapping[str, str]], Held],
        folders: Sequence[str],
        alike: Callable[[Held], str] | None,
    ) -> None:
        self.cluster, self.folders = cluster, tuple(folders)
        self._ray = cluster.ray
        self._made_by = self._ray.put((make, alike))
        self._copies: dict[str, FolderCopy] = {}
        self._first: Ready | None = None
        self._actor = self._ray.remote(
            num_cpus=cluster.cpus, num_gpus=cluster.gpus, scheduling_strategy="SPREAD", max_restarts=0
        )(Worker)
        waiting = cluster.workers - cluster.room
        say(f"Ray: {cluster.described()}" + (f"; {waiting} of them wait for more nodes" if waiting > 0 else ""))
        self._slots = [_Slot(number) for number in range(1, cluster.workers + 1)]
        for slot in self._slots:
            self._start(slot)

    def close(self) -> None:
        """End all workers."""
        for slot in self._slots:
            self._ray.kill(slot.actor)
        self._slots = []

    @property
    def num_workers(self) -> int:
        """Those that work, start, or wait for a node."""
        return len(self._slots)

    def ask(self, act: Callable[[Held], Result]) -> Result:
        """What one of the workers says."""
        [(_, said)] = self.run(lambda held, _: act(held), [Chunk(0, "a question to a worker", None, 0)])
        return said

    def rates(self) -> str:
        """Items per second of each worker while it works."""
        known = {slot.number: slot.items / slot.seconds for slot in self._slots if slot.seconds}
        if len(known) > SHOWN:
            return f"{len(known)} workers: {min(known.values()):,.1f} to {max(known.values()):,.1f}/s each"
        return ", ".join(f"worker {number}: {rate:,.1f}/s" for number, rate in known.items())

    def run(
        self, act: Callable[[Held, Work], Result], chunks: Iterable[Chunk[Work] | None], *, queued: bool = True
    ) -> Iterator[tuple[Chunk[Work], Result]]:
        """Do `act` on every chunk."""
        new = iter(chunks)
        again: deque[_Task] = deque()
        by = self._ray.put(act)
        try:
            while True:
                has_more = self._feed(by, new, again, IN_FLIGHT if queued else 1)
                if not has_more and not any(slot.queue for slot in self._slots):
                    return
                for slot in self._answering():
                    if slot.starting is not None:
                        self._started(slot)
                    else:
                        yield from self._answer(slot, again)
        finally:
            for slot in self._slots:  # what nobody waits for any more; workers still finish it first
                slot.queue.clear()

    def _feed(self, by: Any, new: Iterator[Chunk[Any] | None], again: deque[_Task], in_flight: int) -> bool:
        """Give work to all who have room, the least busy first; whether there may be more."""
        for room in range(in_flight):
            for slot in self._slots:
                if slot.starting is None and len(slot.queue) <= room:
                    try:
                        chunk = again[0].chunk if again else next(new)
                    except StopIteration:
                        return False
                    if chunk is None:
                        return True
                    task = again.popleft() if again else _Task(chunk)
                    slot.queue.append((slot.actor.act.remote(by, task.chunk.work), task))
        return True

    def _answering(self) -> list[_Slot]:
        """Wait until some workers have answered."""
        waited = 0.0
        while True:
            heads = {slot.starting or slot.queue[0][0]: slot for slot in self._slots if slot.starting or slot.queue}
            ready, _ = self._ray.wait(list(heads), num_returns=len(heads), timeout=0)
            if not ready:
                ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=SECONDS_BEFORE_NOTE)
            if ready:
                return [heads[ref] for ref in ready]
            waited += SECONDS_BEFORE_NOTE
            if all(slot.starting is not None for slot in self._slots):
                needs = self.cluster.waiting()
                say(f"Ray: no worker after {waited:.0f} s; they load the model, or have no room: {needs}")

    def _start(self, slot: _Slot) -> None:
        slot.actor = self._actor.remote()
        self._prepare(slot)

    def _prepare(self, slot: _Slot) -> None:
        size = self.cluster.cpus, self.cluster.gpus
        slot.starting = slot.actor.prepare.remote(self._made_by, self.folders, self._copies, *size)

    def _started(self, slot: _Slot) -> None:
        """Take in what a new worker says."""
        said = self._got(slot.starting, "a worker that starts")
        slot.starting = None
        match said:
            case Ready():  # all workers must hold the same, or results would depend on who did what
                first = self._first = self._first or said
                if said.version != __version__:
                    raise ConfigError(
                        f"node {said.node} has prism-prm {said.version}, but this is {__version__}; install the same "
                        "on all nodes"
                    )
                if said.holds != first.holds:
                    raise ModelError(
                        f"{', '.join(self.folders) or 'the model'} on node {said.node} is not the same as on node "
                        f"{first.node}: other weights, settings or precision. Give all nodes the same files and "
                        "devices."
                    )
                slot.node, slot.process = said.node, said.process
            case Lacks():
                for folder in said.folders:
                    if folder not in self._copies:
                        say(f"Ray: copying {folder} to nodes that do not see it")
                        self._copies[folder] = pack(self._ray, folder)
                self._prepare(slot)
            case Refusal() if self._first is None:
                raise said.error()
            case Refusal():  # others could start, so it is about the node
                self._replace(slot, _Lost(str(said.error())))
            case _:
                self._replace(slot, said)

    def _answer(self, slot: _Slot, again: deque[_Task]) -> Iterator[tuple[Chunk[Any], Any]]:
        """What a worker has to say to its first task."""
        ref, task = slot.queue.popleft()
        said = self._got(ref, f"{task.chunk.name}, on node {slot.node}")
        match said:
            case Done():
                slot.deaths = 0
                slot.items += task.chunk.size
                slot.seconds += said.seconds
                yield task.chunk, said.result
            case Refusal():
                raise said.error()
            case _:
                task.deaths += not said.with_node
                if task.deaths >= TRIES:
                    raise PrismError(
                        f"{task.chunk.name}: {TRIES} workers died of it, the last on node {slot.node}: {said.why}. "
                        f"{HINT}"
                    )
                say(f"Ray: worker {slot.number} on node {slot.node} was lost ({said.why}); its chunks are repeated")
                again.extend([*(waiting for _, waiting in slot.queue), task])  # the suspect last
                self._replace(slot, said)

    def _replace(self, slot: _Slot, lost: _Lost) -> None:
        """Start a new worker in the place of one; a place where none gets anywhere is given up."""
        slot.queue.clear()
        self._ray.kill(slot.actor)  # it may be out of memory, or out of reach, rather than dead
        slot.deaths += not lost.with_node
        if slot.deaths < TRIES:
            self._start(slot)
            return
        said = f"{TRIES} workers in a row died before they finished anything; the last one: {lost.why}"
        self._slots.remove(slot)
        if self._first is None or not self._slots:
            raise PrismError(f"{said}. {HINT}")
        say(f"Ray: worker {slot.number} is given up, and {len(self._slots)} go on: {said}")

    def _got(self, ref: Any, what: str) -> Any:
        """What was answered, or how the worker was lost."""
        errors = self._ray.exceptions
        try:
            said = self._ray.get(ref)
        except errors.RayError as error:
            if "No module named 'prism_prm'" in str(error):
                raise ConfigError(
                    "a node of the cluster has no prism-prm; install it on all of them as here, with the extra [ray]"
                ) from None
            if isinstance(error, errors.RayTaskError):  # our own mistake; its text has the worker's traceback
                error.add_note(what)
                raise
            if isinstance(error, errors.ActorUnavailableError):  # a node is lost, and Ray has not noticed yet
                return _Lost("its node does not answer", with_node=True)
            why = " ".join(line for line in str(error).strip().splitlines() if not line.startswith("\t"))  # ids
            if isinstance(error, errors.NodeDiedError) or getattr(error, "preempted", False) or "node has died" in why:
                return _Lost("its node is gone", with_node=True)
            return _Lost(why)
        return _Lost(said.text) if isinstance(said, Broken) else said
