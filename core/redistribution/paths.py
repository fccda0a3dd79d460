"""The search for the cheapest path of steps between two types.

Three things are looked at. Collectives alone: forward from the source, in order of what they cost so far plus what is
needed at least from there on (A*); where these are too many, first in order of what is out of place. A direct step:
from the layouts to which few collectives lead, to those from which few lead to the target, in order of what all of it
takes at least; the price of a direct step is found when its turn comes. And those two ends without a direct step, where
they meet. Each stops at the best found so far, and after a fixed number of layouts, so that the answer is the same each
time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import chain, count
from typing import Literal

from partita.redistribution.array_type import ArrayType
from partita.redistribution.estimate import Estimate
from partita.redistribution.price import Network, load
from partita.redistribution.space import Axes, Move, Space, State, put
from partita.redistribution.steps import LOCAL, Op, Step, direct

Objective = Literal["bytes", "time"]
# By the objective first, then by the other; of equal ones the fewer steps, a direct step counted as two.
Cost = tuple[float, float, int]
Way = tuple[Move, ...]
# Layouts looked at before and after a direct step, of which the first are paired. Layouts that are met by collectives
# alone, and direct steps whose price is found: on up to that many devices, and on more, where each takes longer.
BEFORE, AFTER, ENDS = 10, 12, 16
SMALL = 512
ALONE, PRICED = (1500, 300), (40, 8)
NONE: Cost = 0.0, 0.0, 0
INFINITE: Cost = float("inf"), 0.0, 0


@dataclass(frozen=True)
class Path:
    """Steps and what they cost: by the objective first."""

    cost: Cost
    steps: tuple[Step, ...]


class Search:
    """A search, carried out when it is made. ``best`` is None where nothing leads to the target.

    ``bound`` is the least number of elements; ``until`` a time by ``time.monotonic``; ``memory`` in elements;
    ``best`` is what is known already.
    """

    def __init__(
        self, source: ArrayType, target: ArrayType, item_bytes: int, network: Network, objective: Objective,
        memory: int, allowed: frozenset[Op], bound: int, until: float | None, best: Path | None = None,
    ):  # fmt: skip
        self.source, self.target, self.item_bytes, self.network = source, target, item_bytes, network
        self.objective, self.bound, self.until = objective, bound, until
        self.best = best
        self.large = len(source.mesh.devices) > SMALL
        self.considered = 0
        self.complete = True
        even = source.even and target.even
        self.here = Space(source.mesh, source.shape, item_bytes, network, memory, allowed, even)
        self.one = source.mesh == target.mesh
        self.there = self.here
        if not self.one:
            self.there = Space(target.mesh, target.shape, item_bytes, network, memory, allowed, even)
        self.start, self.end = self.here.state(source.layout), self.there.state(target.layout)
        estimate = Estimate(self.here) if self.one else None
        self.estimate = estimate if estimate is not None and estimate.aligned else None
        self.directs: dict[tuple[State, State], list[tuple[Cost, Step]]] = {}
        self.leasts: dict[State, Cost] = {}
        self._run("direct" in allowed)

    @property
    def proven(self) -> bool:
        """Whether nothing can be cheaper, by the objective."""
        if self.best is None:
            return False
        if self.objective == "bytes":
            return self.best.cost[0] <= self.bound
        if self.estimate is None or self.end[1] or not self.best.steps:
            return not self.best.steps
        return self.best.cost[0] <= self.estimate.any_way(self.start, self.end) * (1 + 1e-12)

    def _run(self, directly: bool) -> None:
        if self.one and self.start == self.end:
            self.best = Path(NONE, ())
            return
        if self.one:
            self._fall_back()
        if directly:
            self._through(((),), ((),))
        if self.one and not self._alone():
            # With a way at hand, more can be left out.
            self._alone(hasty=True)
            self.complete = self._alone() and self.complete
        if directly:
            before, after = self._before(), self._after()
            self._meet(before, after)
            self._through(before.values(), after.values())

    def cost(self, elements: float, seconds: float, steps: int = 0) -> Cost:
        return (elements, seconds, steps) if self.objective == "bytes" else (seconds, elements, steps)

    def cost_of(self, way: Iterable[Move]) -> Cost:
        return reduce(_sum, map(self.move_cost, way), NONE)

    def move_cost(self, move: Move) -> Cost:
        return self.cost(move.elements, move.seconds, int(move.op not in LOCAL))

    def _better(self, cost: Cost) -> bool:
        """Whether something of that cost would be better than the best so far, rounding apart."""
        if self.best is None:
            return True
        for new, old in zip(cost, self.best.cost, strict=True):
            if abs(new - old) > 1e-12 * old:
                return new < old
        return False

    def _take(self, cost: Cost, way: Iterable[Move], middle: tuple[Step, ...] = (), rest: Way = ()) -> None:
        if self._better(cost):
            steps = [self.here.step(move) for move in way], middle, [self.there.step(move) for move in rest]
            self.best = Path(cost, tuple(chain(*steps)))

    def _late(self) -> bool:
        late = self.until is not None and time.monotonic() > self.until and self.best is not None
        self.complete = self.complete and not late
        return late

    def _fall_back(self) -> None:
        """Completes sums, gathers each dim up to where it differs, and slices: always a way, if memory suffices."""
        space, state, way = self.here, self.start, list[Move]()

        def take(op: Op, after: State, axes: Axes, dim: int = 0) -> None:
            nonlocal state
            way.append(space.move(op, state, after, axes, dim))
            state = after

        dims, sums = self.end
        if gone := tuple(axis for axis in state[1] if axis not in sums):
            take("all-reduce", (state[0], tuple(axis for axis in state[1] if axis in sums)), gone)
        for dim, (have, want) in enumerate(zip(state[0], dims, strict=True)):
            same = _same(have, want)
            if have[same:]:
                take("all-gather", (put(state[0], dim, have[:same]), state[1]), have[same:], dim)
        for axis in sums:
            if axis not in state[1]:
                take("mask", (state[0], tuple(sorted((*state[1], axis)))), (axis,))
        for dim, want in enumerate(dims):
            for axis in want[len(state[0][dim]) :]:
                take("slice", (put(state[0], dim, (*state[0][dim], axis)), state[1]), (axis,), dim)
        if all(move.op in space.allowed and space.local(move.after) <= space.memory for move in way):
            self._take(self.cost_of(way), way)

    def _least(self, state: State) -> Cost:
        """What collectives that lead from a layout to the target cost at least."""
        if self.estimate is None or self.end[1]:
            return NONE
        if state not in self.leasts:
            elements, seconds = self.estimate.collectives(state, self.end)
            self.leasts[state] = self.cost(elements, seconds, int(elements > 0))
        return self.leasts[state]

    def _alone(self, hasty: bool = False) -> bool:
        """Collectives alone; whether it came to an end. ``hasty``: first what has the fewest axes in wrong places,
        which leads to some way soon."""
        order = count()
        queue: list[tuple[tuple[float, ...], int, Cost, Cost, State, Way]] = [(NONE, 0, NONE, NONE, self.start, ())]
        reached: dict[State, Cost] = {self.start: NONE}
        done: set[State] = set()
        while queue:
            _, _, least, spent, state, way = heapq.heappop(queue)
            if state in done or not self._better(least):
                continue
            if state == self.end:
                self._take(spent, way)
                break
            if len(reached) > ALONE[self.large] or self._late():
                return False
            done.add(state)
            self.considered += 1
            for move in self.here.moves(state, self.end[1], True):
                cost = _sum(spent, self.move_cost(move))
                if move.after in done or cost >= reached.get(move.after, INFINITE) or not self._better(cost):
                    continue
                reached[move.after] = cost
                total = _sum(cost, self._least(move.after))
                if self._better(total):
                    key = (self._misplaced(move.after), *total) if hasty else total
                    heapq.heappush(queue, (key, -next(order), total, cost, move.after, (*way, move)))
        return True

    def _misplaced(self, state: State) -> int:
        """Axes that must leave their dim, or come to it, before it is cut as in the target."""
        found = len(set(state[1]) ^ set(self.end[1]))
        for have, want in zip(state[0], self.end[0], strict=True):
            found += len(have) + len(want) - 2 * _same(have, want)
        return found

    def _before(self) -> dict[State, Way]:
        """Ways from the source to layouts that a direct step may begin with, the cheapest first."""
        sums = self.end[1] if self.one else ()
        return self._spread(
            self.start, BEFORE, lambda state: self.here.moves(state, sums, False), lambda move: move.after,
            lambda way, move: (*way, move), lambda state: NONE,
        )  # fmt: skip

    def _after(self) -> dict[State, Way]:
        """Ways to the target from layouts that a direct step may end with, first those that seem cheapest in all."""

        def moves(state: State) -> Iterable[Move]:
            yield from self.there.ungathered(state)
            yield from self.there.unexchanged(state)

        def least(state: State) -> Cost:
            if self.estimate is None or state[1] != self.start[1]:
                return NONE
            return self.cost(*self.estimate.direct(self.start, state))

        return self._spread(
            self.end, AFTER, moves, lambda move: move.before, lambda way, move: (move, *way), least,
        )  # fmt: skip

    def _spread(
        self, first: State, most: int, moves: Callable[[State], Iterable[Move]], next_of: Callable[[Move], State],
        join: Callable[[Way, Move], Way], least: Callable[[State], Cost],
    ) -> dict[State, Way]:  # fmt: skip
        """Layouts around one, with the cheapest way found to each, in order of its cost and what ``least`` adds."""
        order = count()
        queue = [(least(first), 0, NONE, first, Way())]
        reached: dict[State, Cost] = {first: NONE}
        found: dict[State, tuple[Cost, Way]] = {first: (least(first), ())}
        done: set[State] = set()
        while queue:
            total, _, spent, state, way = heapq.heappop(queue)
            if not self._better(spent) or self._late():
                break
            if state in done:
                continue
            if len(done) == most:
                self.complete = False
                break
            done.add(state)
            self.considered += 1
            for move in moves(state):
                there = next_of(move)
                cost = _sum(spent, self.move_cost(move))
                if there in done or cost >= reached.get(there, INFINITE) or not self._better(cost):
                    continue
                reached[there] = cost
                total = _sum(cost, least(there))
                if self._better(total):
                    found[there] = total, join(way, move)
                    # Of equal ones the last found first: one after another, not all at a time.
                    heapq.heappush(queue, (total, -next(order), cost, there, found[there][1]))
        kept = sorted(found.items(), key=lambda item: item[1][0])
        return {state: way for state, (_, way) in kept}

    def _meet(self, before: dict[State, Way], after: dict[State, Way]) -> None:
        """Ways from both ends that meet, without a direct step."""
        if self.one:
            for state, way in before.items():
                if state in after:
                    self._take(_sum(self.cost_of(way), self.cost_of(after[state])), way, (), after[state])

    def _through(self, before: Iterable[Way], after: Iterable[Way]) -> None:
        """A direct step between any two ends, in order of what it takes at least."""
        queue = []
        order = count()
        ends = [(way, way[-1].after if way else self.start) for way in before]
        others = [(rest, rest[0].before if rest else self.end) for rest in after]
        # Parts of a sum are arrays of their own on one mesh; to another mesh none may be left.
        sums = {one[1] for _, one in ends} & {two[1] for _, two in others} if self.one else {()}
        for way, one in [end for end in ends if end[1][1] in sums][:ENDS]:
            for rest, two in [end for end in others if end[1][1] in sums][:ENDS]:
                if one[1] != two[1] or (self.one and one == two):
                    continue
                spent = _sum(self.cost_of(way), self.cost_of(rest))
                if not self._better(spent):
                    continue
                least = self.cost(*self.estimate.direct(one, two)) if self.estimate is not None else NONE
                total = _sum(spent, least)
                if self._better(total):
                    queue.append((total, next(order), spent, way, rest, one, two))
        queue.sort()
        self.considered += len(queue)
        for number, (total, _, spent, way, rest, one, two) in enumerate(queue):
            if not self._better(total) or self._late():
                break
            if number == PRICED[self.large]:
                self.complete = False
                break
            for price, step in self._direct(one, two):
                self._take(_sum(spent, price), way, (step,), rest)

    def _direct(self, one: State, two: State) -> list[tuple[Cost, Step]]:
        """The direct steps between two layouts with their prices: from all alike, and from one's own node first."""
        if (one, two) not in self.directs:
            array, target = self.here.kind(one), self.there.kind(two)
            tiers = len(set(self.network.node_of)) > 1
            found = []
            from_all = [None] if not tiers or self.objective == "bytes" else []
            from_own_node = [self.network.node_of] if tiers else []
            for nodes in (*from_all, *from_own_node):
                step = direct(array, target, nodes)
                if step.op in self.here.allowed:
                    price = load(step, self.item_bytes, self.network)
                    elements = max(price.sent.max(initial=0), price.received.max(initial=0))
                    found.append((self.cost(float(elements), price.seconds, 1 + (step.op == "direct")), step))
            self.directs[one, two] = found
        return self.directs[one, two]


def _same(have: Axes, want: Axes) -> int:
    """How many axes they begin with alike."""
    both = zip(have, want, strict=False)
    return next((index for index, (a, b) in enumerate(both) if a != b), min(len(have), len(want)))


def _sum(one: Cost, two: Cost) -> Cost:
    return one[0] + two[0], one[1] + two[1], one[2] + two[2]
