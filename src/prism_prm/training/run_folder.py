"""A run's folder belongs to one command at a time, and from its first update on to one recipe, data and base PRM."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.config import to_toml
from prism_prm.errors import PrismError
from prism_prm.files import write_text
from prism_prm.prms.card import RUN_FILE, is_whole, read_run
from prism_prm.resume import locked, refuse_changes
from prism_prm.training.recipe import load_recipe

if TYPE_CHECKING:
    from accelerate import Accelerator

    from prism_prm.training.recipe import Recipe

BEGUN = "begun.json"
"""What the first update was made from; without it nothing in the folder binds a later start."""

FREE = ("hardware.cache", "hardware.cache_gb", "hardware.sharding")
"""Settings that may change in a run: they change nothing that is learned."""


@dataclass
class Claim:
    """A folder that is held, and what earlier starts have left there."""

    folder: Path
    is_begun: bool
    """Whether an earlier start made an update. If not, a stage is done again unless its result has the content that is
    wanted now; else results are taken as they are, and nothing that they were made from may change."""
    finished: dict[str, Any] | None
    """The content of run.json."""
    content: Mapping[str, str] = field(default_factory=dict)
    """What updates are made from: a key per name."""

    @property
    def lost(self) -> Path | None:
        """The best round of a finished run, if its weights are gone."""
        best = self.folder / self.finished["best"] if self.finished else None
        return best if best and not is_whole(best) else None

    def check_content(self, content: Mapping[str, str]) -> None:
        """Record what updates are made from; refuse to resume from other content."""
        self.content = content
        path = self.folder / BEGUN
        before = _read_begun(path) if path.exists() else content
        changed = [name for name, key in content.items() if before.get(name) != key]
        if changed:
            raise PrismError(
                f"{self.folder}: the {' and the '.join(changed)} changed since its first update, so it cannot be "
                f"resumed. Name another --out, or remove the folder to start again."
            )

    def begin(self) -> None:
        """An update is made: from now on the folder is this recipe's."""
        path = self.folder / BEGUN
        if not path.exists():
            write_text(path, json.dumps(dict(self.content), indent=2) + "\n")


def _read_begun(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise PrismError(
            f"{path}: not what `prism train` writes there ({error}). Name another --out, or remove the folder."
        ) from None
    return found


@contextlib.contextmanager
def claimed(folder: Path, recipe: Recipe, accelerator: Accelerator) -> Iterator[Claim]:
    """Hold the folder. All processes of a run call it."""
    with locked(folder) if accelerator.is_main_process else contextlib.nullcontext():
        is_begun = any(path.exists() for path in (folder / BEGUN, folder / "log.jsonl", folder / RUN_FILE))
        if accelerator.is_main_process:
            _check_recipe(folder / "recipe.toml", recipe, is_begun)
        accelerator.wait_for_everyone()
        yield Claim(folder, is_begun, read_run(folder))


def _check_recipe(path: Path, recipe: Recipe, is_begun: bool) -> None:
    """Save the recipe, or compare it with the one that the folder belongs to."""
    if not is_begun or not path.exists():
        write_text(path, to_toml(recipe))
        return
    refuse_changes(path.parent, asdict(load_recipe(path)), asdict(recipe), free=FREE)
