"""Work in numbered portions, done in this process or by the workers of a Ray cluster; callers see no difference.

A worker holds what `make` gives: a PRM, or a policy with a PRM. `run` sends it portions and yields each with its
result, once, in whatever order they are done:

    with open_workers(Opening(make, folders=("my-prm",)), settings, alike=Scorer.identity) as workers:
        for portion, scores in workers.run(score, (Portion(i, f"trees {i}", some, len(some)) for i, some in ...)):
            file(portion.number, scores)

- `portions` may be a generator: it is read only as far as workers have room, so nothing is held whole. None in it says
  that there is nothing until a portion is done.
- On Ray a portion may be *computed* twice, if its worker or node is lost; it is *yielded* once. So whoever needs each
  result exactly once writes it when it is yielded, whole or not at all, and skips on resuming what is written.
- `make`, `act` and work must be picklable: functions of modules, `functools.partial` of them, plain records.
- A `PrismError` in `act` or `make` is raised as one here, with the worker's node; work is named by `act` itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prism_prm.workers.settings import RaySettings

Held = TypeVar("Held")
Held_co = TypeVar("Held_co", covariant=True)
Work = TypeVar("Work")
Done = TypeVar("Done")
Result = TypeVar("Result")

Make = Callable[[Mapping[str, str]], Held]
"""Makes what a worker holds, given where it finds each folder: the driver's name of it → that on the worker's node."""


@dataclass(frozen=True, slots=True)
class Opening(Generic[Held_co]):
    """How a worker opens something."""

    make: Callable[[Mapping[str, str]], Held_co]
    folders: tuple[str, ...] = ()
    """What `make` reads. A node that does not see one gets a copy of its own, once for all its workers."""
    loads: bool = True
    """Whether it loads a model; if not, workers get no GPU unless the settings say so."""


@dataclass(frozen=True, slots=True)
class Portion(Generic[Work]):
    """Some items of work that are done together by one worker."""

    number: int
    name: str
    """What it is called in messages, e.g. "trees 65 to 128"."""
    work: Work
    size: int = 1
    """How many items it has, for rates."""


class Workers(Protocol[Held_co]):
    """Those who do the work."""

    @property
    def num_workers(self) -> int: ...

    def run(
        self, act: Callable[[Held_co, Work], Done], portions: Iterable[Portion[Work] | None], *, queued: bool = True
    ) -> Iterator[tuple[Portion[Work], Done]]:
        """Do `act` on every portion; each is yielded once with its result, in any order.

        `queued`: a second portion waits at each worker, which is then never idle. Where portions take minutes this
        would leave one waiting at a busy worker while another is free.
        """

    def ask(self, act: Callable[[Held_co], Result]) -> Result:
        """What one of the workers says; all hold the same."""

    def rates(self) -> str:
        """Items per second of each worker so far, for people; "" in this process."""


class Here(Generic[Held]):
    """The one worker that is this process; portions come in order."""

    num_workers = 1

    def __init__(self, held: Held) -> None:
        self.held = held

    def run(
        self,
        act: Callable[[Held, Work], Done],
        portions: Iterable[Portion[Work] | None],
        *,
        queued: bool = True,  # noqa: ARG002
    ) -> Iterator[tuple[Portion[Work], Done]]:
        for portion in portions:
            assert portion is not None, "all before it are done"
            yield portion, act(self.held, portion.work)

    def ask(self, act: Callable[[Held], Result]) -> Result:
        return act(self.held)

    def rates(self) -> str:
        return ""


@contextlib.contextmanager
def open_workers(
    opening: Opening[Held],
    settings: RaySettings | None,
    *,
    alike: Callable[[Held], str] | None = None,
) -> Iterator[Workers[Held]]:
    """The workers that the settings ask for, until the block ends; without settings, this process.

    Args:
        opening: makes what each worker holds.
        settings: the Ray cluster, and how many workers of what size.
        alike: names what a worker holds. A worker that holds something else than the first one is refused.
    """
    if settings is None:
        yield Here(opening.make({folder: folder for folder in opening.folders}))
        return
    from prism_prm.workers.cluster import connected
    from prism_prm.workers.pool import Pool

    with (
        connected(settings, loads=opening.loads) as cluster,
        contextlib.closing(Pool(cluster, opening.make, opening.folders, alike)) as pool,
    ):
        yield pool
