"""A Ray cluster of several nodes on this machine, in a process of its own, so that a killed driver leaves it alone.

`python tests/ray_cluster.py` prints its address and then, for each node, its id and the process to kill; a line "add"
on standard input adds a node. It ends when standard input does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NUM_NODES = 3
HEALTH = {
    "RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_timeout_ms": "10000", "RAY_health_check_initial_delay_ms": "1000",
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
}  # fmt: skip
"""A lost node is noticed within seconds, a slow one is not taken for lost, and no process starts that nobody needs."""


class RayCluster:
    """A running cluster, as tests see it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()
        self.nodes: dict[str, int] = {}
        """The id of each node, and the process that is the node."""
        for _ in range(NUM_NODES):
            self._take_in()

    def kill_node(self, node: str, worker: int) -> None:
        """As if the machine lost its power, with the one worker on it. `node` is the beginning of an id.

        First the node, which could tell of its worker's end, then the worker, which would go on for a while.
        """
        [whole] = [known for known in self.nodes if known.startswith(node)]
        os.kill(self.nodes.pop(whole), signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)

    def add_node(self) -> None:
        """One more, in the place of a lost one."""
        assert self._process.stdin is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        self._take_in()

    def _take_in(self) -> None:
        node, process = self._line().split()
        self.nodes[node] = int(process)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the cluster did not start"
        return line


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Three nodes of two cores each, beside a head that does no work."""
    for is_last in (False, False, False, False, True):
        with _process() as process:
            try:
                found = RayCluster(process)
            except AssertionError:  # on a very busy machine Ray gives a node up after 30 s
                if is_last:
                    raise
                continue
            yield found
            return


@contextlib.contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    pipe, environment = subprocess.PIPE, {**os.environ, **HEALTH}
    with subprocess.Popen(
        [sys.executable, __file__], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=300)


def main() -> None:
    from ray._private.ray_constants import PROCESS_TYPE_RAYLET
    from ray.cluster_utils import Cluster

    def show(node: object) -> None:
        [raylet] = node.all_processes[PROCESS_TYPE_RAYLET]  # type: ignore[attr-defined]
        out.write(f"{node.node_id} {raylet.process.pid}\n")  # type: ignore[attr-defined]
        out.flush()

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Ray prints is not for the tests
    size = {"object_store_memory": 100 * 2**20}
    truth = {"timeout_ms_task_wait_for_death_info": 300_000}  # drivers hear why a worker is gone, however late
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": truth, **size})
    out.write(f"{cluster.address}\n")
    for _ in range(NUM_NODES):
        show(cluster.add_node(num_cpus=2, **size))
    for _ in sys.stdin:
        show(cluster.add_node(num_cpus=2, **size))
    cluster.shutdown()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # its `ray` must be Ray, whatever tests are called
    main()
