"""Programs: run them on a problem's tests, and group those that do the same for a vote.

`problems` holds a problem and its tests, and `code_benchmarks` reads them from records. `program_judge` runs programs
in the sandbox and compares what they give by the rules of `compare_outputs`. Only the judge sees hidden tests.
"""

from typing import Literal

Level = Literal["auto", "bubblewrap", "landlock", "none"]
"""The sandbox that programs run in; auto is the best that works here, and never none."""
