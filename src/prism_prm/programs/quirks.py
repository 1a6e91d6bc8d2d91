"""Programs that the benchmarks' own harnesses may judge otherwise.

LiveCodeBench's runs them within itself, with mocked input and files; and every harness has the packages that are
installed beside it, where our sandbox has the standard library alone.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable

from prism_prm.programs.cases import Tests
from prism_prm.programs.livecodebench import PRELUDE

QUIRKS = {
    "read sys.stdin.buffer by lines (there always the first)": re.compile(r"\bstdin\.buffer\.readline\b"),
    "read all lines of sys.stdin (there without line ends, and one more)": re.compile(r"\bstdin\.readlines\b"),
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


_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([^\n#;]+))", re.MULTILINE)


def count_packages(asked: Iterable[tuple[Tests | None, str | None]]) -> Counter[str]:
    """Packages outside the standard library that programs import → how many do."""
    counts: Counter[str] = Counter()
    for tests, program in asked:
        if tests is not None and program:
            found = (one or each.strip() for one, several in _IMPORT.findall(program) for each in several.split(","))
            counts.update({re.split(r"\W", name)[0] for name in found} - sys.stdlib_module_names - {""})
    return counts
