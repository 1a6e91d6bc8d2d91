"""Solutions to score, and what the shipped PRM gives them; `python samples.py FILE` writes that with prism-prm's own
environment, for environments in which the PRM cannot be loaded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PROBLEM = "1+1+2-1"
STEPS = (
    ("1+1=2", "2+2=4", "4-1=3", "#### 3"),
    ("1+1=2", "2+2=3", "3-1=2", "#### 2"),
    ("1+1=3", "3+2=5", "5-1=4", "#### 4"),
    ("1+1=2", "2+2=4", "4-1=2", "#### 2"),
)
RIGHT = (True, False, False, False)
REFERENCE = "3"
OTHER = ("2+3-1", ("2+3=5", "5-1=4", "#### 4"))
"""Another problem."""
TEXTS = tuple("\n\n".join(steps) for steps in STEPS)
UNANSWERED = "1+1=2\n\n2+2=4"
TOLERANCE = 1e-6


def expected() -> dict[str, Any]:
    """`scores` and step `probabilities` of STEPS, then of OTHER, as prm.solution_score and prm.score give them."""
    found: dict[str, Any] = json.loads(Path(os.environ["PRISM_EXPECTED"]).read_text())
    return found


if __name__ == "__main__":
    from prism_prm import example_prm

    prm = example_prm("prism")
    solutions = [(PROBLEM, steps) for steps in STEPS] + [OTHER]
    Path(sys.argv[1]).write_text(
        json.dumps(
            {
                "scores": [prm.solution_score(problem, steps) for problem, steps in solutions],
                "probabilities": [list(map(float, prm.score(problem, steps))) for problem, steps in solutions],
            }
        )
    )
