"""Random tables for the joint planner: small, of every kind, with limits that bind.

Half of the tables hold whole numbers and eighths, whose sums are exact in floats: there answers tie, and a limit may be
reached exactly. In the others a limit lies where no sum's last digit decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random

import numpy as np

from partita.planner.joint.formula import stage_numbers
from partita.planner.joint.table import ROUNDING_BYTES, Chosen, JointTable, Prices


@dataclass(frozen=True)
class Sizes:
    """From and to, both included."""

    blocks: tuple[int, int] = (1, 6)
    units: tuple[int, int] = (1, 4)
    shapes: tuple[int, int] = (1, 4)
    options: tuple[int, int] = (1, 3)
    micro_batches: tuple[int, int] = (1, 12)


SMALL = Sizes()


class _Draw:
    """Numbers from 0 to ``high``, of one kind in a whole table."""

    def __init__(self, random: Random):
        self.random = random
        self.exact = random.random() < 0.5
        self.step = random.choice([4.0, 1.0, 0.125])

    def __call__(self, high: float, low: float = 0.0) -> float:
        if self.exact:
            return self.random.randint(-int(-low // self.step), int(high / self.step)) * self.step
        return self.random.uniform(low, high)

    def array(self, shape: tuple[int, ...], high: float, low: float = 0.0) -> np.ndarray:
        return np.array([self(high, low) for _ in range(int(np.prod(shape)))], float).reshape(shape)


def random_table(random: Random, sizes: Sizes = SMALL) -> JointTable:
    """A table of any kind; with some limits nothing fits, and with some shapes no answer exists."""
    n, units, count, options = (
        random.randint(*span) for span in (sizes.blocks, sizes.units, sizes.shapes, sizes.options)
    )
    draw = _Draw(random)
    widths = np.array([random.choice([1, random.randint(1, min(3, units))]) for _ in range(count)])
    if n < units <= 3 or random.random() < 0.3:
        widths[0] = min(3, units)
    ports = np.array([random.randrange(random.choice([1, count])) for _ in range(count)])
    # Each shape has one or two prices of its own, by the place.
    own = [random.randint(1, 2) for _ in range(count)]
    prices_of = np.array(
        [
            [sum(own[:k]) + random.randrange(own[k]) if q + widths[k] <= units and random.random() > 0.03 else -1
             for q in range(units)]
            for k in range(count)
        ]
    )  # fmt: skip
    moved = random.choice([0.0, 0.25, 0.5, 1.0, 1.5]) * 8
    transfers = draw.array((2, 2, n + 1, int(ports.max()) + 1, int(ports.max()) + 1), moved)
    table = JointTable(
        prices=_prices(random, draw, sum(own), n, options), units=widths, port=ports, prices_of=prices_of,
        crosses=np.array([random.randint(0, 1) for _ in range(units + 1)]),
        transfer_forward=transfers[0], transfer_backward=transfers[1], memory_limit=inf,
        micro_batches=random.randint(*sizes.micro_batches),
        most_stages=random.choice([random.randint(1, 4), n, units, n + units]),
        schedule=random.choice(["1f1b", "1f1b", "gpipe"]), depth=random.choice([0, 0, 1, 2]),
    )  # fmt: skip
    return replace(table, memory_limit=_limit(random, draw, table))


def _prices(random: Random, draw: _Draw, count: int, n: int, options: int) -> Prices:
    forward, backward = draw.array((count, n, options), 8, 1), draw.array((count, n, options), 16, 1)
    alike = random.random() < 0.3
    if alike:
        forward[:], backward[:] = forward[:, :1], backward[:, :1]
    absent = np.array([random.random() < 0.08 for _ in range(forward.size)]).reshape(forward.shape)
    absent[:, :, random.randrange(options)] &= random.random() < 0.2
    forward[absent] = backward[absent] = inf
    at_ends = random.choice([0, 0, 3])
    change = random.choice([0, 4])
    one = (count, 1 if alike else n, options)
    two = (count, n, options, options)

    def each(high: float) -> np.ndarray:
        return np.broadcast_to(draw.array(one, high), (count, n, options)).copy()

    lent = np.zeros((2, count, n, n))
    if n > 1 and random.random() < 0.4:
        # Block i uses what block ``owner`` owns: lent to every stage that begins behind the owner.
        i = random.randrange(1, n)
        owner = random.randrange(i)
        lent[:, :, owner + 1 : i + 1, i] = draw.array((2, count, 1), 5, 1)
    base = random.choice([0, 5])
    return Prices(
        forward, backward, fixed_bytes=each(12), held_bytes=each(6),
        temporary_bytes=each(random.choice([0, 10])), sync=each(random.choice([0, 6])),
        enter_forward=each(at_ends), enter_backward=each(at_ends),
        leave_forward=each(at_ends), leave_backward=each(at_ends),
        change_forward=draw.array(two, change), change_backward=draw.array(two, change),
        base_bytes=draw.array((count,), base), base_sync=draw.array((count,), base),
        lent_bytes=lent[0], lent_sync=lent[1],
    )  # fmt: skip


def _limit(random: Random, draw: _Draw, table: JointTable) -> float:
    answers = [answer for _ in range(30) if (answer := random_answer(random, table)) is not None]
    if not answers or random.random() < 0.1:
        return random.choice([0.0, 1e6])
    peaks = sorted({heaviest(table, answer) for answer in answers})
    if draw.exact:
        return random.choice([*peaks, peaks[0] - draw.step]) + ROUNDING_BYTES
    return random.uniform(peaks[0] * 0.9, peaks[-1]) + ROUNDING_BYTES


def heaviest(table: JointTable, stages: tuple[Chosen, ...]) -> float:
    """The bytes of the stage that takes most."""
    behind = reversed(range(len(stages)))
    return max(stage_numbers(table, stage, at).bytes for stage, at in zip(stages, behind, strict=True))


def random_answer(random: Random, table: JointTable) -> tuple[Chosen, ...] | None:
    """Some answer of the table, its limit left aside; None where the dice meet a dead end."""
    unit, shapes = 0, []
    while unit < table.all_units:
        choices = [k for k in range(len(table.units)) if table.prices_of[k, unit] >= 0]
        if not choices:
            return None
        shapes.append((unit, random.choice(choices)))
        unit += int(table.units[shapes[-1][1]])
    if len(shapes) > min(table.most_stages, table.blocks):
        return None
    cuts = [0, *sorted(random.sample(range(1, table.blocks), len(shapes) - 1)), table.blocks]
    stages = []
    for (unit, shape), start, stop in zip(shapes, cuts[:-1], cuts[1:], strict=True):
        had = [[m for m, s in enumerate(table.prices.forward[table.prices_of[shape, unit], i]) if s < inf]
               for i in range(start, stop)]  # fmt: skip
        if not all(had):
            return None
        stages.append(Chosen(start, stop, unit, shape, tuple(random.choice(options) for options in had)))
    return tuple(stages)


def chain_table(
    forward: Sequence[float], backward: Sequence[float] | None = None, *, stages: int = 0, micro_batches: int = 1,
    schedule: str = "1f1b", moved: tuple[Sequence[float], Sequence[float]] | None = None, sync: float = 0.0,
) -> JointTable:  # fmt: skip
    """Blocks that run one way on as many devices as there are ``stages``; by default each block is a stage.

    ``moved``: seconds of the boundaries before each block but the first, forward and backward.
    """
    n, count = len(forward), stages or len(forward)
    of, ob = ([0.0] * (n - 1),) * 2 if moved is None else moved
    one, two, lent, base = np.zeros((1, n, 1)), np.zeros((1, n, 1, 1)), np.zeros((1, n, n)), np.zeros(1)
    times = (np.array(each, float).reshape(1, n, 1) for each in (forward, [0.0] * n if backward is None else backward))
    transfers = (np.tile(np.array([0.0, *each, 0.0]).reshape(1, n + 1, 1, 1), (2, 1, 1, 1)) for each in (of, ob))
    return JointTable(
        Prices(*times, one, one, one, one, one, one, one, one, two, two, base, base + sync, lent, lent),
        np.ones(1, int), np.zeros(1, int), np.zeros((1, count), int), np.zeros(count + 1, int), *transfers, 1.0,
        micro_batches, count, schedule,
    )  # fmt: skip
