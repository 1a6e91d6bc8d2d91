"""A budget ends a search at any token, and never loses what was found until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm import PrismError
from prism_prm.backends.policy import Sampling, StepRequest, Written
from prism_prm.search.engine import search_problems
from prism_prm.search.methods import METHODS, SearchSettings
from prism_prm.search.tree import SearchResult
from worlds import FakePolicy, FakePrm

KINDS = [(method, 0) for method in METHODS] + [(method, ahead) for method in ("beam", "dvts") for ahead in (1, 2, 3)]


@dataclass
class Recorder(FakePolicy):
    """Remembers every batch that it wrote: (what was asked, the text afterwards, how it ended)."""

    batches: list[list[tuple[StepRequest, str, str]]] = field(default_factory=list)

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        written = super().write(asks, sampling)
        self.batches.append(
            [(ask, (ask.text + one.text).strip(), one.ending) for ask, one in zip(asks, written, strict=True)]
        )
        return written


def ragged(steps: tuple[str, ...]) -> Mapping[str, float]:
    """Steps of one to three tokens; solutions end after one to four of them."""
    chances = np.random.default_rng([9, *map(ord, "".join(steps))]).dirichlet([1, 1, 1])
    names = ("a.", "bb", "ccc") if len(steps) < 3 else ("a.", "bb.", "ccc.")
    return dict(zip(names, chances.tolist(), strict=True))


def right(steps: tuple[str, ...]) -> float:
    return float(np.random.default_rng([4, *map(ord, "".join(steps))]).uniform(0.05, 0.95))


def run(how: SearchSettings) -> tuple[SearchResult, Recorder]:
    policy = Recorder(ragged)
    prm: Any = FakePrm(right)
    (found,) = search_problems(policy, prm, ["p"], how)
    return found, policy


@pytest.mark.parametrize(("method", "lookahead"), KINDS)
@given(n=st.integers(1, 6), expand=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_every_budget_from_one_token_up(method: str, lookahead: int, n: int, expand: int, seed: int) -> None:
    how = SearchSettings(method, n=n, expand=expand, lookahead=lookahead, max_steps=6, seed=seed)
    whole, _ = run(how)
    for budget in range(1, whole.policy_tokens + 2):
        found, policy = run(replace(how, max_policy_tokens=budget))
        solutions = {"\n\n".join(["p:", *solution.steps]): solution for solution in found.solutions}
        if found.policy_tokens < budget:
            assert found == whole, "a budget that is not reached changes nothing"
            continue
        last = policy.batches[-1]
        assert {text for _, text, _ in last} <= set(solutions), "what was written last is there"
        sampled = [batch for batch in policy.batches if method == "greedy" or not batch[0][0].greedy]
        ended = {text for batch in sampled for _, text, ending in batch if ending != "stop"}
        assert ended <= set(solutions), "every solution that was finished is there"
        for _, candidate, _ in sampled[-1]:
            assert any(text.startswith(candidate) for text in solutions), "no candidate is lost"
        if METHODS[method].needs_prm:
            for solution in found.solutions:
                assert solution.scores == pytest.approx(
                    [right(solution.steps[: i + 1]) for i in range(len(solution.steps))]
                )


def test_a_budget_is_at_least_one_token() -> None:
    for wrong in (0, -5):
        with pytest.raises(PrismError, match=f"max_policy_tokens = {wrong}: must be 1 or more"):
            SearchSettings(max_policy_tokens=wrong)
