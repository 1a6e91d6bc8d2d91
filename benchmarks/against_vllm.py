"""Score with vLLM and with us: a real pool, PRM800K trees, and beam-search traffic over HTTP.

Both load the same folder, a random Qwen2 PRM of 103M parameters. vLLM's offline engine gets token ids, one sequence per
solution and per leaf of a tree (it returns the scores of all steps of a sequence); this is kinder to it than HTTP. We
get texts. The traffic goes to `vllm serve` (/pooling) and to `prism serve`: in each iteration every beam of every
problem sends all its steps.

vLLM runs in an environment of its own, named by PRISM_VLLM (tests/serve/test_others.py says how to make it).

Run: PRISM_DATA=… PRISM_VLLM=…/bin/vllm python benchmarks/against_vllm.py [--dtype float32] [--problems 3] [--only pool]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from _real_trees import real_trees, small_prm
from _side_by_side import Seconds, conclude, median, options, side_by_side
from prism_prm import PRM, StepTree, load_prm
from prism_prm.data.pools import iter_pool, trees_of
from serve import Ask, Beam, fresh, search, server, traffic

PEER = "vLLM"
POOL = Path("best_of_n_prm") / "math500_pool_250x32.jsonl"
CONTEXT = 4096


class Vllm:
    """vLLM's offline engine in its own process."""

    def __init__(self, program: str, folder: Path, dtype: str, tag: int, scratch: Path) -> None:
        self.scratch = scratch
        worker = [str(Path(program).parent / "python"), "-P", str(Path(__file__).parent / "_vllm_worker.py")]
        self.process = subprocess.Popen(
            [*worker, str(folder), dtype, str(CONTEXT), str(tag)], env=environment(), text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=(scratch / "vllm.log").open("w"),
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("vLLM stopped:\n" + (self.scratch / "vllm.log").read_text()[-3000:])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """P(right) of each step of each sequence."""
        ids, scores = self.scratch / "ids.json", self.scratch / "scores.json"
        ids.write_text(json.dumps([list(map(int, one)) for one in sequences]))
        assert self.process.stdin is not None
        print(json.dumps({"ids": str(ids), "scores": str(scores)}), file=self.process.stdin, flush=True)
        self._answer()
        found: list[list[float]] = json.loads(scores.read_text())
        return found


def environment() -> dict[str, str]:
    """vLLM on all cores: by default its server leaves one of them to others."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GOMP_SPINCOUNT")}
    return {
        **kept, "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
    }  # fmt: skip


@contextlib.contextmanager
def vllm_server(program: str, folder: Path, dtype: str, tag: int, scratch: Path) -> Iterator[str]:
    """The address of `vllm serve`, once it is ready."""
    with httpx.Client() as client, (scratch / "serve.log").open("w") as log:
        port = free_port()
        command = [
            program, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
            "--max-model-len", str(CONTEXT), "--enforce-eager", "--pooler-config", json.dumps({"step_tag_id": tag}),
        ]  # fmt: skip
        with subprocess.Popen(command, env=environment(), stdout=log, stderr=log) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                while True:
                    if process.poll() is not None:
                        sys.exit("vLLM stopped:\n" + (scratch / "serve.log").read_text()[-3000:])
                    with contextlib.suppress(httpx.HTTPError):
                        if client.get(f"{url}/health", timeout=60).status_code == 200:
                            break
                    time.sleep(0.5)
                yield url
            finally:
                process.terminate()
                process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def sequences_of(prm: PRM, trees: Sequence[StepTree]) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """A sequence per leaf, and for each of its steps (tree, node)."""
    sequences, owners = [], []
    for t, tree in enumerate(trees):
        encoded = prm.encode_tree(tree)
        inner = set(tree.parents)
        for leaf in range(len(tree.nodes)):
            if leaf not in inner:
                path = tree.path(leaf)
                sequences.append([*encoded.prompt, *(token for node in path for token in encoded.ids[node])])
                owners.append([(t, node) for node in path])
    return sequences, owners


def in_turn(title: str, ours: Callable[[], object], theirs: Callable[[], object], given: Any, tokens: str) -> Seconds:
    """Time both, and print a line."""
    seconds = side_by_side({"ours": ours, PEER: theirs}, repeats=given.repeats, beside=given.busy)
    ratios = [other / own for own, other in zip(seconds["ours"], seconds[PEER], strict=True)]
    print(
        f"{title}, {given.dtype}: {median(seconds, 'ours'):.1f} s, {PEER} {median(seconds, PEER):.1f} s, "
        f"{np.median(ratios):.2f}x ({min(ratios):.2f}–{max(ratios):.2f}); {tokens}"
    )
    return seconds


def score_offline(title: str, prm: PRM, vllm: Vllm, trees: Sequence[StepTree], given: Any) -> Seconds:
    """Score trees with both; prints the largest difference of a probability, and the tokens of both."""
    sequences, owners = sequences_of(prm, trees)
    found = {
        key: p for own, row in zip(owners, vllm.score(sequences), strict=True) for key, p in zip(own, row, strict=True)
    }
    scores = [one.probability for one in prm.score_trees(trees)]
    worst = max(abs(found[t, n] - p) for t, own in enumerate(scores) for n, p in enumerate(own))
    theirs, ours = sum(map(len, sequences)), sum(map(prm.count_tokens, trees))
    tokens = (
        f"{len(scores):,} trees, {len(sequences):,} sequences, {theirs:,} tokens, {theirs / ours:.1f}x those of "
        f"the trees; largest difference of a probability {worst:.1e}"
    )
    return in_turn(title, lambda: prm.score_trees(trees), lambda: vllm.score(sequences), given, tokens)


def asks_vllm(prm: PRM) -> Ask:
    """Asks for a beam's scores by token ids at /pooling."""

    async def ask(client: httpx.AsyncClient, beam: Beam) -> list[float]:
        encoded = prm.encode_tree(StepTree.chain(*beam))
        ids = [*encoded.prompt, *(token for step in encoded.ids for token in step)]
        answer = await client.post("/pooling", json={"input": ids})
        answer.raise_for_status()
        return [row[1] for row in answer.json()["data"][0]["data"]]

    return ask


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--only", choices=["pool", "trees", "traffic"], help="one of the three workloads")
    parser.add_argument("--problems", type=int, default=3, help="of the pool, with 32 solutions each")
    parser.add_argument("--trees", type=int, default=8)
    parser.add_argument("--searched", type=int, default=4, help="problems of the traffic, with 8 beams and 12 steps")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=14)
    given = parser.parse_args()
    if not (program := os.environ.get("PRISM_VLLM")):
        print("skipped: set PRISM_VLLM to the vllm program of its own environment")
        return
    trees = real_trees(max(given.trees, 50), 30)
    texts = [node.text for tree in trees for node in tree.nodes]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running:
        folder = Path(scratch) / "prm"
        small_prm(texts, hidden=given.hidden, layers=given.layers, context=CONTEXT).save(folder)
        prm = load_prm(folder, dtype=given.dtype)
        assert isinstance(prm, PRM)
        tag = prm.family.step_ids("x", 0)[0][-1]
        parameters = sum(p.numel() for p in prm.module.parameters()) / 1e6
        print(f"{parameters:.0f}M parameters, {given.dtype}, {torch.get_num_threads()} threads")
        seconds: dict[str, Seconds] = {}
        if given.only != "traffic":
            vllm = Vllm(program, folder, given.dtype, tag, Path(scratch))
            running.callback(vllm.process.wait)
            running.callback(vllm.process.kill)
            if given.only in (None, "pool"):
                pool = islice(iter_pool(Path(os.environ["PRISM_DATA"]) / POOL), given.problems)
                seconds["pool"] = score_offline("pool", prm, vllm, list(trees_of(pool)), given)
            if given.only in (None, "trees"):
                seconds["trees"] = score_offline("trees", prm, vllm, trees[: given.trees], given)
            running.close()
        if given.only in (None, "traffic"):
            problems = [tree.problem for tree in trees[: given.searched]]
            iterations = traffic(problems, texts, beams=8, steps=12)
            theirs = running.enter_context(vllm_server(program, folder, given.dtype, tag, Path(scratch)))
            ours = running.enter_context(server(str(folder), "--dtype", given.dtype, "--set", "deadline=600"))
            last = iterations[-1:]
            ask = asks_vllm(prm)
            pairs = zip(search(ours, last), search(theirs, last, ask), strict=True)
            worst = max(abs(a - b) for own, other in pairs for a, b in zip(own, other, strict=True))
            note = f"{sum(map(len, iterations)):,} requests; largest difference of a probability {worst:.1e}"
            seconds["traffic"] = in_turn(
                "traffic", lambda: search(ours, fresh(iterations)), lambda: search(theirs, fresh(iterations), ask),
                given, note,
            )  # fmt: skip
    shown = seconds["trees"] if "trees" in seconds else next(iter(seconds.values()))
    conclude(shown["ours"], shown[PEER], peer=PEER)


if __name__ == "__main__":
    main()
