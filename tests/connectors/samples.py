"""Solutions to score, and what the shipped PRM gives them; problems to search, and what `prism search` chooses.

`python samples.py FILE` writes that with prism-prm's own environment, for environments in which the PRM cannot be
loaded, and makes the policy of the searches beside FILE.
"""

from __future__ import annotations

import json
import os
import subprocess
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
RULES = {"best-of-8": ("--method", "best-of-n", "--select", "argmax"), "beam-8": ("--method", "beam")}
"""Model name at the endpoint → options of `prism search`."""
SEARCH = (
    "-P", "temperature=1", "-P", "max_step_tokens=24", "-P", "max_tokens=64", "--set", "max_steps=6",
    "--set", "seed=3",
)  # fmt: skip
"""Options of `prism search` and `prism serve`."""


def expected() -> dict[str, Any]:
    """`scores` and step `probabilities` of STEPS, then of OTHER, as prm.solution_score and prm.score give them.

    `searched` has `problems`, their `answers`, and by rule what `searched` below returns.
    """
    found: dict[str, Any] = json.loads(Path(os.environ["PRISM_EXPECTED"]).read_text())
    return found


def searched(folder: Path, task: Path, rule: str) -> dict[str, Any]:
    """The texts that `prism search` chooses (None if it chooses none), and its accuracy."""
    import pyarrow.parquet as pq

    from prism_prm import example_folder
    from prism_prm.data.pools import read_pool

    place = ("--policy", f"hf:{folder / 'policy'}", "--prm", f"prm={example_folder('prism')}", "--task", str(task))
    command = [
        sys.executable,
        "-m",
        "prism_prm",
        "search",
        *place,
        *RULES[rule],
        "-n",
        rule.rpartition("-")[2],
        *SEARCH,
    ]
    subprocess.run([*command, "--out", str(folder / rule)], check=True)
    pool = read_pool(str(folder / rule / "pools" / "prm-n8.jsonl")).problems
    rows = pq.read_table(folder / rule / "solutions" / "prm-n8.parquet").to_pylist()
    chosen = {row["problem_id"]: row for row in rows if row["chosen"]}
    steps = [pool[i].solutions[chosen[i]["solution"]].steps if i in chosen else None for i in range(len(pool))]
    right = sum(bool(row["correct"]) for row in chosen.values())
    return {"texts": [None if one is None else "\n\n".join(one) for one in steps], "accuracy": right / len(pool)}


if __name__ == "__main__":
    import shutil

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from prism_prm import example_prm
    from tiny import SOLVED, memorising_policy

    here = Path(sys.argv[1]).parent / "searched"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    # Without blanks, as the shipped PRM reads steps.
    solved = {text: [one if "####" in one else one.replace(" ", "") for one in steps] for text, steps in SOLVED.items()}
    memorising_policy(here / "policy", solved=solved)
    references = [steps[-1].removeprefix("#### ") for steps in SOLVED.values()]
    records = [{"problem": text, "answer": answer} for text, answer in zip(SOLVED, references, strict=True)]
    (here / "task.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    prm = example_prm("prism")
    solutions = [(PROBLEM, steps) for steps in STEPS] + [OTHER]
    Path(sys.argv[1]).write_text(
        json.dumps(
            {
                "scores": [prm.solution_score(problem, steps) for problem, steps in solutions],
                "probabilities": [list(map(float, prm.score(problem, steps))) for problem, steps in solutions],
                "searched": {"problems": list(SOLVED), "answers": references}
                | {rule: searched(here, here / "task.jsonl", rule) for rule in RULES},
            }
        )
    )
