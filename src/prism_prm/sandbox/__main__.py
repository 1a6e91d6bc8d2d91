"""Print which levels of isolation work on this machine, and what the self-test has seen refused.

Run: python -m prism_prm.sandbox
"""

from __future__ import annotations

import os
import platform
import sys

from prism_prm.sandbox import Sandbox, SandboxError
from prism_prm.sandbox.sandbox_policy import FIRST_USER, LEVELS, interpreter, landlock_abi, readable_paths


def main() -> int:
    """Exit with 0 if programs can be run in isolation."""
    who = f"root; programs run as users from {FIRST_USER} on" if os.geteuid() == 0 else f"user {os.getuid()}"
    print(f"{platform.machine()}, landlock ABI {landlock_abi()}, {who}, interpreter {interpreter()}")
    working = []
    for level in LEVELS[:-1]:
        try:
            box = Sandbox(level)
        except SandboxError as error:
            print(str(error).splitlines()[-1])
            continue
        working.append(level)
        print(f"- {level}: works. The self-test's program could not {', '.join(box.refused)}.")
    print(f"Programs can read {', '.join(readable_paths())}.")
    print(f"Level auto is {working[0]}." if working else "There is no isolation here.")
    return 0 if working else 1


if __name__ == "__main__":
    sys.exit(main())
