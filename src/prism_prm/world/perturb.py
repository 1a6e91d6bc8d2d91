"""PRMBench-style test sets: right solutions with one kind of injected error, each checked by the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from prism_prm.errors import ConfigError
from prism_prm.records import ROOT, Step, StepTree
from prism_prm.world.oracle import Verdict, judge_step
from prism_prm.world.problems import OPERATORS, Operation, Problem
from prism_prm.world.trees import labelled

Proposal = Callable[[Problem, int, np.random.Generator], str]
"""A candidate for an error at a position of the right solution; the oracle says whether it is one."""


def _equation(value: int, operation: Operation, modulus: int) -> str:
    return f"{value}{operation}={operation.apply(value, modulus)}"


def _counterfactual(problem: Problem, at: int, rng: np.random.Generator) -> str:
    """The right operation with another result."""
    return f"{problem.solution()[at].rpartition('=')[0]}={rng.integers(problem.modulus)}"


def _contradiction(problem: Problem, at: int, rng: np.random.Generator) -> str:
    """The right operation on another value, worked out rightly."""
    return _equation(int(rng.integers(problem.modulus)), problem.operations[at], problem.modulus)


def _skipped(problem: Problem, at: int, rng: np.random.Generator) -> str:
    """An operation from further on, on the present value."""
    later = int(rng.integers(at + 1, len(problem.operations)))
    return _equation(problem.values()[at], problem.operations[later], problem.modulus)


def _premature(problem: Problem, at: int, rng: np.random.Generator) -> str:
    """A later step of the right solution, word for word; the answer is one of them."""
    return problem.solution()[int(rng.integers(at + 1, len(problem.operations) + 1))]


def _redundant(problem: Problem, at: int, rng: np.random.Generator) -> str:
    """An earlier step, word for word."""
    return problem.solution()[int(rng.integers(at))]


def _circular(problem: Problem, at: int, rng: np.random.Generator) -> str:  # noqa: ARG001
    """The last operation undone."""
    last = problem.operations[at - 1]
    undo = Operation({"+": "-", "-": "+"}.get(last.operator, last.operator), last.operand)
    return _equation(problem.values()[at], undo, problem.modulus)


def _missing_premise(problem: Problem, at: int, rng: np.random.Generator) -> str:
    """An operation that is not in the problem, worked out rightly on the present value."""
    operator = list(OPERATORS)[int(rng.integers(len(OPERATORS)))]
    return _equation(problem.values()[at], Operation(operator, int(rng.integers(1, problem.modulus))), problem.modulus)


PERTURBATIONS: dict[Verdict, Proposal] = {
    "counterfactual": _counterfactual,
    "contradiction": _contradiction,
    "skipped": _skipped,
    "premature": _premature,
    "redundant": _redundant,
    "circular": _circular,
    "missing_premise": _missing_premise,
}
"""Error class → how such an error is proposed. Only proposals that the oracle gives this very class are used."""

TRIES = 50


def perturb(problem: Problem, kind: Verdict, rng: np.random.Generator) -> tuple[int, str] | None:
    """(position, step) of an error of one kind, or None where the problem has no place for it."""
    solution = problem.solution()
    for _ in range(TRIES):
        at = int(rng.integers(len(problem.operations)))
        if kind in ("redundant", "circular") and at == 0:
            continue
        if kind == "skipped" and at + 1 == len(problem.operations):
            continue
        step = PERTURBATIONS[kind](problem, at, rng)
        if judge_step(problem, solution[:at], step) == kind:
            return at, step
    return None


def perturbed_trees(problems: Sequence[Problem], kind: Verdict, *, seed: int = 0) -> list[StepTree]:
    """For each problem its right solution, and beside one of its steps an error of `kind`; named `<kind>-<number>`.

    A problem without a place for the error (nothing to undo) is left out; none at all is an error.
    """
    rng = np.random.default_rng([seed, 3, list(PERTURBATIONS).index(kind)])
    trees: list[StepTree] = []
    for i, problem in enumerate(problems):
        found = perturb(problem, kind, rng)
        if found is not None:
            trees.append(_with_error(problem, *found, kind, len(trees), f"{kind}-{i}"))
    if not trees:
        raise ConfigError(f"None of {len(problems)} problems has a place for an error of kind {kind!r}.")
    return trees


def _with_error(problem: Problem, at: int, step: str, kind: Verdict, tree_id: int, name: str) -> StepTree:
    solution = problem.solution()
    nodes: list[Step] = [labelled(text, "right") for text in solution]
    nodes.append(labelled(step, kind))
    parents = (*range(-1, len(solution) - 1), at - 1 if at else ROOT)
    trunk = tuple(range(len(solution)))
    return StepTree(tree_id, problem.text, tuple(nodes), parents, trunk, name, answer=problem.answer, ended=True)
