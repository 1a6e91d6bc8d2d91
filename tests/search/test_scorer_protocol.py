"""Search needs nothing of a scorer but what the base class `Scorer` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prism_prm.backends.policy import PolicySettings
from prism_prm.data.pools import read_pool
from prism_prm.scorer import Scorer
from prism_prm.search.engine import search_problems
from prism_prm.search.methods import METHODS, SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_task import search_task
from worlds import FakePolicy, FakePrm, SmallScorer


def test_what_a_scorer_must_have() -> None:
    assert Scorer.__abstractmethods__ == {"identity", "score_trees", "count_tokens"}


def options(steps: tuple[str, ...]) -> Mapping[str, float]:
    """Two steps; the answer 1 is right, and one first step cannot be scored."""
    return {"a": 0.6, "b\tc": 0.4} if not steps else {"\\boxed{1}.": 0.5, "\\boxed{2}.": 0.5}


def right(steps: tuple[str, ...]) -> float:
    return {"\\boxed{1}.": 0.9, "\\boxed{2}.": 0.2}.get(steps[-1], 0.5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_needs_only_a_scorer(method: str) -> None:
    scorer = SmallScorer(FakePrm(right))
    (found,) = search_problems(FakePolicy(options), scorer, ["p"], SearchSettings(method, n=8))
    scored = [s for s in found.solutions if s.scores is not None]
    assert all(s.scores == pytest.approx([0.5, right(s.steps)]) for s in scored)
    assert scored


@pytest.mark.parametrize("method", ["beam", "best-of-n"])
def test_an_experiment_needs_only_a_scorer(method: str, tmp_path: Path) -> None:
    task = tmp_path / "task.jsonl"
    task.write_text('{"problem": "p", "answer": "1"}\n')
    recipe = SearchRecipe(
        task=str(task), n=(32,), select="argmax", prm=("fake",), policy=PolicySettings("hf:fake"),
        search=SearchSettings(method, expand=16),
    )  # fmt: skip
    policy: Any = FakePolicy(options)
    scorer: Any = SmallScorer(FakePrm(right))
    (point,) = search_task(recipe, tmp_path / "out", prms={"fake": scorer}, policy=policy, judges=1)
    assert point.accuracy.value == 1.0, "the scores choose the answer 1"
    if method == "best-of-n":
        solutions = read_pool(tmp_path / "out" / "pools" / "fake-n32.jsonl").solutions
        num_scored = sum("\t" not in solution.steps[0] for solution in solutions)
        assert 0 < num_scored < 32
        assert point.prm_tokens == num_scored * (2 + 2), "what cannot be scored is not read"
