"""A pool of Ray actors. Each has a few chunks in flight, and a lost worker costs only those.

When a worker is lost, the driver starts another, checks that it holds the same model as the first one, and requeues the
lost chunks. The chunk that a worker was computing when it died is the suspect: after `TRIES` deaths the run stops with
an error that names the chunk. A slot whose workers die `TRIES` times in a row without finishing a chunk is closed, and
the other workers continue. Workers that are lost because their node is gone or unreachable do not count.
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
from prism_prm.ray.worker import Broken, Done, Failed, Missing, Ready, Worker

IN_FLIGHT = 2
"""Chunks per worker: one that it computes, and one that waits in its queue, so that it is never idle."""
TRIES = 4
"""How many workers may die on one chunk, or in a row in one slot before any of them has finished a chunk."""
SECONDS_BEFORE_NOTE = 30.0
"""Seconds without a running worker after which a note explains the wait."""

HINT = "If memory is short, use fewer workers per node, or smaller chunks."

SHOWN = 8
"""With more workers than this, only the range of their rates is shown."""


@dataclass(slots=True)
class _Task:
    """A chunk, and how many workers died on it."""

    chunk: Chunk[Any]
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Slot:
    """One of the pool's workers. A lost worker is replaced in its slot."""

    number: int
    actor: Any = None
    starting: Any = None
    """The reference to the result of `Worker.prepare`; None once the worker is ready."""
    node: str = ""
    process: int = 0
    deaths: int = 0
    """Workers in a row that died before they finished a chunk."""
    queue: deque[tuple[Any, _Task]] = field(default_factory=deque)
    """References to results with their tasks, in the order in which the worker does them."""
    items: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Lost:
    """A worker that died, or that must be replaced."""

    why: str
    with_node: bool = False
    """Whether its node is gone or unreachable, so that the chunk is not to blame."""


class RayPool(Generic[Held]):
    """The `Workers` of a Ray cluster."""

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
        say(f"Ray: {cluster.describe()}" + (f"; {waiting} of them wait for more nodes" if waiting > 0 else ""))
        self._slots = [_Slot(number) for number in range(1, cluster.workers + 1)]
        for slot in self._slots:
            self._start(slot)

    def close(self) -> None:
        """Stop all workers."""
        for slot in self._slots:
            self._ray.kill(slot.actor)
        self._slots = []

    @property
    def num_workers(self) -> int:
        """Workers that are running, starting, or waiting for a node."""
        return len(self._slots)

    def ask(self, act: Callable[[Held], Result]) -> Result:
        """Call a function on one of the workers."""
        [(_, result)] = self.run(lambda held, _: act(held), [Chunk(0, "a call to one worker", None, 0)])
        return result

    def rates(self) -> str:
        """Items per second of each worker, idle time excluded."""
        known = {slot.number: slot.items / slot.seconds for slot in self._slots if slot.seconds}
        if len(known) > SHOWN:
            return f"{len(known)} workers: {min(known.values()):,.1f} to {max(known.values()):,.1f}/s each"
        return ", ".join(f"worker {number}: {rate:,.1f}/s" for number, rate in known.items())

    def run(
        self, act: Callable[[Held, Work], Result], chunks: Iterable[Chunk[Work] | None], *, queued: bool = True
    ) -> Iterator[tuple[Chunk[Work], Result]]:
        """Run `act` on every chunk; yield each chunk with its result."""
        new = iter(chunks)
        retries: deque[_Task] = deque()
        act_ref = self._ray.put(act)
        try:
            while True:
                has_more = self._submit(act_ref, new, retries, IN_FLIGHT if queued else 1)
                if not has_more and not any(slot.queue for slot in self._slots):
                    return
                for slot in self._wait():
                    if slot.starting is not None:
                        self._finish_start(slot)
                    else:
                        yield from self._finish_task(slot, retries)
        finally:
            for slot in self._slots:  # abandoned results; workers still finish them first
                slot.queue.clear()

    def _submit(self, act_ref: Any, new: Iterator[Chunk[Any] | None], retries: deque[_Task], in_flight: int) -> bool:
        """Fill the queues, the shortest first. Returns whether there may be more chunks."""
        for room in range(in_flight):
            for slot in self._slots:
                if slot.starting is None and len(slot.queue) <= room:
                    try:
                        chunk = retries[0].chunk if retries else next(new)
                    except StopIteration:
                        return False
                    if chunk is None:
                        return True
                    task = retries.popleft() if retries else _Task(chunk)
                    slot.queue.append((slot.actor.act.remote(act_ref, task.chunk.work), task))
        return True

    def _wait(self) -> list[_Slot]:
        """Wait until at least one worker has a result; return the slots that do."""
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
                shortage = self.cluster.describe_shortage()
                say(f"Ray: no worker after {waited:.0f} s; they are loading the model, or have no room: {shortage}")

    def _start(self, slot: _Slot) -> None:
        slot.actor = self._actor.remote()
        self._prepare(slot)

    def _prepare(self, slot: _Slot) -> None:
        size = self.cluster.cpus, self.cluster.gpus
        slot.starting = slot.actor.prepare.remote(self._made_by, self.folders, self._copies, *size)

    def _finish_start(self, slot: _Slot) -> None:
        """Check a new worker, or send it the folders that it lacks."""
        reply = self._get(slot.starting, "a worker that starts")
        slot.starting = None
        match reply:
            case Ready():  # all workers must hold the same model, or results would depend on the worker
                first = self._first = self._first or reply
                if reply.version != __version__:
                    raise ConfigError(
                        f"node {reply.node} has prism-prm {reply.version}, but this is {__version__}; install the same "
                        "version on all nodes"
                    )
                if reply.holds != first.holds:
                    raise ModelError(
                        f"{', '.join(self.folders) or 'the model'} on node {reply.node} is not the same as on node "
                        f"{first.node}: other weights, settings or precision. Give all nodes the same files and "
                        "devices."
                    )
                slot.node, slot.process = reply.node, reply.process
            case Missing():
                for folder in reply.folders:
                    if folder not in self._copies:
                        say(f"Ray: copying {folder} to nodes that do not have it")
                        self._copies[folder] = pack(self._ray, folder)
                self._prepare(slot)
            case Failed() if self._first is None:
                raise reply.error()
            case Failed():  # others started, so this node is the problem
                self._replace(slot, _Lost(str(reply.error())))
            case _:
                self._replace(slot, reply)

    def _finish_task(self, slot: _Slot, retries: deque[_Task]) -> Iterator[tuple[Chunk[Any], Any]]:
        """Yield the result of the first task in a worker's queue, or replace the worker if it was lost."""
        ref, task = slot.queue.popleft()
        reply = self._get(ref, f"{task.chunk.name}, on node {slot.node}")
        match reply:
            case Done():
                slot.deaths = 0
                slot.items += task.chunk.size
                slot.seconds += reply.seconds
                yield task.chunk, reply.result
            case Failed():
                raise reply.error()
            case _:
                task.deaths += not reply.with_node
                if task.deaths >= TRIES:
                    raise PrismError(
                        f"{task.chunk.name}: {TRIES} workers died on it, the last on node {slot.node}: {reply.why}. "
                        f"{HINT}"
                    )
                say(f"Ray: worker {slot.number} on node {slot.node} was lost ({reply.why}); its chunks are repeated")
                retries.extend([*(queued for _, queued in slot.queue), task])  # the suspect last
                self._replace(slot, reply)

    def _replace(self, slot: _Slot, lost: _Lost) -> None:
        """Start another worker in a slot, or close the slot if too many died there."""
        slot.queue.clear()
        self._ray.kill(slot.actor)  # it may be out of memory or unreachable rather than dead
        slot.deaths += not lost.with_node
        if slot.deaths < TRIES:
            self._start(slot)
            return
        reason = f"{TRIES} workers in a row died before they finished a chunk; the last one: {lost.why}"
        self._slots.remove(slot)
        if self._first is None or not self._slots:
            raise PrismError(f"{reason}. {HINT}")
        say(f"Ray: worker {slot.number} is not restarted, {len(self._slots)} continue: {reason}")

    def _get(self, ref: Any, what: str) -> Any:
        """The worker's reply, or a `_Lost`."""
        errors = self._ray.exceptions
        try:
            reply = self._ray.get(ref)
        except errors.RayError as error:
            if "No module named 'prism_prm'" in str(error):
                raise ConfigError(
                    "a node of the cluster has no prism-prm; install prism-prm[ray] on all nodes, in this version"
                ) from None
            if isinstance(error, errors.RayTaskError):  # a bug of ours; the message has the worker's traceback
                error.add_note(what)
                raise
            if isinstance(error, errors.ActorUnavailableError):  # a node is lost, and Ray has not noticed yet
                return _Lost("its node does not answer", with_node=True)
            why = " ".join(line for line in str(error).strip().splitlines() if not line.startswith("\t"))  # ids
            if isinstance(error, errors.NodeDiedError) or getattr(error, "preempted", False) or "node has died" in why:
                return _Lost("its node is gone", with_node=True)
            return _Lost(why)
        return _Lost(reply.text) if isinstance(reply, Broken) else reply
