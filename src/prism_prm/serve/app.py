"""The application: routes, errors in one shape, and a page of the API that needs no network."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from prism_prm import __version__
from prism_prm.critics.asking import BudgetError
from prism_prm.critics.verdicts import CriticError
from prism_prm.errors import DataError, PrismError
from prism_prm.http import ServerError
from prism_prm.serve.engine import Engine, RefusedError
from prism_prm.serve.gate import HUNG_UP, UNEXPECTED, Gate, error_body, log_failure
from prism_prm.serve.keys import KeyRing
from prism_prm.serve.page import Shelf
from prism_prm.serve.page import router as page_router
from prism_prm.serve.routes import router

ABOUT = (
    "Process reward models behind HTTP. Every route but /health and the page at / needs a key, where the "
    "server has keys."
)


def build_app(engine: Engine, keys: KeyRing, shelf: Shelf) -> Gate:
    """The application that serves an engine's models, and the results on a shelf."""

    @asynccontextmanager
    async def running(_app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close()

    app = FastAPI(
        title="prism serve", version=__version__, description=ABOUT, lifespan=running, docs_url=None, redoc_url=None
    )
    app.state.engine = engine
    app.state.shelf = shelf
    app.state.started = int(time.time())
    app.state.logged = set()
    app.include_router(router)
    app.include_router(page_router)
    _add_errors(app, engine.settings.deadline)
    _add_docs(app)
    return Gate(
        app,
        engine,
        keys,
        [route.path for route in (*router.routes, *page_router.routes) if isinstance(route, APIRoute)],
    )


def _add_errors(app: FastAPI, deadline: float) -> None:
    handlers: dict[Any, Any] = {
        RefusedError: lambda error: _error(error.status, str(error), error.retry_after),
        RequestValidationError: lambda error: _error(400, _invalid(error)),
        HTTPException: lambda error: _error(error.status_code, str(error.detail)),
        DataError: lambda error: _error(400, str(error)),
        ServerError: lambda error: _error(error.status, str(error), 1 if error.status == 503 else None),
        CriticError: lambda error: _error(502, str(error)),
        BudgetError: lambda error: _error(503, str(error)),
        PrismError: lambda error: _error(500, str(error)),
        TimeoutError: lambda error: _error(504, f"Not answered within {deadline:g} seconds.", 1),  # noqa: ARG005
        ConnectionError: lambda error: Response(status_code=HUNG_UP),  # noqa: ARG005
        Exception: lambda error: _error(500, UNEXPECTED),  # noqa: ARG005
    }
    for kind, handle in handlers.items():

        async def answer(request: Request, error: Exception, handle: Any = handle) -> Response:
            found: Response = handle(error)
            if found.status_code == 500 and isinstance(error, PrismError):  # the gate sees and logs all others
                log_failure(request.url.path, error)
            return found

        app.add_exception_handler(kind, answer)


def _error(status: int, message: str, retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse(error_body(status, message), status, headers)


def _invalid(error: RequestValidationError) -> str:
    """Where a body is not what it should be; what stands there is not repeated.

    Of a body that may have several forms, that which fits best is the one whose mistake lies deepest.
    """
    found = max(error.errors(), key=lambda one: len(one["loc"]))
    where = ".".join(str(part) for part in found["loc"] if part != "body")[:200]
    message = str(found["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _add_docs(app: FastAPI) -> None:
    """Swagger's page at /docs, with files that are installed and not fetched."""
    from swagger_ui_bundle import swagger_ui_path

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

    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        for path in schema["paths"].values():
            for route in path.values():
                route.get("responses", {}).pop("422", None)  # such bodies are answered with 400
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
