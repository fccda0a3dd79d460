"""Blocks that are alike: the same ops on the same shapes. Their cuts and costs are found once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.errors import PlanError
from partita.graph.cuts import CutClass, block_cuts
from partita.graph.model import Graph


@dataclass(frozen=True)
class Alike:
    """``kinds[i]`` is the first block that block i is like; ``classes`` are the cuts of each of those."""

    kinds: tuple[int, ...]
    classes: Mapping[int, tuple[CutClass, ...]]


def alike(graph: Graph) -> Alike:
    """Group the graph's blocks.

    A block that owns a shared parameter, or looks one up, stays alone: what it costs depends on its neighbours.
    """
    alone = {users[0] for users in graph.shared_parameters.values()}
    readers: dict[str, set[str]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, set()).add(op.block)
    first: dict[object, int] = {}
    kinds = []
    for index, block in enumerate(graph.blocks):
        ops = graph.block_ops[block.name]
        key: object = block.name
        if block.name not in alone and not any(op.kind == "embedding" for op in ops):
            key = _structure(graph, block.name, readers)
        kinds.append(first.setdefault(key, index))
    return Alike(tuple(kinds), {kind: block_cuts(graph, graph.blocks[kind].name) for kind in first.values()})


def _structure(graph: Graph, block: str, readers: Mapping[str, set[str]]) -> object:
    """A key that is equal for blocks with the same ops, shapes and borders, whatever their names."""
    number: dict[str, int] = {}
    tensors = []
    ops = []
    made: set[str] = set()
    for op in graph.block_ops[block]:
        made.update(op.outputs)
        for name in (*op.inputs, *op.outputs):
            if name not in number:
                number[name] = len(number)
                tensor = graph.tensor[name]
                leaves = name in made and not readers.get(name, set()) <= {block}
                tensors.append((tensor.shape, tensor.dtype, tensor.role, tensor.gradient, leaves))
        arguments = {key: value for key, value in op.attributes.items() if key != "target"}
        ops.append((
            op.kind, repr(arguments), tuple(number[n] for n in op.inputs), tuple(number[n] for n in op.outputs)
        ))  # fmt: skip
    return tuple(tensors), tuple(ops)


def tp_sizes(graph: Graph, groups: Alike, at_most: int) -> list[int]:
    """Sizes of a tensor-parallel group that every class of every block allows; just 1 where nothing can be cut."""
    if not any(groups.classes.values()):
        return [1]
    classes = [cut for found in groups.classes.values() for cut in found]
    return [
        tp
        for tp in range(1, min(at_most, max(cut.size for cut in classes)) + 1)
        if all(tp <= cut.size if cut.pads else cut.size % tp == 0 for cut in classes)
    ]


def require_tp(graph: Graph, groups: Alike, tp: int) -> None:
    """PlanError that names the block, the numbers and what would work, when tp can't be."""
    if tp > 1 and not any(groups.classes.values()):
        raise PlanError(f'tp={tp}: no dim of model "{graph.name}" can be cut; only tp=1 works')
    for kind in sorted(groups.classes):
        for cut in groups.classes[kind]:
            block = graph.blocks[kind].name
            if cut.pads and tp > cut.size:
                raise PlanError(f'tp={tp} is more than {cut.name}={cut.size} (block "{block}"); 1 to {cut.size} work')
            cut.require(tp, block)
