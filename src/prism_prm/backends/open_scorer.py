"""Open scorers by name, in this process or on the workers of a Ray cluster (`PrmOptions.ray`).

`check_scorer` reports a wrong name before anything heavy is imported.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, TypeVar

from prism_prm.aggregate import segmenter_of
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.ensemble import Ensemble, check_rule
from prism_prm.backends.open_critic import check_critic, is_critic
from prism_prm.backends.open_rival import check_rival, rival_place
from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError
from prism_prm.imports import importing
from prism_prm.job import Chunk, Opening, Workers
from prism_prm.models.card import check_prm, prm_folder, read_calibration, read_card
from prism_prm.models.load_settings import LoadSettings
from prism_prm.models.model_files import base_of, is_adapter
from prism_prm.net import server_address
from prism_prm.ray import Ray, RaySettings
from prism_prm.scorer import Scorer, ScorerFacts, ScorerWithBar, StepSession, TreeScores
from prism_prm.segments import DEFAULT_SEGMENTER
from prism_prm.tree import StepTree

Result = TypeVar("Result")

TREES_AT_ONCE = 64
"""The default number of trees per chunk for a worker."""
REMOTE = ("prism", "vllm")
"""Prefixes of server addresses."""
ENSEMBLE = "ensemble:"


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """The address of a remote PRM."""

    kind: str
    """One of REMOTE."""
    url: str
    model: str
    """One of the server's models; "" if it has only one."""


def remote_place(name: object) -> RemotePlace | None:
    """Parse `prism:http://host:8000#model`; None for the name of a local PRM."""
    kind, colon, rest = str(name).partition(":")
    if not isinstance(name, str) or not colon or kind not in REMOTE:
        return None
    url, _, model = rest.partition("#")
    return RemotePlace(kind, url, model)


@dataclass(frozen=True, slots=True)
class EnsemblePlace:
    """The name of an ensemble, in parts."""

    rule: str
    members: tuple[str, ...]
    """The names of its scorers."""


def ensemble_place(name: object) -> EnsemblePlace | None:
    """Parse `ensemble:RULE:PRM,PRM,…`; None for the name of another scorer."""
    if not isinstance(name, str) or not name.startswith(ENSEMBLE):
        return None
    rule, colon, rest = name.removeprefix(ENSEMBLE).partition(":")
    members = tuple(rest.split(","))
    if not colon or not all(members) or len(members) < 2 or ENSEMBLE in rest:
        raise ConfigError(
            f"{name!r} is not an ensemble; expected ensemble:RULE:PRM,PRM,… with two or more PRMs, e.g. "
            "ensemble:mean:prms/a,prms/b (rules: mean, min, mean-1std)"
        )
    check_rule(rule)
    return EnsemblePlace(rule, members)


def place_for_workers(prm: Scorer | str | Path) -> str | Path:
    """Return a PRM's place if workers of a cluster can open it. Raises for critics and for PRMs that are open."""
    if not isinstance(prm, str | Path):
        raise ConfigError("workers of a Ray cluster load a PRM themselves: pass its folder or hub id, not the PRM")
    if rival_place(prm) is not None:
        raise ConfigError(f"--ray: {prm} does not run on Ray; leave out --ray, or serve it with `prism serve`")
    if is_critic(prm):
        raise ConfigError(
            f"--ray: {prm} is a critic, and critics do not run on Ray. Serve its model on the cluster, e.g. with vLLM, "
            "and use critic:openai:URL with a higher -C concurrency=…"
        )
    return prm


@dataclass(frozen=True, slots=True)
class PrmOptions(LoadSettings):
    """How to open PRMs: the options of `load_prm`, the settings of critics, and the Ray cluster."""

    families: Mapping[str, str] = field(default_factory=dict)
    """Families by the names of PRMs, if several are compared. By default `family`."""
    critic: CriticSettings = field(default_factory=CriticSettings)
    """Settings for PRMs that are critics."""
    ray: RaySettings | None = None
    """The Ray cluster whose workers load the PRM. By default this process loads it."""

    def skipping(self) -> PrmOptions:
        """Return these options with "skip" as the default of `on_too_long`."""
        return replace(self, on_too_long=self.on_too_long or "skip")

    def load_options(self, name: str) -> dict[str, Any]:
        """Return the arguments of `load_prm` for the PRM of this name."""
        options = {each.name: getattr(self, each.name) for each in fields(LoadSettings)}
        family, too_long = self.families.get(name, self.family), self.on_too_long or "error"
        return options | {"family": family, "on_too_long": too_long}


def check_scorer(place: Scorer | str | Path, options: PrmOptions, name: str = "") -> None:
    """Raise early what `opened_prm` would raise later with the same options."""
    if options.ray is not None:
        place_for_workers(place)
    if not isinstance(place, str | Path):
        return
    if options.calibration is not None:
        read_calibration(options.calibration)
        if ensemble_place(place) is not None or rival_place(place) is not None:
            raise ConfigError(f"{place} is not a single PRM; load.calibration is for one")
    if options.adapter is not None and str(place).startswith((ENSEMBLE, "implicit:")):
        raise ConfigError(f"{place} has several models; load.adapter is for one: name the adapter instead of its base")
    if (ensemble := ensemble_place(place)) is not None:
        for member in ensemble.members:
            check_scorer(member, options, name)
        return
    if (rival := rival_place(place)) is not None:
        check_rival(rival, options)
        return
    if is_critic(place):
        if options.calibration is not None:
            raise ConfigError(f"{place} is a critic; load.calibration is for PRMs")
        check_critic(str(place), options.critic)
        return
    remote = remote_place(place)
    if remote is not None:
        server_address(remote.url)
        if options.local is None:
            if options.check:
                raise ConfigError(f"{place}: to check it, name its local copy with --set load.local=FOLDER")
            return
        place = options.local
    family = options.families.get(name, options.family)
    check_prm(place, family=family, adapter=options.adapter, allow_pickle=options.allow_pickle)


def named_segmenter(prms: Iterable[Scorer | str | Path], options: PrmOptions) -> str | None:
    """The rule by which texts are cut into steps for these PRMs, which must agree; None for the rule of all texts.

    PRMs are not loaded: a hub id, a server or a critic has the default.
    """
    if options.segmenter is not None:
        return options.segmenter
    names: dict[str, str] = {}
    for prm in itertools.chain.from_iterable(map(_models_of, prms)):
        if isinstance(prm, Scorer):
            names[segmenter_of(prm)] = type(prm).__name__
        else:
            place = Path(prm_folder(prm))
            card = read_card(place) if place.is_dir() else None
            names[DEFAULT_SEGMENTER if card is None else card.segmenter] = str(prm)
    if len(names) > 1:
        found = ", ".join(f"{name} ({prm})" for name, prm in names.items())
        raise ConfigError(f"The PRMs cut texts into steps by different rules: {found}. Choose one: load.segmenter=…")
    chosen = next(iter(names), DEFAULT_SEGMENTER)
    return None if chosen == DEFAULT_SEGMENTER else chosen


def _models_of(prm: Scorer | str | Path) -> list[Scorer | str | Path]:
    """The members of an ensemble, and the first model of a rival."""
    if (ensemble := ensemble_place(prm)) is not None:
        return [model for member in ensemble.members for model in _models_of(member)]
    rival = rival_place(prm)
    return [prm if rival is None else rival.target.removeprefix("hf:")]


@contextlib.contextmanager
def opened_prm(prm: Scorer | str | Path, options: PrmOptions | None = None, name: str = "") -> Iterator[Scorer]:
    """Open a scorer as `open_prm` does; with `options.ray`, on the workers of a cluster until the block ends."""
    options = options or PrmOptions()
    if options.ray is None:
        with importing():
            from prism_prm.backends.load_prm import open_prm

        yield open_prm(prm, options, name)
        return
    opening = prm_for_workers(prm, options, name)
    with Ray(options.ray).open(opening, alike=methodcaller("identity")) as workers:
        yield RayScorer(workers)


def prm_for_workers(prm: Scorer | str | Path, options: PrmOptions, name: str = "") -> Opening[Scorer]:
    """Describe how workers open the PRM; all paths are absolute, so they do not depend on this process."""
    source = place_for_workers(prm)
    if (ensemble := ensemble_place(source)) is not None:
        openings = [prm_for_workers(member, options, name) for member in ensemble.members]
        return Opening(
            functools.partial(_load_ensemble, rule=ensemble.rule, openings=openings),
            tuple(dict.fromkeys(folder for opening in openings for folder in opening.folders)),
            any(opening.loads for opening in openings),
        )
    load = {key: value for key, value in options.load_options(name).items() if value is not None}
    is_local, place = remote_place(source) is None, str(source)
    if is_local:
        place = _absolute(prm_folder(source))
        if is_adapter(place) and "adapter" not in load:
            place, load["adapter"] = _absolute(base_of(Path(place))), place
    load |= {key: _absolute(load[key]) for key in ("adapter", "local") if key in load}
    if "cache" in load:  # the folder may not exist yet
        load["cache"] = os.path.abspath(load["cache"])
    if "calibration" in load:
        load["calibration"] = read_calibration(load["calibration"])
    if family := load.get("family"):
        file, colon, kind = str(family).rpartition(":")
        load["family"] = f"{_absolute(file)}{colon}{kind}"
    sources = [place, load.get("adapter"), load.get("local")]
    folders = tuple(folder for folder in sources if folder is not None and os.path.isdir(folder))
    return Opening(functools.partial(_load, place=place, load=load), folders, is_local or "local" in load)


def _absolute(place: str | Path) -> str:
    """Make a path absolute; a hub id stays as it is."""
    return os.path.abspath(place) if os.path.exists(place) else str(place)


def _load(folders: Mapping[str, str], *, place: str, load: Mapping[str, Any]) -> Scorer:
    from prism_prm.backends.load_prm import load_prm  # heavy, and the driver does not need it

    options = {key: folders.get(value, value) if key in ("adapter", "local") else value for key, value in load.items()}
    return load_prm(folders.get(place, place), **options)


def _load_ensemble(folders: Mapping[str, str], *, rule: str, openings: Sequence[Opening[Scorer]]) -> Scorer:
    return Ensemble([opening.make(folders) for opening in openings], rule)


class RayScorer(ScorerWithBar):
    """A PRM on the workers of a cluster, which share the work."""

    def __init__(self, workers: Workers[Scorer]) -> None:
        self.workers: Workers[Scorer] = workers
        self.facts = workers.ask(ScorerFacts.of)
        self.outputs, self.context, self.card = self.facts.outputs, self.facts.context, self.facts.card
        self.on_too_long = workers.ask(attrgetter("on_too_long"))

    def identity(self) -> str:
        return self.facts.name

    def model_hash(self) -> str:
        return str(self.workers.ask(methodcaller("model_hash")))

    def _score(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], advance: Advance) -> list[TreeScores]:
        return list(itertools.chain(*self._share(_score, list(zip(trees, wanted, strict=True)), advance)))

    def count_tokens(self, tree: StepTree) -> int:
        return self.count_all([tree])

    def count_all(self, trees: Sequence[StepTree]) -> int:
        return sum(self._share(Scorer.count_all, trees))

    def can_score_all(self, solutions: Sequence[StepTree]) -> list[bool]:
        return list(itertools.chain(*self._share(Scorer.can_score_all, solutions)))

    def can_score(self, step: str, depth: int) -> bool:
        return bool(self.workers.ask(methodcaller("can_score", step, depth)))

    def session(self, problems: Sequence[str]) -> StepSession[Any]:
        """Not supported: a session lives in one process."""
        raise ConfigError(
            f"a session on {len(problems)} problems: a PRM on Ray workers has no sessions; load the PRM in this process"
        )

    def _share(
        self, act: Callable[[Scorer, Sequence[Any]], Result], items: Sequence[Any], advance: Advance = ignore
    ) -> list[Result]:
        """Let the workers act on chunks of the items; returns the results in order."""
        parts = {start: items[start : start + TREES_AT_ONCE] for start in range(0, len(items), TREES_AT_ONCE)}
        chunks = (
            Chunk(start, f"trees {start + 1} to {start + len(part)}", part, len(part)) for start, part in parts.items()
        )
        results: dict[int, Result] = {}
        for chunk, result in self.workers.run(act, chunks):
            results[chunk.number] = result
            advance(chunk.size)
        return [results[start] for start in parts]


def _score(scorer: Scorer, work: Sequence[tuple[StepTree, Sequence[int]]]) -> list[TreeScores]:
    return scorer.score_trees([tree for tree, _ in work], [nodes for _, nodes in work])
