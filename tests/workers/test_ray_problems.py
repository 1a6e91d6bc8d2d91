"""`prism search` and `prism label` on a Ray cluster: the files of one process, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.backends.policy import PolicySettings, Sampling
from prism_prm.ray import RaySettings
from prism_prm.ray.pool import RayPool
from prism_prm.search.label_rules import LabelSettings
from prism_prm.search.label_task import label_task
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import LabelRecipe, SearchRecipe
from prism_prm.search.search_task import search_task
from ray_cluster import RayCluster

NUM_PROBLEMS = 11
AT_ONCE = 2
SAMPLING = Sampling(temperature=1.0, max_step_tokens=8, max_tokens=40)
pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(world_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems and a PRM, beside the policy."""
    from prism_prm import init_prm  # here, since drivers import this module and should not wait for torch
    from prism_prm.lab.world.build import world_settings
    from prism_prm.lab.world.policy import PRM_SETTINGS
    from prism_prm.lab.world.problems import draw_problems

    root = tmp_path_factory.mktemp("problems")
    init_prm(world_policy, family="qwen", settings=PRM_SETTINGS).save(root / "prm")
    (root / "policy").symlink_to(world_policy)
    problems = draw_problems(world_settings("quick").problems, NUM_PROBLEMS, np.random.default_rng(1))
    lines = [json.dumps({"problem": one.text, "answer": one.answer}) + "\n" for one in problems]
    (root / "task.jsonl").write_text("".join(lines))
    return root


def search(place: Path, out: Path, ray: RaySettings | None = None, method: str = "beam", **more: Any) -> None:
    recipe = SearchRecipe(
        task=str(place / "task.jsonl"), policy=PolicySettings(f"hf:{place / 'policy'}"), prm=(str(place / "prm"),),
        n=(4,), at_once=AT_ONCE, search=SearchSettings(method, max_steps=6, sampling=SAMPLING),
    )  # fmt: skip
    search_task(recipe, out, prm_options=PrmOptions(ray=ray), judges=1, **more)


def sample(place: Path, out: Path, ray: RaySettings | None = None, **more: Any) -> None:
    search(place, out, ray, "best-of-n", **more)


def label(place: Path, out: Path, ray: RaySettings | None = None, **more: Any) -> None:
    recipe = LabelRecipe(
        task=str(place / "task.jsonl"), policy=PolicySettings(f"hf:{place / 'policy'}"), at_once=AT_ONCE,
        label=LabelSettings(rollouts=4, solutions=2, max_policy_tokens=400, sampling=SAMPLING),
    )  # fmt: skip
    label_task(recipe, out, judges=1, ray=ray, **more)


def results(folder: Path) -> dict[str, Any]:
    """All that a run found: pools or trees, and numbers that are not times."""
    found: dict[str, Any] = {
        path.name: path.read_bytes() for path in [*folder.glob("pools/*.jsonl"), *folder.glob("trees.parquet")]
    }
    assert found
    metrics = json.loads((folder / "metrics.json").read_text())
    for point in metrics.get("points", []):
        del point["seconds"]
    return found | {"metrics": metrics}


def num_done(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in folder.glob("journal/*.jsonl"))


def test_samples_are_those_of_one_process(cluster: RayCluster, place: Path, tmp_path: Path) -> None:
    """The other two are compared when a worker or the driver was killed."""
    sample(place, tmp_path / "one")
    sample(place, tmp_path / "two", RaySettings(address=cluster.address, workers=2))
    assert results(tmp_path / "two") == results(tmp_path / "one")


def kill_worker(
    cluster: RayCluster,
    place: Path,
    folder: Path,
    work: Callable[..., None],
    seed: int,
    patch: pytest.MonkeyPatch,
    said: list[str],
) -> None:
    """When so many problems are done, a worker that is at work is killed."""
    import ray

    enough, killed = random.Random(seed).randrange(1, NUM_PROBLEMS - 4), list[int]()
    answering = RayPool._wait

    def kills(self: Any) -> Any:
        """Chunks were just given to all free workers. A worker is stopped to see whether it has answered."""
        for slot in self._slots:
            if num_done(folder / "killed") >= enough and not killed and slot.queue:
                os.kill(slot.process, signal.SIGSTOP)
                is_idle = ray.wait([slot.queue[-1][0]], timeout=0)[0]
                os.kill(slot.process, signal.SIGCONT if is_idle else signal.SIGKILL)
                killed.extend([] if is_idle else [slot.process])
        return answering(self)

    with patch.context() as patched:
        patched.setattr(RayPool, "_wait", kills)
        work(place, folder / "killed", RaySettings(address=cluster.address, workers=2))
    assert killed
    assert any("was lost (The" in line for line in said), said
    work(place, folder / "one")
    assert results(folder / "killed") == results(folder / "one")
    assert num_done(folder / "killed") == NUM_PROBLEMS, "nothing twice"


def kill_driver(cluster: RayCluster, place: Path, folder: Path, name: str, seed: int, workers: int) -> None:
    """The driver is killed when so many problems are done, and run again."""
    enough = random.Random(seed).randrange(1, NUM_PROBLEMS - 2)
    script = "import sys, killing, test_ray_problems as t; from pathlib import Path\n"
    script += f"if sys.argv[1:]: killing.kill_before('prism_prm.job:Journal.append', {enough + 1})\n"
    script += f"ray = t.RaySettings(address={cluster.address!r}, workers={workers})\n"
    script += f"t.{name}(Path({str(place)!r}), Path({str(folder / 'killed')!r}), ray)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    for words, status in ((["killed"], -signal.SIGKILL), ([], 0)):
        command = [sys.executable, "-c", script, *words]
        run = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
        assert run.returncode == status, run.stderr
        assert num_done(folder / "killed") == (enough if words else NUM_PROBLEMS), "nothing twice"
    one = {"search": search, "label": label}[name]
    one(place, folder / "one")
    assert results(folder / "killed") == results(folder / "one")


def test_a_killed_worker_costs_its_portions(
    cluster: RayCluster, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    kill_worker(cluster, place, tmp_path, label, 0, monkeypatch, said)


def test_a_killed_driver_resumes(cluster: RayCluster, place: Path, tmp_path: Path) -> None:
    kill_driver(cluster, place, tmp_path, "search", 0, workers=1)  # each takes seconds to start


@pytest.mark.parametrize("seed", range(1, 6))
def test_kills_at_random_moments(
    cluster: RayCluster, place: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    for name, work in (("search", search), ("label", label)):
        kill_worker(cluster, place, tmp_path / name / "worker", work, seed, monkeypatch, said)
        kill_driver(cluster, place, tmp_path / name / "driver", name, seed, workers=2)
