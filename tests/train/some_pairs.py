"""Small random trees with every kind of pair, for tests of training."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from prism_prm.data.pair_examples import Examples
from prism_prm.tree import Step, StepTree


def random_examples(num_trees: int = 5, steps: int = 5, seed: int = 0) -> Examples:
    """Annotated, lookahead and random pairs over small random trees; every prefix has three candidates."""
    rng = np.random.default_rng(seed)

    def text() -> str:
        return "".join(chr(97 + c) for c in rng.integers(0, 20, rng.integers(1, 9)))

    trees: dict[int, StepTree] = {}
    for tree_id in range(num_trees):
        nodes, parents, trunk = [], [], []
        for position in range(steps):
            before = trunk[-1] if trunk else -1
            trunk.append(len(nodes))
            nodes += [Step(text(), label=1.0), Step(text(), label=0.0), Step(text(), label=0.25)]
            parents += [before] * 3
            assert position == len(trunk) - 1
        trees[tree_id] = StepTree(tree_id, text(), tuple(nodes), tuple(parents), tuple(trunk))
    rows = []
    for tree in trees.values():
        for position, node in enumerate(tree.trunk):
            rows += [(tree.tree_id, node, node + 1, tree.tree_id), (tree.tree_id, node, node + 2, tree.tree_id)]
            rows += [(tree.tree_id, node, later, tree.tree_id) for later in tree.trunk[position + 1 :]]
            rows.append((tree.tree_id, node, int(rng.integers(0, 3 * steps)), (tree.tree_id + 1) % num_trees))
    columns = np.array(rows, dtype=np.int64).T
    return Examples(trees, np.arange(len(rows)) + 1000, *columns)


def write_sums(path: Path, num_problems: int = 60) -> None:
    """Labelled solutions of small sums in PRM800K's format: at each position a right step and a wrong one."""
    rng = random.Random(0)
    lines = []
    for number in range(num_problems):
        total = start = rng.randint(1, 9)
        steps = []
        for _ in range(rng.randint(3, 5)):
            more = rng.randint(1, 9)
            results = {1: total + more, -1: total + more + rng.choice([-2, -1, 1, 2])}
            completions = [
                {"text": f"then {total} + {more} = {result}", "rating": rating, "flagged": False}
                for rating, result in results.items()
            ]
            steps.append({"completions": completions, "human_completion": None, "chosen_completion": 0})
            total += more
        question = {"problem": f"problem {number}: start with {start}", "ground_truth_answer": str(total)}
        label = {"steps": steps, "total_time": None, "finish_reason": "solution"}
        record = {"labeler": None, "timestamp": None, "generation": None, "is_quality_control_question": False,
                  "is_initial_screening_question": False, "question": question, "label": label}  # fmt: skip
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
