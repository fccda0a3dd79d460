"""What blocks are, whatever the stage: arrays over the kinds of blocks that a model has, asked for once.

Seconds of computing and kept bytes depend on a kind, its cut and the samples of a device alone; all tables share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from partita.cluster.model import Device
from partita.cost.alike import Alike
from partita.cost.block import BlockCost, divided_cost
from partita.cost.division import tensor_division
from partita.cost.precision import item_bytes, peak_flops
from partita.cost.samples import sampled, shared_values
from partita.cost.stage import sent
from partita.problem import Problem


class BlockCut(NamedTuple):
    """A block's classes over ``tp`` devices; ``selective``: the inside of attention is computed again."""

    tp: int
    selective: bool = False


class Kinds:
    """The kinds of a problem's blocks. ``of``: [n], the kind of each block."""

    def __init__(self, problem: Problem, groups: Alike):
        self.problem, self.groups, self.cluster = problem, groups, problem.cluster
        self.item = item_bytes(problem.graph, problem.precision)
        self.first = sorted(set(groups.kinds))
        self.of = np.array([self.first.index(kind) for kind in groups.kinds])
        self._costs: dict[BlockCut, tuple[BlockCost, ...]] = {}
        self._constants: dict[tuple[BlockCut, int], Mapping[str, np.ndarray]] = {}
        self._measures: dict[tuple[BlockCut, int, int], np.ndarray] = {}
        self.devices: list[Device] = []
        self._shared: np.ndarray | None = None

    def device(self, devices: Iterable[int]) -> int:
        """The number, in ``devices``, of what stands for the devices with these ids."""
        found = self.cluster.weakest(devices)
        for number, known in enumerate(self.devices):
            if known is found:
                return number
        self.devices.append(found)
        return len(self.devices) - 1

    def costs(self, cut: BlockCut) -> tuple[BlockCost, ...]:
        """One cost a kind, for the graph's samples."""
        if cut not in self._costs:
            graph, made = self.problem.graph, []
            for kind in self.first:
                classes = self.groups.classes[kind]
                division = replace(tensor_division(classes, cut.tp), selective=cut.selective)
                made.append(divided_cost(graph, graph.blocks[kind].name, classes, division, self.item))
            self._costs[cut] = tuple(made)
        return self._costs[cut]

    def constants(self, cut: BlockCut, number: int) -> Mapping[str, np.ndarray]:
        """[kinds] each, by name: what doesn't depend on the samples, and what is in proportion to them (of the
        graph's)."""
        if (cut, number) not in self._constants:
            graph, costs = self.problem.graph, self.costs(cut)
            found = [sent(cost, "tensor") for cost in costs]
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
                    "down_rounds": [each.forward_rounds for each in found],
                    "down_bytes": [each.forward_bytes for each in found],
                    "up_rounds": [each.backward_rounds for each in found],
                    "up_bytes": [each.backward_bytes for each in found],
                }.items()
            }
        return self._constants[cut, number]

    def measures(self, cut: BlockCut, samples: int, number: int) -> np.ndarray:
        """[4, kinds]: forward, backward and repeated seconds of computing, kept bytes, of a device's samples."""
        if (cut, samples, number) not in self._measures:
            device, ratio = self.devices[number], samples / self.problem.graph.samples
            machine = (device, peak_flops(device, self.problem.precision), ratio, self.cluster.threads)
            rows = [
                (*cost.passes(*machine), cost.repeated_seconds(*machine), cost.kept_bytes(device, ratio))
                for cost in self.costs(cut)
            ]
            self._measures[cut, samples, number] = np.array(rows).T
        return self._measures[cut, samples, number]

    @property
    def shared(self) -> np.ndarray:
        """[4, kinds]: all-reduces where a block's samples are divided, and their bytes, forward and backward; whatever
        the samples."""
        if self._shared is None:
            graph, differ = self.problem.graph, sampled(self.problem.graph)
            rows = [shared_values(graph, graph.blocks[kind].name, self.item, differ) for kind in self.first]
            found = [(each.forward, each.forward_bytes, each.backward, each.backward_bytes) for each in rows]
            self._shared = np.array(found, dtype=float).T
        return self._shared
