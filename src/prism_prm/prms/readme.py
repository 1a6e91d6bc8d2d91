"""The README of a PRM folder: the model card that the Hugging Face hub shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prism_prm.plugins import is_in_file
from prism_prm.prms import FAMILIES

if TYPE_CHECKING:
    from prism_prm.prms.card import Card

_CLASSIFIER = "ForTokenClassification"
"""How the names of transformers' token classifiers end; a family gives such a name only where its head is the same."""
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
_PROBLEM, _STEPS = "What is 3 + 4 - 2?", ["3 + 4 = 7", "7 - 2 = 5"]


def model_card(card: Card, architecture: str) -> str:
    """What the folder is and how it is used; `architecture` as its config.json names it."""
    from huggingface_hub import ModelCardData

    # Of a family that is not ours nothing is known but its name.
    ours = card.family in FAMILIES
    head = ModelCardData(
        base_model=card.base_model or None,
        datasets=list(card.datasets) or None,
        library_name="prism-prm",
        pipeline_tag="token-classification" if ours and architecture.endswith(_CLASSIFIER) else None,
        tags=["process-reward-model", "prm", "math"],
    )
    parts = [_what_it_is(card), _use(card), *([_with_transformers(card, architecture)] if ours else []), _SHARE]
    return f"---\n{head.to_yaml()}\n---\n\n# A process reward model\n\n" + "\n".join(parts)


def _what_it_is(card: Card) -> str:
    ours = FAMILIES.get(card.family)
    rows = [("family", f"`{card.family}`: how text is laid out and read; its settings are in `prism.json`")]
    if card.base_model:
        rows.append(("made from", f"[{card.base_model}](https://huggingface.co/{card.base_model})"))
    if card.datasets:
        rows.append(
            ("trained on", ", ".join(f"[{one}](https://huggingface.co/datasets/{one})" for one in card.datasets))
        )
    if ours:
        rows.append(("labels", "; ".join(f"{i}: {label}" for i, label in enumerate(ours.labels))))
        rows.append(("outputs", ", ".join(f"`{output}`" for output in ours.outputs)))
    rows.append(("a step counts as right", f"above {card.threshold}"))
    rows.append(("score of a solution", f"the `{card.aggregator}` of its steps' scores"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        "It reads a problem and the steps of a solution, and gives each step the probability that it is right.\n\n"
        f"| | |\n|---|---|\n{table}\n"
    )


def _use(card: Card) -> str:
    naming = f", family={card.family!r}" if is_in_file(card.family) else ""
    return f"""## Use

```python
from prism_prm import load_prm

prm = load_prm("."{naming})  # this folder, or its id on the hub
problem, steps = {_PROBLEM!r}, {_STEPS!r}
scores = prm.score(problem, steps)
print(scores, prm.solution_score(problem, steps))
```
"""


def _with_transformers(card: Card, architecture: str) -> str:
    if not architecture.endswith(_CLASSIFIER):
        return _LANGUAGE_MODEL if architecture.endswith("ForCausalLM") else _OTHER
    separator = card.settings.get("separator", FAMILIES[card.family].settings["separator"])
    return _TOKEN_CLASSIFIER.format(architecture=architecture, problem=_PROBLEM, steps=_STEPS, separator=separator)


_SHARE = """## Share

```
hf upload YOUR-NAME/YOUR-PRM .
```

No licence is stated here. Those of the base model and of the training data apply: add `license:` at the top once you
know it.
"""
