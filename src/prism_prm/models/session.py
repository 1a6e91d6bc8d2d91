"""Sessions: trees of steps that grow during a search, with a KV cache, so that only new tokens are computed.

Each node holds the key/values of its own tokens and points to its parent. Forking a beam means extending one node
twice; nothing is copied. Dropping a beam frees what no other beam needs.

In a forward pass, each row is one problem: new nodes on top of cached ones. Cached nodes are laid out depth first, and
each new token has an anchor, the last cached token of its parent. What it sees follows from the rule of packed trees,
applied to the anchor: cached token k iff k ≤ anchor < end[k].

Shapes: B rows, K cached tokens, Q new tokens, R reads, O named log-odds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from prism_prm.calibration import Calibration, right_probability
from prism_prm.errors import DataError, PrismError
from prism_prm.models.attention import ATTENTION, using_kernel
from prism_prm.models.load_lm import halving
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import encode_step
from prism_prm.models.prm import check_finite
from prism_prm.segments import CLOSE, OPEN, SCORED
from prism_prm.tree import StepTree

if TYPE_CHECKING:
    from prism_prm.models.prm import PRM

PASS = 256
"""The fixed cost of a forward pass, in tokens: reading the weights and launching many small operations."""


@dataclass(eq=False, slots=True)
class SessionNode:
    """A step of a session, or a problem (a root). It keeps its scores after it is dropped.

    Sessions and `PrefixCache` are tries of these nodes. Policies have their own (see `CachedPrefix` in decode.py).
    """

    problem: int
    """The index of the problem in the session."""
    parent: SessionNode | None
    text: str
    ids: tuple[int, ...]
    """The token ids that it adds to its parent's."""
    start: int
    """The number of tokens before it."""
    read: int
    """The offset in its tokens where its score is read."""
    depth: int
    """The number of steps before it; -1 for a root."""
    log_odds: tuple[float, ...] = ()
    """The family's named log-odds; empty for a root, NaN if the path is too long and `on_too_long` is "skip",
    or for thinking that is only context."""
    keys_values: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    """Keys and values of its own tokens, each (layers, heads, tokens, size); the two may have different sizes."""
    handles: int = 1
    """The number of beams that end here; see `Session.fork`."""
    is_apart: bool = False
    """Whether it is scored as a tree of its own, without a KV cache: in a window, or after unscored thinking."""
    needed_by: int = 0
    """The number of children that still hold key/values or handles."""
    calibration: Calibration | None = field(default=None, repr=False)
    """The PRM's calibration, which `probability` applies."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that it adds to its parent's."""
        return len(self.ids)

    @property
    def probability(self) -> float:
        """P(the step is right), calibrated if the PRM is."""
        return float(right_probability(np.asarray(self.log_odds[0]), self.calibration))

    def path(self) -> list[SessionNode]:
        """Return the nodes from the root to this one."""
        nodes: list[SessionNode] = []
        node: SessionNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def steps(self) -> list[str]:
        """Return the texts from the first step to this one."""
        return [node.text for node in self.path()[1:]]


class Session:
    """Growing trees, one per problem: `extend`, `fork`, `drop`, `keep`."""

    def __init__(self, prm: PRM, problems: Sequence[str]) -> None:
        self.prm = prm
        self.problems = list(problems)
        prompts = [tuple(prm.family.prompt_ids(problem)) for problem in self.problems]
        self.roots = [SessionNode(i, None, "", ids, 0, len(ids) - 1, -1) for i, ids in enumerate(prompts)]
        """One node per problem; extend them with first steps."""
        self._alive: set[SessionNode] = set(self.roots)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free all memory."""
        for node in self._alive:
            node.keys_values = None
            node.handles = 0
        self._alive.clear()

    def extend(self, steps: Iterable[tuple[SessionNode, str]]) -> list[SessionNode]:
        """Score one more step after each given node; returns the new nodes in the same order.

        Equal steps after one node are computed once and share their node (see `fork`). All problems run together, in
        batches of the PRM's token budget.
        """
        new: dict[tuple[SessionNode, str], SessionNode] = {}
        nodes = []
        for parent, text in steps:
            if parent not in self._alive or parent.handles == 0:
                raise PrismError(f"problem {parent.problem}: a node that was dropped cannot be extended ({text!r})")
            if (parent, text) in new:
                nodes.append(self.fork(new[parent, text]))
                continue
            depth = parent.depth + 1
            try:
                ids, read = encode_step(text, depth, self.prm.family)
            except DataError as error:
                raise DataError(f"{_name_step(parent.problem, depth)}: {error}", reason=error.reason) from None
            start = parent.start + len(parent.ids)
            node = SessionNode(parent.problem, parent, text, tuple(ids), start, read, depth)
            node.calibration = self.prm.card.calibration
            new[parent, text] = node
            nodes.append(node)
        fitting: dict[int, list[SessionNode]] = {}
        apart: list[SessionNode] = []
        for node in new.values():
            node.is_apart = (
                node.start + node.read + 1 > self.prm.context
                or (node.parent is not None and node.parent.is_apart)
                or (self.prm.card.thinking != SCORED and (OPEN in node.text or CLOSE in node.text))
            )
            if node.is_apart:  # the rules of whole trees apply: `on_too_long`, and what is done with thinking
                apart.append(node)
            else:
                fitting.setdefault(node.problem, []).append(node)
        if apart:
            chains = [StepTree.chain(self.problems[one.problem], one.steps(), tree_id=one.problem) for one in apart]
            for node, scores in zip(apart, self.prm.score_trees(chains, [[one.depth] for one in apart]), strict=True):
                node.log_odds = tuple(scores.log_odds_NO[-1].tolist())
        roots = [self.roots[problem] for problem in fitting]
        prompts = [Growth([root]) for root in roots if root.keys_values is None and root.ids]
        with self.prm.module.scoring():
            grow(self.prm, prompts, _name_step)
            grow(self.prm, [Growth(siblings) for siblings in fitting.values()], _name_step)
        for node in new.values():
            self._alive.add(node)
            assert node.parent is not None
            node.parent.needed_by += 1
        return nodes

    def fork(self, node: SessionNode) -> SessionNode:
        """Add a beam that ends at this node, at no cost. The node must then be dropped once more."""
        node.handles += 1
        return node

    def drop(self, nodes: Iterable[SessionNode]) -> None:
        """Drop beams and free what no other beam needs."""
        for node in nodes:
            if node.handles == 0:
                raise PrismError(f"problem {node.problem}: a node was dropped more often than it was forked")
            node.handles -= 1
            self._free(node)

    def keep(self, nodes: Iterable[SessionNode]) -> None:
        """Drop everything but these beams and the roots; a node given twice counts as two beams."""
        wanted = Counter(nodes)
        if dead := wanted.keys() - self._alive:
            raise PrismError(f"problem {next(iter(dead)).problem}: a node that was dropped cannot be kept")
        steps = self._alive - set(self.roots)
        for node in steps:
            node.handles = wanted[node]
        for node in sorted(steps, key=lambda node: -node.depth):
            self._free(node)

    def _free(self, node: SessionNode | None) -> None:
        while node is not None and node in self._alive and not node.handles and not node.needed_by:
            node.keys_values = None
            self._alive.discard(node)
            node = node.parent
            if node is not None:
                node.needed_by -= 1

    @property
    def num_tokens(self) -> int:
        """The size of the KV cache in tokens."""
        return sum(len(node.ids) for node in self._alive if node.keys_values is not None)

    @property
    def memory_bytes(self) -> int:
        """The size of the KV cache in bytes."""
        return sum(tensor.nbytes for node in self._alive for tensor in node.keys_values or ())


def _name_step(problem: int, depth: int) -> str:
    return f"problem {problem}, step {depth}"


class Growth:
    """New nodes of one problem, and their cached ancestors. New nodes may be nested, then depth first."""

    def __init__(self, new: Sequence[SessionNode]) -> None:
        self.new = list(new)
        new_nodes = set(new)
        self.is_nested = any(node.parent in new_nodes for node in new)
        children: dict[SessionNode | None, list[SessionNode]] = {}
        ancestors: set[SessionNode] = set()
        for node in new:
            above = node.parent
            while above is not None and above not in ancestors and above not in new_nodes:
                ancestors.add(above)
                children.setdefault(above.parent, []).append(above)
                above = above.parent
        self.kept: list[SessionNode] = []
        """Depth first."""
        stack = children.get(None, [])
        while stack:
            node = stack.pop()
            if node.ids:
                self.kept.append(node)
            stack += children.get(node, ())
        self.num_kept = sum(len(node.ids) for node in self.kept)
        self.num_new = sum(len(node.ids) for node in new)

    def parts(self, token_budget: int) -> Iterator[Growth]:
        """Split into parts of at least one new node each if new and cached tokens exceed the budget.

        Nested nodes stay together; the caller bounds their number.
        """
        if self.num_kept + self.num_new <= token_budget or len(self.new) == 1 or self.is_nested:
            yield self
            return
        half = len(self.new) // 2
        yield from Growth(self.new[:half]).parts(token_budget)
        yield from Growth(self.new[half:]).parts(token_budget)


def in_batches(growths: Sequence[Growth], token_budget: int) -> list[list[Growth]]:
    """Group growths into batches that fit the budget (cached and new tokens, padding included) at the lowest cost."""
    order = sorted((part for growth in growths for part in growth.parts(token_budget)), key=lambda part: -part.num_new)
    least: list[tuple[int, int]] = [(0, 0)]
    """For the first 0, 1, 2, … parts: the lowest cost, and where the last batch starts."""
    for end in range(1, len(order) + 1):
        options: list[tuple[int, int]] = []
        num_kept = 0
        for start in reversed(range(end)):
            num_kept, num_new = max(num_kept, order[start].num_kept), order[start].num_new
            if options and (end - start) * (num_kept + num_new) > token_budget:
                break
            options.append((least[start][0] + (end - start) * num_new + PASS, start))
        least.append(min(options))
    batches: list[list[Growth]] = []
    end = len(order)
    while end:
        start = least[end][1]
        batches.append(order[start:end])
        end = start
    return batches


def grow(prm: PRM, growths: Sequence[Growth], name: Callable[[int, int], str]) -> None:
    """Compute the key/values of all new nodes and the log-odds of steps; `name` names a (problem, depth) in errors."""
    for batch in in_batches(growths, prm.token_budget):
        for done, log_odds_RO in halving(
            batch,
            lambda part: run_growth(prm.module, part),
            lambda growth: name(growth.new[0].problem, growth.new[0].depth),
        ):
            nodes = [node for growth in done for node in growth.new]
            # The value read at the end of a prompt is not a score.
            steps = [i for i, node in enumerate(nodes) if node.parent is not None]
            check_finite(log_odds_RO[steps], [(nodes[i].problem, nodes[i].depth) for i in steps], name)
            values = log_odds_RO.tolist()
            for i in steps:
                nodes[i].log_odds = tuple(values[i])


def run_growth(module: PrmModule, batch: Sequence[Growth]) -> Tensor:
    """Compute the new nodes of a batch: store their key/values in them and return their log-odds_RO in order."""
    rows = [_lay_out(growth) for growth in batch]
    device = module.device

    def padded(name: str, fill: int = 0) -> Tensor:
        table = np.full((len(rows), max(len(row[name]) for row in rows)), fill, np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row[name])] = row[name]
        return torch.from_numpy(table).to(device)

    ids_BQ, position_BQ, anchor_BQ = padded("ids_Q"), padded("position_Q"), padded("anchor_Q", -1)
    kept_end_BK, kept_position_BK = padded("kept_end_K"), padded("kept_position_K")
    num_kept = kept_end_BK.shape[1]
    at_K, at_Q = torch.arange(num_kept, device=device), torch.arange(ids_BQ.shape[1], device=device)
    end_BQ = torch.maximum(padded("end_Q"), at_Q + 1)  # padding sees itself, or its softmax would be empty
    sees_kept_BQK = (at_K <= anchor_BQ[:, :, None]) & (anchor_BQ[:, :, None] < kept_end_BK[:, None, :])
    sees_new_BQQ = (at_Q[None, None, :] <= at_Q[None, :, None]) & (at_Q[None, :, None] < end_BQ[:, None, :])
    sees = torch.cat([sees_kept_BQK, sees_new_BQQ], dim=2)[:, None]
    positions = torch.cat([kept_position_BK, position_BQ], dim=1)
    distance = (position_BQ[:, :, None] - positions[:, None, :])[:, None]
    masks = {kind: sees if window is None else sees & (distance < window) for kind, window in module.windows.items()}
    starts = [list(accumulate((len(node.ids) for node in growth.new[:-1]), initial=0)) for growth in batch]
    """For each row, the columns where new nodes begin."""

    # New tokens on a KV cache need dense masks, whatever attention is configured.
    with torch.inference_mode(), using_kernel(module.config, ATTENTION["sdpa"]):
        cache = _kept_cache(module, batch, num_kept)
        hidden_BQH = module.run(ids_BQ, position_BQ, masks, cache)
        keys, values = (
            torch.stack([getattr(layer, name)[:, :, num_kept:].to(device) for layer in cache.layers])
            for name in ("keys", "values")
        )
        for i, growth in enumerate(batch):
            for node, start in zip(growth.new, starts[i], strict=True):
                own = slice(start, start + len(node.ids))  # cloned, so that dropping the node frees its memory
                node.keys_values = keys[:, i, :, own].clone(), values[:, i, :, own].clone()
        row_R = [i for i, growth in enumerate(batch) for _ in growth.new]
        column_R = [
            start + node.read
            for growth, columns in zip(batch, starts, strict=True)
            for node, start in zip(growth.new, columns, strict=True)
        ]
        return module.read(hidden_BQH[row_R, column_R]).double().cpu()


def _lay_out(growth: Growth) -> dict[str, np.ndarray]:
    """Compute the token ids, positions, ends and anchors of one row."""
    lengths = [len(node.ids) for node in growth.new]
    kept_lengths = [len(node.ids) for node in growth.kept]
    stops: dict[SessionNode | None, int] = dict(zip(growth.kept, accumulate(kept_lengths), strict=True))
    kept_ends: dict[SessionNode | None, int] = dict(stops)
    new_ends: dict[SessionNode | None, int] = dict(zip(growth.new, accumulate(lengths), strict=True))
    for nodes, ends in ((growth.kept, kept_ends), (growth.new, new_ends)):
        for node in reversed(nodes):  # a node ends where its last descendant ends
            if node.parent in ends:
                ends[node.parent] = max(ends[node.parent], ends[node])
    anchors: dict[SessionNode | None, int] = {}
    for node in growth.new:  # a nested node sees the same cached tokens as its parent
        anchors[node] = anchors[node.parent] if node.parent in anchors else stops.get(node.parent, 0) - 1

    def spread(values: Iterable[int], counts: Sequence[int]) -> np.ndarray:
        return np.repeat(np.fromiter(values, np.int64), np.array(counts, np.int64))

    def positions(nodes: Sequence[SessionNode], counts: Sequence[int]) -> np.ndarray:
        before = [node.start - column for node, column in zip(nodes, accumulate(counts, initial=0), strict=False)]
        return spread(before, counts) + np.arange(sum(counts))

    return {
        "kept_end_K": spread((kept_ends[node] for node in growth.kept), kept_lengths),
        "kept_position_K": positions(growth.kept, kept_lengths),
        "ids_Q": np.array([token for node in growth.new for token in node.ids], np.int64),
        "anchor_Q": spread((anchors[node] for node in growth.new), lengths),
        "end_Q": spread((new_ends[node] for node in growth.new), lengths),
        "position_Q": positions(growth.new, lengths),
    }


def _kept_cache(module: PrmModule, batch: Sequence[Growth], width: int) -> Any:
    """Build a KV cache of each row's cached nodes, padded on the right."""
    from transformers import DynamicCache

    # Without a config: with the model's own, sliding layers would be cut to their window by column, not by position.
    cache = DynamicCache()
    if not width:
        return cache
    sides = []
    for which in (0, 1):  # keys, values
        pieces = [[node.keys_values[which] for node in growth.kept if node.keys_values is not None] for growth in batch]
        first = next(states[0] for states in pieces if states)
        layers, heads, _, size = first.shape
        past = first.new_zeros((layers, len(batch), heads, width, size))
        for i, (growth, states) in enumerate(zip(batch, pieces, strict=True)):
            assert len(states) == len(growth.kept), "an ancestor of a live node has its key/values"
            if states:
                torch.cat(states, dim=-2, out=past[:, i, :, : growth.num_kept])
        sides.append(past)
    is_spread = getattr(module.backbone, "hf_device_map", None) is not None
    for i, (keys_BNKD, values_BNKD) in enumerate(zip(*sides, strict=True)):
        device = next(module.backbone.layers[i].parameters()).device if is_spread else keys_BNKD.device
        cache.update(keys_BNKD.to(device), values_BNKD.to(device), i)
    return cache
