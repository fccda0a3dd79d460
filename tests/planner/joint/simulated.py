"""Answers of a table as queues, run against the clock: what the formula of their schedule is held against."""

from __future__ import annotations

from functools import cache

from partita.plan import Order
from partita.planner.joint.formula import StageNumbers, stage_numbers, transfer
from partita.planner.joint.table import Chosen, JointTable
from partita.schedules.turn import Turn
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import Program, Share, Transfer
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import BlockCode, StageCode, transform
from tests.simulate.pipelines import chain, machine, tensor


def simulated_seconds(table: JointTable, stages: tuple[Chosen, ...]) -> float:
    """Seconds until the last stage has done what it does once a step: the queues' own, nothing of the formula's."""
    count = len(stages)
    numbers = [stage_numbers(table, stage, count - 1 - at) for at, stage in enumerate(stages)]
    moved = [transfer(table, *pair) for pair in zip(stages[:-1], stages[1:], strict=True)]
    return run(table.schedule, table.micro_batches, table.depth if count > 1 else 0, numbers, moved)


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

    found = execute(_program(schedule, len(numbers), micro_batches, depth), seconds, size, _fabric(len(numbers)))
    return max(max(timing.ends) for timing in found.values())


@cache
def _fabric(devices: int) -> Fabric:
    """One byte takes one second between any two devices."""
    return Fabric(machine([devices]))


@cache
def _program(schedule: str, stages: int, micro_batches: int, depth: int) -> Program:
    """One block and one device a stage; 1F1B goes ``depth`` further ahead over each boundary than it must."""
    graph = chain(stages)
    pieces = transform(graph, [StageCode((BlockCode(f"b{stage}", (), False),), ()) for stage in range(stages)])
    devices_of = tuple((stage,) for stage in range(stages))
    places = assign(devices_of, [1] * stages, [1] * stages)
    turns = {stage: _turns(schedule, stages - 1 - stage, stage, micro_batches, depth) for stage in range(stages)}
    wanted = Order("turns", stages, micro_batches, turns=turns)
    queues = preserve(Version(graph, pieces), places, devices_of, order(wanted, places, [micro_batches] * stages))
    share, inner = Share(1, micro_batches, 1), tensor(1)
    return Program(pieces, queues, places, devices_of, (share,) * stages, (inner,) * stages, 0, graph.loss)


def _turns(schedule: str, behind: int, stage: int, micro_batches: int, depth: int) -> tuple[Turn, ...]:
    ahead = micro_batches if schedule == "gpipe" else min(micro_batches, behind + depth * behind)
    turns = [Turn(stage, "forward", micro) for micro in range(ahead)]
    for micro in range(micro_batches):
        if ahead + micro < micro_batches:
            turns.append(Turn(stage, "forward", ahead + micro))
        turns.append(Turn(stage, "backward", micro))
    return tuple(turns)
