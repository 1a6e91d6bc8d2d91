"""The program in a solution."""

from __future__ import annotations

from prism_prm.answers import Extraction

FENCE = "```"


def find_program(text: str) -> Extraction:
    """What stands between the last two lines that begin with three back-ticks, as LiveCodeBench has it.

    With fewer than two such lines there is no program: a solution that was cut inside its program has none.
    """
    lines = text.split("\n")
    fences = [i for i, line in enumerate(lines) if line.startswith(FENCE)]
    program = "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""
    return Extraction(program, "fences") if program.strip() else Extraction(None, "none")
