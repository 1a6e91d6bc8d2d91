"""Searches with policies that think: behind a chat API, or with a prompt that begins the thinking."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopback import Answer, serve
from prism_prm import PrismError
from prism_prm.aggregate import CardValues
from prism_prm.backends.policy import (
    PolicySettings,
    Prompting,
    Sampling,
    StepRequest,
    Written,
    cut_at_stop,
    open_policy,
    render,
)
from prism_prm.data.pools import read_pool
from prism_prm.errors import ConfigError
from prism_prm.grading.extract import extract_answer
from prism_prm.net import RetryPolicy
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.search.engine import search_problems
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_task import search_task
from prism_prm.segments import SEGMENTERS, roles_of, split_text
from prism_prm.tree import StepTree
from tiny import qwen_tokenizer

THOUGHT = "Okay, 2 + 2.\n\nSo it is 5.\n\nWait, that is wrong. It is 4."
RESPONSE = "Two and two are 4.\n\nThe answer is \\boxed{4}."
TEXT = f"<think>\n{THOUGHT}\n</think>\n\n{RESPONSE}"


class Lengths(Scorer):
    """Scores a step by its length, and remembers what it read."""

    def __init__(self, card: CardValues) -> None:
        self.card, self.read = card, list[tuple[str, ...]]()

    def identity(self) -> str:
        return "lengths"

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,  # noqa: ARG002
        **_: Any,
    ) -> list[TreeScores]:
        self.read += [tuple(tree.texts(range(len(tree.nodes)))) for tree in trees]
        return [TreeScores(("correct",), np.array([[len(step.text) / 50] for step in tree.nodes])) for tree in trees]

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)


class Thinker:
    """Writes one text, a stop string at a time; its prompt may begin the thinking."""

    name, has_log_likelihood = "thinker", False

    def __init__(self, begun: str = "") -> None:
        self.begun = begun

    def identity(self) -> str:
        return "thinker"

    def prompt(self, problem: str) -> str:
        return f"{problem}\n{self.begun}"

    def close(self) -> None: ...

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        written = []
        for ask in asks:
            done = len(ask.text) - len("Q?\n")
            piece, stopped = cut_at_stop(TEXT[done:], sampling.stop)
            written.append(Written(piece, "stop" if stopped else "end", len(piece.split())))
        return written


@pytest.mark.parametrize("method", ["sample", "best-of-n", "beam", "dvts", "particle"])
@pytest.mark.parametrize("segmenter", [*SEGMENTERS, "thinking:8", "tokens:8"])
@pytest.mark.parametrize("begun", ["", "<think>\n"])
def test_every_method_cuts_the_text_of_a_thinking_policy(method: Any, segmenter: str, begun: str) -> None:
    prm = Lengths(CardValues(segmenter=segmenter))
    settings = SearchSettings(method=method, n=4, expand=2)
    (found,) = search_problems(Thinker(begun), prm, ["Q?"], settings)
    expected = tuple(split_text(TEXT, segmenter))
    assert {solution.steps for solution in found.solutions} == {expected}
    words = len(TEXT.split()) - len(begun.split())
    assert {solution.tokens for solution in found.solutions} == {words}, "thinking tokens count"
    assert found.solutions[0].scores == pytest.approx([1 / (1 + 2.718281828 ** -(len(s) / 50)) for s in expected])
    assert "thinking" in roles_of(expected)
    assert extract_answer("\n\n".join(expected)).answer == "4"


@pytest.mark.parametrize("method", ["best-of-n", "beam"])
def test_solutions_are_cut_by_the_card_of_the_prm(method: Any, tmp_path: Path) -> None:
    """Also independent ones, which are written without a PRM."""
    task = tmp_path / "task.jsonl"
    task.write_text('{"problem": "Q?", "answer": "4"}\n')

    def steps(segmenter: str) -> set[tuple[str, ...]]:
        recipe = SearchRecipe(
            task=str(task), n=(2,), prm=("lengths",), policy=PolicySettings("hf:fake"),
            search=SearchSettings(method, expand=2),
        )  # fmt: skip
        policy, prms = Thinker(), {"lengths": Lengths(CardValues(segmenter=segmenter))}
        out = tmp_path / segmenter
        search_task(recipe, out, prms=prms, policy=policy, judges=1)
        return {solution.steps for solution in read_pool(out / "pools" / "lengths-n2.jsonl").solutions}

    for segmenter in ("paragraph", "sentence"):
        assert steps(segmenter) == {tuple(split_text(TEXT, segmenter))}
    (tmp_path / "sentence").rename(tmp_path / "thinking")
    with pytest.raises(ConfigError, match=r"sampling\.segmenter = thinking \(was sentence\)"):
        steps("thinking")


def test_a_budget_counts_thinking_tokens() -> None:
    settings = SearchSettings(method="beam", n=2, expand=2, max_policy_tokens=6)
    (found,) = search_problems(Thinker(), Lengths(CardValues()), ["Q?"], settings)
    assert found.policy_tokens == 2 * 5
    assert not any(solution.ended for solution in found.solutions)
    assert extract_answer("\n\n".join(found.solutions[0].steps)).answer is None


def chat_answer(body: dict[str, Any]) -> Answer:
    """A server that thinks in `reasoning_content` and continues turns."""
    begun = next((turn["content"] for turn in body["messages"] if turn["role"] == "assistant"), "")
    if body.get("chat_template_kwargs", {}).get("enable_thinking") is False:
        message: dict[str, Any] = {"content": RESPONSE}
    elif not body.get("stop"):
        message = {"content": RESPONSE, "reasoning_content": THOUGHT}
    else:
        rest = TEXT[len(begun) :]
        piece = rest.split(body["stop"][0])[0]
        thought, close, content = piece.partition("\n</think>")
        in_thinking = "</think>" not in begun
        message = {"reasoning_content": thought.removeprefix("<think>\n"), "content": content} if in_thinking else {
            "content": piece
        }  # fmt: skip
        if close:
            message = {"content": f"{piece}"}  # a parser that has not seen the opening tag
        ended = piece == rest
        choice = {"message": message, "finish_reason": "stop", "stop_reason": None if ended else body["stop"][0]}
        return 200, {"choices": [choice], "usage": {"completion_tokens": len(piece.split())}}
    tokens = len(f"{message.get('reasoning_content', '')} {message['content']}".split())
    choice = {"message": message, "finish_reason": "stop"}
    return 200, {"choices": [choice], "usage": {"completion_tokens": tokens}}


@pytest.mark.parametrize(("method", "requests"), [("sample", 2), ("best-of-n", 2), ("beam", 10), ("dvts", 10)])
def test_reasoning_content_of_a_chat_server(method: Any, requests: int) -> None:
    with serve(chat_answer) as (url, asked):
        policy = open_policy(PolicySettings(f"openai:{url}", api="chat", retry=RetryPolicy(300, 1, 0.01)))
        settings = SearchSettings(method=method, n=2, expand=2)
        (found,) = search_problems(policy, Lengths(CardValues(segmenter="thinking:4")), ["Q?"], settings)
        policy.close()
    assert {solution.steps for solution in found.solutions} == {tuple(split_text(TEXT, "thinking:4"))}
    assert all(solution.ended for solution in found.solutions)
    assert len(asked) == requests
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["messages"] == [{"role": "user", "content": "Q?"}]
    if method == "beam":
        assert asked[-1]["continue_final_message"] is True
        assert asked[-1]["messages"][-1]["content"].startswith("<think>\nOkay")


def test_a_chat_server_is_told_not_to_think() -> None:
    with serve(chat_answer) as (url, asked):
        settings = PolicySettings(f"openai:{url}", api="chat", prompting=Prompting(thinking="off"))
        policy = open_policy(settings)
        (found,) = search_problems(policy, None, ["Q?"], SearchSettings(method="sample", n=1))
        policy.close()
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert found.solutions[0].steps == tuple(RESPONSE.split("\n\n"))


def test_the_switch_of_a_chat_template() -> None:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
        "<think>\n{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}"
    )
    on, off = (render("Q?", Prompting(thinking=one), tokenizer) for one in ("on", "off"))
    assert on == "[user]Q?[assistant]<think>\n" == render("Q?", Prompting(), tokenizer)
    assert off == "[user]Q?[assistant]<think>\n\n</think>\n\n"
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(PrismError, match="has no switch for thinking"):
        render("Q?", Prompting(thinking="on"), tokenizer)
