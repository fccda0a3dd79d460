"""What the stages of any plan take: of different widths, cut along any axes, several of them on one device.

Each stage is put together from its blocks by ``cost.stage``, as the planner's tables are (``planner.joint.ways``): for
a plan that the planner lists both come to the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, prod

import numpy as np

from partita.cluster import Cluster, Device, Kind, Link
from partita.cluster.placement import beside
from partita.cost import state_bytes
from partita.cost.alike import Alike
from partita.cost.block import BlockCost
from partita.cost.crossing import Crossing, crossing
from partita.cost.divide import division, whole_samples
from partita.cost.division import AttentionKernel, Division, split
from partita.cost.ending import update_seconds, update_start_seconds
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes, peak_flops
from partita.cost.samples import shared_values
from partita.cost.stage import (
    Computed,
    Ending,
    Group,
    held_bytes,
    sent,
    state_bytes_of,
    temporary_bytes,
    turn,
    weight_seconds,
)
from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.flows import FLOWS
from partita.plan import MemoryBytes, Plan, Stage, Strategy
from partita.schedules import find


@dataclass(frozen=True)
class Turns:
    """Seconds of one micro-batch's turns; with ``weight`` the backward turn is that much shorter. ``_collective``: the
    part in collectives."""

    forward: float
    backward: float
    weight: float
    forward_collective: float
    backward_collective: float


class Stages:
    """The stages of a plan on a cluster; PlanError where the cluster has no such devices."""

    def __init__(
        self, graph: Graph, plan: Plan, cluster: Cluster, groups: Alike, attention: AttentionKernel = "fused",
        priced: BlockCosts | None = None,
    ):  # fmt: skip
        self.graph, self.plan, self.cluster, self.groups, self.attention = graph, plan, cluster, groups, attention
        self.item = item_bytes(graph, plan.precision)
        self.per = state_bytes(plan.precision, plan.optimizer, 0, 1)
        self.number = {block.name: index for index, block in enumerate(graph.blocks)}
        self.stage_of = {block: index for index, stage in enumerate(plan.stages) for block in stage.blocks}
        self.priced = BlockCosts(graph, groups, self.item) if priced is None else priced
        odd = [device for device in plan.devices if not 0 <= device < cluster.devices]
        if odd:
            raise PlanError(
                f"the plan uses device {odd[0]}, cluster {cluster.name} has devices 0 to {cluster.devices - 1}; "
                f"it was planned for {plan.cluster}"
            )

    def on(self, cluster: Cluster) -> Stages:
        """The same stages on another cluster."""
        return Stages(self.graph, self.plan, cluster, self.groups, self.attention, self.priced)

    @cached_property
    def crossing(self) -> Crossing:
        """What crosses each cut."""
        return crossing(self.graph, self.item)

    def division(self, stage: Stage, block: str, strategy: Strategy) -> Division:
        """How a block is divided."""
        classes = self.groups.classes[self.groups.kinds[self.number[block]]]
        return division(stage, block, strategy, classes, self.attention)

    def divided(self, stage: Stage, block: str, strategy: Strategy) -> tuple[Division, float]:
        """The same with the samples whole, and a device's samples in units of the graph's."""
        found, parts = whole_samples(self.division(stage, block, strategy))
        return found, self.ratio(stage) / parts

    def cost(self, stage: Stage, block: str, strategy: Strategy) -> BlockCost:
        """A block's cost; blocks that are alike and divided alike share it."""
        return self.priced.of(self.groups.kinds[self.number[block]], self.divided(stage, block, strategy)[0])

    def ratio(self, stage: Stage) -> float:
        """A turn's samples of one copy, in units of the graph's. PlanError where they can't be divided."""
        if stage.samples % stage.dp:
            raise PlanError(f"a turn's {stage.samples} samples can't be divided over dp={stage.dp}")
        return stage.samples // stage.dp / self.graph.samples

    def device(self, stage: Stage) -> Device:
        """What stands for the stage's devices, which work in step."""
        return self.cluster.weakest(stage.devices)

    def link(self, stage: Stage, axes: Collection[str]) -> Link:
        """The slowest link of a group along some of the stage's axes."""
        sizes = [stage.dp, *(axis.size for axis in stage.inner)]
        names = ["data", *(axis.name for axis in stage.inner)]
        nodes = np.asarray(self.cluster.node_of)[np.asarray(stage.devices)].reshape(sizes)
        varied = [at for at, name in enumerate(names) if name in axes]
        size = prod(sizes[at] for at in varied)
        groups = np.moveaxis(nodes, varied, range(-len(varied), 0)).reshape(-1, size)
        return self.cluster.link(bool((groups != groups[:, :1]).any()), stage.devices, beside(groups))

    def group(self, stage: Stage, axes: Collection[str]) -> Group:
        """The devices of a stage that differ along some of its axes alone."""
        link = self.link(stage, axes)
        size = prod(axis.size for axis in stage.axes if axis.name in axes)
        return Group(size, link.latency_seconds, link.reached_bytes_per_second)

    @cached_property
    def slowdown(self) -> float:
        """As in the planner: of all devices, those that compute at a time."""
        stages, count = len({stage.devices for stage in self.plan.stages}), self.plan.order.micro_batches
        return self.cluster.slowdown(len(self.plan.devices) * count / (count + stages - 1))

    @cached_property
    def put_off(self) -> frozenset[int]:
        """Stages whose order has turns for the gradients of weights."""
        order = self.plan.order
        if order.generator == "turns":
            return frozenset(turn.stage for turns in order.turns.values() for turn in turns if turn.phase == "weight")
        return frozenset(range(len(self.plan.stages))) if find(order.generator).weight else frozenset()

    def turns(self, stage: Stage) -> Turns:
        """Seconds of the stage's turns."""
        sums = np.zeros(5)
        made = {}
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            key = (self.groups.kinds[self.number[block]], strategy)
            if key not in made:
                made[key] = np.array(self._block(stage, block, strategy))
            sums = sums + made[key]
        down, up = self._changes(stage)
        return Turns(*(sums + np.array([down, up, 0.0, down, up])).tolist())

    def _block(self, stage: Stage, block: str, strategy: Strategy) -> tuple[float, float, float, float, float]:
        found, device = self.cost(stage, block, strategy), self.device(stage)
        ratio = self.divided(stage, block, strategy)[1]
        machine = (device, peak_flops(device, self.plan.precision), ratio, self.cluster.threads)
        forward, backward = found.passes(*machine)
        backward += found.accumulate_seconds(device, stage.micro_batches)
        computed = Computed(
            forward * self.slowdown, backward * self.slowdown, found.repeated_seconds(*machine) * self.slowdown,
            found.weight_seconds(*machine) * self.slowdown,
        )  # fmt: skip
        down = up = 0.0
        for axis in stage.inner:
            group, each = self.group(stage, (axis.name,)), sent(found, axis.name)
            down += group.seconds(each.forward_rounds, each.forward_bytes * ratio)
            up += group.seconds(each.backward_rounds, each.backward_bytes * ratio)
            if axis.name in strategy.cut_axes("batch"):
                # Whatever the samples.
                same = shared_values(self.graph, block, self.item)
                down += group.seconds(2 * same.forward, 2 * same.forward_bytes)
                up += group.seconds(2 * same.backward, 2 * same.backward_bytes)
        gathered, scattered = weight_seconds(
            found.trained, found.frozen, self.per.parameters, strategy.zero, self.group(stage, ("data",))
        )
        made = turn(computed, down, up, gathered, scattered, float(found.trains), strategy.recompute == "full")
        forward, backward = made.forward, made.backward
        if strategy.offload and found.trains:
            # To the host's memory and back beside the block's own computing: what takes longer binds.
            away = self._away_seconds(device, found.kept_bytes(device, ratio))
            forward = max(forward - made.forward_collective, away) + made.forward_collective
            backward = max(backward - made.backward_collective, away) + made.backward_collective
        return forward, backward, made.weight, made.forward_collective, made.backward_collective

    def _changes(self, stage: Stage) -> tuple[float, float]:
        """Seconds, forward and backward, of putting together what one block divides among the devices of a copy and the
        next, or another stage, has whole. Into pieces each device takes its own."""
        sizes = {axis.name: axis.size for axis in stage.inner if axis.size > 1}
        flows = [
            frozenset(axis for axis in sizes for flow in FLOWS if axis in strategy.cut_axes(flow))
            for strategy in stage.strategies
        ]
        whole, totals = frozenset[str](), [0.0, 0.0]
        cuts = [*(self.number[block] for block in stage.blocks), self.number[stage.blocks[-1]] + 1]
        for at, (before, after) in zip(cuts, pairwise([whole, *flows, whole]), strict=True):
            moved = ((self.crossing.forward[at], self.crossing.forward_values[at], before, after),
                     (self.crossing.backward[at], self.crossing.backward_values[at], after, before))  # fmt: skip
            for phase, (size, values, pieces, needed) in enumerate(moved):
                if axes := pieces - needed:
                    each = float(size.of(self.ratio(stage))) / prod(sizes[axis] for axis in pieces & needed)
                    totals[phase] += self.group(stage, axes).seconds(float(values), each)
        return totals[0], totals[1]

    def _away_seconds(self, device: Device, size: float) -> float:
        """Of so many bytes to the host's memory. PlanError where the cluster doesn't say how fast that is."""
        speed = device.host_bytes_per_second
        if not speed:
            raise PlanError(
                f"blocks are offloaded, and {self.cluster.name} doesn't say how fast the host's memory is reached: its "
                'device needs "host_bytes_per_second"'
            )
        return size / speed

    def trained(self, stage: Stage) -> dict[tuple[int, tuple[str, ...]], int]:
        """Trained elements on a device by their ZeRO stage, and by the axes over whose devices, beside the copies',
        their gradients are added up."""
        sums: dict[tuple[int, tuple[str, ...]], int] = {}
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            kind = self.groups.kinds[self.number[block]]
            classes = self.groups.classes[kind]
            divided = self.division(stage, block, strategy)
            part = split(self.graph, classes, divided, {}).parameter
            of_flow = {cut.dim: cut.axes for cut in strategy.cuts}
            inside = {cut.name: cut for cut in divided.classes}
            owner = {name: inside[cut.name] for cut in classes if cut.name in inside for name in cut.dims}
            wide = [axis.name for axis in stage.inner if axis.name in of_flow.get("batch", ()) and axis.size > 1]
            wide += [axis.name for axis in stage.inner if axis.name in of_flow.get("sequence", ()) and axis.size > 1]
            for name in self.graph.blocks[kind].parameters:
                if self.graph.tensor[name].gradient:
                    cut = owner.get(name)
                    key = strategy.zero, tuple(axis for axis in wide if not (cut and cut.axis == axis))
                    sums[key] = sums.get(key, 0) + ceil(self.graph.tensor[name].elements * part(name))
        return sums

    def ending(self, stage: Stage) -> tuple[float, float, float]:
        """Seconds of adding up gradients, of the update, of gathering what was updated."""
        reduce = gather = update = 0.0
        device, data = self.device(stage), self.group(stage, ("data",))
        for (zero, axes), elements in self.trained(stage).items():
            groups = Ending(data, self.group(stage, ("data", *axes)), self.group(stage, axes))
            size = elements * self.per.parameters
            for reduced, gathered in (groups.seconds(size, zero), groups.seconds(0.0, zero, rounds=1)):
                reduce, gather = reduce + float(reduced), gather + float(gathered)
            update += float(
                update_seconds(device, self.plan.precision, self.plan.optimizer, elements, 0, zero, stage.dp)
            )
        tensors = sum(
            self.graph.tensor[name].gradient
            for block in stage.blocks
            for name in self.graph.blocks[self.number[block]].parameters
        )
        if tensors:
            update += float(update_seconds(device, self.plan.precision, self.plan.optimizer, 0, tensors, 0, stage.dp))
            update += update_start_seconds(device, self.plan.optimizer)
        return reduce, update * self.cluster.slowdown(len(self.plan.devices)), gather

    def memory(self, index: int) -> MemoryBytes:
        """Bytes on each device that the stage adds to those before it, with the activations of one micro-batch."""
        stage, lent = self.plan.stages[index], sum(self.lent(index))
        parameters, gradients, optimizer = lent * self.per.parameters, lent * self.per.gradients, 0.0
        held, temporary, trains = 0.0, 0.0, False
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            cost = self.cost(stage, block, strategy)
            state = state_bytes_of(cost.trained, cost.frozen, self.per, strategy.zero, stage.dp)
            parameters, gradients, optimizer = parameters + state[0], gradients + state[1], optimizer + state[2]
            held += self._held(stage, block, strategy, cost)
            temporary = max(temporary, self._temporary(stage, block, strategy, cost))
            trains = trains or cost.trains
        if stage.strategies[0].offload:
            # What came from other stages is held as it came.
            held += float(self.crossing.forward[self.number[stage.blocks[0]]].of(self.ratio(stage)))
        if not trains:
            # Nothing is kept, and there are no backward turns: what is there is there while forward turns run.
            held, temporary = temporary, 0.0
        return MemoryBytes(
            parameters=ceil(parameters),
            gradients=ceil(gradients),
            optimizer=ceil(optimizer),
            activations=ceil(held),
            temporary=ceil(temporary),
            framework=self.device(stage).framework_bytes,
        )

    def _held(self, stage: Stage, block: str, strategy: Strategy, cost: BlockCost) -> float:
        if strategy.offload and cost.trains:
            return 0.0
        divided, ratio = self.divided(stage, block, strategy)
        pieces = divided.samples * divided.context * divided.sequence
        entering = float(self.crossing.entering[self.number[block]].of(ratio / pieces))
        kept = cost.kept_bytes(self.device(stage), ratio)
        return float(held_bytes(kept, entering, float(cost.trains), strategy.recompute == "full"))

    def _temporary(self, stage: Stage, block: str, strategy: Strategy, cost: BlockCost) -> float:
        ratio = self.divided(stage, block, strategy)[1]
        return float(
            temporary_bytes(
                cost.temporary_bytes * ratio, cost.kept_bytes(self.device(stage), ratio),
                float(cost.activation_bytes.max(initial=0.0)) * ratio, cost.trained, cost.frozen, self.per.parameters,
                strategy.zero, float(cost.trains), back=strategy.recompute == "full" or strategy.offload,
            )
        )  # fmt: skip

    def lent(self, index: int) -> list[int]:
        """Elements of each parameter that a stage uses and an earlier one owns, without those of its own devices."""
        stage, graph, found = self.plan.stages[index], self.graph, []
        own = set(stage.blocks)
        for name, users in graph.shared_parameters.items():
            if users[0] in own or own.isdisjoint(users):
                continue
            before = [self.plan.stages[at] for at in sorted({self.stage_of[user] for user in users}) if at < index]
            if any(set(stage.devices) <= set(other.devices) for other in before):
                continue
            # Cut as its owner cuts it.
            owner = self.plan.stages[self.stage_of[users[0]]]
            strategy = owner.strategies[owner.blocks.index(users[0])]
            classes, standing = self.groups.owner_cuts(name, self.number[users[0]])
            part = split(graph, classes, self.division(owner, users[0], strategy), {}).parameter
            found.append(ceil(graph.tensor[name].elements * part(standing)))
        return found


def whole_links(cluster: Cluster) -> Cluster:
    """The cluster with links of one byte a second and no latency: seconds of a collective are the bytes sent."""
    unit = Link(1.0)
    made = cluster.with_kinds(lambda kind: Kind(kind.device, unit, unit))
    return replace(made, cores=None)
