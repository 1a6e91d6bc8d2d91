"""Adaptive budgets stop when the answer is safe, and their error is at most the stated one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_prm import SearchSettings, open_policy, search_problems
from prism_prm.backends.policy import Policy, PolicySettings
from prism_prm.errors import ConfigError
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.search.adaptive import (
    AdaptiveSettings,
    OrderedSolutions,
    chance_overtaken,
    draw_by_early_scores,
    draw_hopeful,
    draw_until_safe,
    is_safe,
    vote_of,
    votes_in_draws,
)
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_report import _introduction
from prism_prm.search.tree import SearchResult
from prism_prm.tree import StepTree


def test_the_chance_to_be_overtaken_by_hand() -> None:
    assert chance_overtaken(3, 0, 2) == 0.0  # two more votes cannot reach three
    # One more draw after one vote each: reached by a vote for either (a tie counts), or lost: certain.
    assert chance_overtaken(1, 1, 1) == pytest.approx(0.5)  # x = 0: 1 <= 2; x = 1: 2 > 1
    assert chance_overtaken(0, 0, 0) == 1.0
    # Beta(3, 1) and 2 draws: reached only if both are for the other, with chance E[(1 - p)^2] = 1·2 / (4·5).
    assert chance_overtaken(2, 0, 2) == pytest.approx(2 / 20)


def test_safe_by_hand() -> None:
    assert is_safe([2], 0, 0.0)
    assert not is_safe([], 5, 0.5)
    assert not is_safe([2], 2, 0.09)  # an answer not yet seen has a chance of 0.1
    assert is_safe([2], 2, 0.11)
    assert not is_safe([2, 0.5], 2, 0.11)


def test_weights_are_counted_in_draws() -> None:
    assert votes_in_draws([0, 1, 0, -1], [0.2, 0.4, 0.6, 0.4]) == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("error", "num_answers"),
    [(0.05, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0.05, 5), (0.01, 2), (0.2, 2), (0.2, 5)])],
)
def test_the_answer_differs_from_the_full_budgets_as_rarely_as_stated(error: float, num_answers: int) -> None:
    rng = np.random.default_rng(7)
    settings = AdaptiveSettings(error=error, least=1)
    num_problems, budget, differing, drawn = 10_000, 16, 0, 0
    for _ in range(num_problems):
        shares = rng.dirichlet(np.ones(num_answers))
        groups = rng.choice(num_answers, budget, p=shares)
        problem = OrderedSolutions(groups, groups == 0, np.ones(budget), [np.ones(1)] * budget)
        found, full = draw_until_safe(problem, settings), vote_of(problem, budget)
        differing += found.answer != full.answer
        drawn += found.num_solutions
    # The rate may exceed the stated one by chance, but not by three standard errors.
    assert differing / num_problems <= error + 3 * math.sqrt(error / num_problems)
    assert drawn / num_problems < budget


def test_hopeless_solutions_stop_at_their_first_low_step() -> None:
    steps = [np.array([0.9, 0.8]), np.array([0.8, 0.7]), np.array([0.9, 0.1, 0.9]), np.array([0.9, 0.75])]
    costs = [np.array([10.0, 20.0]), np.array([10.0, 20.0]), np.array([1.0, 2.0, 4.0]), np.array([10.0, 20.0])]
    problem = OrderedSolutions(np.array([0, 1, 1, 0]), np.array([True, False, False, True]), np.ones(4), costs, steps)
    found = draw_hopeful(problem, AdaptiveSettings(error=0.0, least=2, hopeless=0.5))
    # The quantile of 0.8 and 0.7 is 0.75: the third stops after its second step, and votes for nothing.
    assert found.cost == 30 + 30 + 3 + 30
    assert (found.answer, found.is_right) == (0, True)
    assert vote_of(problem, 4).cost == 30 + 30 + 7 + 30


def test_stopped_solutions_do_not_weigh_on_the_votes_of_others() -> None:
    """Here three votes to one are not safe, however many hopeless solutions follow."""
    steps = [np.array([0.9])] * 4 + [np.array([0.1])] * 20
    groups = np.array([0, 0, 0, 1] + [0] * 20)
    weights = np.array([0.9] * 4 + [0.1] * 20)
    problem = OrderedSolutions(groups, groups == 0, weights, [np.ones(1)] * 24, steps)
    settings = AdaptiveSettings(error=0.05, least=4, hopeless=0.1)
    assert not is_safe([3, 1], 2, settings.error or 0)
    assert draw_hopeful(problem, settings).num_solutions == 23  # one more vote cannot make up for two


@pytest.mark.parametrize(("first", "expected"), [(0.9, 2), (0.5, 5), (0.1, 8)])
def test_budgets_from_early_scores(first: float, expected: int) -> None:
    # log(0.05) / log(0.5) = 4.3 → 5; with 0.9 two are enough; with 0.1 all eight are drawn.
    problem = OrderedSolutions(
        np.zeros(8, int), np.ones(8, bool), np.ones(8), [np.ones(1)] * 8, [np.array([first, 0.0])] * 8
    )
    assert draw_by_early_scores(problem, AdaptiveSettings(least=1)).num_solutions == expected


def test_a_search_stops_when_the_answer_is_safe(memorising_policy: Path) -> None:
    problems = ["3+4-2", "1-2"]
    with contextlib.closing(open_policy(f"hf:{memorising_policy}")) as policy:
        fixed = SearchSettings(method="sample", n=12)
        adaptive = SearchSettings(method="sample", n=12, adaptive=AdaptiveSettings(error=0.1, least=3))
        every = search_problems(policy, None, problems, fixed)
        found = search_problems(policy, None, problems, adaptive)
    for all_of, some in zip(every, found, strict=True):
        count = len(some.solutions)
        assert count % 3 == 0
        assert [one.steps for one in some.solutions] == [one.steps for one in all_of.solutions[:count]]
    assert min(len(some.solutions) for some in found) < 12  # it knows these by heart
    assert sum(some.policy_tokens for some in found) < sum(one.policy_tokens for one in every)


class FirstDigit(Scorer):
    """Scores a step by the first digit of its text: 7 is 0.7; no digit is 0.5."""

    def identity(self) -> str:
        return "first digit"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Any = None, **_: Any) -> list[TreeScores]:  # noqa: ARG002
        shares = [[next((int(c) / 10 for c in one.text if c in "123456789"), 0.5) for one in t.nodes] for t in trees]
        return [TreeScores(self.outputs, np.log(np.array(own) / (1 - np.array(own)))[:, None]) for own in shares]


def adaptive_search(policy: Policy, rule: str, **more: Any) -> SearchResult:
    budget = AdaptiveSettings(error=0.02 if rule == "hopeless" else None, rule=rule, least=4, **more)
    settings = SearchSettings(method="best-of-n", n=24, adaptive=budget, aggregator="min")
    return search_problems(policy, FirstDigit(), ["8+1-3+5"], settings)[0]


@pytest.fixture
def undecided_policy(world_policy: Path) -> Iterator[Policy]:
    """A policy whose solutions differ."""
    with contextlib.closing(open_policy(f"hf:{world_policy}")) as policy:
        yield policy


def test_hopeless_solutions_of_a_search_stop(undecided_policy: Policy) -> None:
    settings = SearchSettings(method="sample", n=24)
    everything = search_problems(undecided_policy, None, ["8+1-3+5"], settings)[0].solutions
    found = adaptive_search(undecided_policy, "hopeless", hopeless=0.5)
    lowest = [min(solution.scores) for solution in found.solutions[:4]]
    limit = float(np.quantile(lowest, 0.5))
    # The same random numbers: the solutions of a fixed budget, without those that have a low step.
    digits = [[next((int(c) / 10 for c in step if c in "123456789"), 0.5) for step in one.steps] for one in everything]
    hopeful = [one.steps for one, scores in zip(everything[4:], digits[4:], strict=True) if min(scores) >= limit]
    assert len(hopeful) < 20
    kept = [one.steps for one in found.solutions[4:]]
    assert kept == hopeful[: len(kept)]
    assert found.policy_tokens < search_tokens(undecided_policy, 24)
    full = adaptive_search(undecided_policy, "hopeless", hopeless=0.0)
    assert [solution.steps for solution in full.solutions] == [one.steps for one in everything[: len(full.solutions)]]


def test_a_budget_of_tokens_does_not_return_hopeless_solutions(undecided_policy: Policy) -> None:
    budget = AdaptiveSettings(error=0.0, rule="hopeless", least=4, hopeless=0.5)
    everything = adaptive_search(undecided_policy, "hopeless", hopeless=0.5)
    num_tokens = everything.policy_tokens
    for limit in range(num_tokens // 2, num_tokens, max(1, num_tokens // 16)):
        settings = SearchSettings("best-of-n", n=24, adaptive=budget, aggregator="min", max_policy_tokens=limit)
        [found] = search_problems(undecided_policy, FirstDigit(), ["8+1-3+5"], settings)
        hope = float(np.quantile([min(one.scores) for one in found.solutions[:4]], 0.5))
        assert all(min(one.scores) >= hope for one in found.solutions[4:])


def search_tokens(policy: Policy, n: int) -> int:
    [found] = search_problems(policy, None, ["8+1-3+5"], SearchSettings(method="sample", n=n))
    return found.policy_tokens


def test_steps_without_a_score_decide_nothing() -> None:
    scores = [[math.nan, 0.5, 0.8], [math.nan, 0.7], [math.nan]]
    assert AdaptiveSettings(error=0.1, hopeless=0.5).lowest_hope(scores) == pytest.approx(0.6)
    assert AdaptiveSettings(error=0.1, least=1).num_wanted([[math.nan, 0.5]], 8) == 5  # log(0.05) / log(0.5) = 4.3
    assert AdaptiveSettings(error=0.1).lowest_hope([[math.nan]]) == -math.inf


def test_a_budget_of_tokens_keeps_the_solutions_so_far(undecided_policy: Policy) -> None:
    limit = search_tokens(undecided_policy, 4) + 1
    budget = AdaptiveSettings(error=0.0, least=4)
    settings = SearchSettings(method="sample", n=24, adaptive=budget, max_policy_tokens=limit)
    [found] = search_problems(undecided_policy, None, ["8+1-3+5"], settings)
    [first] = search_problems(undecided_policy, None, ["8+1-3+5"], SearchSettings(method="sample", n=4))
    assert {one.steps for one in first.solutions} <= {one.steps for one in found.solutions}


def test_a_search_draws_what_early_scores_suggest(undecided_policy: Policy) -> None:
    for success in (0.5, 0.9, 1.0):
        found = adaptive_search(undecided_policy, "early-scores", success=success)
        firsts = [solution.scores[0] for solution in found.solutions[:4]]
        wanted = math.ceil(math.log(1 - success) / math.log(1 - np.mean(firsts))) if success < 1 else 24
        assert len(found.solutions) == max(4, min(24, wanted))


def test_rules_that_need_scores_say_so(undecided_policy: Policy) -> None:
    with pytest.raises(ConfigError, match=r"adaptive\.error too"):
        AdaptiveSettings(rule="hopeless")
    AdaptiveSettings(rule="early-scores")
    settings = SearchSettings(method="sample", adaptive=AdaptiveSettings(error=0.1, rule="hopeless"))
    with pytest.raises(ConfigError, match="needs a PRM's scores"):
        search_problems(undecided_policy, None, ["1-2"], settings)


def test_the_report_of_a_search_states_its_budget() -> None:
    budgets = {
        AdaptiveSettings(
            error=0.1
        ): "chance of at most 0.1, by its votes (a majority vote); the selection is by majority",
        AdaptiveSettings(error=0.1, rule="hopeless"): "(rule hopeless): at most n solutions are drawn. A problem ends",
        AdaptiveSettings(rule="early-scores"): "(rule early-scores): at most n solutions are drawn. Intervals",
    }
    for budget, words in budgets.items():
        search = SearchSettings(method="sample", adaptive=budget)
        recipe = SearchRecipe(
            task="math-500", policy=PolicySettings("hf:my-lm"), prm=("my-prm",), search=search, select="majority"
        )
        assert words in _introduction(recipe, []), budget


def test_only_independent_solutions_have_an_adaptive_budget(memorising_policy: Path) -> None:
    settings = SearchSettings(method="beam", adaptive=AdaptiveSettings(error=0.1))
    with (
        contextlib.closing(open_policy(f"hf:{memorising_policy}")) as policy,
        pytest.raises(ConfigError, match="no independent solutions"),
    ):
        search_problems(policy, None, ["1-2"], settings)
