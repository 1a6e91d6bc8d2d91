"""Foreign process-supervision data → `StepTree`: every format is in `formats`, and the way in is `read_trees`."""

from __future__ import annotations

from prism_prm.data.draft import Draft, Format, ReadOptions
from prism_prm.data.formats import FORMATS
from prism_prm.data.reader import Reader, ReadReport, read_trees

__all__ = ["FORMATS", "Draft", "Format", "ReadOptions", "ReadReport", "Reader", "read_trees"]
