"""Plans a training recipe: exact tokens and updates of every round, and what they cost."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prism_prm.costs import Batch, Setup, Way, held_parameters, scoring_memory, trained_parameters
from prism_prm.errors import DataError
from prism_prm.foreign import reading_parquet
from prism_prm.pairs.examples import Examples, Split
from prism_prm.planning.counting import CountingScorer
from prism_prm.planning.fit import BYTES, Case, remedies, setup_of, ways
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import SCORE_BYTES, Fit, Plan, Stage
from prism_prm.planning.rounds import RoundCount, count_round
from prism_prm.prms.skeleton import Stand, load_skeleton
from prism_prm.scorer.store import Share
from prism_prm.scorer.whole_trees import pair_cost
from prism_prm.training.batches import RowLimits
from prism_prm.training.loop import Round
from prism_prm.training.margins import score_examples
from prism_prm.training.recipe import Recipe
from prism_prm.training.source import TRAIN, data_folder, examples_that_fit, make_data, needs_margins, rounds_of
from prism_prm.training.validation import Validation
from prism_prm.types import Bars, Floats, no_bars

MARGIN_BYTES = 40


class TrainingPlanner:
    """Plans one recipe; `plan` reads from top to bottom."""

    def __init__(self, recipe: Recipe, cluster: Cluster, stand: Stand, margins: Path | None, bars: Bars) -> None:
        self.recipe, self.cluster, self.margins_file, self.bars = recipe, cluster, margins, bars
        base, hardware = recipe.base, recipe.hardware
        self.prm = load_skeleton(
            str(base.prm or base.backbone), stand=stand, fresh=not base.prm, family=base.family, layers=base.layers,
            attn=hardware.attn, on_cpu=cluster.on_cpu, token_budget=hardware.score_tokens,
        )  # fmt: skip
        self.sizes = self.prm.sizes
        self.notes = [f"not the model's own: {note}" for note in self.prm.notes]

    def plan(self) -> Plan:
        with tempfile.TemporaryDirectory() as folder:
            make_data(self.recipe, Path(folder))
            data = data_folder(self.recipe, Path(folder))
            data_bytes = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
            train, kinds, fitting = examples_that_fit(Split.read(data, TRAIN), self.recipe, self.prm)  # type: ignore[arg-type]
            if fitting["too_long"]:
                self.notes.append(f"{fitting['too_long']:,} examples are longer than the context and left out")
            scoring, scored, scores = self._scoring_stages(data, train, Path(folder) / "scores")
        counts = self._rounds(train, kinds)
        largest = max((one.tally.largest for one in counts), key=_size)
        accumulates = max(one.passes for one in counts) > 1
        setup = setup_of(self.recipe.hardware, self.prm.module, accumulates=accumulates)
        setup = replace(setup, on_cpu=self.cluster.on_cpu)
        stages = [*scoring, *(self._round_stage(one, setup) for one in counts)]
        fits, advice = self._fits(counts, Case(setup, largest, self._way, self.cluster.count))
        if scoring:
            fits.append(self._scoring_fit(scored, setup))
        self._note_assumptions(counts, setup, accumulates)
        return Plan(
            "training", self._model(setup, largest), self.cluster, stages, fits, advice,
            self._disk(setup, data_bytes, scores, len(train), len(counts)), self.notes,
        )  # fmt: skip

    @property
    def _way(self) -> Way:
        return "fsdp" if self.recipe.hardware.sharding == "fsdp" and self.cluster.count > 1 else "ddp"

    def _fits(self, counts: list[RoundCount], case: Case) -> tuple[list[Fit], list[str]]:
        """What fits, the recipe first, and what makes it fit if it does not."""
        fits = ways(self.sizes, case, self.cluster.room)
        if fits[0].fits:
            return fits, []
        longest, shortest = max(one.longest_row for one in counts), max(one.longest_part for one in counts)
        return fits, remedies(self.sizes, case, self.cluster, shortest, longest)

    def _scoring_fit(self, largest: Batch, setup: Setup) -> Fit:
        """Scores come from a whole copy in the dtype of the weights, also where training is sharded."""
        memory = scoring_memory(self.sizes, largest, replace(setup, compute=setup.weights))
        fits = memory.peak <= self.cluster.room
        if not fits:
            self.notes.append(
                "margins and validation score with a whole copy of the model on each GPU, which does not fit: lower "
                'hardware.score_tokens, or set hardware.dtype = "bfloat16"'
            )
        return Fit("scoring", memory, fits)

    def _scoring_stages(self, data: Path, train: Examples, store: Path) -> tuple[list[Stage], Batch, int]:
        """Margins and validation, forward passes whose scores are filed and not made twice; the largest pass, and how
        many scores."""
        recipe, rounds, scores = self.recipe, len(self.recipe.curriculum.round_names()), 0
        counters: list[tuple[str, CountingScorer, int]] = []
        if needs_margins(train, recipe):
            counter = CountingScorer(self.prm)
            with self.bars("margins", len(np.unique(train.tree)), unit="trees") as advance:
                score_examples(counter.filed(store), train, advance=advance)
            counters.append(("margins", counter, rounds if recipe.curriculum.rescore else 1))
            scores += 2 * len(train)
        if recipe.validation.split:
            counter = CountingScorer(self.prm)
            held_out = Validation.of(Split.read(data, recipe.validation.split), self.prm, recipe.validation)  # type: ignore[arg-type]
            with self.bars("validation", held_out.num_trees, unit="trees") as advance:
                held_out.measure(counter.filed(store), recipe.validation, Share(), advance)
            counters.append(("validation", counter, 1 + rounds))
            scores += (1 + rounds) * (len(held_out.steps) + 2 * len(held_out.pairs))
        largest = max((counter.tally.largest for _, counter, _ in counters), key=_size, default=Batch(0, 0, 0))
        size = BYTES[recipe.hardware.dtype]  # scores are not computed in mixed precision
        return [counter.stage(name, self.cluster, size, times) for name, counter, times in counters], largest, scores

    def _rounds(self, train: Examples, kinds: np.ndarray) -> list[RoundCount]:
        recipe, margins = self.recipe, None
        names = recipe.curriculum.round_names()
        if needs_margins(train, recipe):
            if self.margins_file is not None:
                margins = read_margins(self.margins_file, train)
            else:
                names = ["at most: all pairs"]
                self.notes.append(
                    "margins are not known, so the rounds are counted as one round of all pairs, the most they can be; "
                    "with --margins (a table of `prism margins`) they are exact"
                )
        binned = rounds_of(train, kinds, recipe, margins)
        if margins is not None:
            binned.refuse_empty(enumerate(names))
            dropped = sum(binned.dropped.values())
            self.notes.append(f"{dropped:,} of {len(train):,} pairs are in no round")
        return [self._count(number, name, train.take(binned.rounds[number])) for number, name in enumerate(names)]

    def _count(self, number: int, name: str, examples: Examples) -> RoundCount:
        recipe, module = self.recipe, self.prm.module
        work = Round(
            name, module, self.prm.family, module.collate, RowLimits(recipe.train.row_tokens, pair_cost(module)),
            examples, recipe.objective, recipe.train, (recipe.seed, number), Path("none"),
        )  # fmt: skip
        with self.bars(f"round {name}", len(work.updates), unit="updates") as advance:
            return count_round(work, module, self.cluster.count, advance)

    def _round_stage(self, one: RoundCount, setup: Setup) -> Stage:
        flops, busiest = one.flops(self.sizes, setup), one.busiest(self.sizes, setup)
        return Stage(
            f"round {one.name}", one.tally.total.tokens, one.tally.separate, flops,
            busiest / self.cluster.speed(setup.compute) / 3600, one.updates, one.examples,
            efficiency=flops * (1 - one.idle / one.tally.total.tokens) / (busiest * self.cluster.count),
        )  # fmt: skip

    def _model(self, setup: Setup, largest: Batch) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "name": str(recipe.base.prm or recipe.base.backbone), "family": self.prm.family.name,
            "parameters": self.sizes.parameters, "trained": trained_parameters(self.sizes, setup),
            "context": self.prm.context, "largest_pass": {"tokens": largest.tokens, "reads": largest.reads},
        }  # fmt: skip

    def _disk(self, setup: Setup, data: int, scores: int, pairs: int, rounds: int) -> dict[str, float]:
        recipe, trained = self.recipe, trained_parameters(self.sizes, setup)
        state = held_parameters(self.sizes, setup) * setup.weights + 2 * trained * setup.trained_bytes
        saved = BYTES[recipe.hardware.save_dtype or recipe.hardware.dtype]
        names = recipe.curriculum.round_names()
        disk: dict[str, float] = {
            # One more than is kept, while a new one is written.
            "checkpoints": float((recipe.train.keep_checkpoints + 1) * state),
            "rounds": float(max(rounds, len(names)) * self.sizes.parameters * saved),
            "data": float(data),
            "scores and margins": float(scores * SCORE_BYTES + pairs * MARGIN_BYTES),
        }
        if not recipe.base.prm:
            disk["base PRM"] = float(self.sizes.parameters * BYTES[recipe.hardware.dtype])
        if recipe.hardware.cache:
            disk["cache, at most"] = recipe.hardware.cache_gb * 1e9
        return disk

    def _note_assumptions(self, counts: list[RoundCount], setup: Setup, accumulates: bool) -> None:
        kernel = {
            "dense": "a fused kernel with a dense mask: operations for the whole square of a row",
            "flex": "flex attention: operations for the blocks that are seen",
            "blocks": "attention in blocks",
            "math": "unfused attention",
        }[setup.kernel]
        self.notes.append(f"attention is {kernel}; its backward pass counts as 2.5 forward passes")
        self.notes.append("forward and backward passes of linear layers and attention count; nothing else does")
        idle = sum(one.idle for one in counts)
        total = sum(one.tally.total.tokens for one in counts)
        if idle > 0.01 * total:
            self.notes.append(f"{idle / total:.0%} of the tokens are run only to keep step: updates are too small")
        if not accumulates:
            self.notes.append("an update is one pass per GPU, so gradients appear while activations are freed")


def _size(batch: Batch) -> tuple[int, int]:
    return batch.tokens, batch.pairs


def read_margins(path: Path, train: Examples) -> Floats:
    """The margins of the pairs, from a table that `prism margins` or `prism train` wrote."""
    if not path.exists():
        raise DataError(f"{path}: no such table of margins; `prism margins` writes one", reason="no-such-file")
    with reading_parquet(path, "`prism margins` writes such a table"):
        table = pq.read_table(path, columns=["pair_id", "margin"])
    known = dict(zip(table["pair_id"].to_pylist(), table["margin"].to_pylist(), strict=True))
    missing = [int(one) for one in train.ids if int(one) not in known]
    if missing:
        raise DataError(
            f"{path}: {len(missing):,} of {len(train):,} pairs have no margin there, the first is pair {missing[0]}; "
            "it was made from other data"
        )
    return np.array([known[int(one)] for one in train.ids], dtype=np.float64)


def plan_training(
    recipe: Recipe, cluster: Cluster, stand: Stand, margins: Path | None = None, bars: Bars = no_bars
) -> Plan:
    """What `prism train` will take with this recipe."""
    return TrainingPlanner(recipe, cluster, stand, margins, bars).plan()
