"""Every answer of a small table, one by one: what the engines are held against.

An answer is judged by ``formula.step_seconds`` and ``formula.fits`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from random import Random

from partita.planner.joint.formula import fits, step_seconds
from partita.planner.joint.table import Chosen, JointTable
from tests.planner.joint.tables import SMALL, Sizes, heaviest, random_table

Answer = tuple[Chosen, ...]


@dataclass(frozen=True)
class Best:
    """The least step seconds (infinite where nothing fits) and every answer that takes no more."""

    seconds: float
    answers: tuple[Answer, ...]


def partitions(table: JointTable) -> Iterator[tuple[tuple[int, int, int, int], ...]]:
    """Every way to cut blocks and units into stages: (start, stop, unit, shape) of each."""

    def further(start: int, unit: int, left: int) -> Iterator[tuple[tuple[int, int, int, int], ...]]:
        if start == table.blocks or unit == table.all_units or not left:
            if start == table.blocks and unit == table.all_units:
                yield ()
            return
        for shape, width in enumerate(table.units):
            if table.prices_of[shape, unit] >= 0 and unit + width <= table.all_units:
                for stop in range(start + 1, table.blocks + 1):
                    for rest in further(stop, unit + int(width), left - 1):
                        yield ((start, stop, unit, shape), *rest)

    return further(0, 0, table.most_stages)


def answers(table: JointTable) -> Iterator[Answer]:
    """Every answer in which each block has an option that exists, whatever it takes."""
    forward = table.prices.forward
    for partition in partitions(table):
        had = [
            [m for m in range(forward.shape[2]) if forward[table.prices_of[shape, unit], i, m] < inf]
            for start, stop, unit, shape in partition
            for i in range(start, stop)
        ]
        for options in product(*had):
            yield tuple(Chosen(*stage, options[stage[0] : stage[1]]) for stage in partition)


def brute(table: JointTable) -> Best:
    """The best of all answers that fit."""
    least, found = inf, []
    for answer in answers(table):
        if fits(table, answer):
            seconds = step_seconds(table, answer)
            if seconds < least:
                least, found = seconds, []
            if seconds == least:
                found.append(answer)
    return Best(least, tuple(found))


def least_limit(table: JointTable) -> float:
    """The least bytes a device at which anything fits, before its items are rounded up; infinite where nothing can."""
    return min((heaviest(table, answer) for answer in answers(table)), default=inf)


def small_table(random: Random, most: int = 4000, sizes: Sizes = SMALL) -> JointTable:
    """A random table with so many answers that each can be looked at."""
    while True:
        table = random_table(random, sizes)
        options = table.prices.forward.shape[2] ** table.blocks
        if sum(options for _ in partitions(table)) <= most:
            return table
