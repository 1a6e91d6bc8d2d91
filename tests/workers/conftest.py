"""One cluster of three nodes for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ray_cluster import RayCluster, ray_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with ray_cluster() as found:
        yield found
