"""The client against a real server on a loopback port that drips, nests, redirects and babbles."""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from loopback import Answer, serve
from prism_prm import net
from prism_prm.errors import ConfigError
from prism_prm.net import RetryPolicy, Server, ServerError
from waiting import until

QUICK = RetryPolicy(timeout=300, retries=1, backoff=0.01)
KEY = "SOME_KEY"


def ask(url: str, retry: RetryPolicy = QUICK) -> Any:
    server = Server(url, retry, 4, key_variable=KEY)
    try:
        return server.together([server.ask("POST", "/x", lambda answer: answer, {"a": 1})])[0]
    finally:
        server.close()


def test_a_server_that_drips_is_not_waited_for() -> None:
    """Every byte comes within the time-out, the answer as a whole does not."""
    over = threading.Event()

    def drip() -> Iterator[bytes]:
        while not over.wait(0.1):
            yield b" "

    with serve(lambda _: (200, drip())) as (url, asked):
        with pytest.raises(ServerError, match=r"no answer within 0.4 seconds \(2 tries\)"):
            ask(url, RetryPolicy(timeout=0.4, retries=1, backoff=0.01))
        over.set()
        until(lambda: len(asked) == 2)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"[" * 100_000 + b"]" * 100_000, r"\[\[\["),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, '{"a": {"a"'),
        (b"\xff\xfe\xfa", "\N{REPLACEMENT CHARACTER}"),
        (b'{"a": ' + b"9" * 5000 + b"}", "9999"),
        (b'data: {"a": 1}\n\n', "data: "),
        (b"", "''"),
    ],
)
def test_what_is_no_json_object_is_asked_for_again(body: bytes, shown: str) -> None:
    with serve(lambda _: (200, body)) as (url, asked), pytest.raises(ServerError, match=f"not a JSON object.*{shown}"):
        ask(url)
    assert len(asked) == 2


def test_the_content_type_is_not_looked_at() -> None:
    with serve(lambda _: (200, {"a": 1}, {"Content-Type": "text/html; charset=nonsense"})) as (url, _):
        assert ask(url) == {"a": 1}


@pytest.mark.parametrize("compress", [False, True])
def test_a_huge_answer_is_not_taken_in(compress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "MOST_BYTES", 10_000)
    body = b'{"a": "' + b"x" * 100_000 + b'"}'
    answer: Answer = (200, gzip.compress(body), {"Content-Encoding": "gzip"}) if compress else (200, body)
    with serve(lambda _: answer) as (url, _), pytest.raises(ServerError, match=r"longer than 10,000 bytes \(2 tries\)"):
        ask(url)


def test_what_says_to_be_compressed_and_is_not() -> None:
    answer = (200, b"plain", {"Content-Encoding": "gzip"})
    with serve(lambda _: answer) as (url, _), pytest.raises(ServerError, match=r"DecodingError.*\(2 tries\)"):
        ask(url)


def test_a_redirect_is_named_and_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key would go to a server that the user has not named."""
    monkeypatch.setenv(KEY, "sk-very-secret")
    with serve(lambda _: (200, {})) as (other, reached):
        target = other.replace("http://", "http://user:secret@") + "/x?token=secret"
        message = f"status 307, a redirect to {other}/x; give that address instead"
        answer = (307, b"", {"Location": target})
        with serve(lambda _: answer) as (url, asked), pytest.raises(ServerError, match=message) as caught:
            ask(url)
    assert "secret" not in str(caught.value)
    assert (len(asked), len(reached)) == (1, 0)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 529])
def test_busy_statuses_are_tried_again_and_said(status: int, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Answer] = [(status, b"busy"), (200, {"a": 1})]
    with caplog.at_level(logging.WARNING), serve(lambda _: answers.pop(0)) as (url, _):
        assert ask(url) == {"a": 1}
    assert caplog.messages == [f"{url}: requests retried: 1, the last after: status {status}: busy"]


@pytest.mark.parametrize(("key", "clean"), [("sk-1\n", True), ("sk-secret\nsk-secret", False), ("sk-secrét", False)])
def test_a_key_that_was_pasted_wrongly(key: str, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, key)
    with serve(lambda _: (200, {})) as (url, asked):
        if clean:
            ask(url)
            assert asked[0]["authorization"] == "Bearer sk-1"
            return
        with pytest.raises(ServerError, match=r"the key in \$SOME_KEY contains a line break or") as caught:
            ask(url)
        assert "secr" not in str(caught.value)


@pytest.mark.parametrize(("status", "length"), [(400, 0), (404, 185), (413, 0), (429, 185), (500, 0), (200, 0)])
def test_a_key_that_a_gateway_repeats_is_not_shown(
    status: int, length: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor half of it, where the text is cut."""
    monkeypatch.setenv(KEY, "sk-very-secret")
    answer = (status, b"x" * length + b" Bearer sk-very-secret is invalid")
    with (
        caplog.at_level(logging.DEBUG),
        serve(lambda _: answer) as (url, asked),
        pytest.raises(ServerError) as caught,
    ):
        ask(url)
    assert asked[0]["authorization"] == "Bearer sk-very-secret"
    assert "***" in str(caught.value) or length
    assert "sk-v" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://here/v1", "http://", "http://here:port/v1", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ServerError, match=r"is not the address of a server; expected e\.g\. http://localhost"):
        ask(url)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timeout": 0.0}, "timeout = 0.0: must be above 0"),
        ({"timeout": float("nan")}, "timeout = nan: must be a finite number"),
        ({"retries": -1}, "retries = -1: must be 0 or more"),
        ({"backoff": -1.0}, "backoff = -1.0: must be 0 or more"),
    ],
)
def test_wrong_retry_policy(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RetryPolicy(**wrong)
    with pytest.raises(ConfigError, match="concurrency = 0 must be 1 or more"):
        Server("http://localhost", QUICK, 0, key_variable=KEY)


def test_a_connection_that_does_not_close_spoils_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "SECONDS_TO_CLOSE", 0.01)
    server = Server("http://127.0.0.1:9/v1", QUICK, 4, key_variable=KEY)

    async def never() -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(server._client, "aclose", never)
    server.close()
