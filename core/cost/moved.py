"""What a block moves between the devices that divide its sequence: before an op that needs another dim, or the whole.

Op by op, as the lowering goes (``spacetime.needs``, ``cutting``). An op works on pieces of a dim that the sequence has;
what lies otherwise goes there first: an attention gathers keys and values along the tokens that it runs over, and one
over another dim gathers nothing. Models with two sequences (AlphaFold2's alignments and pairs) exchange pieces of one
dim for pieces of another: dynamic axial parallelism (Cheng et al., 2022, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from partita.cost.collective import Collective
from partita.cost.division import Along
from partita.graph.flows import worked_on
from partita.graph.model import Graph, Op
from partita.graph.table import signature

Move = tuple[Collective, Literal["forward", "backward"], float]


@dataclass(frozen=True)
class _Lying:
    """The dims in which an op reads its inputs in pieces and leaves its outputs; None: whole. ``pieces``: it works on
    pieces of anything; ``partial``: its outputs were sums of parts before."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    pieces: bool
    partial: bool


def moves(graph: Graph, block: str, along: Along, whole: Callable[[str], float], pieces: int) -> Iterator[Move]:
    """Collective, pass and bytes: of the whole tensor, of all-to-all what a device has of it. ``whole`` gives the bytes
    of a value that nobody divides."""
    tags = {(name, dim): parts for name, dims in along.items() for dim, parts in dims.items()}
    lies: dict[str, int | None] = {}
    done: set[tuple[str, int | None]] = set()
    for op in graph.block_ops[block]:
        found = _lying(graph, op, along, tags)
        for name, wanted in zip(op.inputs, found.inputs, strict=True):
            if graph.tensor[name].role != "value" or name not in along:
                continue
            if name not in lies:
                # Another block's, as that left it.
                maker = graph.producer[name]
                lies[name] = _lying(graph, maker, along, tags).outputs[maker.outputs.index(name)]
            if lies[name] in (None, wanted) or (name, wanted) in done:
                continue
            done.add((name, wanted))
            size, trained = whole(name), graph.tensor[name].gradient
            if wanted is not None:
                yield "all_to_all", "forward", size / pieces
                if trained:
                    yield "all_to_all", "backward", size / pieces
                continue
            yield "all_gather", "forward", size
            # Where readers work on pieces of something else each has a part of the gradient; else each has all of it.
            if trained and found.pieces:
                yield "reduce_scatter", "backward", size
        for name, place in zip(op.outputs, found.outputs, strict=True):
            lies[name] = place
            if found.partial:
                yield ("all_reduce" if place is None else "reduce_scatter"), "forward", whole(name)
                if place is not None and graph.tensor[name].gradient:
                    yield "all_gather", "backward", whole(name)


def _lying(graph: Graph, op: Op, along: Along, tags: dict[tuple[str, int], int]) -> _Lying:
    found = signature(graph, op)
    label = None if found is None else worked_on(graph, op, found, tags)
    if found is None or label is None:
        return _Lying((None,) * len(op.inputs), (None,) * len(op.outputs), False, False)
    name, _, partial = label
    inputs, outputs = (
        tuple(next((place for place, dim in enumerate(dims) if name in dim.factors), None) for dims in side)
        for side in (found.inputs, found.outputs)
    )
    if partial:
        # A sum becomes pieces of the one dim that the sequence has in it, if there is one.
        each = [list(along.get(output, ())) for output in op.outputs]
        outputs = tuple(dims[0] if len(dims) == 1 else None for dims in each)
    return _Lying(inputs, outputs, True, partial)
