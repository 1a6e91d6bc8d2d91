"""Whether a name can be that of a scorer: a PRM's place, a server, a critic. Checked before anything heavy loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_prm.critics.load import check_critic, is_critic
from prism_prm.errors import ConfigError
from prism_prm.http import server_address
from prism_prm.prms.card import check_prm, checkable
from prism_prm.protocol import Scorer

REMOTE = ("prism", "vllm")
"""What stands before the address of a server."""


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """Where a remote PRM is."""

    kind: str
    """One of REMOTE."""
    url: str
    model: str
    """Which of the server's models; "" if it has only one."""


def remote_place(name: object) -> RemotePlace | None:
    """The server and model of `prism:http://host:8000#model`; None for the name of a local PRM."""
    kind, colon, rest = str(name).partition(":")
    if not isinstance(name, str) or not colon or kind not in REMOTE:
        return None
    url, _, model = rest.partition("#")
    return RemotePlace(kind, url, model)


def place_for_workers(prm: Scorer | str | Path) -> str | Path:
    """The place of a PRM that workers of a cluster can open; a critic, or a PRM that is open, is refused."""
    if not isinstance(prm, str | Path):
        raise ConfigError("workers of a Ray cluster load a PRM themselves: give its folder or hub id, not the PRM")
    if is_critic(prm):
        raise ConfigError(
            f"--ray: {prm} is a critic, and critics do not run on Ray. Serve its model on the cluster, e.g. with vLLM, "
            "and give critic:openai:URL with more --critic-concurrency"
        )
    return prm


def check_scorer(place: Scorer | str | Path, loading: Mapping[str, Any] | None, name: str = "") -> None:
    """Refuse at once what `opened_prm` would refuse later, given the same options."""
    if (loading or {}).get("ray") is not None:
        place_for_workers(place)
    if not isinstance(place, str | Path):
        return
    if is_critic(place):
        check_critic(str(place), (loading or {}).get("critic"))
        return
    remote = remote_place(place)
    if remote is None:
        check_prm(place, **checkable(loading, name))
        return
    server_address(remote.url)
    local = (loading or {}).get("local")
    if local is not None:
        check_prm(local, **checkable(loading, name))
    elif (loading or {}).get("check"):
        raise ConfigError(f"{place}: to check it, name its local copy with --local")
