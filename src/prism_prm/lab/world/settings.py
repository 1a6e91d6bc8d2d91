"""All settings of a world in one frozen record, and the worlds we use by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prism_prm.errors import ConfigError
from prism_prm.lab.world.policy import PolicySettings
from prism_prm.lab.world.problems import ProblemSettings

FORMAT = 9
"""Raised when the same settings would make another world, so that old caches are not taken for new ones."""


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """One world: its problems, its policies, and how much of everything."""

    seed: int = 0
    """Other seeds are other problems, policies and samples."""
    pretraining: ProblemSettings = field(default_factory=lambda: ProblemSettings(7, "+-", 2, 5))
    """What both policies learned from; wider than what PRMs are trained on, as with a pretrained language model."""
    problems: ProblemSettings = field(default_factory=lambda: ProblemSettings(7, "+-", 3, 4))
    """What PRMs are trained on and tested with."""
    far_problems: ProblemSettings = field(default_factory=lambda: ProblemSettings(7, "+-", 5, 5))
    """Out of distribution: longer than any problem a PRM was trained on."""
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(layers=3, hidden=48, heads=4, batch=48, backbone_target=0.99)
    )
    far_policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(layers=2, hidden=32, heads=2, batch=64, target=0.7, backbone_target=0.0)
    )
    """Out of distribution: another size, other data and another stage of training, so other errors."""
    temperature: float = 1.0
    base_trees: int = 6000
    base_candidates: int = 3
    """The base PRM's labels: many problems, a few samples under each prefix, so mostly right steps."""
    passing_errors: float = 0.4
    """Share of wrong steps that the base PRM's labels call right, as automatic annotation does."""
    passing_evenness: float = 0.25
    """How alike errors are in that: see `let_errors_pass`. Were they all alike, a PRM that learned enough would rank as
    if its labels were exact, since such noise does not change the order."""
    pair_trees: int = 8000
    pair_candidates: int = 4
    """Clean labels with alternatives: several samples under each prefix, as PRM800K has. Training
    splits its own validation problems off."""
    test_trees: int = 400
    """Problems of every test set: natural errors, and each class of perturbed ones."""
    pool_problems: int = 150
    pool_size: int = 32
    """Problems and sampled solutions of each for Best-of-N."""

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
        """The one modulus of all problems."""
        return self.problems.modulus


_DEMO = WorldSettings()
_QUICK = WorldSettings(
    pretraining=ProblemSettings(5, "+-", 2, 4),
    problems=ProblemSettings(5, "+-", 2, 3),
    far_problems=ProblemSettings(5, "+-", 4, 4),
    policy=PolicySettings(layers=2, hidden=32, heads=2, batch=32),
    far_policy=PolicySettings(layers=2, hidden=24, heads=2, batch=32, target=0.6, backbone_target=0.0),
    base_trees=600,
    pair_trees=150,
    test_trees=60,
    pool_problems=40,
    pool_size=8,
)

WORLDS = {"demo": _DEMO, "quick": _QUICK}
"""The worlds we use: `demo` is what `prism demo` shows, `quick` is small enough for tests."""


def world_settings(name: str = "demo", *, seed: int = 0) -> WorldSettings:
    """A named world with a seed."""
    if name not in WORLDS:
        raise ConfigError(f"Unknown world {name!r}. Known: {sorted(WORLDS)}.")
    return replace(WORLDS[name], seed=seed)
