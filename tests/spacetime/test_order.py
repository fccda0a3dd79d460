"""What the proof accepts comes to its end in every order of events; what it says deadlocks never does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from partita.errors import PlanError
from partita.spacetime.communication import ahead
from partita.spacetime.prove import prove
from partita.spacetime.prove_order import prove_order
from tests.simulate.brute import posted_until
from tests.simulate.pipelines import chain, pipeline
from tests.spacetime.queues import any_program, shuffled, stands_still, wait_cycle

DEADLOCK = ("the order deadlocks", "share collectives", "whose queue has ended")


def verdict(graph, program) -> str:
    """``accepted``, ``deadlock``, or ``refused`` for another reason."""
    try:
        prove(graph, program)
    except PlanError as error:
        return "deadlock" if any(words in str(error) for words in DEADLOCK) else "refused"
    return "accepted"


@pytest.mark.slow
def test_1000_random_programs_with_shuffled_queues():
    random = Random(11)
    found: Counter[str] = Counter()
    for _ in range(1000):
        graph, program = any_program(random)
        program = shuffled(random, program)
        said = verdict(graph, program)
        found[said] += 1
        if said != "refused":
            # Three runs with different luck, of which each must say the same.
            assert [stands_still(program, random) is not None for _ in range(3)] == [said == "deadlock"] * 3
    assert min(found["accepted"], found["deadlock"], found["refused"]) >= 100, found


@pytest.mark.slow
def test_every_injected_wait_cycle_is_reported():
    random = Random(12)
    injected = 0
    while injected < 100:
        graph, program = any_program(random)
        if verdict(graph, program) != "accepted":
            continue
        broken = wait_cycle(random, program)
        if broken is None:
            continue
        injected += 1
        cyclic, device, peer = broken
        with pytest.raises(PlanError, match="the order deadlocks: device") as error:
            prove(graph, cyclic)
        assert stands_still(cyclic, random) is not None
        if len(cyclic.devices_of[0]) == 1 and len(cyclic.devices_of) == 2:
            for clause in (
                f"device {device} waits in receive",
                f"for device {peer}",
                f"device {peer} waits in receive",
            ):
                assert clause in str(error.value)


@pytest.mark.parametrize(("schedule", "depth"), [("1f1b", 0), ("1f1b", 1), ("1f1b", 4), ("gpipe", 0)])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (2, 8), (3, 5), (4, 2), (8, 16)])
@pytest.mark.parametrize(("dp", "tp", "zero"), [(1, 1, 0), (2, 1, 3), (1, 2, 0), (2, 2, 2)])
def test_schedules_are_accepted(schedule, depth, stages, micro_batches, dp, tp, zero):
    skips = ((0, stages - 1),) if stages > 2 else ()
    program = pipeline(stages, micro_batches, schedule, dp=dp, tp=tp, zero=zero, skips=skips, depth=depth)
    assert prove(chain(stages, skips), program) is program
    assert stands_still(program, Random(1)) is None


def test_the_shortest_cycle_is_shown():
    program = pipeline(3, 1)
    # Stages 0 and 1 wait for each other, stage 2 for stage 1: it is in no cycle.
    queue = list(program.queues[0])
    forward, send, receive = queue[:3]
    changed = replace(program, queues={**program.queues, 0: (forward, receive, send, *queue[3:])})
    with pytest.raises(PlanError) as error:
        prove(chain(3), changed)
    assert str(error.value) == (
        'the order deadlocks: device 0 waits in receive of "gradient of x1 from stage 1@0" (task 1) for device 1; '
        'device 1 waits in receive of "x1@0 to stage 1" (task 0) for device 0'
    )


def test_a_cycle_through_collectives_is_shown():
    """Two copies of two stages under ZeRO 3, whose turns hold collectives: device 1 sends only after its backward."""
    program = pipeline(2, 1, "gpipe", dp=2, zero=3)
    forward, send, receive, backward, *rest = program.queues[1]
    changed = replace(program, queues={**program.queues, 1: (forward, backward, send, receive, *rest)})
    with pytest.raises(PlanError) as error:
        prove_order(changed)
    assert str(error.value) == (
        'the order deadlocks: device 0 waits in receive of "gradient of x1 from stage 1@0" (task 2) for device 2; '
        "device 2 waits in forward of micro-batch 0 (task 1) for device 3; "
        'device 3 waits in receive of "x1@0 to stage 1" (task 0) for device 1; '
        "device 1 waits in backward of micro-batch 0 (task 1) for device 0"
    )


def test_collectives_that_do_not_meet_are_named():
    program = pipeline(2, 2, "gpipe", dp=2, zero=3)
    queue = program.queues[1]
    other = replace(program, queues={**program.queues, 1: (*queue[2:4], *queue[:2], *queue[4:])})
    with pytest.raises(PlanError) as error:
        prove_order(other)
    assert str(error.value) == (
        "the devices [0, 1] share collectives and must keep one order: device 0 comes with forward of micro-batch 0, "
        "device 1 with forward of micro-batch 1"
    )
    with pytest.raises(PlanError, match="waits in forward of micro-batch 0 for device 1, whose queue has ended"):
        prove_order(replace(program, queues={**program.queues, 1: ()}))


def test_how_far_receives_are_posted():
    program = pipeline(3, 5, skips=((0, 2),))
    for queue in program.queues.values():
        for place in range(len(queue)):
            assert ahead(queue, place) == posted_until(queue, place) > place
