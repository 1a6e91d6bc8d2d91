"""Serve PRMs: everything that can be refused is refused before anything heavy is imported."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prism_prm.backends.open_scorer import PrmOptions, check_scorer, remote_place
from prism_prm.console import say
from prism_prm.data.inputs import as_places
from prism_prm.errors import ConfigError, MissingExtraError
from prism_prm.serve.page_documents import ShownResults, find_documents
from prism_prm.serve.settings import ServeSettings, read_keys

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer

PACKAGES = ("fastapi", "prometheus_client", "swagger_ui_bundle", "uvicorn")
BACKLOG = 2048


def serve_prms(
    prms: Mapping[str, Scorer | str | Path],
    settings: ServeSettings | None = None,
    *,
    prm_options: PrmOptions | None = None,
    results: str | Path | Sequence[str | Path] = (),
    data: str | Path | Sequence[str | Path] = (),
    split: str | None = None,
) -> int:
    """Serve PRMs and a page to look at results over HTTP until SIGTERM or Ctrl-C, which lets accepted requests finish.

    Args:
        prms: the name under which clients ask for it → a PRM, or its folder or hub id.
        settings: address, keys and limits.
        prm_options: how PRMs given as folders or hub ids are loaded, how critics are asked, and a Ray cluster.
        results: folders of results, or NAME=FOLDER, that the page at `/` shows and watches.
        data: their texts, as for `view_results`; by default those that the results name.
        split: for labelled data and pairs, the split that was measured.

    Returns:
        How many requests were answered.

    Raises:
        PrismError: a PRM cannot be loaded, the address is taken, or a server for others has no keys.

    Example:
        >>> settings = ServeSettings(port=8000, cache_mb=1024)
        >>> serve_prms({"mine": "my-prm"}, settings)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    shown = ShownResults.named(as_places(results), tuple(map(str, as_places(data))), split)
    if not prms and not shown.places:
        raise ConfigError("there is nothing to serve; name a PRM with --prm, or results to look at with --results")
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "serve")
    upstream = next((str(prm) for prm in prms.values() if (place := remote_place(prm)) and place.kind == "prism"), "")
    keys = read_keys(settings, upstream)
    find_documents(shown)
    for name, prm in prms.items():
        if isinstance(prm, str | Path):
            check_scorer(prm, prm_options or PrmOptions(), name)
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
        # Or the second half of an answer waits for the client's acknowledgment of the first: 40 ms. asyncio sets it
        # only on sockets that name TCP as their protocol; connections inherit it from the listener.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise ConfigError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({error.strerror}); name another"
        ) from None
    with listener:
        from prism_prm.serve.server import make_server

        server = make_server(prms, settings, keys, prm_options=prm_options, results=shown)
        address, port = listener.getsockname()[:2]
        host = f"[{address}]" if ":" in address else address
        say(f"Listening on http://{host}:{port}; loading {', '.join(prms) or 'no PRM'}")
        server.run(sockets=[listener])
    if server.engine.failure is not None:
        raise server.engine.failure
    return server.server_state.total_requests
