"""PRM800K-style trees (a right trunk, and after every prefix judged samples of the policy) and PRMBench-style trees
(right solutions with one kind of injected error).

As in PRM800K, the trunk continues with a right candidate if the policy sampled one, else with a step that is marked
"human".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from prism_prm.errors import ConfigError
from prism_prm.lab.world.oracle import Verdict, judge_step
from prism_prm.lab.world.problems import OPERATORS, UNDO, Operation, Problem
from prism_prm.lab.world.sampling import sample_next_steps
from prism_prm.tree import ROOT, Step, StepTree


def label_step(text: str, verdict: Verdict, **more: Any) -> Step:
    """A step with the oracle's label."""
    right = verdict == "right"
    return Step(text, label=float(right), rating=1.0 if right else -1.0, **more)


def grow(problem: Problem, candidates: Sequence[Sequence[str]], *, tree_id: int = 0, name: str = "") -> StepTree:
    """The tree of a problem, given the candidates after each prefix of its right solution."""
    nodes: list[Step] = []
    parents: list[int] = []
    trunk: list[int] = []
    solution = problem.solution()
    for position, (right, written) in enumerate(zip(solution, candidates, strict=True)):
        parent = trunk[-1] if trunk else ROOT
        trunk.append(len(nodes))
        nodes.append(label_step(right, "right", origin="model" if right in written else "human"))
        parents.append(parent)
        for text in dict.fromkeys(written):
            # A policy may stop before it writes anything; then there is no step to judge.
            if text and text != right:
                nodes.append(label_step(text, judge_step(problem, solution[:position], text)))
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
    """One tree per problem, with `candidates` samples of the policy after every prefix; equal texts count once."""
    solutions = [(problem.text, problem.solution()) for problem in problems]
    written = sample_next_steps(model, tokenizer, solutions, copies=candidates, temperature=temperature, seed=seed)
    return [
        grow(problem, some, tree_id=i, name=f"{name}-{i}")
        for i, (problem, some) in enumerate(zip(problems, written, strict=True))
    ]


def let_errors_pass(trees: Sequence[StepTree], share: float, evenness: float, seed: int) -> list[StepTree]:
    """Trees as a lenient labeler would label them: a share of the wrong steps is labeled right.

    Some errors are easier to miss than others: each kind of step has its own probability to pass, the same wherever it
    occurs, from a Beta distribution with mean `share`. With infinite `evenness` all kinds have the same probability;
    near 0 a kind passes always or never.
    """

    @cache
    def chance_to_pass(kind: str) -> float:
        if share in (0.0, 1.0):
            return share
        rng = np.random.default_rng([seed, 4, *kind.encode()])
        return float(rng.beta(share * evenness, (1 - share) * evenness))

    rng = np.random.default_rng([seed, 2])
    noisy = []
    for tree in trees:
        nodes = []
        for node, draw in zip(tree.nodes, rng.random(len(tree.nodes)).tolist(), strict=True):
            # The kind of a step is its operation and result, without the value that it starts from.
            passes = node.label == 0.0 and draw < chance_to_pass(node.text.lstrip("0123456789"))
            nodes.append(replace(node, label=1.0, rating=1.0) if passes else node)
        noisy.append(replace(tree, nodes=tuple(nodes)))
    return noisy


PERTURBATIONS: tuple[Verdict, ...] = (
    "counterfactual", "contradiction", "skipped", "premature", "redundant", "circular", "missing_premise",
)  # fmt: skip
"""Classes of errors that can be injected."""
TRIES = 50


def _propose(kind: Verdict, problem: Problem, at: int, rng: np.random.Generator) -> str:
    """A candidate for an error at a position of the right solution; the caller checks it with the oracle."""
    solution, value, operations = problem.solution(), problem.values()[at], problem.operations
    operation = operations[at]
    match kind:
        case "counterfactual":  # the right operation with another result
            return f"{solution[at].rpartition('=')[0]}={rng.integers(problem.modulus)}"
        case "premature":  # a later step of the right solution, possibly the answer
            return solution[int(rng.integers(at + 1, len(operations) + 1))]
        case "redundant":  # an earlier step
            return solution[int(rng.integers(at))]
        case "contradiction":  # the right operation on another value
            value = int(rng.integers(problem.modulus))
        case "skipped":  # a later operation, on the current value
            operation = operations[int(rng.integers(at + 1, len(operations)))]
        case "circular":  # the last operation undone
            last = operations[at - 1]
            operation = Operation(UNDO.get(last.operator, last.operator), last.operand)
        case "missing_premise":  # an operation that is not in the problem
            operator = list(OPERATORS)[int(rng.integers(len(OPERATORS)))]
            operation = Operation(operator, int(rng.integers(1, problem.modulus)))
    return f"{value}{operation}={operation.apply(value, problem.modulus)}"


def perturbed_trees(problems: Sequence[Problem], kind: Verdict, *, seed: int = 0) -> list[StepTree]:
    """For each problem its right solution, and an error of `kind` next to one of its steps; named `<kind>-<number>`.

    Problems without a place for the error (nothing to undo) are skipped; ConfigError if none is left.
    """
    rng = np.random.default_rng([seed, 3, PERTURBATIONS.index(kind)])
    trees: list[StepTree] = []
    for i, problem in enumerate(problems):
        solution = problem.solution()
        for _ in range(TRIES):
            at = int(rng.integers(len(problem.operations)))
            if kind in ("redundant", "circular") and at == 0:
                continue
            if kind == "skipped" and at + 1 == len(problem.operations):
                continue
            error = _propose(kind, problem, at, rng)
            if judge_step(problem, solution[:at], error) != kind:
                continue
            nodes = (*(label_step(step, "right") for step in solution), label_step(error, kind))
            parents = (*range(ROOT, len(solution) - 1), at - 1 if at else ROOT)
            trunk = tuple(range(len(solution)))
            trees.append(
                StepTree(len(trees), problem.text, nodes, parents, trunk, f"{kind}-{i}", problem.answer, ended=True)
            )
            break
    if not trees:
        raise ConfigError(f"None of {len(problems)} problems has a place for an error of kind {kind!r}.")
    return trees


def count_verdicts(trees: Sequence[StepTree], modulus: int) -> Counter[Verdict]:
    """Count the oracle's verdicts on all nodes; labels are ignored."""
    counts: Counter[Verdict] = Counter()
    for tree in trees:
        problem = Problem.parse(tree.problem, modulus)
        for node in range(len(tree.nodes)):
            *prefix, text = tree.texts(tree.path(node))
            counts[judge_step(problem, prefix, text)] += 1
    return counts
