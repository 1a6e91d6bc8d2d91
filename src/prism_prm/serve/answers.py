"""Scores as the answers of each route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prism_prm.aggregate import solution_score
from prism_prm.protocol import sigmoid
from prism_prm.records import StepTree
from prism_prm.serve.models import Item, ItemScores, ServedModel


def usage(items: Sequence[Item], found: Sequence[ItemScores]) -> dict[str, int]:
    """Tokens of a request."""
    tokens = sum(_tokens(item, scores) for item, scores in zip(items, found, strict=True))
    cached = sum(scores.cached_tokens for scores in found)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "cached_tokens": cached}


def _tokens(item: Item, scores: ItemScores) -> int:
    return item.tokens if scores.tokens is None else scores.tokens


def sizes(item: Item) -> dict[str, Any]:
    """The tokens of an item."""
    encoded = item.encoded
    return {
        "tokens": item.tokens,
        "prompt_tokens": None if encoded is None else len(encoded.prompt),
        "step_tokens": None if encoded is None else list(map(len, encoded.ids)),
    }


def pooled(scores: ItemScores) -> list[list[float]]:
    """[P(wrong), P(right)] of each step, each computed by itself: neither is 1 minus the rounded other."""
    log_odds_N = scores.log_odds_NO[:, 0]
    return np.stack([sigmoid(-log_odds_N), sigmoid(log_odds_N)], axis=1).tolist()  # type: ignore[no-any-return]


def steps_answer(model: ServedModel, item: Item, scores: ItemScores) -> dict[str, Any]:
    """An item of the answer of /v1/steps."""
    assert item.tree is not None, "steps come as trees"
    probability_N = sigmoid(scores.log_odds_NO[:, 0])
    answer: dict[str, Any] = {
        "probabilities": _numbers(probability_N),
        "log_odds": [dict(zip(model.scorer.outputs, _numbers(values), strict=True)) for values in scores.log_odds_NO],
        "first_error": None,
        "score": None,
        "leaves": None,
        "too_long": list(scores.too_long),
        "cached_tokens": scores.cached_tokens,
        **sizes(item),
        "tokens": _tokens(item, scores),
    }
    if item.tree.trunk or not item.tree.nodes:
        return answer | judged(model, probability_N)
    answer["leaves"] = [
        {"node": leaf} | _on_path(model, probability_N, item.tree.path(leaf)) for leaf in leaves_of(item.tree)
    ]
    return answer


def judged(model: ServedModel, probability_N: np.ndarray) -> dict[str, Any]:
    """The first error and the score of a solution; null where a step has no score, or there is no step."""
    wrong_N = np.flatnonzero(probability_N <= model.threshold)
    score = None
    if len(probability_N) and not np.isnan(probability_N).any():
        score = solution_score(probability_N, model.aggregator)
    return {"first_error": int(wrong_N[0]) if len(wrong_N) else None, "score": score}


def _on_path(model: ServedModel, probability_N: np.ndarray, path: Sequence[int]) -> dict[str, Any]:
    found = judged(model, probability_N[list(path)])
    first = found["first_error"]
    return found | {"first_error": None if first is None else path[first]}


def leaves_of(tree: StepTree) -> list[int]:
    """The nodes that nothing follows."""
    inner = set(tree.parents)
    return [node for node in range(len(tree.nodes)) if node not in inner]


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
