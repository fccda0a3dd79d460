"""The cost of one block on one device of a tensor-parallel group, ready to be scaled to any micro-batch.

    issue    = ops · op_seconds
    work     = Σ_op max(flops / (peak · efficiency), bytes / (bandwidth · efficiency), transcendentals · their seconds)
    forward  = max(issue, work), on a device that is a process of the host issue + work / threads
    backward = 2 · forward (and 1 more with recomputation)

plus the collectives that the cuts need: an all-reduce of each partial sum forward, of each entry's gradient backward.
Values scale linearly with the samples; weights don't.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum

import numpy as np

from partita.cluster.model import Device, Link
from partita.cost.collective import all_reduce_seconds
from partita.cost.flops import executed_fraction, op_flops
from partita.cost.kinds import ATTENTION, MATMULS, TRANSCENDENTAL, VIEWS
from partita.cost.saved import saved_tensors
from partita.graph.cuts import CutClass
from partita.graph.model import Graph, Op


@dataclass(frozen=True)
class BlockCost:
    """One block under tp, all sizes for the graph's samples and for one device.

    ``flops``, ``activation_bytes``, ``weight_bytes``, ``transcendental`` (elements of exp, tanh and their like) and
    ``attention`` have one entry an op that is issued.
    ``saved_bytes`` are kept for the backward pass, ``temporary_bytes`` exist for the gradients of one op at a time.
    ``reductions`` and ``entries`` are the bytes of the tensors that are all-reduced forward and backward.
    """

    flops: np.ndarray
    attention: np.ndarray
    activation_bytes: np.ndarray
    weight_bytes: np.ndarray
    transcendental: np.ndarray
    saved_bytes: float
    temporary_bytes: float
    reductions: tuple[float, ...]
    entries: tuple[float, ...]
    trained: int
    frozen: int
    cuts: tuple[str, ...]
    unknown: frozenset[str]

    def compute_seconds(self, device: Device, peak: float, ratio: float, threads: int = 1) -> float:
        """Forward seconds without collectives, for ``ratio`` times the graph's samples.

        ``threads`` work on one op of a device that is a process; one thread issues it.
        """
        curve = sorted(device.matmul_efficiency)
        starts = np.array([start for start, _ in curve])
        fractions = np.array([fraction for _, fraction in curve])
        flops = self.flops * ratio
        place = np.maximum(np.searchsorted(starts, flops / 1e9, side="right") - 1, 0)
        rate = peak * np.where(self.attention, device.attention_efficiency, fractions[place])
        moved = self.activation_bytes * ratio + self.weight_bytes
        seconds = np.maximum(flops / rate, moved / (device.memory_bytes_per_second * device.memory_efficiency))
        seconds = np.maximum(seconds, self.transcendental * ratio * device.transcendental_seconds)
        issue, work = len(flops) * device.op_seconds, fsum(seconds.tolist())
        return issue + work / threads if device.on_host else max(issue, work)

    def reduction_seconds(self, tp: int, link: Link, ratio: float) -> float:
        """Seconds of the forward pass's all-reduces."""
        return fsum(all_reduce_seconds(size * ratio, tp, link) for size in self.reductions)

    def entry_seconds(self, tp: int, link: Link, ratio: float) -> float:
        """Seconds of the backward pass's all-reduces."""
        return fsum(all_reduce_seconds(size * ratio, tp, link) for size in self.entries)


def split_fraction(classes: Sequence[CutClass], tp: int) -> Callable[[str], float]:
    """The part of a tensor that one of tp devices holds; a padded dim is rounded up."""
    found: dict[str, float] = {}
    if tp > 1:
        for cut in classes:
            fraction = ceil(cut.size / tp) / cut.size if cut.pads else 1 / tp
            found.update(dict.fromkeys(cut.dims, fraction))
    return lambda name: found.get(name, 1.0)


def block_cost(graph: Graph, block: str, classes: Sequence[CutClass], tp: int, item: Callable[[str], int]) -> BlockCost:
    """The cost of one block; ``classes`` are its ``block_cuts``, ``item`` gives the bytes of a dtype's element."""
    split = split_fraction(classes, tp)
    cut_ops = frozenset().union(*(cut.ops for cut in classes)) if tp > 1 else frozenset()

    def size(name: str) -> float:
        tensor = graph.tensor[name]
        return tensor.elements * item(tensor.dtype) * split(name)

    ops = graph.block_ops[block]
    issued = [op for op in ops if op.kind not in VIEWS]
    traffic = [_traffic(graph, op, size) for op in issued]
    saved = saved_tensors(graph, ops, split)
    (owner,) = (b for b in graph.blocks if b.name == block)
    local = {name: ceil(graph.tensor[name].elements * split(name)) for name in owner.parameters}
    return BlockCost(
        flops=np.array([_executed(graph, op) / (tp if op.name in cut_ops else 1) for op in issued]),
        attention=np.array([op.kind in ATTENTION for op in issued], dtype=bool),
        activation_bytes=np.array([activations for activations, _ in traffic]),
        weight_bytes=np.array([weights for _, weights in traffic]),
        transcendental=np.array([_transcendental(graph, op, split) for op in issued]),
        saved_bytes=fsum([*sorted(size(name) for name in saved.tensors), *saved.extra_bytes.values()]),
        temporary_bytes=max((_gradients(graph, op, size) for op in ops), default=0.0),
        reductions=tuple(size(name) for cut in classes for name in cut.reductions) if tp > 1 else (),
        entries=tuple(size(name) for cut in classes for name in cut.entries) if tp > 1 else (),
        trained=sum(count for name, count in local.items() if graph.tensor[name].gradient),
        frozen=sum(count for name, count in local.items() if not graph.tensor[name].gradient),
        cuts=tuple(cut.name for cut in classes) if tp > 1 else (),
        unknown=saved.unknown,
    )


def block_costs(
    graph: Graph, kinds: Sequence[int], classes: Mapping[int, Sequence[CutClass]], tp: int, item: Callable[[str], int]
) -> tuple[BlockCost, ...]:
    """One cost a block; blocks of one kind (``kinds[i]`` is the index of the block that stands for i) share theirs."""
    made: dict[int, BlockCost] = {}
    for kind in kinds:
        if kind not in made:
            made[kind] = block_cost(graph, graph.blocks[kind].name, classes[kind], tp, item)
    return tuple(made[kind] for kind in kinds)


def _executed(graph: Graph, op: Op) -> float:
    if op.kind not in MATMULS and op.kind not in ATTENTION:
        return 0.0
    return op_flops(graph, op) * executed_fraction(op)


def _transcendental(graph: Graph, op: Op, split: Callable[[str], float]) -> float:
    """Elements on which a transcendental function is computed."""
    name = op.inputs[0] if op.kind in TRANSCENDENTAL else None
    return graph.tensor[name].elements * split(name) if name else 0.0


def _traffic(graph: Graph, op: Op, size: Callable[[str], float]) -> tuple[float, float]:
    """Bytes that scale with the samples, and bytes of weights."""
    outputs = fsum(size(name) for name in op.outputs)
    if op.kind in ("embedding", "index", "gather", "index_select"):
        return 2 * outputs, 0.0  # only the rows that are looked up
    weights = fsum(size(name) for name in op.inputs if graph.tensor[name].role in ("parameter", "buffer"))
    inputs = fsum(size(name) for name in op.inputs if graph.tensor[name].role in ("value", "input"))
    return inputs + outputs, weights


def _gradients(graph: Graph, op: Op, size: Callable[[str], float]) -> float:
    """Bytes of the gradients of an op's outputs and of its inputs, which exist together while its backward runs."""
    if not any(graph.tensor[name].gradient for name in op.outputs):
        return 0.0
    return fsum(
        size(name)
        for name in (*dict.fromkeys(op.inputs), *op.outputs)
        if graph.tensor[name].gradient and graph.tensor[name].role != "parameter"
    )
