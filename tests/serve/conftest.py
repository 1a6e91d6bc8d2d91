"""Tiny PRMs to serve."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def prms() -> dict[str, Any]:
    """The two example PRMs, under names that clients may ask for."""
    from prism_prm import example_prm

    return {"base": example_prm("base"), "owner/prism": example_prm("prism")}
