"""A real HTTP server on a loopback port that behaves, or misbehaves, as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""(status, body, headers); a body is bytes, chunks of bytes that are sent one by one, or anything else as JSON."""


@contextmanager
def serve(
    answer: Callable[[dict[str, Any]], Answer], models: Any = None, port: int = 0
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives `answer(body)` and names its models; yields its address and the list of what was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body | {"authorization": self.headers.get("Authorization"), "path": self.path})
            self._send(*answer(body))

        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "only-one"}]} if models is None else models)

        def _send(self, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
            chunks: Iterable[bytes] = said if isinstance(said, Iterator) else [_encode(said)]
            known = {} if isinstance(said, Iterator) else {"Content-Length": str(len(_encode(said)))}
            self.send_response(status)
            for name, value in (known | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(chunk)
                self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that has hung up
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


def _encode(said: Any) -> bytes:
    return said if isinstance(said, bytes) else json.dumps(said).encode()
