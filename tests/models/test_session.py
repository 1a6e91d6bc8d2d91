"""A session's scores equal whole re-scoring; forking is free; dropping frees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import REFERENCES
from test_exactness import WORDS

from prism_prm import PrismError
from prism_prm.models.session import PASS, in_batches
from tiny import FAMILY_MODELS

PROBLEMS = ["Let x be 1. What is x + 2?", "Compute 12 * 4 / 6.", "y?"]


def reference(prm: Any, node: Any) -> list[float]:
    return REFERENCES[prm.family.name](prm, PROBLEMS[node.problem], node.steps()).tolist()


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
def test_growing_equals_whole_sequences(tiny_prm: Callable[..., Any], family: str, kind: str) -> None:
    prm = tiny_prm(family, kind)
    with prm.session(PROBLEMS) as session:
        first = session.extend([(root, f"x = {i}") for root in session.roots for i in (1, 2)])
        second = session.extend(
            [(first[0], "so y = 2"), (first[3], "then z = 3"), (first[0], "the answer is 3."), (first[5], "y")]
        )
        third = session.extend([(second[2], "12 * 4 = 48"), (second[1], "so y = 2"), (first[1], "z")])
        for node in [*first, *second, *third]:
            np.testing.assert_allclose(node.log_odds, reference(prm, node), atol=1e-9, rtol=1e-9)
        whole = prm.score(PROBLEMS[0], third[0].steps())
        assert [node.probability for node in third[0].path()[1:]] == pytest.approx(whole, abs=1e-9)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_search(tiny_prm: Callable[..., Any], data: st.DataObject) -> None:
    """Random growth, forks, drops and budgets: every score is that of its own whole sequence."""
    family, kind = data.draw(st.sampled_from(FAMILY_MODELS))
    prm = tiny_prm(family, kind)
    before, prm.token_budget = prm.token_budget, data.draw(st.sampled_from([1, 150, 8192]))
    try:
        with prm.session(PROBLEMS) as session:
            beams = list(session.roots)
            for _ in range(data.draw(st.integers(1, 4))):
                grown = data.draw(
                    st.lists(st.tuples(st.sampled_from(beams), st.sampled_from(WORDS)), min_size=1, max_size=6)
                )
                if family == "skywork":
                    grown = [(beam, text.replace("\n", " ")) for beam, text in grown]
                nodes = session.extend(grown)
                for node, (parent, text) in zip(nodes, grown, strict=True):
                    assert (node.parent, node.text) == (parent, text)
                    np.testing.assert_allclose(node.log_odds, reference(prm, node), atol=1e-9, rtol=1e-9)
                session.keep(nodes)
                beams = [*nodes, *session.roots]
            session.drop(nodes)
            assert session.num_tokens == sum(len(r.ids) for r in session.roots if r.keys_values is not None)
    finally:
        prm.token_budget = before


def test_only_new_tokens_go_through_the_model(tiny_prm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    prm = tiny_prm("qwen", "qwen2")
    seen: list[int] = []
    run = type(prm.module).run
    monkeypatch.setattr(
        type(prm.module), "run", lambda self, ids, *a: (seen.append(ids.numel()), run(self, ids, *a))[1]
    )
    with prm.session(PROBLEMS[:1]) as session:
        (root,) = session.roots
        (a,) = session.extend([(root, "so y = 2")])
        assert seen == [len(root.ids), len(a.ids)]
        b, c, d = session.extend([(a, "x"), (a, "x"), (a, "the answer is 3.")])
        assert b is c, "equal steps are computed once"
        assert seen[2:] == [len(b.ids) + len(d.ids)]


def test_drop_frees_what_nobody_needs(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("token-classification", "llama")
    with prm.session(PROBLEMS[:2]) as session:
        a, b = session.extend([(session.roots[0], "x = 1"), (session.roots[0], "x = 2")])
        (c,) = session.extend([(a, "so y = 2")])
        prompt, sizes = len(session.roots[0].ids), [len(node.ids) for node in (a, b, c)]
        assert session.num_tokens == prompt + sum(sizes)
        per_token = 2 * 2 * 2 * 8 * 8  # layers, keys and values, heads, head size, bytes
        assert session.memory_bytes == per_token * session.num_tokens
        session.drop([a])
        assert session.num_tokens == prompt + sum(sizes), "its child still stands on it"
        twice = session.fork(c)
        session.drop([c, b])
        assert session.num_tokens == prompt + sizes[0] + sizes[2], "one beam on c is left"
        with pytest.raises(PrismError, match="dropped cannot be extended"):
            session.extend([(b, "x")])
        with pytest.raises(PrismError, match="dropped cannot be kept"):
            session.keep([b])
        session.drop([twice])
        assert session.num_tokens == prompt
        with pytest.raises(PrismError, match="dropped more often"):
            session.drop([twice])
        assert c.probability > 0, "scores outlive key/values"
    assert session.num_tokens == 0
    with pytest.raises(PrismError, match="dropped cannot be extended"):
        session.extend([(session.roots[0], "x")])


def test_too_long_steps_follow_the_choice(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("token-classification", "llama")
    full, choice = prm.context, prm.on_too_long
    try:
        with prm.session(PROBLEMS[:1]) as session:
            (a,) = session.extend([(session.roots[0], "x = 1")])
            prm.context = a.start + len(a.ids) + 3
            with pytest.raises(PrismError, match="context is"):
                session.extend([(a, "then z = x + y - 3")])
            prm.on_too_long = "skip"
            assert np.isnan(session.extend([(a, "then z = x + y - 3")])[0].log_odds[0])
            prm.on_too_long = "window"
            (late,) = session.extend([(a, "so y")])
            assert late.log_odds == pytest.approx(
                REFERENCES[prm.family.name](prm, PROBLEMS[0], ["so y"]).tolist(), abs=1e-9
            )
    finally:
        prm.context, prm.on_too_long = full, choice


def test_siblings_of_one_token_do_not_see_each_other(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("reasoneval", "mistral")
    with prm.session(PROBLEMS[:1]) as session:
        first = session.extend([(session.roots[0], text) for text in ("x", "then", "so")])
        assert [len(node.ids) for node in first] == [1, 1, 1]
        for node in session.extend([(node, "+") for node in first]):
            np.testing.assert_allclose(node.log_odds, reference(prm, node), atol=1e-9, rtol=1e-9)


class Sizes:
    """As much of a `Growth` as batches are made by."""

    def __init__(self, num_kept: int, num_new: int) -> None:
        self.num_kept, self.num_new = num_kept, num_new

    def parts(self, _: int) -> list[Sizes]:
        return [self]


def cost(batches: list[list[Any]]) -> int:
    return sum(PASS + len(batch) * max(one.num_new for one in batch) for batch in batches)


def partitions(items: list[Any]) -> Iterator[list[list[Any]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [items[0], *rest[i]], *rest[i + 1 :]]


@given(sizes=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 2000)), max_size=6), budget=st.integers(1, 9000))
def test_batches_cost_least(sizes: list[tuple[int, int]], budget: int) -> None:
    """The best of all ways where memory is no limit; otherwise within the limit, and everything once."""
    growths: list[Any] = [Sizes(*some) for some in sizes]
    assert cost(in_batches(growths, 10**9)) == min(map(cost, partitions(growths)))
    batches = in_batches(growths, budget)
    assert sorted(map(id, growths)) == sorted(id(one) for batch in batches for one in batch)
    for batch in batches:
        tokens = max(one.num_kept for one in batch) + max(one.num_new for one in batch)
        assert len(batch) == 1 or len(batch) * tokens <= budget
