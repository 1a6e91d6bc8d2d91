"""Golden losses of ten updates with every objective of `prism train`, and what validation says of the result.

Runs in one process, in two, and in one that was stopped and resumed from its checkpoint are all compared with the same
stored values. Data and weights follow from formulas, and everything runs in 64 bits (see portable.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import portable
import pytest
import torch
from portable import exact, fill, prism, rounded
from transformers import AutoModelForCausalLM, AutoTokenizer

from golden import FLOAT64, check
from launching import launch
from prism_prm import init_prm
from tiny import language_model

OBJECTIVES: dict[str, dict[str, Any]] = {
    "sc": {},
    "sc in log-odds": {"space": "log-odds", "temperature": 0.5, "margin": 0.25},
    "bce": {"name": "bce", "positive_weight": 2.0},
    "bce on labels": {"name": "bce", "on": "labels", "negative_weight": 0.5},
    "hybrid": {"name": "hybrid"},
    "listwise": {"name": "listwise", "space": "log-odds"},
    "listwise and bce": {"name": "listwise+bce", "space": "log-odds", "anchor_weight": 0.5},
    "hybrid on chosen steps": {"name": "hybrid", "space": "log-odds", "anchor_weight": 0.25, "anchor_on": "chosen"},
}
UPDATES, STOPPED_AT, CHECKPOINT = 10, 7, 5


def write_data(folder: Path) -> None:
    """Sums with a right and a wrong step at each position (PRM800K's format), and chains with soft labels."""
    draws = random.Random("sums")

    def number(least: int, most: int) -> int:
        return least + int(draws.random() * (most + 1 - least))

    pairs, soft = [], []
    for i in range(40):
        total = start = number(1, 9)
        steps: list[dict[str, Any]] = []
        for _ in range(number(2, 4)):
            more, wrong = number(1, 9), number(1, 3)
            options = {1: total + more, -1: total + more + wrong}
            completions = [{"text": f"then {total} + {more} = {value}", "rating": r} for r, value in options.items()]
            steps.append({"completions": completions, "human_completion": None, "chosen_completion": 0})
            total += more
        question = {"problem": f"problem {i}: start with {start}", "ground_truth_answer": str(total)}
        pairs.append({"question": question, "label": {"steps": steps, "finish_reason": "solution"}})
        texts = [f"x = {number(1, 9)}" for _ in range(number(1, 4))]
        soft.append({"prompt": f"guess {i}", "completions": texts, "labels": [number(0, 4) / 4 for _ in texts]})
    for name, records in (("pairs", pairs), ("soft", soft)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Objective → its recipe."""
    folder = tmp_path_factory.mktemp("training")
    write_data(folder)
    bare = language_model("qwen2", folder / "bare")
    model = AutoModelForCausalLM.from_pretrained(bare)
    fill(model)
    model.save_pretrained(folder / "lm")
    AutoTokenizer.from_pretrained(bare).save_pretrained(folder / "lm")
    with exact():
        prm = init_prm(folder / "lm", family="qwen", dtype="float64")
        fill(prm.module.head)
        prm.save(folder / "base")
        for name, settings in OBJECTIVES.items():
            on_labels = settings.get("on") == "labels"
            in_lists = settings.get("name", "").startswith("listwise")
            per_update = 27 if on_labels else 10 if in_lists else 18
            inputs = [str(folder / "pairs.jsonl"), *([str(folder / "soft.jsonl")] if on_labels else [])]
            sections = {
                "data": {"inputs": inputs, "split": {"train": 0.8, "validation": 0.2}},
                "data.pairs": {"audit": "off"},
                "base": {"prm": str(folder / "base")},
                "objective": settings,
                "curriculum": {"mode": "none", "bins": [[-1.0, 1.0]]},
                "train": {
                    "lr": 1e-3, "pairs_per_update": per_update, "max_pairs_per_tree_per_update": 3,
                    "row_tokens": 150, "microbatch_tokens": 600, "checkpoint_every": CHECKPOINT,
                    **({"updates": UPDATES} if in_lists else {}),
                },
                "hardware": {"dtype": "float64"},
            }  # fmt: skip
            (folder / f"{name}.toml").write_text(toml(sections))
        yield {name: folder / f"{name}.toml" for name in OBJECTIVES}


def toml(sections: dict[str, dict[str, Any]]) -> str:
    def value(item: Any) -> str:
        pairs = ", ".join(f"{key} = {json.dumps(one)}" for key, one in item.items()) if isinstance(item, dict) else ""
        return f"{{ {pairs} }}" if pairs else json.dumps(item)

    lines = ["report_to = []"]
    for name, settings in sections.items():
        lines += [f"[{name}]", *(f"{key} = {value(item)}" for key, item in settings.items())]
    return "\n".join(lines) + "\n"


def check_runs(folder: Path) -> None:
    """Compare the runs of all objectives, each in a folder of its name."""
    found: dict[str, Any] = {}
    for name in OBJECTIVES:
        lines = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
        assert [(line["round"], line["update"]) for line in lines] == [("1_all", i) for i in range(UPDATES)]
        run = json.loads((folder / name / "run.json").read_text())
        columns = ("loss", "grad_norm", "lr", "examples", "max_per_tree")
        found[name] = {"updates": {key: [line[key] for line in lines] for key in columns}, "run": run}
    check("training", rounded(found), tolerance=FLOAT64)


def test_one_process(recipes: dict[str, Path], tmp_path: Path) -> None:
    for name, recipe in recipes.items():
        prism("train", recipe, "--out", tmp_path / name)
    check_runs(tmp_path)


def test_two_processes(recipes: dict[str, Path], tmp_path: Path) -> None:
    """All objectives in one launch."""
    lines = ["\t".join(map(str, ["train", recipe, "--out", tmp_path / name])) for name, recipe in recipes.items()]
    (tmp_path / "commands").write_text("\n".join(lines))
    result = launch(tmp_path / "commands", program=[portable.__file__])
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("processes: 2") == len(OBJECTIVES)
    check_runs(tmp_path)


def test_stopped_and_resumed(
    recipes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, recipe in recipes.items():
        with monkeypatch.context() as patch:
            stop_at_update(STOPPED_AT, patch)
            prism("train", recipe, "--out", tmp_path / name, code=130)
        prism("train", recipe, "--out", tmp_path / name)
        assert f"Resuming round 1_all from update {CHECKPOINT} of {UPDATES}" in capsys.readouterr().err
    check_runs(tmp_path)


def stop_at_update(number: int, patch: pytest.MonkeyPatch) -> None:
    """Interrupt the process, as Ctrl-C does, when the optimizer is about to make this update."""
    step, steps = torch.optim.AdamW.step, iter(range(UPDATES))

    def interrupted(optimizer: torch.optim.AdamW, *args: Any) -> Any:
        if next(steps) == number:
            raise KeyboardInterrupt
        return step(optimizer, *args)

    patch.setattr(torch.optim.AdamW, "step", interrupted)
