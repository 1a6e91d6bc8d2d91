"""The Ray actor: it loads a model once, then runs functions on chunks with it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prism_prm import __version__
from prism_prm.errors import ConfigError, DataError, ModelError, PrismError, is_out_of_memory
from prism_prm.ray.cluster import FolderCopy, unpack

T = TypeVar("T")
KINDS = (DataError, ConfigError, ModelError, PrismError)
"""Error classes that the driver raises again as the same class; the first that matches."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has loaded its model."""

    node: str
    process: int
    version: str
    holds: str
    """What it holds, as named by `alike`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The worker's node does not have some folders."""

    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """An error that the user can fix."""

    kind: type[PrismError]
    text: str
    node: str

    @classmethod
    def of(cls, error: PrismError) -> Failed:
        return cls(next(kind for kind in KINDS if isinstance(error, kind)), str(error), node_name())

    def error(self) -> PrismError:
        """The error to raise in the driver."""
        return self.kind(f"{self.text} (on node {self.node})")


@dataclass(frozen=True, slots=True)
class Broken:
    """Out of memory, or a device failed. The process is in an unknown state and must be replaced."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A result, and how long it took."""

    result: Any
    seconds: float


class Worker:
    """A process of the cluster."""

    def prepare(
        self,
        made_by: tuple[Callable[[Mapping[str, str]], Any], Callable[[Any], str] | None],
        folders: Sequence[str],
        copies: Mapping[str, FolderCopy],
        threads: int,
        gpus: float,
    ) -> Ready | Missing | Failed | Broken:
        """Load the model, or reply which folders this node is missing."""
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves all GPUs visible
        import torch

        torch.set_num_threads(threads)
        missing = tuple(folder for folder in folders if not os.path.isdir(folder) and folder not in copies)
        if missing:
            return Missing(missing)

        def load() -> Ready:
            make, alike = made_by
            self.held = make({name: name if os.path.isdir(name) else unpack(copies[name]) for name in folders})
            return Ready(node_name(), os.getpid(), __version__, "" if alike is None else alike(self.held))

        return _catch(load)

    def act(self, act: Callable[[Any, Any], Any], work: Any) -> Done | Failed | Broken:
        """Run `act` on a chunk; the items of a generator are sent as a list."""
        started = time.perf_counter()

        def run() -> Done:
            result = act(self.held, work)
            return Done(list(result) if isinstance(result, Iterator) else result, time.perf_counter() - started)

        return _catch(run)


def _catch(call: Callable[[], T]) -> T | Failed | Broken:
    """Call, and turn errors that are expected into replies; others are bugs and are raised."""
    try:
        return call()
    except PrismError as error:
        return Failed.of(error)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return Broken(f"out of memory: {error}")
        if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):  # before torch 2.8
            return Broken(f"its device failed: {error}")
        raise


def node_name() -> str:
    """The machine, and the Ray node on it: a machine can run several."""
    import ray

    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:6]}"
