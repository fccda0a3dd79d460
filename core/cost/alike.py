"""Blocks that are alike: the same ops on the same shapes. Their cuts and costs are found once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.errors import PlanError
from partita.graph.cuts import CutClass, block_cuts
from partita.graph.model import Block, Graph


@dataclass(frozen=True)
class Alike:
    """``kinds[i]`` is the first block that block i is like; ``classes`` are the cuts of each of those.

    ``standing``: for a shared parameter whose owner is like an earlier block, the parameter in its place there.
    """

    kinds: tuple[int, ...]
    classes: Mapping[int, tuple[CutClass, ...]]
    standing: Mapping[str, str]

    def owner_cuts(self, parameter: str, owner: int) -> tuple[tuple[CutClass, ...], str]:
        """The cuts of the block that owns a shared parameter, and the name that the parameter has in them."""
        return self.classes[self.kinds[owner]], self.standing.get(parameter, parameter)


def alike(graph: Graph) -> Alike:
    """Group the graph's blocks. One with an embedding stays alone: what it costs depends on what is looked up."""
    first: dict[object, int] = {}
    kinds: list[int] = []
    standing: dict[str, str] = {}
    numbers: list[Mapping[str, int]] = []
    for index, block in enumerate(graph.blocks):
        key, number = structure(graph, block)
        if any(op.kind == "embedding" for op in graph.block_ops[block.name]):
            key = block.name
        kind = first.setdefault(key, index)
        kinds.append(kind)
        numbers.append(number)
        if kind != index:
            pairs = zip(number, numbers[kind], strict=True)
            owned = graph.shared_parameters.keys() & block.parameters
            standing.update((name, other) for name, other in pairs if name in owned)
    return Alike(tuple(kinds), {kind: block_cuts(graph, graph.blocks[kind].name) for kind in first.values()}, standing)


def structure(graph: Graph, block: Block) -> tuple[object, Mapping[str, int]]:
    """A key that is equal for blocks with the same ops, shapes and borders, whatever their names; and the numbers that
    stand for the names in it."""
    owned = set(block.parameters)
    number: dict[str, int] = {}
    tensors = []
    ops = []
    made: set[str] = set()
    for op in graph.block_ops[block.name]:
        made.update(op.outputs)
        for name in (*op.inputs, *op.outputs):
            if name not in number:
                number[name] = len(number)
                tensor = graph.tensor[name]
                leaves = name in made and any(reader != block.name for reader in graph.readers.get(name, ()))
                tensors.append((tensor.shape, tensor.dtype, tensor.role, tensor.gradient, leaves, name in owned))
        arguments = {key: value for key, value in op.attributes.items() if key != "target"}
        ops.append((
            op.kind, repr(arguments), tuple(number[n] for n in op.inputs), tuple(number[n] for n in op.outputs)
        ))  # fmt: skip
    return (tuple(tensors), tuple(ops)), number


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
