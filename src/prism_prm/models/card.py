"""What a PRM's folder says about itself beyond its weights: prism.json, README.md, and run.json of a training run.

Nothing here imports torch, so that a name that can be no PRM is refused before anything heavy is imported.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from prism_prm.aggregate import DEFAULT_AGGREGATOR, DEFAULT_THRESHOLD, check_aggregator
from prism_prm.config import MAY_BE_EMPTY, Natural, Share, check, from_mapping
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.file_types import read_json
from prism_prm.files import write_text
from prism_prm.models.families import FAMILIES, Family, family_names, find_family
from prism_prm.models.model_files import CONFIG_FILE, base_of, check_model, is_adapter
from prism_prm.plugins import is_in_file

log = logging.getLogger(__name__)

CARD_FILE = "prism.json"
README = "README.md"
RUN_FILE = "run.json"
_FORMER = {"prod": "product"}
"""Aggregators under names that folders may still have."""
_ONLY_WHERE_KNOWN = ("family_sha256", "base_model", "datasets")
"""What prism.json leaves out where there is nothing to say."""
_RIGHT = frozenset({"accept", "correct", "good", "ok", "pass", "pos", "positive", "right", "true", "valid", "yes"})
_WRONG = frozenset(
    {"bad", "error", "fail", "false", "incorrect", "invalid", "mistake", "neg", "negative", "reject", "wrong"}
)
_SIGNS = {"+": True, "+1": True, "-": False, "-1": False}


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
    (architecture,) = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["architectures"]
    write_text(folder / README, model_card(card, architecture))


def find_card(
    name: str,
    folder: Path,
    config: Any,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    compat: bool | None = None,
) -> tuple[Card, type[Family]]:
    """prism.json first, then what is known of published models; arguments override both. And the family of it."""
    card = read_card(folder)
    if card is None:
        kind = find_family(family or _recognize(name, config))
        card = Card(kind.name, _known_settings(name, kind) or {}, aggregator=kind.aggregator)
    else:
        kind = _family_of(card, folder, family)
    card = replace(
        card, settings={**card.settings, **(settings or {})}, family_sha256=kind.sha256,
        base_model=hub_id(name) or card.base_model,
    )  # fmt: skip
    return card if compat is None else replace(card, compat=compat), kind


def _known_settings(name: str, family: type[Family]) -> Mapping[str, str] | None:
    """The settings of a published model, by its id or a folder that is named like it; None if it is not known."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    found = [settings for known, settings in family.known.items() if known.rsplit("/", 1)[-1].lower() == last]
    return found[0] if found else None


def _recognize(name: str, config: Any) -> str:
    """The family of a published PRM: by its id (or a folder of that name), then by its architecture."""
    for family in FAMILIES.values():
        if _known_settings(name, family) is not None:
            return family.name
    found = list(getattr(config, "architectures", None) or [])
    for family in FAMILIES.values():
        if set(found) & set(family.architectures.values()):
            return family.name
    if any(architecture.endswith(_CLASSIFIER) for architecture in found):
        return "token-classification"
    raise ModelError(
        f"{name}: cannot tell its PRM family from its name or its architecture {found}. Name one of: "
        f"{', '.join(family_names())} (family=… in Python, --family on the command line). init_prm makes a new PRM "
        "from a language model."
    )


def _family_of(card: Card, folder: Path, named: str | None) -> type[Family]:
    """The family that a card names; code in a file is run only where the user names it, too."""
    where = folder / CARD_FILE
    if named is None and is_in_file(card.family):
        raise ConfigError(
            f"{where}: the family is {card.family}, a file of its author (SHA-256 {card.family_sha256}). Code in a "
            f"file runs only if you name it: give --family {card.family} (family=… in Python), with the path to it."
        )
    try:
        kind = find_family(named or card.family)
    except ConfigError as error:
        raise error if named else ConfigError(f"{where}: {error}") from None
    if kind.name != card.family:
        raise ModelError(f"{folder}: its {CARD_FILE} says family {card.family!r}, not {kind.name!r}")
    if kind.sha256 != card.family_sha256:
        then, now = (sha256[:12] or "none" for sha256 in (card.family_sha256, kind.sha256))
        log.warning(
            "%s: the code of family %s has changed since this PRM was saved (SHA-256 %s…, now %s…): "
            "its scores may differ", folder, card.family, then, now,
        )  # fmt: skip
    return kind


def first_is_right(folder: Path, config: Any) -> bool:
    """Whether class 0 of a classifier is a right step, by the names of its labels; if they do not say, class 1 is."""
    names = [str(config.id2label.get(label, "")) for label in (0, 1)]
    first, second = map(_is_right, names)
    if first != second:
        return not second if first is None else first
    if not (folder / CARD_FILE).exists():  # in folders of ours class 1 is right
        log.warning(
            "%s: its labels %r and %r do not say which one is a right step; the second is taken for it. Otherwise set "
            'id2label in config.json to {"0": "right", "1": "wrong"}.', folder, *names,
        )  # fmt: skip
    return False


def _is_right(name: str) -> bool | None:
    """What a name says of a step; None if it says nothing."""
    if (sign := _SIGNS.get(name.strip())) is not None:
        return sign
    words = {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}
    is_right, is_wrong, is_negated = bool(words & _RIGHT), bool(words & _WRONG), bool(words & {"no", "non", "not"})
    if is_right == is_wrong:
        return False if is_negated and not is_right else None
    return is_right != is_negated


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


_CLASSIFIER = "ForTokenClassification"
"""How the names of transformers' token classifiers end; a family gives such a name only where its head is the same."""
_PROBLEM, _STEPS = "What is 3 + 4 - 2?", ["3 + 4 = 7", "7 - 2 = 5"]
_USE = """## Use

```python
from prism_prm import load_prm

prm = load_prm("."{naming})  # this folder, or its id on the hub
problem, steps = {problem!r}, {steps!r}
scores = prm.score(problem, steps)
print(scores, prm.solution_score(problem, steps))
```
"""
_TOKEN_CLASSIFIER = """## With transformers

`{architecture}` of transformers loads these weights with this head and gives the same scores:

```python
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

model = AutoModelForTokenClassification.from_pretrained(".").eval()
tokenizer = AutoTokenizer.from_pretrained(".")
ids, ends = tokenizer.encode({problem!r}, add_special_tokens=False), []
ids = [tokenizer.bos_token_id] * (tokenizer.bos_token_id is not None) + ids
for step in {steps!r}:
    ids += tokenizer.encode(step, add_special_tokens=False) + tokenizer.encode({separator!r}, add_special_tokens=False)
    ends.append(len(ids) - 1)
with torch.inference_mode():
    scores = model(torch.tensor([ids])).logits[0, ends].softmax(-1)[:, 1].tolist()
print(scores)
```
"""
_LANGUAGE_MODEL = """## With transformers

The weights are a complete language model, which transformers loads with `AutoModelForCausalLM`. A step is read from the
logits of the two label tokens; `prism_prm` lays out the text for it.
"""
_OTHER = """## With transformers

transformers itself has no class with this head: `AutoModelForTokenClassification` would put a random one on these
weights. Use `prism_prm`.
"""
_SHARE = """## Share

```
hf upload YOUR-NAME/YOUR-PRM .
```

No licence is stated here. Those of the base model and of the training data apply: add `license:` at the top once you
know it.
"""


def model_card(card: Card, architecture: str) -> str:
    """README.md, which the Hugging Face hub shows: what the folder is and how it is used.

    `architecture` is as its config.json names it.
    """
    from huggingface_hub import ModelCardData

    ours = FAMILIES.get(card.family)  # of a family that is not ours nothing is known but its name
    is_classifier = architecture.endswith(_CLASSIFIER)
    head = ModelCardData(
        base_model=card.base_model or None,
        datasets=list(card.datasets) or None,
        library_name="prism-prm",
        pipeline_tag="token-classification" if ours and is_classifier else None,
        tags=["process-reward-model", "prm", "math"],
    )
    rows = [("family", f"`{card.family}`: how text is laid out and read; its settings are in `prism.json`")]
    if card.base_model:
        rows.append(("made from", f"[{card.base_model}](https://huggingface.co/{card.base_model})"))
    if card.datasets:
        links = [f"[{one}](https://huggingface.co/datasets/{one})" for one in card.datasets]
        rows.append(("trained on", ", ".join(links)))
    if ours:
        rows.append(("labels", "; ".join(f"{i}: {label}" for i, label in enumerate(ours.labels))))
        rows.append(("outputs", ", ".join(f"`{output}`" for output in ours.outputs)))
    rows.append(("a step counts as right", f"above {card.threshold}"))
    rows.append(("score of a solution", f"the `{card.aggregator}` of its steps' scores"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    naming = f", family={card.family!r}" if is_in_file(card.family) else ""
    parts = [
        f"---\n{head.to_yaml()}\n---\n",
        "# A process reward model\n",
        "It reads a problem and the steps of a solution, and gives each step the probability that it is right.\n",
        f"| | |\n|---|---|\n{table}\n",
        _USE.format(naming=naming, problem=_PROBLEM, steps=_STEPS),
    ]
    if ours and is_classifier:
        separator = card.settings.get("separator", ours.settings["separator"])
        parts.append(
            _TOKEN_CLASSIFIER.format(architecture=architecture, problem=_PROBLEM, steps=_STEPS, separator=separator)
        )
    elif ours:
        parts.append(_LANGUAGE_MODEL if architecture.endswith("ForCausalLM") else _OTHER)
    return "\n".join([*parts, _SHARE])
