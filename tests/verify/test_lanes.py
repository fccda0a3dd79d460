"""Orders of devices that serve several stages: what the proof accepts ends, what it says deadlocks stands still."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from partita.adapters.verify.queues import run_queues
from partita.errors import PlanError
from tests.ranks.pool import Pool, RankTimeout
from tests.spacetime.queues import wait_cycle
from tests.spacetime.test_order import verdict
from tests.verify.lanes import SCHEDULES, any_lanes, on_processes
from tests.verify.test_queues import stands_still

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_random_orders(schedule: str) -> None:
    random, found = Random(31), Counter()
    while found["accepted"] + found["deadlock"] < 60:
        graph, program = any_lanes(random, schedule)
        said = verdict(graph, program)
        found[said] += 1
        if said != "refused":
            assert stands_still(program) == (said == "deadlock"), said
    assert min(found["accepted"], found["deadlock"]) >= 10, found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_wait_cycle_is_reported_and_stands_still(schedule: str) -> None:
    random, injected = Random(32), 0
    while injected < 20:
        graph, program = any_lanes(random, schedule, changed=False)
        assert verdict(graph, program) == "accepted"
        broken = wait_cycle(random, program)
        if broken is None:
            continue
        cyclic, device, _ = broken
        said = verdict(graph, cyclic)
        assert said != "accepted"
        # What is sent late may be gone by then: that is refused before the order is looked at.
        if said == "deadlock":
            injected += 1
            with pytest.raises(PlanError, match="wait for each other for ever") as error:
                run_queues(cyclic)
            assert f"device {device} waits in" in str(error.value)


def test_accepted_orders_end_on_processes(pool: Pool) -> None:
    random, programs = Random(33), []
    while len(programs) < 4:
        graph, program = any_lanes(random, SCHEDULES[len(programs) % 4], lanes=2)
        if verdict(graph, program) == "accepted":
            programs.append(program)
    done = pool.run(on_processes, 4, programs)
    for device in range(4):
        assert done[device] == [len(program.queues.get(device, ())) for program in programs]


def test_a_deadlock_stands_still_on_processes(pool: Pool) -> None:
    random = Random(34)
    while True:
        graph, program = any_lanes(random, "interlaced", lanes=2, changed=False)
        broken = wait_cycle(random, program)
        if broken is not None and verdict(graph, broken[0]) == "deadlock":
            break
    pool.run(on_processes, len(program.queues), [program])
    with pytest.raises(RankTimeout):
        pool.run(on_processes, len(program.queues), [broken[0]], timeout=3.0)
