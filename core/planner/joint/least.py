"""The least sum of stage and transfer seconds among all answers whose maxima stay under given limits.

A dynamic programme from the last stage back, over all numbers of stages at once: its state is the number of stages
behind (so that the micro-batches in flight are known), the first block, the first unit and the port. A stage's seconds
come from rows where these are known (``rows.Row``) and else from the base path, which is no worse than any that fits;
whoever asks refines the rows that an answer used and asks again, until it used none that isn't exact. The cycle term of
1F1B depends on the sum from a stage to the end, which is as small as it can be: the least sum satisfies every limit
that any sum satisfies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.planner.joint.rows import BACKWARD, FORWARD, SYNC, Base, Row, base, bound, least_option, options_of, row
from partita.planner.joint.sums import EXACT, sums
from partita.planner.joint.table import Chosen, JointTable


@dataclass(frozen=True)
class Piece:
    """One stage of an answer of the programme: as ``Chosen``, with its seconds instead of options."""

    start: int
    stop: int
    unit: int
    shape: int
    behind: int
    forward: float
    backward: float
    sync: float
    exact: bool


@dataclass
class Grid:
    """A table with what was found out of its rows, for any number of questions.

    ``rows`` by (prices, in flight, start), of the stages that take less than ``below`` seconds.
    ``bases`` may be shared by all tables that have the same prices.
    """

    table: JointTable
    bases: Base
    rows: dict[tuple[int, int, int, bool], Row] = field(default_factory=dict)
    below: float = np.inf
    relaxed: bool = False

    def __post_init__(self) -> None:
        table = self.table
        self.apart = table.schedule == "gpipe"
        self.most = table.stages_at_most
        self.flights = np.array([table.held(behind) for behind in range(self.most)], dtype=np.int64)
        self.cycles = np.array([np.inf if self.relaxed else table.cycle(behind) for behind in range(self.most)])
        ways, n = table.prices.forward.shape[:2]
        each = least_option(table.prices.forward + table.prices.backward)
        # Of the blocks before each: the least seconds, and the least seconds times units, of both passes, of each.
        self.before = np.concatenate([[0.0], np.cumsum(each.min(axis=0))])
        passes = (each, least_option(table.prices.forward), least_option(table.prices.backward))
        # A block may take no time: what no shape has is left out before it is multiplied.
        had = table.used
        work = [(of[had] * table.least_units[had, None]).min(axis=0, initial=np.inf) for of in passes]
        self.work = np.stack([np.concatenate([[0.0], np.cumsum(each)]) for each in work])
        # Where a block can't be, the base path is infinite; here it is to leave those behind it as they are.
        real = np.where(np.isfinite(each), each, 0.0)
        self._least = np.concatenate([np.zeros((ways, 1)), np.cumsum(real, axis=1)], axis=1)
        # Compiled code is made for each type and order of arrays.
        self._fixed = [np.ascontiguousarray(a, float) for a in (table.prices.base_bytes, table.prices.base_sync)]
        self._dealt = [
            *(np.ascontiguousarray(a, np.int64) for a in (table.units, table.port, table.prices_of, table.crosses)),
            *(np.ascontiguousarray(a, float) for a in (table.transfer_forward, table.transfer_backward)),
        ]
        self._index = np.full((ways, self.most, n), -1, dtype=np.int64)
        self._first = np.zeros((0, n + 2), dtype=np.int64)
        self._labels = np.zeros((0, 5))
        self._pending: dict[tuple[int, int, int], Row] = {}
        self._bounds = np.zeros((0, n, n + 1))
        self._bound_index = np.full((ways, self.most), -1, dtype=np.int64)

    def row(self, v: int, behind: int, start: int) -> Row:
        """The stages from a block on, found once."""
        key = (v, int(self.flights[behind]), start, behind == 0)
        if key not in self.rows:
            self.rows[key] = row(
                self.table.prices, v, start, key[1], self.table.room, self.apart, self.below, last=behind == 0
            )
        for same in np.flatnonzero(self.flights == key[1]).tolist():
            if self._index[v, same, start] < 0 and (same == 0) == (behind == 0):
                self._pending[v, same, start] = self.rows[key]
        return self.rows[key]

    def _refine(self, piece: Piece) -> None:
        """A better bound of all stages with these prices, and where there is one, the row."""
        v = int(self.table.prices_of[piece.shape, piece.unit])
        if self._bound_index[v, piece.behind] >= 0:
            self.row(v, piece.behind, piece.start)
            return
        flight = int(self.flights[piece.behind])
        self._bound_index[v, self.flights == flight] = len(self._bounds)
        found = bound(self.table.prices, v, flight, self.table.room) * (1 - 1e-9)
        self._bounds = np.concatenate([self._bounds, found[None]])

    def _settle(self) -> None:
        """Rows that are new, where the programme sees them."""
        if not self._pending:
            return
        firsts, labels, total = [self._first], [self._labels], len(self._labels)
        for number, (key, found) in enumerate(self._pending.items(), len(self._first)):
            self._index[key] = number
            firsts.append((found.first + total)[None])
            labels.append(found.labels)
            total += len(found.labels)
        self._first, self._labels, self._pending = np.concatenate(firsts), np.concatenate(labels), {}

    def least_sum(self, limits: Sequence[float], most: float) -> tuple[float, tuple[Piece, ...]] | None:
        """The least sum with all maxima under the limits, and the stages that have it; None where none is under
        ``most``.

        ``limits`` of the slowest (1F1B: p, o and cycle; GPipe: f and of), of GPipe's b and ob, and of sync.
        """
        while True:
            found = self._ask(np.array([*limits, most]))
            if found is None or all(piece.exact for piece in found[1]):
                return found
            for piece in found[1]:
                if not piece.exact:
                    self._refine(piece)

    def _ask(self, limits: np.ndarray) -> tuple[float, tuple[Piece, ...]] | None:
        self._settle()
        table, bases, n = self.table, self.bases, self.table.blocks
        total, choices, numbers = sums(
            (bases.forward, bases.backward, bases.fixed, bases.held, bases.temporary, bases.sync),
            (bases.least_forward, bases.least_backward, bases.least_fixed, bases.least_held, bases.least_sync),
            *self._fixed, self._index, self._first, self._labels, self._bounds, self._bound_index, self._least,
            self.before, self.work, *self._dealt, self.flights, self.cycles, table.room, limits, self.apart,
        )  # fmt: skip
        ends = total[:, 0, 0]
        if not ends.min() < np.inf:
            return None
        alike = total.shape[2] == 1
        behind, port = (int(at) for at in np.unravel_index(ends.argmin(), ends.shape))
        best, pieces, start, unit = float(ends[behind, port]), [], 0, 0
        for left in range(behind, -1, -1):
            at = (left, start, 0 if alike else unit, port)
            shape, stop, kind, after = choices[at].tolist()
            forward, back, sync = numbers[at].tolist()
            pieces.append(Piece(start, stop, unit, shape, left, forward, back, sync, kind == EXACT))
            start, unit, port = stop, unit + int(table.units[shape]), after
        assert start == n
        return best, tuple(pieces)

    def chosen(self, pieces: Sequence[Piece]) -> tuple[Chosen, ...]:
        """The pieces with the options of their blocks."""
        table, found = self.table, []
        for piece in pieces:
            v = int(table.prices_of[piece.shape, piece.unit])
            known = self.row(v, piece.behind, piece.start)
            flight = int(self.flights[piece.behind])
            here = known.labels[known.first[piece.stop] : known.first[piece.stop + 1]]
            # A base path that fits is in the front, or beaten by one that takes no longer.
            wanted = np.array([piece.forward, piece.backward, piece.sync])
            over = here[:, [FORWARD, BACKWARD, SYNC]] - wanted
            if not self.apart:
                over = np.stack([over[:, 0] + over[:, 1], over[:, 2]], axis=1)
            label = here[over.max(axis=1).argmin()]
            options = options_of(
                table.prices, v, piece.start, piece.stop, flight, table.room, self.apart, label, last=piece.behind == 0
            )
            found.append(Chosen(piece.start, piece.stop, piece.unit, piece.shape, options))
        return tuple(found)


def grid(table: JointTable, bases: Base | None = None, relaxed: bool = False) -> Grid:
    """A table ready to be asked. ``relaxed``: without the cycle term, a bound for all schedules."""
    return Grid(table, base(table.prices) if bases is None else bases, relaxed=relaxed)
