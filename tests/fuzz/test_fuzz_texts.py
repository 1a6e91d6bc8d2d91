"""Texts that others write: solutions, answers, servers' responses, and what stands on the command line."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any
from zlib import compress

import httpx
import pytest
from cases import CASES, anything, as_json, fuzz, mutated, survives, torn
from hypothesis import strategies as st

from prism_prm.backends.openai import OpenAiPolicy, served_model
from prism_prm.backends.policy import Sampling, StepRequest
from prism_prm.cli.pairs import PairsCommand
from prism_prm.config import read_settings
from prism_prm.data.inputs import find_sources
from prism_prm.grading.code_benchmarks import read_asserts, read_examples
from prism_prm.grading.compare_outputs import printed_key, same_printed
from prism_prm.grading.extract import extract_answer, find_program
from prism_prm.grading.graders import Judge
from prism_prm.grading.plain_answers import normalize, numeral, plain_key, same_plainly, text_key
from prism_prm.grading.problems import unpack
from prism_prm.grading.symbolic import read_form
from prism_prm.grading.value_codec import decode, encode
from prism_prm.net import RetryPolicy, Server
from prism_prm.paths import file_name, named_places, split_name
from prism_prm.search.rerank_pool import RerankSettings
from prism_prm.segments import SEGMENTERS, complete_steps, cut_text, last_revision, roles_of, split_text
from prism_prm.steps import cut_steps, split_steps

PIECES = (
    "1", "2", "-3", "0.5", "1,000", "11,\\! 111", "x", "y^2", "\\frac", "\\frac{1}{2}", "\\sqrt{2}", "\\sqrt[", "{",
    "}", "(", ")", "[", "]", "\\left(", "\\right)", "\\{", "\\}", "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\boxed{",
    "\\boxed", "\\fbox{3}", "####", "#### 7", "The answer is ", "answer: ", "=", "<", "\\le", ",", ";", ".", ":", "%",
    "\\%", "^\\circ", "\\text{ cm}", "cm", "12:30", "pm", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "&", "\\cup",
    "\\infty", "\\pi", "e", "i", "\\pm", "!", "^", "_", "\\", "|", "Step 1:", "- ", "1. ", "```", "~~~", "\n", "\n\n",
    " ", "\t", "\x00", "\u2028", "½", "²", "−", "∞", "π", "٣", "Ⅳ", "十", "\ud800", "é", "👍", "\\overline{3}",
    "0.\\dot{3}", "1 \\frac12", "million", "1e5", "1e999", "9" * 400, "(" * 300, "{" * 300, "\\frac{" * 100,
    "-" * 200, "\\text{" * 60, "^" * 200, "\\begin{a}" * 40,
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=60)


@fuzz(0.06, text=texts, other=texts)
def test_answers_are_found_and_compared_plainly(text: str, other: str) -> None:
    def read() -> None:
        found = extract_answer(text)
        assert found.answer is None or found.answer.strip() == found.answer
        for spelling in (normalize(text), normalize(found.answer or "")):
            numeral(spelling), plain_key(spelling), text_key(spelling), read_form(spelling)
        same_plainly(normalize(text), normalize(other), 0.01)

    survives("answers", read)


PYTHON = (
    "assert ", "f(", "f(1)", ")", " == ", "1", "-2", "[1, 2]", "{", "}", "'a", '"""', "'", "\n", "    ", "for i in x:",
    "not ", "abs(", " - ", " < ", "1e-6", "lambda: 0", "(" * 200, "[" * 100, "9" * 5000, "'x' * 9", ">>> ", "-> ",
    "==> ", "returns ", "def check(candidate):", "\x00", "\ud800", "1 / 0", "**", "b'a'", "{1: 2}", "set()", "f(*x)",
    "f(a=1)", "True", "None", "#",
)  # fmt: skip
THOUGHTS = (
    "<think>", "</think>", "<think>\n", "\n</think>\n\n", "Wait, ", "Hmm. ", "So ", "Alternatively, ", "Step 3", "3. ",
    "e.g. ", "...", "?!", '."', "```python\n", "\n```", "x = (", "$$x$$", "\\begin{align}", "\\end{align}", "\r\n",
    "\n \t\n", "." * 500, "\n" * 300, " " * 400, "$$" * 99, "word " * 90, "<think></think>" * 9, "7" * 200,
)  # fmt: skip
thoughts = st.lists(st.sampled_from(THOUGHTS + PIECES + PYTHON), max_size=30).map("".join) | st.text(max_size=60)


@fuzz(max(0.05, 1000 / CASES), text=thoughts)  # 1,000 texts for each segmenter, and 10,000 with `make test-all`
def test_every_segmenter_keeps_every_text(text: str) -> None:
    def cut() -> None:
        for name in (*SEGMENTERS, "thinking:7", "tokens:5"):
            pieces = cut_text(text, name)
            assert "".join(pieces) == text
            steps = split_text(text, name)
            assert "".join("".join(steps).split()) == "".join(text.split())
            assert complete_steps(text, name) in (steps, steps[:-1])
            assert len(roles_of(steps)) == len(steps)
            last_revision(steps)

    survives("segmenters", cut)


python = st.lists(st.sampled_from(PYTHON), max_size=12).map("".join) | st.text(max_size=40)


@fuzz(
    0.05,
    text=python | texts,
    payload=st.text(max_size=30) | st.binary(max_size=60).map(lambda b: b64encode(compress(b)).decode()),
)
def test_programs_and_tests_are_read(text: str, payload: str) -> None:
    def read() -> None:
        cases, others = read_asserts(text, "f")
        assert others >= 0
        for case in (*cases, *read_examples(text, "f")):
            assert decode(encode(case.given)) == case.given or case.given != case.given
        found = find_program(text).answer
        assert found is None or found in text
        assert "".join("".join(cut_steps(text)).split()) == "".join(text.split())
        assert same_printed(text, text)
        assert printed_key(text) == printed_key(f" {text}\n")

    survives("programs", read)
    survives("payloads", lambda: unpack(payload))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(workers=1, seconds=2.0) as judge:
        yield judge


@fuzz(0.01, pairs=st.lists(st.tuples(texts, texts), min_size=4, max_size=8))
def test_answers_are_judged(judge: Judge, pairs: list[tuple[str, str]]) -> None:
    verdicts = survives("judge", lambda: judge.judge(pairs, [0.0] * len(pairs)))
    keys = survives("judge", lambda: judge.keys([answer for _, answer in pairs]))
    assert len(verdicts) == len(keys) == len(pairs)


@fuzz(0.05, text=texts | st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_solutions_are_cut_into_steps(text: str) -> None:
    steps = survives("steps", lambda: split_steps(text))
    assert all(step.strip() == step != "" for step in steps)
    assert "".join("".join(steps).split()) == "".join(text.split())


RESPONSES = [
    {
        "id": "x", "model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "choices": [{"index": 0, "text": "so x = 1", "finish_reason": "stop", "stop_reason": "\n\n",
                     "logprobs": {"token_logprobs": [-0.5, None, -1.5]}}],
    },
    {"choices": [{"text": "", "finish_reason": "length", "matched_stop": 3}]},
    {"data": [{"id": "m"}], "object": "list"},
]  # fmt: skip
responses = mutated(RESPONSES).map(as_json) | torn(mutated(RESPONSES).map(as_json)) | anything


Said = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[OpenAiPolicy, list[Said]]]:
    """A policy whose server says what stands in the list."""
    said: list[Said] = []

    def respond(_: httpx.Request) -> httpx.Response:
        ((status, headers, data),) = said
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(data))

    retry = RetryPolicy(timeout=30, retries=0, backoff=0)
    policy = OpenAiPolicy("http://localhost:1/v1", model="m", retry=retry, log_likelihood=True)
    policy.server._client = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    yield policy, said
    policy.close()


STATUSES = (*(200,) * 8, 204, 301, 400, 401, 429, 500, 599)
HEADERS: tuple[dict[str, str], ...] = (
    {}, {}, {"Location": "http://[x"}, {"Location": "\x01"}, {"Retry-After": "nan"}, {"Retry-After": "-1"},
    {"Content-Encoding": "gzip"},
)  # fmt: skip


@fuzz(0.06, data=responses, status=st.sampled_from(STATUSES), headers=st.sampled_from(HEADERS))
def test_servers(served: tuple[OpenAiPolicy, list[Said]], data: bytes, status: int, headers: dict[str, str]) -> None:
    policy, said = served
    said[:] = [(status, headers, data)]
    for written in survives("servers", lambda: policy.write([StepRequest("p", 1, 8)], Sampling())) or ():
        written.text.encode()
        assert written.num_tokens >= 0
    survives("servers", lambda: served_model(policy.server))


WORDS = (
    "1", "4,16", "a", "a=b", "=", "a=", "=b", ",", ".", "..", "/", "\x00", "\n", " ", "é", "x" * 300, "-1", "1e3",
    "²", "٣", "train=0.9", "test=0.1", "nan", "inf", "a.b=1", "a..b=1", "a=[", "a=nan", "a={b=1}", "http://",
    "https://", "localhost", ":", ":8000", "[::1]", "@", "#", "?", "%", "%zz", "\ud800", "~", "owner/name",
    "owner/name:split", "*", "\\",
)  # fmt: skip
typed = st.lists(st.sampled_from(WORDS), max_size=5).map("".join) | st.text(max_size=20)
SMALL: dict[str, Callable[[str], Any]] = {
    "numbers": lambda text: read_settings(RerankSettings, None, [f"ns={text}"]),
    "words": lambda text: read_settings(RerankSettings, None, [f"aggregators={text}"]),
    "name": split_name,
    "names": lambda text: named_places([text, "x"]),
    "file name": file_name,
    "set": lambda text: read_settings(RerankSettings, None, [text]),
    "sources": lambda text: find_sources([text]),
    "split": lambda text: read_settings(PairsCommand, None, [f"split={text}"], {"inputs": ["x"]}),
}


@fuzz(0.05, text=typed, which=st.sampled_from(sorted(SMALL)))
def test_small_parsers(text: str, which: str) -> None:
    survives("command line", lambda: SMALL[which](text))


@fuzz(0.02, text=typed, scheme=st.sampled_from(("", "http://", "https://")))
def test_addresses(text: str, scheme: str) -> None:
    def connect() -> None:
        Server(scheme + text, RetryPolicy(), 1, key_variable="NO_KEY").close()

    survives("addresses", connect)


def test_json_can_say_what_python_cannot_write() -> None:
    """The mutations do reach what they are meant to reach: a lone surrogate and a number that is none."""
    assert as_json({"a": "\ud800", "b": float("nan")}) == b'{"a": "\\ud800", "b": NaN}'
    assert json.loads(as_json([10**30])) == [10**30]
