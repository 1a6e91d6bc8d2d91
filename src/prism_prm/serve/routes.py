"""The routes: what a request asks for becomes items, and their scores become its answer."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from prism_prm import __version__
from prism_prm.errors import DataError
from prism_prm.protocol import sigmoid
from prism_prm.records import ROOT, Step, StepTree
from prism_prm.rl.openrlhf import completion_in, problem_in
from prism_prm.scorer.settings import OnTooLong
from prism_prm.serve.answers import judged, leaves_of, pooled, sizes, steps_answer, usage
from prism_prm.serve.engine import Engine, RefusedError
from prism_prm.serve.models import Item, ItemScores, ServedModel
from prism_prm.serve.schemas import (
    ErrorAnswer,
    Message,
    ModelsAnswer,
    PoolingAnswer,
    PoolingRequest,
    RewardAnswer,
    RewardRequest,
    Solution,
    StepsAnswer,
    StepsRequest,
    Text,
    TokensAnswer,
    Tree,
)  # fmt: skip
from prism_prm.steps import cut_steps

SEPARATOR = "<extra_0>"
"""Ends a step in the assistant's turn."""
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>")
"""What chat templates put behind a completion."""

PATHS = 500_000
"""Steps on all paths of a request's trees: each path gets a score, and a deep tree with many leaves has far more of
them than it has nodes."""
LOGGED = 100
"""Warnings that are logged; clients could send texts that each give another one."""

log = logging.getLogger(__name__)
router = APIRouter()
_numbers = itertools.count()


def _described(answer: type) -> dict[str, Any]:
    """What OpenAPI says of a route's answers."""
    errors = {
        400: "not readable", 401: "no key", 404: "no such model", 413: "too large", 429: "busy: retry later",
        502: "the server of a critic or remote PRM failed", 503: "not ready, or a server behind it is busy",
        504: "too slow",
    }  # fmt: skip
    return {
        "responses": {200: {"model": answer}}
        | {status: {"model": ErrorAnswer, "description": text} for status, text in errors.items()}
    }


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the server runs; needs no key."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """Whether it takes requests: models are loaded, and it is not shutting down."""
    if not _engine(request).is_ready:
        raise RefusedError(503, "The server is loading or shutting down.", 5)
    return {"status": "ready"}


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of prism-prm."""
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """What the server counts, in Prometheus' format."""
    return Response(_engine(request).metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/models", responses={200: {"model": ModelsAnswer}})
async def models(request: Request) -> Response:
    """The models, and what is special about each."""
    found = [
        {
            "id": model.name, "object": "model", "created": request.app.state.started, "owned_by": "prism",
            "max_model_len": model.scorer.context, "identity": model.identity, "model_hash": model.model_hash,
            "outputs": list(model.scorer.outputs), "aggregator": model.aggregator, "threshold": model.threshold,
        }
        for model in _engine(request).models.values()
    ]  # fmt: skip
    return _json({"object": "list", "data": found})


@router.post("/pooling", **_described(PoolingAnswer))
async def pooling(body: PoolingRequest, request: Request) -> Response:
    """The steps of chats, texts or token ids, as vLLM scores them."""
    model = _model(request, body.model)
    items, found = await _score(request, model, lambda: _pooling_items(model, body))
    data = [{"index": i, "object": "pooling", "data": pooled(scores)} for i, scores in enumerate(found)]
    answer = _head("pooling", "list", model) | {"data": data, "usage": usage(items, found)}
    return _json(answer | _warnings(request, items))


@router.post("/v1/steps", **_described(StepsAnswer))
async def steps(body: StepsRequest, request: Request) -> Response:
    """The steps of solutions and trees: probabilities, log-odds, first error, and the score of each solution."""
    model = _model(request, body.model)
    items, found = await _score(request, model, lambda: _steps_items(model, body))
    about = {"model_hash": model.model_hash, "aggregator": model.aggregator, "threshold": model.threshold}
    answers = [steps_answer(model, item, scores) for item, scores in zip(items, found, strict=True)]
    for answer, given, item in zip(answers, body.items, items, strict=True):
        if isinstance(given, Text) and item.tree is not None:
            answer["steps"] = item.tree.texts(item.tree.trunk)
    answer = _head("steps", "steps", model) | about | {"items": answers, "usage": usage(items, found)}
    return _json(answer | _warnings(request, items))


@router.post("/v1/tokens", **_described(TokensAnswer))
async def tokens(body: StepsRequest, request: Request) -> Response:
    """How many tokens solutions and trees are, without scoring them."""
    model = _model(request, body.model)
    items = await _engine(request).encode(
        lambda: list(map(model.counted, _steps_items(model, body, "skip"))),
        request.scope["started"],
        request.scope["size"],
    )
    return _json({"model": model.name, "items": [sizes(item) for item in items]})


@router.post("/get_reward", **_described(RewardAnswer))
async def get_reward(
    body: RewardRequest, request: Request, model: str | None = Query(None, description="Which model to use.")
) -> Response:
    """The reward of each completion, as OpenRLHF asks for it: the score of its steps as one solution."""
    served = _model(request, model)
    items, found = await _score(request, served, lambda: _reward_items(served, body))
    scores = [judged(served, sigmoid(one.log_odds_NO[:, 0])) for one in found]
    rewards = [one["score"] or 0.0 for one in scores]
    logs = {
        "steps": [float(len(one.log_odds_NO)) for one in found],
        "has_error": [float(one["first_error"] is not None) for one in scores],
    }
    return _json({"rewards": rewards, "scores": rewards, "extra_logs": logs} | _warnings(request, items))


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _model(request: Request, name: str | None) -> ServedModel:
    served = _engine(request).models
    if name is None and len(served) == 1:
        return next(iter(served.values()))
    if name is None:
        raise DataError(f"Several models are served: {', '.join(served)}; name one of them as model.")
    if name not in served:
        raise RefusedError(404, f"The model {name[:100]!r} does not exist. Models: {', '.join(served)}.")
    return served[name]


async def _score(
    request: Request, model: ServedModel, make: Callable[[], Sequence[Item]]
) -> tuple[Sequence[Item], list[ItemScores]]:
    """Items and their scores; ends early when the client hangs up."""
    engine = _engine(request)
    scope = request.scope
    work = asyncio.ensure_future(engine.score(model.name, scope["owner"], make, scope["started"], scope["size"]))
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ConnectionResetError
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _pooling_items(model: ServedModel, body: PoolingRequest) -> list[Item]:
    if (body.messages is None) == (body.input is None):
        raise DataError("give messages or input")
    if body.messages is not None:
        return [_chat_item(model, body.messages)]
    given: Any = body.input
    inputs = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    return [
        model.text(one, add_special_tokens=body.add_special_tokens) if isinstance(one, str) else model.sequence(one)
        for one in inputs
    ]


def _chat_item(model: ServedModel, messages: Sequence[Message]) -> Item:
    """The problem is the user's turn, the steps are the assistant's, and the layout is that of the PRM's family."""
    turns = {"system": "", "user": "", "assistant": ""}
    roles = ["system" if message.role == "developer" else message.role for message in messages]
    if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
        raise DataError(f"expected turns of user and assistant, perhaps after a system's; got {', '.join(roles)[:200]}")
    turns |= {role: message.text for role, message in zip(roles, messages, strict=True)}
    *steps, rest = turns["assistant"].split(SEPARATOR)
    if rest.strip() and steps:
        raise DataError(f"text behind the last {SEPARATOR}; each step ends with one")
    if rest.strip():
        raise DataError(f"the assistant's turn has no {SEPARATOR}; each step ends with one")
    return model.item(StepTree.chain(turns["user"], steps), turns["system"] if "system" in roles else None)


def _steps_items(model: ServedModel, body: StepsRequest, on_too_long: OnTooLong | None = None) -> list[Item]:
    trees = [_tree(one, number) for number, one in enumerate(body.items)]
    num_on_paths = sum(_num_on_paths(tree) for tree in trees)
    if num_on_paths > PATHS:
        raise RefusedError(
            413, f"The paths of the trees have {num_on_paths:,} steps in all; the limit is {PATHS:,}. Send it in parts."
        )
    return [model.item(tree, on_too_long=on_too_long or body.on_too_long) for tree in trees]


def _tree(given: Solution | Text | Tree, number: int) -> StepTree:
    if isinstance(given, Text):
        return StepTree.chain(given.problem, cut_steps(given.solution), tree_id=number)
    if isinstance(given, Solution):
        return StepTree.chain(given.problem, given.steps, tree_id=number)
    if len(given.nodes) != len(given.parents):
        raise DataError(f"item {number}: {len(given.nodes)} nodes, but {len(given.parents)} parents")
    strange = next((i for i, parent in enumerate(given.parents) if not ROOT <= parent < i), None)
    if strange is not None:
        raise DataError(f"item {number}, node {strange}: its parent must be a node before it, or -1")
    return StepTree(number, given.problem, tuple(map(Step, given.nodes)), tuple(given.parents), ())


def _num_on_paths(tree: StepTree) -> int:
    depths = tree.depths()
    return sum(depths[leaf] + 1 for leaf in leaves_of(tree))


def _reward_items(model: ServedModel, body: RewardRequest) -> list[Item]:
    if len(body.query) != len(body.prompts):
        raise DataError(f"{len(body.query)} queries, but {len(body.prompts)} prompts")
    items = []
    for number, (query, prompt) in enumerate(zip(body.query, body.prompts, strict=True)):
        steps = cut_steps(_without_end(completion_in(query, prompt, number)))
        items.append(model.item(StepTree.chain(problem_in(prompt), steps)))
    return items


def _without_end(text: str) -> str:
    """A completion without white space and marks at its end; no regular expression, which may take quadratic time."""
    end = len(text)
    while end:
        if text[end - 1].isspace():
            end -= 1
        elif mark := next((mark for mark in _ENDS if text.endswith(mark, 0, end)), ""):
            end -= len(mark)
        else:
            break
    return text[:end]


def _head(kind: str, shape: str, model: ServedModel) -> dict[str, Any]:
    return {"id": f"{kind}-{next(_numbers)}", "object": shape, "created": int(time.time()), "model": model.name}


def _warnings(request: Request, items: Sequence[Item]) -> dict[str, list[str]]:
    """What the answer says about parts of the request that were not scored; the log has each sentence once."""
    found = list(dict.fromkeys(warning for item in items for warning in item.warnings))
    logged: set[str] = request.app.state.logged
    for warning in found:
        if warning not in logged and len(logged) < LOGGED:
            logged.add(warning)
            log.warning("%s", warning)
    return {"warnings": found} if found else {}


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
