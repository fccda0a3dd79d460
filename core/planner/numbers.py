"""From blocks to the numbers of a candidate: seconds of every block, bytes of every segment.

The two sides of the planner meet here: costs know blocks and devices, the search knows numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from partita.cluster.placement import Placement, place
from partita.cost.alike import Alike
from partita.cost.block import BlockCost, block_costs
from partita.cost.collective import all_gather_seconds, point_to_point_seconds, reduce_scatter_seconds
from partita.cost.crossing import crossing
from partita.cost.division import split_fraction
from partita.cost.ending import gather_seconds, reduce_seconds, update_seconds, update_start_seconds
from partita.cost.precision import compute_dtype, item_bytes, peak_flops
from partita.cost.stage import state_bytes_of
from partita.cost.state import StateBytes, state_bytes
from partita.graph.model import ITEM_BYTES
from partita.planner.candidates import Candidate
from partita.planner.formula import ChainTable, segments
from partita.problem import Problem


@dataclass(frozen=True)
class BlockSeconds:
    """[n] each: seconds of one micro-batch. ``collective`` are the parts of both passes that tp and ZeRO add.

    ``forward_collective`` and ``backward_collective``: all that is collective in a pass, what is repeated included.
    """

    forward: np.ndarray
    backward: np.ndarray
    compute: np.ndarray
    recompute: np.ndarray
    collective: np.ndarray
    forward_collective: np.ndarray
    backward_collective: np.ndarray


class Numbers:
    """Costs of one problem, computed once for each (tp, micro-batch, …) and shared by all candidates."""

    def __init__(
        self,
        problem: Problem,
        groups: Alike,
        costs_by_tp: dict[int, tuple[BlockCost, ...]] | None = None,
        places: dict[tuple[int, int, int], Placement] | None = None,
    ):
        self.problem, self.groups, self.cluster = problem, groups, problem.cluster
        # Where devices differ, every stage is priced as on the slowest, with the memory of the smallest.
        self.device = problem.cluster.weakest()
        self.peak = peak_flops(self.device, problem.precision)
        self.item = item_bytes(problem.graph, problem.precision)
        self.width = ITEM_BYTES[compute_dtype(problem.precision)]
        self.crossing = crossing(problem.graph, self.item)
        # The costs of blocks don't depend on the cluster: a larger one may share them.
        self.costs_by_tp: dict[int, tuple[BlockCost, ...]] = {} if costs_by_tp is None else costs_by_tp
        self._compute: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._kept: dict[tuple[int, int], np.ndarray] = {}
        self._seconds: dict[tuple[object, ...], BlockSeconds] = {}
        self._moved: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}
        # A plan that exists already says where its devices lie.
        self._places: dict[tuple[int, int, int], Placement] = {} if places is None else places
        self._syncs: dict[tuple[int, ...], np.ndarray] = {}
        self._least_syncs: dict[tuple[int, ...], float] = {}
        self._states: dict[tuple[int, ...], np.ndarray] = {}
        self._borrowed: dict[int, np.ndarray] = {}

    def costs(self, tp: int) -> tuple[BlockCost, ...]:
        """One cost a block."""
        if tp not in self.costs_by_tp:
            self.costs_by_tp[tp] = block_costs(
                self.problem.graph, self.groups.kinds, self.groups.classes, tp, self.item
            )
        return self.costs_by_tp[tp]

    def placement(self, candidate: Candidate) -> Placement:
        """The devices of the candidate's groups."""
        key = candidate.mesh
        if key not in self._places:
            self._places[key] = place(self.cluster, *key)
        return self._places[key]

    def trained(self, tp: int) -> np.ndarray:
        """[n]: elements of trained parameters on a device."""
        return np.array([cost.trained for cost in self.costs(tp)], dtype=float)

    def trained_tensors(self) -> np.ndarray:
        """[n]: trained parameters that each block owns."""
        graph = self.problem.graph
        return np.array(
            [sum(graph.tensor[n].gradient for n in block.parameters) for block in graph.blocks], dtype=float
        )

    def frozen(self, tp: int) -> np.ndarray:
        """[n]: elements of parameters that are not trained."""
        return np.array([cost.frozen for cost in self.costs(tp)], dtype=float)

    def ratio(self, candidate: Candidate) -> float:
        """A micro-batch in units of the graph's samples."""
        return candidate.micro / self.problem.graph.samples

    def seconds(self, candidate: Candidate) -> BlockSeconds:
        """Seconds of every block for one micro-batch."""
        where = self.placement(candidate)
        tensor, data = (where.tp_crosses, where.tp_beside), (candidate.dp, where.dp_crosses, where.dp_beside)
        key = (candidate.tp, candidate.micro, candidate.recompute, tensor, self.slowdown(candidate)) + (
            (candidate.zero, data) if candidate.zero >= 2 else ()
        )
        if self.device.measured is not None:
            key += (candidate.micro_batches > 1,)
        if key not in self._seconds:
            self._seconds[key] = self._block_seconds(candidate, where)
        return self._seconds[key]

    def slowdown(self, candidate: Candidate) -> float:
        """How much longer computing takes because devices share cores; those that wait in the pipeline need none.

        Of dp·tp·pp devices c/(c + pp − 1) compute at a time, so an even pipeline takes what the larger of its critical
        path and of all work ÷ cores does.
        """
        c, devices = candidate.micro_batches, candidate.dp * candidate.tp * candidate.pp
        return self.cluster.slowdown(devices * c / (c + candidate.pp - 1))

    def _block_seconds(self, candidate: Candidate, where: Placement) -> BlockSeconds:
        tp, ratio = candidate.tp, self.ratio(candidate)
        link = self.cluster.link(where.tp_crosses, beside=where.tp_beside)
        kinds, costs = self.groups.kinds, self.costs(candidate.tp)
        if (tp, candidate.micro) not in self._compute:
            threads = self.cluster.threads
            each = {kind: costs[kind].passes(self.device, self.peak, ratio, threads) for kind in set(kinds)}
            both = np.array([each[kind] for kind in kinds])
            self._compute[tp, candidate.micro] = both[:, 0], both[:, 1]
        compute, back = self._compute[tp, candidate.micro]
        if self.device.measured is not None:
            added = [cost.accumulate_seconds(self.device, candidate.micro_batches) for cost in costs]
            back = back + np.array(added)
        compute, back = compute * self.slowdown(candidate), back * self.slowdown(candidate)
        reduce = {kind: costs[kind].reduction_seconds(tp, link, ratio) for kind in set(kinds)}
        entry = {kind: costs[kind].entry_seconds(tp, link, ratio) for kind in set(kinds)}
        down = np.array([reduce[kind] for kind in kinds])
        up = np.array([entry[kind] for kind in kinds])
        repeated = down if candidate.recompute else np.zeros_like(down)
        again = compute + down if candidate.recompute else np.zeros_like(compute)
        if candidate.zero >= 2:
            wide = self.cluster.link(where.dp_crosses, beside=where.dp_beside)
            sizes = ((self.trained(tp) + self.frozen(tp)) * self.width).tolist()
            gradients = (self.trained(tp) * self.width).tolist()
            up = up + np.array([reduce_scatter_seconds(size, candidate.dp, wide) for size in gradients])
            if candidate.zero == 3:
                gather = np.array([all_gather_seconds(size, candidate.dp, wide) for size in sizes])
                down, up = down + gather, up + gather
        backward = back + up + again
        whole, total, all_up = compute + back, down + up, up + repeated
        if not (trains := np.array([cost.trains for cost in costs])).all():
            # No gradient flows through some: they run forward alone.
            backward, again, all_up = (np.where(trains, value, 0.0) for value in (backward, again, all_up))
            whole, total = np.where(trains, whole, compute), np.where(trains, total, down)
        return BlockSeconds(compute + down, backward, whole, again, total, down, all_up)

    def transfers(self, candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
        """[S − 1, n + 1]: seconds forward and backward of each boundary at each cut."""
        order = self.placement(candidate).boundary_crosses
        if (key := (candidate.micro, order)) not in self._moved:
            ratio, shape = self.ratio(candidate), (candidate.pp - 1, len(self.groups.kinds) + 1)
            sizes = (self.crossing.forward_bytes * ratio, self.crossing.backward_bytes * ratio)
            found = []
            for size in sizes:
                rows = {
                    crosses: [point_to_point_seconds(each, self.cluster.link(crosses)) for each in size.tolist()]
                    for crosses in set(order)
                }
                found.append(np.array([rows[crosses] for crosses in order]).reshape(shape))
            self._moved[key] = (found[0], found[1])
        return self._moved[key]

    def borrowed(self, tp: int) -> np.ndarray:
        """[n + 1, n + 1]: elements of parameters that blocks i…j−1 use and an earlier stage owns, each once."""
        if tp not in self._borrowed:
            graph, n = self.problem.graph, len(self.groups.kinds)
            position = {block.name: index for index, block in enumerate(graph.blocks)}
            found = np.zeros((n + 1, n + 1))
            for name, users in graph.shared_parameters.items():
                owner, *others = sorted(position[user] for user in users)
                size = self.local_elements(name, owner, tp)
                for i in range(owner + 1, others[-1] + 1):
                    found[i, next(other for other in others if other >= i) + 1 :] += size
            self._borrowed[tp] = found
        return self._borrowed[tp]

    def local_elements(self, parameter: str, owner: int, tp: int) -> int:
        """Elements of a shared parameter on one device."""
        classes, standing = self.groups.owner_cuts(parameter, owner)
        split = split_fraction(classes, {cut.name: tp for cut in classes})
        return ceil(self.problem.graph.tensor[parameter].elements * split(standing))

    def state(self, candidate: Candidate, i: int, j: int) -> StateBytes:
        """State of the parameters of blocks i…j−1 on a device; shards are rounded up block by block."""
        per = state_bytes(self.problem.precision, self.problem.optimizer, 0, 1)
        found = state_bytes_of(
            self.trained(candidate.tp)[i:j], self.frozen(candidate.tp)[i:j], per, candidate.zero, candidate.dp
        )
        return StateBytes(*(float(item.sum()) for item in found))

    def sync(self, candidate: Candidate) -> np.ndarray:
        """[n + 1, n + 1]: seconds at a step's end of a stage with blocks i…j−1: dp, tied weights, update."""
        key = (*candidate.mesh, candidate.zero)
        if key not in self._syncs:
            self._syncs[key] = self._sync_segments(candidate)
        return self._syncs[key]

    def _sync_segments(self, candidate: Candidate) -> np.ndarray:
        trained, borrowed = segments(self.trained(candidate.tp)), self.borrowed(candidate.tp)
        rows = np.stack([trained, borrowed, segments(self.trained_tensors())], -1).reshape(-1, 3)
        values, places = np.unique(rows, axis=0, return_inverse=True)
        seconds = np.array([self.stage_sync(candidate, own, lent, tensors) for own, lent, tensors in values.tolist()])
        return seconds[places.reshape(-1)].reshape(trained.shape)

    def least_sync(self, candidate: Candidate) -> float:
        """A lower bound of max s: one stage has at least an even share of the parameters, in any number of tensors."""
        key = (*candidate.mesh, candidate.zero)
        if key not in self._least_syncs:
            share = float(self.trained(candidate.tp).sum()) / candidate.pp
            self._least_syncs[key] = self.stage_sync(candidate, share, 0.0, 0.0)
        return self._least_syncs[key]

    def stage_sync(self, candidate: Candidate, trained: float, borrowed: float, tensors: float) -> float:
        """Seconds at a step's end of a stage with that many trained and borrowed elements on a device.

        ``tensors`` are the trained parameters that hold them.
        """
        if trained == np.inf:
            return 0.0
        tied = self.cluster.link(any(self.placement(candidate).boundary_crosses))
        exchange = self.gather_seconds(candidate, trained) + self.reduce_seconds(candidate, trained)
        exchange += 2 * point_to_point_seconds(borrowed * self.width, tied)
        return exchange + self.update_seconds(candidate, trained, tensors)

    def reduce_seconds(self, candidate: Candidate, trained: float) -> float:
        """Adding up a step's gradients over dp."""
        where = self.placement(candidate)
        wide = self.cluster.link(where.dp_crosses, beside=where.dp_beside)
        return reduce_seconds(trained * self.width, candidate.zero, candidate.dp, wide)

    def gather_seconds(self, candidate: Candidate, trained: float) -> float:
        """Gathering what each copy updated."""
        where = self.placement(candidate)
        wide = self.cluster.link(where.dp_crosses, beside=where.dp_beside)
        return gather_seconds(trained * self.width, candidate.zero, candidate.dp, wide)

    def update_seconds(self, candidate: Candidate, trained: float, tensors: float) -> float:
        """The update of that many elements in that many tensors."""
        problem, c = self.problem, candidate
        device = self.device
        update = update_seconds(device, problem.precision, problem.optimizer, trained, tensors, c.zero, c.dp)
        update += update_start_seconds(device, problem.optimizer) if trained else 0.0
        return update * self.cluster.slowdown(c.dp * c.tp * c.pp)

    def held(self, candidate: Candidate) -> np.ndarray:
        """[n]: bytes that each block keeps of a micro-batch until its backward; with recomputation its inputs alone."""
        if candidate.recompute:
            trains = np.array([cost.trains for cost in self.costs(candidate.tp)], dtype=float)
            return np.ceil(self.crossing.forward_bytes[:-1] * self.ratio(candidate) * trains)
        return np.ceil(self.kept(candidate))

    def kept(self, candidate: Candidate) -> np.ndarray:
        """[n]: bytes that autograd saves of each block for a micro-batch."""
        key = (candidate.tp, candidate.micro)
        if key not in self._kept:
            kinds, costs = self.groups.kinds, self.costs(candidate.tp)
            each = {kind: costs[kind].kept_bytes(self.device, self.ratio(candidate)) for kind in set(kinds)}
            self._kept[key] = np.array([each[kind] for kind in kinds])
        return self._kept[key]

    def temporary(self, candidate: Candidate) -> np.ndarray:
        """[n]: bytes that exist while a block runs: gradients, activations computed again, ZeRO's gathered weights."""
        costs, ratio = self.costs(candidate.tp), self.ratio(candidate)
        found = np.array([cost.temporary_bytes for cost in costs]) * ratio
        if candidate.recompute:
            found = found + self.kept(candidate)
        if candidate.zero >= 2:
            found = found + self.trained(candidate.tp) * self.width
        if candidate.zero == 3:
            found = found + (self.trained(candidate.tp) + self.frozen(candidate.tp)) * self.width
        return np.ceil(found)

    def state_segments(self, candidate: Candidate) -> np.ndarray:
        """[n + 1, n + 1]: bytes of state and of the framework on a device of a stage with blocks i…j−1."""
        key = (candidate.tp, candidate.dp, candidate.zero)
        if key in self._states:
            return self._states[key]
        per = state_bytes(self.problem.precision, self.problem.optimizer, 0, 1)
        dp, zero = candidate.dp, candidate.zero
        trained, frozen, borrowed = (
            segments(self.trained(candidate.tp)), segments(self.frozen(candidate.tp)), self.borrowed(candidate.tp)
        )  # fmt: skip
        with np.errstate(invalid="ignore"):
            shard = segments(np.ceil(self.trained(candidate.tp) / dp))
            state = (shard if zero >= 3 else trained) * per.parameters
            state += (shard if zero >= 2 else trained) * per.gradients + (shard if zero else trained) * per.optimizer
            state += (segments(np.ceil(self.frozen(candidate.tp) / dp)) if zero >= 3 else frozen) * per.parameters
        state += borrowed * (per.parameters + per.gradients) + self.device.framework_bytes
        self._states[key] = state
        return state

    def table(self, candidate: Candidate, limit: float) -> ChainTable:
        """All numbers that the search needs."""
        seconds = self.seconds(candidate)
        forward, backward = self.transfers(candidate)
        return ChainTable(
            forward=seconds.forward, backward=seconds.backward,
            transfer_forward=forward, transfer_backward=backward, sync=self.sync(candidate),
            fixed_bytes=np.ceil(self.state_segments(candidate) + _largest(self.temporary(candidate))),
            held_bytes=np.ceil(segments(self.held(candidate))),
            memory_limit=limit, micro_batches=candidate.micro_batches, stages=candidate.pp, schedule=candidate.schedule,
        )  # fmt: skip


def _largest(values: np.ndarray) -> np.ndarray:
    """[n + 1, n + 1]: the largest of values[i:j], 0 where there is none."""
    n = len(values)
    grid = np.zeros((n + 1, n + 1))
    grid[:, 1:] = np.where(np.arange(n)[None, :] >= np.arange(n + 1)[:, None], values[None, :], 0.0)
    found: np.ndarray = np.maximum.accumulate(grid, axis=1)
    return found
