"""The unit of a search's work: a few problems that are searched side by side, by whoever holds the policy and the PRM.

Portions are cut from the list of problems and depend on nothing else, so a problem is batched with the same others
wherever and whenever it is searched.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.policies import Policy, PolicySettings
from prism_prm.policies.spread import policy_for_workers
from prism_prm.protocol import ScorerFacts
from prism_prm.search.engine import Engine, Watch
from prism_prm.search.found import Found
from prism_prm.search.methods import SearchSettings
from prism_prm.search.rounds import Round, ToldRound, told_round
from prism_prm.workers import Opening, Portion, Workers, open_workers
from prism_prm.workers.settings import RaySettings

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer


@dataclass(frozen=True, slots=True)
class Searcher:
    """What a worker holds."""

    policy: Policy
    prm: Scorer | None = None


@dataclass(frozen=True, slots=True)
class SearchWork:
    """Problems to search side by side."""

    settings: SearchSettings
    problems: Sequence[str]
    keys: Sequence[str]
    """What names the noise of each."""

    def portions(self, size: int) -> Iterator[Portion[SearchWork]]:
        """The same in parts of this size."""
        for start in range(0, len(self.keys), size):
            part = slice(start, start + size)
            work = SearchWork(self.settings, self.problems[part], self.keys[part])
            yield Portion(start, f"problems {start + 1} to {start + len(work.keys)}", work, len(work.keys))

    def only(self, keys: Collection[str]) -> SearchWork:
        """The problems with these keys."""
        wanted = [i for i, key in enumerate(self.keys) if key in keys]
        return replace(self, problems=[self.problems[i] for i in wanted], keys=[self.keys[i] for i in wanted])


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found for each of them, and what it took."""

    found: list[Found]
    watch: Watch
    rounds: list[tuple[str, ToldRound]]
    """With the key of the problem; none if they were told while it was searched."""


def search_portion(
    searcher: Searcher,
    work: SearchWork,
    watch: Callable[[Watch], None] = lambda _: None,
    tell: Callable[[str, ToldRound], None] | None = None,
    file: Callable[[str, Found], None] = lambda _key, _found: None,
) -> Searched:
    """Search the problems of a portion; `file` gets each when it is done, and rounds are told to `tell` or returned."""
    rounds: list[tuple[str, ToldRound]] = []

    def hear(round: Round) -> None:
        key, told = work.keys[round.problem], told_round(round, likelihood=work.settings.prm_weight < 1)
        if tell is None:
            rounds.append((key, told))
        else:
            tell(key, told)

    engine = Engine(searcher.policy, searcher.prm, work.settings, at_once=len(work.problems), watch=watch, tell=hear)
    found = []
    for one in engine.run(work.problems, work.keys):
        file(work.keys[one.problem], one)
        found.append(one)
    return Searched(sorted(found, key=lambda one: one.problem), engine.state, rounds)


def prm_facts(searcher: Searcher) -> ScorerFacts:
    """What must be known of the PRM without holding it."""
    return ScorerFacts() if searcher.prm is None else ScorerFacts.of(searcher.prm)


def policy_identity(searcher: Searcher) -> str:
    """What decides the policy's texts."""
    return searcher.policy.identity()


@contextlib.contextmanager
def searchers_on_ray(
    policy: PolicySettings,
    prm: Scorer | str | Path | None,
    loading: Mapping[str, Any],
    name: str,
    settings: RaySettings,
) -> Iterator[Workers[Searcher]]:
    """Workers of a cluster, each with the policy and the PRM."""
    from prism_prm.scorer.opened import prm_for_workers

    of_policy = policy_for_workers(policy)
    of_prm = None if prm is None else prm_for_workers(prm, loading, name)
    make = functools.partial(_make, policy=of_policy.make, prm=None if of_prm is None else of_prm.make)
    both = [one for one in (of_policy, of_prm) if one is not None]
    folders = dict.fromkeys(folder for one in both for folder in one.folders)
    opening = Opening(make, tuple(folders), any(one.loads for one in both))
    with open_workers(opening, settings, alike=_alike) as workers:
        yield workers


def _make(
    found: Mapping[str, str],
    *,
    policy: Callable[[Mapping[str, str]], Policy],
    prm: Callable[[Mapping[str, str]], Scorer] | None,
) -> Searcher:
    return Searcher(policy(found), None if prm is None else prm(found))


def _alike(searcher: Searcher) -> str:
    return f"{policy_identity(searcher)} {searcher.prm.identity() if searcher.prm else ''}"
