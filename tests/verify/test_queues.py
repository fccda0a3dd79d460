"""Queues with nothing in them, on virtual devices: what the proof accepts ends, what it says deadlocks stands still."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from partita.adapters.verify.queues import run_queues
from partita.errors import PlanError
from tests.simulate.pipelines import pipeline
from tests.spacetime.queues import any_program, shuffled, wait_cycle
from tests.spacetime.test_order import verdict


def stands_still(program) -> bool:
    try:
        run_queues(program)
    except PlanError:
        return True
    return False


@pytest.mark.slow
def test_500_random_orders() -> None:
    random, found = Random(21), Counter()
    while found.total() < 500:
        graph, program = any_program(random)
        program = shuffled(random, program)
        said = verdict(graph, program)
        if said == "refused":
            continue
        found[said] += 1
        assert stands_still(program) == (said == "deadlock"), said
    assert min(found["accepted"], found["deadlock"]) >= 100, found


def test_every_wait_cycle_stands_still() -> None:
    random, injected = Random(22), 0
    while injected < 25:
        graph, program = any_program(random)
        broken = wait_cycle(random, program) if verdict(graph, program) == "accepted" else None
        if broken is None:
            continue
        injected += 1
        cyclic, device, peer = broken
        with pytest.raises(PlanError, match="wait for each other for ever") as error:
            run_queues(cyclic)
        assert f"device {device} waits in" in str(error.value)
        assert f"device {peer} waits in" in str(error.value)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 2), (4, 8)])
def test_schedules_end(schedule: str, stages: int, micro_batches: int) -> None:
    program = pipeline(stages, micro_batches, schedule, dp=2, zero=2)
    run_queues(program)


def test_a_message_in_another_order_is_named() -> None:
    program = pipeline(2, 2, "gpipe")
    queue = list(program.queues[0])
    one, two = (index for index, task in enumerate(queue) if task.kind == "send")
    queue[one], queue[two] = queue[two], queue[one]
    with pytest.raises(PlanError, match=r'it expects ".*@0.*" and ".*@1.*" comes'):
        run_queues(replace(program, queues={**program.queues, 0: tuple(queue)}))
