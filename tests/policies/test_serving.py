"""A real `transformers serve` writes what the local policy writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serving import Served

from prism_prm.policies import Ask, Policy, PolicySettings, Sampling, Written, open_policy, write_steps
from prism_prm.policies.http import Patience
from tiny import SOLVED

SAMPLING = Sampling(temperature=0.0, max_step_tokens=12)


@pytest.fixture(scope="module")
def served(memorising_policy: Path) -> Iterator[Served]:
    server = Served(memorising_policy)
    server.start()
    yield server
    server.kill()


def solve(policy: Policy) -> list[list[Written]]:
    """Step after step, each problem's text growing by what was written, until all have ended."""
    asks = [Ask(policy.prompt(problem), 0, SAMPLING.max_step_tokens) for problem in SOLVED]
    found = []
    while asks:
        step = write_steps(policy, asks, SAMPLING)
        found.append([replace(one, state=None, log_likelihood=None) for one in step])
        asks = [
            replace(ask, text=ask.text + one.text, state=one.state)
            for ask, one in zip(asks, step, strict=True)
            if one.ending == "stop"
        ]
    return found


def test_greedy_texts_equal_the_local_policy(served: Served) -> None:
    settings = PolicySettings(model=str(served.model), patience=Patience(timeout=60))
    remote = open_policy(f"openai:{served.url}", settings)
    local = open_policy(f"hf:{served.model}")
    assert [remote.prompt(p) for p in SOLVED] == [local.prompt(p) for p in SOLVED]
    expected = solve(local)
    assert solve(remote) == expected
    assert {one.ending for step in expected for one in step} == {"stop", "end"}
    assert [step[0].text for step in expected[:3]] == ["3 + 4 = 7\n\n", "7 - 2 = 5\n\n", "#### 5"]
    remote.close()
