"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Set before anything imports torch: two pytest workers with two threads each would crawl on two cores,
# and no test may reach for a hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data named by PRISM_DATA; tests that ask for it skip without it."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        pytest.skip("needs real data: set PRISM_DATA to the folder that holds it")
    return Path(folder)
