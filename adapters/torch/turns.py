"""A region of a block that runs in turns (co-shard), as one op: the sum of what its turns give.

Each turn works on its slices of the device's parameters and is computed again in the backward pass: of all turns no
more than the shared inputs and one turn's activations are kept at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from partita.adapters.torch.collectives import pieces_of
from partita.adapters.torch.execute import Call, Context, compiled
from partita.graph import Op
from partita.spacetime.program import COLLECTIVES, LocalOp, Region, Segment


def units(segment: Segment, device: torch.device) -> list[tuple[LocalOp, Call]]:
    """A segment's ops with what runs each; a region is one op, that reads what its turns share and gives their sums."""
    starts = {region.start: region for region in segment.regions}
    found, place = [], 0
    while place < len(segment.ops):
        if region := starts.get(place):
            found.append(_region(segment, region, device))
            place = region.stop
        else:
            found.append((segment.ops[place], compiled(segment.ops[place], device)))
            place += 1
    return found


def _region(segment: Segment, region: Region, device: torch.device) -> tuple[LocalOp, Call]:
    ops = segment.ops[region.start : region.stop]
    made = {name for local in ops for name in local.op.outputs}
    read = tuple(dict.fromkeys(name for local in ops for name in local.op.inputs if name not in made))
    sums = [local for local in ops if local.form == "sum" and local.axes == (region.axis,)]
    given = tuple(local.op.outputs[0] for local in sums)
    calls = [(local, _in_turn(local, region, device)) for local in ops]

    def turn(context: Context, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = dict(zip(read, tensors, strict=True))
        for local, call in calls:
            results = call([values[name] for name in local.op.inputs], context)
            values.update(zip(local.op.outputs, results, strict=True))
        return tuple(values[name] for name in given)

    def run(tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
        totals: list[Tensor] = []
        for index in range(region.size):
            here = replace(context, coordinates={**context.coordinates, region.axis: index})
            if torch.is_grad_enabled():
                results = checkpoint(turn, here, tensors, use_reentrant=False, preserve_rng_state=False)
            else:
                results = turn(here, tensors)
            totals = [a + b for a, b in zip(totals, results, strict=True)] if totals else list(results)
        return totals

    op = Op(f"{segment.block} in turns {region.start}", "turns", read, given, segment.block)
    return LocalOp(op, "local", tuple(local.shapes[0] for local in sums)), run


def _in_turn(local: LocalOp, region: Region, device: torch.device) -> Call:
    """What runs an op in a turn: along the region's axis the device is alone, and turns follow one another."""
    if local.form not in COLLECTIVES or local.axes != (region.axis,):
        return compiled(local, device)
    if local.form == "slice":
        dim, parts = local.op.attributes["dim"], local.op.attributes["parts"]
        return lambda tensors, context: [
            pieces_of(tensors[0], dim, parts, region.size)[context.coordinates[region.axis]]
        ]
    # The turns' gradients and sums add up by themselves.
    assert local.form in ("enter", "sum"), local.form
    return lambda tensors, context: [tensors[0]]
