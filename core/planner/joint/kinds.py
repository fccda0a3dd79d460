"""What blocks are, whatever the stage: arrays over the kinds of blocks that a model has, asked for once.

Seconds of computing and kept bytes depend on a kind, its cut and the samples of a device alone; all tables share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

import numpy as np

from partita.cluster.model import Device
from partita.cost.alike import Alike
from partita.cost.block import BlockCost
from partita.cost.divide import division, whole_samples
from partita.cost.division import Division, split
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes, peak_flops
from partita.cost.samples import shared_values
from partita.cost.stage import sent
from partita.errors import PlanError
from partita.plan import Stage
from partita.planner.joint.manner import PLAIN, Manner
from partita.problem import Problem


class BlockCut(NamedTuple):
    """Blocks run in a manner with ``tp`` devices along ``tensor``; ``selective``: the inside of attention is computed
    again."""

    tp: int
    selective: bool = False
    manner: Manner = PLAIN


class Divided(NamedTuple):
    """A block's division with its samples whole, the ``parts`` of a copy's samples that a device has, the pieces in
    which it has what enters, and the axes that divide its samples. ``offered``: the block runs so; otherwise the
    numbers are those of a block that nothing divides."""

    division: Division
    parts: int
    pieces: int
    batch: tuple[str, ...]
    offered: bool


class Kinds:
    """The kinds of a problem's blocks. ``of``: [n], the kind of each block; ``priced``: their costs, where some are
    known."""

    def __init__(self, problem: Problem, groups: Alike, priced: BlockCosts | None = None):
        self.problem, self.groups, self.cluster = problem, groups, problem.cluster
        self.item = item_bytes(problem.graph, problem.precision)
        self.first = sorted(set(groups.kinds))
        self.of = np.array([self.first.index(kind) for kind in groups.kinds])
        self.priced = BlockCosts(problem.graph, groups, self.item) if priced is None else priced
        self._divided: dict[BlockCut, tuple[Divided, ...]] = {}
        self._constants: dict[tuple[BlockCut, int], Mapping[str, np.ndarray]] = {}
        self._measures: dict[tuple[BlockCut, int, int], np.ndarray] = {}
        self._measured: dict[tuple[int, Division, float, int], tuple[float, ...]] = {}
        self.devices: list[Device] = []
        self._shared: np.ndarray | None = None

    def of_problem(self, problem: Problem) -> Kinds:
        """The same kinds for another batch or cluster: costs are known, and what they take on devices that are too."""
        found = Kinds(problem, self.groups, self.priced)
        if problem.cluster.threads == self.cluster.threads:
            found.devices, found._shared = self.devices, self._shared
            found._constants, found._measures, found._measured = self._constants, self._measures, self._measured
        return found

    def device(self, devices: Iterable[int]) -> int:
        """The number, in ``devices``, of what stands for the devices with these ids."""
        found = self.cluster.weakest(devices)
        if found not in self.devices:
            self.devices.append(found)
        return self.devices.index(found)

    def divided(self, cut: BlockCut) -> tuple[Divided, ...]:
        """How each kind is divided."""
        if cut not in self._divided:
            self._divided[cut] = tuple(self._division(kind, cut) for kind in self.first)
        return self._divided[cut]

    def _division(self, kind: int, cut: BlockCut) -> Divided:
        block, classes = self.problem.graph.blocks[kind], self.groups.classes[kind]
        names = tuple(dict.fromkeys(found.name for found in classes))
        strategy = cut.manner.strategy(block, names, cut.tp, 0, "selective" if cut.selective else "none")
        if strategy is None:
            return Divided(Division(), 1, 1, (), False)
        # Of a stage the axes count.
        width = tuple(range(cut.manner.width(cut.tp)))
        stage = Stage("", (block.name,), width, 1, cut.tp, 1, 1, (strategy,), cut.manner.axes)
        try:
            found = division(stage, block.name, strategy, classes, "fused")
        except PlanError:
            if cut.manner is PLAIN:
                raise
            return Divided(Division(), 1, 1, (), False)
        whole, parts = whole_samples(found)
        pieces, batch = whole.samples * whole.context * whole.sequence, strategy.cut_axes("batch")[2:]
        return Divided(whole, parts, pieces, batch, True)

    def offered(self, cut: BlockCut) -> np.ndarray:
        """[kinds]: whether a kind runs so."""
        return np.array([found.offered for found in self.divided(cut)])

    def shared_alike(self, cut: BlockCut, other: BlockCut) -> np.ndarray:
        """[kinds]: whether the parameters that a kind shares with other blocks lie in the same pieces either way."""
        graph, found = self.problem.graph, []
        for kind, one, two in zip(self.first, self.divided(cut), self.divided(other), strict=True):
            classes, block = self.groups.classes[kind], graph.blocks[kind].name
            names = [name for name, users in graph.shared_parameters.items() if block in users]
            parts = [split(graph, classes, of.division, {}).parameter for of in (one, two)]
            found.append(all(parts[0](name) == parts[1](name) for name in names))
        return np.array(found)

    def costs(self, cut: BlockCut) -> tuple[BlockCost, ...]:
        """One cost a kind, for the graph's samples."""
        return tuple(
            self.priced.of(kind, found.division) for kind, found in zip(self.first, self.divided(cut), strict=True)
        )

    def constants(self, cut: BlockCut, number: int) -> Mapping[str, np.ndarray]:
        """[kinds] each, by name: what doesn't depend on the samples, and what is in proportion to them (of the
        graph's). ``NAME of AXIS``: rounds and bytes of collectives along an axis, all-reduces of shared values, trained
        elements of parameters that lie in pieces along it."""
        if (cut, number) not in self._constants:
            graph, costs = self.problem.graph, self.costs(cut)
            divided, sizes = self.divided(cut), cut.manner.sizes(cut.tp)
            self._constants[cut, number] = {
                name: np.array(values, dtype=float)
                for name, values in {
                    "trained": [cost.trained for cost in costs],
                    "frozen": [cost.frozen for cost in costs],
                    "trains": [cost.trains for cost in costs],
                    "tensors": [
                        sum(graph.tensor[name].gradient for name in graph.blocks[kind].parameters)
                        for kind in self.first
                    ],
                    "accumulated": [cost.accumulate_seconds(self.devices[number], 2) for cost in costs],
                    "temporary": [cost.temporary_bytes for cost in costs],
                    "running": [cost.activation_bytes.max(initial=0.0) for cost in costs],
                    "parts": [found.parts for found in divided],
                    "pieces": [found.pieces for found in divided],
                    "offered": [found.offered for found in divided],
                }.items()
            } | {name: values for axis in sizes for name, values in self._along(cut, axis).items()}
        return self._constants[cut, number]

    def _along(self, cut: BlockCut, axis: str) -> dict[str, np.ndarray]:
        divided = self.divided(cut)
        each = [sent(cost, axis) for cost in self.costs(cut)]
        batch = np.array([float(axis in found.batch) for found in divided])
        down, down_bytes, up, up_bytes = 2 * batch * self.shared
        found: dict[str, np.ndarray] = {
            "down_rounds": np.array([one.forward_rounds for one in each], dtype=float),
            "down_bytes": np.array([one.forward_bytes for one in each], dtype=float),
            "up_rounds": np.array([one.backward_rounds for one in each], dtype=float),
            "up_bytes": np.array([one.backward_bytes for one in each], dtype=float),
            "down_shared": down, "down_shared_bytes": down_bytes, "up_shared": up, "up_shared_bytes": up_bytes,
            "trained": np.array(
                [self._trained(kind, of.division, axis) for kind, of in zip(self.first, divided, strict=True)],
                dtype=float,
            ),
        }  # fmt: skip
        return {f"{name} of {axis}": values for name, values in found.items()}

    def _trained(self, kind: int, found: Division, axis: str) -> int:
        """Trained elements on a device of parameters in pieces along an axis."""
        graph, classes = self.problem.graph, self.groups.classes[kind]
        part = split(graph, classes, found, {}).parameter
        cut = {one.name for one in found.classes if one.axis == axis and one.pieces > 1}
        inside = {name for one in classes if one.name in cut for name in one.dims}
        return sum(
            ceil(graph.tensor[name].elements * part(name))
            for name in graph.blocks[kind].parameters if name in inside and graph.tensor[name].gradient
        )  # fmt: skip

    def measures(self, cut: BlockCut, samples: int, number: int) -> np.ndarray:
        """[4, kinds]: forward, backward and repeated seconds of computing, kept bytes, of a copy's samples."""
        if (cut, samples, number) not in self._measures:
            rows = [
                self._measure(kind, found.division, samples / self.problem.graph.samples / found.parts, number)
                for kind, found in zip(self.first, self.divided(cut), strict=True)
            ]
            self._measures[cut, samples, number] = np.array(rows).T
        return self._measures[cut, samples, number]

    def _measure(self, kind: int, found: Division, ratio: float, number: int) -> tuple[float, ...]:
        key = kind, found, ratio, number
        if key not in self._measured:
            device, cost = self.devices[number], self.priced.of(kind, found)
            machine = (device, peak_flops(device, self.problem.precision), ratio, self.cluster.threads)
            again, kept = cost.repeated_seconds(*machine), cost.kept_bytes(device, ratio)
            self._measured[key] = (*cost.passes(*machine), again, kept)
        return self._measured[key]

    @property
    def shared(self) -> np.ndarray:
        """[4, kinds]: all-reduces where a block's samples are divided, and their bytes, forward and backward; whatever
        the samples."""
        if self._shared is None:
            graph = self.problem.graph
            rows = [shared_values(graph, graph.blocks[kind].name, self.item) for kind in self.first]
            found = [(each.forward, each.forward_bytes, each.backward, each.backward_bytes) for each in rows]
            self._shared = np.array(found, dtype=float).T
        return self._shared
