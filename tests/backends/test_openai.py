"""The policy behind a server: a real HTTP server on a loopback port that behaves, or misbehaves, as told."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from loopback import Answer, serve
from prism_prm.backends.openai import OpenAiPolicy
from prism_prm.backends.policy import (
    PolicyError,
    PolicySettings,
    Prompting,
    Sampling,
    StepRequest,
    Written,
    open_policy,
)
from prism_prm.net import RetryPolicy, ServerError
from tiny import qwen_tokenizer

QUICK = RetryPolicy(timeout=300, retries=3, backoff=0.01)


def said(text: str, reason: Any = "stop", tokens: Any = 3, **more: Any) -> Answer:
    return 200, {"choices": [{"text": text, "finish_reason": reason, **more}], "usage": {"completion_tokens": tokens}}


def write(url: str, *asks: StepRequest, sampling: Sampling | None = None, **options: Any) -> list[Written]:
    policy = OpenAiPolicy(url, model="m", retry=QUICK, **options)
    try:
        return policy.write(asks or [StepRequest("p", 7, 20)], sampling or Sampling())
    finally:
        policy.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said("a\n\nb"), Written("a\n\n", "stop", 3)),
        (said("a", "length"), Written("a", "cut", 3)),
        (said("a", "content_filter", stop_reason=None), Written("a", "cut", 3)),
        (said("a", stop_reason="\n\n"), Written("a\n\n", "stop", 3)),
        (said("a", stop_reason=None), Written("a", "end", 3)),
        (said("a", stop_reason=151645), Written("a", "end", 3)),
        (said("a", matched_stop="\n\n"), Written("a\n\n", "stop", 3)),
        (said("a", matched_stop=2), Written("a", "end", 3)),
    ],
)
def test_how_a_step_ended(answer: Answer, expected: Written) -> None:
    with serve(lambda _: answer) as (url, asked):
        assert write(url) == [expected]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("next_token", "expected"), [("", Written("a", "end", 4)), ("\n", Written("a\n\n", "stop", 4))]
)
def test_one_finish_reason_for_both_is_told_apart_by_asking(next_token: str, expected: Written) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return said(next_token, tokens=1) if body["prompt"] == "pa" else said("a")

    with serve(answer) as (url, asked):
        assert write(url) == [expected]
    assert asked[1] | {"authorization": None} == {
        "model": "m", "prompt": "pa", "max_tokens": 1, "temperature": 0.0, "authorization": None,
        "path": "/v1/completions",
    }  # fmt: skip


@pytest.mark.parametrize(("reason", "ending"), [("stop", "end"), ("length", "cut"), ("content_filter", "cut")])
def test_a_whole_solution_is_one_request_without_a_stop_string(reason: str, ending: str) -> None:
    with serve(lambda _: said("a\n\nb", reason)) as (url, asked):
        assert write(url, StepRequest("p", 7, 20, whole=True)) == [Written("a\n\nb", ending, 3)]  # type: ignore[arg-type]
    assert len(asked) == 1
    assert "stop" not in asked[0]


def test_a_stop_string_may_begin_in_the_prompt() -> None:
    """transformers stops at a line break that makes a blank line together with the prompt's last one."""
    with serve(lambda _: said("\n", tokens=1)) as (url, asked):
        assert write(url, StepRequest("assistant\n", 0, 9)) == [Written("\n", "stop", 1)]
    assert len(asked) == 1


def test_a_stop_string_that_began_in_the_prompt_shows_nothing_about_later_ones() -> None:
    """The server takes stop strings off: after a single line break its next steps are still told from the end."""

    def answer(body: dict[str, Any]) -> Answer:
        return said("\n" if body["prompt"].endswith("assistant\n") else "b", tokens=1)

    with serve(answer) as (url, asked):
        policy = OpenAiPolicy(url, model="m", retry=QUICK)
        assert policy.write([StepRequest("assistant\n", 0, 9)], Sampling()) == [Written("\n", "stop", 1)]
        assert policy.write([StepRequest("assistant\n\n", 0, 9)], Sampling()) == [Written("b\n\n", "stop", 2)]
        policy.close()
    assert len(asked) == 3


def test_a_server_that_leaves_the_stop_string_is_believed() -> None:
    with serve(lambda body: said("a\n\n" if body["prompt"] == "p" else "b")) as (url, asked):
        policy = OpenAiPolicy(url, model="m", retry=QUICK)
        assert policy.write([StepRequest("p", 0, 9)], Sampling())[0].ending == "stop"
        assert policy.write([StepRequest("q", 0, 9)], Sampling()) == [Written("b", "end", 3)]
        policy.close()
    assert len(asked) == 2


def test_it_does_not_matter_which_answer_comes_first() -> None:
    """The answer that shows that stop strings are left comes last, and still nothing is asked twice."""
    soon = threading.Event()

    def answer(body: dict[str, Any]) -> Answer:
        if body["prompt"] == "late":
            assert soon.wait(300)
            return said("a\n\n")
        soon.set()
        return said("#### 2")

    with serve(answer) as (url, asked):
        found = write(url, StepRequest("soon", 1, 9), StepRequest("late", 2, 9))
    assert found == [Written("#### 2", "end", 3), Written("a\n\n", "stop", 3)]
    assert len(asked) == 2


def test_requests_say_what_was_asked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    sampling = Sampling(temperature=0.5, top_p=0.9, stop="\n")
    with serve(lambda _: said("a\n")) as (url, asked):
        write(
            url, StepRequest("p", 2**40 + 5, 17), StepRequest("p", 9, 3, greedy=True), sampling=sampling, concurrency=1
        )
    assert asked[0] == {
        "model": "m", "prompt": "p", "max_tokens": 17, "temperature": 0.5, "top_p": 0.9, "stop": ["\n"],
        "seed": (2**40 + 5) % (2**31 - 1), "authorization": "Bearer sk-very-secret", "path": "/v1/completions",
    }  # fmt: skip
    assert asked[1]["temperature"] == 0.0
    assert "seed" not in asked[1]
    assert "secret" not in caplog.text


def test_the_key_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with serve(lambda _: (401, {"error": "no"})) as (url, _), pytest.raises(ServerError) as caught:
        write(url.replace("http://", "http://user:secret-too@"))
    assert "secret" not in str(caught.value)
    assert "$OPENAI_API_KEY" in str(caught.value)


def test_log_likelihoods_come_from_the_server_or_are_missed() -> None:
    with serve(lambda _: said("a\n\n", logprobs={"token_logprobs": [None, -1.5, -0.25]})) as (url, asked):
        assert write(url, log_likelihood=True)[0].log_likelihood == -1.75
    assert asked[0]["logprobs"] == 1
    llama_cpp = {"content": [{"token": "a", "logprob": -1.5}, {"token": "\n\n", "logprob": -0.25}]}
    with serve(lambda _: said("a\n\n", logprobs=llama_cpp)) as (url, _):
        assert write(url, log_likelihood=True)[0].log_likelihood == -1.75
    with (
        serve(lambda _: said("a\n\n", logprobs=None)) as (url, _),
        pytest.raises(PolicyError, match="--set prm_weight=1"),
    ):
        write(url, log_likelihood=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (said("a", "abort", stop_reason=None), "incomplete: finish_reason is 'abort'"),
        (said("a", None), "incomplete: finish_reason is None"),
        (said("a", ["stop"]), r"incomplete: finish_reason is \['stop'\]"),
        ((200, {"choices": [{"text": "a"}]}), "incomplete: finish_reason is None"),
        (said("a", tokens=-3), "claims to have -3 tokens"),
        (said("a", tokens=10**30), "claims to have 10+ tokens"),
        (said("a", logprobs={"token_logprobs": [-1.0, "much"]}), "log-probability much is not a finite number"),
        (said("a", logprobs={"token_logprobs": [float("nan")]}), "log-probability nan is not a finite number"),
        (said("a", logprobs={"token_logprobs": [True]}), "log-probability True is not a finite number"),
        (said("a", logprobs={"token_logprobs": "none"}), "log-probability none is not a finite number"),
        (said("a", logprobs={"content": [{"logprob": "much"}]}), "log-probability much is not a finite number"),
        (said("a", logprobs={"content": [{"token": "a"}]}), "log-probability {'token': 'a'} is not a finite number"),
    ],
)
def test_an_answer_that_makes_no_sense_is_asked_for_again(wrong: Answer, message: str) -> None:
    answers = [wrong, said("a\n\n", logprobs={"token_logprobs": [-1.5]})]
    with serve(lambda _: answers.pop(0)) as (url, asked):
        assert write(url, log_likelihood=True) == [Written("a\n\n", "stop", 3, -1.5)]
    assert len(asked) == 2
    with serve(lambda _: wrong) as (url, asked), pytest.raises(ServerError, match=rf"{message}.*\(4 tries\)"):
        write(url, log_likelihood=True)
    assert len(asked) == 4


def test_more_than_was_asked_for() -> None:
    """Further choices are left; log-probabilities that nobody asked for are not looked at."""
    answer = said("a\n\n", logprobs={"token_logprobs": "none"})
    answer[1]["choices"].append({"text": "b", "finish_reason": "stop"})
    with serve(lambda _: answer) as (url, _):
        assert write(url) == [Written("a\n\n", "stop", 3)]


def test_half_a_character_can_be_sent_back() -> None:
    """JSON can hold a lone surrogate, which is no text that could be sent or written."""
    with serve(lambda body: said("" if body["prompt"].endswith("b") else "a\ud83d b")) as (url, asked):
        assert write(url) == [Written("a\N{REPLACEMENT CHARACTER} b", "end", 6)]
    assert asked[1]["prompt"] == "pa\N{REPLACEMENT CHARACTER} b"


@pytest.mark.parametrize("models", [{}, {"data": [1]}, {"data": [{"name": "x"}]}, {"data": {"id": "x"}}])
def test_a_server_that_names_its_models_strangely(models: Any) -> None:
    with serve(lambda _: said("a"), models) as (url, _), pytest.raises(ServerError, match="not a list of models"):
        open_policy(PolicySettings(f"openai:{url}", retry=QUICK))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    answers = [(status, {"error": "busy"}), (status, b"<html>busy</html>", {"Retry-After": "0.3"}), said("a\n\n")]
    with serve(lambda _: answers.pop(0)) as (url, asked):
        started = time.monotonic()
        assert write(url) == [Written("a\n\n", "stop", 3)]
    assert time.monotonic() - started >= 0.3, "Retry-After is kept"
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((500, {"error": "boom"}), r"status 500: .*boom.*\(4 tries\).*run the same command"),
        ((200, b"<html>hello</html>"), r"not a JSON object: '<html>hello</html>' \(4 tries\)"),
        ((200, [1, 2]), "not a JSON object"),
        ((200, {"choices": []}), r"no choices\[0\].text; .*Its fields: \['choices'\] \(4 tries\)"),
        ((200, {"choices": [{"text": None}]}), r"no choices\[0\].text"),
        ((422, {"detail": "Unexpected field"}), "status 422: .*Unexpected field"),
    ],
)
def test_a_broken_server_gives_a_plain_error(answer: Answer, message: str) -> None:
    with serve(lambda _: answer) as (url, asked), pytest.raises(ServerError, match=message):
        write(url)
    assert len(asked) == (1 if answer[0] == 422 else 4)


def test_a_hanging_server_times_out() -> None:
    over, retry = threading.Event(), RetryPolicy(timeout=0.4, retries=3, backoff=0.01)
    with serve(lambda _: (over.wait(300), said("a"))[1]) as (url, _):
        policy = OpenAiPolicy(url, model="m", retry=retry)
        with pytest.raises(ServerError, match=r"no answer within 0.4 seconds \(4 tries\)"):
            policy.write([StepRequest("p", 0, 9)], Sampling())
        policy.close()
        over.set()


def test_a_hanging_request_does_not_hold_up_an_error() -> None:
    over = threading.Event()

    def answer(body: dict[str, Any]) -> Answer:
        return (422, "no") if body["prompt"] == "bad" else (over.wait(300), said("a"))[1]

    with serve(answer) as (url, _):
        policy = OpenAiPolicy(url, model="m", retry=RetryPolicy(timeout=300))
        with pytest.raises(ServerError, match="status 422"):
            policy.write([StepRequest("hangs", 0, 9), StepRequest("bad", 0, 9), StepRequest("hangs", 1, 9)], Sampling())
        policy.close()
        assert not over.is_set(), "the hanging requests are still unanswered"
        over.set()


def test_it_works_inside_a_running_loop() -> None:
    """As in a notebook."""

    async def cell(url: str) -> list[Written]:
        return write(url)

    with serve(lambda _: said("a\n\n")) as (url, _):
        assert asyncio.run(cell(url)) == [Written("a\n\n", "stop", 3)]


def test_no_server_at_all() -> None:
    with serve(lambda _: said("a")) as (url, _):
        pass
    with pytest.raises(ServerError, match=r"no connection .*\(4 tries\)"):
        write(url)


def test_requests_run_together_within_the_limit() -> None:
    """None of six is answered before all six have come; with a smaller limit they would wait for good."""
    running, most, lock, together = [0], [0], threading.Lock(), threading.Barrier(6)

    def answer(body: dict[str, Any]) -> Answer:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(300)
        with lock:
            running[0] -= 1
        return said(body["prompt"] + "\n\n")

    with serve(answer) as (url, _):
        found = write(url, *(StepRequest(f"p{i}", i, 9) for i in range(24)), concurrency=6)
    assert [one.text for one in found] == [f"p{i}\n\n" for i in range(24)], "answers come in the order asked"
    assert most[0] == 6


def test_open_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serve(lambda _: said("a\n\n")) as (url, asked):
        policy = open_policy(PolicySettings(f"openai:{url}", Prompting(template="none"), retry=QUICK))
        assert policy.prompt("1 + 1?") == "1 + 1?\n\n"
        policy.write([StepRequest("p", 0, 4)], Sampling())
        policy.close()
        assert asked[0]["model"] == "only-one"
        assert asked[0]["authorization"] is None
        with pytest.raises(PolicyError, match="-P tokenizer="):
            open_policy(PolicySettings(f"openai:{url}", retry=QUICK))
    for wrong in ("gpt", "hf:", "vllm:x"):
        with pytest.raises(Exception, match="is not a policy"):
            open_policy(wrong)


def test_the_identity_is_what_decides_texts() -> None:
    def identity(place: str, template: str | None = "{{ messages[-1].content }}", **options: Any) -> str:
        tokenizer = qwen_tokenizer()
        tokenizer.chat_template = template
        policy = OpenAiPolicy(place, tokenizer=tokenizer, **({"model": "m"} | options))
        policy.close()
        return policy.identity()

    here, there = "http://127.0.0.1:8000/v1", "http://127.0.0.1:8001/v1"
    assert identity(here) == identity(here) == identity(f"{here}/")
    others = [
        identity(there), identity(here, "{{ messages[0].content }}!"), identity(here, None), identity(here, model="n"),
        identity(here, prompting=Prompting(system="Be brief.")),
    ]  # fmt: skip
    assert len({identity(here), *others}) == 6
