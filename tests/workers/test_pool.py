"""The pool's decisions, on a cluster without processes: who gets what, and what is said when workers are lost."""

from __future__ import annotations

import functools
import itertools
import os
import random
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from prism_prm import ray as prism_workers
from prism_prm.cli import app
from prism_prm.errors import ConfigError, DataError, MissingExtraError, ModelError, PrismError
from prism_prm.job import Chunk, Finished, Here, Job, Local, Opening
from prism_prm.ray import RaySettings, is_address, pool
from prism_prm.ray import cluster as copies
from prism_prm.ray.cluster import Connection, FolderCopy, connected
from prism_prm.ray.pool import IN_FLIGHT, TRIES, RayPool


class LostError(Exception):
    """What Ray says of a worker that is gone."""


class NodeError(LostError):
    """What Ray says of a worker whose node is gone."""


class UnavailableError(LostError):
    """What Ray says of a worker that cannot be reached, as long as it does not know that its node is gone."""


class TaskError(LostError):
    """What Ray says of a mistake in a task."""


class Ref:
    """What a worker will answer."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.answer: Any = None
        self.done = False


class Actor:
    """A worker that does one call whenever the cluster lets it."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.queue, self.alive = worker, deque[Ref](), True

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Ref:
            ref = Ref(functools.partial(getattr(self.worker, name), *arguments))
            self.queue.append(ref)
            if not self.alive:
                self.die()
            return ref

        return SimpleNamespace(remote=call)

    def step(self) -> None:
        ref = self.queue[0]
        try:
            ref.answer = ref.call()
        except LostError as error:
            self.die(error)
            return
        except Exception as error:  # as Ray does with any error
            ref.answer = TaskError(f"{error}")
        ref.done = True
        self.queue.popleft()

    def die(self, error: LostError | None = None) -> None:
        self.alive = False
        while self.queue:
            ref = self.queue.popleft()
            ref.answer, ref.done = type(error or LostError())("The actor died\n\tid: 7\nfor a reason"), True


class Ray:
    """The few functions of Ray that the pool uses; workers take turns at random."""

    exceptions = SimpleNamespace(
        RayError=LostError, RayTaskError=TaskError, NodeDiedError=NodeError, ActorUnavailableError=UnavailableError
    )

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.actors: list[Actor] = []
        self.options: dict[str, Any] = {}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> Any:
        self.options = options

        def make(kind: type) -> Any:
            def start() -> Actor:
                self.actors.append(Actor(kind()))
                return self.actors[-1]

            return SimpleNamespace(remote=start)

        return make

    def wait(self, refs: list[Ref], *, num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        assert len(refs) == len(set(refs)) >= num_returns
        while timeout and not any(ref.done for ref in refs):
            self.random.choice([actor for actor in self.actors if actor.queue]).step()
        return [ref for ref in refs if ref.done], []

    def get(self, ref: Ref) -> Any:
        assert ref.done
        if isinstance(ref.answer, LostError):
            raise ref.answer
        return ref.answer

    def kill(self, actor: Actor) -> None:
        actor.die()


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.ray.worker.node_name", lambda: "box/1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # workers in this process change it


def make_ten(_found: Mapping[str, str]) -> int:
    return 10


def add(held: int, work: int) -> int:
    return held + work


def chunks(numbers: range) -> Iterator[Chunk[int]]:
    return (Chunk(i, f"item {i}", i) for i in numbers)


def opened(ray: Ray, workers: int = 3, **more: Any) -> RayPool[int]:
    given: dict[str, Any] = {"make": make_ten, "folders": (), "alike": str} | more
    return RayPool(Connection(ray, workers, 1, 0.0, workers), **given)


@pytest.mark.parametrize("seed", range(5))
def test_every_chunk_comes_once_whoever_dies(seed: int, said: list[str]) -> None:
    """Workers die of some calls at random; each chunk is yielded once, with what one process would give."""
    ray = Ray(seed)
    chance = random.Random(seed)
    calls: Counter[int] = Counter()

    def fragile(held: int, work: int) -> int:
        calls[work] += 1
        if calls[work] == 1 and chance.random() < 0.2:
            raise LostError
        return held + work

    found = list(opened(ray).run(fragile, chunks(range(100))))
    assert sorted((chunk.number, result) for chunk, result in found) == [(i, i + 10) for i in range(100)]
    lost = sum("was lost" in line for line in said)
    assert lost > 5, "some did die"
    assert len(ray.actors) == 3 + lost, "and were replaced"
    assert max(calls.values()) > 1, "their chunks were done again"


def test_chunks_are_read_only_as_workers_have_room() -> None:
    read: list[int] = []

    def source() -> Iterator[Chunk[int]]:
        for chunk in chunks(range(1000)):
            read.append(chunk.number)
            yield chunk

    for done, _ in enumerate(opened(Ray(), workers=4).run(add, source()), start=1):
        assert len(read) <= done + 4 * IN_FLIGHT
    assert len(read) == 1000


def test_long_chunks_do_not_wait_at_a_busy_worker(said: list[str], tmp_path: Path) -> None:
    """Of five chunks none is given away while the four before it are not done; workers without one are counted."""
    workers = opened(Ray(), workers=4)
    longest = [0]

    def add_each(held: int, items: Mapping[str, int]) -> Iterator[Finished[int]]:
        longest.append(max(len(slot.queue) for slot in workers._slots))
        yield from (Finished(key, held + item) for key, item in items.items())

    def run(name: str, count: int) -> dict[str, int]:
        with Job(tmp_path) as job:
            return job.map(
                add_each, {str(i): i for i in range(count)}, name=name, verb="done", unit="numbers", workers=workers,
                made_with={}, kind=int, chunk=1,
            ).results  # fmt: skip

    assert run("five", 5) == {str(i): i + 10 for i in range(5)}
    assert (max(longest), said) == (1, ["Ray: 4 workers of 1 CPU core"])
    assert run("one", 1) == {"0": 10}
    assert said[1:] == [
        "Ray: 3 of 4 workers are idle: only 1 chunk left; --set at_once=N with a smaller N makes more, smaller chunks"
    ]


def test_the_chunk_that_kills_workers_is_named_and_not_its_neighbour() -> None:
    def poisoned(held: int, work: int) -> int:
        if work == 13:
            raise LostError
        return held + work

    ray = Ray()
    found = []
    with pytest.raises(
        PrismError, match=rf"^item 13: {TRIES} workers died on it, the last on node box/1: The actor died for a reason"
    ):
        found.extend(result for _, result in opened(ray, workers=1).run(poisoned, chunks(range(12, 16))))
    assert found == [22, 24, 25], "those that waited behind it at its worker were done"


def test_out_of_memory_is_a_death() -> None:
    def heavy(_held: int, _work: int) -> int:
        raise MemoryError("no more")

    with pytest.raises(
        PrismError, match=rf"^item 0: {TRIES} workers died .*: out of memory: no more\. If memory is short"
    ):
        list(opened(Ray()).run(heavy, chunks(range(1))))


def torch_error(name: str, text: str) -> RuntimeError:
    """As torch raises it; a CPU has no such errors of its own."""
    return type(name, (RuntimeError,), {})(text)


@pytest.mark.parametrize(
    ("error", "why"),
    [(torch_error("AcceleratorError", "CUDA error: an illegal memory access"), "its device failed: CUDA error: an"),
     (RuntimeError("CUDA error: device-side assert triggered"), "its device failed: CUDA error: device-side"),
     (torch_error("OutOfMemoryError", "CUDA: full"), "out of memory: CUDA: full"),
     (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory: DefaultCPUAllocator")],
)  # fmt: skip
def test_a_device_that_fails_is_a_death(error: RuntimeError, why: str, said: list[str]) -> None:
    """Once: the chunk is done by a new worker."""
    left = [error]

    def fails(held: int, work: int) -> int:
        if work == 3 and left:
            raise left.pop()
        return held + work

    found = sorted(result for _, result in opened(Ray()).run(fails, chunks(range(6))))
    assert found == [10, 11, 12, 13, 14, 15]
    assert [line for line in said if f"was lost ({why}" in line], said


def test_a_place_where_no_worker_gets_anywhere_is_given_up(said: list[str]) -> None:
    """Two workers start; the third cannot, again and again, and its place is given up."""
    made = itertools.count(1)

    def make(_found: Mapping[str, str]) -> int:
        if next(made) > 2:
            raise PrismError("the disk is full")
        return 10

    ray = Ray()
    workers = opened(ray, workers=3, make=make)
    found = sorted(result for _, result in workers.run(add, chunks(range(100))))
    assert found == list(range(10, 110))
    assert len(ray.actors) == 2 + TRIES
    assert said[-1] == (
        f"Ray: worker {({1, 2, 3} - {slot.number for slot in workers._slots}).pop()} is not restarted, 2 continue: "
        f"{TRIES} workers in a row died before they finished a chunk; the last one: the disk is full (on node box/1)"
    )


def test_without_any_place_left_the_run_ends() -> None:
    """One worker starts and is lost; none can start in its place."""
    made = itertools.count()

    def make(_found: Mapping[str, str]) -> int:
        if next(made):
            raise ModelError("the hub does not answer")
        return 10

    def dies(_held: int, _work: int) -> int:
        raise LostError

    with pytest.raises(PrismError, match=rf"^{TRIES} workers in a row .*: the hub does not answer \(on node box/1\)"):
        list(opened(Ray(), workers=1, make=make).run(dies, chunks(range(3))))


@pytest.mark.parametrize(
    ("error", "why"), [(NodeError, "its node is gone"), (UnavailableError, "its node does not answer")]
)
def test_workers_lost_with_their_nodes_are_not_held_against_a_chunk(
    error: type[LostError], why: str, said: list[str]
) -> None:
    nodes = iter(range(3 * TRIES))

    def unlucky(held: int, work: int) -> int:
        if next(nodes, None) is not None:
            raise error
        return held + work

    assert [result for _, result in opened(Ray(), workers=1).run(unlucky, chunks(range(1)))] == [10]
    assert said.count(f"Ray: worker 1 on node box/1 was lost ({why}); its chunks are repeated") == 3 * TRIES


@pytest.mark.parametrize(("gpus", "seen"), [(0.0, ""), (0.5, "0")])
def test_workers_without_gpus_see_none(gpus: float, seen: str) -> None:
    """Ray leaves all GPUs in sight of an actor that asked for none."""
    workers = RayPool(Connection(Ray(), 1, 1, gpus, 1), lambda _: os.environ["CUDA_VISIBLE_DEVICES"], (), None)
    assert workers.ask(str) == seen


def nodes(*sizes: tuple[int, int]) -> Any:
    """A cluster of nodes with so many cores and GPUs, and one that is gone."""
    alive = [{"Alive": True, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}} for cpus, gpus in sizes]
    gone = {"Alive": False, "Resources": {"CPU": 64, "GPU": 8}}
    free = {"CPU": 2.0, "GPU": 1.0}
    return SimpleNamespace(is_initialized=lambda: True, nodes=lambda: [gone, *alive], available_resources=lambda: free)


@pytest.mark.parametrize(
    ("sizes", "settings", "workers", "gpus"),
    [([(4, 0)] * 3, {}, 12, 0), ([(4, 0)] * 3, {"cpus_per_worker": 3}, 3, 0), ([(0, 0), (8, 2)], {}, 2, 1),
     ([(64, 3)], {"gpus_per_worker": 0.1}, 30, 0.1), ([(64, 3)], {"gpus_per_worker": 0.4}, 6, 0.4),
     ([(64, 3), (64, 3)], {"gpus_per_worker": 2}, 2, 2), ([(8, 2)], {"gpus_per_worker": 0}, 8, 0),
     ([(8, 2)], {"workers": 9}, 9, 1), ([(0, 0)], {"workers": 9, "gpus_per_worker": 1}, 9, 1)],
)  # fmt: skip
def test_workers_are_counted_node_by_node(
    sizes: Any, settings: Any, workers: int, gpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism_prm.ray.cluster._import_ray", lambda: nodes(*sizes))
    with connected(RaySettings(address="auto", **settings)) as cluster:
        assert (cluster.workers, cluster.gpus) == (workers, gpus)


def test_workers_that_load_nothing_take_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.ray.cluster._import_ray", lambda: nodes((8, 2)))
    with connected(RaySettings(address="auto"), loads=False) as cluster:
        assert (cluster.workers, cluster.gpus) == (8, 0)


@pytest.mark.parametrize(
    ("sizes", "settings", "said"),
    [([(4, 0)] * 8, {"address": "auto", "cpus_per_worker": 8},
      "--ray auto: there is room for 0 of 1 worker of 8 CPU cores, on 8 × 4 CPU cores. Ask for less with -R workers=…, "
      "-R cpus_per_worker=… or -R gpus_per_worker=…, or set -R workers=… to wait for more nodes."),
     ([(2, 0)], {"address": "local", "workers": 4},
      "--ray: there is room for 2 of 4 workers of 1 CPU core, on 1 × 2 CPU cores. Ask for less with -R workers=…, "
      "-R cpus_per_worker=… or -R gpus_per_worker=…."),
     ([(2, 0)], {"address": "local", "workers": 1, "gpus_per_worker": 1},
      "--ray: there is room for 0 of 1 worker of 1 CPU core and 1 GPU, on 1 × 2 CPU cores. Ask for less with "
      "-R workers=…, -R cpus_per_worker=… or -R gpus_per_worker=…."),
     ([(0, 0)], {"address": "auto", "workers": 8},
      "--ray auto: there is room for 0 of 8 workers, and no node has a GPU yet. To wait for nodes with GPUs, set "
      "-R gpus_per_worker=1; to run on CPUs, set -R gpus_per_worker=0.")],
)  # fmt: skip
def test_workers_that_can_never_start_are_refused(
    sizes: Any, settings: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism_prm.ray.cluster._import_ray", lambda: nodes(*sizes))
    with pytest.raises(ConfigError) as raised, connected(RaySettings(**settings)):
        pass
    assert str(raised.value) == said


def test_who_waits_says_what_for(said: list[str]) -> None:
    RayPool(Connection(Ray(), 8, 4, 1.0, 3), make_ten, (), None)
    assert said == ["Ray: 8 workers of 4 CPU cores and 1 GPU; 5 of them wait for more nodes"]
    shortage = Connection(nodes((4, 1)), 8, 4, 1.0, 3).describe_shortage()
    assert shortage == "each needs 4 CPU cores and 1 GPU on one node, and the cluster has 2 CPU cores and 1 GPU free"


def test_an_error_of_an_item_is_the_users_with_its_node() -> None:
    def reads(_held: int, work: int) -> int:
        raise DataError(f"data.jsonl:{work}: no steps")

    with pytest.raises(DataError, match=r"^data\.jsonl:\d+: no steps \(on node box/1\)$"):
        list(opened(Ray()).run(reads, chunks(range(7))))


def test_our_own_mistakes_name_the_chunk() -> None:
    with pytest.raises(TaskError) as raised:
        list(opened(Ray()).run(lambda held, work: held // work, chunks(range(1))))
    assert raised.value.__notes__ == ["item 0, on node box/1"]


def test_what_was_left_behind_is_not_mistaken_for_new_work() -> None:
    workers = opened(Ray())
    for _ in workers.run(add, chunks(range(50))):
        break
    assert sorted(result for _, result in workers.run(lambda _, work: -work, chunks(range(4)))) == [-3, -2, -1, 0]
    assert workers.ask(lambda held: held + 1) == 11


def test_a_worker_that_holds_something_else_is_refused() -> None:
    holds = itertools.count()
    with pytest.raises(ModelError, match=r"^/ on node box/1 is not the same as on node box/1: other weights"):
        list(opened(Ray(), make=lambda _: next(holds), folders=["/"]).run(add, chunks(range(9))))


def test_a_worker_started_later_is_checked_too() -> None:
    """The first three agree; the one in the place of a lost one does not."""
    holds = iter([1, 1, 1, 2])
    calls = itertools.count()

    def once(_held: int, work: int) -> int:
        if next(calls) == 20:
            raise LostError
        return work

    with pytest.raises(ModelError, match="is not the same as on node"):
        list(opened(Ray(), make=lambda _: next(holds)).run(once, chunks(range(100))))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.ray.worker.__version__", "0.0.1")
    with pytest.raises(ConfigError, match=r"^node box/1 has prism-prm 0\.0\.1, but this is .*; install the same"):
        opened(Ray()).ask(str)


def test_workers_that_never_start() -> None:
    def dies(_found: Mapping[str, str]) -> int:
        raise LostError

    ray = Ray()
    with pytest.raises(PrismError, match=f"^{TRIES} workers in a row died before they finished a chunk; the last one"):
        opened(ray, workers=1, make=dies).ask(str)
    assert len(ray.actors) == TRIES


def test_what_cannot_be_loaded_is_the_users_error() -> None:
    def refuses(_found: Mapping[str, str]) -> int:
        raise ModelError("prm: no weights")

    with pytest.raises(ModelError, match=r"^prm: no weights \(on node box/1\)$"):
        opened(Ray(), make=refuses).ask(str)


def test_a_folder_that_nodes_do_not_see_is_packed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed: list[str] = []

    def pack(_ray: Any, folder: str) -> FolderCopy:
        packed.append(folder)
        return FolderCopy("content", ())

    monkeypatch.setattr(pool, "pack", pack)
    monkeypatch.setattr("prism_prm.ray.worker.unpack", lambda copy: f"copy of {copy.content}")
    made: list[Mapping[str, str]] = []
    workers = opened(
        Ray(), folders=[str(tmp_path), "/not/here"], make=lambda found: made.append(found) or 10, alike=None
    )
    assert len(list(workers.run(add, chunks(range(50))))) == 50
    assert packed == ["/not/here"]
    assert made == [{str(tmp_path): str(tmp_path), "/not/here": "copy of content"}] * 3


def test_actors_get_the_resources_asked_for() -> None:
    ray = Ray()
    RayPool(Connection(ray, 2, 4, 0.5, 2), make_ten, (), None)
    assert ray.options == {"num_cpus": 4, "num_gpus": 0.5, "scheduling_strategy": "SPREAD", "max_restarts": 0}


def test_rates_are_those_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=0.5)
    monkeypatch.setattr("prism_prm.ray.worker.time.perf_counter", lambda: next(clock))
    workers = opened(Ray(), workers=2)
    list(workers.run(add, (Chunk(i, "", i, size=10) for i in range(20))))
    assert workers.rates() == "worker 1: 20.0/s, worker 2: 20.0/s"


def test_many_rates_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=0.5)
    monkeypatch.setattr("prism_prm.ray.worker.time.perf_counter", lambda: next(clock))
    workers = opened(Ray(), workers=9)
    list(workers.run(add, (Chunk(i, "", i, size=10) for i in range(200))))
    assert workers.rates() == "9 workers: 20.0 to 20.0/s each"


def test_a_node_without_the_package() -> None:
    def bare(_found: Mapping[str, str]) -> int:
        raise ModuleNotFoundError("No module named 'prism_prm'")

    with pytest.raises(ConfigError, match=r"^a node of the cluster has no prism-prm; install prism-prm\[ray\] on"):
        opened(Ray(), make=bare).ask(str)


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", r"^--ray 127\.0\.0\.1:1: no Ray cluster answers there \(no such\)\. Start one with `ray start"),
     ("local", r"^--ray: Ray did not start on this machine \(no such\)\. Rerun the same command\.$")],
)  # fmt: skip
def test_a_cluster_that_does_not_answer(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = SimpleNamespace(is_initialized=lambda: False, init=raises(ConnectionError("no such\nplace")))
    monkeypatch.setattr("prism_prm.ray.cluster._import_ray", lambda: ray)
    with pytest.raises(PrismError, match=said), connected(RaySettings(address=address)):
        pass


def test_a_folder_is_packed_and_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prm" / "deep").mkdir(parents=True)
    (tmp_path / "prm" / "weights").write_bytes(bytes(range(100)))
    (tmp_path / "prm" / "deep" / "empty").touch()
    monkeypatch.setattr("prism_prm.ray.cluster.CHUNK", 30)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    got: list[bytes] = []
    ray: Any = SimpleNamespace(put=lambda chunk: chunk, get=lambda chunk: got.append(chunk) or chunk)
    monkeypatch.setitem(sys.modules, "ray", ray)
    copy = copies.pack(ray, str(tmp_path / "prm"))
    assert [(name, len(chunks)) for name, chunks in copy.files] == [("deep/empty", 0), ("weights", 4)]
    folder = Path(copies.unpack(copy))
    assert (folder / "weights").read_bytes() == bytes(range(100))
    assert (folder / "deep" / "empty").read_bytes() == b""
    assert copies.unpack(copy) == str(folder)
    assert len(got) == 4, "the second worker of a node finds it"
    (tmp_path / "prm" / "weights").write_bytes(bytes(100))
    assert copies.pack(ray, str(tmp_path / "prm")).content != copy.content


def raises(error: Exception) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_without_settings_the_work_is_done_here() -> None:
    with Local().open(Opening(make_ten)) as workers:
        assert isinstance(workers, Here)
        assert [(chunk.number, result) for chunk, result in workers.run(add, chunks(range(3)))] == [
            (0, 10), (1, 11), (2, 12),
        ]  # fmt: skip
        assert workers.ask(str) == "10"
        assert workers.rates() == ""


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("auto", True), ("local", True), ("10.0.0.1:6379", True), ("head.svc:6379", True), ("ray://head:10001", True),
     ("[::1]:6379", True), ("trees.jsonl", False), ("head", False), ("", False), ("--json", False)],
)  # fmt: skip
def test_addresses(text: str, is_one: bool) -> None:
    assert is_address(text) == is_one


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert RaySettings().given is None
    with pytest.raises(MissingExtraError, match=r"^This needs Ray\. Install it with: pip install 'prism-prm\[ray\]'$"):
        RaySettings(address="local").given  # noqa: B018
    monkeypatch.setitem(sys.modules, "ray", None)
    cluster = prism_workers.Ray(RaySettings(address="local"))
    with pytest.raises(MissingExtraError, match="prism-prm"), cluster.open(Opening(make_ten)):
        pass


def test_the_command_line_imports_ray_only_to_use_it_and_the_driver_no_torch() -> None:
    code = "import sys; from prism_prm.cli import app; import prism_prm.evaluate.score_files\n"
    code += "sys.exit(str({'ray', 'torch'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.stderr == "set()\n"


@pytest.mark.parametrize(
    ("words", "address"),
    [("a --ray", "local"), ("--ray a.jsonl", "local"), ("--ray auto a", "auto"), ("a --ray h:1 --json", "h:1"),
     ("a --ray -R workers=2", "local"), ("a", None)],
)  # fmt: skip
def test_ray_without_an_address_is_this_machine(words: str, address: str | None) -> None:
    command = app.get_command(click.Context(app), "score")
    assert command is not None
    assert command.make_context("score", words.split()).params["ray"] == address


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"address": "trees.jsonl"}, "must be HOST:PORT, ray"), ({"workers": 2}, "needs --ray"),
     ({"gpus_per_worker": 1.0}, "needs --ray"), ({"cpus_per_worker": 2}, "needs --ray"),
     ({"address": "auto", "workers": 0}, "must be 1 or more"),
     ({"address": "auto", "gpus_per_worker": -1.0}, "0 or more"),
     ({"address": "auto", "gpus_per_worker": 1.5}, "must be a whole number")],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RaySettings(**settings)


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), 9)", "sys.exit(0)", "raise KeyboardInterrupt"])
def test_a_driver_that_ends_without_a_word_still_has_a_last_line(end: str) -> None:
    """As Ray ends it when one of its own processes on this machine dies."""
    code = f"""
import os, sys, types
resources = {{"Alive": True, "Resources": {{"CPU": 2}}}}
sys.modules["ray"] = types.SimpleNamespace(is_initialized=lambda: True, nodes=lambda: [resources])
from prism_prm.ray.cluster import connected
from prism_prm.ray import RaySettings
with connected(RaySettings(address="auto", workers=1)):
    {end}
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    is_silent = end.startswith("os.")
    assert ("error: Ray ended this command, or it was killed. Rerun it to resume." in found.stderr) == is_silent
