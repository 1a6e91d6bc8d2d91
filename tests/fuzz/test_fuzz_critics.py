"""What critics write: every parser gives a verdict that the text holds, or says what is missing; it never raises."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
from cases import as_json, fuzz, mutated, survives
from hypothesis import strategies as st

from prism_prm.critics.format import FORMATS, read_format
from prism_prm.critics.parse import Missing, MissingKind, Reading, read_reply
from prism_prm.critics.replies import Reply, TokenChoice
from prism_prm.critics.server import read_answer

FOUND = {name: read_format(name) for name in FORMATS}
PIECES = (
    "Yes", "No", "yes", "no", " YES", "nO.", "**Yes**", "Yesterday", "not", "\\boxed{Yes}", "\\boxed{No}", "{Yes}",
    "{no",
    "\\boxed{", "}", "\\boxed{0}", "\\boxed{-1}", "\\boxed{1}", "\\boxed{ 2 }", "\\boxed{−1}", "\\boxed{3.5}",
    "\\boxed{٣}", "\\boxed{1e5}", "\\boxed{99999999999999999999}", "\\boxed{\\boxed{1}}", "\\boxed\n{1}", "paragraph_1",
    '{"validity": [1, 0], "redundancy": [0, -1]}', '{"validity": [1], "redundancy": []}', '{"validity": null}',
    "```json",
    "```", '{"validity": [NaN, 1e999], "redundancy": [0, 0]}', '{"a": {"validity": [1, 1], "redundancy": [1, 1]}}',
    "[" * 2000, '{"a":' * 500, "{" * 300, "9" * 5000, '"', "\\", "\n", " ", "\x00", "\u2028", "\ud800", "é", "…",
    "<output>", "</output>", "**Judgement**: $", "Is the solution correct? ",
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=40)
scores = [{"validity": [1, -0.5], "redundancy": [0, 1.0]}, {"validity": [], "redundancy": []}]
words = st.sampled_from(["Yes", "No", " yes", "no", "Maybe", "", "{", "}", "Y"]) | st.text(max_size=3)
choices = st.builds(
    TokenChoice,
    words,
    st.lists(st.tuples(words, st.floats(-1e4, 0)), max_size=4).map(tuple),
)


@fuzz(
    0.5,
    text=texts | mutated(scores).map(lambda record: as_json(record).decode()),
    name=st.sampled_from(FORMATS),
    reason=st.sampled_from(["stop", "stop", "length", "content_filter"]),
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
    assert isinstance(found, Reading | Missing)
    if isinstance(found, Missing):
        assert found.kind in get_args(MissingKind)
        return
    assert not refused
    assert reason != "content_filter"
    assert len(found.rows) == (num_steps if format.granularity == "solution" else 1)
    assert all(len(row) == len(format.outputs) for row in found.rows)
    known = [value for row in found.rows for value in row if not math.isnan(value)]
    assert all(0 <= value <= 1 for value in known)
    assert known
    _assert_no_guess(found, format, text, tokens, num_steps)


def _assert_no_guess(found: Reading, format: Any, text: str, tokens: Any, num_steps: int) -> None:
    """What was read can be pointed at."""
    if format.reads == "label":
        shown = [token for choice in tokens or () for token, _ in choice.top]
        said = text if not found.by_log_probability else " ".join(shown)
        assert "yes" in said.lower() or "no" in said.lower()
    elif format.reads == "index":
        assert "\\boxed" in text
        wrong = [i for i, (p,) in enumerate(found.rows) if p == 0]
        assert all(math.isnan(p) for (p,) in found.rows[wrong[0] + 1 :]) if wrong else len(found.rows) == num_steps
    else:
        assert "validity" in text
        assert "redundancy" in text


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
