"""What breaks plans in practice, in the code of a stage: sums, shards, layers. Each is one change to a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from partita.graph import Graph, Op
from partita.spacetime.program import LocalOp, Piece, Program, Shard
from tests.spacetime.programs import Broken, Mutant, ops_of, with_ops, with_pieces


def _first(found: Program, form: str, kind: str = "") -> LocalOp | None:
    return next((o for o in ops_of(found) if o.form == form and kind in ("", o.op.kind)), None)


def _replaced(found: Program, old: LocalOp, *new: LocalOp) -> Program:
    return with_ops(found, lambda op: list(new) if op is old else [op])


def _reading(op: LocalOp, old: str, new: str) -> LocalOp:
    return replace(op, op=replace(op.op, inputs=tuple(new if name == old else name for name in op.op.inputs)))


def sum_left_out(graph: Graph, found: Program) -> Broken:
    """A linear layer with its reduced dim cut that nothing sums."""
    row = _first(found, "row")
    if row is None:
        return None
    return graph, _replaced(found, row, replace(row, form="local")), (row.op.name,)


def sum_op_left_out(graph: Graph, found: Program) -> Broken:
    """The op that sums is gone, and what it would have made is the partial value."""
    total = _first(found, "sum")
    if total is None:
        return None
    (before,), (after,) = total.op.inputs, total.op.outputs

    def change(op: LocalOp) -> list[LocalOp]:
        if op is total:
            return []
        return [replace(op, op=replace(op.op, outputs=(after,)))] if op.op.outputs == (before,) else [op]

    return graph, with_ops(found, change), (after, "partial sum", "missing")


def sum_of_the_table_left_out(graph: Graph, found: Program) -> Broken:
    op = _first(found, "vocabulary", "embedding")
    if op is None:
        return None
    named = (op.op.name, op.op.inputs[0], "needs a sum over the devices")
    return graph, _replaced(found, op, replace(op, form="local")), named


def gradient_never_summed(graph: Graph, found: Program) -> Broken:
    """Whole values read by pieces whose gradients no device adds up."""
    enter = _first(found, "enter")
    if enter is None:
        return None
    (name,), (entered,) = enter.op.inputs, enter.op.outputs
    block = enter.op.block
    broken = with_ops(
        found,
        lambda op: [] if op is enter else [_reading(op, entered, name) if op.op.block == block else op],
    )
    return graph, broken, (name, "never summed")


def summed_twice(graph: Graph, found: Program) -> Broken:
    row = _first(found, "row")
    if row is None:
        return None
    (name,) = row.op.outputs
    total = Op(f"{name}.sum", "sum_devices", (f"{name}.once",), (name,), row.op.block)
    again = LocalOp(total, "sum", row.shapes, row.axes[-1:])
    once = replace(row, op=replace(row.op, outputs=(f"{name}.once",)))
    return graph, _replaced(found, row, once, again), (f"{name}.sum", "more than once")


def gradient_summed_twice(graph: Graph, found: Program) -> Broken:
    enter = _first(found, "enter")
    if enter is None:
        return None
    (name,) = enter.op.inputs
    first = replace(enter, op=replace(enter.op, name=f"{name}.before", outputs=(f"{name}.between",)))
    second = _reading(enter, name, f"{name}.between")
    return graph, _replaced(found, enter, first, second), (f"{name}.enter", "already")


def entered_by_whole_ops(graph: Graph, found: Program) -> Broken:
    """The gradient of a value is summed though each device has all of it."""
    for op in ops_of(found):
        if op.form == "whole" and op.op.inputs[0] in graph.tensor and graph.tensor[op.op.inputs[0]].role == "value":
            name = op.op.inputs[0]
            enter = LocalOp(
                Op(f"{name}.enter", "enter", (name,), (f"{name}.odd",), op.op.block),
                "enter", (graph.tensor[name].shape,), ("tensor",),
            )  # fmt: skip
            return graph, _replaced(found, op, enter, _reading(op, name, f"{name}.odd")), (
                f"{op.op.name}|{enter.op.name}", name,
            )  # fmt: skip
    return None


def partial_into_another_op(graph: Graph, found: Program) -> Broken:
    """What isn't linear reads the partial value instead of its sum."""
    total = _first(found, "sum")
    if total is None:
        return None
    (before,), (after,) = total.op.inputs, total.op.outputs
    reader = next(op for op in ops_of(found) if after in op.op.inputs)
    return graph, _replaced(found, reader, _reading(reader, after, before)), (reader.op.name, after, "partial sum")


def normalised_over_a_cut_dim(graph: Graph, found: Program) -> Broken:
    """What works element by element becomes a softmax along the dim that is cut."""
    odd = next((o for o in ops_of(found) if o.form == "local" and o.op.kind in ("relu", "gelu", "silu")), None)
    if odd is None:
        return None
    last = {"dim": -1}
    ops = tuple(
        replace(op, kind="softmax", attributes=last) if op.name == odd.op.name else op for op in graph.ops
    )  # fmt: skip
    local = replace(odd, op=replace(odd.op, kind="softmax", attributes=last))
    return replace(graph, ops=ops), _replaced(found, odd, local), (odd.op.name, "softmax", odd.op.inputs[0], "whole")


def _with_shard(found: Program, name: str, shard: Shard) -> Program:
    return with_pieces(
        found,
        lambda p: replace(p, parameters={**p.parameters, name: shard}) if p.parameters.get(name) else p,
    )


def _shards(found: Program) -> list[tuple[str, Shard]]:
    return [(name, shard) for p in found.pieces for name, shard in p.parameters.items() if shard]


@dataclass(frozen=True)
class Shifted(Shard):
    """One index off in every piece."""

    def intervals(self, piece: int) -> list[tuple[int, int]]:
        return [(min(start + 1, self.size), min(stop + 1, self.size)) for start, stop in super().intervals(piece)]


def shard_one_off(graph: Graph, found: Program) -> Broken:
    for name, shard in _shards(found):
        shifted = Shifted(shard.dim, shard.parts, shard.pieces, shard.size, shard.padded)
        return graph, _with_shard(found, name, shifted), (name, "[1, ", "[0, ")
    return None


def fused_parts_taken_for_one(graph: Graph, found: Program) -> Broken:
    """The first device gets the queries and half of the keys instead of its heads of each."""
    for name, shard in _shards(found):
        if shard.parts > 1:
            return graph, _with_shard(found, name, replace(shard, parts=1)), ("equal parts", "wrong offset")
    return None


def cut_along_another_dim(graph: Graph, found: Program) -> Broken:
    for name, shard in _shards(found):
        shape = graph.tensor[name].shape
        if len(shape) == 2 and shape[1 - shard.dim] % shard.pieces == 0 and shard.parts == 1:
            size = shape[1 - shard.dim]
            reader = "|".join(op.name for op in graph.ops if name in op.inputs)
            return graph, _with_shard(found, name, Shard(1 - shard.dim, 1, shard.pieces, size, size)), (reader,)
    return None


def two_devices_with_one_part(graph: Graph, found: Program) -> Broken:
    first, second = found.devices_of[-1][:2] if len(found.devices_of[-1]) > 1 else (None, None)
    if first is None or second is None:
        return None
    return graph, replace(found, places={**found.places, second: found.places[first]}), (f"{first}, {second}",)


def padding_counted_in_the_shard(graph: Graph, found: Program) -> Broken:
    for name, shard in _shards(found):
        if shard.padded != shard.size:
            return graph, _with_shard(found, name, replace(shard, size=shard.padded)), (name, "padding")
    return None


def padding_counted_in_the_loss(graph: Graph, found: Program) -> Broken:
    loss = _first(found, "vocabulary", "cross_entropy")
    if loss is None or "target" not in loss.op.attributes:
        return None
    real = loss.op.attributes["vocabulary"]
    odd = replace(loss, op=replace(loss.op, attributes=loss.op.attributes | {"vocabulary": real + 1}))
    return graph, _replaced(found, loss, odd), (loss.op.name, str(real), str(real + 1), "padding")


def padding_counted_in_what_is_returned(graph: Graph, found: Program) -> Broken:
    gather = _first(found, "gather")
    if gather is None:
        return None
    size = gather.op.attributes["size"]
    odd = replace(gather, op=replace(gather.op, attributes=gather.op.attributes | {"size": size + 1}))
    return graph, _replaced(found, gather, odd), (gather.op.name, "padding", str(size + 1))


def loss_averaged_over_the_micro_batch(graph: Graph, found: Program) -> Broken:
    if graph.loss is None or graph.loss.weighting != "tokens":
        return None
    loss = next(o for o in ops_of(found) if graph.loss.tensor in o.op.outputs)
    if "target" not in loss.op.attributes:
        return None
    args = [*loss.op.attributes["args"][:3], 1, *loss.op.attributes["args"][4:]]
    odd = replace(loss, op=replace(loss.op, attributes=loss.op.attributes | {"args": args}))
    return graph, _replaced(found, loss, odd), (loss.op.name, "sum its losses")


def copies_that_differ_between_stages(graph: Graph, found: Program) -> Broken:
    first = replace(found.shares[0], dp=found.dp[0] + 1)
    words = ("unequally" if len(found.dp) > 1 else "dp=",)
    return graph, replace(found, shares=(first, *found.shares[1:])), words


def lost_block(graph: Graph, found: Program) -> Broken:
    name = found.pieces[-1].segments[-1].block
    return graph, with_pieces(found, _drop_segment(name)), (f'block "{name}"', "in no stage")


def _drop_segment(name: str) -> Callable[[Piece], Piece]:
    return lambda p: replace(p, segments=tuple(s for s in p.segments if s.block != name))


def doubled_block(graph: Graph, found: Program) -> Broken:
    extra = found.pieces[0].segments[-1]
    last = found.pieces[-1].stage
    broken = with_pieces(found, lambda p: replace(p, segments=(extra, *p.segments)) if p.stage == last else p)
    return graph, broken, (f'block "{extra.block}"', "again in stage")


def lost_op(graph: Graph, found: Program) -> Broken:
    odd = ops_of(found)[len(ops_of(found)) // 2]
    if odd.form in ("enter", "sum", "gather"):
        return None
    return graph, _replaced(found, odd), (f'op "{odd.op.name}"', "in no stage")


def doubled_op(graph: Graph, found: Program) -> Broken:
    odd = next(o for o in ops_of(found)[3:] if o.form not in ("enter", "sum", "gather"))
    return graph, _replaced(found, odd, odd, odd), (f'op "{odd.op.name}"', "count twice")


PIECES: dict[str, Mutant] = {
    "an all-reduce missing": sum_left_out,
    "an all-reduce missing, an op of its own": sum_op_left_out,
    "an all-reduce missing after a table": sum_of_the_table_left_out,
    "an all-reduce missing, of a gradient": gradient_never_summed,
    "an all-reduce twice": summed_twice,
    "an all-reduce twice, of a gradient": gradient_summed_twice,
    "an all-reduce too many, of a gradient": entered_by_whole_ops,
    "a partial value into a non-linear op": partial_into_another_op,
    "a normalisation over a cut dim": normalised_over_a_cut_dim,
    "a shard with a wrong offset": shard_one_off,
    "a shard with a wrong offset, fused parts": fused_parts_taken_for_one,
    "a shard of another dim": cut_along_another_dim,
    "two devices with one part": two_devices_with_one_part,
    "a padded shard counted": padding_counted_in_the_shard,
    "a padded shard counted in the loss": padding_counted_in_the_loss,
    "a padded shard counted in what is returned": padding_counted_in_what_is_returned,
    "a loss over the wrong count": loss_averaged_over_the_micro_batch,
    "copies that differ between stages": copies_that_differ_between_stages,
    "a lost layer": lost_block,
    "a doubled layer": doubled_block,
    "a lost op": lost_op,
    "a doubled op": doubled_op,
}
