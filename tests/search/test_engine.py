"""The engine with real models: what is batched, kept and freed changes no text and no score."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_prm import init_prm
from prism_prm.backends.decode import CachedPrefix
from prism_prm.backends.hf import HfPolicy
from prism_prm.backends.policy import Sampling, open_policy
from prism_prm.lab.world.build import world_settings
from prism_prm.lab.world.policy import PRM_SETTINGS
from prism_prm.lab.world.problems import Problem, draw_problems
from prism_prm.search.engine import RoundStats, SearchEngine, search_problems
from prism_prm.search.methods import SearchSettings
from prism_prm.search.tree import SearchResult
from worlds import FakePrm

SETTINGS = SearchSettings(n=8, expand=4, max_steps=6, sampling=Sampling(temperature=1.0, max_step_tokens=8))


@pytest.fixture(scope="module")
def policy(world_policy: Path) -> Any:
    return open_policy(f"hf:{world_policy}")


@pytest.fixture(scope="module")
def prm(world_policy: Path) -> Any:
    """A PRM with a random head: its scores are no good, but they are its own."""
    return init_prm(world_policy, family="qwen", settings=PRM_SETTINGS)


@pytest.fixture(scope="module")
def problems() -> list[str]:
    settings = world_settings("quick").problems
    return [problem.text for problem in draw_problems(settings, 32, np.random.default_rng(0))]


@pytest.mark.parametrize("method", ["sample", "beam", "dvts", "particle"])
def test_32_problems_together_equal_each_alone(method: str, policy: Any, prm: Any, problems: list[str]) -> None:
    settings = replace(SETTINGS, method=method, lookahead=1 if method == "beam" else 0)
    together = search_problems(policy, prm, problems, settings)
    for i in (0, 7, 20, 31):
        (alone,) = search_problems(policy, prm, [problems[i]], settings)
        assert [s.steps for s in alone.solutions] == [s.steps for s in together[i].solutions]
        for a, b in zip(alone.solutions, together[i].solutions, strict=True):
            assert a.scores == pytest.approx(b.scores, abs=1e-5)
        assert alone.policy_tokens == together[i].policy_tokens
    assert any(s.ended for found in together for s in found.solutions)


@pytest.mark.parametrize("method", ["best-of-n", "beam", "particle"])
def test_scores_are_those_of_whole_solutions(method: str, policy: Any, prm: Any, problems: list[str]) -> None:
    found = search_problems(policy, prm, problems[:4], replace(SETTINGS, method=method))
    for entry, problem in zip(found, problems, strict=False):
        for solution in entry.solutions:
            assert solution.scores == pytest.approx(prm.score(problem, solution.steps), abs=1e-5)


def test_log_likelihoods_are_the_models_own(policy: HfPolicy, problems: list[str]) -> None:
    import torch

    (found,) = search_problems(policy, None, problems[:1], replace(SETTINGS, method="sample", n=3))
    for solution in found.solutions:
        assert solution.ended
        prompt = policy.prompt(problems[0])
        ids = torch.tensor([policy.tokenizer(prompt + "\n\n".join(solution.steps) + "<|im_end|>")["input_ids"]])
        start = len(policy.tokenizer(prompt)["input_ids"])
        with torch.inference_mode():
            log_likelihood = torch.log_softmax(policy.model(ids).logits.double(), -1)
        own = log_likelihood[0, start - 1 : -1].gather(1, ids[0, start:, None]).sum()
        assert solution.log_likelihood == pytest.approx(float(own), abs=1e-4)
        assert solution.tokens == ids.shape[1] - start


def test_a_beam_that_is_dropped_frees_its_memory(policy: HfPolicy, prm: Any, problems: list[str]) -> None:
    """While a search runs, only the beams that go on hold key/values of the policy."""
    most = []

    settings = replace(SETTINGS, method="beam", n=32, expand=32)
    gc.collect()
    gc.freeze()  # what was there before need not be looked at again and again
    for event in SearchEngine(policy, prm, settings).run(problems[:1]):
        if isinstance(event, RoundStats):
            gc.collect()
            most.append(sum(type(kept) is CachedPrefix for kept in gc.get_objects()))
    gc.unfreeze()
    # One beam: the context and step of each of its ancestors, and the 32 candidates of this round.
    assert len(most) > 2
    assert all(count <= 32 + 1 + 2 * depth for depth, count in enumerate(most))


def test_only_new_tokens_are_computed(policy: HfPolicy, prm: Any, problems: list[str]) -> None:
    """The policy reads each prompt once, and then the one token behind each step; nothing stays when all is done."""
    engine = SearchEngine(policy, prm, replace(SETTINGS, method="beam", n=4))
    sessions = []
    make = prm.session
    policy.num_read = 0
    prm.session = lambda problems: sessions.append(make(problems)) or sessions[-1]
    try:
        events = list(engine.run(problems[:3]))
    finally:
        del prm.session
    found = [event for event in events if isinstance(event, SearchResult)]
    stats = [event for event in events if isinstance(event, RoundStats)]
    del events
    prompts = sum(len(policy.tokenizer(policy.prompt(problem))["input_ids"]) for problem in problems[:3])
    rounds = sum(max(len(s.steps) for s in entry.solutions) - 1 for entry in found)
    assert policy.num_read == prompts + rounds, "one beam per problem: one token per further step"
    assert sessions[0].num_tokens == 0
    gc.collect()
    assert not [kept for kept in gc.get_objects() if type(kept) is CachedPrefix], "the policy's key/values are freed"
    assert sum(one.tokens for one in stats) == sum(entry.policy_tokens for entry in found)
    assert 0 < max(one.best for one in stats if one.best == one.best) < 1


class OraclePrm(FakePrm):
    """Knows the one right solution of every problem of the world."""

    def judge(self, problem: str, steps: tuple[str, ...]) -> float:
        modulus = world_settings("quick").modulus
        return 0.99 if list(steps) == Problem.parse(problem, modulus).solution()[: len(steps)] else 0.01


@pytest.mark.parametrize("method", ["best-of-n", "beam", "dvts", "particle"])
def test_a_perfect_prm_finds_right_solutions(method: str, policy: Any, problems: list[str]) -> None:
    """The policy takes about one step in five wrong, so one sample rarely solves a problem and a guided search does."""
    oracle: Any = OraclePrm(lambda _: 0.0)

    def share(settings: SearchSettings) -> float:
        found = search_problems(policy, oracle, problems, settings)
        return float(np.mean([any(s.scores and min(s.scores) > 0.5 and s.ended for s in f.solutions) for f in found]))

    one = share(replace(SETTINGS, method="sample", n=1))
    assert one < 0.7
    assert share(replace(SETTINGS, method=method, n=16)) > 0.9
