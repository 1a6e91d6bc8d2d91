"""`prism search` and `prism label` by workers elsewhere: what travels is pickled; the files are those of one process.

No cluster is needed: two copies of what workers hold answer in any order, one of them twice.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prism_prm import evaluate_prm, init_prm, rerank_pool
from prism_prm.backends.open_scorer import PrmOptions, prm_for_workers
from prism_prm.backends.policy import PolicySettings, Sampling, policy_for_workers
from prism_prm.errors import ConfigError
from prism_prm.job import Chunk, Opening
from prism_prm.ray import Ray, RaySettings
from prism_prm.search.label_rules import LabelSettings
from prism_prm.search.label_task import label_task
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import LabelRecipe, SearchRecipe
from prism_prm.search.search_task import search_task

cloudpickle = pytest.importorskip("cloudpickle")
NUM_PROBLEMS = 7
SAMPLING = Sampling(temperature=1.0, max_step_tokens=4, max_tokens=12, stop=" ")
RAY = RaySettings(address="auto", workers=2)


def sent(thing: Any) -> Any:
    """As it arrives in another process."""
    return cloudpickle.loads(cloudpickle.dumps(thing))


class Far:
    """Workers in other processes, as far as one can tell."""

    def __init__(self, opening: Opening[Any]) -> None:
        self.held = [sent(opening).make({folder: folder for folder in opening.folders}) for _ in range(2)]
        self.rng = random.Random(0)

    num_workers = 2

    def run(
        self,
        act: Any,
        chunks: Iterable[Chunk[Any] | None],
        *,
        queued: bool = True,  # noqa: ARG002
    ) -> Iterator[tuple[Chunk[Any], Any]]:
        waiting = [chunk for chunk in chunks if chunk is not None]
        self.rng.shuffle(waiting)
        for number, chunk in enumerate(waiting):
            worker = self.rng.choice(self.held)
            for _ in range(2 if number == 1 else 1):  # the second one is lost once, after it was done
                made = sent(act)(worker, sent(chunk.work))
                done = sent(list(made) if isinstance(made, Iterator) else made)
            yield chunk, done

    def ask(self, act: Callable[[Any], Any]) -> Any:
        return sent(sent(act)(self.held[0]))

    def rates(self) -> str:
        return "worker 1: 2.0/s, worker 2: 1.0/s"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers were asked to hold the same of."""
    names: list[str] = []

    @contextlib.contextmanager
    def open_far(ray: Ray, opening: Opening[Any], *, alike: Any) -> Iterator[Far]:
        assert ray.settings is RAY
        assert opening.loads
        far = Far(opening)
        assert len({alike(one) for one in far.held}) == 1
        names.extend(opening.folders)
        yield far

    monkeypatch.setattr(Ray, "open", open_far)
    return names


@pytest.fixture(scope="module")
def place(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("far")
    init_prm(tiny_lm("qwen2"), family="qwen").save(root / "prm")
    (root / "policy").symlink_to(tiny_lm("qwen2"))
    lines = [json.dumps({"problem": f"What is {i} + 2?", "answer": "3"}) + "\n" for i in range(NUM_PROBLEMS)]
    (root / "task.jsonl").write_text("".join(lines))
    return root


def search(place: Path, out: Path, ray: RaySettings | None, method: str) -> None:
    recipe = SearchRecipe(
        task=str(place / "task.jsonl"), policy=PolicySettings(f"hf:{place / 'policy'}"), prm=(str(place / "prm"),),
        n=(4,), at_once=2, search=SearchSettings(method, max_steps=3, sampling=SAMPLING),
    )  # fmt: skip
    search_task(recipe, out, prm_options=PrmOptions(ray=ray), judges=1)


def label(place: Path, out: Path, ray: RaySettings | None, method: str, consensus: bool = False) -> None:
    recipe = LabelRecipe(
        task=str(place / "task.jsonl"), policy=PolicySettings(f"hf:{place / 'policy'}"), at_once=3,
        label=LabelSettings(method, rollouts=2, solutions=2, max_policy_tokens=100, sampling=SAMPLING),
        consensus=str(place / "prm") if consensus else None,
    )  # fmt: skip
    label_task(recipe, out, judges=1, ray=ray)


@pytest.mark.parametrize(
    ("work", "method", "folders"),
    [
        (search, "beam", ["policy", "prm"]),
        (search, "best-of-n", ["policy", "prm"]),
        (label, "monte-carlo", ["policy"]),
        (partial(label, consensus=True), "monte-carlo", ["policy", "prm"]),
    ],
)
def test_files_are_those_of_one_process(
    place: Path, tmp_path: Path, asked: list[str], work: Callable[..., None], method: str, folders: list[str]
) -> None:
    work(place, tmp_path / "one", None, method)
    work(place, tmp_path / "two", RAY, method)
    assert [Path(name).name for name in asked] == folders
    for name in ["metrics.json", "pools" if work is search else "trees.parquet"]:
        files = [tmp_path / "one" / name]
        files = sorted(files[0].iterdir()) if files[0].is_dir() else files
        for one in files:
            two = tmp_path / "two" / one.relative_to(tmp_path / "one")
            if name == "metrics.json":
                assert without_times(two) == without_times(one)
            else:
                assert two.read_bytes() == one.read_bytes()
    work(place, tmp_path / "two", RAY, method)  # finds all of it done


def without_times(path: Path) -> Any:
    metrics = json.loads(path.read_text())
    for point in metrics.get("points", []):
        del point["seconds"]
    return metrics


@pytest.mark.parametrize(
    ("prm", "said"),
    [("critic:openai:http://x/v1", "critic:openai:http://x/v1 is a critic, and critics do not run on Ray"),
     (object(), "workers of a Ray cluster load a PRM themselves")],
)  # fmt: skip
def test_what_workers_cannot_hold_is_refused_before_anything_is_sampled(
    place: Path, tmp_path: Path, asked: list[str], prm: Any, said: str
) -> None:
    recipe = SearchRecipe(
        task=str(place / "task.jsonl"), policy=PolicySettings(f"hf:{place / 'policy'}"), prm=("mine",),
        n=(4,), search=SearchSettings("best-of-n", sampling=SAMPLING),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        search_task(recipe, tmp_path, prms={"mine": prm}, prm_options=PrmOptions(ray=RAY), judges=1)
    assert asked == []
    with pytest.raises(ConfigError, match=said):
        rerank_pool("pool.jsonl", tmp_path, prms={"mine": prm}, prm_options=PrmOptions(ray=RAY))
    with pytest.raises(ConfigError, match=said):
        evaluate_prm(prm, "labeled", tmp_path, data="labelled.jsonl", prm_options=PrmOptions(ray=RAY))


@pytest.mark.parametrize(
    ("settings", "opened_there", "loads"),
    [({"name": "hf:{here}"}, {"name": "hf:/there"}, True),
     ({"name": "hf:owner/name"}, {"name": "hf:owner/name"}, True),
     ({"name": "openai:http://x/v1", "tokenizer": "{here}"}, {"tokenizer": "/there"}, False),
     ({"name": "openai:http://x/v1", "tokenizer": "owner/name"}, {"tokenizer": "owner/name"}, False)],
)  # fmt: skip
def test_a_policy_is_opened_where_its_folder_is_found(
    settings: dict[str, str], opened_there: dict[str, str], loads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hub ids travel as they are, and nothing is downloaded here."""
    monkeypatch.setattr("prism_prm.backends.policy.open_policy", lambda settings: settings)
    given = PolicySettings(**{key: value.format(here=tmp_path) for key, value in settings.items()})
    opening = policy_for_workers(given)
    assert opening.folders == ((str(tmp_path),) if "/there" in "".join(opened_there.values()) else ())
    assert opening.loads == loads
    assert opening.make({str(tmp_path): "/there"}) == replace(given, **opened_there)


def test_a_cache_that_does_not_exist_yet_is_where_this_process_would_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opening: Any = prm_for_workers("owner/name", PrmOptions(cache=Path("cache")))
    assert opening.make.keywords["load"]["cache"] == str(tmp_path / "cache")


@pytest.mark.parametrize(("prm", "loads"), [("owner/name", True), ("prism:http://x:8000", False)])
def test_a_served_prm_needs_no_gpu(prm: str, loads: bool) -> None:
    assert prm_for_workers(prm, PrmOptions()).loads == loads
