"""What a pass through a transformer costs, from its sizes alone: floating-point operations and bytes.

Pure arithmetic, without torch. A multiplication and an addition count as two operations, as in torch's flop counter;
norms, activations and softmaxes are left out, as there. The model is a decoder of equal layers: attention, then a gated
or plain MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["dense", "flex", "blocks", "math"]
"""How attention runs: fused with a dense mask, flex attention, block by block on a CPU, or unfused."""
Way = Literal["ddp", "fsdp"]
"""A whole model per process, or one sharded over all (FSDP2)."""

BACKWARD = {"dense": 2.5, "flex": 2.5, "blocks": 2.5, "math": 2.0}
"""What the backward pass of attention costs, in forward passes: fused kernels compute the scores a second time."""
READ_FIRST = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")
"""The matrices of a layer that read its input."""
PARTS = ("weights", "gradients", "optimiser", "activations", "head", "temporary")


@dataclass(frozen=True)
class Matrix:
    """A linear layer's weights."""

    name: str
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a PRM."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    matrices: tuple[Matrix, ...]
    """The matrices of one layer, in the order in which they run."""
    small: int
    """The numbers in a layer's norms and biases."""
    embedding: int
    """The numbers in the embedding."""
    rest: int
    """The numbers in what is neither layer, embedding nor head, such as the last norm."""
    head: int
    """The numbers in the PRM's head; 0 where it is the embedding."""
    head_flops: int
    """Operations per read of the head's forward pass."""

    @property
    def linear(self) -> int:
        """The numbers in a layer's matrices."""
        return sum(matrix.size for matrix in self.matrices)

    @property
    def parameters(self) -> int:
        return self.layers * (self.linear + self.small) + self.embedding + self.rest + self.head

    @property
    def attended(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_size

    @property
    def intermediate(self) -> int:
        """The width of the MLP."""
        return self.matrices[-1].inputs

    @property
    def gated(self) -> bool:
        """Whether two matrices lead into the MLP, one of them as a gate."""
        return sum(matrix.outputs == self.intermediate for matrix in self.matrices[-3:-1]) == 2


@dataclass(frozen=True)
class Batch:
    """What one pass runs."""

    tokens: int
    """Including padding."""
    pairs: int
    """(query, key) products that attention computes per head and layer."""
    reads: int
    keys: int = 0
    """With kernel `blocks`: keys that are gathered, over all blocks."""

    def __add__(self, other: Batch) -> Batch:
        return Batch(
            self.tokens + other.tokens, self.pairs + other.pairs, self.reads + other.reads, self.keys + other.keys
        )


@dataclass(frozen=True)
class Setup:
    """How a model is held and trained; sizes are in bytes."""

    weights: int = 4
    """Per weight."""
    compute: int = 4
    """Per activation: less than `weights` in mixed precision."""
    kernel: Kernel = "dense"
    checkpointing: bool = False
    frozen: int = 0
    """The lowest layers that are not trained; the embedding is not either then."""
    kept: bool = False
    """Whether the frozen layers' states are read and not computed."""
    rank: int = 0
    """The rank of low-rank adapters; with 0 the weights themselves are trained."""
    targets: tuple[str, ...] = ()
    """The matrices that have adapters."""
    optimiser: int | None = None
    """Per trained weight; by default two averages in the dtype of the weights."""
    accumulates: bool = True
    """Whether an update has several passes, so that all gradients are there during the last one."""
    on_cpu: bool = False
    """A CPU's optimiser works on one tensor at a time."""

    @property
    def trained_bytes(self) -> int:
        """Per trained weight: adapters are never 16-bit."""
        return max(4, self.weights) if self.rank else self.weights


def adapter_size(matrix: Matrix, setup: Setup) -> int:
    """The numbers in a matrix's adapter."""
    return setup.rank * (matrix.inputs + matrix.outputs) if matrix.name in setup.targets else 0


def trained_parameters(model: ModelSizes, setup: Setup) -> int:
    """How many numbers the optimiser changes."""
    layers = model.layers - setup.frozen
    head = model.head or (model.embedding if setup.rank or setup.frozen else 0)  # a tied head is untied there
    if setup.rank:
        return layers * sum(adapter_size(matrix, setup) for matrix in model.matrices) + head
    upper = layers * (model.linear + model.small) + model.rest + head
    return upper if setup.frozen else upper + model.embedding


def held_parameters(model: ModelSizes, setup: Setup) -> int:
    """How many numbers the model has in training: adapters are more of them, and a head that is trained beside them
    is kept in its first state, too."""
    untied = 0 if model.head or not (setup.rank or setup.frozen) else model.embedding
    more = model.layers * sum(adapter_size(matrix, setup) for matrix in model.matrices)
    return model.parameters + untied + more + (model.head or untied) * bool(setup.rank)


# --- operations ---


def forward_flops(model: ModelSizes, batch: Batch) -> int:
    """Operations of a forward pass."""
    layer = 2 * batch.tokens * model.linear + 4 * batch.pairs * model.attended
    return model.layers * layer + batch.reads * model.head_flops


def training_flops(model: ModelSizes, batch: Batch, setup: Setup) -> int:
    """Operations of a forward and backward pass.

    A matrix costs its forward pass once more for the gradient of its input and, where it is trained, once more for its
    own. Gradient checkpointing runs every trained layer forward again, up to its last matrix.
    """
    tokens, trained = batch.tokens, model.layers - setup.frozen
    adapters = 2 * tokens * sum(adapter_size(matrix, setup) for matrix in model.matrices)
    attention = 4 * batch.pairs * model.attended
    forward = 2 * tokens * model.linear + adapters + attention
    own = 1 if setup.rank else 2
    backward = own * 2 * tokens * model.linear + 2 * adapters + int(BACKWARD[setup.kernel] * attention)
    again = forward - _not_run_again(model, tokens, setup) if setup.checkpointing else 0
    head = 3 * batch.reads * model.head_flops
    unused = _unused_input_gradients(model, tokens, setup) if trained else 0
    below = 0 if setup.kept else setup.frozen * forward
    return below + trained * (forward + backward + again) - unused + head


def _not_run_again(model: ModelSizes, tokens: int, setup: Setup) -> int:
    """The last product of a layer, whose result no gradient needs."""
    last = model.matrices[-1]
    has_adapter = setup.rank and last.name in setup.targets
    return 2 * tokens * (setup.rank * last.outputs if has_adapter else last.size)


def _unused_input_gradients(model: ModelSizes, tokens: int, setup: Setup) -> int:
    """With adapters nothing below the lowest trained layer is trained, so its input needs no gradient; under
    checkpointing it gets one all the same."""
    if not setup.rank or setup.checkpointing:
        return 0
    first = [matrix for matrix in model.matrices if matrix.name in READ_FIRST]
    with_adapter = sum(setup.rank * matrix.inputs for matrix in first if matrix.name in setup.targets)
    return 2 * tokens * (sum(matrix.size for matrix in first) + with_adapter)


# --- bytes ---


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    parts: dict[str, float]
    peak: float
    """Less than the sum of the parts where they are not there at the same time."""


def layer_activations(model: ModelSizes, setup: Setup, batch: Batch) -> float:
    """Bytes that one layer keeps for its backward pass."""
    hidden, width, compute = model.hidden, model.attended, setup.compute
    normed = 0 if setup.rank else setup.weights
    norms = 2 * hidden * (4 + normed + compute)  # input in 32 bits, normalised (for the scale's gradient), output
    mlp = (4 if model.gated else 2) * model.intermediate * compute
    attention = 2 * width * compute + 4 * model.heads  # queries, result, and a sum per head
    adapters = setup.rank * sum(matrix.name in setup.targets for matrix in model.matrices) * compute
    if setup.kernel == "blocks":
        return batch.tokens * (norms + mlp + attention + adapters + width * compute) + _gathered(model, setup, batch)
    return batch.tokens * (norms + mlp + attention + adapters + 2 * width * compute)


def _gathered(model: ModelSizes, setup: Setup, batch: Batch) -> float:
    """Keys and values that blocks of queries gather."""
    return 2 * batch.keys * model.attended * setup.compute


def training_memory(model: ModelSizes, batch: Batch, setup: Setup, *, way: Way = "ddp", count: int = 1) -> Memory:
    """Bytes at the peak of an update whose largest pass is `batch`, on one of `count` GPUs."""
    shards = count if way == "fsdp" else 1
    trained, layers = trained_parameters(model, setup), model.layers - setup.frozen
    optimiser = 2 * setup.trained_bytes if setup.optimiser is None else setup.optimiser
    layer = layer_activations(model, setup, batch)
    if setup.checkpointing:
        activations = layers * batch.tokens * model.hidden * setup.weights + layer
    else:
        activations = layers * layer
    backward = _backward_temporary(model, batch, setup) + _copies(model, trained, setup, way, count)
    step = _optimiser_temporary(model, trained, setup) / shards
    held = held_parameters(model, setup)
    weights = ((held - trained) * setup.weights + trained * setup.trained_bytes) / shards
    gradients = trained * setup.trained_bytes / shards
    head = batch.tokens * model.hidden * (4 + 3 * setup.weights) + 4 * batch.reads * 4 * model.hidden
    temporary = max(backward, step - activations - head)
    parts = (weights, gradients, trained * optimiser / shards, activations, head, temporary)
    both = activations + head + backward
    growing = gradients + max(both, step) if setup.accumulates else max(both, gradients + step)
    return Memory(dict(zip(PARTS, parts, strict=True)), weights + trained * optimiser / shards + growing)


def _backward_temporary(model: ModelSizes, batch: Batch, setup: Setup) -> float:
    """The widest gradients, the mask, and a weight's new gradient before it is added."""
    gradients = batch.tokens * (3 * model.intermediate + 2 * model.hidden) * setup.compute
    mask = 0 if setup.kernel in ("flex", "blocks") else batch.pairs * (1 + setup.compute)
    largest = max(matrix.size for matrix in model.matrices) * setup.trained_bytes
    return gradients + mask + (0 if setup.rank else largest)


def _copies(model: ModelSizes, trained: int, setup: Setup, way: Way, count: int) -> float:
    """Weights and gradients that are there twice: in 16 bits for mixed precision, in DDP's buckets, or gathered by
    FSDP, which casts as it gathers: two layers, the embedding and the head, and a layer's gradients."""
    layer = model.linear + model.small
    if way == "fsdp" and count > 1:
        root = model.embedding + model.rest + model.head
        return (2 * layer + root) * setup.compute + layer * (setup.compute + 4)
    layers = 1 if setup.rank and setup.checkpointing else model.layers
    mixed = layers * model.linear * setup.compute if setup.compute < setup.weights else 0
    return mixed + (trained * setup.trained_bytes if count > 1 else 0)


def _optimiser_temporary(model: ModelSizes, trained: int, setup: Setup) -> float:
    """AdamW's denominators: of all weights at once on a GPU, one tensor at a time on a CPU."""
    if setup.on_cpu:
        return 2.0 * max(model.embedding, *(matrix.size for matrix in model.matrices)) * setup.trained_bytes
    return float(trained * setup.trained_bytes)


def scoring_memory(model: ModelSizes, batch: Batch, setup: Setup) -> Memory:
    """Bytes at the peak of a forward pass without gradients."""
    width = 3 * model.hidden * max(4, setup.weights) + (3 * model.intermediate + 4 * model.attended) * setup.compute
    mask = 0 if setup.kernel in ("flex", "blocks") else batch.pairs * (1 + setup.compute)
    parts = {
        "weights": float(model.parameters * setup.weights), "activations": float(batch.tokens * width),
        "head": float(batch.tokens * model.hidden * setup.weights + 4 * batch.reads * 3 * model.hidden),
        "temporary": float(mask),
    }  # fmt: skip
    return Memory(parts, sum(parts.values()))


def cache_bytes(model: ModelSizes, tokens: int, setup: Setup) -> int:
    """Bytes of the attention keys and values (KV cache) of so many tokens."""
    return 2 * model.layers * model.kv_heads * model.head_size * tokens * setup.compute
