"""Final answers: find one in a solution, tell whether it is right, and group equal ones for a vote.

`extract` finds the answer and says how; `numerals` reads what is plainly a number or a word without any algebra;
`symbolic` does the algebra with math-verify inside processes that `workers` can kill; `judge` puts these together.
"""

from prism_prm.answers.extract import EXTRACTORS, Extraction, extract_answer
from prism_prm.answers.judge import Judge, Verdict
from prism_prm.answers.latex import normalise

__all__ = ["EXTRACTORS", "Extraction", "Judge", "Verdict", "extract_answer", "normalise"]
