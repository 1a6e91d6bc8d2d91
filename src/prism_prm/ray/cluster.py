"""The Ray cluster that does the work, and copies of folders for nodes that do not see the driver's files."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_prm.errors import ConfigError, MissingExtraError, PrismError
from prism_prm.files import whole_folder, writing
from prism_prm.ray import LOCAL, RaySettings


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster that this process is connected to, and what its workers are."""

    ray: Any
    """The module, which is imported only here."""
    workers: int
    cpus: int
    gpus: float
    room: int
    """How many of the workers can start at once on the nodes that are there."""

    def described(self) -> str:
        """The workers, for people."""
        return f"{self.workers} worker{'s' * (self.workers > 1)} of {_size(self.cpus, self.gpus)}"

    def waiting(self) -> str:
        """What each worker asks for, and what is free."""
        free = self.ray.available_resources()
        return (
            f"each needs {_size(self.cpus, self.gpus)} of one node, and free in all are "
            f"{_size(free.get('CPU', 0), free.get('GPU', 0))}"
        )


@contextlib.contextmanager
def connected(settings: RaySettings, *, loads: bool = True) -> Iterator[Connection]:
    """The cluster of these settings; one that runs already, or that the caller has connected to, stays as it is.

    Workers that load no model (`loads`) get no GPU unless the settings say so.
    """
    assert settings.ray is not None, "only settings that name a cluster come here"
    ray = _ray()
    was_connected = ray.is_initialized()
    with _last_words():
        if not was_connected:
            _connect(ray, settings.ray)
        try:
            yield _fitted(ray, settings, loads)
        finally:
            if not was_connected:
                ray.shutdown()


@contextlib.contextmanager
def _last_words() -> Iterator[None]:
    """Have a shell say how to resume if this process ends inside the block without a word.

    When Ray's own processes on this machine die, Ray ends the driver from C++, where no Python code runs any more.
    """
    shell = shutil.which("sh")
    if shell is None:
        yield
        return
    script = "read -r _ || echo 'error: Ray ended this command, or it was killed. Rerun it to resume.' >&2"
    with subprocess.Popen([shell, "-c", script], stdin=subprocess.PIPE) as waiting:
        try:
            yield
        finally:
            waiting.communicate(b"\n")


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is asked, so nothing is sent
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray", "ray") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    on_end = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address, include_dashboard=False if address == LOCAL else None, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except Exception as error:  # of any kind; a node that is slow to start is a plain Exception
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if address == LOCAL:
            raise PrismError(f"--ray: Ray did not start on this machine ({said}). Rerun the same command.") from error
        raise ConfigError(
            f"--ray {address}: no Ray cluster answers there ({said}). Start one with `ray start --head`, or leave out "
            "the address to use this machine alone."
        ) from error
    # Ray prints what it has to say about lost workers on standard output, where results belong; the pool says it, too.
    # No public option turns it off: log_to_driver=False is about the workers' own output.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    if is_main:
        signal.signal(signal.SIGTERM, on_end)  # Ray would end the process without the line on how to resume


def _fitted(ray: Any, settings: RaySettings, loads: bool) -> Connection:
    """The sizes that were not given, from what the cluster has now; what can never start is refused."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = settings.cpus_per_worker, settings.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if loads and any(node.get("GPU") for node in nodes) else 0.0
    room = 0
    for node in nodes:
        fits = int(node.get("CPU", 0) // cpus)
        if gpus:  # a worker with a part of a GPU has it on one GPU
            whole = int(node.get("GPU", 0))
            fits = min(fits, whole // int(gpus) if gpus >= 1 else whole * int(1 / gpus + 1e-6))
        room += fits
    wanted = settings.workers or room
    where = "--ray" if settings.ray == LOCAL else f"--ray {settings.ray}"
    if not wanted or (wanted > room and settings.ray == LOCAL):
        sizes = Counter(_size(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes)
        raise ConfigError(
            f"{where}: there is room for {room} of {Connection(ray, wanted or 1, cpus, gpus, room).described()}, on "
            f"{' and '.join(f'{count} × {size}' for size, count in sizes.items())}. Ask for less with --workers, "
            "--cpus-per-worker or --gpus-per-worker"
            + ("." if settings.ray == LOCAL else ", or name --workers to wait for nodes that are still to come.")
        )
    if wanted > room and loads and not gpus and settings.gpus_per_worker is None:
        raise ConfigError(
            f"{where}: there is room for {room} of {wanted} workers, and no node has a GPU yet. To wait for more "
            "nodes, say what they bring: --gpus-per-worker 1, or --gpus-per-worker 0 to run on CPUs."
        )
    return Connection(ray, wanted, cpus, gpus, room)


def _size(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU core{'s' * (cpus != 1)}" + (f" and {gpus:g} GPU{'s' * (gpus > 1)}" if gpus else "")


CHUNK = 64 * 2**20
"""Bytes that travel as one object, so that a node writes them before it fetches more. The driver's node keeps the whole
folder in its object store, which spills to disk when it is full."""


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A folder in Ray's object store."""

    content: str
    """A hash of its files."""
    files: tuple[tuple[str, tuple[Any, ...]], ...]
    """Each file's name, and references to its chunks."""


def pack(ray: Any, folder: str) -> FolderCopy:
    """Put a folder into the object store."""
    digest = hashlib.blake2b(digest_size=12)
    files = []
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        refs = []
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                refs.append(ray.put(chunk))
        files.append((name, tuple(refs)))
    return FolderCopy(digest.hexdigest(), tuple(files))


def unpack(copy: FolderCopy) -> str:
    """The copy as a folder of this node: written by whoever comes first, and used by all workers of the node."""
    import fcntl

    import ray

    own = Path(tempfile.gettempdir()) / f"prism-prm-{os.getuid()}"
    with writing(own):
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
    if own.stat().st_uid != os.getuid():
        raise PrismError(f"{own} belongs to another user; remove it, or set TMPDIR")
    folder = own / copy.content
    with (own / f".{copy.content}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until the file is closed; here it is worth waiting for
        if not folder.is_dir():
            with whole_folder(folder) as aside:
                for name, refs in copy.files:
                    (aside / name).parent.mkdir(parents=True, exist_ok=True)
                    with (aside / name).open("wb") as file:
                        for ref in refs:
                            file.write(ray.get(ref))
    return str(folder)
