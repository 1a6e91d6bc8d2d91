"""PRM-guided beam search in the world: the policy writes steps, a PRM decides which beams continue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from prism_prm.aggregate import log_score
from prism_prm.backends.load_prm import load_prm
from prism_prm.backends.policy import Sampling, open_policy
from prism_prm.data.pools import read_pool
from prism_prm.lab.world.oracle import solved
from prism_prm.lab.world.problems import Problem
from prism_prm.scorer import Scorer
from prism_prm.search.engine import SearchEngine
from prism_prm.search.methods import SearchSettings
from prism_prm.search.tree import FoundSolution, SearchResult


def settings_for(n: int, aggregator: str, temperature: float, seed: int) -> SearchSettings:
    """Beam search with n candidates per round."""
    sampling = Sampling(temperature=temperature, max_step_tokens=8, max_tokens=64)
    return SearchSettings("beam", n=n, aggregator=aggregator, max_steps=12, seed=seed, sampling=sampling)


def guided_search(
    policy: Path,
    prm: Path | Scorer,
    pool: Path,
    modulus: int,
    settings: SearchSettings,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> list[bool]:
    """For each problem of a pool, whether the best solution that the search finds has the right answer."""
    problems = [entry.problem.text for entry in read_pool(pool).problems]
    outcome = [False] * len(problems)
    with contextlib.closing(open_policy(f"hf:{policy}")) as who:
        scorer = load_prm(prm, device="cpu", on_too_long="skip") if isinstance(prm, Path) else prm
        engine = SearchEngine(who, scorer, settings, at_once=64)
        for found in (event for event in engine.run(problems) if isinstance(event, SearchResult)):
            if found.solutions:
                best = max(found.solutions, key=lambda solution: _score(solution, settings.how))
                outcome[found.problem] = solved(Problem.parse(problems[found.problem], modulus), best.steps)
            advance(1)
    return outcome


def _score(solution: FoundSolution, how: str) -> float:
    return float("-inf") if not solution.scores else log_score(solution.scores, how)
