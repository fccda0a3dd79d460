"""A problem's tables for the joint search."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from partita.cost.alike import Alike
from partita.cost.crossing import Crossing, crossing
from partita.cost.precision import compute_dtype
from partita.errors import divisors
from partita.graph.model import ITEM_BYTES
from partita.planner.joint.boundary import shares
from partita.planner.joint.held import holding
from partita.planner.joint.kinds import Kinds
from partita.planner.joint.manner import Manner
from partita.planner.joint.manners import offered
from partita.planner.joint.places import Places, places
from partita.planner.joint.space import MOST_UNITS, Family, families
from partita.planner.joint.table import Chosen, JointTable, Prices
from partita.planner.joint.ways import Ways
from partita.problem import Problem

Schedule = Literal["1f1b", "gpipe"]
# Prices that are kept for tables of other schedules.
KEPT = 8


class Pricing:
    """The tables of one problem on ``devices`` of its cluster's devices from ``first`` on (all of them by default).

    Shapes and options are numbered as the family has them. Tables of one family and number of micro-batches share
    their prices, whatever the schedule. ``known``: another one of the same model and precision: see ``on``.
    """

    def __init__(
        self, problem: Problem, groups: Alike, devices: int | None = None, most_units: int = MOST_UNITS,
        known: Pricing | None = None, first: int = 0,
    ):  # fmt: skip
        self.problem, self.groups, self.cluster, self.most_units = problem, groups, problem.cluster, most_units
        self.devices, self.first = self.cluster.devices if devices is None else devices, first
        self.kinds: Kinds = Kinds(problem, groups) if known is None else known.kinds.of_problem(problem)
        self.crossing: Crossing = crossing(problem.graph, self.kinds.item) if known is None else known.crossing
        self._ways: dict[Family, Ways] = {}
        # Families that differ in ``tied`` alone share theirs.
        self._alike: dict[tuple[object, ...], Ways] = {}
        self._moved: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}
        # The last few: all of them together are large.
        self._prices: OrderedDict[tuple[Family, int], Prices] = OrderedDict()

    def on(self, problem: Problem, devices: int | None = None, first: int = 0) -> Pricing:
        """The tables of another question about the same model in the same precision, which share its blocks' costs."""
        assert problem.graph is self.problem.graph
        assert problem.precision == self.problem.precision
        return Pricing(problem, self.groups, devices, self.most_units, self, first)

    @cached_property
    def families(self) -> tuple[Family, ...]:
        """All families, in a fixed order."""
        return tuple(families(self.problem, self.groups, self.devices, self.most_units, self.manners))

    @cached_property
    def manners(self) -> tuple[Manner, ...]:
        """What plugins offer beside the plain manner, for the one runtime that takes any."""
        return offered(self.problem, self.groups) if self.problem.target == "partita" else ()

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of a parameter."""
        return ITEM_BYTES[compute_dtype(self.problem.precision)]

    def classes(self, block: int) -> tuple[str, ...]:
        """The names of a block's classes of dims."""
        found = self.groups.classes[self.groups.kinds[block]]
        return tuple(dict.fromkeys(cut.name for cut in found))

    def micro_batches(self, family: Family) -> list[int]:
        """The numbers of micro-batches for which a shape of the family can divide a turn's samples as is held."""
        batch, copies = self.problem.global_batch, {shape.dp for shape in family.shapes}
        held = self.problem.fix.get("micro_batches")
        return [
            count for count in divisors(batch)
            if held in (None, count) and any(self._divides(batch // count, dp) for dp in copies)
        ]  # fmt: skip

    def _divides(self, samples: int, dp: int) -> bool:
        """Whether copies can have equal parts of a turn's samples, of the size that may be held."""
        return samples % dp == 0 and self.problem.fix.get("micro_batch", samples // dp) == samples // dp

    def table(self, family: Family, micro_batches: int, schedule: Schedule = "1f1b", depth: int = 0) -> JointTable:
        """The table of a family for that many micro-batches."""
        where, samples = self.places(family), self.problem.global_batch // micro_batches
        fits = np.array([self._divides(samples, shape.dp) for shape in family.shapes])
        ports = family.ports
        forward, backward = self._transfers(ports, samples)
        table = JointTable(
            prices=self.prices(family, micro_batches),
            units=np.array([shape.devices // family.unit for shape in family.shapes]),
            port=np.array([ports.index(shape.port) for shape in family.shapes]),
            prices_of=np.where(fits[:, None], where.of, -1),
            crosses=where.crosses,
            transfer_forward=forward,
            transfer_backward=backward,
            memory_limit=float(self.problem.largest_memory_limit),
            micro_batches=micro_batches,
            most_stages=min(family.most_stages, len(self.groups.kinds)),
            schedule=schedule,
            depth=depth,
        )
        return holding(table, family, self.problem.graph, self.problem.fix)

    def unmixed(self, family: Family, micro_batches: int, schedule: Schedule = "1f1b", depth: int = 0) -> JointTable:
        """The table without the stages that mix forms."""
        table = self.table(family, micro_batches, schedule, depth)
        mixed = np.array([shape.mixed for shape in family.shapes])
        return replace(table, prices_of=np.where(mixed[:, None], -1, table.prices_of)) if mixed.any() else table

    def variant(self, family: Family, table: JointTable, stage: Chosen) -> int:
        """The number of a stage's variant; a stage that is held has prices of its own."""
        return int(table.prices_of[stage.shape, stage.unit]) % len(self.ways(family).shapes)

    def prices(self, family: Family, micro_batches: int) -> Prices:
        """The prices of a family for that many micro-batches."""
        if (family, micro_batches) not in self._prices:
            self._prices[family, micro_batches] = self.ways(family).prices(micro_batches, family.tied)
            if len(self._prices) > KEPT:
                self._prices.popitem(last=False)
        return self._prices[family, micro_batches]

    def ways(self, family: Family) -> Ways:
        """The variants of a family's shapes."""
        if family not in self._ways:
            key = (family.unit, family.stages, family.shapes, family.options)
            if key not in self._alike:
                where = places(self.cluster, family, self.first)
                self._alike[key] = Ways(self.kinds, self.crossing, family, where, self.devices)
            self._ways[family] = self._alike[key]
        return self._ways[family]

    def places(self, family: Family) -> Places:
        """Where the family's shapes can begin."""
        return self.ways(family).places

    def _transfers(self, ports: tuple[tuple[int, int], ...], samples: int) -> tuple[np.ndarray, np.ndarray]:
        """[2, n + 1, P, P] each: seconds of a boundary, forward and backward, inside a node and between nodes.

        Where nodes differ, each is over the slowest link that any of them has: which nodes a boundary lies between is
        not asked.
        """
        if (ports, samples) in self._moved:
            return self._moved[ports, samples]
        ratio = samples / self.problem.graph.samples
        links = [self.cluster.link(crosses) for crosses in (False, True)]
        latency = np.array([link.latency_seconds for link in links])[:, None, None, None]
        speed = np.array([link.reached_bytes_per_second for link in links])[:, None, None, None]
        found = []
        share, times = shares(ports)
        for sizes, part, each in ((self.crossing.forward, share, times), (self.crossing.backward, share.T, times.T)):
            size = sizes[:, None, None].of(ratio * part, each)
            found.append((size > 0) * latency + size / speed)
        self._moved[ports, samples] = found[0], found[1]
        return self._moved[ports, samples]
