"""The route /v1/chat/completions: OpenAI's requests and answers, searched with a policy and a PRM."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from prism_prm.errors import DataError
from prism_prm.report import plain_json
from prism_prm.serve import schemas
from prism_prm.serve.searches import ChatSearch, Searched, Searches, text_of

T = TypeVar("T")
MAX_NAMED = 8
"""How many ignored fields a warning names."""
_ids = itertools.count()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is canceled when the client disconnects."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionResetError
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()


async def complete_chat(body: schemas.ChatRequest, request: Request) -> Response:
    """Search for the answer to a chat."""
    searches: Searches | None = request.app.state.engine.searches
    if searches is None:
        raise DataError("This server has no policy, so it only scores; start it with --policy to get answers.")
    ask, warnings = read_request(body, searches)
    found = await while_connected(request, searches.run(ask, request.scope["owner"], request.scope["started"]))
    head = {"id": f"chatcmpl-{next(_ids)}", "created": int(time.time()), "model": ask.name}
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(found.solutions) < body.n:
        warnings.append(f"n = {body.n}, but the search found only {len(found.solutions)} different solutions")
    if unscored := sum(one.scores is None for one in found.solutions):
        warnings.append(f"the PRM could not score {unscored} of {len(found.solutions)} solutions, which rank last")
    extension = {"prism": _extension(ask, found)} | ({"warnings": warnings} if warnings else {})
    if body.stream:
        usage = _usage(found) if body.stream_options and body.stream_options.include_usage else None
        return StreamingResponse(_stream(head, found, stops, usage, extension), media_type="text/event-stream")
    choices = [
        {"index": i, "message": {"role": "assistant", "content": _cut(text_of(found.solutions[k]), stops)},
         "finish_reason": _reason(found, k, stops), "logprobs": None}
        for i, k in enumerate(found.ranking[: body.n])
    ]  # fmt: skip
    answer = head | {"object": "chat.completion", "choices": choices, "usage": _usage(found)} | extension
    return Response(_encode(answer), media_type="application/json")


def read_request(body: schemas.ChatRequest, searches: Searches) -> tuple[ChatSearch, list[str]]:
    """The search that a request asks for, and warnings; DataError if it cannot be answered."""
    rule, prm, settings = searches.read_name(body.model)
    if body.stream and body.n > 1:
        raise DataError(f"stream sends one answer, but n = {body.n}; leave out one of them.")
    most = settings.n if settings.method == "best-of-n" else settings.width
    if body.n > most:
        raise DataError(f"n = {body.n:,}, but {rule}-{settings.n} finds at most {most} solutions.")
    roles = ["system" if message.role == "developer" else message.role for message in body.messages]
    has_system = roles[:1] == ["system"]
    if roles[-1:] != ["user"] or "system" in roles[1:]:
        raise DataError(
            "A search takes turns of user and assistant that end with the user's, perhaps after a system's; got "
            f"{', '.join(roles)[:200] or 'no turns'}."
        )
    sampling = settings.sampling
    ignored = [name[:40] for name, value in (body.model_extra or {}).items() if value is not None][:MAX_NAMED]
    warnings = [f"ignored fields: {', '.join(ignored)}"] if ignored else []
    if (wanted := body.max_completion_tokens or body.max_tokens) is not None:
        if wanted > sampling.max_tokens:
            warnings.append(f"max_tokens is {sampling.max_tokens:,}, this server's limit, instead of {wanted:,}")
        sampling = replace(sampling, max_tokens=min(wanted, sampling.max_tokens))
    for name in ("temperature", "top_p"):
        if (value := getattr(body, name)) is not None:
            sampling = replace(sampling, **{name: value})
    settings = replace(settings, sampling=sampling, seed=settings.seed if body.seed is None else body.seed)
    system = body.messages[0].text if has_system else None
    turns = [(role, message.text) for role, message in zip(roles, body.messages, strict=True)][has_system:]
    if not turns[-1][1].strip():
        raise DataError("The user's turn is empty.")
    return ChatSearch(body.model, rule, prm, system, tuple(turns), settings), warnings


def _extension(ask: ChatSearch, found: Searched) -> dict[str, Any]:
    """The candidates with their step scores, best first as in `choices`."""
    candidates = [
        {
            "steps": list(one.steps), "scores": None if one.scores is None else list(one.scores),
            "score": None if math.isinf(found.log_scores[k]) else math.exp(found.log_scores[k]),
            "answer": found.answers[k], "tokens": one.tokens, "ended": one.ended,
        }
        for k, one in ((k, found.solutions[k]) for k in found.ranking)
    ]  # fmt: skip
    return {
        "rule": ask.rule, "n": ask.settings.n, "prm": ask.prm, "aggregator": found.aggregator,
        "seed": ask.settings.seed, "rounds": found.num_rounds, "candidates": candidates,
    }  # fmt: skip


def _usage(found: Searched) -> dict[str, int]:
    """All tokens that the policy read once and wrote, also for dropped candidates; and those that the PRM read."""
    read, written = found.prompt_tokens, found.policy_tokens
    return {
        "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
        "prm_tokens": found.prm_tokens,
    }  # fmt: skip


def _cut(text: str, stops: list[str]) -> str:
    """The text before the first of the client's stop strings."""
    return text[: min((at for stop in stops if stop and (at := text.find(stop)) >= 0), default=len(text))]


def _reason(found: Searched, number: int, stops: list[str]) -> str:
    text = text_of(found.solutions[number])
    return "stop" if found.solutions[number].ended or len(_cut(text, stops)) < len(text) else "length"


async def _stream(
    head: dict[str, Any], found: Searched, stops: list[str], usage: dict[str, int] | None, extension: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Events: the role, a piece per step, the end with the extension, and the usage if it was asked for."""
    head = head | {"object": "chat.completion.chunk"}
    text = _cut(text_of(found.solutions[found.chosen]), stops)
    pieces = [piece + "\n\n" for piece in text.split("\n\n")]
    pieces[-1] = pieces[-1].removesuffix("\n\n")
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": piece}, None) for piece in pieces]
    deltas.append(({}, _reason(found, found.chosen, stops)))
    for number, (delta, reason) in enumerate(deltas, 1):
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        yield _event(head | {"choices": [choice]} | (extension if number == len(deltas) else {}))
    if usage is not None:
        yield _event(head | {"choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + _encode(content) + b"\n\n"


def _encode(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(plain_json(content))
