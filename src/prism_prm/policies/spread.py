"""A policy that workers of a cluster open themselves: what they open, and from which folders."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace

from prism_prm.job import Opening
from prism_prm.policies.base import Policy
from prism_prm.policies.load import PolicySettings, kind_and_place, open_policy


def policy_for_workers(settings: PolicySettings) -> Opening[Policy]:
    """What opens the policy where its folders are found; hub ids are downloaded there."""
    kind, place = kind_and_place(settings)
    named = place if kind == "hf" else settings.tokenizer
    if named is None or not os.path.isdir(named):
        return Opening(functools.partial(_open, settings=settings, folder=""), loads=kind == "hf")
    folder = os.path.abspath(named)
    return Opening(functools.partial(_open, settings=settings, folder=folder), (folder,), loads=kind == "hf")


def _open(found: Mapping[str, str], *, settings: PolicySettings, folder: str) -> Policy:
    if not folder:
        return open_policy(settings)
    kind, _ = kind_and_place(settings)
    here = found[folder]
    return open_policy(replace(settings, name=f"hf:{here}") if kind == "hf" else replace(settings, tokenizer=here))
