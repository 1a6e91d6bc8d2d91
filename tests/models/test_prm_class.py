"""`PRM` as people first meet it: mistakes that used to score letters, dicts, solution scores, and the hub's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError

from prism_prm import PRM, ConfigError, DataError, ModelError, Prm, StepTree, init_prm, load_prm, solution_score
from prism_prm.aggregate import AGGREGATORS
from prism_prm.models.families import FAMILIES

PROBLEM, STEPS = "What is 1 + 2?", ["x = 1", "so y = 2"]


@pytest.fixture
def prm(tiny_lm: Callable[..., Path]) -> PRM:
    """A new one for every test: `save` changes the card."""
    return init_prm(tiny_lm("llama"), family="token-classification", dtype="float32")


def test_the_old_name_is_the_same_class() -> None:
    assert Prm is PRM


def test_a_text_is_not_a_list_of_steps(prm: PRM) -> None:
    with pytest.raises(DataError, match="split_steps"):
        prm.score(PROBLEM, "x = 1\n\nso y = 2")
    with pytest.raises(DataError, match="split_steps"):
        prm.score_many([{"problem": PROBLEM, "steps": "x = 1"}])
    with pytest.raises(DataError, match="split_steps"):
        StepTree.chain(PROBLEM, "x = 1")


def test_a_problem_is_not_a_list_of_problems(prm: PRM) -> None:
    with pytest.raises(DataError, match=r"session\(\[problem\]\)"):
        prm.session(PROBLEM)


def test_dicts_are_solutions(prm: PRM) -> None:
    expected = prm.score(PROBLEM, STEPS)
    found = prm.score_many([{"problem": PROBLEM, "steps": STEPS, "id": "more is fine"}, (PROBLEM, STEPS)])
    assert found == [pytest.approx(expected)] * 2
    assert len(expected) == 2


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ([{"question": PROBLEM, "steps": STEPS}], r"solution 0: .*'question', 'steps'"),
        ([(PROBLEM, STEPS), (PROBLEM, STEPS, 1)], r"solution 1: .*tuple of 3"),
        ([PROBLEM], r"solution 0: .*a string"),
        ((PROBLEM, STEPS), r"solution 0: .*a string"),
        ({"problem": PROBLEM, "steps": STEPS}, r"one solution.*a list"),
        ([(PROBLEM, ["x = 1", 2])], r"solution 0: .*step 1 .*int"),
        ([(1, STEPS)], r"solution 0: .*problem .*int"),
    ],
)
def test_what_is_no_solution_is_named(prm: PRM, wrong: Any, found: str) -> None:
    with pytest.raises(DataError, match=found):
        prm.score_many(wrong)


def test_no_bar_unless_asked(prm: PRM, capfd: pytest.CaptureFixture[str]) -> None:
    prm.score_many([(PROBLEM, STEPS)])
    assert capfd.readouterr() == ("", "")


def test_a_solution_is_scored_by_its_card(prm: PRM, tmp_path: Path) -> None:
    scores = prm.score(PROBLEM, STEPS)
    assert prm.card.aggregator == "min"
    assert prm.solution_score(PROBLEM, STEPS) == pytest.approx(min(scores))
    prm.save_pretrained(tmp_path / "mean", aggregator="mean")
    again = PRM.from_pretrained(tmp_path / "mean")
    assert again.solution_score(PROBLEM, STEPS) == pytest.approx(solution_score(scores, "mean"))


def test_every_family_names_an_aggregator_that_there_is(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    assert {
        family.name: family.aggregator for family in FAMILIES.values() if family.aggregator not in AGGREGATORS
    } == {}
    prm = init_prm(tiny_lm("qwen2"), family="qwen", dtype="float32")
    scores = prm.score(PROBLEM, STEPS)
    assert prm.solution_score(PROBLEM, STEPS) == pytest.approx(scores[0] * scores[1])
    with pytest.raises(ConfigError, match="Unknown aggregator 'prod'"):
        prm.save(tmp_path, aggregator="prod")


def test_a_folder_with_the_former_name_of_an_aggregator_still_loads(prm: PRM, tmp_path: Path) -> None:
    prm.save(tmp_path / "prm", aggregator="product")
    card = tmp_path / "prm" / "prism.json"
    card.write_text(card.read_text().replace('"product"', '"prod"'))
    assert '"prod"' in card.read_text()
    assert load_prm(tmp_path / "prm").solution_score(PROBLEM, STEPS) == pytest.approx(
        np.prod(prm.score(PROBLEM, STEPS))
    )


class FakeHub:
    """huggingface_hub's HfApi, as far as `push_to_hub` uses it; notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.files: set[str] = set()

    def create_repo(self, repo_id: str, **options: Any) -> Any:
        self.asked.append((repo_id, options))
        return SimpleNamespace(repo_id=f"me/{repo_id}")

    def upload_folder(self, *, repo_id: str, folder_path: str | Path, **options: Any) -> str:
        self.asked.append((repo_id, options))
        self.files = {path.name for path in Path(folder_path).iterdir()}
        return f"https://hub/{repo_id}/commit/1"


def test_push_to_hub_sends_the_whole_folder(prm: PRM) -> None:
    hub = FakeHub()
    url = prm.push_to_hub("my-prm", private=True, message="first", api=hub)
    assert url == "https://hub/me/my-prm/commit/1"
    assert hub.asked == [
        ("my-prm", {"private": True, "exist_ok": True}),
        ("me/my-prm", {"commit_message": "first"}),
    ]
    assert {"prism.json", "config.json", "model.safetensors", "tokenizer.json", "README.md"} <= hub.files


def test_what_the_hub_refuses_is_said(prm: PRM) -> None:
    class Refusing(FakeHub):
        def create_repo(self, repo_id: str, **_: Any) -> Any:
            response = httpx.Response(401, request=httpx.Request("POST", f"https://hub/{repo_id}"))
            raise HfHubHTTPError("401 Unauthorized. Go away.", response=response)

    with pytest.raises(ModelError, match=r"my-prm: .*401 Unauthorized.*hf auth login"):
        prm.push_to_hub("my-prm", api=Refusing())
