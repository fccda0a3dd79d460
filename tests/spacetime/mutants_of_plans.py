"""What breaks plans of the library, in the code of their stages: collectives along any axis, regions that run in turns,
parameters that several stages have. Each is one change to a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from partita.graph import Graph, Op
from partita.spacetime.program import COLLECTIVES, LocalOp, Piece, Program, Segment, Shard
from tests.spacetime.programs import Broken, Mutant, ops_of, with_pieces, with_tasks

# Element by element: in its place a softmax along the cut dim could stand.
ELEMENTWISE = frozenset({"tanh", "relu", "gelu", "silu", "pow"})
NON_LINEAR = ELEMENTWISE | {"layer_norm", "softmax", "embedding", "cross_entropy"}


def _with_ops(found: Program, change: Callable[[LocalOp], list[LocalOp]]) -> Program:
    """Every op replaced by others; regions that run in turns keep their ops."""

    def changed(segment: Segment) -> Segment:
        new = [change(op) for op in segment.ops]
        count = [sum(map(len, new[:place])) for place in range(len(new) + 1)]
        regions = tuple(replace(r, start=count[r.start], stop=count[r.stop]) for r in segment.regions)
        return replace(segment, ops=tuple(op for ops in new for op in ops), regions=regions)

    return with_pieces(found, lambda p: replace(p, segments=tuple(map(changed, p.segments))))


def _with_op(found: Program, old: LocalOp, *new: LocalOp) -> Program:
    return _with_ops(found, lambda op: list(new) if op is old else [op])


def _with_attributes(found: Program, old: LocalOp, attributes: Mapping[str, Any]) -> Program:
    return _with_op(found, old, replace(old, op=replace(old.op, attributes=attributes)))


def _with_shard(found: Program, name: str, shard: Shard) -> Program:
    def changed(piece: Piece) -> Piece:
        return replace(piece, parameters={n: shard if n == name else has for n, has in piece.parameters.items()})

    return with_pieces(found, changed)


def _nth(found: Program, form: str, number: int = 0, kind: str = "") -> LocalOp | None:
    ops = [op for op in ops_of(found) if op.form == form and kind in ("", op.op.kind)]
    return ops[number] if ops else None


def _tensor(graph: Graph, local: LocalOp) -> str:
    """The tensor of the model that a collective moves: its local name begins with it."""
    return max((name for name in graph.tensor if local.op.name.startswith(f"{name}.")), key=len)


def _renamed(op: LocalOp, names: Mapping[str, str], *, outputs: bool = False) -> LocalOp:
    made_now = tuple(names.get(n, n) for n in op.op.outputs) if outputs else op.op.outputs
    return replace(op, op=replace(op.op, inputs=tuple(names.get(n, n) for n in op.op.inputs), outputs=made_now))


def _segment_of(found: Program, odd: LocalOp) -> Segment:
    return next(s for piece in found.pieces for s in piece.segments if odd in s.ops)


def left_out(form: str, number: int = 0) -> Mutant:
    """A collective is gone: what it would have made is what it would have read."""

    def mutant(graph: Graph, found: Program) -> Broken:
        odd = _nth(found, form, number)
        if odd is None:
            return None
        (before,), (after,), block = odd.op.inputs, odd.op.outputs, odd.op.block
        segment = _segment_of(found, odd)
        given = after in segment.outputs
        names = {before: after} if given else {after: before}
        readers = [f'op "{op.op.name}"' for op in segment.ops if after in op.op.inputs]

        def change(op: LocalOp) -> list[LocalOp]:
            if op is odd:
                return []
            return [_renamed(op, names, outputs=given)] if op.op.block == block else [op]

        return graph, _with_ops(found, change), ("|".join((f'"{_tensor(graph, odd)}"', *readers)),)

    return mutant


def twice(form: str, number: int = 0) -> Mutant:
    """A collective stands a second time behind the first."""

    def mutant(graph: Graph, found: Program) -> Broken:
        odd = _nth(found, form, number)
        if odd is None:
            return None
        (after,) = odd.op.outputs
        once = replace(odd, op=replace(odd.op, outputs=(f"{after}.once",)))
        again = replace(odd, op=replace(odd.op, name=f"{odd.op.name}.again", inputs=(f"{after}.once",)))
        return graph, _with_op(found, odd, once, again), (f'op "{odd.op.name}.again"', _tensor(graph, odd))

    return mutant


def completed_and_summed(graph: Graph, found: Program) -> Broken:
    """What a layer or a table has summed already is summed again by an op of its own."""
    odd = _nth(found, "row") or _nth(found, "vocabulary", kind="embedding")
    if odd is None:
        return None
    (after,) = odd.op.outputs
    once = replace(odd, op=replace(odd.op, outputs=(f"{after}.once",)))
    total = Op(f"{after}.sum", "sum_devices", (f"{after}.once",), (after,), odd.op.block)
    again = LocalOp(total, "sum", odd.shapes, odd.axes[-1:])
    return graph, _with_op(found, odd, once, again), (f"{after}.sum", "more than once")


def left_to_one(graph: Graph, found: Program) -> Broken:
    """A layer or a table with its reduced dim cut is taken for one that needs no sum."""
    odd = _nth(found, "row") or _nth(found, "vocabulary", kind="embedding")
    if odd is None:
        return None
    broken = _with_op(found, odd, replace(odd, form="local"))
    return graph, broken, (f'op "{odd.op.name}"', odd.op.inputs[0])


def partial_into(graph: Graph, found: Program) -> Broken:
    """An op that isn't linear gets each device's (or each turn's) product instead of the sum."""
    for total in ops_of(found):
        if total.form not in ("sum", "scatter"):
            continue
        ops = _segment_of(found, total).ops
        # What is summed after a region that runs in turns is made there: nothing behind it can read the parts.
        behind = ops[ops.index(total) + 1 :]
        reader = next((op for op in behind if op.op.kind in NON_LINEAR and op.form not in COLLECTIVES), None)
        if reader is None:
            continue
        values = [n for n in reader.op.inputs if n not in graph.tensor or graph.tensor[n].role == "value"]
        odd = _renamed(reader, {values[0]: total.op.inputs[0]})
        return graph, _with_op(found, reader, odd), (f'op "{reader.op.name}"', _tensor(graph, total), "partial sum")
    return None


def normalised_over_the_cut(graph: Graph, found: Program) -> Broken:
    """What works element by element becomes a softmax along the dim that is cut."""
    for odd in ops_of(found):
        if odd.form != "local" or odd.op.kind not in ELEMENTWISE or odd.op.name not in {op.name for op in graph.ops}:
            continue
        whole = graph.tensor[next(op for op in graph.ops if op.name == odd.op.name).outputs[0]].shape
        cut = [dim for dim, (a, b) in enumerate(zip(whole, odd.shapes[0], strict=True)) if a != b]
        if not cut or len(odd.op.inputs) != 1:
            continue
        now = {"kind": "softmax", "attributes": {"dim": cut[0]}}
        ops = tuple(replace(op, **now) if op.name == odd.op.name else op for op in graph.ops)
        local = replace(odd, op=replace(odd.op, **now))
        return (
            replace(graph, ops=ops),
            _with_op(found, odd, local),
            (f'op "{odd.op.name}"', "softmax", "needs that dim whole"),
        )
    return None


def other_pieces(form: str, key: str, place: str = "") -> Mutant:
    """A collective takes or cuts pieces of another dim, or of more parts, than there are."""

    def mutant(graph: Graph, found: Program) -> Broken:
        odd = _nth(found, form)
        if odd is None:
            return None
        inner = odd.op.attributes[place] if place else odd.op.attributes
        now = {**inner, key: inner[key] + 1}
        attributes = {**odd.op.attributes, place: now} if place else now
        named = f'op "{odd.op.name}"|"{_tensor(graph, odd)}"'
        return graph, _with_attributes(found, odd, attributes), (named,)

    return mutant


def rows_counted_from_the_first(graph: Graph, found: Program) -> Broken:
    """Attention of some rows whose mask begins at row 0 on every device."""
    odd = _nth(found, "queries")
    if odd is None:
        return None
    attributes = {name: value for name, value in odd.op.attributes.items() if name != "rows"}
    return graph, _with_attributes(found, odd, attributes), (f'op "{odd.op.name}"', "wrong offset")


def another_region(change: Callable[[int, int, int], tuple[int, int, int]]) -> Mutant:
    """Other ops than those of a class, or more turns than there are slices, run in turns."""

    def mutant(graph: Graph, found: Program) -> Broken:
        segment = next((s for p in found.pieces for s in p.segments if s.regions), None)
        if segment is None:
            return None
        region = segment.regions[0]
        start, stop, size = change(region.start, region.stop, region.size)
        regions = (replace(region, start=start, stop=stop, size=size), *segment.regions[1:])

        def changed(other: Segment) -> Segment:
            return replace(segment, regions=regions) if other is segment else other

        broken = with_pieces(found, lambda p: replace(p, segments=tuple(map(changed, p.segments))))
        return graph, broken, ('block "|op "', f'"{region.axis}"|turns')

    return mutant


def the_same_part_for_each(graph: Graph, found: Program) -> Broken:
    """A parameter of which each device has the same part."""
    for piece in found.pieces:
        for name, shard in piece.parameters.items():
            if shard is not None:
                same = _Same(shard.dim, shard.parts, shard.pieces, shard.size, shard.padded, shard.axis)
                return graph, _with_shard(found, name, same), (f'"{name}"', "holds [0, ")
    return None


class _Same(Shard):
    """Each device has what the first has."""

    def intervals(self, piece: int) -> list[tuple[int, int]]:
        return super().intervals(0)


def gradient_of_pieces_never_summed(graph: Graph, found: Program) -> Broken:
    """A parameter whose readers work on pieces of the tokens or samples, and whose gradient nobody sums over them."""
    partial = next((p.partial for p in found.pieces if p.partial), None)
    if partial is None:
        return None
    name = next(iter(partial))
    return graph, _without_partial(found, name, range(len(found.pieces))), (f'"{name}"', "never summed|partial")


def whole_gradient_summed(graph: Graph, found: Program) -> Broken:
    """A parameter whose gradient each device has in full is summed over them."""
    for piece in found.pieces:
        axis = next((axis.name for axis in found.inner[piece.stage] if axis.size > 1), None)
        whole = [n for n, shard in piece.parameters.items() if not shard and n not in piece.partial]
        name = next((n for n in whole if graph.tensor[n].gradient), None)
        if axis is None or name is None:
            continue
        pieces = list(found.pieces)
        pieces[piece.stage] = replace(piece, partial={**piece.partial, name: (axis,)})
        return graph, replace(found, pieces=tuple(pieces)), (f'"{name}"',)
    return None


def gradient_of_a_copy_summed_elsewhere(graph: Graph, found: Program) -> Broken:
    """The owner of a tied table sums its gradient over the devices; the devices of a copy have all of theirs."""
    for name, (_, copy, *_) in found.shared.items():
        for axis in found.pieces[copy].partial.get(name, ())[:1]:
            reader = next(op for s in found.pieces[copy].segments for op in s.ops if name in op.op.inputs)
            enter = Op(f"{name}.enter", "enter", (name,), (f"{name}.entered",), reader.op.block)
            entered = LocalOp(enter, "enter", (graph.tensor[name].shape,), (axis,))
            broken = _with_op(found, reader, entered, _renamed(reader, {name: f"{name}.entered"}))
            return graph, _without_partial(broken, name, [copy]), (f'parameter "{name}"', "partial over other axes")
    return None


def _without_partial(found: Program, name: str, stages: Collection[int]) -> Program:
    def changed(piece: Piece) -> Piece:
        kept = {n: axes for n, axes in piece.partial.items() if n != name}
        return replace(piece, partial=kept) if piece.stage in stages else piece

    return with_pieces(found, changed)


def unequal_copies(graph: Graph, found: Program) -> Broken:
    """The last stage has half as many copies of twice as many devices: each of its samples counts twice."""
    last = len(found.dp) - 1
    if last == 0:
        return None
    ours = replace(found.shares[last], dp=2 * found.dp[-1])
    return graph, replace(found, shares=(*found.shares[:-1], ours)), (str([*found.dp[:-1], ours.dp]), "count unequally")


def other_samples(graph: Graph, found: Program) -> Broken:
    """The loss of a turn is taken for that of twice as many samples."""
    shares = tuple(replace(share, samples=2 * share.samples) for share in found.shares)
    return graph, replace(found, shares=shares), (f"{shares[0].samples} samples", graph.name)


def loss_is_a_mean(graph: Graph, found: Program) -> Broken:
    """A micro-batch's, or a piece's, own mean in the place of a sum over tokens."""
    if graph.loss is None:
        return None
    loss = next(o for o in ops_of(found) if o.op.kind == "cross_entropy")
    args = [*loss.op.attributes["args"][:3], 1, *loss.op.attributes["args"][4:]]
    return graph, _with_attributes(found, loss, loss.op.attributes | {"args": args}), (f'op "{loss.op.name}"',)


def other_tokens_ignored(graph: Graph, found: Program) -> Broken:
    if graph.loss is None:
        return None
    loss = next(o for o in ops_of(found) if o.op.kind == "cross_entropy")
    args = [*loss.op.attributes["args"][:4], 0, *loss.op.attributes["args"][5:]]
    return graph, _with_attributes(found, loss, loss.op.attributes | {"args": args}), (f'op "{loss.op.name}"', "-100")


def each_stage_its_own(graph: Graph, found: Program) -> Broken:
    """Nobody sends a shared parameter's gradient: each stage updates what it has."""
    if not found.shared:
        return None
    apart = with_pieces(found, lambda p: replace(p, copies=()))
    alone = with_tasks(apart, lambda d, t: [] if t.transfer and t.transfer.what.startswith("param") else [t])
    return graph, replace(alone, shared={}), ("|".join(found.shared), "separately")


def one_copy_its_own(graph: Graph, found: Program) -> Broken:
    """The last of a parameter's stages doesn't know that it has a copy."""
    for name, (owner, *copies) in found.shared.items():
        last, pieces = copies[-1], list(found.pieces)
        pieces[last] = replace(pieces[last], copies=tuple(n for n in pieces[last].copies if n != name))
        broken = replace(found, pieces=tuple(pieces))
        return graph, broken, (f'parameter "{name}"', str([owner, last]), "separately")
    return None


def other_places_in_the_head(graph: Graph, found: Program) -> Broken:
    """The devices of the last stage in another order: one holds two different parts of a tied table."""
    tied = next((stages for name, stages in found.shared.items() if found.pieces[0].parameters.get(name)), None)
    last = len(found.devices_of) - 1
    if tied is None or found.devices_of[0] != found.devices_of[last]:
        return None
    one, two, *rest = found.devices_of[last]
    swapped = {one: found.place(two, last), two: found.place(one, last)}
    places = {
        d: tuple(swapped[d] if p.stage == last and d in swapped else p for p in served)
        for d, served in found.places.items()
    }
    devices_of = (*found.devices_of[:last], (two, one, *rest))
    return graph, replace(found, places=places, devices_of=devices_of), (f"device {one}", "would hold the parts [0, 1]")


def other_places(graph: Graph, found: Program) -> Broken:
    """Two devices of a stage with each other's place: what is put together from them is in the wrong order."""
    stage = next((stage for stage, tp in enumerate(found.widths) if tp > 1), None)
    if stage is None:
        return None
    one, two = found.devices_of[stage][:2]
    swapped = {one: found.place(two, stage), two: found.place(one, stage)}
    places = {
        d: tuple(swapped[d] if p.stage == stage and d in swapped else p for p in served)
        for d, served in found.places.items()
    }
    return (
        graph,
        replace(found, places=places),
        (f"device {one} of stage {stage}", "copy 0, part 1"),
    )


def lost_block(number: int) -> Mutant:
    def mutant(graph: Graph, found: Program) -> Broken:
        block = graph.blocks[number].name
        broken = with_pieces(found, lambda p: replace(p, segments=tuple(s for s in p.segments if s.block != block)))
        return graph, broken, (f'block "{block}"', "in no stage")

    return mutant


def doubled_block(graph: Graph, found: Program) -> Broken:
    extra, last = found.pieces[0].segments[-1], found.pieces[-1].stage
    broken = with_pieces(found, lambda p: replace(p, segments=(extra, *p.segments)) if p.stage == last else p)
    return graph, broken, (f'block "{extra.block}"', "again in stage")


def padding_counted(graph: Graph, found: Program) -> Broken:
    """A table of 129 rows is taken for one of 130."""
    for piece in found.pieces:
        for name, shard in piece.parameters.items():
            if shard is not None and shard.padded != shard.size:
                counted = replace(shard, size=shard.padded)
                return graph, _with_shard(found, name, counted), (f'parameter "{name}"', str(shard.padded), "padding")
    return None


def padded_classes_counted(graph: Graph, found: Program) -> Broken:
    loss = _nth(found, "vocabulary", kind="cross_entropy")
    if loss is None or "vocabulary" not in loss.op.attributes:
        return None
    real = loss.op.attributes["vocabulary"]
    odd = _with_attributes(found, loss, loss.op.attributes | {"vocabulary": real + 1})
    return graph, odd, (f'op "{loss.op.name}"', "padding")


def padded_rows_put_together(graph: Graph, found: Program) -> Broken:
    gather = _nth(found, "gather") or _nth(found, "gather_entered")
    if gather is None:
        return None
    size = gather.op.attributes["size"]
    odd = _with_attributes(found, gather, gather.op.attributes | {"size": size + 1})
    return graph, odd, (gather.op.name, "padding", str(size))
