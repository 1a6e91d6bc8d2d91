"""`Job`: one run of one command in one folder, which resumes where it was stopped.

    with Job("out", executor=Local()) as job:
        size = job.once("size", lambda: measure(seed), seed=seed)
        with job.executor.open(Opening(load_model)) as workers:
            done = job.map(search_chunk, problems, name="beam", workers=workers, kind=SearchResult, …)

- The folder is locked while the job runs. Jobs nest: a job in a subfolder is a job of its own.
- `once` makes a result once for its inputs; `map` does what is not done yet of many items, by this process or by
  workers elsewhere (`executor`), and appends each result to a journal. A killed job resumes from these.

Two things are resumed elsewhere: scores are kept by their content in the score store (`store.py`), and weights in
checkpoints (`train/loop.py`; those of TRL in `rl/trainer.py`).
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
from types import TracebackType
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
    """How a worker makes what it holds: a PRM, or a policy with a PRM."""

    make: Callable[[Mapping[str, str]], Held_co]
    """Given where it finds each folder: the driver's name of it → that on the worker's machine."""
    folders: tuple[str, ...] = ()
    """What `make` reads. A machine that does not see one gets a copy of its own, once for all its workers."""
    loads: bool = True
    """Whether it loads a model; if not, workers get no GPU unless the settings say so."""


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Work]):
    """Some items of work that one worker does together."""

    number: int
    name: str
    """What it is called in messages, e.g. "trees 65 to 128"."""
    work: Work
    size: int = 1
    """How many items it has, for rates."""


class Workers(Protocol[Held_co]):
    """Those who do the work: this process, or the workers of a Ray cluster."""

    @property
    def num_workers(self) -> int: ...

    def run(
        self, act: Callable[[Held_co, Work], Result], chunks: Iterable[Chunk[Work] | None], *, queued: bool = True
    ) -> Iterator[tuple[Chunk[Work], Result]]:
        """Do `act` on every chunk; each is yielded once with its result, in any order.

        - `chunks` is read only as far as workers have room. None in it means that there is nothing until a chunk is
          done.
        - On Ray a chunk may be computed twice, if its worker or machine is lost; it is yielded once. `act` and its
          work must be picklable; what it generates arrives as a list.
        - A `PrismError` in `act` or `make` is raised as one here, with the worker's machine.
        - `queued`: a second chunk waits at each worker, which is then never idle. Where chunks take minutes this would
          leave one waiting at a busy worker while another is free.
        """

    def ask(self, act: Callable[[Held_co], Result]) -> Result:
        """Call a function with what a worker holds; all hold the same."""

    def rates(self) -> str:
        """Items per second of each worker so far; "" in this process."""


class Executor(Protocol):
    """Opens workers."""

    def open(
        self, opening: Opening[Held], *, alike: Callable[[Held], str] | None = None
    ) -> AbstractContextManager[Workers[Held]]:
        """The workers, until the block ends.

        `alike` names what a worker holds: one that holds something else than the first is refused.
        """


class Here(Generic[Held]):
    """The one worker that is this process; chunks come in order."""

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
    """Works in this process."""

    def open(
        self,
        opening: Opening[Held],
        *,
        alike: Callable[[Held], str] | None = None,  # noqa: ARG002
    ) -> AbstractContextManager[Workers[Held]]:
        return contextlib.nullcontext(Here(opening.make({folder: folder for folder in opening.folders})))


@dataclass(frozen=True, slots=True)
class Finished(Generic[Result]):
    """The result of one item, among what the function of a `Job.map` generates."""

    key: str
    result: Result


@dataclass(frozen=True, slots=True)
class Mapped(Generic[Result]):
    """What `Job.map` gives."""

    results: dict[str, Result]
    seconds: float
    """The time of all runs that worked on it."""


class Job:
    """One run of one command in one folder. Of several processes of such a run, one (`is_main`) locks it."""

    def __init__(self, out: str | Path, *, executor: Executor | None = None, is_main: bool = True) -> None:
        self.out = Path(out)
        self.executor = executor or Local()
        self._lock = locked(self.out) if is_main else contextlib.nullcontext()

    def __enter__(self) -> Job:
        self._lock.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def write_settings(self, settings: Any) -> None:
        """Write settings.toml: not before they are known to be those of the work that is there."""
        write_text(self.out / "settings.toml", to_toml(settings))

    def once(self, name: str, make: Callable[[], Any], **inputs: Any) -> Any:
        """A result in the JSON file `name`, made unless it was made from equal inputs before."""
        return once(self.out / f"{name}.json", content_key(inputs), make)

    def folder(self, name: str, make: Callable[[Path], object], **inputs: Any) -> Path:
        """A folder that `make` fills, unless it was filled from equal inputs before."""
        path = self.out / name
        made_from = json.loads(json.dumps(inputs, default=_plain))
        if self.made_from(name) != made_from:
            (path / MADE_FROM).unlink(missing_ok=True)
            make(path)
            write_text(path / MADE_FROM, json.dumps(made_from, indent=2) + "\n")
        return path

    def made_from(self, name: str) -> dict[str, Any] | None:
        """The inputs that a folder was filled from; None if it was not, or not to the end."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self.out / name / MADE_FROM).read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
        return None

    def _journal(self, name: str) -> Path:
        return self.out / "journal" / f"{file_name(name)}.jsonl"

    def forget(self, name: str) -> None:
        """Remove the journal of a `map` whose results are kept elsewhere."""
        self._journal(name).unlink()
        with contextlib.suppress(OSError):  # there are others
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
        begin: Callable[[Collection[str]], None] = lambda _: None,
        hear: Callable[[Any], str] = lambda _: "",
    ) -> Mapped[Result]:
        """Do what is not done yet of some items, and give the results of all.

        Args:
            act: does a chunk of items with what a worker holds; it generates a `Finished` for each item as soon as it
                is done, and whatever else `hear` hears.
            items: by their keys. Chunks are cut from the whole of them, so an item is done beside the same others
                however often the job was stopped.
            name: names the journal, and the work in messages.
            verb: what is done with an item: "searched".
            unit: what the items are: "problems".
            workers: those who do it.
            made_with: what all results follow from; a journal of others is refused.
            kind: the type of a result.
            chunk: how many items are done together.
            made_from: for each item a hash of what its result follows from besides; an item that changed is done again.
            begin: called with the keys of what is done already, if something is left to do.
            hear: called with everything that `act` generates; gives what is shown beside the progress bar.
        """
        made_from = made_from or dict.fromkeys(items, "")
        with Journal(self._journal(name), made_with, kind) as journal:
            changed = [key for key in items if journal.made_from.get(key, made_from[key]) != made_from[key]]
            for key in changed:
                del journal.done[key]
            if changed:
                say(f"{len(changed):,} {unit}, {name}, have other answers, tests or steps now: {verb} again")
            keys, chunks = list(items), list[Chunk[Mapping[str, Item]]]()
            for start in range(0, len(keys), chunk):
                some = keys[start : start + chunk]
                if left := [key for key in some if key not in journal.done]:
                    # This process does what is left, and loses nothing. Workers elsewhere give whole chunks back and do
                    # them again as a whole: what is batched with others differs in its last digits.
                    work = {key: items[key] for key in (left if isinstance(workers, Here) else some)}
                    chunks.append(Chunk(start, f"{unit} {start + 1} to {start + len(some)}", work, len(left)))
            total = len(items)
            done = total - sum(one.size for one in chunks)
            if done:
                say(f"Reusing {done:,} of {total:,} {verb} {unit}, {name}")
            if chunks and (idle := workers.num_workers - len(chunks)) > 0:
                say(
                    f"Ray: {idle} of {workers.num_workers} workers are idle, since the work left is {len(chunks)} "
                    f"chunk{'s' * (len(chunks) > 1)}; a smaller --at-once makes more of them, and smaller batches"
                )
            before, started = journal.seconds, time.monotonic()
            with stoppable(lambda: f"with {len(journal.done):,} of {total:,} {unit} {verb}, {name}"):
                if chunks:
                    begin(journal.done)
                    with progress(f"{name}: {verb}", total, unit=unit, done=done) as advance:
                        for _, events in workers.run(act, chunks, queued=False):
                            for event in events:
                                is_new = isinstance(event, Finished) and event.key not in journal.done
                                if is_new:
                                    seconds = before + time.monotonic() - started
                                    journal.append(event.key, event.result, made_from[event.key], seconds)
                                advance(int(is_new), f"{hear(event)}   {workers.rates()}".strip())
            return Mapped({key: journal.done[key] for key in items}, journal.seconds)


MADE_FROM = "made_from.json"
"""The file in a folder that says what it was filled from."""

KEY = "prism_prm.key"
"""Under this name the metadata of a Parquet table say what it was made for."""


def content_key(*parts: Any) -> str:
    """12 hexadecimal digits of plain values and settings (dataclasses): equal for equal content."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    assert dataclasses.is_dataclass(value), f"cannot key {value!r}"
    return {"type": type(value).__name__, **{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}}


def refuse_changes(
    where: str | Path, before: Mapping[str, Any], now: Mapping[str, Any], *, free: Collection[str] = ()
) -> None:
    """An error that names the settings that differ; those that are `free` change no result."""
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
    """A result in a JSON file, made unless it was made for this key before."""
    path = Path(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        made = json.loads(path.read_text(encoding="utf-8"))
        if made["key"] == key:
            return made["result"]
    write_text(path, json.dumps({"key": key, "result": make()}) + "\n")
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def is_made_for(table: str | Path, key: str) -> bool:
    """Whether a Parquet table for this key exists; one that cannot be read is made again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(table).metadata or {}
    except (OSError, pa.ArrowException, UnicodeDecodeError):  # half a file, or damaged names
        return False
    return bool(metadata.get(KEY.encode()) == key.encode())


@contextlib.contextmanager
def stoppable(resumed: Callable[[], str]) -> Iterator[None]:
    """When the block is stopped (Ctrl-C), say where it resumes: "from update 20". Outer blocks add to it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if text := resumed():
            stop.add_note(text)
        raise


class Journal(Generic[T]):
    """Records under keys, appended as they are made; it opens only onto work that was made in the same way."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any], kind: type[T]) -> None:
        self.path = Path(path)
        self.done: dict[str, T] = {}
        self.made_from: dict[str, str] = {}
        """For each record a hash of what it was made from."""
        self.seconds = 0.0
        """The time until the last record was made."""
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
                f"{self.path}: not a journal of this work, or one of an earlier version ({error}). Name another --out."
            ) from error
        if self.done:
            refuse_changes(self.path, before, made)
        else:  # what has done nothing yet may be changed
            self._lines.rewrite([{"made_with": made}])

    def append(self, key: str, record: T, made_from: str = "", seconds: float = 0.0) -> None:
        """Add a record; it is on disk when this returns."""
        self.done[key], self.made_from[key], self.seconds = record, made_from, seconds
        self._lines.append({"key": key, "record": record, "made_from": made_from, "seconds": seconds})

    def __enter__(self) -> Journal[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()


LOCK = ".lock"
"""The file in a folder that says that it is in use; what it holds is of no meaning."""


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder, created if needed, while the block runs; a PrismError if another process holds it.

    What killed processes have left half-written anywhere in the folder is removed.
    The system releases the lock however a process ends. Where Python has no `fcntl` (Windows), a lock file is used
    instead: a killed process leaves it behind, and the message says to remove it.
    """
    if Path(folder).is_file():
        raise ConfigError(f"{folder} is a file; name a folder for the output")
    message = f"{folder}: another process is running here; wait for it, or name another --out."
    with _held(Path(folder) / LOCK, message):
        remove_parts(Path(folder))
        yield


@contextlib.contextmanager
def locked_file(path: str | Path) -> Iterator[None]:
    """The same for one file that will be written; the others of its folder are free.

    What a killed process has left of the file is removed.
    """
    path = Path(path)
    message = f"{path}: another process is writing it; wait for it, or name another --out."
    with _held(path.with_name(f".{path.name}{LOCK}"), message):
        remove_parts(path.parent, f".{glob.escape(path.name)}")
        yield


@contextlib.contextmanager
def _held(lock: Path, message: str) -> Iterator[None]:
    """Hold a lock file; neither it nor folders that were made for it alone stay behind."""
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
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PrismError(message) from None
            if not _is_still(path, lock.fileno()):
                continue  # whoever held it before has removed it, after we had opened it
            try:
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
