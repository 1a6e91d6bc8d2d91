"""What runs in a worker: it makes what it holds, and acts on chunks with it."""

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
"""Errors that keep their kind on their way to the driver."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker that holds what it should."""

    node: str
    process: int
    version: str
    holds: str
    """What it holds, as `alike` names it."""


@dataclass(frozen=True, slots=True)
class Lacks:
    """A worker whose node does not see some folders."""

    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that the user can fix."""

    kind: type[PrismError]
    text: str
    node: str

    @classmethod
    def of(cls, error: PrismError) -> Refusal:
        return cls(next(kind for kind in KINDS if isinstance(error, kind)), str(error), node_name())

    def error(self) -> PrismError:
        """The error to raise in the driver."""
        return self.kind(f"{self.text} (on node {self.node})")


@dataclass(frozen=True, slots=True)
class Broken:
    """Memory ran out, or a device failed: what this process does next is not to be trusted, so it is to be replaced."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A result, and the seconds that it took."""

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
    ) -> Ready | Lacks | Refusal | Broken:
        """Make what this worker holds; it may answer that it needs a copy of a folder first."""
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves all of them in sight
        import torch

        torch.set_num_threads(threads)
        unseen = tuple(folder for folder in folders if not os.path.isdir(folder) and folder not in copies)
        if unseen:
            return Lacks(unseen)

        def ready() -> Ready:
            make, alike = made_by
            self.held = make({name: name if os.path.isdir(name) else unpack(copies[name]) for name in folders})
            return Ready(node_name(), os.getpid(), __version__, "" if alike is None else alike(self.held))

        return _tried(ready)

    def act(self, act: Callable[[Any, Any], Any], work: Any) -> Done | Refusal | Broken:
        """Act on a chunk; what is generated is sent as a list."""
        begun = time.perf_counter()

        def finished() -> Done:
            made = act(self.held, work)
            return Done(list(made) if isinstance(made, Iterator) else made, time.perf_counter() - begun)

        return _tried(finished)


def _tried(do: Callable[[], T]) -> T | Refusal | Broken:
    """What came of it; other errors are our own mistakes."""
    try:
        return do()
    except PrismError as error:
        return Refusal.of(error)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return Broken(f"out of memory: {error}")
        if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):  # before torch 2.8
            return Broken(f"its device failed: {error}")
        raise


def node_name() -> str:
    """The machine and the node on it: several nodes can share a machine."""
    import ray

    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:6]}"
