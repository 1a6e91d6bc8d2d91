"""Servers that hang, refuse, cut and contradict themselves: scores and counts are as designed, nothing is silent."""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import OTHER, PROBLEM, STEPS, VLLM, chat, critic, said

from loopback import Answer, serve
from prism_prm.backends.critic import BudgetError, CriticError
from prism_prm.backends.critic_format import FORMATS
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.open_critic import open_critic
from prism_prm.errors import PrismError
from prism_prm.net import RetryPolicy, ServerError
from prism_prm.tree import StepTree
from waiting import until

GOOD = {
    "direct": "Yes",
    "thinkprm": "yes",
    "genprm": "{Yes}",
    "processbench": "\\boxed{-1}",
    "prmbench": '{"validity": [1, 1], "redundancy": [-1, -1]}',
}
"""A reply of each format that calls both steps right, whatever it is asked for."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come at once."""
    monkeypatch.setattr("prism_prm.net.LONGEST_WAIT", 0.02)


def _hang_up() -> Answer:
    raise ConnectionError("its end closes the connection")


TROUBLES: dict[str, Callable[[], Answer]] = {
    "hangs up": _hang_up,
    "is busy": lambda: (429, {"error": "slow down"}, {"Retry-After": "0.02"}),
    "is broken": lambda: (500, {"error": "oh"}),
    "cuts the JSON": lambda: (200, b'{"choices": [{"message": {"content": "Y'),
    "has no choices": lambda: (200, {"choices": []}),
    "has a choice without a text": lambda: (200, {"choices": [{"finish_reason": "stop", "message": {}}]}),
    "has no finish reason": lambda: chat("Yes", reason=None),
    "counts nonsense": lambda: (200, {**chat("Yes")[1], "usage": {"prompt_tokens": -1, "completion_tokens": 1}}),
}


@pytest.mark.parametrize("format", FORMATS)
def test_every_trouble_is_retried_and_counted(tmp_path: Path, format: str) -> None:
    left = iter(TROUBLES.values())
    lock = threading.Lock()

    def answer(_: dict[str, Any]) -> Answer:
        with lock:
            trouble = next(left, None)
        return chat(GOOD[format]) if trouble is None else trouble()

    how = {"format": format, "votes": 1, "retries": len(TROUBLES), "concurrency": 1}
    with critic(tmp_path, answer, models=VLLM, **how) as (prm, _):
        assert prm.score(PROBLEM, STEPS[:2]) == pytest.approx([1, 1], abs=1e-9)
        assert prm.backend.num_retries == len(TROUBLES)
        assert f"{len(TROUBLES)} requests were retried" in prm.notes()[-1]
        assert prm.ledger.tally.missing == {}


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    over = threading.Event()
    with critic(tmp_path, lambda _: (over.wait(300), chat("late"))[1], votes=1, concurrency=1) as (prm, asked):
        prm.backend.server.retry = RetryPolicy(timeout=0.25, retries=1, backoff=0.0)
        with pytest.raises(ServerError, match=r"no answer within 0.25 seconds \(2 tries\)"):
            prm.score(PROBLEM, STEPS[:1])
        over.set()
        until(lambda: len(asked) == 2)


def test_a_server_that_stays_broken_is_an_error_and_what_came_before_is_kept(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("Yes") if "Step 2" not in said(body) else (500, {"error": "oh"})

    with critic(tmp_path, answer, votes=1, retries=1, concurrency=1) as (prm, _):
        with pytest.raises(ServerError, match="status 500"):
            prm.score(PROBLEM, STEPS)
        assert prm.ledger.requests == 2, "the probe and the first step"
    with critic(tmp_path, lambda _: chat("No"), votes=1, concurrency=1) as (prm, asked):
        assert prm.score(PROBLEM, STEPS) == pytest.approx([1, 0, 0], abs=1e-9)
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("status", "said_by_server"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens"),
        (400, "request (3022 tokens) exceeds the available context size (1024 tokens), try increasing it"),
        (413, "Payload Too Large"),
    ],
)
def test_a_question_that_is_too_long_is_a_missing_verdict(tmp_path: Path, status: int, said_by_server: str) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return (status, {"error": {"message": said_by_server}}) if "Step 2" in said(body) else chat("Yes")

    how = {"votes": 1, "redraws": 2, "concurrency": 1}
    with (
        critic(tmp_path, answer, **how) as (prm, _),
        pytest.raises(ServerError, match=rf"status {status}: .*{said_by_server[-12:]}(.|\n)*-C on_missing=skip"),
    ):
        prm.score(PROBLEM, STEPS)
    with critic(tmp_path, answer, on_missing="skip", **how) as (prm, asked):
        np.testing.assert_allclose(prm.score(PROBLEM, STEPS), [1, math.nan, 1], atol=1e-9)
        assert prm.ledger.tally.missing == {"too-long": 1}
        assert prm.ledger.tally.redrawn == 0, "it would be as long again"
        assert len(asked) == 2, "the first step's reply is kept"


def test_another_rejection_stays_an_error(tmp_path: Path) -> None:
    answer = (400, {"error": "stop: array too long. Expected an array with maximum length 4"})
    with critic(tmp_path, lambda _: answer, votes=1, on_missing="skip") as (prm, _):  # noqa: SIM117
        with pytest.raises(ServerError, match=r"status 400: .*array too long"):
            prm.score(PROBLEM, STEPS)


# --- verdicts that are missing ---

MISSING: list[tuple[str, Answer, str]] = [
    ("direct", chat("Maybe"), "no-verdict"),
    ("direct", chat("Yes or No?"), "two-verdicts"),
    ("direct", chat(""), "empty"),
    ("direct", chat("I think that", reason="length"), "cut-off"),
    ("direct", chat(None, refusal="I cannot judge that."), "refusal"),
    ("direct", chat("Yes", reason="content_filter"), "refusal"),
    ("thinkprm", chat("hm"), "no-verdict"),
    ("genprm", chat("{Perhaps}"), "no-verdict"),
    ("genprm", chat("{Yes", reason="length"), "cut-off"),
    ("processbench", chat("All is well."), "no-verdict"),
    ("processbench", chat("\\boxed{step 1}"), "no-verdict"),
    ("processbench", chat("\\boxed{2}"), "out-of-range"),
    ("processbench", chat("\\boxed{-2}"), "out-of-range"),
    ("processbench", chat("First,", reason="length"), "cut-off"),
    ("processbench", chat("Paragraph 1 concludes \\boxed{1}. Let me", reason="length"), "cut-off"),
    ("processbench", chat("\\boxed{-1}, or rather \\boxed{\\text{the first}}"), "no-verdict"),
    ("processbench", chat("\\boxed{-1}, or rather \\boxed{0"), "no-verdict"),
    ("genprm", chat("{Yes}, or rather \\boxed{Incorrect}"), "no-verdict"),
    ("genprm", chat("{Yes}$ Let me check that", reason="length"), "cut-off"),
    ("prmbench", chat('{"validity": [1, 1], "redundancy": [-1'), "bad-json"),
    ("prmbench", chat('{"validity": [1, 1], "redundancy": [-1', reason="length"), "cut-off"),
    ("prmbench", chat('{"validity": [1, 1]}'), "bad-json"),
    ("prmbench", chat('{"validity": [1, true], "redundancy": [0, 0]}'), "bad-json"),
    ("prmbench", chat('{"validity": "1, 1", "redundancy": [0, 0]}'), "bad-json"),
    ("prmbench", chat('{"validity": [1], "redundancy": [0, 0]}'), "wrong-length"),
    ("prmbench", chat('{"validity": [1, 1, 1], "redundancy": [0, 0, 0]}'), "wrong-length"),
    ("prmbench", chat('{"validity": [1, 7], "redundancy": [0, 0]}'), "out-of-range"),
    ("prmbench", chat('{"validity": [1, NaN], "redundancy": [0, 0]}'), "out-of-range"),
    ("prmbench", chat('{"steps": 2} {"validity": [1, 1], "redundancy": [0, 0]}'), "bad-json"),
    ("prmbench", chat('{"validity": [1, 1], "redundancy": [0, 0], "why": "see //"}'), "bad-json"),
    ("prmbench", chat("I am sorry.", refusal="no"), "refusal"),
]


@pytest.mark.parametrize(("format", "answer", "kind"), MISSING)
def test_a_missing_verdict_is_counted_by_kind_and_never_guessed(
    tmp_path: Path, format: str, answer: Answer, kind: str
) -> None:
    how = {"format": format, "votes": 1, "redraws": 0, "models": VLLM}
    with critic(tmp_path, lambda _: answer, on_missing="skip", **how) as (prm, _):
        (found,) = prm.score_trees([StepTree.chain(PROBLEM, STEPS[:2])])
        assert all(map(math.isnan, found.probability))
        assert found.unjudged == (0, 1)
        assert prm.ledger.tally.missing == {kind: 1 if prm.reads_whole_solutions else 2}
        assert f"without a verdict after all redraws: {kind}: " in "\n".join(prm.notes())
    # The replies are kept, so that nothing is asked again.
    with critic(tmp_path, lambda _: answer, on_missing="wrong", **how) as (prm, asked):
        (found,) = prm.score_trees([StepTree.chain(PROBLEM, STEPS[:2])])
        assert found.probability[0] == pytest.approx(0, abs=1e-9)
        assert asked == []
    with critic(tmp_path, lambda _: answer, on_missing="error", **how) as (prm, asked):
        with pytest.raises(CriticError, match=rf"step \d: an answer has no verdict \({kind}; redrawn 0 times"):
            prm.score(PROBLEM, STEPS[:2])
        assert asked == []


@pytest.mark.parametrize(
    "reply",
    [
        '{"validity": [1, // sure\n -1], # not\n "redundancy": [0, 0]}',
        '{"validity": [1, -1], "redundancy": [0, 0]} or {"validity": [1, 1], "redundancy": [0, 0]}',
        'In \\frac{1}{2} of cases:\n```json\n{"validity": [1, -1], "redundancy": [0, 0]}\n```',
    ],
    ids=["comments", "the first of two", "other braces before it"],
)
def test_replies_are_read_as_prmbench_reads_them(tmp_path: Path, reply: str) -> None:
    with critic(tmp_path, lambda _: chat(reply), format="prmbench", models=VLLM) as (prm, _):
        (found,) = prm.score_trees([StepTree.chain(PROBLEM, STEPS[:2])])
    assert found.probability == pytest.approx([1, 0], abs=1e-9)
    assert found.named("redundancy") == pytest.approx([0.5, 0.5])


def test_an_answer_without_a_verdict_is_drawn_again(tmp_path: Path) -> None:
    replies = iter(["Maybe", "Perhaps", "No", "Yes"])
    with critic(tmp_path, lambda _: chat(next(replies)), votes=2, concurrency=1) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0.5])
        assert prm.ledger.tally.redrawn == 2
        assert prm.ledger.tally.missing == {}
    assert len({body["seed"] for body in asked}) == 4


def test_a_missing_vote_is_left_out_or_counts_as_wrong(tmp_path: Path) -> None:
    def run(folder: str, on_missing: str) -> list[float]:
        replies = iter(["Yes", "Yes", "Maybe", "No"])
        how = {"votes": 4, "redraws": 0, "on_missing": on_missing, "concurrency": 1}
        with critic(tmp_path / folder, lambda _: chat(next(replies)), **how) as (prm, _):
            return prm.score(PROBLEM, STEPS[:1])

    assert run("skip", "skip") == pytest.approx([2 / 3])
    assert run("wrong", "wrong") == pytest.approx([2 / 4])
    with pytest.raises(CriticError, match="-C on_missing=wrong"):
        run("error", "error")


def test_labels_that_are_not_among_the_log_probabilities_are_missing(tmp_path: Path) -> None:
    answer = chat("Well", top=[{"Well": 0.9, "So": 0.1}])
    with critic(tmp_path, lambda _: answer, top=True, on_missing="skip") as (prm, _):
        assert math.isnan(prm.score(PROBLEM, STEPS[:1])[0])
        assert prm.ledger.tally.missing == {"no-verdict": 1}


@pytest.mark.parametrize(
    ("text", "shares", "expected"),
    [
        ("<think>", {"<think>": 0.999, "Yes": 1e-9}, None),
        ("The", {"The": 0.98, "Yes": 1e-4, "a": 1e-5}, None),
        ("Yes", {"Yes": 0.04, "The": 0.9, "No": 0.01}, 0.8),  # drawn although it was not likely
        ("The", {"The": 0.9, "Yes": 0.04, "No": 0.02}, 2 / 3),
        ("So", {"So": 0.8, "Yes": 0.1}, None),  # No may be as likely as Yes
        ("Yes", {"Yes": 0.6, "N": 0.3, "So": 0.01}, None),  # No may be in two tokens
    ],
)
def test_log_probabilities_are_read_only_where_a_verdict_is(
    tmp_path: Path, text: str, shares: dict[str, float], expected: float | None
) -> None:
    answer = chat(text, top=[shares])
    with critic(tmp_path, lambda _: answer, top=True, on_missing="skip") as (prm, _):
        (found,) = prm.score(PROBLEM, STEPS[:1])
        assert math.isnan(found) if expected is None else found == pytest.approx(expected)
        assert prm.ledger.tally.missing == ({"no-verdict": 1} if expected is None else {})


def test_labels_of_several_tokens_are_voted_on(tmp_path: Path) -> None:
    """The beginning of one may be likely where the other is whole: `in` of `incorrect`."""
    (tmp_path / "mine.toml").write_text(
        'granularity = "prefix"\nreads = "label"\nuser = "{problem}{solution}"\n'
        '[label]\nyes = "correct"\nno = "incorrect"'
    )
    given = CriticSettings(format=str(tmp_path / "mine.toml"), replies=str(tmp_path / "replies"))
    answer = chat("incorrect", top=[{"in": 0.5, "correct": 0.4, "a": 0.01}, {"correct": 0.9, "a": 0.1}])
    with (
        serve(lambda _: answer, models=OTHER) as (url, asked),
        closing(open_critic(f"critic:openai:{url}", given)) as prm,
    ):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0], abs=1e-9)
        assert prm.ledger.tally.verdicts == {"votes": 1}
        assert "verdicts from what it writes" in prm.notes()[0]
    assert said(asked[0]) == "Answer with the word incorrect."


def test_a_critique_that_is_cut_off_goes_on_to_its_verdict_and_is_noted(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("yes") if said(body).endswith("correct? ") else chat("First, …", reason="length")

    with critic(tmp_path, answer, models=VLLM, format="thinkprm", votes=1) as (prm, _):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([1], abs=1e-9)
        assert prm.ledger.tally.notes == {"critiques cut off at the limit of tokens": 1}


# --- what it costs ---


def test_asking_twice_costs_nothing(tmp_path: Path) -> None:
    with critic(tmp_path, lambda _: chat("Yes"), price_prompt=1e6, price_completion=2e6) as (prm, asked):
        first = prm.score_many([(PROBLEM, STEPS), (PROBLEM, STEPS), (PROBLEM, STEPS[:2])])
        assert len(asked) == 3 * 4, "equal questions are asked once, each step by four votes"
        ledger = prm.ledger
        assert (ledger.requests, ledger.prompt_tokens, ledger.completion_tokens) == (13, 130, 65)
        assert ledger.cost == 130 + 2 * 65
        assert prm.count_tokens(StepTree.chain(PROBLEM, STEPS)) == 12 * 15
    with critic(tmp_path, lambda _: chat("No")) as (prm, asked):
        assert prm.score_many([(PROBLEM, STEPS), (PROBLEM, STEPS), (PROBLEM, STEPS[:2])]) == first
        assert asked == []
        assert (prm.ledger.requests, prm.ledger.reused) == (1, 12 + 12 + 8), "the probe alone"
    lines = [json.loads(line) for line in (tmp_path / "replies" / "ledger-000.jsonl").read_text().splitlines()]
    assert [(line["requests"], line["prompt_tokens"], line["cost"]) for line in lines] == [
        (1, 10, 20.0),
        (12, 120, 240.0),
        (1, 10, 0.0),
    ]


def test_the_ledger_is_written_while_the_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed has charged nearly all that it has spent."""
    monkeypatch.setattr("prism_prm.backends.critic.CHARGED_TOGETHER", 2)
    with critic(tmp_path, lambda _: chat("Yes"), votes=1, concurrency=1) as (prm, _):
        prm.score(PROBLEM, STEPS)
    lines = (tmp_path / "replies" / "ledger-000.jsonl").read_text().splitlines()
    assert [json.loads(line)["requests"] for line in lines] == [1, 2, 1], "the probe, two steps, and the last one"


@pytest.mark.parametrize("change", [{"votes": 5}, {"temperature": 0.9}, {"format": "processbench"}, {"model": "n"}])
def test_another_question_is_asked(tmp_path: Path, change: dict[str, Any]) -> None:
    reply = chat("Yes \\boxed{-1}")
    with critic(tmp_path, lambda _: reply, votes=4) as (prm, _):
        before = prm.identity()
        prm.score(PROBLEM, STEPS[:1])
    with critic(tmp_path, lambda _: reply, **{"votes": 4, **change}) as (prm, asked):
        prm.score(PROBLEM, STEPS[:1])
        assert prm.identity() != before
        assert len(asked) == (1 if "votes" in change else 4)


def test_the_same_name_on_another_server_is_another_model(tmp_path: Path) -> None:
    """What one server can do is not what another can, and a file behind a name may have been replaced."""
    answer = chat("No", top=[{"Yes": 0.8, "No": 0.2}])
    with critic(tmp_path, lambda _: chat("No"), votes=1) as (prm, _):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0], abs=1e-9)
    with critic(tmp_path, lambda _: answer, votes=1, models=VLLM, top=True) as (prm, _):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0.8])
    with critic(tmp_path, lambda _: chat("No"), votes=1, models=VLLM) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0], abs=1e-9)
        assert len(asked) == 1
    served = [
        {"data": [{"id": "m", "owned_by": "vllm", **more}]}
        for more in (
            {"root": "a"}, {"root": "b"}, {"meta": {"size": 1, "n_ctx": 5}}, {"meta": {"size": 1, "n_ctx": 6}},
            {"meta": {"size": 2}}, {"created": 7}, {},
        )
    ]  # fmt: skip
    found = []
    for models in served:
        with critic(tmp_path, lambda _: answer, models=models) as (prm, _):
            found.append(prm.identity())
    assert (len(set(found)), found[2] == found[3], found[5] == found[6]) == (5, True, True)


def test_a_budget_stops_cleanly_and_the_next_run_resumes(tmp_path: Path) -> None:
    solutions = [(f"{i} + 1?", ["a", "b"]) for i in range(6)]
    how = {"votes": 1, "temperature": 0.0, "concurrency": 2, "budget_tokens": 60}
    asked_in_all, scores, refused = 0, None, list[str]()
    while scores is None:  # three runs, or four if one stops with a request in flight
        with critic(tmp_path, lambda _: chat("Yes"), **how) as (prm, asked):
            try:
                scores = prm.score_many(solutions)
            except BudgetError as error:
                refused.append(str(error))
            assert prm.ledger.tokens <= 60 + 2 * 15, "at most what was in flight is spent beyond it"
            asked_in_all += len(asked)
    assert scores == [pytest.approx([1, 1], abs=1e-9)] * 6
    assert len(refused) in (2, 3)
    assert all(
        re.match(r"the token budget is spent .*budget_tokens=60.* rerun the same command to resume", one)
        for one in refused
    )
    assert asked_in_all == 12, "nothing was asked twice"


def test_tokens_that_a_server_does_not_count_are_estimated_and_said_so(tmp_path: Path) -> None:
    with critic(tmp_path, lambda _: chat("Yes", usage=False), votes=1) as (prm, _):
        prm.score(PROBLEM, STEPS[:1])
        assert prm.ledger.estimated == 1
        assert "(those of 1 requests are estimated)" in "\n".join(prm.notes())


def test_the_key_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    with critic(tmp_path, lambda _: chat("Yes"), votes=1) as (prm, asked):
        prm.score(PROBLEM, STEPS)
        said_aloud = [prm.identity(), json.dumps(prm.summary()), *prm.notes(), repr(prm.settings)]
    assert asked[0]["authorization"] == "Bearer sk-very-secret"
    with critic(tmp_path / "b", lambda _: (401, {"error": "no"}), votes=1) as (prm, _):  # noqa: SIM117
        with pytest.raises(PrismError) as caught:
            prm.score(PROBLEM, STEPS)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert not [text for text in [*written, *said_aloud, str(caught.value), caplog.text] if "secret" in text]


def test_replies_that_are_cut_or_strange(tmp_path: Path) -> None:
    with critic(tmp_path, lambda _: chat("Yes"), votes=1) as (prm, _):
        prm.score(PROBLEM, STEPS[:1])
    file = tmp_path / "replies" / "replies-000.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    with critic(tmp_path, lambda _: chat("No"), votes=1) as (prm, asked):  # what was cut off is asked again
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0], abs=1e-9)
        assert len(asked) == 1
    file.write_text('{"key": "x"}\n')
    with (
        pytest.raises(PrismError, match=r"replies-000\.jsonl: not a file of replies"),
        critic(tmp_path, lambda _: chat("No")),
    ):
        pass


def test_two_processes_keep_their_replies_side_by_side(tmp_path: Path) -> None:
    with critic(tmp_path, lambda _: chat("Yes"), votes=1) as (one, _):
        one.score(PROBLEM, STEPS[:1])
        with critic(tmp_path, lambda _: chat("Yes"), votes=1) as (other, asked):
            other.score(PROBLEM, STEPS[:2])
            assert len(asked) == 1
    assert [path.name for path in sorted((tmp_path / "replies").glob("replies*"))] == [
        "replies-000.jsonl", "replies-001.jsonl",
    ]  # fmt: skip


# --- in a search ---


def test_a_session_asks_about_new_steps_alone(tmp_path: Path) -> None:
    with critic(tmp_path, lambda body: chat("No" if "15" in said(body) else "Yes"), votes=1) as (prm, asked):
        session = prm.session([PROBLEM])
        (root,) = session.roots
        first, same, other = session.extend([(root, STEPS[0]), (root, STEPS[0]), (root, "2 + 3 = 15")])
        assert first is same
        assert (first.probability, other.probability) == pytest.approx((1, 0), abs=1e-9)
        assert (root.depth, root.num_tokens, first.depth, first.num_tokens) == (-1, 0, 0, 15)
        (second,) = session.extend([(first, STEPS[1])])
        assert second.probability == pytest.approx(0, abs=1e-9)
        assert second.depth == 1
        session.keep([second])
        session.drop([second])
        session.close()
        assert len(asked) == 3
        assert [turn["content"] for turn in asked[-1]["messages"]][1] == "Yes"
        assert not prm.can_score("  ", 0)


def test_a_session_of_critiques_counts_each_answer_once(tmp_path: Path) -> None:
    """A later step is asked about after the critiques of earlier ones, which are not asked for or counted again."""
    with critic(tmp_path, lambda _: chat("{Yes}"), models=VLLM, format="genprm") as (prm, asked):
        session = prm.session([PROBLEM])
        (first,) = session.extend([(session.roots[0], STEPS[0])])
        (second,) = session.extend([(first, STEPS[1])])
        (third,) = session.extend([(second, STEPS[2])])
        assert [step.num_tokens for step in (first, second, third)] == [30, 30, 30], "two requests each"
        assert len(asked) == 6
        assert prm.ledger.tally.verdicts == {"votes": 3}
        assert prm.count_tokens(StepTree.chain(PROBLEM, STEPS)) == 90


def test_a_server_with_several_models_needs_a_choice(tmp_path: Path) -> None:
    two = {"data": [{"id": "a"}, {"id": "b", "owned_by": "vllm"}]}
    with (
        pytest.raises(PrismError, match="serves a, b; choose one with -C model="),
        critic(tmp_path, lambda _: chat("Yes"), models=two),
    ):
        pass
    with critic(tmp_path, lambda _: chat("Yes"), models=two, model="b") as (prm, _):
        assert (prm.backend.model, prm.backend.primes) == ("b", True)
    with critic(tmp_path, lambda _: chat("Yes"), models=OTHER, priming="on") as (prm, _):
        assert prm.backend.primes
