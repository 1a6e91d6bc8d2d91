"""PRM families: how each lays out text, where it is read, and what its head's output means. One file each."""

from __future__ import annotations

from types import new_class

from prism_prm import plugins
from prism_prm.aggregate import check_aggregator
from prism_prm.errors import ConfigError
from prism_prm.models.families.base import Family, TextEncoder
from prism_prm.models.families.math_shepherd import MathShepherd
from prism_prm.models.families.qwen import Qwen
from prism_prm.models.families.reasoneval import ReasonEval
from prism_prm.models.families.rlhflow import RLHFlow
from prism_prm.models.families.skywork import Skywork
from prism_prm.models.families.token_classification import TokenClassification
from prism_prm.models.families.verdict import Verdict

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (Qwen, TokenClassification, MathShepherd, RLHFlow, Skywork, ReasonEval, Verdict)
}
"""Name → family."""

__all__ = ["FAMILIES", "Family", "TextEncoder", "family_names", "find_family"]

_PLUGINS = plugins.Plugins(
    "family", FAMILIES, "prism_prm.families", "a subclass of Family",
    lambda found: isinstance(found, type) and issubclass(found, Family) and found is not Family,
    also="; or one of your own: my_file.py:Mine",
)  # fmt: skip


def family_names() -> list[str]:
    """Ours, and those that installed packages add."""
    return _PLUGINS.names()


def find_family(name: str) -> type[Family]:
    """One of FAMILIES, or of an installed package, or of a file (`my_file.py:Mine`), which runs the code of that file.

    So a file's name must come from the user, never from a folder that may be someone else's.
    """
    if name in FAMILIES:
        return _PLUGINS.find(name)
    if plugins.is_in_file(name):
        found, sha256 = _PLUGINS.from_file(name)
        # Without the folder: it differs between machines, and the hash says which file of that name it is.
        called = name.replace("\\", "/").rsplit("/", 1)[-1]
    else:
        found, called = _PLUGINS.find(name), name
        sha256 = plugins.sha256_of(found)
    lacking = sorted(found.__abstractmethods__) + ["head_name"] * (not hasattr(found, "head_name"))
    if lacking:
        raise ConfigError(f"The family {name!r} lacks {', '.join(lacking)}; docs/plugins.md has a complete example.")
    try:
        check_aggregator(found.aggregator)
    except ConfigError as error:
        raise ConfigError(f"The family {name!r}: {error}") from None
    # A subclass, so that the author's class stays as it is written, under whatever name it is found.
    more = {"name": called, "sha256": sha256, "__doc__": found.__doc__, "__module__": found.__module__}
    made: type[Family] = new_class(found.__name__, (found,), exec_body=lambda body: body.update(more))
    return made
