"""op-trans: cut the ops of every stage into the code that one of its devices runs.

Tensor parallelism cuts the classes of dims that ``graph.cuts`` finds; ops, shapes and attributes become local, and
what must be summed is marked. Follows SuperScaler (section 3.2): views change, tensors don't.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from partita.errors import PlanError, divisors, listed
from partita.graph import Graph
from partita.graph.attention import insides
from partita.graph.constant import constant_ops
from partita.graph.cuts import CutClass, block_cuts, core_ops
from partita.graph.flows import FLOWS, Tags, flow_tags
from partita.plan import Axis, Cut, Recompute
from partita.redistribution import Layout
from partita.spacetime.again import together
from partita.spacetime.cutting import BlockCutter, StageState
from partita.spacetime.needs import ClassCut
from partita.spacetime.parts import Part
from partita.spacetime.program import COLLECTIVES, LocalOp, Piece, Segment, Shard


@dataclass(frozen=True)
class BlockCode:
    """What transform needs to know of a block: its cuts along the inner axes, what of it is computed again, whether it
    is offloaded."""

    name: str
    cuts: tuple[Cut, ...]
    recompute: Recompute
    offload: bool = False


@dataclass(frozen=True)
class StageCode:
    """A stage's blocks in order, and the axes inside one copy, major first, those of turns last."""

    blocks: tuple[BlockCode, ...]
    axes: tuple[Axis, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Axes along which there is something to cut."""
        return {axis.name: axis.size for axis in self.axes if axis.size > 1}


def transform(graph: Graph, stages: Sequence[StageCode], *, returned: bool = False) -> tuple[Piece, ...]:
    """A piece for each stage. PlanError when an axis can't cut a block, or a parameter would be cut in two ways.

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
    flows = {
        cut.dim
        for stage in stages
        for block in stage.blocks
        for cut in block.cuts
        if not stage.sizes.keys().isdisjoint(cut.axes)
    }
    tags = flow_tags(graph, tuple(flow for flow in FLOWS if flow in flows))
    ends = {graph.loss.tensor} if graph.loss else set()
    ends |= set(graph.outputs) if returned or not graph.loss else set()
    outputs = [
        tuple(n for n, maker in makers.items() if maker == index and (readers.get(n, set()) - {index} or n in ends))
        for index in range(len(stages))
    ]
    cut = [_stage(graph, stage, frozenset(outputs[i]), shards[i], tags, free) for i, stage in enumerate(stages)]
    partial, entered = _gradients(graph, cut)
    cut = [
        _stage(graph, stage, frozenset(outputs[i]), shards[i], tags, free, entered) if entered else cut[i]
        for i, stage in enumerate(stages)
    ]
    pieces = []
    for index, stage in enumerate(stages):
        ops = [op for block in stage.blocks for op in graph.block_ops[block.name] if op.name not in free]
        read = list(dict.fromkeys(name for op in ops for name in op.inputs))
        outer = [name for name in read if name not in makers]
        constants, leaves = _constants(graph, free, outer, index, graph_loss(graph, makers))
        blocks = cut[index].blocks
        parameters = {name: shards[index].get(name) for name in read if _role(graph, name) == "parameter"}
        first = {name: stage_of[users[0]] for name, users in graph.parameter_users.items()}
        pieces.append(
            Piece(
                index, constants,
                tuple(_segment(graph, b, blocks, position, outputs[index]) for position, b in enumerate(stage.blocks)),
                batch=tuple(n for n in leaves if _role(graph, n) == "input"),
                inputs=tuple(name for name in read if makers.get(name, index) != index), outputs=outputs[index],
                parameters=parameters, copies=tuple(n for n in parameters if first[n] != index),
                buffers=tuple(n for n in leaves if _role(graph, n) == "buffer"),
                trains=any(graph.tensor[name].gradient for name in outputs[index]),
                partial={name: partial[name] for name in parameters if name in partial},
            )
        )  # fmt: skip
    return tuple(pieces)


@dataclass(frozen=True)
class _CutStage:
    """A stage's blocks, cut, and how the gradients of its parameters come out along each axis."""

    blocks: tuple[BlockCutter, ...]
    reads: Mapping[tuple[str, str], set[str]]


def _stage(
    graph: Graph, stage: StageCode, whole: frozenset[str], shards: Mapping[str, Shard], tags: Tags, free: set[str],
    entered: frozenset[tuple[str, str]] = frozenset(),
) -> _CutStage:  # fmt: skip
    turns = frozenset(axis.name for axis in stage.axes if axis.kind == "turns")
    state = StageState(graph, stage.sizes, turns, tags, whole, entered)
    for name, shard in shards.items():
        state.values[name] = {name: {shard.axis: Part(shard.dim, shard.parts)}}
    blocks = []
    for block in stage.blocks:
        flows = _flows(block, stage)
        cutter = BlockCutter(state, block.name, _classes(graph, block, stage, flows), flows)
        cutter.cut(free)
        _require_flows(graph, block, stage, flows, cutter)
        blocks.append(cutter)
    return _CutStage(tuple(blocks), state.reads)


def _gradients(graph: Graph, cut: Sequence[_CutStage]) -> tuple[dict[str, tuple[str, ...]], frozenset[tuple[str, str]]]:
    """The axes over which each parameter's gradient is summed at the end of a step; and those over which it must be
    summed where it is read, because other readers, here or in another stage, have all of it."""
    kinds: dict[tuple[str, str], set[str]] = {}
    places: dict[str, int] = {}
    for stage in cut:
        for name in {name for name, _ in stage.reads}:
            places[name] = places.get(name, 0) + 1
        for key, found in stage.reads.items():
            kinds.setdefault(key, set()).update(found)
    partial: dict[str, tuple[str, ...]] = {}
    entered = set()
    for (name, axis), found in kinds.items():
        if not graph.tensor[name].gradient or "partial" not in found:
            continue
        if found == {"partial"} and sum((name, axis) in stage.reads for stage in cut) == places[name]:
            partial[name] = (*partial.get(name, ()), axis)
        else:
            entered.add((name, axis))
    return partial, frozenset(entered)


def _flows(block: BlockCode, stage: StageCode) -> dict[str, str]:
    """The axes along which something flows cut through the block, major first. PlanError for two along one."""
    found: dict[str, str] = {}
    for axis in stage.axes:
        flowing = [cut.dim for cut in block.cuts if cut.dim in FLOWS and axis.name in cut.axes]
        if len(flowing) > 1:
            raise PlanError(f'block "{block.name}" is cut along "{axis.name}" in {listed(flowing)}; one of them works')
        if flowing and axis.kind == "turns":
            raise PlanError(
                f'block "{block.name}" can\'t run pieces of its {flowing[0]} in turns ("{axis.name}"); classes of '
                "dims can, and micro-batches are turns of samples"
            )
        if flowing and axis.size > 1:
            found[axis.name] = flowing[0]
    return found


def _require_flows(
    graph: Graph, block: BlockCode, stage: StageCode, flows: Mapping[str, str], cutter: BlockCutter
) -> None:
    """PlanError where an axis cuts none of the block's ops although the plan says so."""
    cut = {axis for local in cutter.ops for axis in local.axes if local.form not in COLLECTIVES}
    for axis, flow in flows.items():
        if axis not in cut:
            names = {name for op in graph.block_ops[block.name] for name in (*op.inputs, *op.outputs)}
            tags = cutter.stage.tags[flow]
            sizes = sorted({graph.tensor[n].shape[d] // parts for (n, d), parts in tags.items() if n in names})
            found = "it has none"
            if sizes:
                found = f"it has sizes of {listed(sizes)}, which {listed(divisors(gcd(*sizes)))} would divide"
            raise PlanError(f'block "{block.name}" has no {flow} that {axis}={stage.sizes[axis]} could cut: {found}')


def _segment(
    graph: Graph, block: BlockCode, blocks: Sequence[BlockCutter], position: int, outputs: tuple[str, ...]
) -> Segment:
    """A block's code with what it reads from outside and what others read of it (later blocks, or other stages)."""
    ops: list[LocalOp] = blocks[position].ops
    again: list[tuple[int, int]] = []
    if block.recompute == "selective":
        ops, again = together(ops, blocks[position].regions, insides(graph, block.name), block.name)
    made = {name for local in ops for name in local.op.outputs}
    read = dict.fromkeys(name for local in ops for name in local.op.inputs)
    later = set(outputs)
    for other in blocks[position + 1 :]:
        own = {name for local in other.ops for name in local.op.outputs}
        later.update(name for local in other.ops for name in local.op.inputs if name not in own)
    return Segment(
        block.name, tuple(ops), block.recompute == "full",
        inputs=tuple(name for name in read if name not in made and _role(graph, name) != "parameter"),
        outputs=tuple(name for local in ops for name in local.op.outputs if name in later),
        regions=tuple(blocks[position].regions), offload=block.offload, again=tuple(again),
    )  # fmt: skip


def graph_loss(graph: Graph, makers: Mapping[str, int]) -> tuple[int, str] | None:
    """The stage that needs the targets of a loss weighted by tokens, and their name."""
    if graph.loss is None or graph.loss.targets is None:
        return None
    return makers[graph.loss.tensor], graph.loss.targets


def _role(graph: Graph, name: str) -> str:
    return graph.tensor[name].role if name in graph.tensor else "value"


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
            cuts = _classes(graph, block, stage, _flows(block, stage))
            for op in graph.block_ops[block.name]:
                for name in op.inputs:
                    if graph.tensor[name].role != "parameter":
                        continue
                    shard = _shard(graph, block.name, name, cuts, stage)
                    before = overall.setdefault(name, (block.name, shard))
                    if before[1] != shard:
                        raise PlanError(
                            f'"{name}" is shared by the blocks "{before[0]}" and "{block.name}", which lay it out '
                            f"as {_laid_out(graph, name, before[1])} and {_laid_out(graph, name, shard)}; the same "
                            "cuts of both work, and tp=1 works"
                        )
                    if shard:
                        found[name] = shard
        result.append(found)
    return result


def _classes(graph: Graph, block: BlockCode, stage: StageCode, flows: Mapping[str, str]) -> tuple[ClassCut, ...]:
    """The classes to cut in the block, with their axes. PlanError for a name that it doesn't have, and for a class that
    its axes don't divide or can't cut."""
    wanted: dict[str, tuple[Axis, ...]] = {}
    for asked in block.cuts:
        axes = tuple(axis for axis in stage.axes if axis.name in asked.axes and axis.size > 1)
        if asked.dim not in FLOWS and axes:
            wanted[asked.dim] = (*wanted.get(asked.dim, ()), *axes)
    if not wanted:
        return ()
    known = block_cuts(graph, block.name, gathered=graph.loss is None)
    if odd := sorted(wanted.keys() - {cut.name for cut in known}):
        has = listed(dict.fromkeys(cut.name for cut in known)) if known else "none"
        raise PlanError(f'block "{block.name}" has no dims "{odd[0]}" that could be cut; it has {has}')
    found = []
    for cut in known:
        axes = wanted.get(cut.name, ())
        if not axes:
            continue
        _require_axes(block, cut, axes)
        names = tuple(axis.name for axis in axes)
        narrow = cut.name == "experts" and any(name in flows for name in names)
        core = core_ops(graph, cut, block.name) if narrow else cut.ops
        found.append(ClassCut(cut, names, core or cut.ops))
    return tuple(found)


def _require_axes(block: BlockCode, cut: CutClass, axes: tuple[Axis, ...]) -> None:
    """PlanError where a class can't be cut along axes: two of space, turns of what isn't a sum, no even division."""
    space = [axis for axis in axes if axis.kind == "space"]
    turns = [axis for axis in axes if axis.kind == "turns"]
    for several in (space, turns):
        if len(several) > 1:
            names = listed(axis.name for axis in several)
            raise PlanError(f'the dims "{cut.name}" of block "{block.name}" are cut along {names}; one of them works')
    if turns and (cut.name == "vocabulary" or not cut.reductions):
        raise PlanError(
            f'block "{block.name}" can\'t run its dims "{cut.name}" in turns ("{turns[0].name}"): the turns must add up'
        )
    pieces = prod(axis.size for axis in axes)
    cut.require(pieces, block.name, [axis.name for axis in axes])


def _shard(graph: Graph, block: str, name: str, cuts: Iterable[ClassCut], stage: StageCode) -> Shard | None:
    """How a device holds a parameter: along an axis of turns it has all of it."""
    for cut in cuts:
        read = any(op.name in cut.ops and name in op.inputs for op in graph.block_ops[block])
        axes = [axis for axis in stage.axes if axis.name in cut.axes and axis.kind == "space"]
        if name in cut.found.dims and read and axes:
            dim, parts = cut.found.dims[name]
            size, pieces = graph.tensor[name].shape[dim], axes[0].size
            return Shard(dim, parts, pieces, size, -(-size // (pieces * parts)) * pieces * parts, axes[0].name)
    return None


def _laid_out(graph: Graph, name: str, shard: Shard | None) -> str:
    return f'"{_layout(graph, name, shard)}"' + (f" over {shard.pieces} devices" if shard else "")


def _layout(graph: Graph, name: str, shard: Shard | None) -> Layout:
    """How a parameter lies on its stage's mesh while it is used."""
    dims = range(len(graph.tensor[name].shape))
    return Layout(tuple((shard.axis,) if shard and dim == shard.dim else () for dim in dims))
