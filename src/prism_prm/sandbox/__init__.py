"""Run programs that nobody has read: isolated, under limits, and with outcomes that no program can fake."""

from prism_prm.sandbox.box import Sandbox
from prism_prm.sandbox.records import PATIENCE, Call, Job, Limits, Program, Run, SandboxError, Status

__all__ = ["PATIENCE", "Call", "Job", "Limits", "Program", "Run", "Sandbox", "SandboxError", "Status"]
