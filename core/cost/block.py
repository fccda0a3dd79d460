"""The cost of one block on one device of those that share it, ready to be scaled to any micro-batch.

    issue    = ops · op_seconds
    work     = Σ_op max(flops / (peak · efficiency), bytes / (bandwidth · efficiency), transcendentals · their seconds)
    forward  = max(issue, work), on a device that is a process of the host issue + work / threads
    backward = 2 · forward (and 1 more with recomputation)

On a device that was measured a profile's seconds and kept bytes go before these, where it has the block; otherwise its
rates of single kernels give the work of each pass.

plus the collectives that the cuts need: an all-reduce of each partial sum forward, of each entry's gradient backward;
others where the sequence or the samples are divided too. Values scale linearly with the samples; weights don't.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum

import numpy as np

from partita.cluster.model import Device, Link
from partita.cost.attention import scores
from partita.cost.collective import all_reduce_seconds
from partita.cost.division import Along, Division, along_sequence, split, tensor_division
from partita.cost.exchange import Exchange, exchanges
from partita.cost.kept import kept
from partita.cost.kinds import ATTENTION, VIEWS
from partita.cost.rated import pass_seconds
from partita.cost.shape import block_shape
from partita.cost.work import Kernel, copies, kernels
from partita.graph.attention import insides
from partita.graph.cuts import CutClass
from partita.graph.model import Graph, Op
from partita.profile.measured import BlockShape, Measured
from partita.profile.rates import Rates


def _none() -> np.ndarray:
    return np.zeros(0, dtype=bool)


@dataclass(frozen=True)
class BlockCost:
    """One block under a division, all sizes for the graph's samples and for one device.

    ``flops``, ``activation_bytes``, ``weight_bytes``, ``transcendental`` (elements of exp, tanh and their like),
    ``attention``, ``repeated`` (in the backward pass, whatever the block's own recomputation) and ``weighted`` (it has
    a gradient of weights) have one entry a kernel that is issued.
    ``issued`` are those kernels, and the ones that a graph doesn't name; ``samples`` are the graph's.
    ``saved_bytes`` are kept for the backward pass, of which ``shared_bytes`` are as many whatever the samples;
    ``temporary_bytes`` exist for the gradients of one op at a time and for what is computed again. ``reductions`` and
    ``entries`` are the bytes of the tensors that are all-reduced over the tensor axis forward and backward;
    ``exchanges`` all other collectives. ``trains``: a gradient flows through it; a block of a pass that only recycles
    has no backward pass and keeps nothing.
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
    repeated: np.ndarray = field(default_factory=_none)
    weighted: np.ndarray = field(default_factory=_none)
    exchanges: tuple[Exchange, ...] = ()
    trains: bool = True
    issued: tuple[Kernel, ...] = ()
    item_bytes: int = 2
    shape: BlockShape | None = None
    samples: int = 1
    shared_bytes: float = 0.0

    def compute_seconds(self, device: Device, peak: float, ratio: float, threads: int = 1) -> float:
        """Forward seconds without collectives, for ``ratio`` times the graph's samples.

        ``threads`` work on one op of a device that is a process; one thread issues it.
        """
        return self.passes(device, peak, ratio, threads)[0]

    def passes(self, device: Device, peak: float, ratio: float, threads: int = 1) -> tuple[float, float]:
        """Forward and backward seconds without collectives: measured, by measured rates, or by the device's figures."""
        if device.measured is not None:
            issue = len(self.issued) * device.op_seconds
            if (found := self._profiled(device.measured, ratio, threads, issue)) is not None:
                return found
        forward = self._all_seconds(device, peak, ratio, threads)
        return forward, 2 * forward

    def _profiled(self, measured: Measured, ratio: float, threads: int, issue: float) -> tuple[float, float] | None:
        """Both passes by a profile; None: it says nothing of this block. ``issue``: seconds of issuing the forward."""
        rates = measured.rates if self.issued else None
        block, micro_batch = measured.find(self.shape, threads), ratio * self.samples
        if block is None:
            return None if rates is None else self._rated(rates, ratio, issue)
        largest = block.samples[-1].micro_batch
        if rates is None or micro_batch <= largest:
            return measured.seconds(block, micro_batch, issue)
        found = measured.seconds(block, largest, issue)
        here, there = (self._rated(rates, at, issue) for at in (ratio, largest / self.samples))
        return found[0] * here[0] / there[0], found[1] * here[1] / there[1]

    def _rated(self, rates: Rates, ratio: float, issue: float) -> tuple[float, float]:
        """Both passes by single kernels' rates."""
        each = [pass_seconds(kernel, rates, ratio, self.item_bytes) for kernel in self.issued]
        return max(issue, fsum(f for f, _ in each)), max(2 * issue, fsum(b for _, b in each))

    def accumulate_seconds(self, device: Device, micro_batches: int) -> float:
        """Seconds, in each of several micro-batches, of adding the gradients of weights to those that are there.

        A block measured alone has nothing to add them to. Without a profile it is not counted.
        """
        if device.measured is None or micro_batches == 1:
            return 0.0
        rates = device.measured.rates
        speed = rates.pointwise_bytes_per_second if rates else device.memory_bytes_per_second * device.memory_efficiency
        return 3.0 * self.trained * self.item_bytes / speed

    def kept_bytes(self, device: Device, ratio: float) -> float:
        """Bytes kept for the backward pass of that many samples: measured, or ``saved_bytes`` of them. What several
        blocks of a stage keep of a value that all samples share counts in each."""
        measured = device.measured
        found = None if measured is None else measured.kept_bytes(self.shape, ratio * self.samples)
        return (self.saved_bytes - self.shared_bytes) * ratio + self.shared_bytes if found is None else found

    def repeated_seconds(self, device: Device, peak: float, ratio: float, threads: int = 1) -> float:
        """Seconds of what the backward pass computes again: of a measured forward the part that the model gives it."""
        found = self._seconds(device, peak, ratio, threads, self.repeated)
        return found * self._correction(device, peak, ratio, threads, 0) if found else 0.0

    def weight_seconds(self, device: Device, peak: float, ratio: float, threads: int = 1) -> float:
        """Backward seconds of the gradients of weights: as much as the forward of the products that have them."""
        found = self._seconds(device, peak, ratio, threads, self.weighted)
        return found * self._correction(device, peak, ratio, threads, 1) if found else 0.0

    def _correction(self, device: Device, peak: float, ratio: float, threads: int, of: int) -> float:
        """How many times longer than by the device's figures a pass takes by its profile."""
        if device.measured is None:
            return 1.0
        return self.passes(device, peak, ratio, threads)[of] / (
            (1 + of) * self._all_seconds(device, peak, ratio, threads)
        )

    def _all_seconds(self, device: Device, peak: float, ratio: float, threads: int) -> float:
        return self._seconds(device, peak, ratio, threads, np.ones(len(self.flops), dtype=bool))

    def _seconds(self, device: Device, peak: float, ratio: float, threads: int, among: np.ndarray) -> float:
        if not among.any():
            return 0.0
        curve = sorted(device.matmul_efficiency)
        starts = np.array([start for start, _ in curve])
        fractions = np.array([fraction for _, fraction in curve])
        flops = self.flops[among] * ratio
        place = np.maximum(np.searchsorted(starts, flops / 1e9, side="right") - 1, 0)
        rate = peak * np.where(self.attention[among], device.attention_efficiency, fractions[place])
        moved = self.activation_bytes[among] * ratio + self.weight_bytes[among]
        seconds = np.maximum(flops / rate, moved / (device.memory_bytes_per_second * device.memory_efficiency))
        seconds = np.maximum(seconds, self.transcendental[among] * ratio * device.transcendental_seconds)
        issue, work = len(flops) * device.op_seconds, fsum(seconds.tolist())
        return issue + work / threads if device.on_host else max(issue, work)

    def reduction_seconds(self, tp: int, link: Link, ratio: float) -> float:
        """Seconds of the forward pass's all-reduces."""
        return fsum(all_reduce_seconds(size * ratio, tp, link) for size in self.reductions)

    def entry_seconds(self, tp: int, link: Link, ratio: float) -> float:
        """Seconds of the backward pass's all-reduces."""
        return fsum(all_reduce_seconds(size * ratio, tp, link) for size in self.entries)

    def exchange_seconds(self, phase: str, groups: Mapping[str, tuple[int, Link]], ratio: float) -> float:
        """Seconds of a pass's other collectives; ``groups`` are the size and the link of each axis."""
        return fsum(found.seconds(*groups[found.axis], ratio) for found in self.exchanges if found.phase == phase)


def block_cost(graph: Graph, block: str, classes: Sequence[CutClass], tp: int, item: Callable[[str], int]) -> BlockCost:
    """The cost of one block cut over tp devices; ``item`` gives the bytes of a dtype's element."""
    return divided_cost(graph, block, classes, tensor_division(classes, tp), item)


def divided_cost(
    graph: Graph, block: str, classes: Sequence[CutClass], division: Division, item: Callable[[str], int],
    along: Along | None = None,
) -> BlockCost:  # fmt: skip
    """The cost of one block under a division; ``classes`` are its ``block_cuts``, ``along`` the graph's
    ``along_sequence``, if known already."""
    if along is None:
        along = along_sequence(graph) if division.sequence * division.context > 1 else {}
    part = split(graph, classes, division, along)
    cut_of = {cut.name: cut for cut in division.classes}
    chosen = [cut for cut in classes if cut.name in cut_of]
    of_op = {name: cut for cut in chosen for name in cut.ops}
    ops = graph.block_ops[block]
    attentions = insides(graph, block) if division.selective else ()
    issued: list[Kernel] = []
    for op in ops:
        if op.kind not in VIEWS:
            found = of_op.get(op.name)
            cut, inside = (cut_of[found.name], frozenset(found.dims)) if found else (None, frozenset[str]())
            again = any(op.name in one for one in attentions)
            issued += kernels(graph, op, division, cut, part, inside, item, along, again)
    held = kept(graph, ops, chosen, division, part, item, attentions)
    plain, others = exchanges(graph, block, chosen, division, part, item, along)
    (owner,) = (b for b in graph.blocks if b.name == block)
    local = {name: ceil(graph.tensor[name].elements * part.parameter(name)) for name in owner.parameters}

    def gradients(op: Op) -> float:
        found = of_op.get(op.name)
        shards = cut_of[found.name].shards if found else 1
        share = part.use if found else part.rest
        whole = _gradients(graph, op, share, item)
        if division.attention == "unfused" and op.kind in ATTENTION and whole:
            # Of the scores: softmax's backward kernel writes it where that of its result was.
            width = item(graph.tensor[op.inputs[0]].dtype)
            whole += width * scores(graph, op).elements * share(op.inputs[0])
        if op.kind == "cross_entropy" and whole:
            # The gradient of the log-probabilities is there beside that of the logits.
            logits = graph.tensor[op.inputs[0]]
            whole += item(logits.dtype) * logits.elements * share(op.inputs[0])
        return whole / shards

    return BlockCost(
        flops=np.array([kernel.flops for kernel in issued]),
        attention=np.array([kernel.attention for kernel in issued], dtype=bool),
        activation_bytes=np.array([kernel.activation_bytes for kernel in issued]),
        weight_bytes=np.array([kernel.weight_bytes for kernel in issued]),
        transcendental=np.array([kernel.transcendental for kernel in issued]),
        saved_bytes=held.saved_bytes,
        temporary_bytes=held.again_bytes + max((gradients(op) for op in ops), default=0.0),
        reductions=plain[0],
        entries=plain[1],
        trained=sum(count for name, count in local.items() if graph.tensor[name].gradient),
        frozen=sum(count for name, count in local.items() if not graph.tensor[name].gradient),
        cuts=tuple(cut.name for cut in chosen),
        unknown=held.unknown,
        repeated=np.array([kernel.repeated for kernel in issued], dtype=bool),
        weighted=np.array([kernel.weighted for kernel in issued], dtype=bool),
        exchanges=others,
        trains=any(graph.tensor[name].gradient for op in ops for name in op.outputs),
        issued=(*issued, *copies(graph, ops, part, item, division)),
        item_bytes=item(next((graph.tensor[name].dtype for name in owner.parameters), "float32")),
        shape=block_shape(graph, owner, division, sum(local.values())),
        samples=graph.samples,
        shared_bytes=held.shared_bytes,
    )


def _gradients(graph: Graph, op: Op, share: Callable[[str], float], item: Callable[[str], int]) -> float:
    """Bytes of the gradients of an op's outputs and of its inputs, which exist together while its backward runs."""
    if not any(graph.tensor[name].gradient for name in op.outputs):
        return 0.0
    names = [
        name for name in (*dict.fromkeys(op.inputs), *op.outputs)
        if graph.tensor[name].gradient and graph.tensor[name].role != "parameter"
    ]  # fmt: skip
    return fsum(graph.tensor[n].elements * item(graph.tensor[n].dtype) * share(n) for n in names)
