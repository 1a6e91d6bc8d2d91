"""Programs: find one in a solution, run it on a problem's tests, and group those that do the same for a vote.

`records` reads the benchmarks' records and users' own; `cases` holds the tests, `compare` the benchmarks' rules, and
`judge` runs programs in the sandbox. Hidden tests reach `judge` alone.
"""

from typing import Literal

Level = Literal["auto", "bubblewrap", "landlock", "none"]
"""What programs run in; auto is the better one of the next two that works here."""
