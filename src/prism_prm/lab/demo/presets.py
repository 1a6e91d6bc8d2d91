"""The demos we ship, by name."""

from __future__ import annotations

from dataclasses import replace

from prism_prm.lab.demo.arms import ARMS, Budget
from prism_prm.lab.demo.reinforcement import Reinforcement
from prism_prm.lab.demo.stages import DemoSettings
from prism_prm.lab.world.settings import WORLDS
from prism_prm.rl.credit import CREDITS

_DEFAULT = tuple(name for name, arm in ARMS.items() if not arm.full)

PRESETS: dict[str, DemoSettings] = {
    "demo": DemoSettings(
        WORLDS["demo"],
        base=Budget(epochs=6, pairs_per_update=256),
        arms=Budget(epochs=2),
        names=_DEFAULT,
        rl=Reinforcement(),
    ),
    "quick": DemoSettings(
        WORLDS["quick"],
        base=Budget(epochs=10, pairs_per_update=64),
        arms=Budget(epochs=1),
        names=_DEFAULT,
        rl=Reinforcement(updates=6, prompts=8, held_out=40, every=3),
    ),
}
"""`demo` is what `prism demo` runs; `quick` shows that everything works, in about a minute."""


def demo_settings(*, quick: bool = False, full: bool = False) -> DemoSettings:
    """What to run; `full` adds every ablation, the out-of-distribution tests, and every way to give credit."""
    settings = PRESETS["quick" if quick else "demo"]
    if not full:
        return settings
    assert settings.rl is not None, "every preset has it"
    rl = replace(settings.rl, credits=tuple(CREDITS), betas=(0.0, 0.1))
    return replace(settings, names=tuple(ARMS), far=True, rl=rl)
