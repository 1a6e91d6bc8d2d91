"""A calibrated PRM gives the same calibrated numbers everywhere, and its stored scores stay as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from prism_prm import PRM, PRMReward, Step, StepTree, load_prm
from prism_prm.aggregate import card_values
from prism_prm.calibration import Calibration, right_probability, sigmoid
from prism_prm.errors import ConfigError
from prism_prm.evaluate.score_files import read_scores, scores_of_trees, write_scores
from prism_prm.models.card import read_card, rewrite_card, set_threshold
from prism_prm.scorer import PathSession
from prism_prm.search.grade_pool import scores_in_table
from prism_prm.store import Request, ScoreStore
from serving_prms import running

MAP = Calibration("held-out.jsonl (9 problems, 99 steps)", "tpr=0.9", 0.3, 0.2, 0.4, "platt", (-8.0, 8.0), (-3.0, 2.0))
TREES = [
    StepTree(0, "1+1+2-1", tuple(map(Step, ["1+1=2", "2+2=4", "2+2=3", "3-1=2"])), (-1, 0, 0, 2), ()),
    StepTree.chain("1+2", ["1+2=3", "so 3"], tree_id=1),
]


@pytest.fixture
def plain(tiny_prm: Callable[..., Any]) -> PRM:
    prm = tiny_prm("qwen", "qwen2", "float32")
    return PRM(prm.module, prm.family, prm.card)


@pytest.fixture
def calibrated(plain: PRM) -> PRM:
    return PRM(plain.module, plain.family, replace(plain.card, threshold=MAP.threshold, calibration=MAP))


def test_without_calibration_a_probability_is_the_sigmoid_of_its_log_odds(plain: PRM) -> None:
    for scores in plain.score_trees(TREES):
        assert np.array_equal(scores.probability, sigmoid(scores.log_odds_NO[:, 0]))


def test_log_odds_and_identity_stay_and_probabilities_change(plain: PRM, calibrated: PRM) -> None:
    assert calibrated.identity() == plain.identity()
    assert calibrated.model_hash() == plain.model_hash()
    for raw, found in zip(plain.score_trees(TREES), calibrated.score_trees(TREES), strict=True):
        assert np.array_equal(raw.log_odds_NO, found.log_odds_NO)
        by_hand = sigmoid(np.interp(raw.log_odds_NO[:, 0], [-8, 8], [-3, 2]) + 1e-4 * raw.log_odds_NO[:, 0])
        assert found.probability == pytest.approx(by_hand, abs=1e-15)
        assert np.array_equal(np.argsort(raw.probability), np.argsort(found.probability))
        assert (np.abs(found.probability - raw.probability) > 0.001).all()


def test_the_store_is_the_same_file_by_file(tmp_path: Path, plain: PRM, calibrated: PRM) -> None:
    requests = [Request.all_of(tree) for tree in TREES]
    ScoreStore(tmp_path, plain).score(requests)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    store = ScoreStore(tmp_path, calibrated)
    found = store.score(requests)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before != {}, "nothing was scored again"
    for own, direct in zip(found, calibrated.score_trees(TREES), strict=True):
        assert np.array_equal(own.probability, direct.probability)
    other = tmp_path / "other"
    ScoreStore(other, calibrated).score(requests)
    assert [path.read_bytes() for path in other.rglob("*.parquet")] == list(before.values())


def test_packed_session_and_remote_agree(plain: PRM, calibrated: PRM) -> None:
    packed = calibrated.score_trees(TREES)
    steps = TREES[1].texts(TREES[1].trunk)
    assert calibrated.score("1+2", steps) == pytest.approx(packed[1].probability, abs=1e-6)
    with running({"m": calibrated}) as server:
        remote = load_prm(f"prism:{server.url}")
        assert remote.identity().split(":")[0] == plain.identity(), "a store of the server's scores stays valid"
        assert remote.model_hash() == plain.model_hash()
        assert card_values(remote) == card_values(calibrated)
        for here, there in zip(packed, remote.score_trees(TREES), strict=True):
            assert there.probability == pytest.approx(here.probability, abs=1e-6)
            assert there.log_odds_NO == pytest.approx(here.log_odds_NO, abs=1e-4)
        answer = server.client.post("/v1/steps", json={"items": [{"problem": "1+2", "steps": steps}]}).json()
        (item,) = answer["items"]
        assert item["probabilities"] == pytest.approx(packed[1].probability, abs=1e-6)
        assert [row["correct"] for row in item["log_odds"]] == pytest.approx(packed[1].log_odds_NO[:, 0], abs=1e-4)
        assert item["score"] == pytest.approx(calibrated.solution_score("1+2", steps), abs=1e-6)
        below = np.flatnonzero(packed[1].probability <= MAP.threshold)
        assert (answer["threshold"], item["first_error"]) == (0.3, int(below[0]) if len(below) else None)
        raw = plain.score("1+2", steps)
        body = {
            "model": "m",
            "messages": [
                {"role": "user", "content": "1+2"},
                {"role": "assistant", "content": "<extra_0>".join([*steps, ""])},
            ],
        }
        rows = server.client.post("/pooling", json=body).json()["data"][0]["data"]
        assert [row[1] for row in rows] == pytest.approx(raw, abs=1e-6), "/pooling answers as vLLM does"
        remote.close()
    for session in (calibrated.session(["1+2"]), PathSession(calibrated, ["1+2"])):
        node, found = session.roots[0], []
        for step in steps:
            (node,) = session.extend([(node, step)])
            found.append((node.probability, node.log_odds[0]))
        assert [p for p, _ in found] == pytest.approx(packed[1].probability, abs=1e-5)
        assert [x for _, x in found] == pytest.approx(packed[1].log_odds_NO[:, 0], abs=1e-4), "the model's own"


def test_tables_have_both_and_follow_the_card(tmp_path: Path, plain: PRM, calibrated: PRM) -> None:
    out = tmp_path / "scores.parquet"
    write_scores(plain, TREES, out)
    raw = pq.read_table(out)
    write_scores(calibrated, TREES, out)
    table = read_scores(out)
    assert table["log_odds"].to_pylist() == raw["log_odds"].to_pylist()
    assert table["content_hash"].to_pylist() == raw["content_hash"].to_pylist()
    direct = np.concatenate([scores.probability for scores in calibrated.score_trees(TREES)])
    assert table["probability"].to_pylist() == direct.tolist()
    write_scores(plain, TREES, out)
    assert pq.read_table(out)["probability"].to_pylist() == raw["probability"].to_pylist(), "back again"
    write_scores(calibrated, TREES, out)
    of_trees = scores_of_trees(read_scores(out), TREES, card_values(calibrated))
    assert np.array_equal(np.concatenate([scores.probability for scores in of_trees]), direct)


def test_rerank_reads_calibrated_scores_of_a_table(tmp_path: Path, calibrated: PRM) -> None:
    from prism_prm import read_pool

    (tmp_path / "pool.jsonl").write_text(
        '{"problem": "1+2", "answer": "3", "solutions": [{"steps": ["1+2=3", "so 3"]}]}'
    )
    pool = read_pool([tmp_path / "pool.jsonl"])
    write_scores(calibrated, pool.trees(), tmp_path / "scores.parquet")
    (scores,) = scores_in_table(tmp_path / "scores.parquet", pool)
    assert scores is not None
    assert scores.tolist() == calibrated.score("1+2", ["1+2=3", "so 3"])


def test_rewards_are_calibrated(calibrated: PRM) -> None:
    reward = PRMReward(calibrated, aggregator="min")
    (found,) = reward(prompts=["1+2"], completions=["1+2=3\n\nso \\boxed{3}"])
    assert found == pytest.approx(min(calibrated.score("1+2", ["1+2=3", "so \\boxed{3}"])), abs=1e-6)


def test_the_card_keeps_it_and_training_drops_it(tmp_path: Path, plain: PRM, calibrated: PRM) -> None:
    calibrated.save(tmp_path / "prm")
    card = read_card(tmp_path / "prm")
    assert card is not None
    assert (card.threshold, card.calibration) == (0.3, MAP)
    assert (
        "calibrated on | held-out.jsonl (9 problems, 99 steps) (for tpr=0.9)"
        in (tmp_path / "prm/README.md").read_text()
    )
    loaded = load_prm(tmp_path / "prm")
    assert np.array_equal(loaded.score_trees(TREES)[0].probability, calibrated.score_trees(TREES)[0].probability)
    # Without its map, the threshold is the one that judges the model's own scores the same.
    own = card.uncalibrated()
    log_odds = np.linspace(-4, 4, 99)
    judged = right_probability(log_odds, MAP) > card.threshold
    assert np.array_equal(judged, sigmoid(log_odds) > own.threshold)
    assert own.calibration is None
    set_threshold(tmp_path / "prm", 0.75)
    assert read_card(tmp_path / "prm") == replace(card, threshold=0.75, calibration=None)
    plain.save(tmp_path / "plain")
    assert "calibration" not in (tmp_path / "plain/prism.json").read_text()
    (tmp_path / "prm/README.md").write_text("mine")
    rewrite_card(tmp_path / "prm", card)
    assert (tmp_path / "prm/README.md").read_text() == "mine", "an edited README stays"


def test_a_calibration_of_its_own_file(tmp_path: Path, plain: PRM) -> None:
    plain.save(tmp_path / "prm")
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(asdict(replace(MAP, model_hash=plain.model_hash()))))
    for place in (tmp_path, file):
        found = load_prm(tmp_path / "prm", calibration=place)
        assert found.card.threshold == 0.3
        (raw,) = plain.score_trees([StepTree.chain("1+2", ["3"])])
        assert found.score("1+2", ["3"]) == right_probability(raw.log_odds_NO[:, 0], MAP).tolist()
    file.write_text(json.dumps(asdict(replace(MAP, model_hash="other"))))
    with pytest.raises(ConfigError, match="was fitted to another PRM"):
        load_prm(tmp_path / "prm", calibration=file)
    for text in ("", "[]", '{"on": 1}', json.dumps(asdict(MAP) | {"values": [1, 0]})):
        file.write_text(text)
        with pytest.raises(Exception, match=r"calibration\.json"):
            load_prm(tmp_path / "prm", calibration=file)
    with pytest.raises(ConfigError, match="no such file"):
        load_prm(tmp_path / "prm", calibration=tmp_path / "nowhere")
