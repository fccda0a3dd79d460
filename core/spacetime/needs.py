"""What an op of a block needs of its inputs and makes, along each inner axis of its stage.

Along an axis an op belongs to a class of dims that is cut (``graph.cuts``), or has a dim that flows cut through the
block (``graph.flows``), or works on whole values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from partita.graph import Graph, Op
from partita.graph.cuts import CutClass
from partita.graph.flows import Tags, parts_of, worked_on
from partita.graph.signature import Signature
from partita.graph.table import signature
from partita.spacetime.parts import Part, Spread, State, nests


@dataclass(frozen=True)
class ClassCut:
    """A class of a block and the axes along which it is cut, major first. ``ops`` are those that work on its pieces."""

    found: CutClass
    axes: tuple[str, ...]
    ops: frozenset[str]


@dataclass(frozen=True)
class Need:
    """States of an op's inputs and outputs. Along ``axes`` it works on pieces, along ``reduced`` it makes partial sums.

    ``own`` are the axes of its class, which come last. ``rows``: those that cut the rows of an attention, major first.
    """

    inputs: tuple[State, ...]
    outputs: tuple[State, ...]
    axes: tuple[str, ...] = ()
    reduced: frozenset[str] = frozenset()
    own: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def entering(self, index: int) -> tuple[str, ...]:
        """The axes along which an input is read whole by an op that works on pieces of something else."""
        return tuple(axis for axis in self.axes if axis not in self.inputs[index] and axis not in self.reduced)


def need(
    graph: Graph, op: Op, cut: ClassCut | None, flows: Mapping[str, str], tags: Tags, sizes: Mapping[str, int]
) -> Need:
    """What an op needs. ``flows`` are the axes along which something flows cut through the block, major first."""
    states, reduced = _of_class(op, cut, sizes)
    own = cut.axes if cut is not None else ()
    around: list[str] = []
    rows: tuple[str, ...] = ()
    found = signature(graph, op) if flows else None
    for flow in dict.fromkeys(flows.values()) if found is not None else ():
        assert found is not None
        axes = tuple(axis for axis, name in flows.items() if name == flow and axis not in own)
        label = worked_on(graph, op, found, tags[flow]) if axes else None
        if label is None or found.sizes[label[0]] // label[1] % prod(sizes[axis] for axis in axes):
            continue
        name, parts, partial = label
        cuts = [_spread(found, name, parts, axes, dims, sizes) for dims in (*found.inputs, *found.outputs)]
        both: list[State] = [{**state, **added} for state, added in zip(states, cuts, strict=True)]
        if not all(nests(state, sizes) for state in both):
            # The class has the same dim: along this axis the op then works on the whole.
            continue
        states = both
        if partial:
            reduced |= set(axes)
            states[len(op.inputs) :] = [_partial(state, axes) for state in states[len(op.inputs) :]]
        elif name in found.placed and op.kind == "scaled_dot_product_attention":
            rows = axes
        around += axes
    axes = (*(axis for axis in sizes if axis in around), *own)
    inputs, outputs = tuple(states[: len(op.inputs)]), tuple(states[len(op.inputs) :])
    return Need(inputs, outputs, axes, frozenset(reduced), own, rows)


def _of_class(op: Op, cut: ClassCut | None, sizes: Mapping[str, int]) -> tuple[list[State], set[str]]:
    """The states of an op's inputs and outputs along the axes of its class, and those that it leaves partial."""
    if cut is None:
        return [{} for _ in (*op.inputs, *op.outputs)], set()
    states: list[State] = []
    for name in (*op.inputs, *op.outputs):
        state: dict[str, Spread] = {}
        if name in cut.found.dims:
            dim, inside = cut.found.dims[name]
            for axis in cut.axes:
                state[axis] = Part(dim, inside)
                inside *= sizes[axis]
        states.append(state)
    if set(op.outputs).isdisjoint(cut.found.reductions):
        return states, set()
    states[len(op.inputs) :] = [_partial(state, cut.axes) for state in states[len(op.inputs) :]]
    return states, set(cut.axes)


def _partial(state: State, axes: tuple[str, ...]) -> State:
    added: State = dict.fromkeys(axes, "partial")
    return {**state, **added}


def _spread(
    found: Signature, label: str, parts: int, axes: tuple[str, ...], dims: tuple, sizes: Mapping[str, int]
) -> dict[str, Spread]:
    """The cuts of one tensor where the label is cut along the axes, major first."""
    for position, dim in enumerate(dims):
        if label in dim.factors:
            inside = parts_of(found, dim, label, parts)
            result: dict[str, Spread] = {}
            for axis in axes:
                result[axis] = Part(position, inside)
                inside *= sizes[axis]
            return result
    return {}


def settled(
    name: str, state: State, shape: tuple[int, ...], flows: Mapping[str, str], tags: Tags, sizes: Mapping[str, int]
) -> State:
    """What becomes of a value's partial sums: along an axis that cuts what flows each device gets its piece, else the
    whole."""
    result = {axis: spread for axis, spread in state.items() if spread != "partial"}
    for axis in sizes:
        if state.get(axis) != "partial" or axis not in flows:
            continue
        tagged = [(dim, tags[flows[axis]][name, dim]) for dim in range(len(shape)) if (name, dim) in tags[flows[axis]]]
        if len(tagged) != 1:
            continue
        dim, parts = tagged[0]
        for other, flow in flows.items():
            if other == axis:
                break
            parts *= sizes[other] if flow == flows[axis] else 1
        wanted = {**result, axis: Part(dim, parts)}
        if shape[dim] % (parts * sizes[axis]) == 0 and nests(wanted, sizes) and _divides(shape, wanted, sizes):
            result = wanted
    return result


def _divides(shape: tuple[int, ...], state: State, sizes: Mapping[str, int]) -> bool:
    dims: dict[int, int] = {}
    for axis, part in state.items():
        if isinstance(part, Part):
            dims[part.dim] = dims.get(part.dim, 1) * sizes[axis]
    return all(shape[dim] % pieces == 0 for dim, pieces in dims.items())
