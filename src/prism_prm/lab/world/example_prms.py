"""Two tiny PRMs that ship with the package, so that examples run without a download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from prism_prm.models.prm import PRM

EXAMPLES = ("base", "prism")
"""`base` over-credits wrong steps; `prism` is the same model after training on matched pairs."""


def example_folder(name: str = "prism") -> Path:
    """The folder of a PRM that ships with the package.

    Args:
        name: `prism`, or `base` for the PRM it was trained from.

    Example:
        >>> from prism_prm import example_folder
        >>> example_folder("base").name
        'base'
    """
    if name not in EXAMPLES:
        raise ConfigError(f"There is no example PRM {name!r}. Known: {', '.join(EXAMPLES)}.")
    return Path(__file__).parent / "shipped" / name


def example_prm(name: str = "prism") -> PRM:
    """A PRM of 74,000 parameters for sums modulo 7, from seed 0 of `prism demo`; loads in a second.

    Args:
        name: `prism`, or `base` for the PRM it was trained from.

    Example:
        >>> from prism_prm import example_prm
        >>> steps = ["1+1=2", "2+2=3", "3-1=2", "#### 2"]
        >>> [round(p, 2) for p in example_prm("base").score("1+1+2-1", steps)]
        [1.0, 1.0, 0.99, 0.99]
        >>> [round(p, 2) for p in example_prm("prism").score("1+1+2-1", steps)]
        [1.0, 0.0, 0.99, 0.98]
    """
    from prism_prm.models.prm import PRM

    return PRM.from_pretrained(example_folder(name))
