"""Whether a name can be that of a scorer: a PRM's place, or a critic; checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism_prm.critics.load import check_critic, is_critic
from prism_prm.prms.place import check_prm, checkable


def check_scorer(place: str | Path, loading: Mapping[str, Any] | None, name: str = "") -> None:
    """Refuse at once what `open_prm` would refuse later, given the same options."""
    if is_critic(place):
        check_critic(str(place), (loading or {}).get("critic"))
    else:
        check_prm(place, **checkable(loading, name))
