"""A model's files that change while it is loaded or in use: what was loaded is what scores, and what scores are filed
under."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from prism_prm import PrismError, StepTree, init_prm, load_prm, open_policy
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.store import Request, ScoreStore
from serving_prms import running

PROBLEM, STEPS = "What is 1 + 2?", ["x = 1", "then x + 2 = 3", "done"]
WEIGHTS = "model.safetensors"
CHANGING = """
from pathlib import Path
from prism_prm.models.families.qwen import Qwen

class Changing(Qwen):
    def make_head(self, hidden_size, config):
        weights = Path({weights!r})
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        return super().make_head(hidden_size, config)
"""
"""A family under which the weights change after the tokenizer was read."""


@pytest.fixture
def folders(tiny_lm: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """Two PRMs with other weights in files of equal size."""
    for name, seed in (("mine", 1), ("new", 2)):
        prm = init_prm(tiny_lm("qwen2"), family="qwen", seed=seed)
        with torch.no_grad():
            for weight in prm.module.parameters():
                weight.mul_(1 + 0.1 * seed)
        prm.save(tmp_path / name)
    return tmp_path / "mine", tmp_path / "new"


def overwrite(folder: Path, new: Path) -> None:
    """As `cp new/model.safetensors folder/` does it: the same file with other content."""
    before = (folder / WEIGHTS).stat().st_ino
    shutil.copyfile(new / WEIGHTS, folder / WEIGHTS)
    assert (folder / WEIGHTS).stat().st_ino == before


def test_a_loaded_prm_keeps_its_weights(folders: tuple[Path, Path], tmp_path: Path) -> None:
    mine, new = folders
    prm = load_prm(mine, device="cpu")
    scores, identity = prm.score(PROBLEM, STEPS), prm.identity()
    assert load_prm(new, device="cpu").score(PROBLEM, STEPS) != pytest.approx(scores, abs=1e-3)
    prm = load_prm(mine, device="cpu")
    store = ScoreStore(tmp_path / "store", prm)
    overwrite(mine, new)
    [filed] = store.score([Request.all_of(StepTree.chain(PROBLEM, STEPS))])
    assert filed.probability.tolist() == prm.score(PROBLEM, STEPS) == scores
    assert store.identity == prm.identity() == identity
    assert load_prm(mine, device="cpu").identity() == load_prm(new, device="cpu").identity() != identity


def test_a_policy_keeps_its_weights(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("mine", "new"):
        shutil.copytree(tiny_lm("qwen2"), tmp_path / name)
    data = bytearray((tmp_path / "new" / WEIGHTS).read_bytes())
    data[-4096:] = bytes(4096)
    (tmp_path / "new" / WEIGHTS).write_bytes(data)
    policy = open_policy(f"hf:{tmp_path / 'mine'}")
    identity = policy.identity()
    overwrite(tmp_path / "mine", tmp_path / "new")
    assert policy.identity() == identity != open_policy(f"hf:{tmp_path / 'mine'}").identity()


def test_files_that_change_while_they_are_read_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    mine = folders[0]
    family = f"{tmp_path / 'changing.py'}:Changing"
    (tmp_path / "changing.py").write_text(CHANGING.format(weights=str(mine / WEIGHTS)))
    (mine / "prism.json").unlink()
    with pytest.raises(PrismError, match=rf"^{mine}: {WEIGHTS} changed while the model was loaded; load it again"):
        load_prm(mine, family=family, device="cpu")


def test_a_server_keeps_its_weights_and_says_so(folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    mine, new = folders
    item = {"problem": PROBLEM, "steps": STEPS}
    with (
        running({"mine": mine}, prm_options=PrmOptions(device="cpu"), cache_mb=0) as server,
        caplog.at_level(logging.WARNING),
    ):
        before = server.steps(item)
        assert not caplog.messages
        overwrite(mine, new)
        for _ in range(2):
            after = server.steps(item)
            assert after["items"] == before["items"]
            assert after["model_hash"] == before["model_hash"]
        [message] = caplog.messages
        assert message == (
            f"mine: {mine / WEIGHTS} changed since it was loaded; the old weights (hash {before['model_hash']}) are "
            "served until a restart"
        )
        (mine / "config.json").unlink()
        server.steps(item)
        assert len(caplog.messages) == 2
