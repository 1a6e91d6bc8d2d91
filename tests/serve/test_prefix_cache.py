"""The prefix cache: exact scores, what is found again, its bound in bytes, and owners that share nothing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm import PRM, StepTree
from prism_prm.models import prefix_cache, session
from prism_prm.models.prefix_cache import CachedScores, PrefixCache, merge_encoded, merge_trees, score_merged
from prism_prm.models.prm import score_encoded
from prism_prm.tree import Step
from serving_prms import running

TEXTS = st.sampled_from(["so 3", "Let x be 1.", "x = 2 and y = 3", "done"])


@st.composite
def trees(draw: st.DrawFn) -> StepTree:
    texts = draw(st.lists(TEXTS, max_size=9))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(len(texts)))
    return StepTree(0, draw(st.sampled_from(["x?", "What is y?"])), tuple(map(Step, texts)), parents, ())


CALLS = st.lists(st.lists(st.tuples(st.sampled_from("ab"), trees()), min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def prm(tiny_prm: Any) -> PRM:
    found: PRM = tiny_prm("qwen", "qwen2-window")
    return found


@given(CALLS, st.sampled_from([1, 15, 1024]), st.sampled_from([40_000, 120_000, 10**7]))
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_whole_trees(prm: PRM, calls: Any, chunk: int, size: int) -> None:
    """Whatever is kept, evicted or cut into chunks, with windows of nine tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "CHUNK", chunk)
        cache = PrefixCache(prm, size)
        for call in calls:
            found = cache.score([(owner, prm.encode_tree(tree)) for owner, tree in call])
            assert cache.num_bytes <= size
            expected = prm.score_trees([tree for _, tree in call])
            for one, scores in zip(found, expected, strict=True):
                if one is not None:
                    assert one.log_odds_NO == pytest.approx(scores.log_odds_NO, abs=1e-9)


@given(st.lists(trees(), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_merged_trees_score_as_each_does(prm: PRM, some: list[StepTree]) -> None:
    expected = [scores.log_odds_NO for scores in prm.score_trees(some)]
    encoded = [prm.encode_tree(tree) for tree in some]
    ways = [
        score_merged(
            some, lambda i: some[i].problem, merge_trees,
            lambda merged: [scores.log_odds_NO for scores in prm.score_trees(merged)],
        ),
        score_merged(
            encoded, lambda i: encoded[i].prompt, merge_encoded, lambda merged: score_encoded(prm, merged)
        ),
    ]  # fmt: skip
    for way in ways:
        for values_NO, right_NO in zip(way, expected, strict=True):
            assert values_NO == pytest.approx(right_NO, abs=1e-9)


def chain(prm: PRM, *steps: str, problem: str = "x?") -> Any:
    return prm.encode_tree(StepTree.chain(problem, steps))


def score(cache: PrefixCache, *asked: Any) -> list[CachedScores]:
    """What is found for trees that the cache can hold."""
    return [one for one in cache.score(asked) if one is not None]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The new tokens of each pass through the model."""
    passes: list[int] = []
    real = session.run_growth

    def run(module: Any, batch: Any) -> Any:
        passes.append(sum(growth.num_new for growth in batch))
        return real(module, batch)

    monkeypatch.setattr(session, "run_growth", run)
    return passes


def test_only_new_tokens_are_computed(prm: PRM, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache(prm, 10**7)
    passes = counted(monkeypatch)
    first = chain(prm, "Let x be 1.", "so 3")
    longer = chain(prm, "Let x be 1.", "so 3", "done")
    sizes = [len(first.prompt), *map(len, longer.ids)]
    (found,) = score(cache, ("a", first))
    assert found.cached_tokens == 0
    assert passes == [sum(sizes[:3])], "prompt and steps in one pass"
    found, again = score(cache, ("a", longer), ("a", longer))
    assert found.cached_tokens == again.cached_tokens == sum(sizes[:3])
    assert passes[1:] == [sizes[3]], "what both ask for is computed once"
    (found,) = score(cache, ("a", first))
    assert found.cached_tokens == sum(sizes[:3])
    assert len(passes) == 2, "nothing is new"


def test_owners_share_nothing(prm: PRM, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache(prm, 10**7)
    passes = counted(monkeypatch)
    tree = chain(prm, "so 3")
    size = len(tree.prompt) + len(tree.ids[0])
    found = score(cache, ("a", tree), ("b", tree))
    assert [one.cached_tokens for one in found] == [0, 0]
    assert passes == [2 * size]
    assert [one.cached_tokens for one in score(cache, ("c", tree), ("a", tree))] == [0, size]


def test_the_least_recently_used_leaves_first(prm: PRM) -> None:
    tree = chain(prm, "so 3")
    one = PrefixCache(prm, 10**7)
    one.score([("a", tree)])
    cache = PrefixCache(prm, 2 * one.num_bytes)
    for owner in "abac":
        cache.score([(owner, tree)])
    cached = {owner: bool(score(cache, (owner, tree))[0].cached_tokens) for owner in "acb"}
    assert cached == {"a": True, "c": True, "b": False}


def test_what_cannot_be_kept_is_left_to_others(prm: PRM) -> None:
    cache = PrefixCache(prm, 10_000)
    assert cache.score([("a", chain(prm, "so 3", "done"))]) == [None]
    assert (cache.num_bytes, len(cache)) == (0, 0)


def test_a_batch_beyond_the_cache_is_cut_by_problems(prm: PRM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what does not fit alone is left to others; what shares a problem stays together."""
    some = [chain(prm, step, problem=problem) for step in ("so 3", "done") for problem in ("x?", "y?", "z?")]
    large = chain(prm, *["Let x be 1."] * 40)
    alone = PrefixCache(prm, 10**7)
    alone.score([("a", some[0]), ("a", some[3])])
    cache = PrefixCache(prm, alone.num_bytes + 100)
    passes = counted(monkeypatch)
    found = cache.score([("a", tree) for tree in (*some, large)])
    assert found[-1] is None
    expected = score_encoded(prm, some)
    for one, right_NO in zip(found, expected, strict=False):
        assert one is not None
        assert one.log_odds_NO == pytest.approx(right_NO, abs=1e-9)
    prompts = [len(tree.prompt) for tree in some[:3]]
    assert sum(passes) == sum(prompts) + sum(len(tree.ids[0]) for tree in some), "every prompt was computed once"
    assert score(cache, ("a", some[2]))[0].cached_tokens > 0


def test_a_server_with_and_without_a_cache(prms: dict[str, Any]) -> None:
    item = {"problem": "1+1+2-1", "steps": ["1+1=2", "2+2=4"]}
    expected = prms["base"].score(item["problem"], item["steps"])
    keys = [{"Authorization": f"Bearer {key}"} for key in ("first", "second")]
    for size, cached in ((512, [False, True, False]), (0, [False] * 3), (1e-3, [False] * 3)):
        with running({"base": prms["base"]}, ("first", "second"), cache_mb=size) as server:
            answers = [server.steps(item, headers=header)["items"][0] for header in (keys[0], keys[0], keys[1])]
            assert [one["cached_tokens"] > 0 for one in answers] == cached
            for one in answers:
                assert one["probabilities"] == pytest.approx(expected, abs=1e-5)
            assert (server.metric('prism_cache_bytes{model="base"}') > 0) == any(cached)


@pytest.mark.parametrize("choice", ["error", "skip", "window"])
def test_steps_beyond_the_context(choice: str, prm: PRM) -> None:
    steps = ["so 3"] * 40
    whole = prm.count_tokens(StepTree.chain("x?", steps))
    other = PRM(prm.module, prm.family, prm.card, context=whole - 3, on_too_long=choice)  # type: ignore[arg-type]
    with running({"m": other}) as server:
        answer = server.post("/v1/steps", {"items": [{"problem": "x?", "steps": steps}]})
        if choice == "error":
            assert answer.status_code == 400
            assert f"context is {whole - 3}" in answer.json()["error"]["message"]
            return
        (item,) = answer.json()["items"]
        assert item["too_long"] == [39]
        (expected,) = other.score_trees([StepTree.chain("x?", steps)])
        assert item["probabilities"][:39] == pytest.approx(expected.probability[:39].tolist(), abs=1e-9)
        last = expected.probability[39]
        assert item["probabilities"][39] == (None if np.isnan(last) else pytest.approx(last, abs=1e-9))
        assert (item["score"] is None) == (choice == "skip")


def test_the_memory_for_texts_is_bounded(tiny_prm: Any) -> None:
    from prism_prm.models.families.base import TextEncoder

    tokenizer = tiny_prm("qwen", "qwen2").family.text.tokenizer
    text = TextEncoder(tokenizer, cache_bytes=100_000)
    texts = [f"Let x be {i}." for i in range(1000)]
    right = [text._plain(one) for one in texts]
    assert [text.plain(one) for one in texts] == right
    assert text.plain(texts[-1]) is text.plain(texts[-1]), "what was read last is remembered"
    kept = [*text._recent, *text._earlier]
    assert texts[0] not in kept
    assert 0 < sum(map(len, kept)) < 100_000
    long = "x " * 1000
    assert text.plain(long) == text._plain(long)
    assert long not in text._recent, "long texts seldom come again"


def test_a_server_remembers_no_texts(tiny_prm: Any) -> None:
    prm = tiny_prm("qwen", "qwen2")
    with running({"m": prm}) as server:
        model = server.server.engine.models["m"]
        messages = [("system", "Be brief."), ("user", "a problem"), ("assistant", "a step of it<extra_0>")]
        turns = [{"role": role, "content": content} for role, content in messages]
        assert server.post("/pooling", {"messages": turns}).status_code == 200
        server.steps({"problem": "a problem", "steps": ["a step of it"]})
    for family in (prm.family, model.family):
        assert not {"a problem", "a step of it"} & {*family.text._recent, *family.text._earlier}


def test_threads_share_a_tokenizer(tiny_prm: Any) -> None:
    """Text must not become a control token because another thread has just laid out something."""
    family = tiny_prm("qwen", "qwen2").family
    other = type(family)(family.text.tokenizer)
    (tag,) = family.text.layout("<extra_0>")
    plain = family.text._plain("<extra_0>")
    assert tag not in plain
    wrong: list[Any] = []

    def read(text: Any, expected: Any) -> None:
        wrong.extend(found for _ in range(3000) if tuple(found := text("<extra_0>")) != tuple(expected))

    work = [(family.text._plain, plain), (other.text._plain, plain), (family.text.layout, [tag])]
    threads = [threading.Thread(target=read, args=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
