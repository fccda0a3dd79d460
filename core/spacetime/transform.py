"""op-trans: cut the ops of every stage into the code that one of its devices runs.

Tensor parallelism cuts the classes of dims that ``graph.cuts`` finds; ops, shapes and attributes become local, and
what must be summed is marked. Follows SuperScaler (section 3.2): views change, tensors don't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partita.errors import PlanError
from partita.graph import Graph, Op
from partita.graph.cuts import SUMS, CutClass, block_cuts
from partita.redistribution import Layout
from partita.spacetime.program import Form, LocalOp, Piece, Segment, Shard

# Ops that draw random numbers: never computed twice for the same micro-batch on two stages.
RANDOM = frozenset(
    """
    dropout native_dropout alpha_dropout feature_dropout feature_alpha_dropout rrelu rrelu_with_noise
    rrelu_with_noise_functional rand randn randint randperm rand_like randn_like randint_like bernoulli binomial cauchy
    exponential geometric log_normal multinomial normal normal_functional poisson random uniform
    _sample_dirichlet _standard_gamma gru lstm rnn_relu rnn_tanh
    """.split()
)


@dataclass(frozen=True)
class BlockCode:
    """What transform needs to know of a block: the classes of its dims to cut, whether it is computed again."""

    name: str
    cuts: frozenset[str]
    recompute: bool


@dataclass(frozen=True)
class StageCode:
    """A stage's blocks in order, and over how many devices the classes are cut."""

    blocks: tuple[BlockCode, ...]
    tp: int


def transform(graph: Graph, stages: Sequence[StageCode], *, returned: bool = False) -> tuple[Piece, ...]:
    """A piece for each stage. PlanError when tp can't cut a block, or a parameter would be cut in two ways.

    Pieces give the loss, or of a model without one all that it returns; ``returned``: both.
    """
    free = constant_ops(graph)
    stage_of = {block.name: index for index, stage in enumerate(stages) for block in stage.blocks}
    shards = _parameter_shards(graph, stages)
    makers = {name: stage_of[op.block] for op in graph.ops if op.name not in free for name in op.outputs}
    readers: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.name not in free:
            for name in op.inputs:
                readers.setdefault(name, set()).add(stage_of[op.block])
    pieces = []
    for index, stage in enumerate(stages):
        blocks = [_local_block(graph, block, stage.tp, free) for block in stage.blocks]
        ops = [local.op for block in blocks for local in block]
        read = _ordered(name for op in ops for name in op.inputs)
        outer = [name for name in read if name not in makers]
        constants, leaves = _constants(graph, free, outer, index, graph_loss(graph, makers))
        inputs = tuple(name for name in read if makers.get(name, index) != index)
        made = [name for name, maker in makers.items() if maker == index]
        ends = {graph.loss.tensor} if graph.loss else set()
        ends |= set(graph.outputs) if returned or not graph.loss else set()
        outputs = tuple(name for name in made if readers.get(name, set()) - {index} or name in ends)
        segments = tuple(
            _segment(graph, block, blocks, position, outputs) for position, block in enumerate(stage.blocks)
        )
        parameters = {name: shards[index].get(name) for name in read if _role(graph, name) == "parameter"}
        first = {name: stage_of[users[0]] for name, users in graph.parameter_users.items()}
        pieces.append(
            Piece(
                index, constants, segments,
                batch=tuple(n for n in leaves if _role(graph, n) == "input"), inputs=inputs, outputs=outputs,
                parameters=parameters, copies=tuple(n for n in parameters if first[n] != index),
                buffers=tuple(n for n in leaves if _role(graph, n) == "buffer"),
            )
        )  # fmt: skip
    return tuple(pieces)


def _segment(
    graph: Graph, block: BlockCode, blocks: Sequence[tuple[LocalOp, ...]], position: int, outputs: tuple[str, ...]
) -> Segment:
    """A block's code with what it reads from outside and what others read of it (later blocks, or other stages)."""
    made = {name for local in blocks[position] for name in local.op.outputs}
    read = _ordered(name for local in blocks[position] for name in local.op.inputs)
    later = {name for ops in blocks[position + 1 :] for local in ops for name in local.op.inputs} | set(outputs)
    return Segment(
        block.name, blocks[position], block.recompute,
        inputs=tuple(name for name in read if name not in made and _role(graph, name) != "parameter"),
        outputs=tuple(name for local in blocks[position] for name in local.op.outputs if name in later),
    )  # fmt: skip


def graph_loss(graph: Graph, makers: Mapping[str, int]) -> tuple[int, str] | None:
    """The stage that needs the targets of a loss weighted by tokens, and their name."""
    if graph.loss is None or graph.loss.targets is None:
        return None
    return makers[graph.loss.tensor], graph.loss.targets


def constant_ops(graph: Graph) -> set[str]:
    """Names of the ops that depend on no parameter and on no random number: masks, positions, shifted labels."""
    known = {tensor.name for tensor in graph.tensors if tensor.role in ("input", "buffer")}
    found = set()
    for op in graph.ops:
        if op.kind not in RANDOM and all(name in known for name in op.inputs):
            known.update(op.outputs)
            found.add(op.name)
    return found


def _role(graph: Graph, name: str) -> str:
    return graph.tensor[name].role if name in graph.tensor else "value"


def _ordered(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


def _constants(
    graph: Graph, free: set[str], read: list[str], stage: int, loss: tuple[int, str] | None
) -> tuple[tuple[LocalOp, ...], list[str]]:
    """The constant ops that a stage needs, whole, and the inputs and buffers that it reads."""
    wanted = {name for name in read if _role(graph, name) != "parameter"}
    if loss and loss[0] == stage:
        wanted.add(loss[1])
    needed = []
    for op in reversed(graph.ops):
        if op.name in free and wanted & set(op.outputs):
            needed.append(LocalOp(op, "whole", tuple(graph.tensor[name].shape for name in op.outputs)))
            wanted.update(op.inputs)
    leaves = [t.name for t in graph.tensors if t.name in wanted and t.role in ("input", "buffer")]
    return tuple(reversed(needed)), leaves


def _parameter_shards(graph: Graph, stages: Sequence[StageCode]) -> list[dict[str, Shard]]:
    """For each stage the parameters that are cut; PlanError when two blocks want a shared one cut differently."""
    result: list[dict[str, Shard]] = []
    overall: dict[str, tuple[str, Shard | None]] = {}
    for stage in stages:
        found: dict[str, Shard] = {}
        for block in stage.blocks:
            cuts = classes(graph, block, stage.tp)
            for op in graph.block_ops[block.name]:
                for name in op.inputs:
                    if graph.tensor[name].role != "parameter":
                        continue
                    shard = _shard(graph, name, cuts, stage.tp)
                    before = overall.setdefault(name, (block.name, shard))
                    if before[1] != shard:
                        raise PlanError(
                            f'"{name}" is shared by the blocks "{before[0]}" and "{block.name}", which lay it out '
                            f'as "{_layout(graph, name, before[1])}" and "{_layout(graph, name, shard)}"; tp=1 works'
                        )
                    if shard:
                        found[name] = shard
        result.append(found)
    return result


def classes(graph: Graph, block: BlockCode, tp: int) -> tuple[CutClass, ...]:
    """The classes to cut in the block. PlanError for a name that it doesn't have, or a class that tp doesn't divide."""
    if not block.cuts or tp == 1:
        return ()
    known = block_cuts(graph, block.name, gathered=graph.loss is None)
    odd = block.cuts - {cut.name for cut in known}
    if odd:
        has = ", ".join(dict.fromkeys(cut.name for cut in known)) or "none"
        raise PlanError(f'block "{block.name}" has no dims "{min(odd)}" that could be cut; it has {has}')
    found = tuple(cut for cut in known if cut.name in block.cuts)
    for cut in found:
        cut.require(tp, block.name)
    return found


def _shard(graph: Graph, name: str, cuts: tuple[CutClass, ...], tp: int) -> Shard | None:
    for cut in cuts:
        if name in cut.dims:
            dim, parts = cut.dims[name]
            size = graph.tensor[name].shape[dim]
            return Shard(dim, parts, tp, size, _padded(size, tp * parts))
    return None


def _layout(graph: Graph, name: str, shard: Shard | None) -> Layout:
    """How a parameter lies on its stage's mesh while it is used."""
    dims = range(len(graph.tensor[name].shape))
    return Layout(tuple(("tensor",) if shard and dim == shard.dim else () for dim in dims))


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _summed_loss(graph: Graph, op: Op) -> Op:
    """The loss as a sum over tokens: the mean is taken over the global batch, not over a micro-batch."""
    if graph.loss is None or graph.loss.weighting != "tokens" or graph.loss.tensor not in op.outputs:
        return op
    if "target" not in op.attributes:
        return op
    args = [*op.attributes["args"][:2], None, 2, graph.loss.ignore_index]
    return replace(op, attributes=op.attributes | {"args": args, "kwargs": {}})


def _local_block(graph: Graph, block: BlockCode, tp: int, free: set[str]) -> tuple[LocalOp, ...]:
    """The block's ops on one of ``tp`` devices, with ``enter`` and ``sum`` ops where values are shared or partial."""
    cuts = classes(graph, block, tp)
    owner = {name: cut for cut in cuts for name in cut.ops}
    # Cut values that the model returns: inside the block there are pieces of them, after it the whole.
    returned = {name for cut in cuts for name in cut.dims if graph.loss is None and name in graph.outputs}
    entered: set[str] = set()
    ops: list[LocalOp] = []
    for op in graph.block_ops[block.name]:
        if op.name in free:
            continue
        op = _summed_loss(graph, op)
        cut = owner.get(op.name)
        if cut is None:
            ops.append(LocalOp(op, "whole", tuple(graph.tensor[name].shape for name in op.outputs)))
            continue
        partial = bool(set(op.outputs) & set(cut.reductions))
        form = _form(op, cut, partial)
        renamed = []
        for name in op.inputs:
            if name in cut.entries and not partial:
                if name not in entered:
                    entered.add(name)
                    enter = Op(f"{name}.enter", "enter", (name,), (f"{name}.entered",), block.name)
                    ops.append(LocalOp(enter, "enter", (graph.tensor[name].shape,)))
                name = f"{name}.entered"
            renamed.append(f"{name}.piece" if name in returned else name)
        outputs = tuple(f"{name}.piece" if name in returned else name for name in op.outputs)
        if partial and form == "local":
            outputs = tuple(f"{name}.partial" for name in outputs)
        shapes = tuple(local_shape(graph, name, cut, tp) for name in op.outputs)
        local = replace(op, inputs=tuple(renamed), outputs=outputs, attributes=_localised(graph, op, cut, tp, shapes))
        ops.append(LocalOp(local, form, shapes))
        if partial and form == "local":
            for name, before in zip(op.outputs, outputs, strict=True):
                ops.append(LocalOp(Op(f"{name}.sum", "sum_devices", (before,), (name,), block.name), "sum", shapes))
        ops += [_gather(graph, name, cut, block.name) for name in op.outputs if name in returned]
    return tuple(ops)


def _gather(graph: Graph, name: str, cut: CutClass, block: str) -> LocalOp:
    """The whole of a returned value, without padding, from the pieces."""
    shape = graph.tensor[name].shape
    dim, parts = cut.dims[name]
    assert parts == 1, "a fused dim isn't returned"
    where = {"dim": dim, "size": shape[dim]}
    return LocalOp(
        Op(f"{name}.gather", "gather", (f"{name}.piece",), (name,), block, attributes=where), "gather", (shape,)
    )


def _form(op: Op, cut: CutClass, partial: bool) -> Form:
    if op.kind in ("linear", "addmm"):
        return "row" if partial else "column"
    if op.kind in ("embedding", "cross_entropy") and cut.name == "vocabulary":
        return "vocabulary"
    assert not partial or op.kind in SUMS
    return "local"


def local_shape(graph: Graph, name: str, cut: CutClass, tp: int) -> tuple[int, ...]:
    """The shape of one device's part of a tensor."""
    shape = list(graph.tensor[name].shape)
    if name in cut.dims:
        dim, parts = cut.dims[name]
        shape[dim] = _padded(shape[dim], tp * parts) // tp
    return tuple(shape)


def _localised(graph: Graph, op: Op, cut: CutClass, tp: int, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """The op's attributes with the sizes in them made local: target shapes of views, sizes of splits."""
    attributes = dict(op.attributes)
    if "target" not in attributes:
        if op.kind in ("attention",):
            attributes |= {key: attributes[key] // tp for key in ("heads", "kv_heads")}
        return attributes
    args = list(attributes["args"])
    if op.kind == "view":
        return attributes | {"target": "aten.reshape.default", "args": [args[0], list(shapes[0])], "kwargs": {}}
    if op.kind == "expand":
        args[1] = list(shapes[0])
    if op.kind == "cross_entropy":
        # The real number of classes: the logits may have padding columns.
        attributes["vocabulary"] = graph.tensor[op.inputs[0]].shape[-1]
    if op.kind == "split":
        name = op.inputs[0]
        dim = cut.dims[name][0]
        if graph.tensor[op.outputs[0]].shape[dim] != shapes[0][dim]:
            sizes = [shape[dim] for shape in shapes]
            return attributes | {"target": "aten.split.Tensor", "args": [args[0], sizes[0], dim], "kwargs": {}}
    return attributes | {"args": args}
