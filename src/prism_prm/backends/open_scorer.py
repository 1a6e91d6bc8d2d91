"""Scorers by name: whether a name can be one (checked before anything heavy loads), and the opened scorer, held by this
process or by the workers of a Ray cluster (`loading["ray"]`)."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any

from prism_prm.backends.open_critic import check_critic, is_critic
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError
from prism_prm.job import Chunk, Opening, Workers
from prism_prm.models.card import check_prm, checkable, prm_folder
from prism_prm.models.model_files import base_of, is_adapter
from prism_prm.net import server_address
from prism_prm.ray import Ray
from prism_prm.scorer import Scorer, ScorerFacts, StepSession, TreeScores
from prism_prm.tree import StepTree

TREES_AT_ONCE = 64
"""Trees that a worker is sent together, by calls that do not say."""
REMOTE = ("prism", "vllm")
"""What stands before the address of a server."""


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """Where a remote PRM is."""

    kind: str
    """One of REMOTE."""
    url: str
    model: str
    """Which of the server's models; "" if it has only one."""


def remote_place(name: object) -> RemotePlace | None:
    """The server and model of `prism:http://host:8000#model`; None for the name of a local PRM."""
    kind, colon, rest = str(name).partition(":")
    if not isinstance(name, str) or not colon or kind not in REMOTE:
        return None
    url, _, model = rest.partition("#")
    return RemotePlace(kind, url, model)


def place_for_workers(prm: Scorer | str | Path) -> str | Path:
    """The place of a PRM that workers of a cluster can open; a critic, or a PRM that is open, is refused."""
    if not isinstance(prm, str | Path):
        raise ConfigError("workers of a Ray cluster load a PRM themselves: give its folder or hub id, not the PRM")
    if is_critic(prm):
        raise ConfigError(
            f"--ray: {prm} is a critic, and critics do not run on Ray. Serve its model on the cluster, e.g. with vLLM, "
            "and give critic:openai:URL with more --critic-concurrency"
        )
    return prm


def check_scorer(place: Scorer | str | Path, loading: Mapping[str, Any] | None, name: str = "") -> None:
    """Refuse at once what `opened_prm` would refuse later, given the same options."""
    if (loading or {}).get("ray") is not None:
        place_for_workers(place)
    if not isinstance(place, str | Path):
        return
    if is_critic(place):
        check_critic(str(place), (loading or {}).get("critic"))
        return
    remote = remote_place(place)
    if remote is None:
        check_prm(place, **checkable(loading, name))
        return
    server_address(remote.url)
    local = (loading or {}).get("local")
    if local is not None:
        check_prm(local, **checkable(loading, name))
    elif (loading or {}).get("check"):
        raise ConfigError(f"{place}: to check it, name its local copy with --local")


@contextlib.contextmanager
def opened_prm(prm: Scorer | str | Path, loading: Mapping[str, Any] | None = None, name: str = "") -> Iterator[Scorer]:
    """The scorer of `open_prm`; with `loading["ray"]`, one that the workers of a cluster hold until the block ends."""
    loading = dict(loading or {})
    ray = loading.pop("ray", None)
    if ray is None:
        from prism_prm.backends.load_prm import open_prm

        yield open_prm(prm, loading, name)
        return
    with Ray(ray).open(prm_for_workers(prm, loading, name), alike=methodcaller("identity")) as workers:
        yield RayScorer(workers)


def prm_for_workers(prm: Scorer | str | Path, loading: Mapping[str, Any], name: str = "") -> Opening[Scorer]:
    """What opens the PRM where its folders are found: no path in it depends on where this process runs."""
    given = place_for_workers(prm)
    options = {key: value for key, value in loading.items() if value is not None and key != "critic"}
    if isinstance(families := options.get("family"), Mapping):
        options["family"] = families.get(name)
    is_local, place = remote_place(given) is None, str(given)
    if is_local:
        place = _absolute(prm_folder(given))
        if is_adapter(place) and "adapter" not in options:
            place, options["adapter"] = _absolute(base_of(Path(place))), place
    options |= {key: _absolute(options[key]) for key in ("adapter", "local", "cache") if key in options}
    if family := options.get("family"):
        file, colon, kind = str(family).rpartition(":")
        options["family"] = f"{_absolute(file)}{colon}{kind}"
    named = [place, options.get("adapter"), options.get("local")]
    folders = tuple(folder for folder in named if folder is not None and os.path.isdir(folder))
    return Opening(functools.partial(_make, place=place, options=options), folders, is_local or "local" in options)


def _absolute(place: str | Path) -> str:
    """A path that other processes understand; a hub id stays as it is."""
    return os.path.abspath(place) if os.path.exists(place) else str(place)


def _make(found: Mapping[str, str], *, place: str, options: Mapping[str, Any]) -> Scorer:
    from prism_prm.backends.load_prm import open_prm  # heavy, and the driver does without

    own = {key: found.get(value, value) if key in ("adapter", "local") else value for key, value in options.items()}
    return open_prm(found.get(place, place), own)


class RayScorer(Scorer):
    """A PRM that the workers of a cluster hold and share the work of."""

    def __init__(self, workers: Workers[Scorer]) -> None:
        self.workers: Workers[Scorer] = workers
        self.facts = workers.ask(ScorerFacts.of)
        self.outputs, self.context, self.card = self.facts.outputs, self.facts.context, self.facts.card

    def identity(self) -> str:
        return self.facts.name

    def model_hash(self) -> str:
        return str(self.workers.ask(methodcaller("model_hash")))

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        results: dict[int, list[TreeScores]] = {}
        with bar_on_stderr("scoring", len(trees), shown=progress) as bar:
            for chunk, found in self.workers.run(_score, self._chunks(list(zip(trees, wanted, strict=True)))):
                results[chunk.number] = found
                bar(chunk.size)
                advance(chunk.size)
        return [scores for number in sorted(results) for scores in results[number]]

    def count_tokens(self, tree: StepTree) -> int:
        return self.count_all([tree])

    def count_all(self, trees: Sequence[StepTree]) -> int:
        return sum(count for _, count in self.workers.run(Scorer.count_all, self._chunks(trees)))

    def can_score_all(self, solutions: Sequence[StepTree]) -> list[bool]:
        found = {chunk.number: fits for chunk, fits in self.workers.run(Scorer.can_score_all, self._chunks(solutions))}
        return [fits for number in sorted(found) for fits in found[number]]

    def can_score(self, step: str, depth: int) -> bool:
        return bool(self.workers.ask(methodcaller("can_score", step, depth)))

    def session(self, problems: Sequence[str]) -> StepSession[Any]:
        """Refused: a session lives in one process, so whoever needs one works there as a whole."""
        raise ConfigError(
            f"a session on {len(problems)} problems: a PRM that workers hold has none; open it where the PRM is loaded"
        )

    @staticmethod
    def _chunks(items: Sequence[Any]) -> Iterator[Chunk[Any]]:
        for start in range(0, len(items), TREES_AT_ONCE):
            some = items[start : start + TREES_AT_ONCE]
            yield Chunk(start, f"trees {start + 1} to {start + len(some)}", some, len(some))


def _score(scorer: Scorer, work: Sequence[tuple[StepTree, Sequence[int]]]) -> list[TreeScores]:
    return scorer.score_trees([tree for tree, _ in work], [nodes for _, nodes in work])
