"""Answers of a table as queues, run against the clock: what the formula of their schedule is held against."""

from __future__ import annotations

from functools import cache

from partita.planner.joint.formula import StageNumbers, stage_numbers, transfer
from partita.planner.joint.table import Chosen, JointTable
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.spacetime.program import Transfer
from tests.simulate.pipelines import machine, pipeline


def simulated_seconds(table: JointTable, stages: tuple[Chosen, ...]) -> float:
    """Seconds until the last stage has done what it does once a step: the queues' own, nothing of the formula's."""
    count = len(stages)
    numbers = [stage_numbers(table, stage, count - 1 - at) for at, stage in enumerate(stages)]
    moved = [transfer(table, *pair) for pair in zip(stages[:-1], stages[1:], strict=True)]
    return run(table.schedule, table.micro_batches, table.depth if table.schedule == "1f1b" else 0, numbers, moved)


def run(
    schedule: str, micro_batches: int, depth: int, numbers: list[StageNumbers], moved: list[tuple[float, float]]
) -> float:
    """The same from each stage's numbers and each boundary's seconds, forward and backward."""
    seconds = {}
    for at, stage in enumerate(numbers):
        seconds |= {(at, "forward"): stage.forward, (at, "backward"): stage.backward}
        seconds |= {(at, "reduce"): 0.0, (at, "update"): stage.sync}

    def size(sent: Transfer) -> float:
        return moved[sent.source][0] if sent.what == "value" else moved[sent.target][1]

    program = pipeline(len(numbers), micro_batches, schedule, depth=depth)
    found = execute(program, seconds, size, _fabric(len(numbers)))
    return max(max(timing.ends) for timing in found.values())


@cache
def _fabric(devices: int) -> Fabric:
    """One byte takes one second between any two devices."""
    return Fabric(machine([devices]))
