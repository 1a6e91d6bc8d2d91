"""Where a PRM is: a model's folder or hub id, an adapter's, or a run's; checked before anything heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.errors import ModelError
from prism_prm.lm.place import CONFIG_FILE, base_of, check_model, is_adapter
from prism_prm.prms import find_family
from prism_prm.prms.card import CARD_FILE, read_card

RUN_FILE = "run.json"


class _Run(msgspec.Struct):
    """What must be in run.json."""

    best: str
    criterion: str
    beats_base: bool | None
    rounds: dict[str, dict[str, Any]]


def read_run(folder: Path) -> dict[str, Any] | None:
    """The content of a finished run's run.json; None where there is none."""
    path = folder / RUN_FILE
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        msgspec.convert(found, _Run)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ModelError(
            f"{path}: not what `prism train` writes there ({error}). Remove it and rerun `prism train` with the same "
            f"recipe to resume."
        ) from None
    return found


def is_whole(folder: Path) -> bool:
    """Whether a folder that `prism train` wrote still has its config and weights."""
    return (folder / CONFIG_FILE).exists() and any(folder.glob("*.safetensors"))


def prm_folder(name: str | Path) -> str | Path:
    """`name` itself, or the best round of the `prism train` run whose folder it is."""
    folder = Path(name)
    if (folder / CONFIG_FILE).exists() or not (folder / "recipe.toml").exists():
        return name
    run = read_run(folder)
    if run is not None:
        best = folder / str(run["best"])
        if not is_whole(best):
            raise ModelError(
                f"{best}: the weights of this run's best round are missing; rerun `prism train` to make them again."
            )
        return best
    done = sorted(str(card.parent) for card in folder.glob(f"rounds/*/{CARD_FILE}"))
    finished = f"the finished rounds are PRMs: {', '.join(done)}" if done else "no round is finished yet"
    raise ModelError(
        f"{folder}: this run is not finished ({finished}); rerun `prism train` with the same recipe to resume."
    )


def checkable(loading: Mapping[str, Any] | None, name: str = "") -> dict[str, Any]:
    """Those options of `load_prm` that `check_prm` looks at; families may be given by the PRMs' names."""
    options = {key: (loading or {}).get(key) for key in ("family", "adapter", "allow_pickle")}
    if isinstance(options["family"], Mapping):
        options["family"] = options["family"].get(name)
    return {key: value for key, value in options.items() if value is not None}


def check_prm(
    name: str | Path, *, family: str | None = None, adapter: str | Path | None = None, allow_pickle: bool = False
) -> None:
    """Refuse at once what can be no PRM; `load_prm` would, too, after it has imported torch and long work was done."""
    if family is not None:
        find_family(family)
    if adapter is not None and not is_adapter(adapter):
        raise ModelError(f"{adapter}: no adapter_config.json, so this is not a LoRA adapter")
    place = prm_folder(name)
    check_model(place, allow_pickle=allow_pickle)
    if is_adapter(place):
        place = base_of(Path(place))
        check_model(place, allow_pickle=allow_pickle)
    if Path(place).is_dir():
        read_card(Path(place))
