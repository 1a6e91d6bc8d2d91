"""Work spread over the workers of a Ray cluster: the `Ray` executor of a `Job`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prism_prm.job import Executor, Held, Local, Opening, Workers
from prism_prm.ray.settings import RaySettings


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
