"""Final answers: find one in a solution, tell whether it is right, and group equal ones for a vote.

`extract` finds the answer and says how. `plain_answers` strips its markup and its unit, and compares plain numbers,
times and words. The rest is compared by `symbolic`, which reads the outer form (a matrix, a tuple, a set …), and
`formulas`, which reads its parts, in a `process_pool` whose processes can be killed. `answer_judge` combines all of
these.
"""

from prism_prm.answers.answer_judge import Judge, Verdict
from prism_prm.answers.extract import EXTRACTORS, Extraction, extract_answer
from prism_prm.answers.plain_answers import normalize

__all__ = ["EXTRACTORS", "Extraction", "Judge", "Verdict", "extract_answer", "normalize"]
