"""A critic where a PRM stands: eval, score, rerank, search, compare, rewards; local critics; the one score store."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scripted import OTHER, PROBLEM, STEPS, chat, critic, is_probe, said

from loopback import Answer, serve
from prism_prm import (
    CriticSettings,
    EvalSettings,
    PolicySettings,
    PRMReward,
    RerankSettings,
    Sampling,
    SearchRecipe,
    SearchSettings,
    compare_runs,
    evaluate_prm,
    init_prm,
    open_critic,
    read_benchmark,
    report_theory,
    rerank_pool,
    score_files,
    search_task,
)
from prism_prm.backends.critic_replies import CriticQuestion, Reply
from prism_prm.backends.hf import LocalCritic
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.cli import app
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.store import Request, ScoreStore
from prism_prm.tree import Step, StepTree

FAST = EvalSettings(num_draws=100)


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """It calls steps with the word bad wrong: directly, or as the index of the first."""

    def answer(body: dict[str, Any]) -> Answer:
        if is_probe(body):
            return chat("Yes")
        if "<paragraph_0>" not in said(body):
            return chat("No" if "bad" in said(body).split("Is this step")[0] else "Yes")
        parts = said(body).split("<paragraph_")[1:]
        return chat(f"\\boxed{{{next((i for i, part in enumerate(parts) if 'bad' in part), -1)}}}")

    with serve(answer, models=OTHER) as found:
        yield found


def settings(tmp_path: Path, **more: Any) -> PrmOptions:
    return PrmOptions(critic=CriticSettings(replies=str(tmp_path / "replies"), votes=1, **more))


def processbench(folder: Path) -> Path:
    rows = [
        ("gsm8k-0", ["one", "bad two", "three"], 1),
        ("gsm8k-1", ["fine", "fine"], -1),
        ("gsm8k-2", ["bad", "really wrong"], 1),
        ("gsm8k-3", ["fine", "not seen", "x"], 1),
    ]
    lines = [
        {"id": name, "problem": f"{name}?", "steps": steps, "label": label, "final_answer_correct": label < 0}
        for name, steps, label in rows
    ]
    path = folder / "gsm8k.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("format", ["direct", "processbench"])
def test_a_critic_on_processbench(tmp_path: Path, server: tuple[str, list[dict[str, Any]]], format: str) -> None:
    url, asked = server
    place, data = f"critic:openai:{url}", processbench(tmp_path)
    how = {"data": data, "settings": FAST, "prm_options": settings(tmp_path, format=format)}
    found = evaluate_prm(place, "processbench", tmp_path / "eval", **how)["processbench"]
    table = found.subsets["all"].tables["split:gsm8k"]
    assert table["acc_error"].value == pytest.approx(1 / 3)
    assert table["acc_correct"].value == 1
    counts = found.subsets["all"].counts
    metrics = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    if format == "direct":
        # Labelled are the steps up to the first wrong one.
        assert counts == {"tp": 4, "fn": 1, "tn": 1, "fp": 2}
    else:
        assert counts == {"tp": 4, "fn": 1, "tn": 1, "fp": 1}, "the step after the supposed error is not judged"
        assert found.notes == {"steps after a wrong one, which the critic does not judge": 2}
    run = metrics["run"]
    assert run["tokens"] == 15 * (10 if format == "direct" else 4)
    assert run["critic"]["format"] == format
    assert run["critic"]["by_log_probability"] is False
    assert "Verdicts were read from what the critic wrote" in (tmp_path / "eval" / "report.md").read_text()
    before = len(asked)
    evaluate_prm(place, "processbench", tmp_path / "eval", **how)
    assert [is_probe(body) for body in asked[before:]] in ([], [True]), "nothing is asked twice"


def test_a_benchmark_that_needs_every_step_refuses_a_critic_that_stops(
    tmp_path: Path, server: tuple[str, list[dict[str, Any]]]
) -> None:
    url, asked = server
    how = {"data": processbench(tmp_path), "settings": FAST, "prm_options": settings(tmp_path, format="processbench")}
    with pytest.raises(ConfigError, match=r"labeled needs a verdict on every step.*-C format="):
        evaluate_prm(f"critic:openai:{url}", "labeled", tmp_path / "eval", **how)
    assert not [body for body in asked if not is_probe(body)]


def test_an_answer_without_a_verdict_never_matches_on_processbench(tmp_path: Path) -> None:
    """The benchmark's rule, and the default: such an item counts, whatever its first wrong step is."""
    rows = [([f"step {i}.{k}" for k in range(3)], i % 3 - 1) for i in range(6)]
    data = tmp_path / "gsm8k.jsonl"
    lines = [
        {"id": f"gsm8k-{i}", "problem": f"{i}?", "steps": steps, "label": label, "final_answer_correct": label < 0}
        for i, (steps, label) in enumerate(rows)
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def measured(name: str, reply: Callable[[int], str]) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
        def answer(body: dict[str, Any]) -> Answer:
            return chat("Yes" if is_probe(body) else reply(int(said(body).partition("step ")[2][0])))

        with serve(answer, models=OTHER) as (url, _):
            how = {"data": data, "settings": FAST, "prm_options": settings(tmp_path / name, format="processbench")}
            found = evaluate_prm(f"critic:openai:{url}", "processbench", tmp_path / name, **how)["processbench"]
        tables = found.subsets["all"].tables
        shares = {key: value.value for key, value in tables["steps"].items() if key.startswith("first_error_")}
        return {key: value.value for key, value in tables["split:gsm8k"].items()}, shares, found.notes

    without = "items without a verdict of the critic, which match nothing"
    # The labels are -1, 0, 1, -1, 0, 1: the first three are answered, and right.
    rates, shares, notes = measured("half", lambda i: f"\\boxed{{{i - 1}}}" if i < 3 else "I cannot tell.")
    assert rates == {"acc_error": 0.5, "acc_correct": 0.5, "f1": 0.5}
    names = ("exact", "early", "late", "missed")
    assert [shares[f"first_error_{name}"] for name in names] == [0.5, 0, 0, 0.5]
    assert notes[without] == 3
    predictions = [{"id": line["id"], "scores": [0.8, 0.3, 0.6]} for line in lines]
    (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in predictions))
    how = {"data": data, "settings": FAST, "predictions": tmp_path / "predictions.jsonl"}
    evaluate_prm(None, "processbench", tmp_path / "prm", **how)
    found = report_theory(tmp_path / "theory", simulate=False, runs=[tmp_path / "prm", tmp_path / "half"]).metrics
    assert not np.isnan(found["dominance"]["processbench"]["fpr_b"]).any(), "only what both have judged"
    rates, shares, notes = measured("never", lambda _: "I cannot tell.")
    assert rates == {"acc_error": 0, "acc_correct": 0, "f1": 0}
    assert [shares[f"first_error_{name}"] for name in names] == [0, 0, 0, 1]
    assert notes[without] == 6
    assert "Answers without a verdict: no-verdict: 6" in (tmp_path / "never" / "report.md").read_text()


def test_items_without_a_verdict_are_left_out_and_counted(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("Perhaps" if "really wrong" in said(body) else "Yes")

    with critic(tmp_path, answer, votes=1, redraws=0, on_missing="skip") as (prm, _):
        data = processbench(tmp_path)
        found = evaluate_prm(prm, "labeled", tmp_path / "eval", data=data, settings=FAST)["labeled"]
        assert found.notes["items left out because the critic gave no verdict"] == 1
        assert found.subsets["all"].num_items == 3
    with critic(tmp_path / "b", lambda _: chat("?"), votes=1, redraws=0, on_missing="skip") as (prm, _):  # noqa: SIM117
        with pytest.raises(DataError, match="the critic gave no verdict on any item"):
            evaluate_prm(prm, "labeled", tmp_path / "eval2", data=data, settings=FAST)


def test_a_rerun_knows_what_was_missing(tmp_path: Path) -> None:
    """The scores are kept, and so is what stands behind them."""

    def answer(body: dict[str, Any]) -> Answer:
        return chat("Yes" if is_probe(body) else "Perhaps" if "bad" in said(body) else "Yes")

    data = processbench(tmp_path)
    pool = tmp_path / "pool.jsonl"
    pool.write_text(json.dumps({"problem": "1 + 2?", "answer": "3", "solutions": [["so 3"], ["bad", "so 4"]]}) + "\n")
    how = settings(tmp_path, redraws=0, on_missing="wrong")
    fast = RerankSettings(aggregators=("min",), num_draws=100, judges=1)
    with serve(answer, models=OTHER) as (url, _):
        for _ in range(2):
            place = f"critic:openai:{url}"
            evaluate_prm(place, "labeled", tmp_path / "eval", data=data, settings=FAST, prm_options=how)
            results = rerank_pool(pool, tmp_path / "rerank", prms={"c": place}, settings=fast, prm_options=how)
            critic_run = json.loads((tmp_path / "eval" / "metrics.json").read_text())["run"]["critic"]
            assert (critic_run["missing"], critic_run["verdicts"]) == ({"no-verdict": 2}, {"votes": 8})
            assert (results.critics["c"]["missing"], results.critics["c"]["verdicts"]) == (
                {"no-verdict": 1},
                {"votes": 2},
            )
            for report in ("eval/report.md", "rerank/report.md"):
                assert "Answers without a verdict: no-verdict: " in (tmp_path / report).read_text()


def test_a_critic_beside_a_prm_in_compare_and_rerank(
    tmp_path: Path, server: tuple[str, list[dict[str, Any]]], tiny_lm: Callable[..., Path]
) -> None:
    place, data = f"critic:openai:{server[0]}", processbench(tmp_path)
    prm = init_prm(tiny_lm("qwen2"), seed=1)
    evaluate_prm(prm, "processbench", tmp_path / "prm", data=data, settings=FAST, name="prm")
    how = {"data": data, "settings": FAST, "prm_options": settings(tmp_path, format="processbench")}
    evaluate_prm(place, "processbench", tmp_path / "critic", **how)
    report = compare_runs([tmp_path / "prm", tmp_path / "critic"], tmp_path / "compared", num_draws=100).markdown()
    assert "Tokens behind the scores" in report
    assert "| critic | 60 |" in report
    read = sum(prm.count_tokens(item.tree) for item in read_benchmark("processbench", data).items)
    assert f"| prm | {read:,} |" in report

    pool = tmp_path / "pool.jsonl"
    solutions = [["1 + 2 = 3", "so 3"], ["bad", "so 4"]]
    pool.write_text(json.dumps({"problem": "1 + 2?", "answer": "3", "solutions": solutions}) + "\n")
    fast = RerankSettings(aggregators=("min",), num_draws=100, judges=1)
    results = rerank_pool(
        pool, tmp_path / "rerank", prms={"prm": prm, "critic": place}, settings=fast, prm_options=settings(tmp_path)
    )
    assert results.curve("best-of-n", "critic", "min").points[-1].value == 1
    assert results.tokens["critic"] == 4 * 15
    assert results.tokens["prm"] == sum(prm.count_tokens(tree) for tree in results.graded.pool.trees())
    page = (tmp_path / "rerank" / "report.md").read_text()
    assert "| selection | n = 1 | n = 2 | PRM tokens ↓ |" in page
    assert f"| prm · Best-of-n | 50.0 | 0.0 | {results.tokens['prm']} |" in page
    assert "| critic · Best-of-n | 50.0 | **100.0** | **60** |" in page
    metrics = json.loads((tmp_path / "rerank" / "metrics.json").read_text())
    assert metrics["critics"]["critic"]["requests"] == 5, "four steps and the probe"
    assert list(metrics["critics"]) == ["critic"]


def test_score_writes_a_table_and_says_what_it_cost(tmp_path: Path, server: tuple[str, list[dict[str, Any]]]) -> None:
    (tmp_path / "solutions.jsonl").write_text(json.dumps({"problem": PROBLEM, "steps": ["a", "bad", "c"]}) + "\n")
    command = ["score", str(tmp_path / "solutions.jsonl"), "--prm", f"critic:openai:{server[0]}", "--out"]
    options = ["-C", "format=processbench", "-C", f"replies={tmp_path / 'replies'}", "-C", "price_prompt=100"]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "s.parquet"), *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert "2 steps of 1 trees" in result.stdout
    assert "1 steps were not judged by the critic and were skipped" in result.stderr
    said_aloud = " ".join(result.stderr.split())
    assert "1 requests and 0 stored replies; new tokens: 10 read, 5 written" in said_aloud
    assert "cost 0.001" in said_aloud
    report = score_files(
        f"critic:openai:{server[0]}", tmp_path / "solutions.jsonl", tmp_path / "t.parquet",
        prm_options=settings(tmp_path, format="processbench"),
    )  # fmt: skip
    assert (report.steps, report.unjudged, report.too_long) == (2, 1, 0)


def test_a_search_guided_by_a_critic(
    tmp_path: Path, server: tuple[str, list[dict[str, Any]]], memorising_policy: Path, said: list[str]
) -> None:
    (tmp_path / "problems.jsonl").write_text(json.dumps({"problem": "3+4-2", "answer": "5"}) + "\n")
    recipe = SearchRecipe(
        task=str(tmp_path / "problems.jsonl"), n=(2,), prm=(f"critic:openai:{server[0]}",),
        policy=PolicySettings(f"hf:{memorising_policy}"),
        search=SearchSettings("beam", expand=2, max_steps=4, sampling=Sampling(temperature=0.1, max_step_tokens=12)),
    )  # fmt: skip
    (point,) = search_task(recipe, tmp_path / "beam", prm_options=settings(tmp_path), judges=1)
    assert (point.prm, point.accuracy.value) == ("critic", 1)
    assert point.prm_tokens >= 3 * 15
    assert any("verdicts from what it writes" in line for line in said)
    again = search_task(recipe, tmp_path / "beam", prm_options=settings(tmp_path), judges=1)
    assert [one.prm_tokens for one in again] == [point.prm_tokens]
    metrics = json.loads((tmp_path / "beam" / "metrics.json").read_text())
    assert metrics["critics"]["critic"]["verdicts"]["votes"] >= 3, "of a search that was done before"
    assert "Answers without a verdict: none" in (tmp_path / "beam" / "report.md").read_text()


def test_a_reward_from_a_critic(tmp_path: Path, server: tuple[str, list[dict[str, Any]]]) -> None:
    given = settings(tmp_path)
    reward = PRMReward(f"critic:openai:{server[0]}", gate=False, prm_options=given)
    found = reward(prompts=["1 + 2?"] * 2, completions=["fine\n\n#### 3", "bad\n\n#### 4"])
    assert found == pytest.approx([1, 0], abs=1e-9)
    reward.close()


@pytest.mark.parametrize("as_object", [False, True])
def test_a_reward_needs_every_verdict(tmp_path: Path, as_object: bool) -> None:
    """A step that is skipped would get the reward of a wrong one."""
    given = PrmOptions(critic=CriticSettings(replies=str(tmp_path / "replies"), on_missing="skip"))
    with critic(tmp_path, lambda _: chat("Yes"), on_missing="skip") as (prm, _):  # noqa: SIM117
        with pytest.raises(ConfigError, match=r'on_missing = "skip".*"wrong"'):
            PRMReward(prm if as_object else "critic:openai:http://localhost:9/v1", prm_options=given)


@pytest.mark.parametrize(("given", "used"), [(None, 0.5), (0.9, 0.9)])
def test_a_format_says_what_is_redundant(tmp_path: Path, given: float | None, used: float) -> None:
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"problem": "p", "steps": ["a", "b"], "label": -1, "id": "gsm8k-0", "final_answer_correct": True})
    )
    answer = chat('{"validity": [1, 1], "redundancy": [0, 0]}')
    how = {"data": tmp_path / "b.jsonl", "settings": EvalSettings(num_draws=100, redundancy_threshold=given)}
    with critic(tmp_path, lambda _: answer, format="prmbench") as (prm, _):
        evaluate_prm(prm, "processbench", tmp_path / "eval", **how)
        assert prm.card.redundancy_threshold == 0.5
    scores = tmp_path / "eval" / "processbench.scores.parquet"  # which know what the format said
    evaluate_prm(None, "processbench", tmp_path / "again", scores=scores, **how)
    for run in ("eval", "again"):
        assert json.loads((tmp_path / run / "metrics.json").read_text())["settings"]["redundancy_threshold"] == used


def test_the_store_keeps_unjudged_steps_and_whole_solutions_apart(tmp_path: Path) -> None:
    replies = iter(["\\boxed{1}", "\\boxed{-1}"])
    trees = [StepTree.chain(PROBLEM, ["a", "b", "c"]), StepTree.chain(PROBLEM, ["a", "b"], tree_id=1)]
    how = {"format": "processbench", "concurrency": 1}
    with critic(tmp_path, lambda _: chat(next(replies)), **how) as (prm, _):
        for _ in range(2):
            store = ScoreStore(tmp_path / "store", prm)
            first, second = store.score([Request.all_of(tree) for tree in trees])
            np.testing.assert_allclose(first.probability, [1, 0, math.nan], atol=1e-9)
            assert first.unjudged == (2,)
            # The same two steps are judged otherwise where no third one follows.
            np.testing.assert_allclose(second.probability, [1, 1], atol=1e-9)
            assert second.unjudged == ()


# --- local critics ---


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LETTERS = """extends = "direct"
history = "x"
[label]
yes = "x"
no = "y"
"""


def test_a_local_critic_answers_after_a_call_that_failed(
    tiny_lm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question that the failed call left behind is of an event loop that has ended."""
    local = LocalCritic(str(tiny_lm("qwen2")))
    question = CriticQuestion((("user", "1 + 1?"),), "", "", 0.0, 1.0, 0, 2, (), False, "0.0")

    async def fail() -> Reply:
        asyncio.ensure_future(local.ask(question))  # noqa: RUF006
        await asyncio.sleep(0)
        raise ModelError("no sandbox")

    with monkeypatch.context() as patch:
        patch.setattr("prism_prm.backends.hf.SECONDS_TO_GATHER", 3600)
        with pytest.raises(ModelError):
            local.run([fail()])
    [reply] = local.run([asyncio.wait_for(local.ask(question), 60)])
    assert reply.completion_tokens > 0


def test_a_local_critic_gives_the_scores_of_the_verdict_family(
    tmp_path: Path, tiny_lm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The direct format asks what the family `verdict` lays out. Tiny models split words, so the labels are letters."""
    monkeypatch.setattr("prism_prm.backends.hf.TOP", 10**6)  # unlikely labels are shown too
    monkeypatch.setattr("prism_prm.backends.critic_replies.LEAST_SHARE", 0.0)  # and read
    lm = tmp_path / "lm"
    shutil.copytree(tiny_lm("qwen2"), lm)
    (lm / "chat_template.jinja").write_text(CHATML)
    (tmp_path / "letters.toml").write_text(LETTERS)
    given = CriticSettings(format=str(tmp_path / "letters.toml"), replies=str(tmp_path / "replies"))
    prm = open_critic(f"critic:hf:{lm}", given)
    family = init_prm(lm, family="verdict", settings={"yes": "x", "no": "y"})
    found = prm.score(PROBLEM, STEPS)
    assert found == pytest.approx(family.score(PROBLEM, STEPS), abs=1e-4)
    assert np.ptp(found) > 0.01
    assert prm.ledger.tally.verdicts == {"log-probabilities": 3}
    assert prm.ledger.requests == 1 + 3
    prm.close()


SUMS = """granularity = "step"
reads = "label"
first = "{problem}{step}"
later = "{step}"
[label]
yes = "7"
no = "8"
[[stages]]
prime = "3 +"
stops = ["="]
max_tokens = 9
[[stages]]
prime = "="
max_tokens = 3
"""


def test_a_local_critic_continues_its_turn_and_stops(tmp_path: Path, memorising_policy: Path) -> None:
    """The tiny model knows the solution of 3+4-2 by heart: 3 + 4 = 7, and so on."""
    (tmp_path / "sums.toml").write_text(SUMS)
    given = CriticSettings(
        format=str(tmp_path / "sums.toml"), replies=str(tmp_path / "replies"), log_probabilities="off", temperature=0.0
    )
    prm = open_critic(f"critic:hf:{memorising_policy}", given)
    assert prm.score("3+4", ["-2"]) == pytest.approx([1], abs=1e-9)
    critique, verdict = prm.replies.by_key.values()
    assert (critique.text, critique.reason, critique.stopped_by) == (" 4 ", "stop", "=")
    assert verdict.text.strip().startswith("7")
    assert prm.ledger.requests == 2
    assert prm.count_tokens(StepTree.chain("3+4", ["-2"])) == critique.num_tokens + verdict.num_tokens
    prm.close()


def test_a_local_critic_has_the_log_probabilities_of_every_token(tmp_path: Path, memorising_policy: Path) -> None:
    """As its verdict may be behind others: 7 in 3 + 4 = 7."""
    (tmp_path / "sums.toml").write_text(SUMS)
    given = CriticSettings(format=str(tmp_path / "sums.toml"), replies=str(tmp_path / "replies"))
    prm = open_critic(f"critic:hf:{memorising_policy}", given)
    question = CriticQuestion((("user", "3+4-2"),), "3 +", "", 0.0, 1.0, 0, 6, ("7", "=="), True, "0.0")
    (reply,) = prm.backend._write([question])
    assert (reply.text, reply.stopped_by) == (" 4 = ", "7")
    assert reply.tokens is not None
    assert "".join(choice.token for choice in reply.tokens) == " 4 = 7"
    # It writes what is likeliest, and knows it by heart.
    assert [choice.top[0][0] for choice in reply.tokens] == [choice.token for choice in reply.tokens]
    assert all(choice.top[0][1] > math.log(0.5) for choice in reply.tokens)
    (other,) = prm.backend._write([replace(question, stops=("==", " = "))])
    assert (other.text, other.stopped_by, other.completion_tokens < reply.completion_tokens) == (" 4", " = ", True)
    prm.close()


def test_solutions_with_shared_steps_are_one_tree(tmp_path: Path) -> None:
    tree = StepTree(0, PROBLEM, tuple(map(Step, ["a", "b", "bad"])), (-1, 0, 0), ())
    with critic(tmp_path, lambda body: chat("No" if "bad" in said(body) else "Yes"), votes=1) as (prm, asked):
        (found,) = prm.score_trees([tree], [[2]])
        assert len(asked) == 1
        np.testing.assert_allclose(found.probability, [math.nan, math.nan, 0], atol=1e-9)
        assert found.unjudged == ()
