"""Programs that LiveCodeBench's own harness runs differently: within itself, with mocked input and files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from prism_prm.programs.cases import Tests
from prism_prm.programs.livecodebench import PRELUDE

QUIRKS = {
    "read sys.stdin.buffer by lines (there always the first)": re.compile(r"\bstdin\.buffer\.readline\b"),
    "call quit (there None)": re.compile(r"(?<![\w.])quit\s*\("),
    "open files (there mocked)": re.compile(r"(?<![\w.])open\s*\("),
    "exit with a code (there no failure)": re.compile(r"(?<!\w)exit\s*\(\s*[^)\s]"),
}


def count_quirks(asked: Iterable[tuple[Tests | None, str | None]]) -> Counter[str]:
    """What programs for LiveCodeBench's stdin problems do that its harness treats otherwise → how many do."""
    counts: Counter[str] = Counter()
    for tests, program in asked:
        if tests is not None and tests.prelude == PRELUDE and tests.function is None and program:
            counts.update(name for name, pattern in QUIRKS.items() if pattern.search(program))
    return counts
