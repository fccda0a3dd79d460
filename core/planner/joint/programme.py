"""UniAP's mixed integer quadratic programme (arXiv 2307.16375, section 3) of one number of stages, its products linear.

    H[i, q, k]       stage i begins at unit q and has the shape k
    P[u, i]          block u is in stage i
    X[u, i, v, m]    P[u, i] · S[u, (v, m)]: block u is in stage i, whose prices are v (those of its shape at its
                     place), and runs with option m; the pair is what the paper calls the strategy of a block
    D[e, i]          edge e = ⟨u, w⟩ crosses the boundary behind stage i: Σ_{j≤i} P[u, j] − Σ_{j≤i} P[w, j]
    Y[e, i, v, l, m] both ends of e are in stage i, with options l and m: the paper's factor of R
    C[e, i, x, a, b] e crosses it, between nodes or not, from port a to port b: the paper's factor of R'
    L[s, u, i, v]    block u is in a stage that begins with block s, and uses what an earlier stage owns
    f, b, of, ob     seconds of stages and boundaries, p = f + b, o = of + ob; A, B: the maxima over them; t: of sync

A product of choices is a column that each of them bounds from above, alone or in the sum over what else could be
chosen; where the product costs something a sum bounds it from below. That is tighter than xy ≥ x + y − 1 for each pair.
Order: D ≥ 0. So every stage is convex; the paper's Z[u, i] is Σ_{j≤i} P[u, j]. All places of stages are in one
programme.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from partita.planner.joint.convex import Edges, chain
from partita.planner.joint.linear import Programme, Sum, plus, total
from partita.planner.joint.table import Chosen, JointTable

# The prices that ask which blocks of a stage follow each other.
_NEIGHBOURS = (
    "change_forward", "change_backward", "enter_forward", "enter_backward", "leave_forward", "leave_backward",
)  # fmt: skip


class Stages:
    """The programme. Seconds are counted in ``unit_seconds`` and bytes as shares of the limit: HiGHS likes ones."""

    def __init__(self, table: JointTable, edges: Edges | None, count: int):
        self.table, self.count, self.linear = table, count, Programme()
        self.is_chain = edges is None
        self.edges = list(chain(table.blocks) if edges is None else edges)
        seconds = table.prices.forward + table.prices.backward
        self.unit_seconds = float(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=(0, 2)).sum()) or 1.0
        self._place_stages()
        self._place_blocks()
        self._order()
        self._follow()
        self._begin()
        self._limit_memory()
        self._minimise(*self._stage_seconds(), *self._boundary_seconds())

    def relaxed_seconds(self, limit_seconds: float) -> float:
        """What no answer is below: the least cost if choices could be made in part, or 0 where the time was over."""
        found = self.linear.solve(seconds=limit_seconds, relaxed=True)
        if found.interrupted:
            raise KeyboardInterrupt
        return found.bound * self.unit_seconds

    def chosen(self, values: np.ndarray) -> tuple[tuple[int, ...], tuple[Chosen, ...]]:
        """The order of blocks and the stages that a solution stands for."""
        places = {i: (q, k) for (i, q, k), column in self.H.items() if values[column] > 0.5}
        runs = sorted((i, u, m) for (u, i, _, m), column in self.X.items() if values[column] > 0.5)
        stages: list[Chosen] = []
        for i in range(self.count):
            options = tuple(m for stage, _, m in runs if stage == i)
            start = stages[-1].stop if stages else 0
            stages.append(Chosen(start, start + len(options), *places[i], options))
        return tuple(u for _, u, _ in runs), tuple(stages)

    def forbid(self, values: np.ndarray) -> None:
        """Leave out every answer in which a stage has the blocks, the prices and the options that it has here."""
        for i in range(self.count):
            has = [column for (_, stage, _, _), column in self.X.items() if stage == i and values[column] > 0.5]
            lacks = [P for (u, stage), P in self.P.items() if stage == i and values[P] < 0.5]
            self.linear.at_most(plus(total(has), plus(total(lacks), times=-1.0)), len(has) - 1)

    def _place_stages(self) -> None:
        table, last = self.table, self.count - 1
        self.H: dict[tuple[int, int, int], int] = {}
        begins = {0}
        for i in range(self.count):
            ends = set()
            for q in sorted(begins):
                for k, width in enumerate(table.units.tolist()):
                    left = table.all_units - q - width
                    if table.prices_of[k, q] >= 0 and (left == 0 if i == last else left > 0):
                        self.H[i, q, k] = self.linear.choice()
                        ends.add(q + width)
            begins = ends
        for i in range(self.count):
            self.linear.equal(total(self._shapes(i)), 1)
            for unit in range(1, table.all_units):
                ending = total(H for (j, q, k), H in self.H.items() if j == i and q + table.units[k] == unit)
                beginning = total(H for (j, q, _), H in self.H.items() if j == i + 1 and q == unit)
                if i < last and (ending or beginning):
                    self.linear.equal(plus(ending, plus(beginning, times=-1.0)), 0)

    def _shapes(self, i: int, v: int | None = None) -> Iterator[int]:
        """The columns H of a stage, those with prices v."""
        for (stage, q, k), column in self.H.items():
            if stage == i and v in (None, self.table.prices_of[k, q]):
                yield column

    def _place_blocks(self) -> None:
        table, n, linear = self.table, self.table.blocks, self.linear
        exists = np.isfinite(table.prices.forward + table.prices.backward)
        self.P: dict[tuple[int, int], int] = {}
        self.X: dict[tuple[int, int, int, int], int] = {}
        # By (u, i, v), the columns X of all options.
        self.runs: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        self.ways = [sorted({int(table.prices_of[k, q]) for j, q, k in self.H if j == i}) for i in range(self.count)]
        for i in range(self.count):
            for u in range(i, n - self.count + i + 1) if self.is_chain else range(n):
                self.P[u, i] = linear.choice()
                for v in self.ways[i]:
                    for m in np.flatnonzero(exists[v, u]).tolist():
                        self.X[u, i, v, m] = linear.choice()
                        self.runs[u, i, v].append((m, self.X[u, i, v, m]))
                    here = total(X for _, X in self.runs[u, i, v])
                    linear.at_most(plus(here, plus(total(self._shapes(i, v)), times=-1.0)), 0)
                either = total(X for v in self.ways[i] for _, X in self.runs[u, i, v])
                linear.equal(plus(either, {self.P[u, i]: -1.0}), 0)
            linear.at_least(total(P for (_, j), P in self.P.items() if j == i), 1)
        for u in range(n):
            linear.equal(total(P for (block, _), P in self.P.items() if block == u), 1)

    def _order(self) -> None:
        """D, one boundary after another; behind the last stage none is crossed."""
        self.D: dict[tuple[int, int], int] = {}
        for e, (u, w) in enumerate(self.edges):
            for i in range(self.count):
                moves: Sum = {}
                if (u, i) in self.P:
                    moves[self.P[u, i]] = 1.0
                if (w, i) in self.P:
                    moves[self.P[w, i]] = -1.0
                if i > 0:
                    moves[self.D[e, i - 1]] = 1.0
                if i < self.count - 1:
                    self.D[e, i] = self.linear.column(1.0)
                    moves[self.D[e, i]] = -1.0
                self.linear.equal(moves, 0)
            if self.is_chain:
                # No stage is empty, so the next block is at most one stage further.
                self.linear.at_most(total(self.D[e, i] for i in range(self.count - 1)), 1)

    def _follow(self) -> None:
        """Y: under the X of both ends, and in all no less than what stays in the stage."""
        self.Y: dict[tuple[int, int, int, int, int], int] = {}
        if not any(getattr(self.table.prices, name).any() for name in _NEIGHBOURS):
            return
        for e, (u, w) in enumerate(self.edges):
            for i in range(self.count):
                for v in self.ways[i]:
                    first, second = self.runs[u, i, v], self.runs[w, i, v]
                    for l, _ in first:
                        for m, _ in second:
                            self.Y[e, i, v, l, m] = self.linear.column(1.0)
                    for l, X in first:
                        self.linear.at_most(plus(total(self.Y[e, i, v, l, m] for m, _ in second), {X: -1.0}), 0)
                    for m, X in second:
                        self.linear.at_most(plus(total(self.Y[e, i, v, l, m] for l, _ in first), {X: -1.0}), 0)
                    stay = plus(
                        total(self.Y[e, i, v, l, m] for l, _ in first for m, _ in second),
                        plus(total(X for _, X in first), times=-1.0),
                    )
                    self.linear.at_least(plus(stay, {self.D[e, i]: 1.0} if i < self.count - 1 else {}), 0)

    def _begin(self) -> None:
        """L: its block's X shared out over the blocks that its stage may begin with."""
        self.L: dict[tuple[int, int, int, int], int] = {}
        prices = self.table.prices
        lent = (prices.lent_bytes != 0) | (prices.lent_sync != 0)
        for (u, i, v), runs in self.runs.items():
            if not lent[v, :, u].any():
                continue
            shares = []
            for s in range(i, u + 1) if i else [0]:
                column = self.L[s, u, i, v] = self.linear.column(1.0)
                shares.append(column)
                # Of a chain, edge s − 1 leads to block s: where it crosses, the next stage begins with s.
                if i:
                    self.linear.at_most({column: 1.0, self.D[s - 1, i - 1]: -1.0}, 0)
            self.linear.equal(plus(total(shares), plus(total(X for _, X in runs), times=-1.0)), 0)

    def _limit_memory(self) -> None:
        table, prices = self.table, self.table.prices
        room = table.room
        if not np.isfinite(room):
            return
        scale = max(abs(room), 1.0)
        for i in range(self.count):
            w = table.held(self.count - 1 - i)
            temporary = self.linear.column()
            bytes_: Sum = {temporary: 1.0}
            each: dict[int, Sum] = defaultdict(dict)
            for (stage, q, k), H in self.H.items():
                if stage == i:
                    bytes_[H] = float(prices.base_bytes[table.prices_of[k, q]]) / scale
            for (u, stage, v, m), X in self.X.items():
                if stage == i:
                    bytes_[X] = float(prices.fixed_bytes[v, u, m] + w * prices.held_bytes[v, u, m]) / scale
                    each[u][X] = float(prices.temporary_bytes[v, u, m]) / scale
            for (s, u, stage, v), L in self.L.items():
                if stage == i:
                    bytes_[L] = float(prices.lent_bytes[v, s, u]) / scale
            for more in each.values():
                self.linear.at_most(plus(more, {temporary: -1.0}), 0)
            self.linear.at_most(bytes_, room / scale)

    def _stage_seconds(self) -> tuple[list[int], list[int]]:
        """Columns f and b of every stage."""
        return self._seconds_of_stages("forward"), self._seconds_of_stages("backward")

    def _seconds_of_stages(self, phase: str) -> list[int]:
        prices = self.table.prices
        block, change = getattr(prices, phase), getattr(prices, f"change_{phase}")
        sums: list[Sum] = [{} for _ in range(self.count)]
        into, out = defaultdict(list), defaultdict(list)
        for (e, i, v, l, m), Y in self.Y.items():
            u, w = self.edges[e]
            into[w, i, v, m].append((e, Y))
            out[u, i, v, l].append((e, Y))
            sums[i][Y] = float(change[v, w, l, m])
        for (u, i, v, m), X in self.X.items():
            sums[i][X] = float(block[v, u, m])
        for name, edges in (("enter", into), ("leave", out)):
            price = getattr(prices, f"{name}_{phase}")
            for (u, i, v, m), X in self.X.items():
                if not price[v, u, m]:
                    continue
                # Where no edge from or to this stage meets the block; one column, as there may be several edges.
                alone = self.linear.column(1.0)
                self.linear.at_least(plus({alone: 1.0, X: -1.0}, total(Y for _, Y in edges[u, i, v, m])), 0)
                sums[i][alone] = float(price[v, u, m])
        return [self._equal_to(each) for each in sums]

    def _equal_to(self, seconds: Sum) -> int:
        column = self.linear.column()
        self.linear.equal(plus(seconds, {column: -self.unit_seconds}, times=1 / self.unit_seconds), 0)
        return column

    def _boundary_seconds(self) -> tuple[list[int], list[int]]:
        """Columns of and ob of every boundary."""
        table = self.table
        found: tuple[list[int], list[int]] = ([], [])
        for i in range(self.count - 1):
            before: dict[tuple[int, int], Sum] = defaultdict(dict)
            after: dict[tuple[int, int], Sum] = defaultdict(dict)
            for (stage, q, k), H in self.H.items():
                if stage == i:
                    before[int(table.crosses[q + table.units[k]]), int(table.port[k])][H] = -1.0
                if stage == i + 1:
                    after[int(table.crosses[q]), int(table.port[k])][H] = -1.0
            pairs = [(x, a, b) for x, a in before for y, b in after if x == y]
            sums: tuple[Sum, Sum] = ({}, {})
            for e, (_, w) in enumerate(self.edges):
                C = {pair: self.linear.column(1.0) for pair in pairs}
                self.linear.equal(plus(total(C.values()), {self.D[e, i]: -1.0}), 0)
                for (x, a), shapes in before.items():
                    self.linear.at_most(plus(total(C[x, a, b] for y, b in after if x == y), shapes), 0)
                for (x, b), shapes in after.items():
                    self.linear.at_most(plus(total(C[x, a, b] for y, a in before if x == y), shapes), 0)
                for (x, a, b), column in C.items():
                    sums[0][column] = float(table.transfer_forward[x, w, a, b])
                    sums[1][column] = float(table.transfer_backward[x, w, a, b])
            for columns, each in zip(found, sums, strict=True):
                columns.append(self._equal_to(each))
        return found

    def _minimise(self, f: list[int], b: list[int], of: list[int], ob: list[int]) -> None:
        """Σp + Σo + (c − 1) · (A + B) + t."""
        table, linear = self.table, self.linear
        A, B, t = linear.column(), linear.column(), linear.column()
        linear.cost = plus(
            total([*f, *b, *of, *ob]), {A: table.micro_batches - 1.0, B: table.micro_batches - 1.0, t: 1.0}
        )
        if table.schedule == "gpipe":
            for column in (*f, *of):
                linear.at_most({column: 1.0, A: -1.0}, 0)
            for column in (*b, *ob):
                linear.at_most({column: 1.0, B: -1.0}, 0)
        else:
            for one, two in (*zip(f, b, strict=True), *zip(of, ob, strict=True)):
                linear.at_most({one: 1.0, two: 1.0, A: -1.0}, 0)
            for i in range(self.count):
                w = table.cycle(self.count - 1 - i)
                if np.isfinite(w):
                    linear.at_most(plus(total([*f[i:], *b[i:], *of[i:], *ob[i:]]), {A: -w}), 0)
        for sync in self._sync():
            linear.at_most(plus(plus(sync, times=1 / self.unit_seconds), {t: -1.0}), 0)

    def _sync(self) -> list[Sum]:
        """What each stage does once a step, in seconds."""
        prices = self.table.prices
        sums: list[Sum] = [{} for _ in range(self.count)]
        for (i, q, k), H in self.H.items():
            sums[i][H] = float(prices.base_sync[self.table.prices_of[k, q]])
        for (u, i, v, m), X in self.X.items():
            sums[i][X] = float(prices.sync[v, u, m])
        for (s, u, i, v), L in self.L.items():
            sums[i][L] = float(prices.lent_sync[v, s, u])
        return sums
