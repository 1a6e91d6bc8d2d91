"""prism.json: what a PRM folder says about itself beyond its weights, and how a folder without it is recognised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from prism_prm.aggregate import DEFAULT_AGGREGATOR, check_aggregator
from prism_prm.chosen import DEFAULT_THRESHOLD
from prism_prm.config import from_mapping
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.file_types import read_json
from prism_prm.files import write_text
from prism_prm.prms import FAMILIES, Family, family_names
from prism_prm.prms.readme import model_card
from prism_prm.ranges import MAY_BE_EMPTY, Natural, Share, check

CARD_FILE = "prism.json"
README = "README.md"
_FORMER = {"prod": "product"}
"""Aggregators under names that folders may still have."""
_ONLY_WHERE_KNOWN = ("family_sha256", "base_model", "datasets")
"""What prism.json leaves out where there is nothing to say."""


@dataclass(frozen=True, slots=True)
class Card:
    """The content of prism.json."""

    family: str
    settings: Mapping[str, Annotated[str, MAY_BE_EMPTY]] = field(default_factory=dict)
    """Settings of the family's layout; see `Family.settings`."""
    compat: bool = False
    """Reproduce the published code's quirk, where it has one."""
    threshold: Share = DEFAULT_THRESHOLD
    """A step counts as right iff its probability is above this; what commands judge by unless told otherwise."""
    aggregator: str = DEFAULT_AGGREGATOR
    """How step scores make one score of a solution; what commands select by unless told otherwise."""
    frozen_layers: Natural = 0
    """How many of the lowest layers were frozen in training; their activations can be cached on disk."""
    family_sha256: str = ""
    """The SHA-256 of the file of a family that is not ours; left out of prism.json otherwise."""
    base_model: str = ""
    """The hub id of the model that this one was made from; left out of prism.json where it is not known."""
    datasets: tuple[str, ...] = ()
    """Hub ids of what it was trained on; files, which mean nothing to others, are left out."""

    def __post_init__(self) -> None:
        check(self)
        check_aggregator(self.aggregator)

    def trained_on(self, inputs: Iterable[str]) -> Card:
        """The card after training on some files and datasets of the hub."""
        return replace(self, datasets=tuple(dict.fromkeys([*self.datasets, *filter(hub_id, inputs)])))

    def write(self, folder: Path) -> None:
        said = {key: value for key, value in asdict(self).items() if value or key not in _ONLY_WHERE_KNOWN}
        write_text(folder / CARD_FILE, json.dumps(said, indent=2) + "\n")


def read_card(folder: Path) -> Card | None:
    """The folder's prism.json, or None."""
    path = folder / CARD_FILE
    if not path.exists():
        return None
    try:
        found = msgspec.convert(read_json(path), dict[str, Any])
        if isinstance(named := found.get("aggregator"), str):
            found["aggregator"] = _FORMER.get(named, named)
        return from_mapping(Card, found)
    except DataError as error:
        raise ModelError(str(error)) from None
    except (ConfigError, msgspec.ValidationError) as error:
        raise ModelError(f"{path}: {error}") from None


def hub_id(name: str | Path) -> str:
    """The name itself where it is a hub id; "" for a folder, whose name means nothing to others."""
    return "" if Path(name).exists() else str(name)


def set_threshold(folder: Path, threshold: float) -> None:
    """Change the threshold that a PRM folder says to use, in its prism.json and in its README."""
    card = read_card(folder)
    assert card is not None, "a PRM folder of ours"
    card = replace(card, threshold=threshold)
    card.write(folder)
    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    write_text(folder / README, model_card(card, architecture))


def known_settings(name: str, family: type[Family]) -> Mapping[str, str] | None:
    """The settings of a published model, by its id or a folder that is named like it; None if it is not known."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    found = [settings for known, settings in family.known.items() if known.rsplit("/", 1)[-1].lower() == last]
    return found[0] if found else None


def recognise(name: str, config: Any) -> str:
    """The family of a published PRM: by its id (or a folder of that name), then by its architecture."""
    for family in FAMILIES.values():
        if known_settings(name, family) is not None:
            return family.name
    found = list(getattr(config, "architectures", None) or [])
    for family in FAMILIES.values():
        if set(found) & set(family.architectures.values()):
            return family.name
    if any(architecture.endswith("ForTokenClassification") for architecture in found):
        return "token-classification"
    raise ModelError(
        f"{name}: cannot tell its PRM family from its name or its architecture {found}. Name one of: "
        f"{', '.join(family_names())} (family=… in Python, --family on the command line). init_prm makes a new PRM "
        "from a language model."
    )
