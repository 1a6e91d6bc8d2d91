"""Inspect's own `eval` runs our scorer and solver with its mock model, and asks our endpoint for searched answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import openai
import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from samples import PROBLEM, REFERENCE, RULES, STEPS, TEXTS, TOLERANCE, UNANSWERED, expected

from prism_prm.rl.connectors.batcher import configured_batcher
from prism_prm.rl.connectors.inspect_scorer import best_of_n, prm_scorer


@pytest.fixture(autouse=True)
def no_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock model counts tokens by a vocabulary that it would download."""
    import tiktoken

    words = type("Words", (), {"encode": lambda _, text, **__: text.split(), "encode_ordinary": lambda _, t: t.split()})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: words())
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: words())


def run(texts: list[str], folder: Path, solve: Any, prm: str, *, stop: str = "stop", samples: Any = None) -> Any:
    outputs = [ModelOutput.from_content("mockllm/model", text, stop_reason=stop) for text in texts]  # type: ignore[arg-type]
    task = Task(
        dataset=samples or [Sample(input=PROBLEM, target=REFERENCE, id=i) for i in range(len(texts))],
        solver=solve, scorer=prm_scorer(prm),
    )  # fmt: skip
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = eval(task, model=model, log_dir=str(folder), display="none", max_samples=len(texts))
    assert log.status == "success", log.error
    return log


def values(log: Any) -> list[float]:
    return [one.scores["prm_scorer"].value["prm"] for one in log.samples]


def test_a_wrong_prm_stops_the_run(tmp_path: Path, dead_server: str) -> None:
    for place, why in ((str(tmp_path / "missing"), "missing|torch"), (dead_server, "no connection")):
        with pytest.raises(Exception, match=why):
            prm_scorer(place)
        with pytest.raises(Exception, match=why):
            best_of_n(2, place)


def test_an_error_while_scoring_stops_the_run(prm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the PRM is broken")

    monkeypatch.setattr(configured_batcher({"prm": prm, "verifiable": 0.0}).reward, "judge", broken)
    with pytest.raises(AssertionError, match="the PRM is broken"):
        run([TEXTS[0]], tmp_path, generate(), prm)


def test_scores(prm: str, tmp_path: Path, scores: list[float]) -> None:
    log = run(list(TEXTS) * 6, tmp_path, generate(), prm)
    assert sorted(values(log)) == pytest.approx(sorted(scores[:4] * 6), abs=TOLERANCE)
    kept = next(one.scores["prm_scorer"] for one in log.samples if one.output.completion == TEXTS[1])
    assert kept.metadata["steps"] == list(STEPS[1])
    assert kept.metadata["probabilities"] == pytest.approx(expected()["probabilities"][1], abs=TOLERANCE)
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(sum(scores[:4]) / 4, abs=TOLERANCE)
    assert values(run([TEXTS[0]], tmp_path, generate(), prm, stop="max_tokens")) == [0.0]
    assert values(run([UNANSWERED], tmp_path, generate(), prm)) == [0.0]


def test_several_turns(prm: str, tmp_path: Path, scores: list[float]) -> None:
    @solver
    def twice() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            state = await generate(state)
            state.messages.append(ChatMessageUser(content="Go on."))
            return await generate(state)

        return solve

    turns = ["\n\n".join(STEPS[0][:2]), "\n\n".join(STEPS[0][2:])]
    before = [ChatMessageUser(content="9"), ChatMessageAssistant(content="#### 9"), ChatMessageUser(content=PROBLEM)]
    for start in (PROBLEM, before):
        log = run(turns, tmp_path, twice(), prm, samples=[Sample(input=start, target=REFERENCE)])
        assert values(log) == pytest.approx([scores[0]], abs=TOLERANCE)


def test_best_of_n(prm: str, tmp_path: Path, scores: list[float]) -> None:
    texts = [TEXTS[1], TEXTS[2], TEXTS[0], TEXTS[3]]
    one = [Sample(input=PROBLEM, target=REFERENCE)]
    log = run(texts, tmp_path, best_of_n(4, prm), prm, samples=one)
    assert log.samples[0].output.completion == TEXTS[0]
    assert values(log) == pytest.approx([max(scores[:4])], abs=TOLERANCE)
    found = [scores[TEXTS.index(text)] for text in texts]
    assert log.samples[0].metadata["prm_scores"] == pytest.approx(found, abs=TOLERANCE)


@pytest.mark.parametrize("rule", RULES)
def test_searched_answers_are_those_of_prism_search(rule: str, tmp_path: Path) -> None:
    wanted, url = expected()["searched"], f"{os.environ['PRISM_SERVER']}/v1"
    pairs = zip(wanted["problems"], wanted["answers"], strict=True)
    task = Task(
        dataset=[Sample(input=problem, target=answer) for problem, answer in pairs], solver=generate(),
        scorer=match(numeric=True),
    )  # fmt: skip
    model = get_model(f"openai-api/searched/tiny@{rule}", base_url=url, api_key="none")
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    texts = [one.output.completion for one in log.samples]
    assert [text for text, one in zip(texts, wanted[rule]["texts"], strict=True) if one] == [
        text for text in wanted[rule]["texts"] if text
    ]
    assert log.results.scores[0].metrics["accuracy"].value == wanted[rule]["accuracy"]
    assert wanted[rule]["accuracy"] > 0
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        ask: Any = {"model": f"tiny@{rule}", "messages": [{"role": "user", "content": wanted["problems"][0]}]}
        assert client.chat.completions.create(**ask).choices[0].message.content == texts[0]
        chunks = list(client.chat.completions.create(**ask, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == texts[0]
