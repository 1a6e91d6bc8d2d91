"""How long what waits will take: rates by model, and what a batch says of them."""

from __future__ import annotations

from typing import Any

import pytest

from prism_prm import StepTree
from prism_prm.models.prm import fit
from prism_prm.serve.admission import Admission, Reservation
from prism_prm.serve.models import served_model
from prism_prm.serve.settings import ServeSettings
from serving_prms import running


def test_each_model_has_its_own_rate() -> None:
    admission = Admission(ServeSettings())
    admission.note_rate("fast", 1000, 1.0, is_full=False)
    admission.note_rate("slow", 1000, 10.0, is_full=False)
    admission.resize(Reservation("fast"), 2000, 1500)
    admission.resize(Reservation("slow"), 300, 300)
    admission.resize(Reservation("new"), 500, 500)
    assert admission.tokens == 2800
    assert admission.seconds() == pytest.approx(1.5 + 3.0)
    assert admission.seconds("slow", 100) == pytest.approx(1.5 + 3.0 + 1.0)


@pytest.mark.parametrize(
    ("tokens", "seconds", "is_full", "rate"),
    [
        (1000, 2.0, False, 500.0),  # it falls at once
        (1000, 0.5, False, 1200.0),  # and rises slowly
        (100, 1.0, False, 1000.0),  # a small batch alone says little
        (100, 1.0, True, 100.0),  # unless it could not be larger
        (100, 0.05, False, 1200.0),
        (0, 1.0, True, 1000.0),  # all of it was in the cache
    ],
)
def test_what_a_batch_says_of_the_rate(tokens: int, seconds: float, is_full: bool, rate: float) -> None:
    admission = Admission(ServeSettings())
    admission.note_rate("m", 1000, 1.0, is_full=False)
    admission.note_rate("m", tokens, seconds, is_full=is_full)
    assert admission.rates["m"] == pytest.approx(rate)


def test_guesses_follow_what_requests_were() -> None:
    admission = Admission(ServeSettings())
    assert admission.guess("m", 1000) == (250, 250)
    for _ in range(100):
        admission.note_density(500, 50, 1000)
    assert admission.guess("m", 2000) == (pytest.approx(1000, abs=1), pytest.approx(100, abs=1))
    assert admission.guess(None, 2000)[1] == 0


def test_a_prm_has_a_rate_before_the_first_request_and_the_cache_does_not_change_it(prms: dict[str, Any]) -> None:
    item = {"problem": "1+1+2-1", "steps": ["1+1=2", "2+2=4", "4-1=3"]}
    with running(prms) as server:
        engine = server.server.engine
        assert set(engine.admission.rates) == set(prms)
        before = engine.admission.rates["base"]
        server.steps(item, model="base")
        assert engine.admission.rates["base"] >= before, "one small request does not lower it"
        before = engine.admission.rates["base"]
        for _ in range(5):
            assert server.steps(item, model="base")["usage"]["cached_tokens"] > 0
        assert engine.admission.rates["base"] == before
        model = engine.models["base"]
        known = model.item(StepTree.chain(item["problem"], item["steps"]))  # type: ignore[arg-type]
        longer = model.item(StepTree.chain(item["problem"], [*item["steps"], "#### 3"]))  # type: ignore[list-item, arg-type]
        assert longer.encoded is not None
        assert [model.work(None, one) for one in (known, longer)] == [0, len(longer.encoded.ids[-1])]
        assert model.work("another", longer) == longer.tokens


def test_steps_beyond_the_context_count_what_they_cost(prms: dict[str, Any]) -> None:
    prm = prms["owner/prism"]
    tree = StepTree.chain("1+1+2-1", ["1+1=2"] * 100)
    model = served_model("m", prm)
    item = model.item(tree, on_too_long="window")
    items, long = fit(tree, 0, range(100), prm.family, prm.context, "window")
    shortened = sum(len(one.tree.prompt) + sum(map(len, one.tree.ids)) for one in items[1:])
    assert item.tokens == prm.count_tokens(tree)
    assert item.again == shortened
    assert len(long) == 67
    assert model.item(tree, on_too_long="skip").cost == item.tokens
    with running({"m": prm}, max_tokens=item.cost) as server:
        body = {"items": [{"problem": tree.problem, "steps": tree.texts(range(100))}], "on_too_long": "window"}
        answer = server.post("/v1/steps", body)
        assert answer.status_code == 200
        assert answer.json()["usage"]["total_tokens"] == item.tokens
        body["items"][0]["steps"].append("1+1=2")  # type: ignore[index]
        refused = server.post("/v1/steps", body)
        assert refused.status_code == 413
        assert "or with fewer steps beyond the context" in refused.json()["error"]["message"]


def test_a_long_item_ends_when_nobody_waits(prms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    prm = prms["base"]
    monkeypatch.setattr(prm, "token_budget", 3 * prm.context)
    model = served_model("m", prm)
    item = model.item(StepTree.chain("1+1+2-1", ["1+1=2"] * 500), on_too_long="window")
    looks: list[int] = []
    (found,) = model.score([("k", item)], lambda: bool(looks.append(1)))
    whole = prm.score_trees
    monkeypatch.setattr(prm, "on_too_long", "window")
    (expected,) = whole([item.tree])
    assert found.log_odds_NO == pytest.approx(expected.log_odds_NO, abs=1e-4)
    assert found.too_long == expected.too_long
    passes = len(looks)
    assert passes > 5
    looks.clear()
    with pytest.raises(TimeoutError):
        model.score([("k", item)], lambda: looks.append(1) or len(looks) > 2)  # type: ignore[func-returns-value]
    assert len(looks) == 3
