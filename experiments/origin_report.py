"""The tables and the figure of docs/lab/over-credit.md, from the results of origin_map.py and natural_origin.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.files import write_text
from prism_prm.report import styles
from prism_prm.report.figures import drawing
from prism_prm.stats import over_seeds

ON_PAIRS = "cross-entropy on pairs"
SHOWN = {"fpr": "FPR at 0.5", "fpr_at_tpr_90": "FPR at TPR 90", "ece": "calibration error"}
Cells = Sequence[dict[str, Any]]


def of_cells(cells: Cells, name: str) -> list[Any]:
    """The distinct shares, noises or losses, in order."""
    return list(dict.fromkeys(cell[name] for cell in cells))


def values_of(cells: Cells, metric: str, **of: Any) -> list[float]:
    """One value per world."""
    return [cell[metric] for cell in cells if all(cell[name] == value for name, value in of.items())]


def table(cells: Cells, metric: str) -> str:
    """Noise and loss by share, in percent, ± half of the 95 % interval over worlds."""
    shares, noises, losses = (of_cells(cells, name) for name in ("share", "noise", "loss"))
    lines = [
        f"| {SHOWN[metric]}: noise | loss | {' | '.join(f'{100 * share:.0f} %' for share in shares)} |",
        f"|---|---|{'---:|' * len(shares)}",
    ]
    for noise, loss in itertools.product(noises, losses):
        found = [over_seeds(values_of(cells, metric, noise=noise, loss=loss, share=share)) for share in shares]
        shown = [f"{100 * one.value:.1f} ± {100 * (one.high - one.value):.1f}" for one in found]
        lines.append(f"| {noise} | {loss} | {' | '.join(shown)} |")
    return "\n".join(lines)


Where = dict[str, Sequence[Any]]
"""Some cells: for each of `share`, `noise` and `loss` the values to take the mean over."""
FEW, MANY = (0.5, 0.7, 0.85), (0.95, 0.98)


def contrasts(losses: Sequence[str]) -> dict[str, tuple[Where, Where]]:
    """Comparisons over as many cells as possible: single cells are too noisy."""
    found: dict[str, tuple[Where, Where]] = {}
    for loss in losses:
        of: Where = {"loss": [loss]}
        clean: Where = {**of, "noise": ["none"]}
        found[f"{loss}, no noise: 95 and 98 % − 50 to 85 %"] = {**clean, "share": MANY}, {**clean, "share": FEW}
        few: Where = {**of, "share": FEW}
        for noise in ("independent", "systematic"):
            found[f"{loss}, 50 to 85 %: {noise} − none"] = {**few, "noise": [noise]}, {**few, "noise": ["none"]}
    for loss in losses[1:]:
        found[f"all shares and noises: {loss} − cross-entropy"] = {"loss": [loss]}, {"loss": ["cross-entropy"]}
    if ON_PAIRS in losses:
        found[f"all shares and noises: hybrid − {ON_PAIRS}"] = {"loss": ["hybrid"]}, {"loss": [ON_PAIRS]}
    return found


def mean_of(cells: Cells, metric: str, seed: int, where: Where) -> float:
    """The mean over some cells of one world."""
    chosen = [c[metric] for c in cells if c["seed"] == seed and all(c[name] in some for name, some in where.items())]
    return float(np.mean(chosen)) if chosen else float("nan")


def contrast_table(cells: Cells) -> str:
    """Differences in percentage points, paired by world, ± half of the 95 % interval over worlds."""
    seeds = sorted({cell["seed"] for cell in cells})
    lines = [f"| difference | {' | '.join(SHOWN.values())} |", f"|---|{'---:|' * len(SHOWN)}"]
    for name, (one, other) in contrasts(of_cells(cells, "loss")).items():
        shown = []
        for metric in SHOWN:
            found = over_seeds([mean_of(cells, metric, s, one) - mean_of(cells, metric, s, other) for s in seeds])
            shown.append(f"{100 * found.value:+.1f} ± {100 * (found.high - found.value):.1f}")
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(cells: Cells, path: Path) -> None:
    """Draw a row of panels per metric, a column per noise, a line per loss; bands are the range over worlds."""
    shares, noises, losses = (of_cells(cells, name) for name in ("share", "noise", "loss"))
    alt = "FPR at 0.5, FPR at TPR 90 and calibration error by share of right labels, for each label noise and loss"
    with drawing("origin-map", alt, (8.4, 7.6), 1) as picture:
        figure = picture.axes[0].figure
        picture.axes[0].remove()
        panels = figure.subplots(len(SHOWN), len(noises), sharex=True, sharey="row", squeeze=False)
        for (i, metric), (j, noise) in itertools.product(enumerate(SHOWN), enumerate(noises)):
            axes = panels[i, j]
            for loss, style in styles(losses).items():
                found = [values_of(cells, metric, noise=noise, loss=loss, share=share) for share in shares]
                at = range(len(shares))
                axes.plot(at, list(map(np.mean, found)), **style.line_kwargs, label=loss)
                axes.fill_between(at, list(map(min, found)), list(map(max, found)), color=style.color, alpha=0.15, lw=0)
            axes.set_xticks(range(len(shares)), [f"{100 * share:.0f}" for share in shares])
            top = 1.05 * max(cell[metric] for cell in cells)
            axes.set_ylim(0, top)
            axes.set_yticks(np.arange(0, top, 0.2 if top > 0.6 else 0.1))
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
            if i == 0:
                axes.set_title(f"noise: {noise}")
            if j == 0:
                axes.set_ylabel(f"{SHOWN[metric]} (%)")
            if i == len(SHOWN) - 1:
                axes.set_xlabel("right labels before noise (%)")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(losses))
    write_text(path, picture.svgs[0])


def map_tables(cells: Cells) -> str:
    """A table per metric, differences over many cells, and the tokens per cell."""
    tokens = [cell["tokens"] for cell in cells]
    spent = f"{len(cells)} cells, {min(tokens):,} to {max(tokens):,} tokens each"
    return "\n\n".join([*(table(cells, metric) for metric in SHOWN), contrast_table(cells), spent])


COLUMNS = {
    "fpr": "FPR at 0.5", "fpr_at_tpr_90": "FPR at TPR 90", "fnr": "FNR at 0.5", "auroc": "AUROC",
    "ece": "calibration error",
}  # fmt: skip
PAIRS = ("any", "sure", "consensus")
DIFFERENCES = (
    ("any of 8", "injected noise"), ("any of 32", "injected noise"), ("any of 8", "exact labels"),
    *((f"pairs: {arm}", "any of 8") for arm in (*PAIRS, "exact")), ("continued", "any of 8"),
    *((f"pairs: {arm}", "pairs: exact") for arm in PAIRS),
)  # fmt: skip


Numbers = Sequence[dict[str, dict[str, float]]]
"""Per world, name → metric → value."""
Counts = dict[str, list[dict[str, Any]]]
"""Labels → per world how many steps are called right or wrong."""
BY_ROLLOUTS = ("any-8", "any-16", "any-32", "injected")
FEWEST = 100
"""Kinds of wrong steps with fewer cases in all worlds are not shown."""


def natural_tables(results: Numbers, limit: Numbers, counts: Counts, varied: Sequence[dict[str, Any]]) -> str:
    """All numbers of natural_origin.py, in the order of docs/lab/over-credit.md."""
    columns = ("passing", "fpr", "fpr_at_tpr_90")
    learned = {name: [over([one[name][column] for one in limit]) for column in columns] for name in limit[0]}
    for name, other in DIFFERENCES[:2]:
        learned[f"{name} − {other}"] = [over([one[name][c] - one[other][c] for one in limit], "+") for c in columns]
    bases = [name for name in results[0] if not name.startswith(("pairs", "continued"))]
    return "\n\n".join(
        [
            noise_table({name: counts[name] for name in BY_ROLLOUTS}),
            varied_table(varied),
            markdown(["labels learned perfectly", "wrong steps called right", "FPR at 0.5", "FPR at TPR 90"], learned),
            markdown(["labels", *COLUMNS.values()], {name: _metrics(results, name) for name in bases}),
            repair_table(results, counts),
            difference_table(results),
        ]
    )


def noise_table(counts: Counts) -> str:
    """Wrong steps called right by operations left and kind of error; and right ones called wrong."""
    every = next(iter(counts.values()))
    total = {
        group: sum(one["wrong"].get(group, 0) for one in every) for group in {g for one in every for g in one["wrong"]}
    }
    kinds = sorted((group for group in total if not group.endswith(" left")), key=lambda group: -total[group])
    places = sorted((group for group in total if group.endswith(" left")), reverse=True)
    groups = [group for group in (kinds[0], *places, *kinds[1:]) if total[group] >= FEWEST]
    rows = {
        group.replace("_", " "): [
            f"{total[group]:,}", *(over([_rate(one, group) for one in found], digits=0) for found in counts.values())
        ]
        for group in groups
    }  # fmt: skip
    failed = [over([one["failed"] / one["right"] for one in found]) for found in counts.values()]
    rows["right steps called wrong"] = [f"{sum(one['right'] for one in every):,}", *failed]
    return markdown(["wrong steps", "number", *map(title, counts)], rows)


def varied_table(varied: Sequence[dict[str, Any]]) -> str:
    """Label noise by the policy's strength and the length of problems."""
    rows = {}
    for name, by_rollouts in varied[0].items():
        number = sum(one[name][next(iter(by_rollouts))]["wrong"]["all"] for one in varied)
        found = [over([_rate(one[name][k], "all") for one in varied]) for k in by_rollouts]
        failed = over([one[name][min(by_rollouts)]["failed"] / one[name][min(by_rollouts)]["right"] for one in varied])
        rows[name] = [f"{number:,}", *found, failed]
    rollouts = [f"any of {k}" for k in next(iter(varied[0].values()))]
    return markdown(["policy and problems", "wrong steps", *rollouts, f"right steps called wrong, {rollouts[0]}"], rows)


def repair_table(results: Numbers, counts: Counts) -> str:
    """The base PRM on any of 8 after further training, with the number and the noise of the labels."""
    rows = {"base PRM": ["", "", *_metrics(results, "any of 8")]}
    for name in results[0]:
        if not name.startswith(("pairs", "continued")):
            continue
        labels = "pairs-any" if name == "continued" else name.replace(": ", "-")
        noisy = over([_rate(one, "all") for one in counts[labels]]) if labels in counts else "0"
        number = np.mean([one[name]["examples"] for one in results])
        rows[name] = [f"{number:,.0f}", noisy, *_metrics(results, name)]
    return markdown(["trained on", "pairs or labels", "wrong steps called right", *COLUMNS.values()], rows)


def difference_table(results: Numbers) -> str:
    """Differences of PRMs in percentage points, paired by world."""
    rows = {
        f"{name} − {other}": [over([one[name][c] - one[other][c] for one in results], "+") for c in COLUMNS]
        for name, other in DIFFERENCES
    }
    return markdown(["difference", *COLUMNS.values()], rows)


def _metrics(results: Numbers, name: str) -> list[str]:
    return [over([one[name][column] for one in results]) for column in COLUMNS]


def demo_tables(results: dict[str, list[dict[str, float]]], counts: Counts) -> str:
    """The numbers of demo_labels.py: base PRMs by their labels, and differences to the demo's own, paired by world."""
    noisy = {name: over([_rate(one, "all") for one in found]) for name, found in counts.items()}
    rows = {
        title(name): [noisy[name], *(over([one[column] for one in found]) for column in COLUMNS)]
        for name, found in results.items()
    }
    for name in [other for other in results if "injected" in results and other != "injected"]:
        pairs = list(zip(results[name], results["injected"], strict=True))
        rows[f"{title(name)} − injected"] = ["", *(over([a[c] - b[c] for a, b in pairs], "+") for c in COLUMNS)]
    return markdown(["labels", "wrong steps called right", *COLUMNS.values()], rows)


def arm_tables(base: list[dict[str, float]], arms: dict[str, list[dict[str, float]]]) -> str:
    """A base PRM after further training, and differences to it and to exact pairs, paired by world."""
    every = {"base PRM": base, **{f"pairs: {title(name)}": found for name, found in arms.items()}}
    rows = {name: [over([one[column] for one in found]) for column in COLUMNS] for name, found in every.items()}
    exact = "pairs: exact"
    wanted = [(name, "base PRM") for name in every if name != "base PRM"]
    for name, other in wanted + [(name, exact) for name in every if name not in ("base PRM", exact)]:
        pairs = list(zip(every[name], every[other], strict=True))
        rows[f"{name} − {other}"] = [over([a[c] - b[c] for a, b in pairs], "+") for c in COLUMNS]
    return markdown(["PRM", *COLUMNS.values()], rows)


def title(labels: str) -> str:
    """The name of labels in tables: any-8 is any of 8."""
    return labels.replace("-", " of ")


def markdown(header: Sequence[str], rows: dict[str, list[str]]) -> str:
    """A table with numbers to the right."""
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def over(values: Sequence[float], sign: str = "", digits: int = 1) -> str:
    """Percent, ± half of the 95 % interval over worlds if there are several."""
    found = over_seeds(values)
    mean = f"{100 * found.value:{sign}.{digits}f}".replace("-", "−")
    return mean if len(values) == 1 else f"{mean} ± {100 * (found.high - found.value):.{digits}f}"


def _rate(counts: dict[str, Any], group: str) -> float:
    wrong = counts["wrong"].get(group, 0)
    return counts["passed"].get(group, 0) / wrong if wrong else float("nan")
