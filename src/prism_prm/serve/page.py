"""The page at `/`, and the results that it shows: listed, and made when somebody looks or a file has changed."""

from __future__ import annotations

import threading
from collections import OrderedDict

from fastapi import APIRouter, Request, Response

from prism_prm.page.document import Document, Results, encode
from prism_prm.page.documents import find_documents, listing
from prism_prm.page.html import NAMES, own_file, served_page
from prism_prm.serve.engine import RefusedError

KEPT = 16
"""Documents that are kept as they were last made."""
TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
OPEN = ("/", *(f"/page/{name}" for name in NAMES))
"""The page's own files: they hold no data, so they need no key."""

router = APIRouter()


class Shelf:
    """The documents of results, each made once for a state of its files."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._made: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def documents(self) -> dict[str, Document]:
        """What is there now; a place that has become unreadable says so, and the others are shown."""
        return find_documents(self.results, show_broken=True)

    def made(self, name: str, document: Document, stamp: str) -> bytes:
        """The body for a state of the files; one at a time, since a large one takes memory."""
        with self._lock:
            known = self._made.pop(name, None)
            self._made[name] = found = known if known and known[0] == stamp else (stamp, encode(document.body()))
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return found[1]


@router.get("/", include_in_schema=False)
def page() -> Response:
    """The page on which people look at scores and results."""
    text, policy = served_page()
    return _safe(Response(text, media_type="text/html; charset=utf-8"), {"Content-Security-Policy": policy})


@router.get("/page/{name}", include_in_schema=False)
def files(name: str) -> Response:
    """A module or the style of the page."""
    if name not in NAMES:
        raise RefusedError(404, "The page has no such file.")
    return _safe(Response(own_file(name), media_type=TYPES[name.rpartition(".")[2]]), {})


@router.get("/v1/documents")
def documents(request: Request) -> Response:
    """The results that the page shows."""
    return _json(encode({"object": "list", "data": listing(_shelf(request).documents())}))


@router.get("/v1/documents/{name}")
def document(name: str, request: Request) -> Response:
    """One of them. With `If-None-Match`, 304 unless a file that it is made from has changed."""
    shelf = _shelf(request)
    found = shelf.documents().get(name)
    if found is None:
        raise RefusedError(404, f"There is no document {name[:100]!r}.")
    stamp = found.stamp()
    tag = {"ETag": f'"{stamp}"'}
    if request.headers.get("if-none-match") == tag["ETag"]:
        return Response(status_code=304, headers=tag)
    answer = _json(shelf.made(name, found, stamp))
    answer.headers.update(tag)
    return answer


def _shelf(request: Request) -> Shelf:
    found: Shelf = request.app.state.shelf
    return found


def _json(content: bytes) -> Response:
    return _safe(Response(content, media_type="application/json"), {"Cache-Control": "no-store"})


def _safe(response: Response, headers: dict[str, str]) -> Response:
    response.headers.update({"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"} | headers)
    return response
