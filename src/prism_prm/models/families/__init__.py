"""PRM families, one file each: how to lay out text, where to read it, and what the head's output means."""

from __future__ import annotations

from types import new_class

from prism_prm import plugins
from prism_prm.aggregate import check_aggregator
from prism_prm.errors import ConfigError
from prism_prm.models.families.base import Family, TextEncoder
from prism_prm.models.families.language_model import LanguageModel, OutcomeReward
from prism_prm.models.families.math_shepherd import MathShepherd
from prism_prm.models.families.qwen import Qwen
from prism_prm.models.families.reasoneval import ReasonEval
from prism_prm.models.families.rlhflow import RLHFlow
from prism_prm.models.families.skywork import Skywork
from prism_prm.models.families.token_classification import TokenClassification
from prism_prm.models.families.verdict import VerdictFamily

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (Qwen, TokenClassification, MathShepherd, RLHFlow, Skywork, ReasonEval, VerdictFamily)
}
"""Name → family."""
RIVALS: dict[str, type[Family]] = {family.name: family for family in (LanguageModel, OutcomeReward)}
"""Layouts of models that are no PRMs; `backends/rivals.py` scores with them."""

__all__ = ["FAMILIES", "RIVALS", "Family", "TextEncoder", "family_names", "find_family"]

_PLUGINS = plugins.Plugins(
    "family", FAMILIES, "prism_prm.families", "a subclass of Family",
    lambda found: isinstance(found, type) and issubclass(found, Family) and found is not Family,
    also="; or one of your own: my_file.py:Mine",
)  # fmt: skip


def family_names() -> list[str]:
    """List the built-in families and those that installed packages add."""
    return _PLUGINS.names()


def find_family(name: str) -> type[Family]:
    """Find a family by name: a built-in one, one of an installed package, or one in a file (`my_file.py:Mine`).

    The last runs the code of that file, so its name must come from the user, never from a downloaded folder.
    """
    if name in RIVALS:
        return RIVALS[name]
    if name in FAMILIES:
        return _PLUGINS.find(name)
    if plugins.is_in_file(name):
        found, sha256 = _PLUGINS.from_file(name)
        # Without the folder, which differs between machines; the hash identifies the file.
        short_name = name.replace("\\", "/").rsplit("/", 1)[-1]
    else:
        found, short_name = _PLUGINS.find(name), name
        sha256 = plugins.sha256_of(found)
    missing = sorted(found.__abstractmethods__) + ["head_name"] * (not hasattr(found, "head_name"))
    if missing:
        raise ConfigError(
            f"The family {name!r} lacks {', '.join(missing)}; docs/guides/plugins.md has a complete example."
        )
    try:
        check_aggregator(found.aggregator)
    except ConfigError as error:
        raise ConfigError(f"The family {name!r}: {error}") from None
    # A subclass, so that the author's class itself is not modified.
    attributes = {"name": short_name, "sha256": sha256, "__doc__": found.__doc__, "__module__": found.__module__}
    family: type[Family] = new_class(found.__name__, (found,), exec_body=lambda body: body.update(attributes))
    return family
