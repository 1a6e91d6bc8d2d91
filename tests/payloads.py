"""Problems that ask for a program, made by hand in the forms of the benchmarks."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any


def packed(value: Any) -> str:
    """Tests as LiveCodeBench packs them: JSON in a pickled text, compressed, in base64."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


def stdin_record(**changes: Any) -> dict[str, Any]:
    """Print the sum of two numbers."""
    public = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    private = [{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]
    return {
        "question_id": "abc100_a", "question_title": "Sum", "question_content": "Print the sum of two numbers.",
        "contest_date": "2024-03-02T00:00:00", "difficulty": "easy", "starter_code": "", "metadata": "{}",
        "public_test_cases": json.dumps(public), "private_test_cases": packed(private),
    } | changes  # fmt: skip


def function_record(**changes: Any) -> dict[str, Any]:
    """Return the two numbers, the smaller one first."""
    public = [{"input": "2\n1", "output": "[1, 2]", "testtype": "functional"}]
    private = [{"input": "7\n9", "output": "[7, 9]", "testtype": "functional"}]
    return stdin_record(
        question_id="3300", question_title="order", question_content="Return both, the smaller one first.",
        starter_code="class Solution:\n    def order(self, a: int, b: int) -> list[int]:\n        ",
        metadata=json.dumps({"func_name": "order"}), public_test_cases=json.dumps(public),
        private_test_cases=json.dumps(private),
    ) | changes  # fmt: skip


HUMANEVAL = {
    "task_id": "HumanEval/999",
    "prompt": 'import math\n\n\ndef half(x: int) -> float:\n    """Half of x.\n    >>> half(4)\n    2.0\n    """\n',
    "canonical_solution": "    return x / 2\n",
    "entry_point": "half",
    "test": "def check(candidate):\n    assert candidate(2) == 1.0\n    assert abs(candidate(1) - 0.5) < 1e-6\n"
    "    for i in range(3):\n        assert candidate(i) == i / 2\n    assert True, 'the end'\n",
}
MBPP = {
    "task_id": 7,
    "prompt": "Write a function to join two lists.",
    "code": "def join(a, b):\n    return a + b",
    "test_imports": ["import math"],
    "test_list": ["assert join([1], [2]) == [1, 2]", "assert join([], [3]) == [3]", "assert join((), ()) == ()"],
}
MBPP_OTHERS = {
    "close": {
        **MBPP,
        "task_id": 82,
        "prompt": "Write a function to find the volume of a ball.",
        "code": "def volume(r):\n    return 4 / 3 * math.pi * r**3",
        "test_list": [f"assert math.isclose(volume({r}), {v}, rel_tol=0.001)" for r, v in ((1, 4.19), (2, 33.5))],
    },
    "named as Python's own": {
        **MBPP,
        "task_id": 126,
        "prompt": "Write a function to find the sum of common divisors.",
        "code": "def sum(a, b):\n    return __builtins__['sum'](i for i in range(1, min(a, b)) if a % i == b % i == 0)",
        "test_list": ["assert sum(10,15) == 6", "assert sum(100,150) == 93", "assert sum(4,6) == 3"],
    },
    "unreadable": {
        **MBPP,
        "task_id": 596,
        "prompt": "Write a function to find the size of a tuple in bytes.",
        "test_list": [f"assert size({given}) == sys.getsizeof({given})" for given in ("(1, 2)", "()")],
    },
}
"""Forms that few of its records have: tolerances, a builtin's name, and values that must be worked out by running."""
OWN = {
    "problem": "Double the number.",
    "name": "double",
    "public_tests": [{"input": "2", "output": "4"}],
    "tests": [{"input": "-3", "output": "-6"}, {"input": "0", "output": "0"}],
}


def fenced(program: str) -> str:
    """A solution with this program."""
    return f"We write it down.\n\n```python\n{program}\n```\n"
