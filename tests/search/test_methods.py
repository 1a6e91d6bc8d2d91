"""Every method finds what it should, in trees whose best answers are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prism_prm import PrismError
from prism_prm.aggregate import AGGREGATORS, CardValues, log_score
from prism_prm.backends.policy import Sampling
from prism_prm.search.engine import search_problems
from prism_prm.search.methods import METHODS, SearchSettings, resample, resampling_weights
from prism_prm.search.tree import SearchResult
from worlds import FakePolicy, FakePrm

DEPTH = 3
LETTERS = "abc"


def even(steps: tuple[str, ...]) -> Mapping[str, float]:
    """Three letters, equally likely, and the end after three of them."""
    return {letter + ("." if len(steps) == DEPTH - 1 else ""): 1 / 3 for letter in LETTERS}


def uneven(steps: tuple[str, ...]) -> Mapping[str, float]:
    return dict(zip(even(steps), (0.5, 0.3, 0.2), strict=True))


def random_scores(seed: int) -> Any:
    """A PRM whose scores are fixed random numbers."""
    return lambda steps: float(np.random.default_rng([seed, *map(ord, "".join(steps))]).uniform(0.05, 0.95))


def everything() -> list[tuple[str, ...]]:
    return [(a, b, f"{c}.") for a, b, c in itertools.product(LETTERS, repeat=DEPTH)]


def run(settings: SearchSettings, options: Any = even, right: Any = None, problems: Any = ("p",)) -> list[SearchResult]:
    prm: Any = None if right is None else FakePrm(right)
    return search_problems(FakePolicy(options), prm, problems, settings)


def texts(found: SearchResult) -> list[tuple[str, ...]]:
    return [solution.steps for solution in found.solutions]


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_wide_enough_is_exhaustive_search(aggregator: str, seed: int) -> None:
    right = random_scores(seed)
    # 27 beams hold every prefix, and 48 samples miss one of three letters once in 10⁸ times.
    settings = SearchSettings(method="beam", n=27 * 48, expand=48, aggregator=aggregator)
    (found,) = run(settings, right=right)

    def total(steps: tuple[str, ...]) -> float:
        return log_score([right(steps[: i + 1]) for i in range(len(steps))], aggregator, steps)

    expected = sorted(everything(), key=total, reverse=True)
    assert len(found.solutions) == 27
    np.testing.assert_allclose([total(steps) for steps in texts(found)], [total(steps) for steps in expected])
    top = texts(found)[0]
    assert found.solutions[0].scores == pytest.approx([right(top[: i + 1]) for i in range(3)])


@pytest.mark.parametrize(
    ("card", "given", "best"),
    [
        (CardValues("last"), None, ("b", "b", "b.")),
        (CardValues("min"), None, ("a", "a", "a.")),
        (CardValues("last"), "min", ("a", "a", "a.")),
        (None, None, ("a", "a", "a.")),
    ],
)
def test_a_path_is_scored_as_the_prms_card_says(
    card: CardValues | None, given: str | None, best: tuple[str, ...]
) -> None:
    """What is given wins; without a card it is the minimum. The path of b begins badly and ends best."""
    known = {("a",): 0.6, ("a", "a"): 0.6, ("a", "a", "a."): 0.6, ("b",): 0.59, ("b", "b"): 0.59, ("b", "b", "b."): 0.9}
    prm: Any = FakePrm(lambda steps: known.get(steps, 0.1), card=card)
    settings = SearchSettings(method="beam", n=96, expand=24, aggregator=given)
    (found,) = search_problems(FakePolicy(even), prm, ["p"], settings)
    assert texts(found)[0] == best


@pytest.mark.parametrize("method", ["beam", "dvts", "particle", "best-of-n"])
def test_n_1_is_sampling(method: str) -> None:
    problems = [f"problem {i}" for i in range(40)]
    sampled = run(SearchSettings(method="sample", n=1), uneven, None, problems)
    searched = run(SearchSettings(method=method, n=1), uneven, random_scores(0), problems)
    assert [texts(found) for found in searched] == [texts(found) for found in sampled]
    assert len({steps for found in sampled for steps in texts(found)}) > 10, "the sampling is no constant"


def test_weight_0_is_likelihood_only_beam_search() -> None:
    def options(steps: tuple[str, ...]) -> Mapping[str, float]:
        chances = np.random.default_rng([7, *map(ord, "".join(steps))]).dirichlet([3, 3, 3])
        return dict(zip(even(steps), chances.tolist(), strict=True))

    width = 2
    beams: list[tuple[tuple[str, ...], float]] = [((), 0.0)]
    for _ in range(DEPTH):  # the textbook way, over all options
        grown = [((*s, o), total + math.log(p)) for s, total in beams for o, p in options(s).items()]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
    settings = SearchSettings(method="beam", n=width * 96, expand=96, prm_weight=0.0)
    for right in (None, random_scores(3)):
        (found,) = run(settings, options, right)
        assert texts(found) == [steps for steps, _ in beams]
        assert [s.log_likelihood for s in found.solutions] == pytest.approx([total for _, total in beams])


def test_the_weight_trades_likelihood_for_score() -> None:
    """`a` has likelihood 0.8 and score 0.2, `b` the reverse: they change places where w·log 4 = (1 − w)·log 4."""

    def options(_: tuple[str, ...]) -> Mapping[str, float]:
        return {"a.": 0.8, "b.": 0.2}

    def right(steps: tuple[str, ...]) -> float:
        return {"a.": 0.2, "b.": 0.8}[steps[-1]]

    for weight, expected in ((0.0, "a."), (0.45, "a."), (0.55, "b."), (1.0, "b.")):
        (found,) = run(SearchSettings(method="beam", n=32, expand=32, prm_weight=weight), options, right)
        assert texts(found) == [(expected,)]


def test_sample_is_a_prefix_of_a_larger_sample() -> None:
    few, many = (texts(run(SearchSettings(method="sample", n=n), uneven)[0]) for n in (3, 12))
    assert many[:3] == few
    assert len(set(many)) > 3


def test_sample_follows_the_policy() -> None:
    (found,) = run(SearchSettings(method="sample", n=4000), uneven)
    firsts = [steps[0] for steps in texts(found)]
    assert [firsts.count(letter) / 4000 for letter in LETTERS] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_greedy_takes_the_likeliest() -> None:
    (found,) = run(SearchSettings(method="greedy", n=5), uneven)
    assert texts(found) == [("a", "a", "a.")]
    assert found.solutions[0].ended


def test_best_of_n_scores_every_step_of_every_solution() -> None:
    right = random_scores(1)
    (found,) = run(SearchSettings(method="best-of-n", n=6), uneven, right)
    for solution in found.solutions:
        assert solution.scores == pytest.approx([right(solution.steps[: i + 1]) for i in range(DEPTH)])


def test_looking_ahead_decides() -> None:
    """`a` looks good and leads to ruin, `b` the reverse."""

    def right(steps: tuple[str, ...]) -> float:
        return {"a": 0.9, "b": 0.6, "aa": 0.1, "ba": 0.95}.get("".join(steps), 0.2)

    def options(steps: tuple[str, ...]) -> Mapping[str, float]:
        return {"a": 0.6, "b": 0.4} if not steps else {"a": 0.99, "b": 0.01} if len(steps) == 1 else {"c.": 1.0}

    for method in ("beam", "dvts"):
        for lookahead, first in ((0, "a"), (1, "b")):
            settings = SearchSettings(method=method, n=16, expand=16, lookahead=lookahead)
            (found,) = run(settings, options, right)
            assert texts(found)[0][0] == first, (method, lookahead)


def test_looking_ahead_costs_tokens_and_changes_no_noise() -> None:
    settings = SearchSettings(method="beam", n=1)
    plain, ahead = (
        run(replace(settings, lookahead=k), uneven, random_scores(0), [str(i) for i in range(9)]) for k in (0, 2)
    )
    assert [texts(found) for found in ahead] == [texts(found) for found in plain]
    assert sum(found.policy_tokens for found in ahead) > 1.5 * sum(found.policy_tokens for found in plain)


def test_a_finished_beam_is_kept() -> None:
    """`x.` ends at once with a good score; later steps score better, and it must still be in the result."""

    def options(steps: tuple[str, ...]) -> Mapping[str, float]:
        return {"x.": 0.5, "y": 0.5} if not steps else {"y": 0.5, "z.": 0.5}

    def right(steps: tuple[str, ...]) -> float:
        return {"x.": 0.7, "y": 0.6, "z.": 0.9}[steps[-1]]

    (found,) = run(SearchSettings(method="beam", n=32, expand=16, aggregator="last"), options, right)
    assert ("x.",) in texts(found)
    assert texts(found)[0] == ("y", "z.")


def test_duplicates_are_merged() -> None:
    """One step is sampled nearly always; a beam of four still holds the three there are, each once."""

    def options(_: tuple[str, ...]) -> Mapping[str, float]:
        return {"a.": 0.8, "b.": 0.1, "c.": 0.1}

    (found,) = run(SearchSettings(method="beam", n=64, expand=16), options, random_scores(0))
    assert sorted(texts(found)) == [("a.",), ("b.",), ("c.",)]


def test_dvts_keeps_its_trees_apart() -> None:
    """The PRM loves what starts with `a`. A beam follows it alone; a separate tree that has not seen it does not."""

    def options(steps: tuple[str, ...]) -> Mapping[str, float]:
        return {"a": 0.2, "b": 0.4, "c": 0.4} if not steps else {"d.": 0.5, "e.": 0.5}

    def right(steps: tuple[str, ...]) -> float:
        return {"a": 0.99, "b": 0.5, "c": 0.4}[steps[0]]

    (beam,), (dvts,) = (run(SearchSettings(method=m, n=16, expand=2), options, right) for m in ("beam", "dvts"))
    assert texts(beam)[0][0] == "a"
    assert {steps[0] for steps in texts(dvts)} == {"a", "b", "c"}
    assert len(dvts.solutions) == 8


def test_dvts_takes_the_best_child_of_every_tree() -> None:
    right = random_scores(5)
    (found,) = run(SearchSettings(method="dvts", n=96, expand=48), even, right)
    best: tuple[str, ...] = ()
    for depth in range(DEPTH):  # 48 samples see all three letters, so both trees go the same, greedy way
        ends = "." if depth == DEPTH - 1 else ""
        best = max(((*best, letter + ends) for letter in LETTERS), key=right)
    assert texts(found) == [best, best]


def test_particles_move_to_where_the_scores_are() -> None:
    def right(steps: tuple[str, ...]) -> float:
        return 0.999999 if steps[0] == "b" else 0.000001

    (found,) = run(SearchSettings(method="particle", n=24), uneven, right)
    assert len(found.solutions) == 24
    assert {steps[0] for steps in texts(found)} == {"b"}
    assert len(set(texts(found))) > 4, "copies of one particle go on with noise of their own"


def test_particles_are_resampled_in_proportion_to_the_odds() -> None:
    settings = SearchSettings(method="particle")
    weights = resampling_weights([math.log(0.5), math.log(0.75), -math.inf], settings)
    assert weights == pytest.approx([0.25, 0.75, 0.0], abs=1e-5)
    squared = resampling_weights([math.log(0.5), math.log(0.75)], replace(settings, resample_temperature=0.5))
    assert squared == pytest.approx([0.1, 0.9])
    assert resample([0.25, 0.75, 0.0, 0.0], 0.5) == [0, 1, 1, 1]
    assert resample([0.5, 0.5], 0.0) == [0, 1]
    drawn = np.array([resample([0.1, 0.2, 0.3, 0.4], u) for u in np.linspace(0, 0.999, 1000)])
    assert [np.mean(drawn == i) for i in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_within_its_steps(method: str) -> None:
    settings = SearchSettings(method=method, n=8, max_steps=5)
    (found,) = run(settings, lambda _: {"a": 0.5, "b": 0.5}, random_scores(0))
    assert found.solutions
    assert {len(solution.steps) for solution in found.solutions} == {5}
    assert not any(solution.ended for solution in found.solutions)


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_limited(method: str) -> None:
    """Steps of three tokens within eight: two steps, and two tokens of the third."""
    settings = SearchSettings(method=method, n=8, sampling=Sampling(max_tokens=8))
    (found,) = run(settings, lambda _: {"aaa": 0.5, "bbb": 0.5}, random_scores(0))
    assert {tuple(map(len, solution.steps)) for solution in found.solutions} == {(3, 3, 2)}
    assert {solution.tokens for solution in found.solutions} == {8}
    assert not any(solution.ended for solution in found.solutions)


@pytest.mark.parametrize("method", METHODS)
def test_the_budget_of_a_problem(method: str) -> None:
    settings = SearchSettings(method=method, n=8, max_policy_tokens=20)
    (found,) = run(settings, lambda _: {"aaaa": 0.5, "bbbb": 0.5}, random_scores(0))
    assert 20 <= found.policy_tokens < 20 + 8 * 4 + 1
    assert found.solutions


def test_what_is_spent() -> None:
    """Three rounds of 4 letters, the last with a full stop. The PRM reads 2 prompt tokens and 1 per step."""
    (found,) = run(SearchSettings(method="sample", n=4), uneven)
    assert (found.policy_tokens, found.prm_tokens) == (4 * (1 + 1 + 2), 0)
    prm: Any = FakePrm(random_scores(0))
    (scored,) = search_problems(FakePolicy(uneven), prm, ["p"], SearchSettings(method="beam", n=4, expand=4))
    assert scored.prm_tokens == 2 + prm.num_scored
    assert scored.policy_tokens == 4 * (1 + 1 + 2)


def test_steps_that_cannot_be_scored_rank_last() -> None:
    def options(steps: tuple[str, ...]) -> Mapping[str, float]:
        return {"a\tb": 0.5, "c": 0.5} if not steps else {"d.": 1.0}

    (found,) = run(SearchSettings(method="beam", n=32, expand=16), options, lambda _: 0.1)
    assert texts(found) == [("c", "d."), ("a\tb", "d.")]
    assert found.solutions[1].scores is None
    (sampled,) = run(SearchSettings(method="best-of-n", n=16), options, lambda _: 0.1)
    assert {s.steps[0]: s.scores for s in sampled.solutions} == {"c": pytest.approx((0.1, 0.1)), "a\tb": None}


@pytest.mark.parametrize("method", METHODS)
def test_a_solution_may_end_after_its_last_step(method: str) -> None:
    """The end-of-text token right behind a stop string adds no step."""

    class Ender(FakePolicy):
        def _one(self, ask: Any, sampling: Any) -> Any:
            found = super()._one(ask, sampling)
            return replace(found, text="", ending="end") if found.text.startswith("!") else found

    def options(steps: tuple[str, ...]) -> Mapping[str, float]:
        return {"!": 1.0} if len(steps) == 2 else {"a": 0.5, "b": 0.5}

    prm: Any = FakePrm(random_scores(0))
    (found,) = search_problems(Ender(options), prm, ["p"], SearchSettings(method=method, n=8))
    assert {len(solution.steps) for solution in found.solutions} == {2}
    assert all(solution.ended and solution.scores for solution in found.solutions)


@pytest.mark.parametrize("method", METHODS)
def test_problems_do_not_disturb_each_other(method: str) -> None:
    settings = SearchSettings(method=method, n=6, expand=2)
    problems = [f"problem {i}" for i in range(12)] + ["problem 3"]
    prm: Any = FakePrm(random_scores(2))
    together = search_problems(FakePolicy(uneven), prm, problems, settings)
    in_fives = search_problems(FakePolicy(uneven), prm, problems, settings, at_once=5)
    alone = [search_problems(FakePolicy(uneven), prm, [problem], settings)[0] for problem in problems[:-1]]
    assert in_fives == together
    assert [replace(found, problem=0) for found in together[:-1]] == alone
    if method in ("sample", "best-of-n", "particle"):
        assert texts(together[-1]) != texts(together[3]), "the same problem twice has noise of its own"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "mcts"}, "method = 'mcts': must be one of sample"),
        ({"method": "beam"}, "give a PRM with --prm"),
        ({"n": 0}, "n = 0"),
        ({"prm_weight": 1.5}, "prm_weight"),
        ({"prm_weight": 0.0, "lookahead": 1}, "prm_weight = 0 ignores it"),
        ({"aggregator": "best"}, "Unknown aggregator"),
        ({"resample_temperature": math.nan}, "resample_temperature = nan: must be a finite number"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PrismError, match=message):
        run(SearchSettings(**wrong))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1])
def test_a_temperature_is_a_number(wrong: float) -> None:
    with pytest.raises(PrismError, match=f"temperature = {wrong}: must be (0 or more|a finite number)"):
        Sampling(temperature=wrong)
