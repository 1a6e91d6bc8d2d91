"""Remote PRMs score as the PRM itself does, wherever a PRM is named; what a server gets wrong is an error."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import loopback
from prism_prm import PRM, StepTree, example_folder, load_prm, score_files
from prism_prm.backends import remote_prm
from prism_prm.errors import ConfigError, ModelError, PrismError
from prism_prm.net import RetryPolicy, ServerError
from prism_prm.tree import Step
from serving_prms import Running, running

TREE = StepTree(0, "1+1+2-1", tuple(map(Step, ["1+1=2", "2+2=4", "2+2=3", "3-1=2"])), (-1, 0, 0, 2), ())
CARD = {
    "id": "m", "outputs": ["correct"], "max_model_len": 9, "aggregator": "min", "threshold": 0.5, "identity": "x",
    "model_hash": "h",
}  # fmt: skip
CHAIN = StepTree.chain("1+2", ["1+2=3", "#### 3"], tree_id=1)


@pytest.fixture(scope="module")
def server(prms: dict[str, Any]) -> Iterator[Running]:
    with running(prms) as found:
        yield found


@pytest.fixture(scope="module")
def qwen(tiny_prm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, PRM]]:
    """The address of a PRM as vLLM would serve it, its folder, and itself."""
    prm = tiny_prm("qwen", "qwen2", "float32")
    folder = tmp_path_factory.mktemp("remote") / "prm"
    prm.save(folder)
    with running({"a/model": prm}) as found:
        yield found.url, folder, prm


def same(there: Any, here: Any) -> None:
    for one, other in zip(there, here, strict=True):
        assert one.outputs == other.outputs
        assert one.log_odds_NO == pytest.approx(other.log_odds_NO, abs=1e-4, nan_ok=True)


def both(server: Running, prms: dict[str, Any]) -> tuple[Any, Any]:
    return load_prm(f"prism:{server.url}#owner/prism"), prms["owner/prism"]


def test_a_served_prm_scores_as_itself(server: Running, prms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = both(server, prms)
    same(there.score_trees([TREE, CHAIN]), here.score_trees([TREE, CHAIN]))
    same(there.score_trees([TREE, CHAIN], [[3], []]), here.score_trees([TREE, CHAIN], [[3], []]))
    monkeypatch.setattr(remote_prm, "ITEMS_AT_ONCE", 1)
    same(there.score_trees([TREE, CHAIN] * 3), here.score_trees([TREE, CHAIN] * 3))
    assert there.score("1+2", ["1+2=3"]) == pytest.approx(here.score("1+2", ["1+2=3"]), abs=1e-5)
    assert there.solution_score("1+2", ["1+2=3"]) == pytest.approx(here.solution_score("1+2", ["1+2=3"]), abs=1e-5)
    assert (there.context, there.card.aggregator, there.card.threshold) == (
        here.context, here.card.aggregator, here.card.threshold,
    )  # fmt: skip
    for tree in (TREE, CHAIN, StepTree.chain("2-1", []), StepTree.chain("2-1", ["2-1=1"])):
        assert there.count_tokens(tree) == here.count_tokens(tree)
    there.close()


def test_sessions(server: Running, prms: dict[str, Any]) -> None:
    there, here = both(server, prms)
    with there.session(["1+1", "1+2"]) as one, here.session(["1+1", "1+2"]) as other:
        found = []
        for session in (one, other):
            a, b, again = session.extend(
                [(session.roots[0], "1+1=2"), (session.roots[1], "1+2=4"), (session.roots[0], "1+1=2")]
            )
            assert a is again
            (last,) = session.extend([(a, "#### 2")])
            session.keep([last])
            nodes = [a, b, last]
            found.append(
                [(node.depth, node.num_tokens, pytest.approx(node.probability, abs=1e-5)) for node in nodes]
                + [root.num_tokens for root in session.roots]
            )
        assert found[0] == found[1]
    there.close()


def test_too_long_is_the_clients_choice(server: Running, prms: dict[str, Any]) -> None:
    here = prms["base"]
    long = StepTree.chain("1+1", ["1+1=2"] * here.context)
    for choice in ("skip", "window"):
        there = load_prm(f"prism:{server.url}#base", on_too_long=choice)
        own = PRM(here.module, here.family, here.card, on_too_long=choice)
        (one,), (other,) = there.score_trees([long]), own.score_trees([long])
        same([one], [other])
        assert one.too_long == other.too_long != ()
        there.close()
    with pytest.raises(ServerError, match="context is"):
        load_prm(f"prism:{server.url}#base").score_trees([long])


def test_vllm_gets_ids_of_our_layout(qwen: tuple[str, Path, PRM]) -> None:
    url, folder, here = qwen
    there = load_prm(f"vllm:{url}", local=folder, check=True)
    tree = StepTree(0, "What is x?", tuple(map(Step, ["Let x be 1.", "so 3", "<extra_0>", "x = 2"])), (-1, 0, 0, 2), ())
    other = StepTree.chain("x?", ["so 3"])
    same(there.score_trees([tree, other]), here.score_trees([tree, other]))
    same(there.score_trees([tree, other], [[1, 2], []]), here.score_trees([tree, other], [[1, 2], []]))
    assert there.count_tokens(tree) == here.count_tokens(tree)
    assert there.can_score("x", 0)
    assert not there.can_score("", 0)
    short = load_prm(f"vllm:{url}", local=folder, context=here.count_tokens(tree) - 8, on_too_long="window")
    own = PRM(here.module, here.family, here.card, context=short.context, on_too_long="window")
    long = StepTree.chain("What is x?", ["Let x be 1."] * 6)
    (one,), (right,) = short.score_trees([long]), own.score_trees([long])
    same([one], [right])
    assert one.too_long == right.too_long != ()


def test_check_finds_another_model(server: Running, qwen: tuple[str, Path, PRM]) -> None:
    url, folder, _ = qwen
    assert load_prm(f"prism:{server.url}#owner/prism", local=example_folder("prism"), check=True).model == "owner/prism"
    with pytest.raises(ModelError, match=r"differ by .* Serve the same model"):
        load_prm(f"prism:{server.url}#base", local=folder, check=True)
    with pytest.raises(ConfigError, match="name its local copy"):
        load_prm(f"vllm:{url}", check=True)


@pytest.mark.parametrize("scheme", ["prism", "vllm"])
def test_which_model(scheme: str, server: Running) -> None:
    for place in (f"{scheme}:{server.url}", f"{scheme}:{server.url}#nosuch"):
        with pytest.raises(ConfigError, match="name one of base, owner/prism after a #"):
            load_prm(place)


def fake(rows: Any) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    """A server that gives each sequence what `rows` makes of its ids."""
    return lambda body: (200, {"data": [{"index": i, "data": rows(ids)} for i, ids in enumerate(body["input"])]})


def test_rows_of_vllm_are_counted(qwen: tuple[str, Path, PRM]) -> None:
    _, folder, here = qwen
    tag = here.family.step_ids("x", 0)[0][-1]
    models = {"data": [{"id": "m", "root": str(folder), "max_model_len": 500}]}
    cases: list[tuple[Any, Any]] = [
        (lambda ids: [[0.25, 0.75]] * ids.count(tag), None),
        (lambda ids: [[0.25, 0.75] if token == tag else [0.5, 0.5] for token in ids], None),
        (lambda _: [], rf"0 rows for 2 steps. Start vLLM .*step_tag_id.*{tag}"),
        (lambda ids: [[0.25, 0.75]] * (ids.count(tag) + 1), "3 rows for 2 steps"),
        (lambda ids: [[2.0, -1.0]] * ids.count(tag), "does not hold probabilities"),
        (lambda ids: [0.5] * ids.count(tag), "not .P.wrong., P.right.."),
    ]
    for rows, message in cases:
        with loopback.serve(fake(rows), models) as (url, asked):
            prm = load_prm(f"vllm:{url.removesuffix('/v1')}", prm_retries=0)
            if message is None:
                assert prm.score("x?", ["so", "3"]) == pytest.approx([0.75, 0.75])
                assert asked[0]["task"] == "token_classify"
                assert asked[0]["add_special_tokens"] is False
                assert asked[0]["path"] == "/pooling"
            else:
                with pytest.raises(PrismError, match=message):
                    prm.score("x?", ["so", "3"])


def test_vllm_gives_the_classes_in_their_own_order(tiny_prm: Callable[..., Any], tmp_path: Path) -> None:
    tiny_prm("token-classification", "llama", "float32").save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    models = {"data": [{"id": "m", "root": str(tmp_path), "max_model_len": 500}]}
    with loopback.serve(fake(lambda ids: [[0.25, 0.75]] * len(ids)), models) as (url, _):
        found = {}
        for names in (("wrong", "right"), ("right", "wrong")):
            (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": dict(enumerate(names))}))
            prm = load_prm(f"vllm:{url.removesuffix('/v1')}")
            found[prm.identity()] = prm.score("x?", ["so", "3"])
    assert list(found.values()) == [pytest.approx([0.75, 0.75]), pytest.approx([0.25, 0.25])]


def test_prms_behind_vllm_that_differ_in_anything_are_told_apart(qwen: tuple[str, Path, PRM], tmp_path: Path) -> None:
    _, folder, _ = qwen
    for name in ("quirky", "retrained"):
        shutil.copytree(folder, tmp_path / name)
    card = json.loads((tmp_path / "quirky/prism.json").read_text())
    (tmp_path / "quirky/prism.json").write_text(json.dumps(card | {"compat": True}))
    tokens = json.loads((tmp_path / "retrained/tokenizer.json").read_text())
    tokens["model"]["merges"].pop()
    (tmp_path / "retrained/tokenizer.json").write_text(json.dumps(tokens))
    served = {"id": "prm", "root": "/models/a", "max_model_len": 500}
    models = {"data": [served]}
    answer = fake(lambda _: [])
    with loopback.serve(answer, models) as (url, _), loopback.serve(answer, models) as (elsewhere, _):

        def identity(place: str = url, local: Path = folder) -> str:
            return load_prm(f"vllm:{place.removesuffix('/v1')}", local=local).identity()

        first = identity()
        assert identity() == first
        others = [identity(elsewhere), identity(local=tmp_path / "quirky"), identity(local=tmp_path / "retrained")]
        served["root"] = "/models/b"
        assert len({first, *others, identity()}) == 5


def test_a_busy_server_is_asked_again() -> None:
    answers = iter([(429, {}, {"Retry-After": "0"}), (503, {}), (200, None)])
    item = {"tokens": 3, "prompt_tokens": 1, "step_tokens": [2], "log_odds": [{"correct": 1.5}], "too_long": []}

    def answer(_: dict[str, Any]) -> Any:
        found = next(answers)
        return found if found[1] is not None else (200, {"items": [item]})

    with loopback.serve(answer, {"data": [CARD]}) as (url, asked):
        prm = load_prm(f"prism:{url.removesuffix('/v1')}")
        prm.server.retry = type(prm.server.retry)(backoff=0.0)
        assert prm.score("p", ["s"]) == pytest.approx([1 / (1 + math.exp(-1.5))])
        assert len(asked) == 3
        assert prm.server.num_retries == 2
        assert prm.count_tokens(StepTree.chain("p", ["s"])) == 3


def scored(body: dict[str, Any]) -> dict[str, Any]:
    """What a server of ours answers: log-odds are how long a step is."""
    return {
        "model_hash": "h",
        "items": [
            {
                "tokens": 3, "prompt_tokens": 1, "step_tokens": [2] * len(item["nodes"]), "too_long": [],
                "log_odds": [{"correct": float(len(node))} for node in item["nodes"]],
            }
            for item in body["items"]
        ],
    }  # fmt: skip


def test_a_server_that_says_when_to_come_back_uses_up_no_retries() -> None:
    answers = iter([(429, {}, {"Retry-After": "0.01"})] * 6 + [(503, {}, {"Retry-After": "0.01"})])
    with loopback.serve(lambda body: next(answers, (200, scored(body))), {"data": [CARD]}) as (url, asked):
        prm = load_prm(f"prism:{url.removesuffix('/v1')}", prm_retries=0)
        prm.server.retry = RetryPolicy(retries=0, backoff=0.0)
        assert prm.score("p", ["s"]) == pytest.approx([1 / (1 + math.exp(-1.0))])
        assert len(asked) == 8
    busy = (429, {}, {"Retry-After": "0.05"})
    with loopback.serve(lambda _: busy, {"data": [CARD]}) as (url, asked):
        prm = load_prm(f"prism:{url.removesuffix('/v1')}")
        prm.server.retry = RetryPolicy(timeout=3.0, retries=1, backoff=0.0)
        with pytest.raises(ServerError, match=r"status 429.*tries\)") as caught:
            prm.score("p", ["s"])
        assert caught.value.status == 503
        assert len(asked) > 3


@pytest.mark.parametrize("status", [413, 504])
def test_what_is_too_much_is_asked_for_in_halves(status: int) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return (status, {"error": "too much"}) if len(body["items"]) > 4 else (200, scored(body))

    with loopback.serve(answer, {"data": [CARD]}) as (url, asked):
        prm = load_prm(f"prism:{url.removesuffix('/v1')}", prm_retries=0)
        found = prm.score_many([(f"p{i}", ["x" * i]) for i in range(1, 10)])
        assert [len(one["items"]) for one in asked] == [9, 4, 5, 2, 3]
        assert found == [pytest.approx([1 / (1 + math.exp(-i))]) for i in range(1, 10)]
    with loopback.serve(lambda _: (413, {"error": "too much"}), {"data": [CARD]}) as (url, asked):
        prm = load_prm(f"prism:{url.removesuffix('/v1')}", prm_retries=0)
        with pytest.raises(ServerError, match=r"status 413.*too much"):
            prm.score("p", ["s"])
        assert len(asked) == 1


def test_other_weights_are_an_error() -> None:
    """A server that was started again with another model under the same name."""
    said = {"model_hash": "h"}
    with loopback.serve(lambda body: (200, scored(body) | said), {"data": [CARD]}) as (url, asked):
        prm = load_prm(f"prism:{url.removesuffix('/v1')}", prm_retries=3)
        assert prm.score("p", ["s"]) == pytest.approx([1 / (1 + math.exp(-1.0))])
        said["model_hash"] = "other"
        with pytest.raises(ModelError, match=r"the weights of 'm' have changed \(other instead of h\)"):
            prm.score("p", ["s"])
        assert len(asked) == 2, "asking again is idle"


def test_the_memory_for_sizes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.backends.remote_prm.SIZES_KNOWN", 100)
    with loopback.serve(lambda body: (200, scored(body)), {"data": [CARD]}) as (url, asked):
        prm: Any = load_prm(f"prism:{url.removesuffix('/v1')}")
        for i in range(100):
            prm.score(f"p{i}", [f"s{i}"])
        assert len(prm._sizes._known) <= 102
        assert prm.count_tokens(StepTree.chain("p99", ["s99"])) == 3
        assert len(asked) == 100, "what is new is remembered"
        assert prm.count_tokens(StepTree.chain("p0", ["s0"])) == 3
        assert len(asked) == 101, "what is old is asked for again"


def test_strange_answers_are_errors() -> None:
    item = {"tokens": 3, "prompt_tokens": 1, "step_tokens": [2], "log_odds": [{"correct": 1.5}], "too_long": []}
    strange = [
        {"items": []}, {"items": [item | {"log_odds": []}]}, {"items": [item | {"log_odds": [{"other": 1}]}]},
        {"items": [item | {"step_tokens": [1, 2]}]}, {"items": [item | {"tokens": "3"}]}, {"items": [None]},
        {"items": [item | {"log_odds": [{"correct": "x"}]}]}, {"items": [item | {"too_long": [7]}]}, {},
    ]  # fmt: skip
    for said in strange:
        with loopback.serve(lambda _, said=said: (200, said), {"data": [CARD]}) as (url, _):  # type: ignore[misc]
            prm = load_prm(f"prism:{url.removesuffix('/v1')}", prm_retries=0)
            with pytest.raises(ServerError, match="the answer"):
                prm.score("p", ["s"])
    with loopback.serve(lambda _: (200, {})) as (url, _), pytest.raises(ModelError, match="for vLLM write vllm:"):
        load_prm(f"prism:{url.removesuffix('/v1')}")


def test_files_are_scored_by_a_remote_prm(server: Running, tmp_path: Path, prms: dict[str, Any]) -> None:
    """As by every command that names a PRM, with its table and its store."""
    source = tmp_path / "solutions.jsonl"
    tree = StepTree.chain("1+1+2", ["1+1=2", "2+2=4", "#### 4"])
    source.write_text(json.dumps({"problem": tree.problem, "steps": [step.text for step in tree.nodes]}) + "\n")
    before = server.metric("prism_tokens_total")
    place = f"prism:{server.url}#owner/prism"
    found = []
    for name, prm in (("there", place), ("here", prms["owner/prism"]), ("again", place)):
        score_files(prm, source, tmp_path / f"{name}.parquet", store=tmp_path / "store")
        found.append(pq.read_table(tmp_path / f"{name}.parquet")["probability"].to_pylist())
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert found[0] == found[2]
    assert server.metric("prism_tokens_total") - before == prms["owner/prism"].count_tokens(tree), "sent once"
