"""The collectives of one block: all-reduces where classes of dims are cut, others where sequence or samples are too.

a class over the tensor axis     all-reduce of partial sums forward, of the gradients of whole inputs backward
and the sequence with it         reduce-scatter and all-gather instead; inputs are gathered again backward
the sequence of the whole block  keys and values gathered forward, their gradients reduce-scattered backward (``moved``)
experts, samples with them       all-to-all into the experts and out of them, both ways
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from partita.cluster.model import Link
from partita.cost.collective import SECONDS, Collective
from partita.cost.division import Along, ClassCut, Division, Split
from partita.cost.moved import moves
from partita.graph.cuts import CutClass, core_ops
from partita.graph.model import Graph


@dataclass(frozen=True)
class Exchange:
    """One collective of a pass over an axis; ``size_bytes`` of the whole tensor, of all-to-all what a device holds."""

    kind: Collective
    axis: str
    phase: Literal["forward", "backward"]
    size_bytes: float

    def seconds(self, group: int, link: Link, ratio: float) -> float:
        """For ``ratio`` times the graph's samples."""
        return SECONDS[self.kind](self.size_bytes * ratio, group, link)


def exchanges(
    graph: Graph, block: str, chosen: Sequence[CutClass], division: Division, part: Split,
    item: Callable[[str], int], along: Along,
) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], tuple[Exchange, ...]]:  # fmt: skip
    """Bytes of the tensor axis's all-reduces, forward and backward, and all other collectives of a block."""

    def size(name: str) -> float:
        tensor = graph.tensor[name]
        return tensor.elements * item(tensor.dtype) * part.use(name)

    cut_of = {cut.name: cut for cut in division.classes}
    reductions: list[float] = []
    entries: list[float] = []
    others: list[Exchange] = []
    for found in chosen:
        cut = cut_of[found.name]
        if cut.pieces == 1:
            continue
        if cut.joins:
            others += _all_to_all(graph, block, found, cut, size)
            continue
        for name in found.reductions:
            if division.sequence > 1 and name in along:
                others.append(Exchange("reduce_scatter", cut.axis, "forward", size(name)))
                others.append(Exchange("all_gather", cut.axis, "backward", size(name)))
            elif cut.axis == "tensor":
                reductions.append(size(name))
            else:
                others.append(Exchange("all_reduce", cut.axis, "forward", size(name)))
        for name in found.entries:
            if division.sequence > 1 and name in along:
                others.append(Exchange("all_gather", cut.axis, "forward", size(name)))
                # Kept in pieces, so gathered once more for the gradients of the weights.
                others.append(Exchange("all_gather", cut.axis, "backward", size(name)))
                others.append(Exchange("reduce_scatter", cut.axis, "backward", size(name)))
            elif cut.axis == "tensor":
                entries.append(size(name))
            else:
                others.append(Exchange("all_reduce", cut.axis, "backward", size(name)))
    if division.context > 1:

        def whole(name: str) -> float:
            return size(name) * (division.context if name in along else 1)

        axis = division.context_axis
        found_moves = moves(graph, block, along, whole, division.context)
        others += [Exchange(kind, axis, phase, moved) for kind, phase, moved in found_moves]
    return (tuple(reductions), tuple(entries)), tuple(others)


def _all_to_all(
    graph: Graph, block: str, found: CutClass, cut: ClassCut, size: Callable[[str], float]
) -> Iterator[Exchange]:
    """Each way once: what the ops between those that read the class's weights take in, and what they give out."""
    inside = core_ops(graph, found, block)
    ops = graph.block_ops[block]
    made = {name for op in ops if op.name in inside for name in op.outputs}
    read = {name for op in ops if op.name in inside for name in op.inputs if name in found.dims}
    wanted = {name for op in ops if op.name not in inside for name in op.inputs}
    enters = {name for name in read - made if graph.tensor[name].role == "value"}
    for name in sorted(enters | (made & wanted)):
        yield Exchange("all_to_all", cut.axis, "forward", size(name))
        yield Exchange("all_to_all", cut.axis, "backward", size(name))
