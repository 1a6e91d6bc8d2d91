"""What a PRM folder's README says is true, for every family: front matter, labels, and examples, which run."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from architectures import random_prm

from prism_prm import init_prm, load_prm
from prism_prm.models.card import set_threshold
from prism_prm.models.families import FAMILIES
from tiny import FAMILY_MODELS

EXAMPLE = "What is 3 + 4 - 2?", ["3 + 4 = 7", "7 - 2 = 5"]


def front_matter(readme: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", readme, re.DOTALL)
    assert found
    return dict(yaml.safe_load(found[1]))


def run_examples(folder: Path, patch: pytest.MonkeyPatch) -> list[list[float]]:
    """The scores that each example of the README finds, run in its folder."""
    patch.chdir(folder)
    found = []
    for code in re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL):
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
        found.append(names["scores"])
    return found


def loads_with_its_head(folder: Path) -> bool:
    """Whether transformers' token classifier finds every weight it has, and has every weight it finds."""
    from transformers import AutoModelForTokenClassification

    try:
        _, said = AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True)
    except (ValueError, RuntimeError):
        return False
    return not said["missing_keys"] and not said["unexpected_keys"]


@pytest.mark.parametrize(("family", "model"), FAMILY_MODELS)
def test_every_family_says_what_is_true(
    family: str, model: str, tiny_lm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_prm(tiny_lm(model), family=family).save(tmp_path / "prm")
    readme = (tmp_path / "prm/README.md").read_text()
    head = front_matter(readme)
    is_classifier = loads_with_its_head(tmp_path / "prm")
    assert is_classifier == (family == "token-classification")
    assert head == {
        "library_name": "prism-prm",
        **({"pipeline_tag": "token-classification"} if is_classifier else {}),
        "tags": ["process-reward-model", "prm", "math"],
    }, "no base model and no licence, since neither is known"
    for i, label in enumerate(FAMILIES[family].labels):
        assert f"{i}: {label}" in readme
    assert "hf upload YOUR-NAME/YOUR-PRM ." in readme
    assert max(map(len, readme.splitlines())) <= 120
    scores = load_prm(tmp_path / "prm").score(*EXAMPLE)
    examples = run_examples(tmp_path / "prm", monkeypatch)
    assert len(examples) == 1 + is_classifier
    for found in examples:
        assert found == pytest.approx(scores, abs=1e-6)


def test_every_family_is_tried() -> None:
    assert {family for family, _ in FAMILY_MODELS} == set(FAMILIES)
    assert all(family.labels for family in FAMILIES.values())


def test_a_classifier_with_another_head_is_not_claimed(tmp_path: Path) -> None:
    """GPT-2's token classifier calls its head `classifier`: loaded there, ours would be a random one."""
    prm = random_prm("token-classification", "gpt2")
    prm.save(tmp_path / "prm")
    assert json.loads((tmp_path / "prm/config.json").read_text())["architectures"] == ["PrismProcessRewardModel"]
    readme = (tmp_path / "prm/README.md").read_text()
    assert "pipeline_tag" not in front_matter(readme)
    assert "would put a random one on these\nweights" in readme


def test_labels_are_in_the_config(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    prm = init_prm(tiny_lm("llama"), family="token-classification")
    prm.save(tmp_path / "prm")
    assert json.loads((tmp_path / "prm/config.json").read_text())["id2label"] == {"0": "wrong", "1": "right"}
    assert load_prm(tmp_path / "prm").model_hash() == prm.model_hash(), "labels change no score"


def test_the_base_model_is_named_where_it_has_a_name(
    tiny_lm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = {"Some-Org/some-lm": tiny_lm("llama")}
    for module in ("prism_prm.backends.load_prm", "prism_prm.models.prm_folder"):
        own = __import__(module, fromlist=["local_folder"])
        monkeypatch.setattr(own, "local_folder", lambda name, **_: Path(hub.get(str(name), name)))
    init_prm("Some-Org/some-lm", family="token-classification").save(tmp_path / "prm")
    assert json.loads((tmp_path / "prm/prism.json").read_text())["base_model"] == "Some-Org/some-lm"
    set_threshold(tmp_path / "prm", 0.25)
    readme = (tmp_path / "prm/README.md").read_text()
    assert front_matter(readme)["base_model"] == "Some-Org/some-lm"
    assert front_matter(readme)["pipeline_tag"] == "token-classification"
    assert "| a step counts as right | above 0.25 |" in readme

    load_prm(tmp_path / "prm").save(tmp_path / "copy")
    assert load_prm(tmp_path / "copy").card.base_model == "Some-Org/some-lm", "a folder's name means nothing to others"
    hub["me/my-prm"] = tmp_path / "prm"
    assert load_prm("me/my-prm").card.base_model == "me/my-prm", "what is saved next was made from this"
    prm = init_prm(tiny_lm("llama"), family="token-classification")
    prm.save(tmp_path / "unnamed")
    assert "base_model" not in json.loads((tmp_path / "unnamed/prism.json").read_text())


def test_data_sets_of_the_hub_are_named(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text("{}")
    prm = init_prm(tiny_lm("llama"), family="token-classification")
    prm.card = prm.card.trained_on([str(tmp_path / "labels.jsonl"), "trl-lib/math_shepherd"])
    prm.card = prm.card.trained_on(["trl-lib/math_shepherd", "trl-lib/prm800k"])
    prm.save(tmp_path / "prm")
    found = load_prm(tmp_path / "prm")
    assert found.card.datasets == ("trl-lib/math_shepherd", "trl-lib/prm800k"), "a file's name means nothing to others"
    readme = (tmp_path / "prm/README.md").read_text()
    assert front_matter(readme)["datasets"] == ["trl-lib/math_shepherd", "trl-lib/prm800k"]
    assert "[trl-lib/prm800k](https://huggingface.co/datasets/trl-lib/prm800k)" in readme


def test_a_family_of_a_file_is_named_in_the_example(
    tiny_lm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from prism_prm.models.families.token_classification import TokenClassification\n"
        "class Mine(TokenClassification):\n    '''Mine.'''\n"
    )
    prm = init_prm(tiny_lm("llama"), family=f"{tmp_path}/mine.py:Mine")
    prm.save(tmp_path / "prm")
    (tmp_path / "prm/mine.py").write_text((tmp_path / "mine.py").read_text())
    readme = (tmp_path / "prm/README.md").read_text()
    assert "pipeline_tag" not in front_matter(readme), "its layout is not known here, so nothing is claimed"
    assert "transformers" not in readme
    (scores,) = run_examples(tmp_path / "prm", monkeypatch)
    assert scores == pytest.approx(prm.score(*EXAMPLE), abs=1e-6)
