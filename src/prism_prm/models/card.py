"""The metadata of a PRM folder: prism.json, README.md, and run.json of a training run.

Nothing here imports torch, so a wrong name is reported before anything heavy is imported.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from prism_prm.aggregate import DEFAULT_AGGREGATOR, DEFAULT_THRESHOLD, check_aggregator
from prism_prm.calibration import Calibration
from prism_prm.config import MAY_BE_EMPTY, Natural, Share, check, from_mapping
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.file_types import read_json
from prism_prm.files import write_text
from prism_prm.models.families import FAMILIES, Family, family_names, find_family
from prism_prm.models.model_files import CONFIG_FILE, base_of, check_model, is_adapter
from prism_prm.plugins import is_in_file
from prism_prm.segments import DEFAULT_SEGMENTER, SCORED, find_segmenter, thinking_tokens

log = logging.getLogger(__name__)

CARD_FILE = "prism.json"
CALIBRATION_FILE = "calibration.json"
"""What `prism calibrate --out` writes for PRMs whose card it cannot change."""
README = "README.md"
RUN_FILE = "run.json"
_OLD_AGGREGATORS = {"prod": "product"}
"""Old names of aggregators that folders may still use."""
_OMIT_IF_DEFAULT = ("family_sha256", "base_model", "datasets", "calibration", "segmenter", "thinking")
"""Fields that prism.json omits if they have their defaults."""
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
    """A step counts as right if its probability is above this. The default threshold of all commands."""
    aggregator: str = DEFAULT_AGGREGATOR
    """How step scores become a solution's score. The default aggregator of all commands."""
    frozen_layers: Natural = 0
    """How many of the lowest layers were frozen in training; their activations can be cached on disk."""
    family_sha256: str = ""
    """The SHA-256 of a custom family's file; omitted for built-in families."""
    base_model: str = ""
    """The hub id of the model that this one was made from; omitted if unknown."""
    datasets: tuple[str, ...] = ()
    """Hub ids of the training data; local files, which mean nothing to others, are left out."""
    calibration: Calibration | None = None
    """What `prism calibrate` chose; omitted before. It is of these weights, so training drops it."""
    segmenter: str = DEFAULT_SEGMENTER
    """The rule that cuts solutions into steps, a key of `SEGMENTERS`; omitted if it is `paragraph`."""
    thinking: str = SCORED
    """What becomes of thinking steps: `scored` as plain steps, `context` of the response only, `dropped`, or `last-N`:
    context of at most N tokens. Omitted if it is `scored`."""

    def __post_init__(self) -> None:
        check(self)
        check_aggregator(self.aggregator)
        find_segmenter(self.segmenter)
        thinking_tokens(self.thinking)

    def trained_on(self, inputs: Iterable[str]) -> Card:
        """Return the card with the hub ids among `inputs` added to its datasets."""
        return replace(self, datasets=tuple(dict.fromkeys([*self.datasets, *filter(hub_id, inputs)])))

    def uncalibrated(self) -> Card:
        """Return the card for the model's own scores, with the threshold that judges them the same."""
        if self.calibration is None:
            return self
        return replace(self, threshold=self.calibration.undo(self.threshold), calibration=None)

    def write(self, folder: Path) -> None:
        defaults = {one.name: one.default for one in fields(self)}
        content = {
            key: value for key, value in asdict(self).items() if key not in _OMIT_IF_DEFAULT or value != defaults[key]
        }
        write_text(folder / CARD_FILE, json.dumps(content, indent=2) + "\n")


def read_card(folder: Path) -> Card | None:
    """Read the folder's prism.json; None if there is none."""
    path = folder / CARD_FILE
    if not path.exists():
        return None
    try:
        content = msgspec.convert(read_json(path), dict[str, Any])
        if isinstance(aggregator := content.get("aggregator"), str):
            content["aggregator"] = _OLD_AGGREGATORS.get(aggregator, aggregator)
        return from_mapping(Card, content)
    except DataError as error:
        raise ModelError(str(error)) from None
    except (ConfigError, msgspec.ValidationError) as error:
        raise ModelError(f"{path}: {error}") from None


def read_calibration(place: str | Path) -> Calibration:
    """Read what `prism calibrate --out` wrote: a folder with a calibration.json, or the file."""
    path = Path(place) / CALIBRATION_FILE if Path(place).is_dir() else Path(place)
    try:
        return from_mapping(Calibration, msgspec.convert(read_json(path), dict[str, Any]))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `prism calibrate --out` writes one") from None
    except (ConfigError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: not what `prism calibrate` writes ({error})") from None


def hub_id(name: str | Path) -> str:
    """Return the name if it is a hub id; "" for a local folder, whose name means nothing to others."""
    return "" if Path(name).exists() else str(name)


def set_threshold(folder: Path, threshold: float) -> None:
    """Change the default threshold of a PRM folder's own scores."""
    card = read_card(folder)
    assert card is not None, "a folder that PRM.save wrote"
    rewrite_card(folder, replace(card, threshold=threshold, calibration=None))


def rewrite_card(folder: Path, card: Card) -> None:
    """Replace the card of a PRM folder, in its prism.json and in its README, unless that was edited."""
    (architecture,) = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["architectures"]
    readme, old = folder / README, read_card(folder)
    is_own = old is None or not readme.exists() or readme.read_text(encoding="utf-8") == model_card(old, architecture)
    if is_own:
        write_text(readme, model_card(card, architecture))
    card.write(folder)


def find_card(
    name: str,
    folder: Path,
    config: Any,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    compat: bool | None = None,
) -> tuple[Card, type[Family]]:
    """Return a PRM's card and family: from prism.json, else from known published models. Arguments override both."""
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
    """Return the settings of a published model, by its id or a folder of the same name; None if it is unknown."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    matches = (settings for known, settings in family.known.items() if known.rsplit("/", 1)[-1].lower() == last)
    return next(matches, None)


def _recognize(name: str, config: Any) -> str:
    """Detect the family of a published PRM by its id (or a folder of that name), then by its architecture."""
    for family in FAMILIES.values():
        if _known_settings(name, family) is not None:
            return family.name
    architectures = list(getattr(config, "architectures", None) or [])
    for family in FAMILIES.values():
        if set(architectures) & set(family.architectures.values()):
            return family.name
    if any(architecture.endswith(_CLASSIFIER) for architecture in architectures):
        return "token-classification"
    raise ModelError(
        f"{name}: cannot tell its PRM family from its name or its architecture {architectures}. Name one of: "
        f"{', '.join(family_names())} (family=… in Python, --family on the command line). init_prm makes a new PRM "
        "from a language model."
    )


def _family_of(card: Card, folder: Path, named: str | None) -> type[Family]:
    """Return the family that a card names. Code in a file runs only if the user names the file, too."""
    where = folder / CARD_FILE
    if named is None and is_in_file(card.family):
        raise ConfigError(
            f"{where}: the family is {card.family}, a file of its author (SHA-256 {card.family_sha256}). Code in a "
            f"file runs only if you name it: --set load.family={card.family} (family=… in Python), with the path to it."
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
    """Whether the label names say that class 0 means a right step; by default class 1 does."""
    if config.num_labels == 1:
        return False
    names = [str(config.id2label.get(label, "")) for label in (0, 1)]
    first, second = map(_is_right, names)
    if first != second:
        return not second if first is None else first
    if not (folder / CARD_FILE).exists():  # folders with a prism.json have class 1 for right steps
        log.warning(
            "%s: its labels %r and %r do not say which one is a right step; the second is used. If it is the first, "
            'set id2label in config.json to {"0": "right", "1": "wrong"}.', folder, *names,
        )  # fmt: skip
    return False


def _is_right(name: str) -> bool | None:
    """Whether a label's name means a right step; None if the name does not tell."""
    if (sign := _SIGNS.get(name.strip())) is not None:
        return sign
    words = {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}
    is_right, is_wrong, is_negated = bool(words & _RIGHT), bool(words & _WRONG), bool(words & {"no", "non", "not"})
    if is_right == is_wrong:
        return False if is_negated and not is_right else None
    return is_right != is_negated


class _Run(msgspec.Struct):
    """The required content of run.json."""

    best: str
    criterion: str
    beats_base: bool | None
    rounds: dict[str, dict[str, Any]]


def read_run(folder: Path) -> dict[str, Any] | None:
    """Read run.json of a finished run; None if there is none."""
    path = folder / RUN_FILE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        msgspec.convert(content, _Run)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ModelError(
            f"{path}: not what `prism train` writes there ({error}). Remove it and rerun `prism train` with the same "
            f"recipe to resume."
        ) from None
    return content


def has_weights(folder: Path) -> bool:
    """Whether a folder that `prism train` wrote still has its config and weights."""
    return (folder / CONFIG_FILE).exists() and any(folder.glob("*.safetensors"))


def prm_folder(name: str | Path) -> str | Path:
    """Return `name`, or the best round if `name` is the folder of a `prism train` run."""
    folder = Path(name)
    if (folder / CONFIG_FILE).exists() or not (folder / "recipe.toml").exists():
        return name
    run = read_run(folder)
    if run is not None:
        best = folder / str(run["best"])
        if not has_weights(best):
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
    """Raise early if `name` cannot be a PRM; `load_prm` raises too, but only after importing torch."""
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
"""The suffix of transformers' token classifiers; a family uses such a name only if it has the same head."""
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

No license is stated here. Those of the base model and of the training data apply: add `license:` at the top once you
know it.
"""


def model_card(card: Card, architecture: str) -> str:
    """Write the content of README.md, which the Hugging Face hub shows.

    `architecture` is the name in config.json.
    """
    from huggingface_hub import ModelCardData

    built_in = FAMILIES.get(card.family)  # None for a custom family, of which only the name is known
    is_classifier = architecture.endswith(_CLASSIFIER)
    head = ModelCardData(
        base_model=card.base_model or None,
        datasets=list(card.datasets) or None,
        library_name="prism-prm",
        pipeline_tag="token-classification" if built_in and is_classifier else None,
        tags=["process-reward-model", "prm", "math"],
    )
    rows = [("family", f"`{card.family}`: how text is laid out and read; its settings are in `prism.json`")]
    if card.base_model:
        rows.append(("made from", f"[{card.base_model}](https://huggingface.co/{card.base_model})"))
    if card.datasets:
        links = [f"[{dataset}](https://huggingface.co/datasets/{dataset})" for dataset in card.datasets]
        rows.append(("trained on", ", ".join(links)))
    if built_in:
        rows.append(("labels", "; ".join(f"{i}: {label}" for i, label in enumerate(built_in.labels))))
        rows.append(("outputs", ", ".join(f"`{output}`" for output in built_in.outputs)))
    rows.append(("a step counts as right", f"above {card.threshold}"))
    if card.calibration is not None:
        rows.append(("calibrated on", f"{card.calibration.on} (for {card.calibration.target})"))
    rows.append(("score of a solution", f"the `{card.aggregator}` of its steps' scores"))
    if card.segmenter != DEFAULT_SEGMENTER:
        rows.append(("steps", f"cut by the segmenter `{card.segmenter}`"))
    if card.thinking != SCORED:
        rows.append(("thinking", f"`{card.thinking}`"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    naming = f", family={card.family!r}" if is_in_file(card.family) else ""
    parts = [
        f"---\n{head.to_yaml()}\n---\n",
        "# A process reward model\n",
        "It reads a problem and the steps of a solution, and gives each step the probability that it is right.\n",
        f"| | |\n|---|---|\n{table}\n",
        _USE.format(naming=naming, problem=_PROBLEM, steps=_STEPS),
    ]
    if built_in and is_classifier:
        separator = card.settings.get("separator", built_in.settings["separator"])
        parts.append(
            _TOKEN_CLASSIFIER.format(architecture=architecture, problem=_PROBLEM, steps=_STEPS, separator=separator)
        )
    elif built_in:
        parts.append(_LANGUAGE_MODEL if architecture.endswith("ForCausalLM") else _OTHER)
    return "\n".join([*parts, _SHARE])
