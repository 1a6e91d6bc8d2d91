"""The HTTP API: routes, conversion of requests to items and of scores to responses, and one format for errors."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from prism_prm import __version__
from prism_prm.aggregate import is_scored, solution_score
from prism_prm.backends.critic import BudgetError, CriticError
from prism_prm.calibration import right_probability, sigmoid
from prism_prm.errors import DataError, PrismError
from prism_prm.models.load_settings import OnTooLong
from prism_prm.net import ServerError
from prism_prm.rl.prompts import completion_in, problem_in
from prism_prm.rl.reward import split_end
from prism_prm.segments import split_text
from prism_prm.serve import schemas
from prism_prm.serve.admission import CLIENT_CLOSED, UNEXPECTED, Gate, RefusedError, error_response, log_failure
from prism_prm.serve.chat import complete_chat, while_connected
from prism_prm.serve.engine import ServeEngine
from prism_prm.serve.models import ItemScores, ServedItem, ServedModel
from prism_prm.serve.page_documents import Document, ShownResults, encode, find_documents, listing
from prism_prm.serve.page_html import NAMES, own_file, served_page
from prism_prm.serve.settings import KeyRing
from prism_prm.tree import ROOT, Step, StepTree

ABOUT = (
    "Process reward models behind HTTP. If the server has keys, every route but /health and the page at / needs one."
)
SEPARATOR = "<extra_0>"
"""Ends a step in the assistant's turn."""
PATHS = 500_000
"""The limit of steps on all paths of a request's trees. Each path gets a score, and a deep tree with many leaves has
far more steps on its paths than nodes."""
LOGGED = 100
"""How many distinct warnings are logged; every request could cause another one."""
KEPT = 16
"""How many documents are cached."""
OPEN_PATHS = frozenset({"/health", "/", *(f"/page/{name}" for name in NAMES)})
"""Paths that need no key: the page's own files hold no data."""
TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

log = logging.getLogger(__name__)
router = APIRouter()
_answer_ids = itertools.count()


class DocumentCache:
    """A cache of documents; an entry is valid while the files of its document do not change."""

    def __init__(self) -> None:
        self._bodies: dict[str, tuple[str, bytes]] = {}
        self._lock = threading.Lock()

    def body(self, name: str, document: Document, stamp: str) -> bytes:
        """The body for a state of the files; built one at a time, since a large one takes memory."""
        with self._lock:
            kept = self._bodies.pop(name, None)
            if kept is None or kept[0] != stamp:
                kept = stamp, encode(document.body())
            self._bodies[name] = kept
            if len(self._bodies) > KEPT:
                del self._bodies[next(iter(self._bodies))]
            return kept[1]


def build_app(engine: ServeEngine, keys: KeyRing, results: ShownResults) -> Gate:
    """The application that serves the models of an engine, and results."""

    @asynccontextmanager
    async def running(_app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close()

    app = FastAPI(
        title="prism serve", version=__version__, description=ABOUT, lifespan=running, docs_url=None, redoc_url=None
    )
    app.state.engine = engine
    app.state.cache = DocumentCache()
    app.state.results = results
    app.state.started = int(time.time())
    app.state.logged = set()
    app.include_router(router)
    kinds = RefusedError, RequestValidationError, HTTPException, PrismError, TimeoutError, ConnectionError, Exception
    for kind in kinds:
        app.add_exception_handler(kind, _answer_error)
    # Swagger UI from installed files, not from a CDN.
    app.mount("/docs/files", StaticFiles(directory=swagger_ui_path), name="docs-files")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title="prism serve",
            swagger_js_url="docs/files/swagger-ui-bundle.js",
            swagger_css_url="docs/files/swagger-ui.css",
            swagger_favicon_url="docs/files/favicon-32x32.png",
        )

    for path in app.openapi()["paths"].values():
        for route in path.values():
            route["responses"].pop("422", None)  # invalid bodies get 400
    return Gate(app, engine, keys, {route.path for route in router.routes if isinstance(route, APIRoute)}, OPEN_PATHS)


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case RefusedError():
            return error_response(error.status, str(error), error.retry_after)
        case RequestValidationError():
            # Of several possible schemas, the one that fits best has the deepest error. The input is not repeated.
            found = max(error.errors(), key=lambda one: len(one["loc"]))
            where = ".".join(str(part) for part in found["loc"] if part != "body")[:200]
            message = str(found["msg"]).removeprefix("Value error, ")
            return error_response(400, f"{where}: {message}" if where else message)
        case HTTPException():
            return error_response(error.status_code, str(error.detail))
        case DataError():
            return error_response(400, str(error))
        case ServerError():
            return error_response(error.status, str(error), 1 if error.status == 503 else None)
        case CriticError():
            return error_response(502, str(error))
        case BudgetError():
            return error_response(503, str(error))
        case PrismError():
            log_failure(request.url.path, error)
            return error_response(500, str(error))
        case TimeoutError():
            deadline = request.app.state.engine.settings.answer_seconds
            return error_response(504, f"Not answered within {deadline:g} seconds.", 1)
        case ConnectionError():
            return Response(status_code=CLIENT_CLOSED)
    return error_response(500, UNEXPECTED)  # the gate logs it


def _described(answer: type) -> dict[str, Any]:
    """The responses of a route for OpenAPI."""
    errors = {
        400: "invalid request", 401: "no key", 404: "no such model", 413: "too large", 429: "busy: retry later",
        502: "the policy, or the server of a critic or remote PRM, failed",
        503: "not ready, or a server behind it is busy",
        504: "timed out",
    }  # fmt: skip
    return {
        "responses": {200: {"model": answer}}
        | {status: {"model": schemas.ErrorAnswer, "description": text} for status, text in errors.items()}
    }


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the server is running; needs no key."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """Whether the server accepts requests: the models are loaded, and it is not shutting down."""
    if not request.app.state.engine.is_ready:
        raise RefusedError(503, "The server is loading or shutting down.", 5)
    return {"status": "ready"}


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of prism-prm."""
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus format."""
    page = generate_latest(request.app.state.engine.metrics.registry)
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/models", responses={200: {"model": schemas.ModelsAnswer}})
async def models(request: Request) -> Response:
    """The served models and their properties."""
    return _json({"object": "list", "data": _cards(request)})


@router.get("/v1/models/{name:path}", responses={
    200: {"model": schemas.ServedCard | schemas.SearchCard},
    404: {"model": schemas.ErrorAnswer, "description": "no such model"},
})  # fmt: skip
async def retrieve_model(name: str, request: Request) -> Response:
    """One model; it may have another n than those listed, such as my-policy@beam-8."""
    await ready(request)  # while models load, it is unknown whether this one exists
    engine: ServeEngine = request.app.state.engine
    cards = {card["id"]: card for card in _cards(request)}
    if name in cards:
        return _json(cards[name])
    if engine.searches is None:
        raise RefusedError(404, f"The model {name[:100]!r} does not exist. Models: {', '.join(cards)}.")
    try:
        return _json(engine.searches.card(name) | {"created": request.app.state.started})
    except DataError as error:
        raise RefusedError(404, str(error)) from None


@router.post("/pooling", **_described(schemas.PoolingAnswer))
async def pooling(body: schemas.PoolingRequest, request: Request) -> Response:
    """Score the steps of chats, texts or token ids, like vLLM."""
    model = _model(request, body.model)
    items, found = await _score(request, model, lambda: _pooling_items(model, body))
    data = []
    for i, scores in enumerate(found):
        log_odds_N = scores.log_odds_NO[:, 0]
        # Not calibrated, as vLLM's are not. Each comes from the log-odds: 1 minus the rounded other would lose digits.
        rows = np.stack([sigmoid(-log_odds_N), sigmoid(log_odds_N)], axis=1).tolist()
        data.append({"index": i, "object": "pooling", "data": rows})
    return _answer(request, model, "pooling", items, found, {"data": data})


@router.post("/v1/steps", **_described(schemas.StepsAnswer))
async def steps(body: schemas.StepsRequest, request: Request) -> Response:
    """Score the steps of solutions and trees: probabilities, log-odds, first error, and the score of each solution."""
    model = _model(request, body.model)
    items, found = await _score(request, model, lambda: _steps_items(model, body))
    about = {"model_hash": model.model_hash, "aggregator": model.aggregator, "threshold": model.threshold}
    answers = [
        _steps_answer(model, item, scores, isinstance(given, schemas.Text))
        for given, item, scores in zip(body.items, items, found, strict=True)
    ]
    return _answer(request, model, "steps", items, found, about | {"items": answers})


@router.post("/v1/tokens", **_described(schemas.TokensAnswer))
async def tokens(body: schemas.StepsRequest, request: Request) -> Response:
    """Count the tokens of solutions and trees without scoring them."""
    model = _model(request, body.model)
    engine: ServeEngine = request.app.state.engine
    items = await engine.encode(
        lambda: list(map(model.counted, _steps_items(model, body, "skip"))),
        request.scope["started"],
        request.scope["size"],
    )
    return _json({"model": model.name, "items": list(map(_sizes, items))})


@router.post("/get_reward", **_described(schemas.RewardAnswer))
async def get_reward(
    body: schemas.RewardRequest, request: Request, model: str | None = Query(None, description="The model to use.")
) -> Response:
    """The reward of each completion for OpenRLHF: its score as a solution."""
    served = _model(request, model)

    def make() -> list[ServedItem]:
        if len(body.query) != len(body.prompts):
            raise DataError(f"{len(body.query)} queries, but {len(body.prompts)} prompts")
        items = []
        for number, (query, prompt) in enumerate(zip(body.query, body.prompts, strict=True)):
            completion, _ = split_end(completion_in(query, prompt, number))
            items.append(served.item(StepTree.chain(problem_in(prompt), split_text(completion, served.segmenter))))
        return items

    items, found = await _score(request, served, make)
    scores = [
        _judged(served, right_probability(one.log_odds_NO[:, 0], served.calibration), item.tree)
        for one, item in zip(found, items, strict=True)
        if item.tree is not None
    ]
    rewards = [one["score"] or 0.0 for one in scores]
    logs = {
        "steps": [float(len(one.log_odds_NO)) for one in found],
        "has_error": [float(one["first_error"] is not None) for one in scores],
    }
    return _json({"rewards": rewards, "scores": rewards, "extra_logs": logs} | _warnings(request, items))


@router.post("/v1/chat/completions", **_described(schemas.ChatAnswer))
async def chat_completions(body: schemas.ChatRequest, request: Request) -> Response:
    """The answer to a chat, searched with the policy and a PRM; the model's name says how, as in my-policy@beam-16."""
    return await complete_chat(body, request)


@router.get("/", include_in_schema=False)
def page() -> Response:
    """The page that shows scores and results."""
    text, policy = served_page()
    headers = SAFE | {"Content-Security-Policy": policy}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/page/{name}", include_in_schema=False)
def files(name: str) -> Response:
    """A script or the stylesheet of the page."""
    if name not in NAMES:
        raise RefusedError(404, "The page has no such file.")
    return Response(own_file(name), media_type=TYPES[name.rpartition(".")[2]], headers=SAFE)


@router.get("/v1/documents")
def documents(request: Request) -> Response:
    """The results that the page shows."""
    listed = encode({"object": "list", "data": listing(_documents(request))})
    return Response(listed, media_type="application/json", headers=SAFE | {"Cache-Control": "no-store"})


@router.get("/v1/documents/{name}")
def document(name: str, request: Request) -> Response:
    """One document. With `If-None-Match`, 304 unless one of its files has changed."""
    cache: DocumentCache = request.app.state.cache
    found = _documents(request).get(name)
    if found is None:
        raise RefusedError(404, f"There is no document {name[:100]!r}.")
    stamp = found.stamp()
    tag = {"ETag": f'"{stamp}"'}
    if request.headers.get("if-none-match") == tag["ETag"]:
        return Response(status_code=304, headers=tag)
    headers = SAFE | {"Cache-Control": "no-store"} | tag
    return Response(cache.body(name, found, stamp), media_type="application/json", headers=headers)


def _documents(request: Request) -> dict[str, Document]:
    """The results, and the last searches of the caller's key."""
    searches = request.app.state.engine.searches
    own: dict[str, Document] = {} if searches is None else searches.documents(request.scope["owner"])
    return own | find_documents(request.app.state.results, show_broken=True)


def _cards(request: Request) -> list[dict[str, Any]]:
    """The models as /v1/models lists them; none while they load."""
    served: Sequence[ServedModel] = list(request.app.state.engine.models.values())
    found = [
        {
            "id": model.name, "object": "model", "created": request.app.state.started, "owned_by": "prism",
            "max_model_len": model.scorer.context, "identity": model.identity, "model_hash": model.model_hash,
            "outputs": list(model.scorer.outputs), "aggregator": model.aggregator, "threshold": model.threshold,
            "calibration": model.calibration, "segmenter": model.segmenter, "thinking": model.thinking,
        }
        for model in served
    ]  # fmt: skip
    searches = request.app.state.engine.searches
    cards = searches.cards() if searches is not None and served else []
    created = {"created": request.app.state.started}
    return [*found, *(card | created for card in cards)]


def _model(request: Request, name: str | None) -> ServedModel:
    served: dict[str, ServedModel] = request.app.state.engine.models
    if name is None and len(served) == 1:
        return next(iter(served.values()))
    if name is None:
        raise DataError(f"Several models are served: {', '.join(served)}; name one of them as model.")
    if name not in served:
        raise RefusedError(404, f"The model {name[:100]!r} does not exist. Models: {', '.join(served)}.")
    return served[name]


async def _score(
    request: Request, model: ServedModel, make: Callable[[], Sequence[ServedItem]]
) -> tuple[Sequence[ServedItem], list[ItemScores]]:
    """The items of a request and their scores; canceled when the client disconnects."""
    engine: ServeEngine = request.app.state.engine
    scope = request.scope
    work = engine.score(model.name, scope["owner"], make, scope["started"], scope["size"])
    return await while_connected(request, work)


def _pooling_items(model: ServedModel, body: schemas.PoolingRequest) -> list[ServedItem]:
    """Texts and token ids are used as they are. In a chat, the problem is the user's turn and the steps are the
    assistant's, laid out as the PRM's family needs them.
    """
    if (body.messages is None) == (body.input is None):
        raise DataError("give messages or input")
    if body.messages is None:
        given: Any = body.input
        inputs = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
        return [
            model.text(one, add_special_tokens=body.add_special_tokens) if isinstance(one, str) else model.sequence(one)
            for one in inputs
        ]
    roles = ["system" if message.role == "developer" else message.role for message in body.messages]
    if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
        raise DataError(f"expected turns of user and assistant, perhaps after a system's; got {', '.join(roles)[:200]}")
    turns = {role: message.text for role, message in zip(roles, body.messages, strict=True)}
    *steps, rest = turns["assistant"].split(SEPARATOR)
    if rest.strip() and steps:
        raise DataError(f"text after the last {SEPARATOR}; each step ends with one")
    if rest.strip():
        raise DataError(f"the assistant's turn has no {SEPARATOR}; each step ends with one")
    return [model.item(StepTree.chain(turns["user"], steps), turns.get("system"))]


def _steps_items(
    model: ServedModel, body: schemas.StepsRequest, on_too_long: OnTooLong | None = None
) -> list[ServedItem]:
    trees = [_tree(one, number, model.segmenter) for number, one in enumerate(body.items)]
    num_on_paths = 0
    for tree in trees:
        depths = tree.depths()
        num_on_paths += sum(depths[leaf] + 1 for leaf in _leaves(tree))
    if num_on_paths > PATHS:
        raise RefusedError(
            413, f"The paths of the trees have {num_on_paths:,} steps in all; the limit is {PATHS:,}. Send it in parts."
        )
    return [model.item(tree, on_too_long=on_too_long or body.on_too_long) for tree in trees]


def _tree(given: schemas.Solution | schemas.Text | schemas.Tree, number: int, segmenter: str) -> StepTree:
    if isinstance(given, schemas.Text):
        return StepTree.chain(given.problem, split_text(given.solution, segmenter), tree_id=number)
    if isinstance(given, schemas.Solution):
        return StepTree.chain(given.problem, given.steps, tree_id=number)
    if len(given.nodes) != len(given.parents):
        raise DataError(f"item {number}: {len(given.nodes)} nodes, but {len(given.parents)} parents")
    strange = next((i for i, parent in enumerate(given.parents) if not ROOT <= parent < i), None)
    if strange is not None:
        raise DataError(f"item {number}, node {strange}: its parent must be a node before it, or -1")
    return StepTree(number, given.problem, tuple(map(Step, given.nodes)), tuple(given.parents), ())


def _answer(
    request: Request,
    model: ServedModel,
    kind: str,
    items: Sequence[ServedItem],
    found: Sequence[ItemScores],
    content: dict[str, Any],
) -> Response:
    """A response with the common fields: id, usage and warnings."""
    tokens, cached = sum(scores.tokens for scores in found), sum(scores.cached_tokens for scores in found)
    head = {
        "id": f"{kind}-{next(_answer_ids)}", "object": "list" if kind == "pooling" else kind,
        "created": int(time.time()), "model": model.name,
    }  # fmt: skip
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "cached_tokens": cached}
    return _json(head | content | {"usage": usage} | _warnings(request, items))


def _warnings(request: Request, items: Sequence[ServedItem]) -> dict[str, list[str]]:
    """Warnings about parts of the request that were not scored; each is logged once."""
    found = list(dict.fromkeys(warning for item in items for warning in item.warnings))
    logged: set[str] = request.app.state.logged
    for warning in found:
        if warning not in logged and len(logged) < LOGGED:
            logged.add(warning)
            log.warning("%s", warning)
    return {"warnings": found} if found else {}


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _sizes(item: ServedItem) -> dict[str, Any]:
    """The tokens of an item."""
    encoded = item.encoded
    return {
        "tokens": item.tokens,
        "prompt_tokens": None if encoded is None else len(encoded.prompt),
        "step_tokens": None if encoded is None else list(map(len, encoded.ids)),
    }


def _steps_answer(model: ServedModel, item: ServedItem, scores: ItemScores, is_text: bool) -> dict[str, Any]:
    """An item of the response of /v1/steps; NaN becomes null."""
    tree = item.tree
    assert tree is not None, "steps come as trees"
    probability_N = right_probability(scores.log_odds_NO[:, 0], model.calibration)
    answer: dict[str, Any] = {
        "probabilities": probability_N.tolist(),
        "log_odds": [dict(zip(model.scorer.outputs, values, strict=True)) for values in scores.log_odds_NO.tolist()],
        "first_error": None,
        "score": None,
        "leaves": None,
        "too_long": list(scores.too_long),
        "cached_tokens": scores.cached_tokens,
        **_sizes(item),
        "tokens": scores.tokens,
    }
    if tree.trunk or not tree.nodes:
        answer |= _judged(model, probability_N, tree)
    else:
        paths = {leaf: tree.path(leaf) for leaf in _leaves(tree)}
        answer["leaves"] = [{"node": leaf} | _judged(model, probability_N, tree, path) for leaf, path in paths.items()]
    return answer | ({"steps": tree.texts(tree.trunk)} if is_text else {})


def _judged(
    model: ServedModel, probability_N: np.ndarray, tree: StepTree, path: Sequence[int] | None = None
) -> dict[str, Any]:
    """The first error and the score of a solution; the score is null without steps, or if a step has no score."""
    nodes = range(len(probability_N)) if path is None else path
    values_N = probability_N[list(nodes)]
    wrong_N = np.flatnonzero(values_N <= model.threshold)
    steps = tree.texts(nodes)
    return {
        "first_error": nodes[wrong_N[0]] if len(wrong_N) else None,
        "score": solution_score(values_N, model.aggregator, steps) if is_scored(values_N, steps) else None,
    }


def _leaves(tree: StepTree) -> list[int]:
    inner = set(tree.parents)
    return [node for node in range(len(tree.nodes)) if node not in inner]
