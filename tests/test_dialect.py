"""The code and the docs use the ordinary words of the field, in American spelling.

`WORDS` lists words and phrases of an earlier private dialect, each with the word to use instead. The test searches for
them in docstrings, comments, strings, identifiers and prose, across line breaks and in any case. `ALLOWED` lists the
files in which a word is right. The changelog and experiments/LOG.md are records and are not searched.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = (
    "src/**/*.py", "src/**/*.js", "src/**/*.html", "docs/**/*.md", "README.md", "recipes/**/*.toml", "benchmarks/*.py",
    "experiments/*.py",
)  # fmt: skip

WORDS = {
    # British spelling
    "labell(ed|ing|er)": "labeled",
    "unlabelled": "unlabeled",
    "modell(ed|ing)": "modeled",
    "cancell(ed|ing)": "canceled",
    "(colour|behaviour|favour|neighbour|honour)[a-z]*": "color, behavior, favor, neighbor, honor",
    "(centre|metre|fibre)[ds]?": "center, meter, fiber",
    "(normal|optim|regular|initial|summar|token|serial|minim|maxim|util|organ|recogn|general|parallel|vector|standard"
    "|visual|penal|synchron|special|student|categor|prior|random|author|final|quant)is(e|es|ed|ers?|ing|ation)": "-ize",
    "analys(e|ed|es|ing)": "analyze",
    "judgements?": "judgment",
    "artefacts?": "artifact",
    "licences?": "license",
    "(misspelt|learnt|whilst|amongst)": "misspelled, learned, while, among",
    "grey": "gray",
    "discs?": "disk",
    "towards": "toward",
    # One standard word for one thing
    "portions?": "chunk",
    "mend(s|ed|ing)?": "fix",
    "patience": "retry policy, timeout",
    "(go|goes|going|went) on (where|from)": "resume",
    "same command (goes|would go) on": "a stopped run resumes with the same command",
    "must be a text": "string is the name of the type",
    "half[- ]written": "partial",
    "(is|are|was|were) filed": "stored",
    "made[- ]up": "synthetic",
    "time-outs?": "timeout",
    "back-off": "backoff",
    "plug-ins?": "plugin",
    "(trying again|another try) is idle": "a retry is pointless",
    "cut short": "truncated",
    "passed over": "skipped",
    "(best|last|every|each|next|first|two|of a) looks?(?! at| like)": "an evaluation point of a run",
    "foreign (file|format|column)s?": "of another tool; unknown",
    # Old names of classes and functions
    "alone_in_its_folder": "output_lock",
    "settle_waiting": "limit_openmp_spin",
    "is_polite": "honors_retry_after",
    "(hurried|trouble)": "with_request_timeout; failure",
    "shelf": "cache",
    "(kept_until_changed|is_mended|let_go)": "cached_until_changed, is_fixed",
    "(said|told|looked|hows|settled) = ": "name the value: message, event, options",
    # Personified code
    "(is|are|was|were|be) said": "reported",
    "says? (nothing|little|of itself|something else)": "is empty, differs",
    "(is|are|was|were) told": "gets",
    "told apart": "distinguished",
    "nobody (knows|knew|said|says|asks|asked|looks|looked|waits|reads|hears)": "unknown",
    "somebody (looks|asks|did)": "when it is opened",
    "whoever": "name who it is",
    "(and|or|but) who (sees|wants|needs|reads|looks)": "no riddles: say what happens",
    "(hung|hangs) up": "disconnected",
    "(what|that) stands": "is",
    "stands? (before|behind|between|beside|in the place)": "is before, after, between",
    # Old or rare words
    "anew": "again",
    "(whence|thereof|of no meaning|in silence)": "from where, of it, meaningless, silently",
    "for ever": "forever",
    "of so many": "of this many",
    "hangs? on": "depends on",
    "(paid|worth) (its|their) keep": "useful",
    "takes? [a-z]+ for (right|granted|new)": "treats as",
    "as it comes": "as it arrives",
    "if need be": "if necessary",
    "in whatever": "in any",
    "what is known of": "facts about; describe it",
}
"""Regular expression of a word or phrase → what to write instead."""

ALLOWED = {
    "optimisation": ("src/prism_prm/lab/demo/report.py",),  # a key of metrics.json
    "metre": ("src/prism_prm/grading/plain_answers.py",),  # a unit in answers
    "shelf": ("src/prism_prm/models/packing.py",),  # shelf packing
    "labelled": (
        "src/prism_prm/cli/old_spellings.py",
        "src/prism_prm/evaluate/benchmarks/__init__.py",  # the old name of a benchmark, in results of 0.2.0
        "experiments/origin_map.py",  # a key of its results
    ),
    "patience": ("src/prism_prm/cli/old_spellings.py",),
    "utilisation": ("src/prism_prm/cli/old_spellings.py",),
}
"""Use → files in which it is right."""


@cache
def texts() -> dict[str, str]:
    """File → text."""
    paths = sorted(path for place in PLACES for path in ROOT.glob(place))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def uses(words: str) -> list[str]:
    """Each use as `file:line: text`: of whole words, also within an identifier, and across lines of a comment."""
    spaced = words.replace(" ", r"(?:\s|#|//)+")
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for name, text in texts().items()
        for match in re.finditer(rf"(?<![a-z])(?:{spaced})(?![a-z])", text, re.IGNORECASE)
        if name not in ALLOWED.get(match[0].lower(), ())
    ]


@pytest.mark.parametrize("words", WORDS)
def test_the_usual_word(words: str) -> None:
    found = uses(words)
    assert not found, f"write instead: {WORDS[words]}\n" + "\n".join(found)
