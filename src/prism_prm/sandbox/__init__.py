"""Run programs that nobody has read: isolated, under limits, and with outcomes that no program can fake.

`sandbox_policy` says what a program may do.
"""

from prism_prm.sandbox.sandbox import Call, Program, Run, Sandbox, Status
from prism_prm.sandbox.sandbox_policy import WALL_PER_CPU, Limits, SandboxError

__all__ = ["WALL_PER_CPU", "Call", "Limits", "Program", "Run", "Sandbox", "SandboxError", "Status"]
