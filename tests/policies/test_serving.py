"""A real `transformers serve` writes what the local policy writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serving import Served

from prism_prm.policies import Ask, Policy, PolicySettings, Sampling, Written, open_policy, write_steps
from prism_prm.policies.http import Patience

SAMPLING = Sampling(temperature=0.0, max_step_tokens=12, stop="\n")
PROBLEMS = ["Let x be 1. What is x + 2?", "Compute 12 * 4 / 6.", "y?"]


@pytest.fixture(scope="module", params=["llama"])
def served(request: pytest.FixtureRequest, tiny_lm: Callable[..., Path]) -> Iterator[Served]:
    server = Served(tiny_lm(request.param))
    server.start()
    yield server
    server.kill()


def three_steps(policy: Policy) -> list[list[Written]]:
    """Step after step, each problem's text growing by what was written."""
    asks = [Ask(policy.prompt(problem), 0, SAMPLING.max_step_tokens) for problem in PROBLEMS]
    found = []
    for _ in range(3):
        step = write_steps(policy, asks, SAMPLING)
        found.append([replace(one, state=None, log_likelihood=None) for one in step])
        asks = [replace(a, text=a.text + w.text, state=w.state) for a, w in zip(asks, step, strict=True)]
    return found


def test_greedy_texts_equal_the_local_policy(served: Served) -> None:
    settings = PolicySettings(model=str(served.model), patience=Patience(timeout=60))
    remote = open_policy(f"openai:{served.url}", settings)
    local = open_policy(f"hf:{served.model}")
    assert [remote.prompt(p) for p in PROBLEMS] == [local.prompt(p) for p in PROBLEMS]
    assert three_steps(remote) == three_steps(local)
    remote.close()
