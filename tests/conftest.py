"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from prism_prm.cli.threads import settle_waiting

# Set before anything imports torch: two pytest workers with two threads each would crawl on two cores,
# whoever asks for more threads anyway has them wait as in the prism command, and no test may reach for a hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
settle_waiting(os.environ)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# The same examples in every run, however long each takes on a busy machine; `make fuzz` looks for new ones.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")

LONGEST = (
    "demo/test_demo.py", "training/test_run.py", "workers/test_ray_problems.py", "workers/test_ray.py",
    "rl/test_grpo_command.py", "cli/test_stopping.py", "rl/test_train_with_reward.py", "training/test_sharded_run.py",
)  # fmt: skip
"""Files that take longest, which `make test` begins with: otherwise one worker waits for the other in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """What a command has set in this process ends with its test: later tests' processes would inherit it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data named by PRISM_DATA; tests that ask for it skip without it."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        pytest.skip("needs real data: set PRISM_DATA to the folder that holds it")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Architecture → the folder of a tiny random language model (see tiny.py)."""
    from tiny import language_model

    root = tmp_path_factory.mktemp("models")
    return lambda kind, **settings: language_model(kind, root, **settings)


@pytest.fixture(scope="session")
def tiny_prm(tiny_lm: Callable[..., Path]) -> Callable[..., Any]:
    """(family, architecture, dtype="float64") → a tiny PRM, in 64 bits with exact norms. Shared: do not change it."""

    @lru_cache
    def make(family: str, kind: str, dtype: str = "float64") -> Any:
        from prism_prm import init_prm
        from tiny import exact_norms

        prm = init_prm(tiny_lm(kind), family=family, dtype=dtype)
        if dtype == "float64":
            exact_norms(prm.module)
        return prm

    return make


@pytest.fixture(scope="session")
def world_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny trained policy of the quick world: it writes steps, ends solutions, and errs at times."""
    from prism_prm.world.policy import train_policy
    from prism_prm.world.settings import world_settings
    from prism_prm.world.tokens import make_tokenizer

    world = world_settings("quick")
    tokenizer = make_tokenizer(world.modulus)
    folder = tmp_path_factory.mktemp("world") / "policy"
    model, *_ = train_policy(world.policy, world.pretraining, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def memorising_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny policy that has learned a few solutions by heart (see tiny.py)."""
    from tiny import memorising_policy

    return memorising_policy(tmp_path_factory.mktemp("memorising") / "policy")
