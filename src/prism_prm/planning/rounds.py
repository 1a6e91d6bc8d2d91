"""Counts a round of training: its updates packed and spread over processes as the training loop does it."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism_prm.console import Advance, ignore
from prism_prm.costs import Batch, ModelSizes, Setup, training_flops
from prism_prm.packing import Layout, encode_tree
from prism_prm.pairs.examples import Examples, as_one_tree
from prism_prm.planning.counting import Tally, batch_of
from prism_prm.prms.module import PrmModule
from prism_prm.training.batches import arranged, parts_of_update, passes
from prism_prm.training.loop import Round


@dataclass
class RoundCount:
    """What a round runs."""

    name: str
    examples: int
    updates: int = 0
    tally: Tally = field(default_factory=Tally)
    passes: int = 0
    """The most micro-batches of an update on one process."""
    longest_row: int = 0
    longest_part: int = 0
    """Tokens of the longest example alone, which cannot be split."""
    by_update: list[list[Batch]] = field(default_factory=list)
    """For each update what each process runs, in all."""
    idle: int = 0
    """Tokens run by processes that have nothing to do, to keep step."""

    def flops(self, model: ModelSizes, setup: Setup) -> int:
        """Operations of all processes."""
        return sum(training_flops(model, batch, setup) for update in self.by_update for batch in update)

    def busiest(self, model: ModelSizes, setup: Setup) -> int:
        """Operations of the processes for which the others wait."""
        return sum(max(training_flops(model, batch, setup) for batch in update) for update in self.by_update)


def count_round(work: Round, module: PrmModule, count: int, advance: Advance = ignore) -> RoundCount:
    """Pack every update of a round as `Round.run` does, over so many processes, and count."""
    settings = work.settings
    found = RoundCount(work.name, len(work.examples), len(work.updates))
    for update in work.updates:
        parts = parts_of_update(work.examples, update, work.family, settings.pack, work.limits)
        found.longest_row = max(found.longest_row, *(part.length for part in parts))
        costs = []
        for plan in passes(parts, settings.microbatch_tokens, count):
            total = Batch(0, 0, 0)
            for some, weight in plan:
                rows = arranged(module, [row for part in some for row in part.rows], settings.microbatch_tokens)
                batch = batch_of(module, rows)
                found.tally.add(batch, sum(map(len, rows)) if weight else 0)
                found.idle += 0 if weight else batch.tokens
                total += batch
            found.passes = max(found.passes, len(plan))
            costs.append(total)
        found.by_update.append(costs)
        advance(1)
    separate, found.longest_part = sequence_tokens(work.examples, work.family)
    found.tally.separate = settings.epochs * separate
    return found


def sequence_tokens(examples: Examples, family: Layout) -> tuple[int, int]:
    """Tokens of one sequence per step that is read, and those of the longest example laid out alone."""
    total = longest = 0
    for indices in examples.by_tree():
        tree, groups = as_one_tree(examples, indices)
        encoded = encode_tree(tree, family)
        for group in groups:
            total += sum(map(encoded.path_tokens, group))
            shared = max(encoded.starts[node] for node in group)
            longest = max(longest, shared + sum(encoded.reads[node] + 1 for node in group))
    return total, longest
