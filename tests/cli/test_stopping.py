"""Ctrl-C and SIGTERM: one line that says where the work is resumed, status 130, nothing half-written; then resumed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from prism_prm import init_prm
from prism_prm.cli import app
from prism_process import Process

PAUSED = """
import importlib, sys, time
module, owner, name, after = sys.argv[1:5]
place = importlib.import_module(module)
place = getattr(place, owner) if owner else place
real, calls = getattr(place, name), []
def paused(*arguments, **options):
    calls.append(1)
    if len(calls) > int(after):
        print("paused", flush=True)
        time.sleep(3600)
    return real(*arguments, **options)
setattr(place, name, paused)
sys.argv = ["prism", *sys.argv[5:]]
from prism_prm.cli import main
main()
"""
"""`prism`, in which a function waits for a signal when it is called once more than so many times."""

STEPS = [
    {
        "problem": f"What is {i} + 3?",
        "steps": [f"{i} + 3 = {i + 3}", f"so {i + 4}"],
        "labels": [True, False],
        "id": str(i),
    }
    for i in range(70)
]
POOL = [
    {"problem": f"What is {i} + 3?", "answer": str(i + 3), "solutions": [f"so \\boxed{{{i + k}}}" for k in (3, 4)]}
    for i in range(40)
]
RECIPE = """
report_to = []
[data]
inputs = ["trl.jsonl"]
split = { train = 1.0 }
[base]
prm = "prm"
[objective]
name = "bce"
on = "labels"
[curriculum]
mode = "none"
[train]
lr = 1e-3
pairs_per_update = 8
checkpoint_every = 2
[validation]
split = ""
"""

GRPO = """
policy = "policy"
prm = "prm"
[problems]
train = "task.jsonl"
num_held_out = 1
[prompting]
template = "none"
[monitor]
samples = 1
votes = 0
[trainer]
max_steps = 2
per_device_train_batch_size = 2
num_generations = 2
max_completion_length = 4
save_steps = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path], memorising_policy: Path) -> Path:
    folder = tmp_path_factory.mktemp("stopping")
    lines = {"own": STEPS, "pool": POOL, "task": [{"problem": p, "answer": "5"} for p in ("3+4-2", "1-2", "4-3+2")]}
    lines["trl"] = [{"prompt": s["problem"], "completions": s["steps"], "labels": s["labels"]} for s in STEPS]
    for name, records in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "grpo.toml").write_text(GRPO)
    (folder / "policy").symlink_to(memorising_policy)
    init_prm(tiny_lm("qwen2"), family="qwen").save(folder / "prm")
    return folder


WRITE = ("prism_prm.store", "ScoreStore", "file")
CASES = {
    "train": (
        "train recipe.toml --out run", ("prism_prm.train.loop", "TrainingRound", "_update"), 3,
        "resume from update 2 of 18 of round 1_all.", "Resuming round 1_all from update 2 of 18",
    ),
    "score": (
        "score own.jsonl --prm prm --out s.parquet --set chunk=20", WRITE, 2,
        "resume with 80 scores done.", "Reused 80 of 140 scores",
    ),
    "eval": (
        "eval --bench labeled --data trl.jsonl --prm prm --set num_draws=100 --out eval", WRITE, 1,
        "resume with 128 scores done.", "Reused 128 of 140 scores",
    ),
    "rerank": (
        "rerank pool.jsonl --prm prm --set judges=1 --set num_draws=100 --out rerank", WRITE, 1,
        "resume with 64 scores done, with all answers judged.", "Reused 64 of 80 scores",
    ),
    "search": (
        "search --policy hf:policy --task task.jsonl --method sample -n 2 --set judges=1 -P template=none "
        "--set at_once=1 --set max_steps=4 --out search",
        ("prism_prm.job", "Journal", "append"), 1,
        "resume with 1 of 3 problems searched, n2.", "Reusing 1 of 3 searched problems, n2",
    ),
    "grpo": (
        "grpo grpo.toml --out grpo", ("transformers", "Trainer", "_save_checkpoint"), 1, "resume from update 1.",
        "Resuming the policy from update 1",
    ),
    "demo": (
        "demo --quick --out demo", ("prism_prm.lab.world.build", "", "train_policy"), 0, "resume seed 0.", "",
    ),
    "pairs": ("pairs trl.jsonl --out pairs", ("prism_prm.data.build_pairs", "", "atomic_file"), 2, "start again.", ""),
}  # fmt: skip


def stopped(folder: Path, name: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """A command, stopped by a signal where it pauses."""
    words, place, after, *_ = CASES[name]
    process = Process(*place, after, *words.split(), code=PAUSED, cwd=folder)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(number)
        out, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert said == "paused\n", errors
    return subprocess.CompletedProcess(process.args, process.wait(), out, errors)


@pytest.mark.parametrize("name", CASES)
def test_a_stop_says_where_the_work_is_resumed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path for path in folder.iterdir() if not path.name.startswith(".")}
    done = stopped(folder, name, signal.SIGTERM if name in ("score", "search") else signal.SIGINT)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == f"Stopped. Rerun the same command to {CASES[name][3]}"
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "no result"
    half = [str(path) for path in folder.rglob("*") if path.name.endswith(".part") or path.name.endswith(".lock")]
    assert half == []
    if name in ("score", "pairs"):
        assert {path for path in folder.iterdir() if not path.name.startswith(".")} == before, "no table, no folder"
    if not CASES[name][4]:
        return
    monkeypatch.chdir(folder)
    again = CliRunner().invoke(app, CASES[name][0].split(), catch_exceptions=False)
    assert again.exit_code == 0
    assert CASES[name][4] in again.stderr.splitlines()
