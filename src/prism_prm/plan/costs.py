"""FLOPs and bytes of a pass through a transformer, from its sizes alone, and the speed and memory of GPUs.

Pure arithmetic, without torch. As in torch's flop counter, a multiplication and an addition count as two operations,
and norms, activation functions and softmaxes do not count. The model is a decoder of equal layers: attention, then a
gated or plain MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prism_prm.config import Count, Positive, Range, check
from prism_prm.errors import ConfigError

Kernel = Literal["dense", "flex", "blocks", "math"]
"""The attention kernel: fused with a dense mask, flex attention, block by block on a CPU, or unfused."""
BACKWARD = {"dense": 2.5, "flex": 2.5, "blocks": 2.5, "math": 2.0}
"""The cost of attention's backward pass in forward passes. Fused kernels compute the scores twice."""
READ_FIRST = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")
"""The matrices that read a layer's input."""


@dataclass(frozen=True)
class Matrix:
    """The weights of a linear layer."""

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
    """Parameters in the norms and biases of a layer."""
    embedding: int
    """Parameters in the embedding."""
    rest: int
    """Parameters outside the layers, the embedding and the head, such as the last norm."""
    head: int
    """Parameters in the PRM's head; 0 if it is tied to the embedding."""
    head_flops: int
    """FLOPs of the head's forward pass per read."""

    @property
    def linear(self) -> int:
        """Parameters in the matrices of a layer."""
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
        """Whether the MLP has a gate."""
        return sum(matrix.outputs == self.intermediate for matrix in self.matrices[-3:-1]) == 2


@dataclass(frozen=True)
class Batch:
    """The size of one forward pass."""

    tokens: int
    """Including padding."""
    pairs: int
    """(query, key) products that attention computes per head and layer."""
    reads: int
    keys: int = 0
    """With kernel `blocks`: gathered keys, summed over all blocks."""

    def order(self) -> tuple[int, int]:
        """The sort key by size."""
        return self.tokens, self.pairs

    def __add__(self, other: Batch) -> Batch:
        return Batch(
            self.tokens + other.tokens, self.pairs + other.pairs, self.reads + other.reads, self.keys + other.keys
        )


@dataclass(frozen=True)
class Setup:
    """How a model is stored and trained; sizes are in bytes."""

    weights: int = 4
    """Bytes per weight."""
    compute: int = 4
    """Bytes per activation: less than `weights` in mixed precision."""
    kernel: Kernel = "dense"
    checkpointing: bool = False
    frozen: int = 0
    """Frozen lowest layers. With any, the embedding is frozen too."""
    kept: bool = False
    """Whether the frozen layers' activations are read from a cache."""
    rank: int = 0
    """The rank of low-rank adapters. With 0, the weights themselves are trained."""
    targets: tuple[str, ...] = ()
    """The matrices that have adapters."""
    optimizer: int | None = None
    """Bytes per trained weight. By default two averages in the dtype of the weights."""
    accumulates: bool = True
    """Whether an update has several passes, so that all gradients are in memory during the last one."""
    on_cpu: bool = False
    """On a CPU the optimizer updates one tensor at a time."""
    gpus: int = 1
    sharded: bool = False
    """Whether the GPUs share one model (FSDP2) instead of each holding a copy (DDP)."""

    @property
    def trained_bytes(self) -> int:
        """Bytes per trained weight; adapters are never 16-bit."""
        return max(4, self.weights) if self.rank else self.weights


def adapter_parameters(model: ModelSizes, setup: Setup) -> int:
    """Parameters in the adapters of one layer."""
    return setup.rank * sum(matrix.inputs + matrix.outputs for matrix in model.matrices if matrix.name in setup.targets)


def trained_parameters(model: ModelSizes, setup: Setup) -> int:
    """Parameters that the optimizer updates."""
    layers = model.layers - setup.frozen
    head = model.head or (model.embedding if setup.rank or setup.frozen else 0)  # a tied head is untied there
    if setup.rank:
        return layers * adapter_parameters(model, setup) + head
    upper = layers * (model.linear + model.small) + (model.rest if layers else 0) + head
    return upper if setup.frozen else upper + model.embedding


def held_parameters(model: ModelSizes, setup: Setup) -> int:
    """Parameters in memory during training. With adapters, these and a copy of the original head count too."""
    untied = 0 if model.head or not (setup.rank or setup.frozen) else model.embedding
    adapters = model.layers * adapter_parameters(model, setup)
    return model.parameters + untied + adapters + (model.head or untied) * bool(setup.rank)


def forward_flops(model: ModelSizes, batch: Batch) -> int:
    """FLOPs of a forward pass."""
    layer = 2 * batch.tokens * model.linear + 4 * batch.pairs * model.attended
    return model.layers * layer + batch.reads * model.head_flops


def training_flops(model: ModelSizes, batch: Batch, setup: Setup) -> int:
    """FLOPs of a forward and backward pass.

    The gradient of a matrix's input costs as much as its forward pass, and so does the gradient of a trained matrix.
    Gradient checkpointing runs every trained layer forward again, up to its last matrix.
    """
    tokens, trained = batch.tokens, model.layers - setup.frozen
    adapters = 2 * tokens * adapter_parameters(model, setup)
    attention = 4 * batch.pairs * model.attended
    forward = 2 * tokens * model.linear + adapters + attention
    own = 1 if setup.rank else 2
    layer = forward + own * 2 * tokens * model.linear + 2 * adapters + int(BACKWARD[setup.kernel] * attention)
    unused = 0
    if setup.checkpointing:
        last = model.matrices[-1]  # no gradient needs the output of a layer's last matrix
        has_adapter = setup.rank and last.name in setup.targets
        layer += forward - 2 * tokens * (setup.rank * last.outputs if has_adapter else last.size)
    elif setup.rank and trained:  # the input of the lowest trained layer needs no gradient
        first = [matrix for matrix in model.matrices if matrix.name in READ_FIRST]
        with_adapter = sum(setup.rank * matrix.inputs for matrix in first if matrix.name in setup.targets)
        unused = 2 * tokens * (sum(matrix.size for matrix in first) + with_adapter)
    below = 0 if setup.kept else setup.frozen * forward
    return below + trained * layer - unused + 3 * batch.reads * model.head_flops


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    parts: dict[str, float]
    peak: float
    """Less than the sum of the parts if they are not in memory at the same time."""


def training_memory(model: ModelSizes, batch: Batch, setup: Setup) -> Memory:
    """Bytes on one GPU at the peak of an update whose largest pass is `batch`."""
    hidden, width, compute = model.hidden, model.attended, setup.compute
    trained, layers = trained_parameters(model, setup), model.layers - setup.frozen
    shards = setup.gpus if setup.sharded else 1
    trained_weights = trained * setup.trained_bytes
    weights = ((held_parameters(model, setup) - trained) * setup.weights + trained_weights) / shards
    gradients = trained_weights / shards
    optimizer = trained * (2 * setup.trained_bytes if setup.optimizer is None else setup.optimizer) / shards

    # What one layer keeps for its backward pass. A norm keeps its 32-bit input, the normalized values (for the gradient
    # of its scale), and its output.
    norms = 2 * hidden * (4 + (0 if setup.rank else setup.weights) + compute)
    mlp = (4 if model.gated else 2) * model.intermediate * compute
    attention = 2 * width * compute + 4 * model.heads  # queries, output, and a sum per head
    adapters = setup.rank * sum(matrix.name in setup.targets for matrix in model.matrices) * compute
    layer = batch.tokens * (norms + mlp + attention + adapters)
    if setup.kernel == "blocks":  # blocks of queries gather their keys and values
        layer += batch.tokens * width * compute + 2 * batch.keys * width * compute
    else:
        layer += batch.tokens * 2 * width * compute
    activations = layers * batch.tokens * hidden * setup.weights + layer if setup.checkpointing else layers * layer
    head = batch.tokens * hidden * (4 + 3 * setup.weights) + 4 * batch.reads * 4 * hidden

    # The backward pass: the widest gradients, the mask, and a weight's new gradient before it is accumulated.
    backward = batch.tokens * (3 * model.intermediate + 2 * hidden) * compute + _mask(batch, setup)
    if not setup.rank:
        backward += max(matrix.size for matrix in model.matrices) * setup.trained_bytes
    # Second copies of weights and gradients: gathered by FSDP, which casts as it gathers (two layers, the embedding and
    # the head, and a layer's gradients); or in 16 bits for mixed precision, and in DDP's buckets.
    if setup.sharded and setup.gpus > 1:
        numbers = model.linear + model.small
        root = model.embedding + model.rest + model.head
        backward += (2 * numbers + root) * compute + numbers * (compute + 4)
    else:
        if compute < setup.weights:
            backward += (1 if setup.rank and setup.checkpointing else model.layers) * model.linear * compute
        if setup.gpus > 1:
            backward += trained_weights
    # AdamW's denominators: of all weights at once on a GPU, one tensor at a time on a CPU.
    largest = max(model.embedding, *(matrix.size for matrix in model.matrices))
    step = (2 * largest * setup.trained_bytes if setup.on_cpu else trained_weights) / shards

    both = activations + head + backward
    growing = gradients + max(both, step) if setup.accumulates else max(both, gradients + step)
    temporary = max(backward, step - activations - head)
    parts = {
        "weights": weights, "gradients": gradients, "optimizer": optimizer, "activations": activations, "head": head,
        "temporary": temporary,
    }  # fmt: skip
    return Memory(parts, weights + optimizer + growing)


def _mask(batch: Batch, setup: Setup) -> int:
    return 0 if setup.kernel in ("flex", "blocks") else batch.pairs * (1 + setup.compute)


def scoring_memory(model: ModelSizes, batch: Batch, setup: Setup) -> Memory:
    """Bytes at the peak of a forward pass without gradients."""
    width = 3 * model.hidden * max(4, setup.weights) + (3 * model.intermediate + 4 * model.attended) * setup.compute
    parts = {
        "weights": float(model.parameters * setup.weights), "activations": float(batch.tokens * width),
        "head": float(batch.tokens * model.hidden * setup.weights + 4 * batch.reads * 3 * model.hidden),
        "temporary": float(_mask(batch, setup)),
    }  # fmt: skip
    return Memory(parts, sum(parts.values()))


def cache_bytes(model: ModelSizes, tokens: int, setup: Setup) -> int:
    """Bytes of the KV cache of `tokens` tokens."""
    return 2 * model.layers * model.kv_heads * model.head_size * tokens * setup.compute


GIB = 2**30
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
RESERVED_GIB = 2.0
"""Memory that tensors cannot use: the driver's context, communication buffers, fragmentation."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, with its peak speed without sparsity."""

    memory: float
    """GiB."""
    bf16: float
    """TFLOP/s with 16-bit tensor cores."""
    fp32: float
    """TFLOP/s in 32 bits without tensor cores."""
    bandwidth: float
    """GB/s."""


GPUS: dict[str, Gpu] = {
    "rtx3090": Gpu(24, 71, 35.6, 936),
    "rtx4090": Gpu(24, 165, 82.6, 1008),
    "l4": Gpu(24, 121, 30.3, 300),
    "l40s": Gpu(48, 362, 91.6, 864),
    "a6000": Gpu(48, 155, 38.7, 768),
    "a100-40": Gpu(40, 312, 19.5, 1555),
    "a100-80": Gpu(80, 312, 19.5, 2039),
    "h100": Gpu(80, 989, 67, 3350),
    "h200": Gpu(141, 989, 67, 4800),
    "b200": Gpu(180, 2250, 75, 8000),
}
"""By name. H100, H200 and B200 are the SXM modules."""


@dataclass(frozen=True)
class Fit:
    """A way to run, the memory that it needs, and whether the GPU has it."""

    name: str
    memory: Memory
    fits: bool


@dataclass(frozen=True)
class Cluster:
    """The GPUs to plan for."""

    gpu: str = "a6000"
    """The GPU: rtx3090, rtx4090, l4, l40s, a6000, a100-40, a100-80, h100, h200 or b200. Any other name, such as cpu,
    needs gpu_memory and gpu_tflops."""
    count: Count = 1
    """The number of GPUs."""
    gpu_memory: Positive | None = None
    """The memory of one GPU in GiB. By default that of the named GPU."""
    gpu_tflops: Positive | None = None
    """The peak TFLOP/s of one GPU in the run's precision. By default that of the named GPU."""
    utilization: Annotated[float, Range(above=0, most=1)] = 0.4
    """The fraction of the peak speed that the run reaches, communication and waiting for data included."""

    def __post_init__(self) -> None:
        check(self)
        if self.gpu not in GPUS and (self.gpu_memory is None or self.gpu_tflops is None):
            raise ConfigError(
                f"Unknown GPU {self.gpu!r}. Known: {', '.join(GPUS)}. For any other, give its memory and speed: "
                "--set plan.gpu_memory=… --set plan.gpu_tflops=…"
            )

    @property
    def on_cpu(self) -> bool:
        return self.gpu == "cpu"

    @property
    def room(self) -> float:
        """Bytes of one GPU that tensors can use."""
        return ((self.gpu_memory or GPUS[self.gpu].memory) - RESERVED_GIB) * GIB

    def fit(self, name: str, memory: Memory) -> Fit:
        return Fit(name, memory, memory.peak <= self.room)

    def speed(self, compute: int) -> float:
        """FLOP/s that one GPU reaches with `compute` bytes per number."""
        known = GPUS.get(self.gpu)
        peak = self.gpu_tflops or (known.bf16 if compute <= 2 else known.fp32)  # type: ignore[union-attr]
        return peak * 1e12 * self.utilization

    @property
    def bandwidth(self) -> float | None:
        """Peak bytes per second that one GPU reads, if known."""
        return GPUS[self.gpu].bandwidth * 1e9 if self.gpu in GPUS else None
