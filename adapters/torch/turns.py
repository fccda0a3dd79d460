"""Ops of a block that run as one: a region that runs in turns (co-shard), a run that is computed again (attention).

Each turn works on its slices of the device's parameters and is computed again in the backward pass: of all turns no
more than the shared inputs and one turn's activations are kept at any time. The region gives the sums of what its turns
give. Of a run of ops that is computed again (selective recomputation) what it reads is kept and nothing that it makes
for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from partita.adapters.torch.collectives import pieces_of
from partita.adapters.torch.execute import Call, Context, compiled
from partita.graph import Op
from partita.spacetime.program import COLLECTIVES, LocalOp, Region, Segment


def units(segment: Segment, device: torch.device) -> list[tuple[LocalOp, Call]]:
    """A segment's ops with what runs each. A region is one op, that reads what its turns share and gives their sums; a
    run that is computed again is one, that gives what others read."""
    starts = {region.start: region for region in segment.regions}
    found, place = [], 0
    while place < len(segment.ops):
        if region := starts.get(place):
            found.append(_region(segment, region, device))
            place = region.stop
        else:
            place = _next(segment, place, lambda local: compiled(local, device), found)
    return found


def _next(segment: Segment, place: int, call: Callable[[LocalOp], Call], found: list[tuple[LocalOp, Call]]) -> int:
    """Add the op at a place, or the run that begins there; where the next one is."""
    start, stop = next(((a, b) for a, b in segment.again if a == place), (place, place + 1))
    ops = [(local, call(local)) for local in segment.ops[start:stop]]
    found.append(_again(segment, start, ops) if (start, stop) in segment.again else ops[0])
    return stop


def _again(segment: Segment, start: int, ops: Sequence[tuple[LocalOp, Call]]) -> tuple[LocalOp, Call]:
    """A run of ops as one, which is computed again. A run of one op is that op."""
    local = ops[0][0] if len(ops) == 1 else _joined(segment, start, [local for local, _ in ops])
    run = _run(local.op.inputs, local.op.outputs, ops)

    def call(tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
        if not torch.is_grad_enabled():
            return list(run(context, tensors))
        return list(checkpoint(run, context, tensors, use_reentrant=False, preserve_rng_state=False))

    return local, call


def _joined(segment: Segment, start: int, ops: Sequence[LocalOp]) -> LocalOp:
    """What ops that follow each other read and give as one."""
    made = {name: shape for local in ops for name, shape in zip(local.op.outputs, local.shapes, strict=True)}
    others = [*segment.ops[:start], *segment.ops[start + len(ops) :]]
    wanted = {*segment.outputs, *(name for local in others for name in local.op.inputs)}
    given = tuple(name for name in made if name in wanted)
    read = tuple(dict.fromkeys(name for local in ops for name in local.op.inputs if name not in made))
    op = Op(f"{segment.block} again {start}", "again", read, given, segment.block)
    return LocalOp(op, "local", tuple(made[name] for name in given), ops[-1].axes)


def _run(
    read: Sequence[str], given: Sequence[str], ops: Sequence[tuple[LocalOp, Call]]
) -> Callable[[Context, Sequence[Tensor]], tuple[Tensor, ...]]:
    """What gives some results of ops, from what they read."""

    def run(context: Context, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = dict(zip(read, tensors, strict=True))
        for local, call in ops:
            results = call([values[name] for name in local.op.inputs], context)
            values.update(zip(local.op.outputs, results, strict=True))
        return tuple(values[name] for name in given)

    return run


def _region(segment: Segment, region: Region, device: torch.device) -> tuple[LocalOp, Call]:
    ops = segment.ops[region.start : region.stop]
    made = {name for local in ops for name in local.op.outputs}
    read = tuple(dict.fromkeys(name for local in ops for name in local.op.inputs if name not in made))
    sums = [local for local in ops if local.form == "sum" and local.axes == (region.axis,)]
    given = tuple(local.op.outputs[0] for local in sums)
    calls: list[tuple[LocalOp, Call]] = []
    place = region.start
    while place < region.stop:
        place = _next(segment, place, lambda local: _in_turn(local, region, device), calls)
    turn = _run(read, given, calls)

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
