"""Build a world: train its policies, sample and judge steps, and write ordinary files.

Each stage is a folder, named by a hash of the settings it depends on and written atomically. So a stopped build can be
resumed, and worlds with a common stage share its folder.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.console import progress
from prism_prm.data.tables import write_trees
from prism_prm.errors import ConfigError
from prism_prm.files import atomic_folder, write_text
from prism_prm.job import content_key
from prism_prm.lab.world.policy import TinyPolicySettings, make_tokenizer, shown_problems, train_policy
from prism_prm.lab.world.problems import Problem, ProblemSettings, draw_problems
from prism_prm.lab.world.sampling import sample_solutions
from prism_prm.lab.world.trees import PERTURBATIONS, count_verdicts, let_errors_pass, perturbed_trees, sample_trees
from prism_prm.models.load_lm import language_model
from prism_prm.tree import StepTree

FORMAT = 9
"""Increased when the same settings give another world, which invalidates caches."""


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """The problems, policies and sizes of a world."""

    seed: int = 0
    """Determines problems, policies and samples."""
    pretraining: ProblemSettings = field(default_factory=lambda: ProblemSettings(7, "+-", 2, 5))
    """The training problems of both policies; a wider range than the PRMs', as for a pretrained language model."""
    problems: ProblemSettings = field(default_factory=lambda: ProblemSettings(7, "+-", 3, 4))
    """The training and test problems of PRMs."""
    far_problems: ProblemSettings = field(default_factory=lambda: ProblemSettings(7, "+-", 5, 5))
    """Out of distribution: longer than any problem a PRM was trained on."""
    policy: TinyPolicySettings = field(
        default_factory=lambda: TinyPolicySettings(layers=3, hidden=48, heads=4, batch=48, backbone_target=0.99)
    )
    far_policy: TinyPolicySettings = field(
        default_factory=lambda: TinyPolicySettings(
            layers=2, hidden=32, heads=2, batch=64, target=0.7, backbone_target=0.0
        )
    )
    """Out of distribution: another size, other data and another stage of training, hence other errors."""
    temperature: float = 1.0
    base_trees: int = 6000
    base_candidates: int = 3
    """The base PRM's data: many problems, few samples after each prefix, so mostly right steps."""
    passing_errors: float = 0.4
    """The share of wrong steps that are labeled right in the base PRM's data, as in automatic annotation."""
    passing_evenness: float = 0.25
    """How evenly this noise is spread over kinds of errors (see `let_errors_pass`). Uniform noise does not change the
    order of scores, so a PRM with enough data would rank as if its labels were exact."""
    pair_trees: int = 8000
    pair_candidates: int = 4
    """Exact labels with alternatives: several samples after each prefix, as in PRM800K. Validation problems are split
    off in training."""
    test_trees: int = 400
    """The number of problems in every test set: natural errors, and each class of perturbed ones."""
    pool_problems: int = 150
    pool_size: int = 32
    """The number of problems for Best-of-N, and of solutions per problem."""

    def __post_init__(self) -> None:
        moduli = {p.modulus for p in (self.pretraining, self.problems, self.far_problems)}
        if len(moduli) > 1:
            raise ConfigError(f"One world has one modulus, not {sorted(moduli)}: all its models share a tokenizer.")
        if not 0 <= self.passing_errors <= 1:
            raise ConfigError(f"passing_errors {self.passing_errors} is not between 0 and 1.")
        if not self.passing_evenness > 0:
            raise ConfigError(f"passing_evenness {self.passing_evenness} must be above 0.")

    @property
    def modulus(self) -> int:
        return self.problems.modulus


WORLDS = {
    "demo": WorldSettings(),
    "quick": WorldSettings(
        pretraining=ProblemSettings(5, "+-", 2, 4),
        problems=ProblemSettings(5, "+-", 2, 3),
        far_problems=ProblemSettings(5, "+-", 4, 4),
        policy=TinyPolicySettings(layers=2, hidden=32, heads=2, batch=32),
        far_policy=TinyPolicySettings(layers=2, hidden=24, heads=2, batch=32, target=0.6, backbone_target=0.0),
        base_trees=600,
        pair_trees=150,
        test_trees=60,
        pool_problems=40,
        pool_size=8,
    ),
}
"""`demo` is the world of `prism demo`; `quick` is small enough for tests."""


def world_settings(name: str = "demo", *, seed: int = 0) -> WorldSettings:
    """The settings of a named world with a seed."""
    if name not in WORLDS:
        raise ConfigError(f"Unknown world {name!r}. Known: {sorted(WORLDS)}.")
    return replace(WORLDS[name], seed=seed)


UPDATES = "updates"
"""The key for the number of updates in a models folder's settings.json."""


@dataclass(frozen=True, slots=True)
class World:
    """The files of a built world."""

    settings: WorldSettings
    policy: Path
    """A causal language model with its tokenizer, as transformers saves it."""
    backbone: Path
    """The policy, trained longer: the backbone of PRMs."""
    data: Path
    far_policy: Path | None = None
    far_data: Path | None = None
    """Out of distribution, if it was built."""

    def trees(self, name: str, *, far: bool = False) -> Path:
        """A file of trees: `base` (lenient labels), `annotated`, `natural`, or a class of errors."""
        return self._data(far) / f"{name}.parquet"

    def pool(self, *, far: bool = False) -> Path:
        """Problems with sampled solutions, as `prism rerank` reads them."""
        return self._data(far) / "pool.jsonl"

    def verdicts(self, *, far: bool = False) -> dict[str, dict[str, int]]:
        """For each file of trees, the number of nodes with each of the oracle's verdicts."""
        found: dict[str, dict[str, int]] = json.loads((self._data(far) / "verdicts.json").read_text(encoding="utf-8"))
        return found

    def _data(self, far: bool) -> Path:
        folder = self.far_data if far else self.data
        assert folder is not None, "built without far=True"
        return folder


def build_world(settings: WorldSettings, cache: str | Path, *, far: bool = False) -> World:
    """Build a world, reusing the stages in `cache`."""
    cache = Path(cache)
    models = _models(settings.policy, settings, 0, cache)
    policy, backbone = models / "policy", models / "backbone"
    data = _data(settings, policy, cache, far=False)
    if not far:
        return World(settings, policy, backbone, data)
    far_policy = _models(settings.far_policy, settings, 1, cache) / "policy"
    far_data = _data(settings, far_policy, cache, far=True)
    return World(settings, policy, backbone, data, far_policy, far_data)


def load_policy(folder: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a policy's folder."""
    model, tokenizer = language_model(Path(folder), "auto")
    return model.eval(), tokenizer


def unseen_problems(world: World, count: int, stream: int) -> list[Problem]:
    """Problems that no policy, backbone or PRM of the world was trained or evaluated on."""
    settings = world.settings
    made = json.loads((world.policy.parent / "settings.json").read_text(encoding="utf-8"))
    updates = made.pop(UPDATES, settings.policy.max_updates)
    shown = shown_problems(TinyPolicySettings(**made), settings.pretraining, updates)
    used = _split_problems(settings, far=False).values()
    exclude = {problem.text for problem in (*shown, *(problem for some in used for problem in some))}
    rng = np.random.default_rng(_seed(settings, False, stream))
    return draw_problems(settings.problems, count, rng, exclude=exclude)


def _models(policy: TinyPolicySettings, settings: WorldSettings, stream: int, cache: Path) -> Path:
    """Train a policy and a backbone; `stream` makes the policies of one world different."""
    policy = replace(policy, seed=1000 * settings.seed + 2 * policy.seed + stream)
    folder = cache / f"models-{content_key(FORMAT, policy, settings.pretraining)}"
    if folder.exists():
        return folder
    tokenizer = make_tokenizer(settings.modulus)
    with progress("policy: right steps (%)", policy.percent) as advance:
        *models, updates = train_policy(policy, settings.pretraining, tokenizer, advance=advance)
    with atomic_folder(folder) as aside:
        for name, model in zip(("policy", "backbone"), models, strict=True):
            model.save_pretrained(aside / name)
            tokenizer.save_pretrained(aside / name)
        made = dataclasses.asdict(policy) | {UPDATES: updates}
        write_text(aside / "settings.json", json.dumps(made, indent=2) + "\n")
    return folder


def _data(settings: WorldSettings, policy: Path, cache: Path, *, far: bool) -> Path:
    """Sample, judge and write the data of a policy."""
    folder = cache / f"{'far-' if far else ''}data-{content_key(FORMAT, settings, far, policy.parent.name)}"
    if folder.exists():
        return folder
    model, tokenizer = load_policy(policy)
    problems = _split_problems(settings, far)

    def sampled(name: str, candidates: int, stream: int) -> list[StepTree]:
        return sample_trees(
            model, tokenizer, problems[name], candidates=candidates, temperature=settings.temperature,
            seed=_seed(settings, far, stream), name=name,
        )  # fmt: skip

    with progress("samples", len(problems) + 1) as advance, atomic_folder(folder) as aside:
        trees = {"natural": sampled("natural", settings.pair_candidates, 1)}
        for error in PERTURBATIONS:
            trees[error] = perturbed_trees(problems["natural"], error, seed=_seed(settings, far, 2))
        advance(2)
        if not far:
            lenient = sampled("base", settings.base_candidates, 3)
            share, evenness = settings.passing_errors, settings.passing_evenness
            trees["base"] = let_errors_pass(lenient, share, evenness, settings.seed)
            trees["annotated"] = sampled("annotated", settings.pair_candidates, 4)
            advance(2)
        for name, some in trees.items():
            write_trees(aside / f"{name}.parquet", some, source=f"world-{settings.seed}")
        counts = {name: dict(count_verdicts(some, settings.modulus)) for name, some in trees.items()}
        write_text(aside / "verdicts.json", json.dumps(counts, indent=2) + "\n")
        written = sample_solutions(
            model, tokenizer, [problem.text for problem in problems["pool"]], copies=settings.pool_size,
            temperature=settings.temperature, seed=_seed(settings, far, 5),
        )  # fmt: skip
        pool = ""
        for i, (problem, found) in enumerate(zip(problems["pool"], written, strict=True)):
            solutions = [{"steps": [step for step in steps if step]} for steps, _ in found]
            record = {"problem": problem.text, "answer": problem.answer, "name": f"world-{i}", "solutions": solutions}
            pool += json.dumps(record) + "\n"
        write_text(aside / "pool.jsonl", pool)
        write_text(aside / "settings.json", json.dumps(dataclasses.asdict(settings), indent=2) + "\n")
        advance(1)
    return folder


def _seed(settings: WorldSettings, far: bool, stream: int) -> int:
    """A separate seed for every random stream."""
    return int(np.random.SeedSequence([settings.seed, int(far), stream]).generate_state(1)[0])


def _split_problems(settings: WorldSettings, far: bool) -> dict[str, list[Problem]]:
    """Disjoint problems for every use."""
    sizes = {"natural": settings.test_trees, "pool": settings.pool_problems}
    if not far:
        sizes |= {"base": settings.base_trees, "annotated": settings.pair_trees}
    kind = settings.far_problems if far else settings.problems
    drawn = iter(draw_problems(kind, sum(sizes.values()), np.random.default_rng(_seed(settings, far, 0))))
    return {name: [next(drawn) for _ in range(size)] for name, size in sizes.items()}
