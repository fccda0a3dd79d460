"""A plan written by hand: op-trans, op-assign and op-order, recorded into a Plan.

The three primitives of SuperScaler (section 3), on blocks of the model instead of single ops. ``op_assign`` makes a
stage: blocks and the devices that hold them, as a mesh with axes of space. ``op_trans`` cuts dims of blocks along an
axis: of space, so that the pieces lie on different devices, or of turns, so that they run one after another on the same
one. ``op_order`` says in which order each device takes its turns. What must cross between devices follows from these
three, and none of them speaks of it. A function that does this, given a ``Draft``, is a plan of the library; a user's
own works the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, cast, get_args

from partita.cost.flops import block_flops
from partita.draft_check import known_blocks, require_free, require_parts, require_size, require_turn
from partita.errors import PlanError, divisors, listed, nearest
from partita.graph import Graph
from partita.graph.cuts import block_cuts
from partita.graph.flows import FLOWS
from partita.plan import (
    BATCH_CUT,
    UNPREDICTED,
    Axis,
    Cut,
    Order,
    Plan,
    Recompute,
    Search,
    SharedParameter,
    Stage,
    Strategy,
    check_plan,
)  # fmt: skip
from partita.problem import Problem
from partita.schedules import Argument, Turn, find

PlanFunction = Callable[["Draft"], None]


@dataclass(frozen=True)
class Draft:
    """What a plan function is given, and what it has said so far.

    ``devices`` are to be used, ``arguments`` are the user's numbers. ``stages`` have one micro-batch until
    ``op_trans`` cuts the batch into turns.
    """

    problem: Problem
    devices: tuple[int, ...]
    arguments: Mapping[str, int]
    stages: list[Stage] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    axes: set[str] = field(default_factory=set)

    @property
    def graph(self) -> Graph:
        return self.problem.graph

    @property
    def blocks(self) -> tuple[str, ...]:
        """The model's blocks, in order."""
        return tuple(block.name for block in self.graph.blocks)

    def argument(self, name: str, default: int, least: int = 1, of: int | None = None) -> int:
        """The user's number of that name. PlanError for less than the least, and where it doesn't divide ``of``
        devices."""
        self.asked[name] = default
        value = self.arguments.get(name, default)
        if value < least:
            raise PlanError(f"{name}={value}: at least {least}")
        if of is not None and of % value:
            raise PlanError(f"{name}={value} doesn't divide {of} devices; {listed(divisors(of))} would")
        return value

    def classes(self, block: str) -> tuple[str, ...]:
        """The classes of dims that the block may be cut along, in order of its ops."""
        return tuple(dict.fromkeys(cut.name for cut in block_cuts(self.graph, block)))

    def shares(self, count: int, tp: int = 1) -> list[tuple[int, ...]]:
        """The devices in ``count`` equal runs of whole groups of ``tp``. PlanError where these don't divide them."""
        if len(self.devices) % count:
            works = listed(divisors(len(self.devices)))
            raise PlanError(
                f"{len(self.devices)} devices can't be divided into {count} equal parts; {works} parts work"
            )
        size = len(self.devices) // count
        if size % tp:
            raise PlanError(
                f"tp={tp} doesn't divide the {size} devices of each of {count} parts; {listed(divisors(size))} would"
            )
        return [self.devices[start : start + size] for start in range(0, len(self.devices), size)]

    def parts(self, blocks: Sequence[str], count: int) -> list[tuple[str, ...]]:
        """The blocks in ``count`` runs, the heaviest with as few FLOPs as can be. PlanError for too many."""
        if not 1 <= count <= len(blocks):
            raise PlanError(f"{len(blocks)} blocks can't be divided into {count} stages; 1 to {len(blocks)} work")
        flops = [block_flops(self.graph, name) for name in blocks]
        # (parts, blocks taken): heaviest part, bounds
        best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 0): (0.0, ())}
        for part in range(1, count + 1):
            for end in range(part, len(blocks) - count + part + 1):
                before = [(start, best[part - 1, start]) for start in range(part - 1, end) if (part - 1, start) in best]
                best[part, end] = min(
                    (max(heaviest, sum(flops[start:end])), (*bounds, end)) for start, (heaviest, bounds) in before
                )
        bounds = best[count, len(blocks)][1]
        return [tuple(blocks[start:end]) for start, end in zip((0, *bounds[:-1]), bounds, strict=True)]

    def passes(self, count: int, parts: int) -> list[list[tuple[str, ...]]]:
        """The blocks of a recycled model: for each pass its ``parts`` runs, with the same parameters in each pass.

        A block's pass and part are those of the blocks whose parameters it has; others go with the next that has one.
        PlanError where the model's blocks don't share parameters over ``count`` passes, and where fewer than ``parts``
        do.
        """
        users = {
            block: found for found in self.graph.shared_parameters.values() if len(found) == count for block in found
        }
        if not users:
            has = listed(sorted({len(found) for found in self.graph.shared_parameters.values()}) or ["none"])
            raise PlanError(
                f'no blocks of "{self.graph.name}" share parameters over {count} passes; over {has} some do'
            )
        first = [block for block in self.blocks if block in users and users[block].index(block) == 0]
        require_parts(self, count, parts)
        part_of = {block: i for i, run in enumerate(self.parts(first, parts)) for block in run}
        found: list[list[list[str]]] = [[[] for _ in range(parts)] for _ in range(count)]
        turn, part = count - 1, parts - 1
        for block in reversed(self.blocks):
            if block in users:
                turn, part = users[block].index(block), part_of[users[block][0]]
            found[turn][part].insert(0, block)
        return [[tuple(run) for run in runs] for runs in found]


def op_assign(draft: Draft, blocks: Iterable[str], devices: Sequence[int], **space: int) -> None:
    """The next stage: blocks, in whichever order, and its devices, row-major over the axes of space.

    A stage reads what earlier ones make: of two branches either may come first, and a stage may have blocks of both.

    ``space`` has their sizes, outermost first; ``data`` is the outermost and ``tensor`` the innermost, 1 where they
    aren't given. PlanError where the sizes don't make up the devices, for devices that aren't there and for blocks that
    the model hasn't or another stage has.
    """
    sizes = {"data": 1, **space}
    tensor = sizes.pop("tensor", 1)
    data = sizes.pop("data")
    blocks = tuple(sorted(known_blocks(draft, blocks), key=draft.blocks.index))
    require_free(draft, blocks, devices)
    draft.axes.update(("data", "tensor", *space))
    if data * tensor * prod(sizes.values()) != len(devices):
        words = " × ".join(f"{name}={size}" for name, size in {"data": data, **sizes, "tensor": tensor}.items())
        raise PlanError(f"stage {len(draft.stages)}: {words} make no mesh of {len(devices)} devices")
    for axis, size in {**space, "data": data}.items():
        require_size(axis, size)
    batch = draft.problem.global_batch
    strategy = Strategy((BATCH_CUT,), 0, "none")
    draft.stages.append(
        Stage(
            f"stage{len(draft.stages)}", blocks, tuple(devices), data, tensor, batch, 1, (strategy,) * len(blocks),
            tuple(Axis(name, size, "space") for name, size in sizes.items() if size > 1),
        )
    )  # fmt: skip


def op_trans(draft: Draft, blocks: Iterable[str], dim: str, along: str | Axis) -> None:
    """Cut a dim of blocks along an axis: one of space that their stage has, or one of turns.

    ``dim`` is ``batch``, ``sequence``, the name of a class of dims (``heads``, ``hidden``, ``vocabulary``,
    ``experts``), or ``classes`` for every class that a block has; blocks without the class stay as they are.
    ``batch`` along ``Axis("micro", c, "turns")`` makes c micro-batches of the stages of these blocks. PlanError for a
    dim that none of the blocks has, for sizes that don't divide, and for micro-batches of a part of a stage.
    """
    blocks = set(known_blocks(draft, blocks))
    axis = along if isinstance(along, Axis) else None
    name = along.name if isinstance(along, Axis) else along
    if axis is not None:
        require_size(axis.name, axis.size)
    if not draft.stages:
        raise PlanError(f'"{dim}" along "{name}": there are no stages yet; op_assign comes before op_trans')
    if (dim, name) == ("batch", "micro"):
        if axis is None or axis.kind != "turns":
            raise PlanError('"batch" along "micro": how many? Axis("micro", 4, "turns") makes 4 micro-batches')
        return _micro_batches(draft, blocks, axis.size)
    found = False
    for index, stage in enumerate(draft.stages):
        if not blocks.intersection(stage.blocks):
            continue
        if axis is not None and axis.kind == "turns":
            others = tuple(other for other in stage.other_axes if other.name != name)
            if any(other != axis for other in stage.other_axes if other.name == name):
                raise PlanError(f'stage "{stage.name}" has an axis "{name}" of another size than {axis.size}')
            stage = replace(stage, other_axes=(*others, axis))
        sizes = {has.name: has.size for has in stage.axes}
        if axis is not None and sizes.get(name, 1) != axis.size:
            raise PlanError(
                f'stage "{stage.name}" has {name}={sizes.get(name, 1)}, and not {axis.size}; op_assign gives a stage '
                "its axes of space"
            )
        if name not in sizes or sizes[name] == 1:
            # An axis of one device cuts nothing.
            known = dim == "classes" or any(_dims(draft, block, dim) for block in blocks)
            found = found or (known and (name in sizes or name in draft.axes))
            continue
        strategies = list(stage.strategies)
        for place, block in enumerate(stage.blocks):
            if block in blocks:
                for one in _dims(draft, block, dim):
                    found = True
                    strategies[place] = _cut(strategies[place], one, name)
        draft.stages[index] = replace(stage, strategies=tuple(strategies))
    if not found:
        dims = dict.fromkeys(FLOWS)
        dims.update((one, None) for block in draft.blocks if block in blocks for one in draft.classes(block))
        axes = dict.fromkeys(axis.name for stage in draft.stages for axis in stage.axes)
        raise PlanError(
            f'"{dim}" along "{name}": no block has such a dim, or no stage such an axis; they have the dims '
            f"{listed(dims)}, and the axes {listed(axes)}"
        )


def recompute(draft: Draft, blocks: Iterable[str], what: Recompute = "full") -> None:
    """Let the backward pass of these blocks compute their values again: ``full`` from the blocks' inputs, ``selective``
    attention's inside alone, from queries, keys and values."""
    if what not in get_args(Recompute):
        raise PlanError(f"recompute {what!r}: {listed(get_args(Recompute))} work")
    _change(draft, blocks, lambda strategy: replace(strategy, recompute=what))


def offload(draft: Draft, blocks: Iterable[str]) -> None:
    """Let what these blocks keep for the backward pass wait in the host's memory."""
    _change(draft, blocks, lambda strategy: replace(strategy, offload=True))


def divide_state(draft: Draft, blocks: Iterable[str], zero: int) -> None:
    """ZeRO: divide the state of these blocks between uses over the axis ``data``: 1 optimizer, 2 and gradients, 3 and
    parameters."""
    if zero not in (0, 1, 2, 3):
        raise PlanError(f"zero={zero}: 0, 1, 2 or 3")
    stage = cast(Literal[0, 1, 2, 3], zero)
    _change(draft, blocks, lambda strategy: replace(strategy, zero=stage))


def op_order(
    draft: Draft, schedule: str = "turns", turns: Mapping[int, Sequence[Turn]] | None = None, **arguments: Argument
) -> None:
    """The order of turns: a schedule by its name, with its arguments, or each device's own ``turns``.

    PlanError for a schedule or arguments that don't exist, and for turns of stages or micro-batches that don't.
    """
    micro = _most_micro_batches(draft)
    if turns is not None:
        for device, found in turns.items():
            for turn in found:
                require_turn(draft, device, turn)
        order = Order("turns", len(draft.stages), micro, {}, {device: tuple(found) for device, found in turns.items()})
    else:
        order = Order(schedule, len(draft.stages), micro, find(schedule).complete(arguments))
    draft.orders.append(order)


def drafted(function: PlanFunction, name: str, problem: Problem, arguments: Mapping[str, int]) -> Plan:
    """The plan that a plan function records, without a prediction.

    PlanError where it says too little, or contradicts itself, and for arguments that it never asks for; InputError
    where the plan's counts don't close.
    """
    draft = Draft(problem, tuple(range(problem.cluster.devices)), arguments)
    function(draft)
    if odd := [given for given in arguments if given not in draft.asked]:
        known = nearest(odd[0], draft.asked) or " It asks for none."
        raise PlanError(f'"{name}" asks for no number "{odd[0]}".{known}')
    if not draft.stages or len(draft.orders) != 1:
        raise PlanError(
            f'"{name}" made {len(draft.stages)} stages (op_assign) and said {len(draft.orders)} orders (op_order); '
            "one order is needed, last"
        )
    _whole_samples(draft)
    (order,) = draft.orders
    if (order.stages, order.micro_batches) != (len(draft.stages), _most_micro_batches(draft)):
        raise PlanError(
            f'"{name}" ordered {order.stages} stages of {order.micro_batches} micro-batches and has '
            f"{len(draft.stages)} of {_most_micro_batches(draft)}: op_order comes last"
        )
    planned = {block for stage in draft.stages for block in stage.blocks}
    if odd := [block for block in draft.blocks if block not in planned]:
        raise PlanError(
            f'"{name}" has stages for {len(planned)} of the {len(draft.blocks)} blocks of "{draft.graph.name}"; '
            f'missing is "{odd[0]}"'
        )
    used = {device for stage in draft.stages for device in stage.devices}
    said = ", ".join(f"{key}={arguments.get(key, value)}" for key, value in draft.asked.items())
    plan = Plan(
        model=draft.graph.name, problem=problem.digest, cluster=problem.cluster.name, target=problem.target,
        precision=problem.precision, optimizer=problem.optimizer, seq=draft.graph.seq,
        global_batch=problem.global_batch, schedule=order.generator, order=order, stages=tuple(draft.stages),
        shared_parameters=_shared(draft), predicted=UNPREDICTED,
        reasons=(f"Made by {name}" + (f" with {said}." if said else "."),),
        search=Search(name, False, 0.0, 1), idle_devices=tuple(d for d in draft.devices if d not in used),
        profile=problem.cluster.profile,
    )  # fmt: skip
    return check_plan(plan, name)


def _most_micro_batches(draft: Draft) -> int:
    """Of any stage; an order of unlike numbers goes by it."""
    return max((stage.micro_batches for stage in draft.stages), default=1)


def _micro_batches(draft: Draft, blocks: set[str], count: int) -> None:
    batch = draft.problem.global_batch
    for index, stage in enumerate(draft.stages):
        if blocks.isdisjoint(stage.blocks):
            continue
        if others := [block for block in stage.blocks if block not in blocks]:
            raise PlanError(
                f'stage "{stage.name}" can\'t make micro-batches of some of its blocks: without "{others[0]}"; all of '
                "them work"
            )
        each = stage.dp
        if batch % (count * each):
            if batch % each:
                raise PlanError(
                    f"global batch {batch} can't be divided over {each} data-parallel copies; multiples of {each} work"
                )
            works = listed(divisors(batch // each))
            raise PlanError(
                f"global batch {batch} can't be divided into {count} micro-batches of {each} data-parallel copies; "
                f"{works} micro-batches work"
            )
        draft.stages[index] = replace(stage, samples=batch // count, micro_batches=count)


def _whole_samples(draft: Draft) -> None:
    """PlanError where axes inside a copy cut its samples (experts) and a turn hasn't enough of them."""
    for stage in draft.stages:
        sizes = {axis.name: axis.size for axis in stage.inner}
        inside = prod({a: sizes[a] for s in stage.strategies for a in s.cut_axes("batch") if a in sizes}.values())
        if stage.samples % (stage.dp * inside):
            raise PlanError(
                f'stage "{stage.name}" takes {stage.samples} samples a turn, which can\'t be divided over {stage.dp} '
                f"data-parallel copies of {inside} parts each; a multiple of {stage.dp * inside} works"
            )


def _dims(draft: Draft, block: str, dim: str) -> list[str]:
    """The dims of the block that a name stands for."""
    if dim in FLOWS:
        return [dim]
    return [name for name in draft.classes(block) if dim in ("classes", name)]


def _cut(strategy: Strategy, dim: str, axis: str) -> Strategy:
    cuts = {cut.dim: cut.axes for cut in strategy.cuts}
    cuts[dim] = (*(other for other in cuts.get(dim, ()) if other != axis), axis)
    return replace(strategy, cuts=tuple(Cut(name, axes) for name, axes in cuts.items()))


def _change(draft: Draft, blocks: Iterable[str], change: Callable[[Strategy], Strategy]) -> None:
    blocks = set(known_blocks(draft, blocks))
    if not draft.stages:
        raise PlanError("there are no stages yet; op_assign comes before what changes how blocks run")
    for index, stage in enumerate(draft.stages):
        strategies = (
            change(strategy) if block in blocks else strategy
            for block, strategy in zip(stage.blocks, stage.strategies, strict=True)
        )  # fmt: skip
        draft.stages[index] = replace(stage, strategies=tuple(strategies))


def _shared(draft: Draft) -> tuple[SharedParameter, ...]:
    """Parameters that several blocks use, and what their copies send: nothing between stages of the same devices."""
    graph, found = draft.graph, []
    for name, users in graph.shared_parameters.items():
        stages = tuple(i for i, stage in enumerate(draft.stages) if set(users).intersection(stage.blocks))
        apart = len({draft.stages[i].devices for i in stages}) > 1
        size = graph.tensor[name].bytes if apart and graph.tensor[name].gradient else 0
        found.append(SharedParameter(name, stages[0] if stages else 0, stages, size))
    return tuple(found)
