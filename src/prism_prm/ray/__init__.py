"""Run a `Job` on the workers of a Ray cluster: the settings, and the `Ray` executor."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prism_prm.config import Count, NotNegative, check
from prism_prm.errors import MissingExtraError, SettingError
from prism_prm.job import Executor, Held, Local, Opening, Workers

LOCAL = "local"
"""The address that starts a cluster on this machine for one command."""
_ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


def is_address(text: str) -> bool:
    """Whether this is a valid address of a Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT."""
    return _ADDRESS.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The Ray cluster to run on, and the number and size of its workers."""

    address: str | None = None
    """The Ray cluster to run on: HOST:PORT, ray://HOST:PORT, auto for the cluster that this machine belongs to, or
    local for one that is started on this machine. By default Ray is not used."""
    workers: Count | None = None
    """The number of workers, each with a copy of the model. By default as many as the cluster has room for."""
    gpus_per_worker: NotNegative | None = None
    """GPUs per worker: 0.5 puts two workers on a GPU, 0 hides all GPUs from them. By default 1 if the cluster has GPUs
    and the workers load a model, else 0."""
    cpus_per_worker: Count = 1
    """CPU cores, and threads, per worker."""

    def __post_init__(self) -> None:
        check(self)
        if self.address is not None and not is_address(self.address):
            raise SettingError("address", self.address, "must be HOST:PORT, ray://HOST:PORT, auto or local")
        if (gpus := self.gpus_per_worker or 0) > 1 and gpus % 1:
            raise SettingError("gpus_per_worker", gpus, "must be a whole number if it is above 1")
        if self.address is None:
            for name, default in (("workers", None), ("gpus_per_worker", None), ("cpus_per_worker", 1)):
                if getattr(self, name) != default:
                    raise SettingError(name, getattr(self, name), "needs --ray")

    @property
    def given(self) -> RaySettings | None:
        """These settings if they have an address, else None. Raises here, before anything is loaded, if Ray is not
        installed."""
        if self.address is not None and importlib.util.find_spec("ray") is None:
            raise MissingExtraError("Ray", "ray")
        return None if self.address is None else self


@dataclass(frozen=True, slots=True)
class Ray:
    """The executor that opens workers on a cluster, each with a copy of the model."""

    settings: RaySettings

    @contextlib.contextmanager
    def open(self, opening: Opening[Held], *, alike: Callable[[Held], str] | None = None) -> Iterator[Workers[Held]]:
        """Yield the workers; they stop when the block ends."""
        from prism_prm.ray.cluster import connected
        from prism_prm.ray.pool import RayPool

        with (
            connected(self.settings, loads=opening.loads) as cluster,
            contextlib.closing(RayPool(cluster, opening.make, opening.folders, alike)) as pool,
        ):
            yield pool


def executor_of(settings: RaySettings | None) -> Executor:
    """The `Ray` executor of these settings, or `Local` if there are none."""
    return Local() if settings is None else Ray(settings)
