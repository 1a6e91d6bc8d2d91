"""Foreign process-supervision data → `StepTree`: a file for each large format, and one way in, `read_trees`."""

from __future__ import annotations

from prism_prm.data.draft import Draft
from prism_prm.data.formats import FORMATS, Format
from prism_prm.data.read_options import ReadOptions
from prism_prm.data.reader import Reader, ReadReport, read_trees

__all__ = ["FORMATS", "Draft", "Format", "ReadOptions", "ReadReport", "Reader", "read_trees"]
