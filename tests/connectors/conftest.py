"""The tests of one framework, in its own environment: `make test-connectors ONLY=verl`. Else none is collected."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import pytest
import samples

FRAMEWORK = os.environ.get("PRISM_CONNECTORS", "")
collect_ignore_glob = [] if FRAMEWORK else ["test_*.py"]


if FRAMEWORK == "openrlhf":  # vLLM is not installed: it would take gigabytes, and the tests have an engine of their own
    for _module, _name in (("vllm", "SamplingParams"), ("vllm.inputs", "TokensPrompt"), ("vllm.utils", "random_uuid")):
        sys.modules[_module] = ModuleType(_module)
        setattr(sys.modules[_module], _name, None)


def pytest_ignore_collect(collection_path: os.PathLike[str]) -> bool | None:
    name = os.path.basename(collection_path)
    return True if name.startswith("test_") and name != f"test_{FRAMEWORK}.py" else None


def folder() -> str:
    from prism_prm import example_folder

    return str(example_folder("prism"))


@pytest.fixture(params=["folder", "url"])
def prm(request: pytest.FixtureRequest) -> str:
    """The shipped PRM, loaded in this process, and behind a server."""
    if request.param == "url":
        return f"prism:{os.environ['PRISM_SERVER']}"
    if find_spec("torch") is None:
        pytest.skip("no torch here: by URL only")
    return folder()


@pytest.fixture
def dead_server(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a server that does not answer; it is tried once."""
    from prism_prm.rl import reward

    original = reward.RetryPolicy
    monkeypatch.setattr(reward, "RetryPolicy", lambda timeout, _retries: original(timeout, 0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"prism:http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def scores() -> list[float]:
    """What the PRM gives each of `samples.STEPS`."""
    found: list[float] = samples.expected()["scores"]
    return found


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("PRISM_RL_")]:
        monkeypatch.delenv(name)
    return
