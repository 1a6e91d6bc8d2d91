"""Golden pools and metrics of every search method, and trees of every labeling method, from `prism search` and `label`.

The policy was trained once and is stored here: it solves sums modulo 7 step by step and errs in every fifth step. What
it draws must not hinge on the last bit of a probability, so all models run in 64 bits, whose noise between CPUs is
about 1e-15, with weights that are fractions of 64 (see portable.py). A draw would have to come as close as that to the
edge between two tokens to change, which happens once in 10¹² draws or so; the same holds for the PRM's ranking. The
noise of draws itself is a hash of problem and path. The PRMs are the two that ship with the package.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from portable import exact, prism, rounded
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from golden import FLOAT64, FOLDER, check
from loopback import serve
from prism_prm import example_folder

PROBLEMS = (
    "3+4-2+1", "1-2+6-3", "6+6+6-5", "2-5+1+1", "0+3-4+5", "5-1-1-1+6", "4+2-6+3", "1+1+2-1", "6-4+5-2", "2+3+4-6",
)  # fmt: skip
NUMBER = re.compile(r"[-+]?\d+")
BOTH = ("--prm", f"base={example_folder('base')}", "--prm", f"prism={example_folder('prism')}")
ONE = BOTH[2:]
SEARCHES: dict[str, tuple[object, ...]] = {
    "sample": ("--method", "sample", "-n", "3,6"),
    "greedy": ("--method", "greedy", *ONE, "--select", "argmax"),
    "best-of-n": ("--method", "best-of-n", "-n", "1,2,6", *BOTH),
    "beam": ("--method", "beam", "-n", "4,8", *BOTH, "--select", "argmax"),
    "beam-lookahead": ("--method", "beam", "-n", 6, "--set", "expand=3", "--set", "search.lookahead=1", *ONE),
    "beam-likelihood": ("--method", "beam", "-n", 6, "--set", "expand=3", "--set", "prm_weight=0.5", *ONE),
    "beam-budget": ("--method", "beam", "-n", 4, "--set", "max_policy_tokens=50", *ONE),
    "dvts": ("--method", "dvts", "-n", 8, *BOTH, "--select", "majority"),
    "particle": ("--method", "particle", "-n", 6, *BOTH),
}
LABELS: dict[str, tuple[object, ...]] = {
    "monte-carlo": ("--method", "monte-carlo", "--rule", "soft", "--set", "label.solutions=2"),
    "binary": ("--method", "binary"),
    "adaptive": ("--method", "adaptive", "--rule", "half", "--set", "after_error=drop"),
}
SAMPLING = ("-P", "temperature=1", "-P", "max_tokens=40", "--set", "judges=1", "--dtype", "float64", "--seed", 3)

LEFT_OUT = ("settings", "seconds", "source", "content_hash")
"""Paths and times; and a hash of floats, which would have no tolerance."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The folder of the policy, and the file of the problems."""
    folder = tmp_path_factory.mktemp("world")
    config = Qwen2Config(
        vocab_size=46, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=124, eos_token_id=3, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    stored = load_file(FOLDER / "world_policy.safetensors")
    model.load_state_dict({name: weights.to(torch.float32) / 64 for name, weights in stored.items()})
    model.save_pretrained(folder / "policy")
    AutoTokenizer.from_pretrained(example_folder("prism")).save_pretrained(folder / "policy")
    task = folder / "sums.jsonl"
    answers = [str(sum(map(int, NUMBER.findall(problem))) % 7) for problem in PROBLEMS]
    lines = [json.dumps({"problem": one, "answer": answer}) for one, answer in zip(PROBLEMS, answers, strict=True)]
    task.write_text("\n".join(lines) + "\n")
    with exact():
        yield folder / "policy", task


@pytest.mark.parametrize("name", SEARCHES)
def test_search(name: str, world: tuple[Path, Path], tmp_path: Path) -> None:
    policy, task = world
    search(task, tmp_path, "--policy", f"hf:{policy}", *SEARCHES[name])
    check_search(f"search-{name}", tmp_path)


@pytest.mark.parametrize("name", LABELS)
def test_label(name: str, world: tuple[Path, Path], tmp_path: Path) -> None:
    policy, task = world
    label(task, tmp_path, "--policy", f"hf:{policy}", *LABELS[name])
    check_label(f"label-{name}", tmp_path)


def test_served_policy(world: tuple[Path, Path], tmp_path: Path) -> None:
    """A policy behind a server, which is a script: it draws from integers alone."""
    _, task = world
    with serve(solve) as (url, _):
        there = ("--policy", f"openai:{url}", "-P", "template=none")
        search(task, tmp_path / "search", *there, *SEARCHES["beam-likelihood"])
        label(task, tmp_path / "label", *there, *LABELS["monte-carlo"])
    check_search("search-served", tmp_path / "search")
    check_label("label-served", tmp_path / "label")


def solve(body: dict[str, Any]) -> tuple[int, Any]:
    """The next step of a sum, or all that are left; one in four is wrong, where the request has a seed."""
    problem, *steps = filter(None, body["prompt"].split("\n\n"))
    start, *operations = NUMBER.findall(problem)
    draws = random.Random(f"{body.get('seed')} {body['prompt']}")
    value, written, likelihoods = int(steps[-1].split("=")[1]) if steps else int(start), [], []
    while not (written and "stop" in body):
        done = len(steps) + len(written)
        if done == len(operations):
            written.append(f"#### {value}")
            break
        wrong = draws.random() < 0.25 and "seed" in body
        result = (value + int(operations[done]) + (1 + int(draws.random() * 6) if wrong else 0)) % 7
        written.append(f"{value}{operations[done]}={result}")
        likelihoods.append(math.log(0.25 / 6 if wrong else 0.75))
        value = result
    stopped = "stop" in body and not written[-1].startswith("####")
    choice = {
        "text": "\n\n".join(written), "finish_reason": "stop", "stop_reason": "\n\n" if stopped else None,
        "logprobs": {"token_logprobs": likelihoods},
    }  # fmt: skip
    return 200, {"choices": [choice], "usage": {"completion_tokens": 4 * len(written)}}


def search(task: Path, out: Path, *words: object) -> None:
    limits = ("--set", "max_steps=6", "--set", "search.sampling.max_step_tokens=8")
    prism("search", "--task", task, "--out", out, *limits, *SAMPLING, *words)


def label(task: Path, out: Path, *words: object) -> None:
    limits = ("-P", "max_step_tokens=8", "--alternatives", 2, "--rollouts", 4)
    prism("label", task, "--out", out, *limits, *SAMPLING, *words)


def check_search(name: str, out: Path) -> None:
    pools = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((out / "pools").iterdir())
    }
    check_found(name, out, pools=pools)


def check_label(name: str, out: Path) -> None:
    check_found(name, out, trees=pq.read_table(out / "trees.parquet").to_pylist())


def check_found(name: str, out: Path, **found: Any) -> None:
    found["metrics"] = json.loads((out / "metrics.json").read_text())
    check(name, rounded(without(LEFT_OUT, found)), tolerance=FLOAT64)


def without(keys: tuple[str, ...], value: Any) -> Any:
    """A JSON value without some keys, wherever they are."""
    if isinstance(value, dict):
        return {key: without(keys, item) for key, item in value.items() if key not in keys}
    return [without(keys, item) for item in value] if isinstance(value, list) else value
