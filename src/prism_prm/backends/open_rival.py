"""Names of the rivals of PRMs: scorers made of language models and outcome reward models. Imports nothing heavy.

`implicit:MODEL+REFERENCE`, `orm:MODEL`, and confidences of a policy (`hf:FOLDER` or `openai:URL`): `logprob:POLICY`,
`self-certainty:POLICY`, `lowest-group:POLICY` and `tail:POLICY`; the last two take a size, as in `tail-512:POLICY`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prism_prm.errors import ConfigError
from prism_prm.models.card import prm_folder
from prism_prm.models.load_settings import LoadSettings
from prism_prm.models.model_files import check_model
from prism_prm.net import server_address
from prism_prm.segments import SCORED

CONFIDENCES = ("logprob", "self-certainty", "lowest-group", "tail")
_NAME = re.compile(r"(implicit|orm|logprob|self-certainty|lowest-group|tail)(?:-(\d+))?:(.*)", re.DOTALL)
WINDOW = 2048
"""DeepConf's size of groups and tails, in tokens."""


@dataclass(frozen=True, slots=True)
class RivalPlace:
    """The name of a rival, in parts."""

    kind: str
    target: str
    reference: str = ""
    """The reference of an implicit PRM."""
    window: int = WINDOW


def rival_place(name: object) -> RivalPlace | None:
    """Parse the name of a rival; None for the name of another scorer."""
    parts = _NAME.fullmatch(name) if isinstance(name, str) else None
    if parts is None:
        return None
    kind, size, target = parts.groups()
    reference = ""
    if kind == "implicit":
        target, _, reference = target.partition("+")
        expected, fits = "implicit:MODEL+REFERENCE, two language models", bool(target and reference)
    elif kind == "orm":
        expected, fits = "orm:MODEL, a sequence classifier", bool(target)
    else:
        policy, _, place = target.partition(":")
        expected = f"{kind}:hf:FOLDER or {kind}:openai:URL"
        fits = policy in ("hf", "openai") and bool(place)
        if kind == "self-certainty" and policy == "openai":
            raise ConfigError(
                f"{name!r}: self-certainty needs the probabilities of all tokens, and servers return some; use "
                "lowest-group or tail"
            )
    if size is not None and (kind not in ("lowest-group", "tail") or int(size) < 1):
        fits = False
    if not fits:
        raise ConfigError(f"{name!r}: expected {expected}")
    return RivalPlace(kind, target, reference, int(size or WINDOW))


def check_rival(place: RivalPlace, load: LoadSettings) -> None:
    """Raise early if the models are missing or the address is wrong. Sends no request."""
    if place.kind != "implicit" and load.on_too_long == "window":
        raise ConfigError(f"load.on_too_long = 'window': {place.kind} reads whole solutions; use error or skip")
    if place.kind != "implicit" and load.thinking not in (None, SCORED):
        raise ConfigError(f"load.thinking = {load.thinking!r}: {place.kind} reads whole solutions; leave it out")
    policy, _, target = place.target.partition(":")
    if place.kind not in CONFIDENCES:
        policy, target = "hf", place.target
    if policy == "openai":
        server_address(target)
        target = str(load.local or "")
    for model in filter(None, (target, place.reference)):
        check_model(prm_folder(model))
