"""An ensemble combines log-odds; wherever a PRM can stand, an ensemble can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_prm import PRMReward, init_prm, load_prm
from prism_prm.backends.ensemble import Ensemble, combine
from prism_prm.backends.load_prm import open_prm
from prism_prm.backends.open_scorer import PrmOptions, check_scorer, prm_for_workers
from prism_prm.errors import ConfigError
from prism_prm.paths import own_name
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.store import Request, ScoreStore
from prism_prm.tree import ROOT, Step, StepTree

TREE = StepTree(0, "What is 1 + 2?", (Step("Add."), Step("3"), Step("4")), (ROOT, 0, 0), (0, 1))


class Fixed(Scorer):
    """Gives the steps "a" and "b" set log-odds; NaN means not judged."""

    def __init__(self, **log_odds: float) -> None:
        self.log_odds = log_odds

    def identity(self) -> str:
        return repr(self.log_odds)

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Any = None, **_: Any) -> list[TreeScores]:  # noqa: ARG002
        found = [np.array([[self.log_odds[step.text]] for step in tree.nodes]) for tree in trees]
        return [
            TreeScores(("correct",), one, unjudged=tuple(np.flatnonzero(np.isnan(one[:, 0])).tolist())) for one in found
        ]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("mean", [2.0, -1.0]), ("min", [1.0, -4.0]), ("mean-1std", [1.0, -4.0]), ("mean-0.5std", [1.5, -2.5])],
)
def test_the_rules_combine_log_odds(rule: str, expected: list[float]) -> None:
    ensemble = Ensemble([Fixed(a=1.0, b=2.0), Fixed(a=3.0, b=-4.0)], rule)
    [found] = ensemble.score_trees([StepTree.chain("p", ["a", "b"])])
    assert found.log_odds_NO[:, 0].tolist() == expected
    with ensemble.session(["p"]) as session:
        [first] = session.extend([(session.roots[0], "a")])
        second, again = session.extend([(first, "b"), (first, "b")])
    assert [first.log_odds, second.log_odds] == [(expected[0],), (expected[1],)]
    assert second is again
    assert (first.depth, second.num_tokens) == (0, 2)


def test_three_scorers_by_hand() -> None:
    found = combine(np.array([[0.0], [3.0], [6.0]]), "mean-2std")
    assert found[0] == pytest.approx(3 - 2 * 6**0.5)


def test_a_step_without_a_score_of_one_has_none() -> None:
    ensemble = Ensemble([Fixed(a=1.0, b=float("nan")), Fixed(a=3.0, b=0.0)], "min")
    [found] = ensemble.score_trees([StepTree.chain("p", ["a", "b"])])
    assert found.scored == [0]
    assert found.unjudged == (1,)


def test_its_members_decide_what_it_is() -> None:
    one, other = Fixed(a=1.0), Fixed(a=2.0)
    other.reads_whole_solutions, other.context = True, 7
    ensemble = Ensemble([one, other])
    assert (ensemble.reads_whole_solutions, ensemble.context) == (True, 7)
    names = {Ensemble(members, rule).identity() for members in ([one, other], [one, one]) for rule in ("mean", "min")}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("choices", "expected"),
    [("skip skip", "skip"), ("window skip", "skip"), ("window window", "window"), ("skip error", "error")],
)
def test_what_it_does_with_long_steps(choices: str, expected: str) -> None:
    members = [Fixed(a=1.0), Fixed(a=2.0)]
    for member, choice in zip(members, choices.split(), strict=True):
        member.on_too_long = choice
    assert Ensemble(members).on_too_long == expected


def test_rewards_of_solutions_that_fit_each_member() -> None:
    """The tokens of all members are more than the context of one."""
    members = [Fixed(a=1.0, b=1.0), Fixed(a=1.0, b=1.0)]
    for member in members:
        member.on_too_long, member.context = "skip", 3
    reward = PRMReward(Ensemble(members), aggregator="min", gate=False)
    assert reward(["p"], ["a\n\nb"]) == [pytest.approx(1 / (1 + np.exp(-1)))]


@pytest.fixture
def places(tiny_lm: Callable[..., Path], tmp_path: Path) -> list[str]:
    for seed in (1, 2):
        init_prm(tiny_lm("qwen2"), seed=seed).save(tmp_path / str(seed))
    return [str(tmp_path / "1"), str(tmp_path / "2")]


def test_prms_by_name(places: list[str], tmp_path: Path) -> None:
    name = f"ensemble:min:{','.join(places)}"
    assert own_name(name) == "ensemble:min:1,2"
    check_scorer(name, PrmOptions())
    ensemble = open_prm(name)
    expected = np.minimum(*(load_prm(place).score_trees([TREE])[0].log_odds_NO[:, 0] for place in places))
    [found] = ensemble.score_trees([TREE])
    assert found.log_odds_NO[:, 0] == pytest.approx(expected, abs=1e-6)
    # The card that both share.
    assert ensemble.card is not None
    assert ensemble.card.aggregator == "product"
    # Sessions, with shared nodes that are kept and dropped.
    with ensemble.session([TREE.problem]) as session:
        [first] = session.extend([(session.roots[0], "Add.")])
        ends = session.extend([(first, "3"), (first, "4"), (first, "3")])
        session.keep([*ends[:2], ends[2]])
        session.drop([ends[0], ends[2]])
        assert [first.log_odds[0], ends[0].log_odds[0], ends[1].log_odds[0]] == pytest.approx(expected, abs=1e-5)
        assert ends[0] is ends[2]
    # The store finds its scores again.
    request = Request(TREE, (0, 1, 2))
    ScoreStore(tmp_path / "store", ensemble).score([request])
    filled = ScoreStore(tmp_path / "store", open_prm(name)).fill([request])
    assert filled.missing == 0
    # Rewards for trainers.
    reward = PRMReward(name, aggregator="min", gate=False)
    judged = reward([TREE.problem], ["Add.\n\n3"])[0]
    assert judged == pytest.approx(1 / (1 + np.exp(-expected[:2].min())), abs=1e-5)
    # Workers of a cluster open the same ensemble.
    opening = prm_for_workers(name, PrmOptions())
    assert set(opening.folders) == set(places)
    assert opening.make({}).identity() == ensemble.identity()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ensemble:mean:one", "two or more PRMs"),
        ("ensemble:a,b", "expected ensemble:RULE:PRM,PRM"),
        ("ensemble:max:a,b", "'max' is not a rule of ensembles; use mean, min"),
        ("ensemble:min:a,ensemble:mean:b,c", "is not an ensemble"),
        ("ensemble:min:no-such,folder", "no-such"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError if "no-such" not in name else Exception, match=message):
        check_scorer(name, PrmOptions())
