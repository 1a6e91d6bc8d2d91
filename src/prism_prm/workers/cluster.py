"""The Ray cluster that does the work: one that runs already, or one on this machine for as long as it is needed."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prism_prm.errors import ConfigError, MissingExtraError, PrismError
from prism_prm.workers.settings import LOCAL, RaySettings


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to, and what its workers are."""

    ray: Any
    """The module, which is imported only here."""
    workers: int
    cpus: int
    gpus: float

    def described(self) -> str:
        """The workers, for people."""
        size = f"{self.cpus} CPU core{'s' * (self.cpus > 1)}" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"{self.workers} worker{'s' * (self.workers > 1)} of {size}"


@contextlib.contextmanager
def connected(settings: RaySettings) -> Iterator[Cluster]:
    """The cluster of these settings; one that runs already, or that the caller has connected to, stays as it is."""
    assert settings.ray is not None, "only settings that name a cluster come here"
    ray = _ray()
    was_connected = ray.is_initialized()
    if not was_connected:
        _connect(ray, settings.ray)
    try:
        yield _fitted(ray, settings)
    finally:
        if not was_connected:
            ray.shutdown()


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
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    if is_main:
        signal.signal(signal.SIGTERM, on_end)  # Ray would end the process without the line on how to resume


def _fitted(ray: Any, settings: RaySettings) -> Cluster:
    """The sizes that were not given, from what the cluster has."""
    has = ray.cluster_resources()
    gpus = settings.gpus_per_worker
    gpus = (1.0 if has.get("GPU") else 0.0) if gpus is None else gpus
    room = int(has.get("CPU", 0) // settings.cpus_per_worker)
    if gpus:
        room = min(room, int(has.get("GPU", 0) // gpus))
    if settings.workers is None and not room:
        raise ConfigError(
            f"--ray {settings.ray}: the cluster has {has.get('CPU', 0):g} CPU cores and {has.get('GPU', 0):g} GPUs, "
            f"too few for a worker of {settings.cpus_per_worker} and {gpus:g}. Ask for less with --cpus-per-worker "
            "and --gpus-per-worker, or name --workers to wait for nodes that are still to come."
        )
    return Cluster(ray, settings.workers or room, settings.cpus_per_worker, gpus)
