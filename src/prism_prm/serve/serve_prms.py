"""`serve_prms`: check all settings, then import the heavy parts and serve."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prism_prm.backends.open_scorer import PrmOptions, check_scorer, remote_place
from prism_prm.backends.policy import PolicySettings, check_policy
from prism_prm.console import say
from prism_prm.errors import ConfigError, MissingExtraError
from prism_prm.paths import split_name
from prism_prm.search.methods import SearchSettings
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
    policy: PolicySettings | str | None = None,
    search: SearchSettings | None = None,
) -> int:
    """Serve PRMs and a page for results over HTTP until SIGTERM or Ctrl-C; accepted requests are finished first.

    Args:
        prms: the model name that clients use → a PRM, or its folder or hub id.
        settings: address, keys and limits.
        prm_options: how to load PRMs given as folders or hub ids, settings of critics, and a Ray cluster.
        results: folders of results, or NAME=FOLDER, that the page at `/` shows and watches.
        data: their texts, as for `view_results`; by default the files that the results name.
        split: for labeled data and pairs, the split that was measured.
        policy: a policy, or NAME=POLICY, whose searched answers /v1/chat/completions gives.
        search: the settings of these searches; method and n come from the model's name.

    Returns:
        The number of requests.

    Raises:
        PrismError: a PRM cannot be loaded, the address is in use, or a server for other machines has no keys.

    Example:
        >>> settings = ServeSettings(port=8000, cache_mb=1024)
        >>> serve_prms({"mine": "my-prm"}, settings)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    shown = ShownResults.named(results, data, split)
    if not prms and not shown.places:
        raise ConfigError("nothing to serve; name a PRM with --prm, or results with --results")
    policy = PolicySettings(policy) if isinstance(policy, str) else policy
    if policy is not None:
        if not prms:
            raise ConfigError(f"--policy {policy.name}: a search needs a PRM; name one with --prm")
        check_policy(replace(policy, name=split_name(policy.name)[1]))
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
        # Without it, the second half of a response waits 40 ms for the client to acknowledge the first. asyncio sets it
        # only on sockets whose protocol is TCP explicitly; connections inherit it from the listener.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise ConfigError(
            f"--host {settings.host} --port {settings.port}: cannot listen ({error.strerror}); choose another"
        ) from None
    with listener:
        from prism_prm.serve.server import make_server

        server = make_server(prms, settings, keys, prm_options=prm_options, results=shown, policy=policy, search=search)
        address, port = listener.getsockname()[:2]
        host = f"[{address}]" if ":" in address else address
        say(f"Listening on http://{host}:{port}; loading {', '.join(prms) or 'no PRM'}")
        server.run(sockets=[listener])
    if server.engine.failure is not None:
        raise server.engine.failure
    return server.server_state.total_requests
