"""Which part of a value of the model a device has, found from the model's own cuts and the shape that the device has.

Nothing here comes from how a program was made but the shape and the axes of the op, so that a program that was changed
is compared with what the model says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.cuts import block_cuts
from partita.plan import Axis
from partita.spacetime.parts import State, outer_first
from partita.spacetime.program import COLLECTIVES, LocalOp, Program
from partita.spacetime.prove_code import Made, prove_code

Interval = tuple[int, int]


def inner_axes(program: Program, stage: int) -> list[Axis]:
    """The inner axes of a stage, major first, and after them those along which regions of its blocks run in turns."""
    regions = [region for segment in program.pieces[stage].segments for region in segment.regions]
    turns = {region.axis: Axis(region.axis, region.size, "turns") for region in regions}
    return [*program.inner[stage], *turns.values()]


def followed(graphs: Sequence[Graph], program: Program) -> list[Made]:
    """How what each op makes is cut, by stage and op, as the proof follows it from the parameters.

    Of a program that isn't valid, which is run to see where it goes wrong, nothing: its parts are told by their shapes.
    """
    try:
        return prove_code(graphs, program.pieces, [program.inner[stage] for stage in range(len(program.pieces))])
    except PlanError:
        return [{} for _ in program.pieces]


def taken(dense: Tensor, state: State, axes: Sequence[Axis], at: Mapping[str, int]) -> tuple[Tensor, str]:
    """The part of the dense value that a device has in a state, and its intervals in words."""
    sizes = {axis.name: axis.size for axis in axes}
    keep = [torch.ones(size, dtype=torch.bool) for size in dense.shape]
    for axis, part in outer_first(state):
        # Index by index: of each equal part of a cut dim the piece of the device's coordinate.
        length = -(-dense.shape[part.dim] // (part.parts * sizes[axis]))
        keep[part.dim] &= torch.arange(dense.shape[part.dim]) // length % sizes[axis] == at[axis]
    words = []
    for dim, kept in enumerate(keep):
        dense = dense.index_select(dim, kept.nonzero().flatten())
        edges = torch.diff(kept.int(), prepend=torch.zeros(1, dtype=torch.int), append=torch.zeros(1, dtype=torch.int))
        starts, stops = ((edges == sign).nonzero().flatten().tolist() for sign in (1, -1))
        words.append(" and ".join(f"[{start}, {stop})" for start, stop in zip(starts, stops, strict=True)))
    return dense, " × ".join(words) or "the scalar"


def part_of(
    graph: Graph, local: LocalOp, name: str, value: Tensor, dense: Tensor, axes: Sequence[Axis], at: Mapping[str, int]
) -> tuple[Tensor, str] | None:
    """The part of the dense value that a device must have, padded with zeros, and its intervals in words.

    None where no cut of the model gives this shape. ``at`` are the device's coordinates along the stage's inner axes.
    """
    if value.shape == dense.shape:
        return dense, " × ".join(f"[0, {size})" for size in dense.shape) or "the scalar"
    if value.dim() != dense.dim():
        return None
    by_name = {axis.name: axis for axis in axes}
    # What a collective gives may still be cut along other axes than its own.
    free = list(axes) if local.form in COLLECTIVES else [by_name[name] for name in local.axes if name in by_name]
    words = [f"[0, {size})" for size in dense.shape]
    for dim, (size, here) in enumerate(zip(dense.shape, value.shape, strict=True)):
        if size == here:
            continue
        found = _pieces(graph, local.op.block, name, dim, size, here, free)
        if found is None:
            return None
        taken, parts = found
        piece, count = 0, prod(axis.size for axis in taken)
        for axis in taken:
            piece = piece * axis.size + at[axis.name]
            free.remove(axis)
        intervals = list(_intervals(size, parts, count, piece))
        words[dim] = " and ".join(f"[{start}, {stop})" for start, stop in intervals)
        dense = _taken(dense, dim, intervals, here // parts)
    return dense, " × ".join(words)


def _pieces(
    graph: Graph, block: str, name: str, dim: int, size: int, here: int, free: Sequence[Axis]
) -> tuple[list[Axis], int] | None:
    """The axes, major first, and the equal parts each of which is cut, that leave ``here`` of ``size``."""
    known = [parts for at, parts in _cut_dims(graph, block).get(name, ()) if at == dim]
    runs = [list(free[i:j]) for i in range(len(free)) for j in range(i + 1, len(free) + 1)]
    for parts in dict.fromkeys((*known, 1)):
        for run in runs:
            multiple = parts * prod(axis.size for axis in run)
            if -(-size // multiple) * parts == here:
                return run, parts
    return None


def _cut_dims(graph: Graph, block: str) -> Mapping[str, tuple[tuple[int, int], ...]]:
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for cut in block_cuts(graph, block):
        for name, place in cut.dims.items():
            found[name] = (*found.get(name, ()), place)
    return found


def _intervals(size: int, parts: int, count: int, piece: int) -> Iterator[Interval]:
    padded = -(-size // (parts * count)) * parts * count
    length = padded // parts // count
    for part in range(parts):
        start = part * (padded // parts) + piece * length
        yield min(start, size), min(start + length, size)


def _taken(dense: Tensor, dim: int, intervals: Sequence[Interval], length: int) -> Tensor:
    pieces = []
    for start, stop in intervals:
        piece = dense.narrow(dim, start, stop - start)
        if stop - start < length:
            shape = list(piece.shape)
            shape[dim] = length - (stop - start)
            piece = torch.cat([piece, piece.new_zeros(shape)], dim=dim)
        pieces.append(piece)
    return torch.cat(pieces, dim=dim)
