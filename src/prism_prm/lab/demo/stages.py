"""The stages of one seed, each a folder that is made once: world, base PRM, arms, scores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.aggregate import Choice, card_values, choose_aggregator
from prism_prm.backends.load_prm import init_prm, load_prm
from prism_prm.config import from_mapping
from prism_prm.console import prefixed, progress, say
from prism_prm.data.pools import read_pool
from prism_prm.data.tables import iter_trees
from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import Item
from prism_prm.evaluate.measure import Steps
from prism_prm.evaluate.score_files import collect_steps
from prism_prm.job import content_key, once, stoppable
from prism_prm.lab.demo.arms import ARMS, Arm, Budget, base_recipe
from prism_prm.lab.demo.guided import guided_search, settings_for
from prism_prm.lab.demo.reinforcement import ORACLE, Reinforcement, Run, jobs_of, runs_of, train_policies
from prism_prm.lab.world.build import World, build_world
from prism_prm.lab.world.scorer import OracleScorer
from prism_prm.lab.world.settings import FORMAT, WorldSettings
from prism_prm.lab.world.tokens import PRM_SETTINGS
from prism_prm.lab.world.trees import PERTURBATIONS
from prism_prm.search.grade_pool import StepScores, scores_by_prm
from prism_prm.search.methods import SearchSettings
from prism_prm.store import Request, ScoreStore
from prism_prm.train.recipe import Recipe
from prism_prm.train.train_prm import train_prm

if TYPE_CHECKING:
    from prism_prm.rl.alarm import TrainedPolicy

BASE = "base"
NATURAL = "natural"
GUIDED_NS = (4, 16)
"""Candidates per round of the beam search."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What a demo runs, for each seed."""

    world: WorldSettings
    base: Budget
    arms: Budget
    names: tuple[str, ...]
    """Arms beside the base PRM, in the order they are shown."""
    far: bool = False
    """Whether to measure out of distribution too."""
    rl: Reinforcement | None = None
    """How policies are trained with these PRMs; None: they are not."""


@dataclass(frozen=True)
class Scored:
    """Everything one PRM said about the test sets of one seed."""

    aggregator: Choice[str]
    """How its step scores become those of solutions and beams."""
    steps: Steps
    """All test trees; a group per test set."""
    pool: StepScores
    """P(right) of the steps of each solution of the pool."""
    guided: dict[int, list[bool]]
    """Beam search guided by the PRM: for each n, whether it solved each problem of the pool."""
    far_steps: Steps | None = None
    far_pool: StepScores | None = None
    far_guided: dict[int, list[bool]] | None = None


@dataclass(frozen=True)
class SeedResult:
    """The results of one seed."""

    seed: int
    world: World
    prms: dict[str, Path]
    """Folders of the base PRM and of every arm that was trained."""
    scored: dict[str, Scored]
    """What each of them said."""
    rounds: dict[str, dict[str, Any]]
    """For every arm the validation of its rounds, as run.json has it."""
    failed: dict[str, str]
    """Arms that this world has no data for (a curriculum bin without pairs), and why."""
    policies: dict[Run, TrainedPolicy] = field(default_factory=dict)
    """The curves of the policies that these PRMs rewarded."""
    rl: Reinforcement | None = None


class SeedRun:
    """One seed of a demo in its folder; what is done already is not done again."""

    def __init__(
        self,
        settings: DemoSettings,
        seed: int,
        folder: Path,
    ) -> None:
        self.settings = settings
        self.seed = seed
        self.folder = folder / f"seed-{seed}"
        self.cache = folder / "world"

    def go(self) -> SeedResult:
        """All stages in order; what is done of a stopped seed is not done again."""
        with stoppable(lambda: f"seed {self.seed}"):
            return self._stages()

    def _stages(self) -> SeedResult:
        settings = self.settings
        world = build_world(replace(settings.world, seed=self.seed), self.cache, far=settings.far)
        base, _ = self._trained(BASE, base_recipe(world.trees(BASE), self._fresh(world), settings.base, self.seed))
        prms = {BASE: base}
        scored = {BASE: self._scored(BASE, base, world)}
        rounds: dict[str, dict[str, Any]] = {}
        failed: dict[str, str] = {}
        for name in settings.names:
            try:
                prms[name], rounds[name] = self._trained(name, self._recipe(ARMS[name], world, base))
            except DataError as error:
                failed[name] = str(error)
                say(f"{name}: not trained. {error}")
                continue
            scored[name] = self._scored(name, prms[name], world)
        policies = self._rewarded(world, prms) if settings.rl else {}
        return SeedResult(self.seed, world, prms, scored, rounds, failed, policies, settings.rl)

    def _rewarded(self, world: World, prms: dict[str, Path]) -> dict[Run, TrainedPolicy]:
        """Train policies with these PRMs as rewards."""
        assert self.settings.rl is not None
        runs = runs_of([name for name in prms if name == BASE or not ARMS[name].full], self.settings.rl)
        scorers: dict[str, Path | OracleScorer] = {**prms, ORACLE: OracleScorer(world.settings.modulus)}
        return train_policies(jobs_of(world, scorers, runs, self.settings.rl, self.folder / "policies"))

    def _recipe(self, arm: Arm, world: World, base: Path) -> dict[str, Any]:
        return arm.recipe(world.trees(arm.trees), base, self.settings.arms, self.seed)

    def _fresh(self, world: World) -> Path:
        """The PRM that the base PRM starts as: the backbone with a fresh head."""
        folder = self.folder / f"fresh-{world.backbone.parent.name}"
        if not folder.exists():
            init_prm(world.backbone, family="qwen", settings=PRM_SETTINGS, seed=self.seed, device="cpu").save(folder)
        return folder

    def _trained(self, name: str, recipe: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Train by a recipe; gives the best round's folder and the validation of all rounds."""
        from accelerate import Accelerator

        folder = self.folder / f"{name}-{content_key(FORMAT, recipe)}"
        with prefixed(name), stoppable(lambda: f"of {name}"):
            finished = train_prm(from_mapping(Recipe, recipe), folder, accelerator=Accelerator(cpu=True))
        return Path(finished["best"]), finished["rounds"]

    def _scored(self, name: str, prm: Path, world: World) -> Scored:
        """Score the test trees and the pools, and search with the PRM; what was done before is read."""
        scorer = load_prm(prm, device="cpu")
        how = choose_aggregator(None, card_values(scorer))
        store = ScoreStore(self.folder / "scores", scorer)
        found: list[Any] = []
        for far in (False, True) if self.settings.far else (False,):
            found += [
                self._score_trees(name, store, world, far),
                self._score_pool(name, store, world, far),
                self._guided(name, prm, store.identity, how.value, world, far),
            ]
        return Scored(how, *found)

    def _score_trees(self, name: str, store: ScoreStore, world: World, far: bool) -> Steps:
        items = [
            Item(tree, group, tree.problem)
            for group in (NATURAL, *PERTURBATIONS)
            for tree in iter_trees(world.trees(group, far=far))
        ]
        with progress(f"{name}: scoring steps", len(items)) as advance:
            scores = store.score([Request.all_of(item.tree) for item in items], advance=advance)
        return collect_steps(items, [found.probability for found in scores], None)

    def _score_pool(self, name: str, store: ScoreStore, world: World, far: bool) -> StepScores:
        pool = read_pool(world.pool(far=far))
        with progress(f"{name}: scoring solutions", len(pool.trees())) as advance:
            return scores_by_prm(store, pool, advance=advance)

    def _guided(self, name: str, prm: Path, identity: str, how: str, world: World, far: bool) -> dict[int, list[bool]]:
        """Search with the PRM on the problems of the pool."""
        policy = world.far_policy if far else world.policy
        assert policy is not None, "built without its far part"
        data = world.trees(NATURAL, far=far).parent.name  # which names its content
        found = {}
        for n in GUIDED_NS:
            settings = settings_for(n, how, world.settings.temperature, self.seed)

            def search(settings: SearchSettings = settings, policy: Path = policy) -> list[bool]:
                total = world.settings.pool_problems
                with progress(f"{name}: beam search, n = {settings.n}", total) as advance:
                    return guided_search(
                        policy, prm, world.pool(far=far), world.settings.modulus, settings, advance=advance
                    )

            path = self.folder / "guided" / f"{'far-' if far else ''}{name}-beam-{n}.json"
            found[n] = once(path, content_key(FORMAT, identity, data, settings), search)
        return found
