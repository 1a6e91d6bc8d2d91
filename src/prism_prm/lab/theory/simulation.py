"""The paper's simulation: two identical networks, one trained pointwise, one pairwise, on the SAME matched pairs.

A context c and a step z have the true quality s = σ(u·z + k·v(c)). A pair is two steps in one context. With `relative`
labels the better one counts as right and the other as wrong, so that a step's label depends on its partner, which
pointwise training cannot see. With `absolute` labels (the control) only pairs with s > ½ for one step and s < ½ for the
other are kept, so that every label depends on the step alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.metrics import pairs_by_margin, pairwise_accuracy
from prism_prm.stats import Interval, over_seeds

EDGES = np.array([0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5])
"""Bins of the true margin |s(a) − s(b)|: the range of the paper's figure, finer near zero."""
OBJECTIVES = ("pointwise", "pairwise")


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Settings of the simulation."""

    labels: Literal["relative", "absolute"] = "relative"
    context: float = 1.0
    """k: the influence of the context on the quality of its steps."""
    num_pairs: int = 4000
    num_test_pairs: int = 20000
    num_features: int = 8
    hidden: int = 64
    epochs: int = 20
    batch: int = 256
    learning_rate: float = 2e-3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Pairwise accuracy per bin of the true margin. Test pairs share a network, so intervals are over seeds."""

    accuracy: dict[str, list[Interval]]
    """Objective → one interval per bin."""
    overall: dict[str, Interval]
    seeds: dict[str, list[float]]
    """Objective → accuracy of each seed over all test pairs."""


def _pairs(settings: SimulationSettings, num: int, world: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Features of the better and the worse step (context and step), and the true margin."""
    fixed = np.random.default_rng(world)
    size = settings.num_features
    direction = fixed.normal(size=size) / np.sqrt(size)
    mixing = fixed.normal(size=(size, size)) / np.sqrt(size)
    rng = np.random.default_rng(seed)
    drawn = num if settings.labels == "relative" else 8 * num
    context = rng.normal(size=(drawn, size))
    offset = settings.context * np.tanh(context @ mixing).sum(axis=1) / np.sqrt(size)
    steps = rng.normal(size=(2, drawn, size))
    quality = 1 / (1 + np.exp(-(steps @ direction + offset)))
    features = np.concatenate([np.broadcast_to(context, steps.shape), steps], axis=2)
    first_is_better = quality[0] > quality[1]
    better = np.where(first_is_better[:, None], features[0], features[1])
    worse = np.where(first_is_better[:, None], features[1], features[0])
    kept = np.ones(drawn, bool) if settings.labels == "relative" else (quality > 0.5).sum(axis=0) == 1
    assert kept.sum() >= num, "too few pairs straddle ½; lower `context`"
    return better[kept][:num], worse[kept][:num], np.abs(quality[0] - quality[1])[kept][:num]


def _train(objective: str, better: Floats, worse: Floats, settings: SimulationSettings, seed: int) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(better.shape[1], settings.hidden), nn.ReLU(),
            nn.Linear(settings.hidden, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, 1),
        )  # fmt: skip
    right, wrong = (torch.tensor(x, dtype=torch.float32) for x in (better, worse))
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(right), generator=generator).split(settings.batch):  # type: ignore[no-untyped-call]
            up, down = network(right[rows]), network(wrong[rows])
            if objective == "pairwise":
                loss = -F.logsigmoid(up - down).mean()
            else:
                loss = -(F.logsigmoid(up) + F.logsigmoid(-down)).mean() / 2
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network


def simulate(settings: SimulationSettings | None = None) -> SimulationResult:
    """Train with both objectives for every seed (same data, same initial weights) and test on new pairs."""
    import torch

    settings = settings or SimulationSettings()
    hits: dict[str, list[Floats]] = {objective: [] for objective in OBJECTIVES}
    bins = []
    for seed in settings.seeds:
        better, worse, _ = _pairs(settings, settings.num_pairs, world=seed, seed=2 * seed + 1)
        test_better, test_worse, margin = _pairs(settings, settings.num_test_pairs, world=seed, seed=2 * seed + 2)
        bins.append(pairs_by_margin(margin, EDGES))
        for objective in OBJECTIVES:
            network = _train(objective, better, worse, settings, seed)
            with torch.inference_mode():
                up, down = (
                    network(torch.tensor(x, dtype=torch.float32))[:, 0].double().numpy()
                    for x in (test_better, test_worse)
                )
            hits[objective].append(pairwise_accuracy(up, down))
    seeds = {name: [float(values.mean()) for values in per_seed] for name, per_seed in hits.items()}
    by_bin = {
        name: [
            over_seeds([float(values[rows[i]].mean()) for values, rows in zip(per_seed, bins, strict=True)])
            for i in range(len(EDGES) - 1)
        ]
        for name, per_seed in hits.items()
    }
    return SimulationResult(by_bin, {name: over_seeds(values) for name, values in seeds.items()}, seeds)
