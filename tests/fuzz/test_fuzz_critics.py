"""What critics write: every parser gives a verdict that the text holds, or says what is missing; it never raises."""

from __future__ import annotations

import math
import re
from typing import Any, get_args

import msgspec
from cases import as_json, fuzz, mutated, survives
from hypothesis import strategies as st

from prism_prm.backends.critic_format import FORMATS, read_format
from prism_prm.backends.critic_replies import Missing, Reading, Reply, TokenChoice, read_reply
from prism_prm.backends.openai import read_answer

FOUND = {name: read_format(name) for name in FORMATS}
PIECES = (
    "Yes", "No", "yes", "no", " YES", "nO.", "**Yes**", "Yesterday", "not", "\\boxed{Yes}", "\\boxed{No}", "{Yes}",
    "{no",
    "\\boxed{", "}", "\\boxed{0}", "\\boxed{-1}", "\\boxed{1}", "\\boxed{ 2 }", "\\boxed{−1}", "\\boxed{3.5}",
    "\\boxed{\\text{No}}", "\\boxed{\\text{1}}", "\\boxed{Incorrect}", "\\boxed{{1}", "\\boxedx{1}", "\\boxed",
    "\\boxed{٣}", "\\boxed{1e5}", "\\boxed{99999999999999999999}", "\\boxed{\\boxed{1}}", "\\boxed\n{1}", "paragraph_1",
    '{"validity": [1, 0], "redundancy": [0, -1]}', '{"validity": [1], "redundancy": []}', '{"validity": null}',
    "```json",
    "```", '{"validity": [NaN, 1e999], "redundancy": [0, 0]}', '{"a": {"validity": [1, 1], "redundancy": [1, 1]}}',
    "[" * 2000, '{"a":' * 500, "{" * 300, "9" * 5000, '"', "\\", "\n", " ", "\x00", "\u2028", "\ud800", "é", "…",
    "<output>", "</output>", "**Judgement**: $", "Is the solution correct? ",
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=40)
scores = [{"validity": [1, -0.5], "redundancy": [0, 1.0]}, {"validity": [], "redundancy": []}]
words = st.sampled_from(["Yes", "No", " yes", "no", "Maybe", "", "{", "}", "Y", "n"]) | st.text(max_size=3)
values = st.sampled_from([0.0, -0.7, -2.0, -3.0, -9.0]) | st.floats(-1e4, 0)
choices = st.builds(TokenChoice, words, st.lists(st.tuples(words, values), max_size=4).map(tuple))


@fuzz(
    0.5,
    text=texts | mutated(scores).map(lambda record: as_json(record).decode()),
    name=st.sampled_from(FORMATS),
    reason=st.sampled_from(["stop", "stop", "length", "content_filter", "too-long"]),
    refused=st.sampled_from([False, False, False, True]),
    tokens=st.none() | st.lists(choices, max_size=3).map(tuple),
    num_steps=st.integers(1, 4),
)
def test_a_verdict_is_in_the_reply_or_missing(
    text: str, name: str, reason: Any, refused: bool, tokens: Any, num_steps: int
) -> None:
    format = FOUND[name]
    reply = Reply(text, reason, 1, 1, refused=refused, tokens=tokens)
    found = survives("critics", lambda: read_reply(reply, format, num_steps), allowed=())
    if not isinstance(found, Reading):
        assert found in get_args(Missing)
        return
    assert not refused
    assert reason in ("stop", "length")
    assert len(found.rows) == (num_steps if format.granularity == "solution" else 1)
    assert all(len(row) == len(format.outputs) for row in found.rows)
    known = [value for row in found.rows for value in row if not math.isnan(value)]
    assert all(0 <= value <= 1 for value in known)
    assert known
    _assert_no_guess(found, format, text, tokens, reason)


def _assert_no_guess(found: Reading, format: Any, text: str, tokens: Any, reason: str) -> None:
    """What was read can be pointed at."""
    value = found.rows[0][0]
    if found.by_log_probability:
        _assert_labels_were_likely(format, tokens, value)
    elif format.reads == "label" and format.label.at == "start":
        assert re.findall(r"[^\W_]+", text)[0].lower() == ("yes" if value else "no")
    elif format.reads == "label":
        assert reason == "stop"
        primed = "\\boxed" * text.lstrip().startswith("{")
        assert ("yes" if value else "no") in _last_box(primed + text).lower()
    elif format.reads == "index":
        assert reason == "stop"
        wrong = [i for i, (p,) in enumerate(found.rows) if p == 0]
        assert str(wrong[0] if wrong else 1) in _last_box(text)
        assert all(math.isnan(p) for (p,) in found.rows[wrong[0] + 1 :]) if wrong else value == 1
    else:
        assert "validity" in text
        assert "redundancy" in text


def _assert_labels_were_likely(format: Any, tokens: Any, value: float) -> None:
    """A label was written, or both together have some probability; one that is not shown is less likely than the
    other, so that nothing is made of two unknowns.
    """
    said = [choice for choice in tokens if choice.token.strip().lower() in ("yes", "no")]
    place = tokens[0] if format.label.at == "start" else said[-1]
    shown = [(token.strip().lower(), logged) for token, logged in place.top]
    by_label = {label: [logged for token, logged in shown if token == label] for label in ("yes", "no")}
    likely = sum(math.exp(max(logged)) for logged in by_label.values() if logged) >= 0.05
    assert likely or place in said
    (least, *_) = sorted(logged for _, logged in shown)
    for label, other in (("yes", "no"), ("no", "yes")):
        if not by_label[label]:
            assert max(by_label[other]) > least
            assert value >= 0.5 if label == "no" else value <= 0.5


def _last_box(text: str) -> str:
    """Up to its brace; what comes after the last `\\boxed`, whatever it is, is the only box that counts."""
    return re.split(r"\\boxed(?![A-Za-z])", text)[-1].partition("}")[0]


ANSWERS = [
    {
        "choices": [
            {
                "message": {"role": "assistant", "content": "Yes", "refusal": None},
                "finish_reason": "stop",
                "logprobs": {
                    "content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": [{"token": "Yes", "logprob": -0.1}]}]
                },
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
]


@fuzz(0.1, answer=mutated(ANSWERS))
def test_a_servers_answer_is_read_or_refused(answer: Any) -> None:
    if isinstance(answer, dict):
        found = survives("chat answers", lambda: read_answer(answer, 7), allowed=(ValueError,))
        if found is not None:
            assert found.num_tokens >= 0
            msgspec.json.encode(found)
