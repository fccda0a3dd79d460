"""Piper's cost on one set of ideals: the stages that all stay under a time, if there are such."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from partita.errors import divisors
from partita.planner.ideals import Ideals
from partita.workload.answer import WorkloadStage
from partita.workload.piper_file import PiperFile, PiperNode, Way
from partita.workload.piper_sums import choose, crossings, extend

# Ideals that one call of compiled code looks at, between two looks at the clock.
CHUNK = 64
# Sums in another order differ by less.
SLACK = 1e-12


@dataclass(frozen=True)
class PiperProblem:
    """``data``, ``tensor`` and ``recompute``: whether there may be copies, devices side by side, and recomputation."""

    file: PiperFile
    data: bool = True
    tensor: bool = True
    recompute: bool = True

    @property
    def degrees(self) -> list[int]:
        """The numbers of devices side by side that a stage may have."""
        found = {degree for node in self.file.graph.nodes for degree in node.degrees}
        return sorted(degree for degree in found if degree <= self.file.devices and (self.tensor or degree == 1))

    @property
    def copies(self) -> list[int]:
        """The numbers of copies that a stage may have."""
        most = min(self.file.devices, self.file.micro_batches)
        return [d for d in divisors(self.file.micro_batches) if d <= most] if self.data else [1]

    def ways(self, node: PiperNode, degree: int) -> list[tuple[Way, bool]]:
        """The ways of a node, and whether each computes it again; the faster one first."""
        kind = node.degrees[degree]
        found = [(kind.vanilla, False)]
        if self.recompute and kind.recomputed is not None:
            found.append((kind.recomputed, True))
        return sorted(found, key=lambda way: way[0].seconds)


class Search:
    """Laid out for the compiled loops once; ``given_up``: whether the last no of ``plan`` is none, as a choice of what
    is computed again took too many steps."""

    def __init__(self, problem: PiperProblem, closed: Ideals):
        file, degrees = problem.file, problem.degrees
        nodes, count = file.graph.nodes, len(file.graph.nodes)
        self.problem, self.closed = problem, closed
        self.given_up = False
        self.most = min(file.devices, file.micro_batches)
        own = np.zeros((len(degrees), 4, count))
        lacking = np.zeros((len(degrees), count))
        # What the slower way of a node costs, and what it saves a micro-batch in flight and at once.
        self.extra, self.flight, self.fixed = (np.zeros((len(degrees), count)) for _ in range(3))
        work = np.full(count, inf)
        for t, degree in enumerate(degrees):
            for n, node in enumerate(nodes):
                if degree not in node.degrees:
                    lacking[t, n] = 1
                    continue
                ways = [way for way, _ in problem.ways(node, degree)]
                fast, slow = ways[0], ways[-1]
                own[t, :, n] = fast.seconds, node.degrees[degree].parameter_bytes, fast.flight_bytes, fast.fixed_bytes
                self.extra[t, n] = slow.seconds - fast.seconds
                self.flight[t, n] = fast.flight_bytes - slow.flight_bytes
                self.fixed[t, n] = fast.fixed_bytes - slow.fixed_bytes
                work[n] = min(work[n], degree * fast.seconds)
        self.work = closed.sums(work)
        self.edges = np.array(file.graph.edges, np.int64).reshape(-1, 2)
        self.entering, self.leaving = self._edge_bytes()
        starts, listed, into, out = crossings(closed.masks, self.edges, self.entering, self.leaving)
        self.orders = self._orders()
        self.tables = (
            closed.masks, self.edges, starts, listed, into, out, self.entering, self.leaving,
            np.stack([np.ascontiguousarray(closed.sums(table.T).T) for table in own]),
            np.ascontiguousarray(closed.sums(lacking.T).T), self.work, np.array(degrees), np.array(problem.copies),
            self.orders, self.extra, self.flight, self.fixed,
        )  # fmt: skip

    @property
    def least_seconds(self) -> float:
        """All devices busy all the time, or a whole node on as many copies as there may be."""
        problem = self.problem
        single = max(
            min(problem.ways(node, t)[0][0].seconds for t in problem.degrees if t in node.degrees)
            for node in problem.file.graph.nodes
        )
        return max(float(self.work[-1]) / problem.file.devices, single / max(problem.copies))

    def plan(self, below: float, memory: float, deadline: float = inf) -> tuple[WorkloadStage, ...] | None:
        """Stages of at most ``below`` seconds and ``memory`` bytes a device; TimeoutError past ``deadline``."""
        file, count = self.problem.file, len(self.closed)
        shape = (count, self.most + 1)
        fewest = np.full(shape, file.devices + 1, np.int32)
        fewest[-1, 0] = 0
        following, way, copied = (np.full(shape, -1, np.int32) for _ in range(3))
        numbers, highs = np.zeros(count, np.int64), np.zeros_like(self.closed.masks)
        ends, live = np.zeros((count, 3), np.int64), 0
        self.given_up = False
        for start in range(count - 1, -1, -CHUNK):
            if time.monotonic() > deadline:
                raise TimeoutError
            live, given_up = extend(
                *self.tables, memory * (1 + SLACK), float(file.micro_batches), file.bytes_per_second, file.devices,
                below, fewest, following, way, copied, numbers, highs, ends, live, start, max(start - CHUNK, -1),
            )  # fmt: skip
            self.given_up = self.given_up or bool(given_up)
        s = int(fewest[0].argmin())
        if fewest[0, s] > file.devices:
            return None
        stages, low = [], 0
        while low < count - 1:
            high, t, d = int(following[low, s]), int(way[low, s]), int(copied[low, s])
            stages.append(self._stage(low, high, t, d, ceil(s / d), below, memory))
            low, s = high, s - d
        return tuple(stages)

    def _stage(self, low: int, high: int, t: int, d: int, flights: int, below: float, memory: float) -> WorkloadStage:
        """A stage, its time and bytes summed from its own nodes."""
        file, nodes = self.problem.file, self.problem.file.graph.nodes
        degree, members = self.problem.degrees[t], self.closed.between(low, high)
        inside = np.zeros(len(nodes), np.bool_)
        inside[members] = True
        source, target = inside[self.edges[:, 0]], inside[self.edges[:, 1]]
        sent = self.entering[t][target & ~source].sum() + self.leaving[t][source & ~target].sum()
        weights = sum(nodes[n].degrees[degree].parameter_bytes for n in members)
        shared = (4 * (d - 1) / d * weights / file.micro_batches) / file.bytes_per_second
        ways = {n: self.problem.ways(nodes[n], degree) for n in members}
        compute = sum(ways[n][0][0].seconds for n in members)
        need = sum(ways[n][0][0].bytes(flights) for n in members) - memory * (1 + SLACK)
        slower = np.zeros(len(nodes), np.bool_)
        if need > 0:
            # As it was chosen before, but for the rounding of sums.
            budget = (below * (1 + 1e-9) - shared) * d - sent / file.bytes_per_second - compute
            chosen = choose(
                self.closed.masks[low], self.closed.masks[high], self.orders[t, flights], self.extra[t],
                self.flight[t], self.fixed[t], flights, need * (1 - 1e-9), budget, np.empty(len(nodes), np.int64),
                slower,
            )  # fmt: skip
            assert chosen == 1
        run = {n: ways[n][-1 if slower[n] else 0] for n in members}
        seconds = (sum(way.seconds for way, _ in run.values()) + sent / file.bytes_per_second) / d + shared
        return WorkloadStage(
            tuple(nodes[n].name for n in members), d, degree, float(seconds),
            sum(way.bytes(flights) for way, _ in run.values()),
            tuple(nodes[n].name for n in members if run[n][1]),
        )  # fmt: skip

    def _edge_bytes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[degrees, edges]: what an edge costs the stage that it enters, and the one that it leaves: there and back."""
        file, degrees = self.problem.file, self.problem.degrees
        entering, leaving = (np.zeros((len(degrees), len(file.edge_bytes))) for _ in range(2))
        for edge, (ends, size) in enumerate(zip(file.graph.edges, file.edge_bytes, strict=True)):
            source, target = (file.graph.nodes[end] for end in ends)
            for t, degree in enumerate(degrees):
                if degree in target.degrees:
                    entering[t, edge] = 2 * (size + target.degrees[degree].entering.get(source.id, 0.0))
                if degree in source.degrees:
                    leaving[t, edge] = 2 * (size + source.degrees[degree].leaving.get(target.id, 0.0))
        return entering, leaving

    def _orders(self) -> NDArray[np.int64]:
        """[degrees, in flight + 1, nodes]: the nodes whose slower way costs the fewest seconds a saved byte first."""
        flights = np.arange(self.most + 1)[None, :, None]
        saved = self.flight[:, None, :] * flights + self.fixed[:, None, :]
        costs = np.where(saved > 0, self.extra[:, None, :] / np.where(saved > 0, saved, 1), inf)
        return np.ascontiguousarray(np.argsort(costs, axis=2, kind="stable"))
