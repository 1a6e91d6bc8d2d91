"""Connect to a Ray cluster, and copy folders to nodes that do not share the driver's file system."""

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
from prism_prm.files import CONVERTED, atomic_folder, waiting_lock, writing
from prism_prm.ray import LOCAL, RaySettings


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster that this process is connected to, with the number and size of its workers."""

    ray: Any
    """The `ray` module, which is imported only in this file."""
    workers: int
    cpus: int
    gpus: float
    room: int
    """How many of the workers fit on the current nodes."""

    def describe(self) -> str:
        """E.g. "4 workers of 2 CPU cores and 1 GPU"."""
        return f"{self.workers} worker{'s' * (self.workers > 1)} of {_describe_size(self.cpus, self.gpus)}"

    def describe_shortage(self) -> str:
        """What each worker needs, and what is free."""
        free = self.ray.available_resources()
        return (
            f"each needs {_describe_size(self.cpus, self.gpus)} on one node, and the cluster has "
            f"{_describe_size(free.get('CPU', 0), free.get('GPU', 0))} free"
        )


@contextlib.contextmanager
def connected(settings: RaySettings, *, loads: bool = True) -> Iterator[Connection]:
    """Connect to the cluster of these settings, or reuse the caller's connection.

    Only a cluster that was started here is shut down afterwards. Workers that load no model (`loads`) get no GPU unless
    the settings say so.
    """
    assert settings.address is not None, "the settings must have an address"
    ray = _import_ray()
    was_connected = ray.is_initialized()
    with _note_on_sudden_exit():
        if not was_connected:
            _connect(ray, settings.address)
        try:
            yield _size_workers(ray, settings, loads)
        finally:
            if not was_connected:
                ray.shutdown()


@contextlib.contextmanager
def _note_on_sudden_exit() -> Iterator[None]:
    """If this process dies inside the block, print how to resume.

    When one of Ray's own processes on this machine dies, Ray exits the driver from C++, where no Python handler runs.
    So a shell waits on a pipe and prints the line when the pipe closes.
    """
    shell = shutil.which("sh")
    if shell is None:
        yield
        return
    script = "read -r _ || echo 'error: Ray ended this command, or it was killed. Rerun it to resume.' >&2"
    with subprocess.Popen([shell, "-c", script], stdin=subprocess.PIPE) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"\n")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry without the user's consent
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray", "ray") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address, include_dashboard=False if address == LOCAL else None, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except Exception as error:  # Ray raises a plain Exception if a node is slow to start
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if address == LOCAL:
            raise PrismError(
                f"--ray: Ray did not start on this machine ({message}). Rerun the same command."
            ) from error
        raise ConfigError(
            f"--ray {address}: no Ray cluster answers there ({message}). Start one with `ray start --head`, or leave "
            "out the address to use this machine alone."
        ) from error
    # Ray reports lost workers on standard output, where results belong; the pool reports them on standard error.
    # No public option turns this off: log_to_driver=False only covers the workers' own output.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    if is_main:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler would skip the line on how to resume


def _size_workers(ray: Any, settings: RaySettings, loads: bool) -> Connection:
    """Choose the sizes that the settings leave open from the cluster's nodes; refuse workers that can never start."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = settings.cpus_per_worker, settings.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if loads and any(node.get("GPU") for node in nodes) else 0.0
    room = 0
    for node in nodes:
        fits = int(node.get("CPU", 0) // cpus)
        if gpus:  # a fraction of a GPU must be on a single GPU
            whole = int(node.get("GPU", 0))
            fits = min(fits, whole // int(gpus) if gpus >= 1 else whole * int(1 / gpus + 1e-6))
        room += fits
    wanted = settings.workers or room
    is_local = settings.address == LOCAL
    where = "--ray" if is_local else f"--ray {settings.address}"
    if not wanted or (wanted > room and is_local):
        sizes = Counter(_describe_size(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes)
        raise ConfigError(
            f"{where}: there is room for {room} of {Connection(ray, wanted or 1, cpus, gpus, room).describe()}, on "
            f"{' and '.join(f'{count} × {size}' for size, count in sizes.items())}. Ask for less with -R workers=…, "
            "-R cpus_per_worker=… or -R gpus_per_worker=…"
            + ("." if is_local else ", or set -R workers=… to wait for more nodes.")
        )
    if wanted > room and loads and not gpus and settings.gpus_per_worker is None:
        raise ConfigError(
            f"{where}: there is room for {room} of {wanted} workers, and no node has a GPU yet. To wait for nodes with "
            "GPUs, set -R gpus_per_worker=1; to run on CPUs, set -R gpus_per_worker=0."
        )
    return Connection(ray, wanted, cpus, gpus, room)


def _describe_size(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU core{'s' * (cpus != 1)}" + (f" and {gpus:g} GPU{'s' * (gpus > 1)}" if gpus else "")


CHUNK = 64 * 2**20
"""Bytes per object, so that a node writes one chunk to disk before it fetches the next. The driver's node keeps the
whole folder in its object store, which spills to disk when it is full."""


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
        if f"{CONVERTED}/" in name:  # each node converts a GGUF file itself
            continue
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        refs = []
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                refs.append(ray.put(chunk))
        files.append((name, tuple(refs)))
    return FolderCopy(digest.hexdigest(), tuple(files))


def unpack(copy: FolderCopy) -> str:
    """Write the copy to a folder of this node; the first worker writes it, and all workers of the node share it."""
    import ray

    cache = Path(tempfile.gettempdir()) / f"prism-prm-{os.getuid()}"
    with writing(cache):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise PrismError(f"{cache} belongs to another user; remove it, or set TMPDIR")
    folder = cache / copy.content
    with waiting_lock(cache / f".{copy.content}.lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as partial:
                for name, refs in copy.files:
                    (partial / name).parent.mkdir(parents=True, exist_ok=True)
                    with (partial / name).open("wb") as file:
                        for ref in refs:
                            file.write(ray.get(ref))
    return str(folder)
