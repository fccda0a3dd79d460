"""Every block and every op of the model is in exactly one piece, and each piece makes what it is said to make.

Pieces are proven once, however many devices and micro-batches run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from partita.errors import PlanError
from partita.graph import Graph, Op
from partita.graph.constant import constant_ops
from partita.plan import Axis
from partita.spacetime.alike import of_stages
from partita.spacetime.parts import Part
from partita.spacetime.program import COLLECTIVES, LocalOp, Piece, Region, Segment
from partita.spacetime.prove_ops import results
from partita.spacetime.prove_views import Value, whole_along

# Forms of ops that only the piece has: the model has no such op.
ADDED = COLLECTIVES | {"bias"}


# What each op of a piece makes, by its name.
Made = dict[str, tuple[Value, ...]]


def prove_code(graphs: Graph | Sequence[Graph], pieces: Sequence[Piece], axes: Sequence[Sequence[Axis]]) -> list[Made]:
    """What the ops of each piece make. PlanError that names the op, block or tensor where the pieces aren't the model.

    ``graphs`` is the model, or of each stage the model at its samples; ``axes[stage]`` are those of the devices of one
    copy of the stage.
    """
    models = of_stages(graphs, len(pieces))
    if odd := [index for index, piece in enumerate(pieces) if piece.stage != index]:
        raise PlanError(f"piece {odd[0]} is said to be of stage {pieces[odd[0]].stage}")
    free = {id(model): constant_ops(model) for model in models}
    segments = [(piece.stage, segment) for piece in pieces for segment in piece.segments]
    blocks = [block.name for block in models[0].blocks]
    _once("block", blocks, ((s.block, stage) for stage, s in segments))
    at = {segment.block: models[stage] for stage, segment in segments}
    _once(
        "op",
        [op.name for block in blocks for op in at[block].block_ops[block] if op.name not in free[id(at[block])]],
        ((o.op.name, stage) for stage, s in segments for o in s.ops if o.form not in ADDED),
    )
    makers = {name: piece.stage for piece in pieces for s in piece.segments for o in s.ops for name in o.op.outputs}
    ops = {id(model): {op.name: op for op in model.ops} for model in models}
    made = [
        _piece(model, ops[id(model)], free[id(model)], pieces, makers, piece, _sizes(piece, axes[piece.stage]))
        for piece, model in zip(pieces, models, strict=True)
    ]
    _ends(models, pieces, makers)
    return made


def _once(what: str, wanted: Iterable[str], found: Iterable[tuple[str, int]]) -> None:
    """Whether each of ``wanted`` is found in one stage once, and nothing else is."""
    at: dict[str, int] = {}
    for name, stage in found:
        if name in at:
            raise PlanError(f'{what} "{name}" is in stage {at[name]} and again in stage {stage}: it would count twice')
        at[name] = stage
    known = set(wanted)
    if lost := [name for name in wanted if name not in at]:
        more = f", nor are {len(lost) - 1} more" if len(lost) > 1 else ""
        raise PlanError(f'{what} "{lost[0]}" of the model is in no stage{more}')
    if odd := [name for name in at if name not in known]:
        raise PlanError(f'{what} "{odd[0]}" of stage {at[odd[0]]} is none of the model\'s')


def _sizes(piece: Piece, axes: Sequence[Axis]) -> dict[str, int]:
    """The axes along which a piece may be cut: those of its devices, and those of its turns."""
    sizes = {axis.name: axis.size for axis in axes if axis.size > 1}
    for segment in piece.segments:
        for region in segment.regions:
            if region.axis in {axis.name for axis in axes} or sizes.setdefault(region.axis, region.size) != region.size:
                raise PlanError(
                    f'block "{segment.block}" runs {region.size} turns of "{region.axis}", which is an axis of '
                    + (f"{sizes[region.axis]} turns" if region.axis in sizes else "devices")
                    + " elsewhere in its stage"
                )
    return sizes


def _parameter(graph: Graph, piece: Piece, name: str, sizes: Mapping[str, int]) -> Value:
    """A parameter as a device has it; along the axes that its gradient is summed over at the end of the step it is as
    if its readers had entered it."""
    shard, partial = piece.parameters[name], piece.partial.get(name, ())
    if odd := [axis for axis in partial if axis not in sizes or (shard and axis == shard.axis)]:
        raise PlanError(f'the gradient of "{name}" is said to be partial over "{odd[0]}", along which it isn\'t whole')
    state = {shard.axis: Part(shard.dim, shard.parts)} if shard else {}
    return Value(name, state, frozenset(partial))


def _piece(
    graph: Graph, ops: Mapping[str, Op], free: set[str], pieces: Sequence[Piece], makers: Mapping[str, int],
    piece: Piece, sizes: Mapping[str, int],
) -> Made:  # fmt: skip
    """Follow a piece's values from the batch, the other stages and the parameters to what it gives."""
    stage = piece.stage
    values: dict[str, Value] = {}
    made: Made = {}
    for role, names in (("input", piece.batch), ("buffer", piece.buffers)):
        for name in names:
            if name not in graph.tensor or graph.tensor[name].role != role:
                raise PlanError(f'stage {stage} reads "{name}" as {role} of the model, which it isn\'t')
            values[name] = Value(name)
    for name in piece.inputs:
        maker = makers.get(name, stage)
        if maker == stage or name not in pieces[maker].outputs:
            raise PlanError(f'stage {stage} reads "{name}", which no other stage gives')
        values[name] = Value(name)
    for local in piece.constants:
        if local.op.name not in free or local.form != "whole":
            raise PlanError(f'op "{local.op.name}" is a constant of stage {stage}, but depends on parameters or chance')
        made[local.op.name] = _run(graph, ops, local, values, f"stage {stage}", sizes)
    parameters = {name: _parameter(graph, piece, name, sizes) for name in piece.parameters}
    if odd_names := [name for name in piece.partial if name not in parameters]:
        raise PlanError(f'the gradient of "{odd_names[0]}" is said to be partial in stage {stage}, which hasn\'t it')
    for segment in piece.segments:
        values.update(_segment(graph, ops, segment, values, parameters, sizes, made))
    for name in piece.outputs:
        if makers.get(name) != stage or name not in values:
            raise PlanError(f'stage {stage} gives "{name}" to others, but none of its blocks makes that')
        value = values[name]
        if value != Value(name):
            axis = next((axis for axis in sizes if axis in value.state or axis in value.entered), "tensor")
            missing = ": the sum over the devices is missing" if value.partial(axis) else ""
            raise PlanError(
                f'block "{ops[graph.producer[name].name].block}" gives "{name}" to others as a whole, but '
                + (
                    f"its gradient is summed over {sizes[axis]} devices"
                    if axis in value.entered
                    else value.said(graph, axis, sizes)
                )
                + missing
            )
    return made


def _segment(
    graph: Graph, ops: Mapping[str, Op], segment: Segment, values: Mapping[str, Value],
    parameters: Mapping[str, Value], sizes: Mapping[str, int], made: Made,
) -> dict[str, Value]:  # fmt: skip
    """What a block gives, from what is there before it. Its other values are its own."""
    inside = dict(parameters)
    for name in segment.inputs:
        if name not in values:
            raise PlanError(f'block "{segment.block}" reads "{name}", which its stage neither gets nor makes before')
        inside[name] = values[name]
    for local in segment.ops:
        if local.op.block != segment.block:
            raise PlanError(f'op "{local.op.name}" of block "{local.op.block}" is in block "{segment.block}"')
        made[local.op.name] = _run(graph, ops, local, inside, f'block "{segment.block}"', sizes)
    for region in segment.regions:
        _region(segment, region)
    _again(segment)
    _in_turns(segment, axes_of_turns={region.axis for region in segment.regions})
    given = {}
    for name in segment.outputs:
        value = inside.get(name)
        if value is None:
            raise PlanError(f'block "{segment.block}" gives "{name}", but none of its ops makes that')
        if partial := [axis for axis in sizes if value.partial(axis)]:
            raise PlanError(
                f'block "{segment.block}" gives "{name}" to others, but {value.said(graph, partial[0], sizes)}: the '
                "sum over the devices is missing"
            )
        for region in segment.regions:
            whole_along(graph, f"end of {segment.block}", "block", [value], region.axis, sizes)
        given[name] = value
    return given


def _region(segment: Segment, region: Region) -> None:
    """Whether what leaves a region that runs in turns is a sum over them, and nothing else."""
    if not 0 <= region.start < region.stop <= len(segment.ops):
        raise PlanError(f'block "{segment.block}" has {len(segment.ops)} ops, of which {region} can\'t run in turns')
    inside = segment.ops[region.start : region.stop]
    made = {name: local for local in inside for name in local.op.outputs}
    outside = [*segment.ops[: region.start], *segment.ops[region.stop :]]
    read = {name: local.op.name for local in outside for name in local.op.inputs}
    for name in made:
        reader = read.get(name, f"another block than {segment.block}" if name in segment.outputs else "")
        total = made[name].form == "sum" and made[name].axes == (region.axis,)
        if bool(reader) != total:
            raise PlanError(
                f'op "{made[name].op.name}" runs {region.size} times in turns of "{region.axis}"; what it makes, '
                f'"{name}", ' + (f'is read by "{reader}" after them, and isn\'t their sum' if reader else "is lost")
            )


def _again(segment: Segment) -> None:
    """Whether the runs that are computed again are some, stand apart, and don't reach out of a region of turns."""
    place = 0
    for start, stop in segment.again:
        if not place <= start < stop <= len(segment.ops):
            raise PlanError(
                f'block "{segment.block}" has {len(segment.ops)} ops, of which the runs {list(segment.again)} '
                "can't be computed again: each has ops, after those of the one before it"
            )
        place = stop
        for region in segment.regions:
            shared = max(start, region.start), min(stop, region.stop)
            if shared[0] < shared[1] and shared != (start, stop):
                raise PlanError(
                    f'op "{segment.ops[shared[0]].op.name}" runs in turns of "{region.axis}"; the run of ops '
                    f'{start} to {stop - 1} of block "{segment.block}", which is computed again, has others too'
                )
    if segment.again and segment.recompute:
        raise PlanError(f'block "{segment.block}" is computed again as a whole, and runs of its ops once more')


def _in_turns(segment: Segment, axes_of_turns: set[str]) -> None:
    """Whether all that works on an axis of turns is inside one of its regions, each of which stands alone."""
    turns: dict[int, str] = {}
    for region in segment.regions:
        for place in range(region.start, region.stop):
            if place in turns:
                raise PlanError(f'op "{segment.ops[place].op.name}" is in two regions that run in turns')
            turns[place] = region.axis
    for place, local in enumerate(segment.ops):
        if odd := [axis for axis in local.axes if axis in axes_of_turns and turns.get(place) != axis]:
            raise PlanError(
                f'op "{local.op.name}" works on pieces of the turns of "{odd[0]}", but stands outside of them'
            )


def _run(
    graph: Graph, ops: Mapping[str, Op], local: LocalOp, values: dict[str, Value], where: str, sizes: Mapping[str, int]
) -> tuple[Value, ...]:
    """Add an op's outputs to the values; and those."""
    op = local.op
    for name in op.inputs:
        if name not in values:
            near = [value for value in values.values() if value.tensor == name]
            raise PlanError(
                f'op "{op.name}" ({op.kind}) of {where} reads "{name}" before anything made it'
                + (f"; of it there is only this: {_said(graph, near[-1], sizes)}" if near else "")
            )
    made = results(graph, ops, local, [values[n] for n in op.inputs], sizes)
    for name, value in zip(op.outputs, made, strict=True):
        if name in values:
            raise PlanError(f'op "{op.name}" of {where} makes "{name}", which is there already')
        values[name] = value
    return tuple(made)


def _said(graph: Graph, value: Value, sizes: Mapping[str, int]) -> str:
    return value.said(graph, next((axis for axis in sizes if axis in value.state), "tensor"), sizes)


def _ends(models: Sequence[Graph], pieces: Sequence[Piece], makers: Mapping[str, int]) -> None:
    """Whether the loss, or what a model without one returns, is given by the stage that makes it."""
    graph = models[0]
    if graph.loss is not None:
        # As the stage that makes it has it.
        graph = models[makers.get(graph.loss.tensor, 0)]
    ends = [graph.loss.tensor] if graph.loss else [name for name in graph.outputs if name in makers]
    for name in ends:
        if name not in makers or name not in pieces[makers[name]].outputs:
            raise PlanError(f'"{name}" is what the model gives, but no stage gives it')
    if graph.loss is None or graph.loss.weighting != "tokens":
        return
    stage = makers[graph.loss.tensor]
    counted = {*pieces[stage].batch, *(name for o in pieces[stage].constants for name in o.op.outputs)}
    if graph.loss.targets is not None and graph.loss.targets not in counted:
        raise PlanError(f'stage {stage} makes the loss but hasn\'t "{graph.loss.targets}", whose tokens it must count')
    # Where tokens are cut, what has the loss's name is a collective behind the op.
    maker = graph.producer[graph.loss.tensor].name
    (local,) = (o for s in pieces[stage].segments for o in s.ops if o.op.name == maker)
    ignored = graph.loss.ignore_index
    if "target" in local.op.attributes and local.op.attributes["args"][2:] != [None, 2, ignored]:
        raise PlanError(
            f'op "{local.op.name}" must sum its losses over the tokens that aren\'t {ignored}, because the mean is '
            f"taken over the global batch; its arguments are {local.op.attributes['args']}"
        )
