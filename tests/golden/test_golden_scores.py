"""Golden log-odds of 20 trees for every PRM family on three architectures, by each of four ways to compute them.

All ways are compared with the same stored values: whole packed trees, a session that grows them step by step, a server
whose prefix cache already has a part of each tree, and a remote PRM behind a server without a cache. Weights, texts and
trees follow from formulas, and everything runs in 64 bits (see portable.py).

Every family runs on every architecture. Two need more than our bare tokenizers have: math-shepherd a token `ки`, which
all get here, and rlhflow a chat template, which those without one get for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from portable import exact, fill, rounded
from transformers import AutoModelForCausalLM, AutoTokenizer

from golden import FLOAT64, check
from prism_prm import PRM, Step, StepTree, init_prm, load_prm
from serving_prms import Running, running
from tiny import language_model

FAMILIES = {
    "qwen": True, "token-classification": True, "math-shepherd": False, "rlhflow": False, "skywork": True,
    "reasoneval": True, "verdict": False,
}  # fmt: skip
"""Family → whether its head is new; the others read the language model's output layer."""
ARCHITECTURES = ("qwen2-window", "llama", "mistral")
"""A layer with a sliding window above a full one, full attention, sliding windows alone; three kinds of tokenizers."""
WINDOW = 40
"""Tokens: less than most paths have, and enough to reach from where a step is read over a question to the step."""
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
WORDS = (
    "x", "= 1", "so y = 2", "12 * 4 = 48", "then z = x + y - 3", "the answer is 3.", "Σ ü 漢", "a\nb", "(-1)",
    "\\frac{1}{2}",
)  # fmt: skip


def make_trees() -> list[StepTree]:
    """Chains, bushes and what is between, of 1 to 16 steps, up to hundreds of tokens; some siblings are equal."""
    draws = random.Random("trees")

    def words(most: int) -> str:
        return " ".join(WORDS[int(draws.random() * len(WORDS))] for _ in range(1 + int(draws.random() * most)))

    trees = []
    for number in range(20):
        steps = [Step(words(2 + number // 3)) for _ in range(1 + number * 3 // 4)]
        parents = [max(-1, i - 1 - int(draws.random() * (number % 5) * 2)) for i in range(len(steps))]
        if number % 4 == 3:  # two equal siblings
            steps[1:1], parents = [steps[0]], [-1, *(parent + (parent > 0) for parent in parents)]
        trees.append(StepTree(number, f"What is {words(3)}?", tuple(steps), tuple(parents), ()))
    return trees


TREES = make_trees()


@pytest.fixture(scope="module")
def prms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PRM]]:
    """`family on architecture` → a PRM."""
    root = tmp_path_factory.mktemp("models")
    with exact():
        yield {f"{family} on {kind}": make_prm(root, family, kind) for family in FAMILIES for kind in ARCHITECTURES}


def make_prm(root: Path, family: str, kind: str) -> PRM:
    folder, bare = root / family / kind, root / "bare" / kind
    if not bare.exists():
        language_model(kind, bare, **({} if kind == "llama" else {"sliding_window": WINDOW}))
    tokenizer, model = AutoTokenizer.from_pretrained(bare), AutoModelForCausalLM.from_pretrained(bare)
    tokenizer.add_tokens(["ки"])
    if family == "rlhflow" and not tokenizer.chat_template:
        tokenizer.chat_template = CHATML
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    fill(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    prm = init_prm(folder, family=family, dtype="float64")
    if FAMILIES[family]:
        fill(prm.module.head)  # it was drawn in 32 bits
    return prm


@pytest.fixture(scope="module")
def served(prms: dict[str, PRM]) -> Iterator[Running]:
    """All of them behind one server, with prefix caches."""
    with running(prms) as server:
        yield server


def packed(prm: PRM) -> list[list[list[float]]]:
    return [found.log_odds_NO.tolist() for found in prm.score_trees(TREES)]


def session(prm: PRM) -> list[list[list[float]]]:
    """Position after position, all trees together."""
    nodes: list[list[Any]] = [[None] * len(tree.nodes) for tree in TREES]
    with prm.session([tree.problem for tree in TREES]) as growing:
        for depth in range(max(max(tree.depths()) for tree in TREES) + 1):
            now = [(t, n) for t, tree in enumerate(TREES) for n, at in enumerate(tree.depths()) if at == depth]
            before = [(growing.roots[t], *nodes[t])[TREES[t].parents[n] + 1] for t, n in now]
            found = growing.extend(
                [(parent, TREES[t].nodes[n].text) for parent, (t, n) in zip(before, now, strict=True)]
            )
            for (t, n), node in zip(now, found, strict=True):
                nodes[t][n] = node
    return [[list(node.log_odds) for node in of_tree] for of_tree in nodes]


def check_scores(prms: dict[str, PRM], way: Callable[[str], Sequence[Sequence[Sequence[float]]]]) -> None:
    """Check the log-odds of each tree's nodes, by PRM and output."""
    found: dict[str, Any] = {}
    for name, prm in prms.items():
        scores = way(name)
        assert [len(nodes) for nodes in scores] == [len(tree.nodes) for tree in TREES]
        found[name] = {
            output: [[node[i] for node in nodes] for nodes in scores] for i, output in enumerate(prm.outputs)
        }
    check("scores", rounded(found), tolerance=FLOAT64)


def test_packed_trees(prms: dict[str, PRM]) -> None:
    check_scores(prms, lambda name: packed(prms[name]))


def test_a_session(prms: dict[str, PRM]) -> None:
    check_scores(prms, lambda name: session(prms[name]))


def test_a_prefix_cache(prms: dict[str, PRM], served: Running) -> None:
    """The first half of each tree is asked for, then the whole."""

    def items(share: float) -> list[dict[str, Any]]:
        sizes = [max(1, int(share * len(tree.nodes))) for tree in TREES]
        return [
            {"problem": tree.problem, "nodes": tree.texts(range(size)), "parents": tree.parents[:size]}
            for tree, size in zip(TREES, sizes, strict=True)
        ]

    def score(name: str) -> list[list[list[float]]]:
        served.steps(*items(0.5), model=name)
        answers = served.steps(*items(1.0), model=name)["items"]
        assert all(answer["cached_tokens"] > 0 for answer in answers)
        assert any(answer["cached_tokens"] < answer["tokens"] for answer in answers)
        return [[list(row.values()) for row in answer["log_odds"]] for answer in answers]

    check_scores(prms, score)


def test_a_remote_prm(prms: dict[str, PRM]) -> None:
    with running(prms, cache_mb=0) as server:

        def score(name: str) -> list[list[list[float]]]:
            there = load_prm(f"prism:{server.url}#{name}")
            try:
                return [found.log_odds_NO.tolist() for found in there.score_trees(TREES)]
            finally:
                there.close()  # type: ignore[attr-defined]

        check_scores(prms, score)


def test_scores_depend_on_their_steps(prms: dict[str, PRM]) -> None:
    """Or the golden values would say nothing. A window may hide what makes two long paths of a tree differ."""
    for name, prm in prms.items():
        paths = [
            {tuple(tree.texts(tree.path(node))): round(scores[node][0], 6) for node in range(len(tree.nodes))}
            for tree, scores in zip(TREES, packed(prm), strict=True)
        ]
        differ = sum(len(set(of_tree.values())) for of_tree in paths)
        assert differ >= 0.9 * sum(map(len, paths)), name
