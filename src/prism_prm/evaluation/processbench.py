"""ProcessBench: name the first wrong step of a solution, or say that there is none.

`label` is the 0-based index of the earliest wrong step, −1 if there is none. A PRM's answer is the first step that
scores below the threshold. F1 is the harmonic mean of the exact matches among wrong and among right solutions; the
overall value is the plain mean of the four splits' F1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prism_prm.data.reader import Reader
from prism_prm.errors import DataError
from prism_prm.evaluation.items import Benchmark, Item, require_items

HUB = "Qwen/ProcessBench"
SPLITS = {"gsm8k": 400, "math": 1000, "olympiadbench": 1000, "omnimath": 1000}
"""Split → how many items it has."""
_ID = re.compile(rf"({'|'.join(SPLITS)})-\d+")


def read_processbench(inputs: Sequence[str | Path]) -> Benchmark:
    """The items of some files, folders or a hub data set; an item's split is in its id, else its file's name."""
    reader = Reader(inputs, format="process-labels")
    items: list[Item] = []
    seen: dict[str, str] = {}
    for i, (source, draft) in enumerate(reader.drafts()):
        match = _ID.fullmatch(draft.name)
        split = match[1] if match else Path(source.name).name.split(".")[0]
        name = draft.name or f"{split}-{i}"
        if name in seen:
            raise DataError(
                f"{source.name}: id {name!r} is also in {seen[name]}; give each item once", reason="duplicate-id"
            )
        seen[name] = source.name
        items.append(Item(replace(draft.tree(i), name=name), split, draft.problem))
    files = tuple(source.name for source in reader.sources)
    sizes = Counter(item.group for item in items)
    return Benchmark("processbench", require_items(items, ", ".join(files)), files, {}, complete=sizes == SPLITS)
