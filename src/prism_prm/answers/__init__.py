"""Final answers: find one in a solution, tell whether it is right, and group equal ones for a vote.

`extract` finds the answer and says how. `latex` strips its mark-up, `units` its unit, and `numerals` compares plain
numbers, times and words. For the rest, `forms` reads the outer form (a matrix, a tuple, a set …), `formulas` its parts
and `values` their values; `symbolic` compares them, in processes that `workers` can kill. `judge` combines all of
these.
"""

from prism_prm.answers.extract import EXTRACTORS, Extraction, extract_answer
from prism_prm.answers.judge import Judge, Verdict
from prism_prm.answers.latex import normalise

__all__ = ["EXTRACTORS", "Extraction", "Judge", "Verdict", "extract_answer", "normalise"]
