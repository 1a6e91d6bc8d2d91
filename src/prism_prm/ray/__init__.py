"""Work spread over the workers of a Ray cluster: the settings, and the `Ray` executor of a `Job`."""

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
"""The address of a cluster that is started on this machine for one command."""
_ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


def is_address(text: str) -> bool:
    """Whether this can be where a Ray cluster is: auto, local, HOST:PORT or ray://HOST:PORT."""
    return _ADDRESS.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Which Ray cluster does the work, with how many workers of what size."""

    ray: str | None = None
    """Spread the work over a Ray cluster: HOST:PORT, or auto for the one that this machine belongs to. Without an
    address, one is started on this machine for this command."""
    workers: Count | None = None
    """The number of workers, each with a copy of the model. By default as many as the cluster has room for."""
    gpus_per_worker: NotNegative | None = None
    """GPUs of each worker. 0.5 puts two workers on a GPU; with 0 they see none. By default 1 if the cluster has GPUs
    and the workers load a model, else 0."""
    cpus_per_worker: Count = 1
    """CPU cores of each worker, which are also its threads."""

    def __post_init__(self) -> None:
        check(self)
        if self.ray is not None and not is_address(self.ray):
            raise SettingError("ray", self.ray, "must be HOST:PORT, auto, or nothing for a cluster on this machine")
        if (gpus := self.gpus_per_worker or 0) > 1 and gpus % 1:
            raise SettingError("gpus_per_worker", gpus, "must be a whole number if it is above 1")
        for name in ("workers", "gpus_per_worker"):
            if self.ray is None and getattr(self, name) is not None:
                raise SettingError(name, getattr(self, name), "needs --ray, whose workers these are")
        if self.ray is None and self.cpus_per_worker != 1:
            raise SettingError("cpus_per_worker", self.cpus_per_worker, "needs --ray, whose workers these are")

    @property
    def given(self) -> RaySettings | None:
        """Itself if it names a cluster, else None. Without the extra it is refused here, before anything is loaded."""
        if self.ray is not None and importlib.util.find_spec("ray") is None:
            raise MissingExtraError("Ray", "ray")
        return None if self.ray is None else self


@dataclass(frozen=True, slots=True)
class Ray:
    """Opens workers on a cluster, each with a copy of the model."""

    settings: RaySettings

    @contextlib.contextmanager
    def open(self, opening: Opening[Held], *, alike: Callable[[Held], str] | None = None) -> Iterator[Workers[Held]]:
        """The workers, until the block ends."""
        from prism_prm.ray.cluster import connected
        from prism_prm.ray.pool import RayPool

        with (
            connected(self.settings, loads=opening.loads) as cluster,
            contextlib.closing(RayPool(cluster, opening.make, opening.folders, alike)) as pool,
        ):
            yield pool


def executor_of(settings: RaySettings | None) -> Executor:
    """The cluster that the settings name, or this process."""
    return Local() if settings is None else Ray(settings)
