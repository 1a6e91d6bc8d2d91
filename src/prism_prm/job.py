"""`Job`: one run of one command in one folder. A killed run resumes when the same command is run again.

    with Job("out", executor=Local()) as job:
        size = job.once("size", lambda: measure(seed), seed=seed)
        with job.executor.open(Opening(load_model)) as workers:
            done = job.map(search_chunk, problems, name="beam", workers=workers, kind=SearchResult, …)

- The folder is locked while the job runs. Jobs nest: a job in a subfolder is a job of its own.
- `once` caches a result by its inputs. `map` processes the items that are not done yet, in this process or on the
  workers of an `executor`, and appends each result to a journal.

Two things are resumed elsewhere: scores by the score store (`store.py`), and weights by checkpoints (`train/loop.py`;
with TRL in `rl/trainer.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from prism_prm.config import to_toml
from prism_prm.console import progress, say
from prism_prm.errors import ConfigError, DataError, PrismError
from prism_prm.files import JsonLines, remove_parts, write_text, writing
from prism_prm.paths import file_name

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")
Held = TypeVar("Held")
Held_co = TypeVar("Held_co", covariant=True)
Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class Opening(Generic[Held_co]):
    """How a worker creates its state: a PRM, or a policy with a PRM."""

    make: Callable[[Mapping[str, str]], Held_co]
    """Creates the state, given a mapping of folders: path on the driver → path on the worker's machine."""
    folders: tuple[str, ...] = ()
    """Folders that `make` reads. A machine that cannot see one gets a copy, shared by all its workers."""
    loads: bool = True
    """Whether it loads a model; if not, workers get no GPU unless the settings ask for one."""


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Work]):
    """Items that one worker processes together."""

    number: int
    name: str
    """Its name in messages, e.g. "trees 65 to 128"."""
    work: Work
    size: int = 1
    """The number of items, for rates."""


class Workers(Protocol[Held_co]):
    """This process, or the workers of a Ray cluster."""

    @property
    def num_workers(self) -> int: ...

    def run(
        self, act: Callable[[Held_co, Work], Result], chunks: Iterable[Chunk[Work] | None], *, queued: bool = True
    ) -> Iterator[tuple[Chunk[Work], Result]]:
        """Call `act` on every chunk; yields each chunk once with its result, in any order.

        - `chunks` is read only as far as workers have room. None in it means: no further chunk until one is done.
        - On Ray a chunk may be computed twice, if its worker or machine is lost; it is yielded once. `act` and its
          work must be picklable; if `act` is a generator, its values arrive as a list.
        - A `PrismError` in `act` or `make` is raised again here, with the name of the worker's machine.
        - `queued`: a second chunk is queued at each worker, which is then never idle. Turn it off where chunks take
          minutes, or a chunk would wait at a busy worker while another worker is free.
        """

    def ask(self, act: Callable[[Held_co], Result]) -> Result:
        """Call a function with the state of a worker; all workers have the same state."""

    def rates(self) -> str:
        """Items per second of each worker so far; "" for this process."""


class Executor(Protocol):
    """Opens workers."""

    def open(
        self, opening: Opening[Held], *, alike: Callable[[Held], str] | None = None
    ) -> AbstractContextManager[Workers[Held]]:
        """Open workers until the block ends.

        `alike` identifies the state of a worker; one that differs from the first worker's is an error.
        """


class Here(Generic[Held]):
    """This process as the only worker; chunks are processed in order."""

    num_workers = 1

    def __init__(self, held: Held) -> None:
        self.held = held

    def run(
        self,
        act: Callable[[Held, Work], Result],
        chunks: Iterable[Chunk[Work] | None],
        *,
        queued: bool = True,  # noqa: ARG002
    ) -> Iterator[tuple[Chunk[Work], Result]]:
        for chunk in chunks:
            assert chunk is not None, "all before it are done"
            yield chunk, act(self.held, chunk.work)

    def ask(self, act: Callable[[Held], Result]) -> Result:
        return act(self.held)

    def rates(self) -> str:
        return ""


class Local:
    """Runs everything in this process."""

    def open(
        self,
        opening: Opening[Held],
        *,
        alike: Callable[[Held], str] | None = None,  # noqa: ARG002
    ) -> AbstractContextManager[Workers[Held]]:
        return contextlib.nullcontext(Here(opening.make({folder: folder for folder in opening.folders})))


@dataclass(frozen=True, slots=True)
class Finished(Generic[Result]):
    """The result of one item, yielded by the function of `Job.map`."""

    key: str
    result: Result


@dataclass(frozen=True, slots=True)
class Mapped(Generic[Result]):
    """The results of `Job.map` by key."""

    results: dict[str, Result]
    seconds: float
    """The total time of all runs that worked on them."""


class Job:
    """One run of one command in one folder. If a run has several processes, one (`is_main`) locks the folder."""

    def __init__(self, out: str | Path, *, executor: Executor | None = None, is_main: bool = True) -> None:
        self.out = Path(out)
        self.executor = executor or Local()
        self._lock = locked(self.out) if is_main else contextlib.nullcontext()

    def __enter__(self) -> Job:
        self._lock.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def write_settings(self, settings: Any) -> None:
        """Write settings.toml. Call it only after the settings were checked against earlier work in the folder."""
        write_text(self.out / "settings.toml", to_toml(settings))

    def once(self, name: str, make: Callable[[], Any], **inputs: Any) -> Any:
        """The result in `name`.json; `make` is called unless the file was made from the same inputs."""
        return once(self.out / f"{name}.json", content_key(inputs), make)

    def folder(self, name: str, make: Callable[[Path], object], **inputs: Any) -> Path:
        """The folder `name`; `make` fills it unless it was filled from the same inputs before."""
        path = self.out / name
        made_from = json.loads(json.dumps(inputs, default=_plain))
        if self.made_from(name) != made_from:
            (path / MADE_FROM).unlink(missing_ok=True)
            make(path)
            write_text(path / MADE_FROM, json.dumps(made_from, indent=2) + "\n")
        return path

    def made_from(self, name: str) -> dict[str, Any] | None:
        """The inputs that a folder was filled from; None if it was not filled completely."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self.out / name / MADE_FROM).read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
        return None

    def _journal(self, name: str) -> Path:
        return self.out / "journal" / f"{file_name(name)}.jsonl"

    def forget(self, name: str) -> None:
        """Remove the journal of a `map` whose results are stored elsewhere."""
        self._journal(name).unlink()
        with contextlib.suppress(OSError):  # other journals are there
            self._journal(name).parent.rmdir()

    def map(
        self,
        act: Callable[[Held, Mapping[str, Item]], Iterable[Any]],
        items: Mapping[str, Item],
        *,
        name: str,
        verb: str,
        unit: str,
        workers: Workers[Held],
        made_with: Mapping[str, Any],
        kind: type[Result],
        chunk: int,
        made_from: Mapping[str, str] | None = None,
        on_start: Callable[[Collection[str]], None] = lambda _: None,
        on_event: Callable[[Any], str] = lambda _: "",
    ) -> Mapped[Result]:
        """Process the items that are not done yet, and return the results of all.

        Args:
            act: processes a chunk of items with the state of a worker; a generator that yields a `Finished` for each
                item as soon as it is done, and any other events for `on_event`.
            items: by their keys. Chunks are cut from all items, so an item is always processed together with the same
                others, however often the job was stopped.
            name: the name of the journal, and of the work in messages.
            verb: what is done with an item: "searched".
            unit: what the items are: "problems".
            workers: where the items are processed.
            made_with: the settings behind all results; a journal with other settings is an error.
            kind: the type of a result.
            chunk: the number of items that are processed together.
            made_from: a hash of each item's own inputs; an item whose hash changed is processed again.
            on_start: a callback that gets the keys of the finished items before the work starts; not called if no work
                is left.
            on_event: a callback for everything that `act` yields; returns the text beside the progress bar.
        """
        made_from = made_from or dict.fromkeys(items, "")
        with Journal(self._journal(name), made_with, kind) as journal:
            changed = [key for key in items if journal.made_from.get(key, made_from[key]) != made_from[key]]
            for key in changed:
                del journal.done[key]
            if changed:
                say(f"{len(changed):,} {unit}, {name}, have new answers, tests or steps: {verb} again")
            keys, chunks = list(items), list[Chunk[Mapping[str, Item]]]()
            for start in range(0, len(keys), chunk):
                some = keys[start : start + chunk]
                if left := [key for key in some if key not in journal.done]:
                    # This process journals every item, so it repeats none. Workers elsewhere return whole chunks and
                    # repeat whole chunks: results depend in their last digits on what they are batched with.
                    work = {key: items[key] for key in (left if isinstance(workers, Here) else some)}
                    chunks.append(Chunk(start, f"{unit} {start + 1} to {start + len(some)}", work, len(left)))
            total = len(items)
            done = total - sum(one.size for one in chunks)
            if done:
                say(f"Reusing {done:,} of {total:,} {verb} {unit}, {name}")
            if chunks and (idle := workers.num_workers - len(chunks)) > 0:
                say(
                    f"Ray: {idle} of {workers.num_workers} workers are idle: only {len(chunks)} "
                    f"chunk{'s' * (len(chunks) > 1)} left; --set at_once=N with a smaller N makes more, smaller chunks"
                )
            before, started = journal.seconds, time.monotonic()
            with stoppable(lambda: f"with {len(journal.done):,} of {total:,} {unit} {verb}, {name}"):
                if chunks:
                    on_start(journal.done)
                    with progress(f"{name}: {verb}", total, unit=unit, done=done) as advance:
                        for _, events in workers.run(act, chunks, queued=False):
                            for event in events:
                                is_new = isinstance(event, Finished) and event.key not in journal.done
                                if is_new:
                                    seconds = before + time.monotonic() - started
                                    journal.append(event.key, event.result, made_from[event.key], seconds)
                                advance(int(is_new), f"{on_event(event)}   {workers.rates()}".strip())
            return Mapped({key: journal.done[key] for key in items}, journal.seconds)


MADE_FROM = "made_from.json"
"""The file in a folder that records the inputs it was filled from."""

KEY = "prism_prm.key"
"""The metadata field of a Parquet table that holds the key it was made for."""


def content_key(*parts: Any) -> str:
    """A hash of plain values and settings (dataclasses): 12 hexadecimal digits, equal for equal content."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    assert dataclasses.is_dataclass(value), f"cannot key {value!r}"
    return {"type": type(value).__name__, **{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}}


def refuse_changes(
    where: str | Path, before: Mapping[str, Any], now: Mapping[str, Any], *, free: Collection[str] = ()
) -> None:
    """Raise ConfigError with the settings that differ, except those in `free`, which change no result."""
    old, new = _flat(before), _flat(now)
    names = [name for name in {**old, **new} if name not in free and old.get(name) != new.get(name)]
    if names:
        changed = "; ".join(f"{name} = {new.get(name)} (was {old.get(name)})" for name in names[:5])
        raise ConfigError(
            f"{where} was started with other settings; now: {changed}. Name another --out, or remove it to start again."
        )


def _flat(settings: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """All settings by their full names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        full = f"{section}{name}"
        flat |= _flat(value, f"{full}.") if isinstance(value, Mapping) else {full: value}
    return flat


def once(path: str | Path, key: str, make: Callable[[], Any]) -> Any:
    """The result in a JSON file; `make` is called unless the file was made for this key."""
    path = Path(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        made = json.loads(path.read_text(encoding="utf-8"))
        if made["key"] == key:
            return made["result"]
    write_text(path, json.dumps({"key": key, "result": make()}) + "\n")
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def is_made_for(table: str | Path, key: str) -> bool:
    """Whether a readable Parquet table for this key exists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(table).metadata or {}
    except (OSError, pa.ArrowException, UnicodeDecodeError):  # missing or damaged
        return False
    return bool(metadata.get(KEY.encode()) == key.encode())


@contextlib.contextmanager
def stoppable(resumed: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, add a note about where the block resumes, e.g. "from update 20". Outer blocks add theirs."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if text := resumed():
            stop.add_note(text)
        raise


class Journal(Generic[T]):
    """An append-only file of records by key. Opening one that was made with other settings is an error."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any], kind: type[T]) -> None:
        self.path = Path(path)
        self.done: dict[str, T] = {}
        self.made_from: dict[str, str] = {}
        """A hash of the inputs of each record."""
        self.seconds = 0.0
        """The total time when the last record was added."""
        made = msgspec.to_builtins(made_with)
        self._lines = JsonLines(self.path, sync=True)
        try:
            first, *rest = self._lines.read() or [{"made_with": {}}]
            for line in rest:
                self.done[line["key"]] = msgspec.convert(line["record"], kind)
                self.made_from[line["key"]] = line["made_from"]
                self.seconds = max(self.seconds, line["seconds"])
            before = dict(first["made_with"])
        except (DataError, msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.path}: not a journal of this work, or from an earlier version ({error}). Name another --out."
            ) from error
        if self.done:
            refuse_changes(self.path, before, made)
        else:  # without records, the settings may change
            self._lines.rewrite([{"made_with": made}])

    def append(self, key: str, record: T, made_from: str = "", seconds: float = 0.0) -> None:
        """Add a record; it is on disk when this returns."""
        self.done[key], self.made_from[key], self.seconds = record, made_from, seconds
        self._lines.append({"key": key, "record": record, "made_from": made_from, "seconds": seconds})

    def __enter__(self) -> Journal[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


LOCK = ".lock"
"""The lock file of a folder; its content has no meaning."""


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder while the block runs, creating it if needed; PrismError if another process holds the lock.

    Partial files that killed processes left anywhere in the folder are removed. The system releases the lock however
    a process ends. Without `fcntl` (Windows) the lock is the file itself: a killed process leaves it behind, and the
    message asks the user to remove it.
    """
    if Path(folder).is_file():
        raise ConfigError(f"{folder} is a file; name a folder for the output")
    message = f"{folder}: another process is running here; wait for it, or name another --out."
    with _held(Path(folder) / LOCK, message):
        remove_parts(Path(folder))
        yield


@contextlib.contextmanager
def locked_file(path: str | Path) -> Iterator[None]:
    """Lock one file that will be written; partial copies of it that killed processes left are removed."""
    path = Path(path)
    message = f"{path}: another process is writing it; wait for it, or name another --out."
    with _held(path.with_name(f".{path.name}{LOCK}"), message):
        remove_parts(path.parent, f".{glob.escape(path.name)}")
        yield


@contextlib.contextmanager
def _held(lock: Path, message: str) -> Iterator[None]:
    """Hold a lock file; afterwards it is removed, and so are folders that were created only for it."""
    made = [folder for folder in lock.parents if not folder.exists()]
    with writing(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _system_lock(lock, message) if fcntl is not None else _exclusive_file(lock, message):
            yield
    finally:
        with contextlib.suppress(OSError):  # not empty: something was written
            for folder in made:
                folder.rmdir()


@contextlib.contextmanager
def _system_lock(path: Path, message: str) -> Iterator[None]:
    while True:
        with writing(path):
            lock = path.open("w")
        with lock:
            has_locks = True
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PrismError(message) from None
            except OSError:  # some network file systems have none
                has_locks = False
            if has_locks and not _is_still(path, lock.fileno()):
                continue  # the previous holder removed it after we opened it
            held = path.with_name(f"{path.name}.held")
            try:
                with contextlib.nullcontext() if has_locks else _exclusive_file(held, message):
                    yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_still(path: Path, opened: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _exclusive_file(path: Path, message: str) -> Iterator[None]:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise PrismError(f"{message} If none is running because it was killed, remove {path}.") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
