"""Search for solutions with a policy and a PRM, batched over problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prism_prm.policies import Policy
from prism_prm.search.engine import AT_ONCE, Engine
from prism_prm.search.found import Found, FoundSolution
from prism_prm.search.methods import METHODS, SearchSettings

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer

__all__ = ["METHODS", "Engine", "Found", "FoundSolution", "SearchSettings", "search_problems"]


def search_problems(
    policy: Policy, prm: Scorer | None, problems: Sequence[str], settings: SearchSettings, *, at_once: int = AT_ONCE
) -> list[Found]:
    """The solutions that a search finds for each problem, in order.

    Args:
        policy: the policy that writes steps.
        prm: the PRM that scores them; None for methods that need no PRM.
        problems: the texts of the problems.
        settings: the method and its size.
        at_once: the number of problems searched at the same time.

    Example:
        >>> settings = SearchSettings(method="beam", n=4, max_steps=2, sampling=Sampling(max_step_tokens=4))
        >>> [found] = search_problems(open_policy("hf:my-lm"), load_prm("my-prm"), ["1 + 2?"], settings)
        >>> len(found.solutions) <= 4
        True
    """
    engine = Engine(policy, prm, settings, at_once=at_once)
    found = [one for one in engine.run(problems) if isinstance(one, Found)]
    return sorted(found, key=lambda one: one.problem)
