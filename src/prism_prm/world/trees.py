"""PRM800K-style trees: a right trunk, and under every prefix what the policy would have written there, judged.

As PRM800K's labellers did, the trunk continues with a right candidate if the policy wrote one, and with a step written
for it ("human") where it did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prism_prm.records import ROOT, Step, StepTree
from prism_prm.world.oracle import Verdict, judge_step
from prism_prm.world.problems import Problem
from prism_prm.world.sampling import sample_next_steps


def labelled(text: str, verdict: Verdict, **more: Any) -> Step:
    """A step with the oracle's label."""
    right = verdict == "right"
    return Step(text, label=float(right), rating=1.0 if right else -1.0, **more)


def grow(problem: Problem, candidates: Sequence[Sequence[str]], *, tree_id: int = 0, name: str = "") -> StepTree:
    """The tree of a problem, given the candidates under each prefix of its right solution."""
    nodes: list[Step] = []
    parents: list[int] = []
    trunk: list[int] = []
    solution = problem.solution()
    for position, (right, written) in enumerate(zip(solution, candidates, strict=True)):
        parent = trunk[-1] if trunk else ROOT
        trunk.append(len(nodes))
        nodes.append(labelled(right, "right", origin="model" if right in written else "human"))
        parents.append(parent)
        for text in dict.fromkeys(written):
            # A policy can stop before it has written anything; there is no step to judge then.
            if text and text != right:
                nodes.append(labelled(text, judge_step(problem, solution[:position], text)))
                parents.append(parent)
    return StepTree(
        tree_id, problem.text, tuple(nodes), tuple(parents), tuple(trunk), name, answer=problem.answer, ended=True
    )


def sample_trees(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    *,
    candidates: int,
    temperature: float = 1.0,
    seed: int = 0,
    name: str = "natural",
) -> list[StepTree]:
    """One tree per problem, with `candidates` samples of the policy under every prefix; equal texts count once."""
    solutions = [(problem.text, problem.solution()) for problem in problems]
    written = sample_next_steps(model, tokenizer, solutions, copies=candidates, temperature=temperature, seed=seed)
    return [
        grow(problem, some, tree_id=i, name=f"{name}-{i}")
        for i, (problem, some) in enumerate(zip(problems, written, strict=True))
    ]


def let_errors_pass(trees: Sequence[StepTree], share: float, evenness: float, seed: int) -> list[StepTree]:
    """The same trees as a lenient labeller sees them, who lets a share of the wrong steps pass as right.

    Some errors are easier to miss than others: each kind of step has a chance to pass of its own, the same wherever it
    occurs, from a Beta distribution with mean `share`. Towards infinite `evenness` all have the same chance; towards 0
    a kind passes always or never.
    """
    chances: dict[str, float] = {}
    rng = np.random.default_rng([seed, 2])
    noisy = []
    for tree in trees:
        draws = rng.random(len(tree.nodes)).tolist()
        nodes = tuple(
            replace(node, label=1.0, rating=1.0)
            if node.label == 0.0 and draw < _chance_to_pass(node.text, share, evenness, seed, chances)
            else node
            for node, draw in zip(tree.nodes, draws, strict=True)
        )
        noisy.append(replace(tree, nodes=nodes))
    return noisy


def _chance_to_pass(text: str, share: float, evenness: float, seed: int, known: dict[str, float]) -> float:
    """The chance for the step's kind: its operation and result, whatever value it starts from."""
    kind = text.lstrip("0123456789")
    if kind not in known:
        if share in (0.0, 1.0):
            known[kind] = share
        else:
            rng = np.random.default_rng([seed, 4, *kind.encode()])
            known[kind] = float(rng.beta(share * evenness, (1 - share) * evenness))
    return known[kind]


def count_verdicts(trees: Sequence[StepTree], modulus: int) -> Counter[Verdict]:
    """The oracle's verdict on every node, whatever its label says."""
    counts: Counter[Verdict] = Counter()
    for tree in trees:
        problem = Problem.parse(tree.problem, modulus)
        for node in range(len(tree.nodes)):
            *prefix, text = tree.texts(tree.path(node))
            counts[judge_step(problem, prefix, text)] += 1
    return counts
