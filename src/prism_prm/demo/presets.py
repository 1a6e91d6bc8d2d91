"""The demos we ship, by name."""

from __future__ import annotations

from dataclasses import replace

from prism_prm.demo.arms import ARMS, Budget
from prism_prm.demo.stages import DemoSettings
from prism_prm.world.settings import WORLDS

_DEFAULT = tuple(name for name, arm in ARMS.items() if not arm.full)

PRESETS: dict[str, DemoSettings] = {
    "demo": DemoSettings(
        WORLDS["demo"], base=Budget(epochs=6, pairs_per_update=256), arms=Budget(epochs=2), names=_DEFAULT
    ),
    "quick": DemoSettings(
        WORLDS["quick"], base=Budget(epochs=10, pairs_per_update=64), arms=Budget(epochs=1), names=_DEFAULT
    ),
}
"""`demo` is what `prism demo` runs; `quick` shows that everything works, in about a minute."""


def demo_settings(*, quick: bool = False, full: bool = False) -> DemoSettings:
    """What to run; `full` adds every ablation and the out-of-distribution tests."""
    settings = PRESETS["quick" if quick else "demo"]
    return replace(settings, names=tuple(ARMS), far=True) if full else settings
