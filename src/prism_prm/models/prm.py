"""`PRM`: a process reward model to score with, train, and save.

Trees are packed and run in batches by token budget, and every score is checked to be finite. A path that is longer than
the context is an error by default; `on_too_long` can score it in windows or skip it, and such steps are counted.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from prism_prm.config import fault
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.models.card import Card, model_card
from prism_prm.models.families.base import Family
from prism_prm.models.load_lm import halving
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.lower_cache import CacheSettings, LowerCache
from prism_prm.models.module import PrmModule, hash_model
from prism_prm.models.packing import (
    EncodedTree,
    Group,
    Layout,
    Row,
    batch_rows,
    describe,
    encode_step,
    encode_tree,
    merge_rows,
    pack,
)
from prism_prm.models.prm_folder import push_folder, save_folder
from prism_prm.scorer import Scorer, TreeScores, digest
from prism_prm.segments import CLOSE, OPEN, SCORED, thinking_nodes, thinking_tokens, without_tags
from prism_prm.tree import ROOT, StepTree

if TYPE_CHECKING:
    from prism_prm.models.session import Session

log = logging.getLogger(__name__)

TAIL = 0.5
"""The share of a window, after the problem, that earlier steps may take up."""
TREES_AT_ONCE = 512
"""Trees are packed and sorted by length in chunks of this size, to bound memory."""


class PRM(Scorer):
    """A process reward model: its differentiable module and the text layout of its family.

    Load one with `load_prm` or `PRM.from_pretrained`; make a new one with `init_prm`.
    """

    def __init__(
        self,
        module: PrmModule,
        family: Family,
        card: Card,
        *,
        token_budget: int | None = None,
        context: int | None = None,
        on_too_long: OnTooLong = "error",
        cache: CacheSettings | None = None,
    ) -> None:
        check_on_too_long(on_too_long)
        self.module = module
        self.cache = LowerCache(module, cache) if cache else None
        """The cache of frozen-layer activations, or None."""
        self.family = family
        self.outputs = family.outputs
        self.card: Card = card
        self.token_budget = token_budget or (8192 if module.device.type == "cpu" else 16384)
        """Tokens per forward pass, padding included."""
        self.context: int = context or module.config.max_position_embeddings
        """The maximum length of a path in tokens."""
        self.on_too_long: OnTooLong = on_too_long

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> PRM:
        """Load a PRM from a folder or a hub id.

        Args:
            name: folder or hub id of a PRM or a LoRA adapter, or the folder of a `prism train` run.
            options: the options of `load_prm`.

        Example:
            >>> prm = PRM.from_pretrained("my-prm", context=512)
            >>> prm.outputs
            ('correct',)
        """
        from prism_prm import load_prm

        prm = load_prm(name, **options)
        if not isinstance(prm, PRM):
            raise ConfigError(f"{name}: a PRM behind a server has no weights here; open it with load_prm")
        return prm

    @property
    def tokenizer(self) -> Any:
        return self.family.text.tokenizer

    def encode_tree(self, tree: StepTree) -> EncodedTree:
        """Return the tree's token ids; cheap, and independent of the weights."""
        return encode_tree(tree, self.family)

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """Score all nodes of each tree, or only the wanted ones.

        Args:
            trees: problems with their trees of steps.
            wanted: for each tree, the nodes to score. By default all.
            progress: show a progress bar on standard error.
            advance: a callback, called with the number of newly finished trees.

        Example:
            >>> prm = load_prm("my-prm")
            >>> [scores] = prm.score_trees([StepTree.chain("1 + 2?", ["Add.", "3"])], wanted=[[1]])
            >>> scores.scored, scores.outputs
            ([1], ('correct',))
        """
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        results: list[TreeScores] = []
        with bar_on_stderr("scoring", len(trees), shown=progress) as bar, self.module.scoring():
            for start in range(0, len(trees), TREES_AT_ONCE):
                chunk = slice(start, start + TREES_AT_ONCE)
                results += score_chunk(self, trees[chunk], wanted[chunk])
                bar(len(results) - start)
                advance(len(results) - start)
        return results

    def fill_cache(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> int:
        """Cache the lower layers' activations that scoring or training on these nodes needs. Returns the number of
        tokens that had to be run."""
        assert self.cache is not None, "a PRM is loaded with a cache or without"
        items, _ = fit_all(self, trees, wanted)
        with self.module.scoring():
            return self.cache.fill(rows_of(self, items), self.token_budget)

    def session(self, problems: Sequence[str]) -> Session:
        """Open a session: one growing tree per problem, with a KV cache, so only new tokens go through the model.

        Args:
            problems: the problem statements; the session's `roots` come in the same order.

        Example:
            >>> prm = load_prm("my-prm")
            >>> with prm.session(["1 + 2?"]) as session:
            ...     [first] = session.extend([(session.roots[0], "Add.")])
            ...     second, other = session.extend([(first, "3"), (first, "4")])
            >>> second.steps(), other.steps()
            (['Add.', '3'], ['Add.', '4'])
        """
        if isinstance(problems, str):
            raise DataError("a session takes a list of problems; for one problem: session([problem])")
        from prism_prm.models.check_packing import check_session
        from prism_prm.models.session import Session

        check_session(self.module)
        return Session(self, problems)

    def model_hash(self) -> str:
        """Hash the model: weights as loaded, config, tokenizer, family and its settings."""
        return hash_model(self.module, self.family)

    def save(
        self,
        folder: str | Path,
        *,
        state: Mapping[str, Tensor] | None = None,
        threshold: float | None = None,
        aggregator: str | None = None,
        readme: str | None = None,
    ) -> None:
        """Write the PRM's folder atomically: safetensors, config, tokenizer, card and README.

        `save` and `save_pretrained` are the same method.

        Args:
            folder: the folder to write; `load_prm` reads it.
            state: the gathered weights, if they are sharded over devices. By default the module's own.
            threshold: a step counts as right above this probability. By default the card's.
            aggregator: how step scores become a solution's score. By default the card's.
            readme: the content of README.md. By default a short one.

        Example:
            >>> prm = init_prm("my-lm")
            >>> prm.save_pretrained("new-prm", aggregator="mean")
            >>> load_prm("new-prm").card.aggregator
            'mean'
        """
        card = replace(
            self.card,
            threshold=self.card.threshold if threshold is None else threshold,
            aggregator=self.card.aggregator if aggregator is None else aggregator,
        )
        readme = readme or model_card(card, self.family.architecture(self.module.config))
        save_folder(Path(folder), self.module, self.family, card, state, readme)
        self.card = card

    save_pretrained = save

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        message: str = "Upload a PRM",
        token: str | None = None,
        api: Any = None,
    ) -> str:
        """Upload the PRM's folder to the Hugging Face hub; returns the URL of the commit.

        Args:
            repo_id: "owner/name", or a name in your own account; created if it does not exist.
            private: whether a new repository is private.
            message: the commit message.
            token: the hub token. By default the one of `hf auth login`.
            api: a `huggingface_hub.HfApi` to use instead, with its own token.

        Example:
            >>> prm = load_prm("my-prm")
            >>> prm.push_to_hub("me/my-prm")  # doctest: +SKIP
            'https://huggingface.co/me/my-prm/commit/…'
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "prm")
            return push_folder(Path(folder) / "prm", repo_id, private=private, message=message, token=token, api=api)

    def identity(self) -> str:
        """Hash everything that determines scores: the model, its context, and what happens to longer paths."""
        apart = [self.card.thinking] * (self.card.thinking != SCORED)
        return digest(self.model_hash(), self.context, self.on_too_long, *apart)

    def can_score(self, step: str, depth: int) -> bool:
        """Whether the family can lay out this step at this depth; a step without tokens cannot be scored."""
        return self.family.can_read(without_tags(step), depth)

    def notes(self) -> list[str]:
        """Report what the scores leave out."""
        count = self.family.text.num_unread
        return [f"{count:,} characters were not read, because the PRM's tokenizer does not know them"] * bool(count)

    def count_tokens(self, tree: StepTree) -> int:
        """Count the tokens of the problem and of every step once."""
        return self.encode_tree(tree).num_tokens


Prm = PRM
"""Deprecated alias of `PRM`."""


NameNode = Callable[[int, int], str]
"""(tree, node) of a read → its name in messages."""


def fit_all(
    prm: PRM, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]
) -> tuple[list[PackItem], list[tuple[int, ...]]]:
    """Return the items to pack for some nodes of each tree, and for each tree the nodes that were too long."""
    items: list[PackItem] = []
    too_long: list[tuple[int, ...]] = []
    for i, (tree, wanted) in enumerate(zip(trees, nodes, strict=True)):
        fitting, long = fit(tree, i, wanted, prm.family, prm.context, prm.on_too_long, prm.card.thinking)
        items += fitting
        too_long.append(tuple(long))
    return items, too_long


def rows_of(prm: PRM, items: Sequence[PackItem]) -> list[Row]:
    """Pack the items for the PRM's attention and token budget."""
    trees, groups = [item.tree for item in items], [item.groups for item in items]
    return pack(trees, prm.token_budget, groups, pair_cost=pair_cost(prm.module))


def score_chunk(prm: PRM, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]) -> list[TreeScores]:
    """Score some nodes of each tree; all trees are packed, sorted by length and run together."""
    items, too_long = fit_all(prm, trees, nodes)
    if any(too_long):
        action = "left unscored" if prm.on_too_long == "skip" else "scored in windows, after the last steps that fit"
        first = next(describe(tree, long[0]) for tree, long in zip(trees, too_long, strict=True) if long)
        log.warning(
            "%d steps exceed the context of %d tokens: %s; the first: %s",
            sum(map(len, too_long)), prm.context, action, first,
        )  # fmt: skip
    scores = score_items(prm, items, [len(tree.nodes) for tree in trees], lambda i, node: describe(trees[i], node))
    found = []
    for log_odds_NO, wanted, long in zip(scores, nodes, too_long, strict=True):
        is_nan_N = np.isnan(log_odds_NO[:, 0])
        thinking = tuple(node for node in wanted if is_nan_N[node] and node not in long)
        found.append(TreeScores(prm.outputs, log_odds_NO, long, thinking, prm.card.calibration))
    return found


def score_items(prm: PRM, items: Sequence[PackItem], sizes: Sequence[int], name: NameNode) -> list[np.ndarray]:
    """Score packed items. Returns the log-odds_NO of each tree, given the trees' sizes; NaN for nodes not read."""

    def owner(item: int, node: int) -> tuple[int, int]:
        originals = items[item].nodes
        return items[item].index, node if originals is None else originals[node]

    def forward(rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            batch = prm.module.collate(rows)
            batch = batch if prm.cache is None else prm.cache.attach(batch, rows)
            log_odds_RO: Tensor = prm.module(batch.to(prm.module.device))
            return log_odds_RO.double().cpu()

    scores = [np.full((size, len(prm.outputs)), np.nan) for size in sizes]
    for batch in batches_of(prm.module, rows_of(prm, items), prm.token_budget):
        for rows, log_odds_RO in halving(
            batch, forward, lambda row: f"a row of {len(row)} tokens with {name(*owner(*row.owners[0]))}"
        ):
            owners = [owner(*read) for row in rows for read in row.owners]
            check_finite(log_odds_RO, owners, name)
            for (index, node), values in zip(owners, log_odds_RO.tolist(), strict=True):
                scores[index][node] = values
    if prm.cache is not None:
        prm.cache.flush()
    return scores


def score_encoded(prm: PRM, trees: Sequence[EncodedTree]) -> list[np.ndarray]:
    """Compute the log-odds_NO of all nodes of encoded trees, which must fit the context."""
    items = [PackItem(tree, [(node,) for node in range(len(tree.ids))], i) for i, tree in enumerate(trees) if tree.ids]
    with prm.module.scoring():
        return score_items(prm, items, [len(tree.ids) for tree in trees], lambda i, node: f"tree {i}, node {node}")


@dataclass(frozen=True, slots=True)
class PackItem:
    """An encoded tree to pack, with the nodes to read."""

    tree: EncodedTree
    groups: Sequence[Group]
    index: int
    """The index of the tree that it belongs to."""
    nodes: tuple[int, ...] | None = None
    """For a window or a rendered tree: the node of the original tree that each of its nodes is."""


def check_on_too_long(choice: str) -> None:
    if reason := fault(choice, OnTooLong):
        raise ConfigError(f"on_too_long={choice!r} {reason}")


def fit(
    tree: StepTree,
    index: int,
    nodes: Sequence[int],
    family: Layout,
    context: int,
    choice: OnTooLong,
    thinking: str = SCORED,
) -> tuple[list[PackItem], list[int]]:
    """Return the items of one tree, whose paths all fit the context, and the nodes that were too long.

    `thinking` is the card's: unless it is "scored", thinking steps get no item.
    """
    if thinking != SCORED and any(CLOSE in step.text or OPEN in step.text for step in tree.nodes):
        return _fit_responses(tree, index, nodes, family, context, choice, thinking)
    encoded = encode_tree(tree, family)
    long = [node for node in nodes if encoded.path_tokens(node) > context]
    if long and choice == "error":
        raise DataError(
            f"{describe(tree, long[0])}: problem and steps up to here are {encoded.path_tokens(long[0])} tokens, "
            f"but the model's context is {context}. With on_too_long='window' it is scored after the last steps that "
            "fit.",
            reason="too-long",
        )
    too_long = set(long)
    groups = [(node,) for node in nodes if node not in too_long]
    items = [PackItem(encoded, groups, index)] if groups else []
    if choice == "window":
        items += _windows(tree, index, long, encoded, family, context)
    return items, long


def _windows(
    tree: StepTree, index: int, long: Sequence[int], encoded: EncodedTree, family: Layout, context: int
) -> list[PackItem]:
    """Lay out the nodes that are too long in windows: the problem, some earlier steps, and new ones until it is full.

    A node belongs to its parent's window if it fits there. Otherwise a new window starts, with the last steps before
    the node that take up at most `TAIL` of the room after the problem, or fewer, so that the node fits. So a window
    depends only on the path to a node: scores are the same in packed trees, in sessions and on servers.
    """
    search: set[int] = set()
    for node in long:
        while node != ROOT and node not in search and encoded.path_tokens(node) > context:
            search.add(node)
            node = tree.parents[node]
    prompt, room = len(encoded.prompt), TAIL * (context - len(encoded.prompt))
    depths = tree.depths()
    layouts: dict[int, tuple[int, int]] = {}
    """For each node: the first node of its window, and the tokens up to its end there."""
    wanted: dict[int, list[int]] = {}
    for node in sorted(search):
        parent, text = tree.parents[node], tree.nodes[node].text
        if parent in layouts:
            first, used = layouts[parent]
            ids, read = encode_step(text, depths[node] - depths[first], family)
            if used + read + 1 <= context:
                layouts[node] = first, used + len(ids)
                continue
        tail: list[int] = []
        stop = tree.parents[layouts[parent][0]] if parent in layouts else ROOT
        size, above = 0, parent
        while above != stop and (size := size + len(encoded.ids[above])) <= room:
            tail.append(above)
            above = tree.parents[above]
        tail.reverse()
        while True:
            used = prompt + sum(len(encode_step(tree.nodes[one].text, k, family)[0]) for k, one in enumerate(tail))
            ids, read = encode_step(text, len(tail), family)
            if used + read + 1 <= context:
                break
            if not tail:
                raise DataError(
                    f"{describe(tree, node)}: the problem and this step alone exceed the model's context of {context} "
                    "tokens",
                    reason="too-long",
                )
            tail = tail[1:]
        layouts[node] = tail[0] if tail else node, used + len(ids)
    for node in long:
        wanted.setdefault(layouts[node][0], []).append(node)
    items = []
    for first, reads in wanted.items():
        members = {first}
        for node in reads:
            while node not in members:
                members.add(node)
                node = tree.parents[node]
        originals = sorted(members)
        groups = [(originals.index(node),) for node in reads]
        items.append(PackItem(encode_tree(tree.only(originals), family), groups, index, tuple(originals)))
    return items


def _fit_responses(
    tree: StepTree, index: int, nodes: Sequence[int], family: Layout, context: int, choice: OnTooLong, thinking: str
) -> tuple[list[PackItem], list[int]]:
    """`fit` of the response steps, after as much of the thinking as `thinking` says."""
    is_thinking = thinking_nodes(tree)
    most = thinking_tokens(thinking)
    copies: list[int] = []
    """The node that each node of the rendered tree is made from."""
    parents: list[int] = []
    number: dict[int, int] = {}

    def add(node: int, parent: int) -> int:
        copies.append(node)
        parents.append(parent)
        return len(copies) - 1

    for node, parent in enumerate(tree.parents):
        if is_thinking[node]:
            continue
        if parent != ROOT and not is_thinking[parent]:
            number[node] = add(node, number[parent])
            continue
        tail: list[int] = []
        size, above = 0, parent
        while above != ROOT and (size := size + len(encode_step(tree.nodes[above].text, 0, family)[0])) <= most:
            tail.append(above)
            above = tree.parents[above]
        before = ROOT
        for one in reversed(tail):
            before = add(one, before)
        number[node] = add(node, before)
    rendered = StepTree(tree.tree_id, tree.problem, tuple(tree.nodes[node] for node in copies), tuple(parents), ())
    rendered = replace(rendered, name=tree.name, where=tree.where)
    items, long = fit(rendered, index, [number[n] for n in nodes if n in number], family, context, choice)
    mapped = [
        replace(item, nodes=tuple(copies[node] for node in item.nodes or range(len(item.tree.ids)))) for item in items
    ]
    return mapped, [copies[node] for node in long]


def pair_cost(module: PrmModule) -> float:
    """Estimate attention's work per (token, token) of a row, relative to the rest of the work per token.

    It is 0 where only visible tokens cost work: long rows are then no more expensive. A multiplication counts the same
    in attention as elsewhere; measured on a CPU with a narrow model, it costs 0.8 of the others.
    """
    if module.in_blocks or module.attention == "flex":
        return 0.0
    config = module.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pair = 4 * config.num_hidden_layers * config.num_attention_heads * head_dim
    embedding = module.backbone.get_input_embeddings().weight.numel()
    token = 2 * (sum(parameter.numel() for parameter in module.backbone.parameters()) - embedding)
    return float(pair / token)


def batches_of(module: PrmModule, rows: Sequence[Row], token_budget: int) -> list[list[Row]]:
    """Group the rows into forward passes."""
    return batch_rows(merge_rows(rows, token_budget) if module.attention == "flex" else rows, token_budget)


def check_finite(log_odds_RO: Tensor, owners: Sequence[tuple[int, int]], name: NameNode) -> None:
    """Raise an error that names the first step whose score is not finite."""
    bad_R = ~torch.isfinite(log_odds_RO).all(dim=1)
    if bool(bad_R.any()):
        first = int(bad_R.nonzero()[0, 0])
        raise ModelError(
            f"{name(*owners[first])}: the model's score is {log_odds_RO[first].tolist()}, not a finite number "
            "(broken weights, or an overflow of a 16-bit dtype: try bfloat16 or float32)"
        )


def memory_estimate(prm: PRM) -> int:
    """Estimate the peak memory of scoring in bytes: weights, and the activations and masks of one batch."""
    config = prm.module.config
    weights = sum(p.numel() * p.element_size() for p in prm.module.parameters())
    width = 8 * config.hidden_size + 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
    size = next(prm.module.parameters()).element_size()
    mask = 5 * prm.token_budget * min(prm.token_budget, prm.context) if prm.module.attention == "sdpa" else 0
    return int(weights + prm.token_budget * width * size + mask)
