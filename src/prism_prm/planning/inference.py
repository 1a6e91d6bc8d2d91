"""Plans scoring, exactly, and search, from a stated length of its solutions."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from prism_prm.costs import Batch, Memory, ModelSizes, Setup, cache_bytes, forward_flops, scoring_memory
from prism_prm.names import named_places
from prism_prm.planning.counting import CountingScorer, kernel_of
from prism_prm.planning.fit import BYTES
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import Fit, Plan, Stage
from prism_prm.planning.training import SCORE_BYTES
from prism_prm.prms.known_sizes import Stand
from prism_prm.prms.skeleton import Skeleton, backbone_sizes, load_skeleton
from prism_prm.scorer.settings import LoadSettings
from prism_prm.scorer.store import Request, ScoreStore
from prism_prm.scorer.table import trees_to_score
from prism_prm.search.recipe import SearchRecipe
from prism_prm.tasks import load_task
from prism_prm.types import Bars, no_bars

POOL_BYTES = 6
"""Bytes of text per token in a pool of solutions."""


def plan_scoring(
    prm: str, inputs: Sequence[str], cluster: Cluster, stand: Stand, loading: LoadSettings, bars: Bars = no_bars
) -> Plan:
    """What `prism score` will take."""
    skeleton = load_skeleton(
        prm, stand=stand, family=loading.family, attn=loading.attn, on_cpu=cluster.on_cpu,
        token_budget=loading.token_budget, context=loading.context,
    )  # fmt: skip
    skeleton.on_too_long = loading.on_too_long
    trees = trees_to_score(inputs)
    requests = [Request.all_of(tree) for tree in trees]
    counter = CountingScorer(skeleton)
    with tempfile.TemporaryDirectory() as folder, bars("trees", len(trees)) as advance:
        ScoreStore(Path(folder), counter).fill(requests, advance=advance)
    setup = _setup(loading.dtype, skeleton)
    sizes, tally = skeleton.sizes, counter.tally
    flops = forward_flops(sizes, tally.total)
    shares = -(-counter.portions // cluster.count) * cluster.count / max(1, counter.portions)
    hours = flops * shares / cluster.count / cluster.speed(setup.compute) / 3600
    stage = Stage("scoring", tally.total.tokens, tally.separate, flops, hours, efficiency=min(1.0, 1 / shares))
    memory = scoring_memory(sizes, tally.largest, setup)
    notes = [f"not the model's own: {note}" for note in skeleton.notes]
    fit = Fit("a copy per GPU", memory, memory.peak <= cluster.room)
    return Plan(
        "scoring", {"name": prm, "family": skeleton.family.name, "parameters": sizes.parameters}, cluster, [stage],
        [fit], _scoring_remedies(sizes, tally.largest, setup, cluster),
        {"scores": float(SCORE_BYTES * sum(len(request.nodes) for request in requests))}, notes,
    )  # fmt: skip


def _setup(dtype: str | None, skeleton: Skeleton) -> Setup:
    """How a PRM is held for scoring: in 16 bits unless a dtype is named."""
    size = BYTES.get(dtype or "", 2)
    return Setup(weights=size, compute=size, kernel=kernel_of(skeleton.module))


def _scoring_remedies(sizes: ModelSizes, batch: Batch, setup: Setup, cluster: Cluster) -> list[str]:
    """What makes scoring fit: fewer tokens per pass, 16 bits, or the model over several GPUs."""
    if scoring_memory(sizes, batch, setup).peak <= cluster.room:
        return []
    found = []
    tokens = batch.tokens // 2
    while tokens >= 1024:
        smaller = scoring_memory(sizes, Batch(tokens, batch.pairs * tokens // batch.tokens, batch.reads), setup)
        if smaller.peak <= cluster.room:
            found.append(f"--token-budget {tokens}: {smaller.peak / 2**30:.1f} GiB")
            break
        tokens //= 2
    if setup.weights > 2:
        half = scoring_memory(sizes, batch, Setup(2, 2, setup.kernel))
        if half.peak <= cluster.room:
            found.append(f"--dtype bfloat16: {half.peak / 2**30:.1f} GiB")
    needed = -(-int(sizes.parameters * setup.weights) // int(0.8 * cluster.room))
    return found or [f"--device-map auto over {max(2, needed)} GPUs"]


def plan_search(
    recipe: SearchRecipe, cluster: Cluster, stands: dict[str, Stand], solution_tokens: int, bars: Bars = no_bars
) -> Plan:
    """What `prism search` will take if solutions have so many tokens; the last of the recipe's sizes decides memory."""
    del bars
    problems = len(load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field).problems[: recipe.limit])
    search = recipe.search
    length = min(solution_tokens, search.sampling.max_tokens)
    written = {n: problems * n * length * (1 + search.lookahead) for n in recipe.ns}
    if search.max_policy_tokens:
        written = {n: min(tokens, problems * search.max_policy_tokens) for n, tokens in written.items()}
    rows = min(recipe.at_once, problems) * max(recipe.ns)
    stages: list[Stage] = []
    fits: list[Fit] = []
    notes = [f"a solution is taken to have {length:,} tokens (--solution-tokens) after a prompt of {_PROMPT}"]
    parameters: dict[str, int] = {}
    kind, _, place = recipe.policy.name.partition(":")
    if kind == "hf":
        sizes, _, said = backbone_sizes(place, stands.get(place, stands.get("", Stand())))
        setup = Setup(weights=BYTES.get(recipe.policy.dtype or "", 2), compute=BYTES.get(recipe.policy.dtype or "", 2))
        notes += [f"policy, not its own: {note}" for note in said]
        stages += [_writing(n, tokens, length, rows, problems, sizes, setup, cluster) for n, tokens in written.items()]
        fits.append(_cached("policy", sizes, setup, rows * (length + _PROMPT), rows, cluster))
        parameters["policy"] = sizes.parameters
    else:
        notes.append(f"the policy is served ({recipe.policy.name}); its cost is not counted")
    for name, prm in named_places(recipe.prm).items():
        skeleton = load_skeleton(prm, stand=stands.get(prm, stands.get("", Stand())))
        setup = _setup(None, skeleton)
        notes += [f"{name}, not its own: {note}" for note in skeleton.notes]
        stages += [_judging(name, n, tokens, length, skeleton.sizes, setup, cluster) for n, tokens in written.items()]
        fits.append(_cached(name, skeleton.sizes, setup, rows * (length + _PROMPT), rows, cluster))
        parameters[name] = skeleton.sizes.parameters
    total = Memory({"all models": sum(one.memory.peak for one in fits)}, sum(one.memory.peak for one in fits))
    fits.append(Fit("all on one GPU", total, total.peak <= cluster.room))
    remedies = [] if fits[-1].fits else _search_remedies(recipe, fits, cluster)
    notes.append("one process searches: further GPUs do not make it faster, except behind a server")
    pools = float(POOL_BYTES * sum(written.values()))
    return Plan(
        "search", {"name": recipe.policy.name, "parameters": parameters}, cluster, stages, fits, remedies,
        {"pools": pools}, notes,
    )  # fmt: skip


_PROMPT = 200
"""Tokens that a problem and the layout around it are taken to have."""


def _attended(tokens: int, length: int) -> int:
    """(query, key) products of solutions of `length` tokens: each token sees the prompt and what is before it."""
    return tokens * (_PROMPT + length // 2)


def _writing(
    n: int, tokens: int, length: int, rows: int, problems: int, sizes: ModelSizes, setup: Setup, cluster: Cluster
) -> Stage:
    """Decoding: a pass per token reads all weights and the KV cache, which takes longer than the arithmetic."""
    flops = forward_flops(sizes, Batch(tokens, _attended(tokens, length), tokens))
    seconds = flops / cluster.speed(setup.compute)
    if cluster.bandwidth:
        in_step = max(1, min(rows, problems * n))
        read = sizes.parameters * setup.weights + cache_bytes(sizes, in_step * (_PROMPT + length // 2), setup)
        seconds = max(seconds, tokens / in_step * read / (cluster.bandwidth * cluster.utilisation))
    return Stage(f"writing, n = {n}", tokens, 0, flops, seconds / 3600)


def _judging(name: str, n: int, tokens: int, length: int, sizes: ModelSizes, setup: Setup, cluster: Cluster) -> Stage:
    """In sessions and packed trees every token runs once; else each step would run its whole prefix again."""
    flops = forward_flops(sizes, Batch(tokens, _attended(tokens, length), 0))
    return Stage(f"{name}, n = {n}", tokens, 0, flops, flops / cluster.speed(setup.compute) / 3600)


def _cached(name: str, sizes: ModelSizes, setup: Setup, tokens: int, rows: int, cluster: Cluster) -> Fit:
    """Weights and the KV cache of everything that is open at once."""
    parts = {
        "weights": float(sizes.parameters * setup.weights), "KV cache": float(cache_bytes(sizes, tokens, setup)),
        "temporary": float(4 * rows * sizes.head_flops // (2 * sizes.hidden)),
    }  # fmt: skip
    peak = sum(parts.values())
    return Fit(name, Memory(parts, peak), peak <= cluster.room)


def _search_remedies(recipe: SearchRecipe, fits: Sequence[Fit], cluster: Cluster) -> list[str]:
    weights = sum(one.memory.parts.get("weights", 0.0) for one in fits)
    growing = sum(one.memory.parts.get("KV cache", 0.0) for one in fits)
    if weights < cluster.room:
        fewer = int(recipe.at_once * (cluster.room - weights) / growing)
        if fewer >= 1:
            return [f"--at-once {fewer}"]
    return ["the policy behind a server on other GPUs (--policy openai:…)", "fewer PRMs per run"]
