"""A policy that workers of a cluster open themselves: what they open, and from which folders."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from prism_prm.lm.place import local_folder
from prism_prm.policies.base import Policy
from prism_prm.policies.load import PolicySettings, kind_and_place, open_policy


def policy_for_workers(settings: PolicySettings) -> tuple[Callable[[Mapping[str, str]], Policy], list[str]]:
    """What opens the policy where its folders are found, and these folders; a server has none."""
    kind, place = kind_and_place(settings)
    if kind != "hf":
        return functools.partial(_open, settings=settings, folder=None), []
    folder = os.path.abspath(local_folder(place))
    return functools.partial(_open, settings=settings, folder=folder), [folder]


def _open(found: Mapping[str, str], *, settings: PolicySettings, folder: str | None) -> Policy:
    return open_policy(settings if folder is None else replace(settings, name=f"hf:{found[folder]}"))
