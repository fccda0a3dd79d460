"""What the stages of any plan take: of different widths, cut along any axes, several of them on one device.

The planner's numbers are those of uniform plans, of which it lists thousands; here each stage of the one plan is priced
from the same costs of blocks. For a uniform plan both come to the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod

import numpy as np

from partita.cluster import Cluster, Device, Kind, Link
from partita.cost import all_gather_seconds, reduce_scatter_seconds, state_bytes
from partita.cost.alike import Alike
from partita.cost.block import BlockCost, divided_cost
from partita.cost.crossing import crossing
from partita.cost.division import AttentionKernel, Division, along_sequence, split
from partita.cost.ending import gather_seconds, reduce_seconds, update_seconds
from partita.cost.precision import item_bytes, peak_flops
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import MemoryBytes, Plan, Stage, Strategy
from partita.schedules import find
from partita.simulate.divide import division


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
        made: dict[tuple[int, Division], BlockCost] | None = None,
    ):  # fmt: skip
        self.graph, self.plan, self.cluster, self.groups, self.attention = graph, plan, cluster, groups, attention
        self.item = item_bytes(graph, plan.precision)
        self.per = state_bytes(plan.precision, plan.optimizer, 0, 1)
        self.number = {block.name: index for index, block in enumerate(graph.blocks)}
        self.stage_of = {block: index for index, stage in enumerate(plan.stages) for block in stage.blocks}
        # The costs of blocks don't depend on the cluster.
        self.made = {} if made is None else made
        odd = [device for device in plan.devices if not 0 <= device < cluster.devices]
        if odd:
            raise PlanError(
                f"the plan uses device {odd[0]}, cluster {cluster.name} has devices 0 to {cluster.devices - 1}; "
                f"it was planned for {plan.cluster}"
            )

    def on(self, cluster: Cluster) -> Stages:
        """The same stages on another cluster."""
        return Stages(self.graph, self.plan, cluster, self.groups, self.attention, self.made)

    @cached_property
    def along(self) -> frozenset[str]:
        """Values with a sequence."""
        return along_sequence(self.graph)

    @cached_property
    def crossing_bytes(self) -> np.ndarray:
        """[n + 1]: what crosses each cut, for the graph's samples."""
        return crossing(self.graph, self.item).forward_bytes

    def division(self, stage: Stage, block: str, strategy: Strategy) -> Division:
        """How a block is divided."""
        classes = self.groups.classes[self.groups.kinds[self.number[block]]]
        return division(stage, block, strategy, classes, self.attention)

    def cost(self, stage: Stage, block: str, strategy: Strategy) -> BlockCost:
        """A block's cost; blocks that are alike and divided alike share it."""
        kind = self.groups.kinds[self.number[block]]
        key = (kind, self.division(stage, block, strategy))
        if key not in self.made:
            name = self.graph.blocks[kind].name
            classes = self.groups.classes[kind]
            along = self.along if key[1].sequence * key[1].context > 1 else frozenset[str]()
            self.made[key] = divided_cost(self.graph, name, classes, key[1], self.item, along)
        return self.made[key]

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
        first = nodes[tuple(slice(0, 1) if at in varied else slice(None) for at in range(len(sizes)))]
        return self.cluster.link(bool((nodes != first).any()), stage.devices)

    def group(self, stage: Stage, axis: str) -> tuple[int, Link]:
        """The size and the link of a group along one axis."""
        return next(found.size for found in stage.axes if found.name == axis), self.link(stage, (axis,))

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
        groups = {axis.name: self.group(stage, axis.name) for axis in stage.inner}
        count = {}
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            key = (self.groups.kinds[self.number[block]], strategy)
            if key not in count:
                count[key] = np.array(self._block(stage, block, strategy, groups))
            sums = sums + count[key]
        return Turns(*sums.tolist())

    def _block(
        self, stage: Stage, block: str, strategy: Strategy, groups: Mapping[str, tuple[int, Link]]
    ) -> tuple[float, float, float, float, float]:
        found, ratio, device = self.cost(stage, block, strategy), self.ratio(stage), self.device(stage)
        machine = (device, peak_flops(device, self.plan.precision), ratio, self.cluster.threads)
        compute, back, again, weight = (
            seconds * self.slowdown
            for seconds in (
                *found.passes(*machine), found.repeated_seconds(*machine), found.weight_seconds(*machine)
            )
        )  # fmt: skip
        back += found.accumulate_seconds(device, stage.micro_batches) * self.slowdown
        tp, link = groups["tensor"]
        down = found.reduction_seconds(tp, link, ratio) + found.exchange_seconds("forward", groups, ratio)
        up = found.entry_seconds(tp, link, ratio) + found.exchange_seconds("backward", groups, ratio)
        if strategy.recompute == "full":
            # What runs in turns is computed again for the block, and once more for its own backward pass.
            again, up = compute + again, up + down
        if strategy.zero >= 2:
            wide = self.link(stage, ("data",))
            up += reduce_scatter_seconds(found.trained * self.per.parameters, stage.dp, wide)
            if strategy.zero == 3:
                whole = (found.trained + found.frozen) * self.per.parameters
                gather = all_gather_seconds(whole, stage.dp, wide)
                down, up = down + gather, up + gather
        if not found.trains:
            return compute + down, 0.0, 0.0, down, 0.0
        forward, backward = compute, back + again
        if strategy.offload:
            # To the host's memory and back beside the block's own computing: what takes longer binds.
            away = self._away_seconds(device, found.kept_bytes(device, ratio))
            forward, backward = max(forward, away), max(backward, away)
        return forward + down, backward + up, weight, down, up

    def _away_seconds(self, device: Device, size: float) -> float:
        """Of so many bytes to the host's memory. PlanError where the cluster doesn't say how fast that is."""
        speed = device.host_bytes_per_second
        if not speed:
            raise PlanError(
                f"blocks are offloaded, and {self.cluster.name} doesn't say how fast the host's memory is reached: its "
                'device needs "host_bytes_per_second"'
            )
        return size / speed

    def trained(self, stage: Stage) -> dict[tuple[str, ...], int]:
        """Trained elements on a device by the axes over whose devices their gradients are added up."""
        sums: dict[tuple[str, ...], int] = {}
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            kind = self.groups.kinds[self.number[block]]
            classes = self.groups.classes[kind]
            divided = self.division(stage, block, strategy)
            part = split(self.graph, classes, divided, frozenset()).parameter
            of_flow = {cut.dim: cut.axes for cut in strategy.cuts}
            inside = {cut.name: cut for cut in divided.classes}
            owner = {name: inside[cut.name] for cut in classes if cut.name in inside for name in cut.dims}
            wide = [axis.name for axis in stage.inner if axis.name in of_flow.get("batch", ())]
            wide += [axis.name for axis in stage.inner if axis.name in of_flow.get("sequence", ())]
            for name in self.graph.blocks[kind].parameters:
                if self.graph.tensor[name].gradient:
                    cut = owner.get(name)
                    axes = tuple(axis for axis in wide if not (cut and cut.axis == axis))
                    elements = ceil(self.graph.tensor[name].elements * part(name))
                    sums[axes] = sums.get(axes, 0) + elements
        return sums

    def ending(self, stage: Stage) -> tuple[float, float, float]:
        """Seconds of adding up gradients, of the update, of gathering what was updated."""
        (zero,) = {strategy.zero for strategy in stage.strategies}
        reduce = gather = update = 0.0
        tensors = sum(
            self.graph.tensor[name].gradient
            for block in stage.blocks
            for name in self.graph.blocks[self.number[block]].parameters
        )
        for axes, elements in self.trained(stage).items():
            copies = stage.dp * prod(self.group(stage, axis)[0] for axis in axes)
            wide, size = self.link(stage, ("data", *axes)), elements * self.per.parameters
            reduce += reduce_seconds(size, zero, copies, wide)
            if axes and zero >= 2:
                # Backward turns have added up over the copies alone; the chunks are added up along these axes.
                reduce += reduce_seconds(size / stage.dp, 0, copies // stage.dp, self.link(stage, axes))
            gather += gather_seconds(size, zero, stage.dp, self.link(stage, ("data",)))
            update += update_seconds(
                self.device(stage), self.plan.precision, self.plan.optimizer, elements, 0.0, zero, stage.dp
            )
        update += update_seconds(
            self.device(stage), self.plan.precision, self.plan.optimizer, 0.0, tensors, zero, stage.dp
        )
        return reduce, update * self.cluster.slowdown(len(self.plan.devices)), gather

    def memory(self, index: int) -> MemoryBytes:
        """Bytes on each device that the stage adds to those before it, with the activations of one micro-batch."""
        stage = self.plan.stages[index]
        (zero,) = {strategy.zero for strategy in stage.strategies}
        costs = [self.cost(stage, b, s) for b, s in zip(stage.blocks, stage.strategies, strict=True)]
        trained, frozen = sum(cost.trained for cost in costs), sum(cost.frozen for cost in costs)
        state = state_bytes(self.plan.precision, self.plan.optimizer, zero, stage.dp, trained)
        lent = self._borrowed(index)
        frozen = ceil(frozen / stage.dp) if zero == 3 else frozen
        pairs = list(zip(stage.blocks, stage.strategies, costs, strict=True))
        held = [self._held(stage, block, strategy, cost) for block, strategy, cost in pairs]
        if stage.strategies[0].offload:
            # What came from other stages is held as it came.
            held.append(float(self.crossing_bytes[self.number[stage.blocks[0]]]) * self.ratio(stage))
        if not any(cost.trains for cost in costs):
            # Nothing is kept: what one op reads and writes is there while it runs.
            held = [max(float(cost.activation_bytes.max(initial=0.0)) for cost in costs) * self.ratio(stage)]
        return MemoryBytes(
            parameters=ceil(state.parameters + (lent + frozen) * self.per.parameters),
            gradients=ceil(state.gradients + lent * self.per.gradients),
            optimizer=ceil(state.optimizer),
            activations=ceil(sum(held)),
            temporary=ceil(max(self._temporary(stage, strategy, cost) for _, strategy, cost in pairs)),
            framework=self.device(stage).framework_bytes,
        )

    def _held(self, stage: Stage, block: str, strategy: Strategy, cost: BlockCost) -> float:
        if strategy.offload and cost.trains:
            return 0.0
        if strategy.recompute == "none" or not cost.trains:
            return cost.kept_bytes(self.device(stage), self.ratio(stage))
        divided = self.division(stage, block, strategy)
        pieces = divided.samples * divided.context * divided.sequence
        return float(self.crossing_bytes[self.number[block]]) * self.ratio(stage) / pieces

    def _temporary(self, stage: Stage, strategy: Strategy, cost: BlockCost) -> float:
        back = strategy.recompute == "full" or strategy.offload
        found = cost.temporary_bytes * self.ratio(stage)
        if back:
            found += cost.kept_bytes(self.device(stage), self.ratio(stage))
        if strategy.zero >= 2:
            found += cost.trained * self.per.parameters
        if strategy.zero == 3:
            found += (cost.trained + cost.frozen) * self.per.parameters
        return found

    def _borrowed(self, index: int) -> int:
        """Elements of parameters that the stage uses and an earlier one owns; not those its devices hold already."""
        stage, graph, found = self.plan.stages[index], self.graph, 0
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
            part = split(graph, classes, self.division(owner, users[0], strategy), frozenset()).parameter
            found += ceil(graph.tensor[name].elements * part(standing))
        return found


def whole_links(cluster: Cluster) -> Cluster:
    """The cluster with links of one byte a second and no latency: seconds of a collective are the bytes sent."""
    unit = Link(1.0)
    made = cluster.with_kinds(lambda kind: Kind(kind.device, unit, unit))
    return replace(made, cores=None)
