"""When does a contrastive loss win? Labels with an offset per prefix, and six losses on the same features.

python experiments/label_offsets.py --out FOLDER [--figure docs/figures/label-offsets.svg]     # resumable
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from prism_prm.files import write_text
from prism_prm.losses import Objective
from prism_prm.stats import over_seeds

SDS = (0.0, 0.5, 1.0, 2.0, 4.0)
DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)
SEEDS, TUNE_SEED = range(1, 21), 0
TRAIN, TEST, STEPS, SIZE, NOISE = 400, 500, 6, 16, 0.3
LOSSES = {
    "cross-entropy on labels": Objective("bce", on="labels"),
    "cross-entropy on pairs": Objective("bce"),
    "contrastive": Objective("sc", space="log-odds"),
    "hybrid": Objective("hybrid", space="log-odds"),
    "listwise": Objective("listwise", space="log-odds"),
    "cross-entropy + listwise": Objective("listwise+bce", space="log-odds"),
}


def make(seed: int, sd: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and labels of training steps; features and true quality of test steps."""
    rng = np.random.default_rng((seed, 39))
    weights = rng.normal(size=SIZE)
    weights /= np.linalg.norm(weights)
    x, test = rng.normal(size=(TRAIN, STEPS, SIZE)), rng.normal(size=(TEST, STEPS, SIZE))
    offset = sd * rng.normal(size=(TRAIN, 1))
    label = x @ weights + NOISE * rng.logistic(size=(TRAIN, STEPS)) > offset
    return torch.tensor(x), torch.tensor(label), torch.tensor(test), torch.tensor(test @ weights)


def loss_of(objective: Objective, score_NK: Tensor, right_NK: Tensor) -> Tensor:
    """The mean loss over steps, pairs or prefixes."""
    if objective.on == "labels":
        return objective.of_steps(score_NK, right_NK.to(score_NK.dtype)).mean()
    if objective.in_lists:
        mixed_N = right_NK.any(1) & ~right_NK.all(1)
        return objective.of_lists(score_NK[mixed_N], right_NK[mixed_N], ~right_NK[mixed_N]).mean()
    prefix, chosen, rejected = (right_NK[:, :, None] & ~right_NK[:, None, :]).nonzero(as_tuple=True)
    return objective.of_pairs(score_NK[prefix, chosen], score_NK[prefix, rejected]).mean()


def accuracy(seed: int, sd: float, loss: str, head: str, decay: float) -> float:
    """Train a head, and return the share of pairs of new prefixes in the right order."""
    x, label, test, quality = make(seed, sd)
    torch.manual_seed(seed)
    hidden = 32
    layers = [nn.Linear(SIZE, 1)] if head == "linear" else [nn.Linear(SIZE, hidden), nn.Tanh(), nn.Linear(hidden, 1)]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = sum((p**2).sum() for name, p in model.named_parameters() if "weight" in name)
        value = loss_of(LOSSES[loss], model(x)[..., 0], label) + decay * penalty
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        score = model(test)[..., 0]
    higher = quality[:, :, None] > quality[:, None, :]
    return float((score[:, :, None] > score[:, None, :])[higher].double().mean())


def run(out: Path, heads: tuple[str, ...]) -> dict[str, list[float]]:
    """All accuracies by "head, sd, loss"; finished cells are read."""
    found: dict[str, list[float]] = {}
    for head in heads:
        for sd in SDS:
            for loss in LOSSES:
                path = out / f"{head}-{sd:g}-{list(LOSSES).index(loss)}.json"
                if not path.exists():
                    best = max(DECAYS, key=lambda decay: accuracy(TUNE_SEED, sd, loss, head, decay))
                    values = [accuracy(seed, sd, loss, head, best) for seed in SEEDS]
                    write_text(path, json.dumps({"decay": best, "accuracy": values}))
                found[f"{head}, {sd:g}, {loss}"] = json.loads(path.read_text())["accuracy"]
    return found


def show(found: dict[str, list[float]], heads: tuple[str, ...]) -> None:
    """Print the tables in Markdown: accuracies, and differences from cross-entropy on labels."""
    plain = "cross-entropy on labels"
    for head in heads:
        print(f"\n{head}\n\n| loss | " + " | ".join(f"{sd:g}" for sd in SDS) + " |\n|---|" + "---|" * len(SDS))
        for loss in LOSSES:
            cells = [f"{100 * np.mean(found[f'{head}, {sd:g}, {loss}']):.1f}" for sd in SDS]
            print(f"| {loss} | " + " | ".join(cells) + " |")
        for loss in list(LOSSES)[1:]:
            cells = []
            for sd in SDS:
                a, b = found[f"{head}, {sd:g}, {loss}"], found[f"{head}, {sd:g}, {plain}"]
                gap = over_seeds([100 * (x - y) for x, y in zip(a, b, strict=True)])
                cells.append(f"{gap.value:+.1f} ± {(gap.high - gap.low) / 2:.1f}")
            print(f"| {loss} − {plain} | " + " | ".join(cells) + " |")


def draw(found: dict[str, list[float]], path: Path) -> None:
    """Differences from cross-entropy on labels against the SD of offsets, linear head."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    plain = "cross-entropy on labels"
    axes.axhline(0, color="gray", linewidth=1)
    for i, loss in enumerate(list(LOSSES)[1:]):
        gaps = []
        for sd in SDS:
            a, b = found[f"linear, {sd:g}, {loss}"], found[f"linear, {sd:g}, {plain}"]
            gaps.append(over_seeds([100 * (x - y) for x, y in zip(a, b, strict=True)]))
        halves = [(gap.high - gap.low) / 2 for gap in gaps]
        at = np.arange(len(SDS)) + 0.06 * (i - 2)
        axes.errorbar(at, [gap.value for gap in gaps], halves, marker="osD^v"[i], label=loss, capsize=2, linewidth=1.2)
    axes.set_xticks(range(len(SDS)), [f"{sd:g}" for sd in SDS])
    axes.set_xlabel("SD of the offset per prefix, in SDs of the true quality")
    axes.set_ylabel("pairs ranked right,\npoints above cross-entropy on labels")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    heads = ("linear", "MLP")
    found = run(options.out, heads)
    show(found, heads)
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
