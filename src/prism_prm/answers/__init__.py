"""Final answers: find one in a solution, tell whether it is right, and group equal ones for a vote.

`extract` finds the answer and says how. `latex` takes off its dress, `units` its unit, and `numerals` compares what is
plainly a number, a time or a word. For the rest, `forms` reads the outer form (a matrix, a tuple, a set …), `formulas`
what stands inside, and `values` what that comes to; `symbolic` compares them, in processes that `workers` can kill.
`judge` puts these together.
"""

from prism_prm.answers.extract import EXTRACTORS, Extraction, extract_answer
from prism_prm.answers.judge import Judge, Verdict
from prism_prm.answers.latex import normalise

__all__ = ["EXTRACTORS", "Extraction", "Judge", "Verdict", "extract_answer", "normalise"]
