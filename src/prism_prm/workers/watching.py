"""Work on problems that are filed one by one: which portions are left, and how far all of them are together."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from prism_prm.console import say
from prism_prm.workers import Done, Held, Portion, Work, Workers


class _Keyed(Protocol):
    """Work on problems with keys."""

    @property
    def keys(self) -> Sequence[str]: ...

    def only(self, keys: Collection[str]) -> Self: ...


class _Watch(Protocol):
    """A dataclass that says how far some work is; those of two portions can be added."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seconds(self) -> float: ...

    @property
    def rates(self) -> str: ...

    def __add__(self, other: Any, /) -> Any: ...


K = TypeVar("K", bound=_Keyed)
W = TypeVar("W", bound=_Watch)


def not_done(portions: Iterable[Portion[K]], done: Collection[str], *, is_here: bool) -> list[Portion[K]]:
    """Those with a problem that is not filed.

    In this process problems are filed one by one, and only what is left of a portion is done. Workers elsewhere give
    portions back as a whole and do them again as a whole, so that nothing is batched otherwise.
    """
    left = []
    for portion in portions:
        keys = [key for key in portion.work.keys if key not in done]
        if keys:
            left.append(replace(portion, work=portion.work.only(keys), size=len(keys)) if is_here else portion)
    return left


def run_evenly(
    workers: Workers[Held], act: Callable[[Held, Work], Done], portions: Sequence[Portion[Work]]
) -> Iterator[tuple[Portion[Work], Done]]:
    """Run portions of problems: few, and long. Whoever is free takes the next; workers that get none are counted."""
    if portions and (idle := workers.num_workers - len(portions)) > 0:
        say(
            f"Ray: {idle} of {workers.num_workers} workers are idle, since the work left is {len(portions)} "
            f"portion{'s' * (len(portions) > 1)}; a smaller --at-once makes more of them, and smaller batches"
        )
    return workers.run(act, portions, queued=False)


class AllWatched(Generic[W]):
    """Tells `watch` how far the whole is; `nothing` is how far it is at the start."""

    def __init__(self, watch: Callable[[W], None], nothing: W) -> None:
        self._watch = watch
        self._nothing = self._before = nothing
        self._started = time.monotonic()
        self._rates = ""

    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._started

    def see(self, now: W) -> None:
        """How far a portion is that is being worked on."""
        self._watch(replace(self._before + now, seconds=self.seconds(), rates=self._rates))

    def add(self, done: W, rates: str) -> None:
        """A portion that is done, and how fast each worker is."""
        self._rates = rates
        self._before = self._before + done
        self.see(self._nothing)
