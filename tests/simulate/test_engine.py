"""The queues against the clock: beside formulas, beside a plain simulation, and where they stand still."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from partita.cluster import Cluster, Kind, Link
from partita.errors import PlanError
from partita.planner.joint.formula import step_seconds
from partita.planner.joint.uniform import cut
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.spacetime.communication import ahead
from partita.spacetime.program import TURNS, Program, Transfer
from tests.planner.joint.tables import chain_table
from tests.simulate.brute import brute
from tests.simulate.pipelines import durations, machine, pipeline


def last(timings) -> float:
    return max(max(timing.ends) for timing in timings.values())


@pytest.mark.slow
def test_gpipe_is_the_formula_in_1000_random_cases():
    rng = np.random.default_rng(3)
    for _ in range(1000):
        stages, count = int(rng.integers(1, 6)), int(rng.integers(1, 7))
        f, b = rng.integers(1, 20, stages).tolist(), rng.integers(1, 40, stages).tolist()
        of, ob = rng.integers(0, 30, stages - 1).tolist(), rng.integers(0, 30, stages - 1).tolist()
        sync = int(rng.integers(0, 5))

        def size(transfer: Transfer, of=of, ob=ob) -> float:
            return of[transfer.source] if transfer.what == "value" else ob[transfer.target]

        timings = execute(
            pipeline(stages, count, "gpipe"), durations(f, b, update=sync), size, Fabric(machine([stages]))
        )
        table = chain_table(f, b, micro_batches=count, schedule="gpipe", moved=(of, ob), sync=sync)
        assert last(timings) == step_seconds(table, cut(range(stages + 1)))


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 8, 32])
def test_1f1b_on_equal_stages_has_its_paper_s_bubble(stages: int, count: int) -> None:
    timings = execute(
        pipeline(stages, count), durations([1] * stages, [2] * stages), lambda t: 0, Fabric(machine([stages]))
    )
    turns = 3 * stages * count
    assert last(timings) == 3 * (count + stages - 1)
    assert 1 - turns / (stages * last(timings)) == pytest.approx((stages - 1) / (count + stages - 1))


def random_case(random: Random):
    """A small program of any kind with integer durations, its messages' sizes and a cluster."""
    stages = random.randint(1, 4)
    dp, tp = random.choice([1, 1, 2]), random.choice([1, 1, 2])
    pairs = [(i, j) for i in range(stages) for j in range(i + 2, stages)]
    program = pipeline(
        stages, random.randint(1, 5), random.choice(["1f1b", "gpipe"]), dp=dp, tp=tp,
        skips=tuple(pair for pair in pairs if random.random() < 0.5), tied=stages > 1 and random.random() < 0.5,
    )  # fmt: skip
    program = replace(program, zero={name: random.randint(0, 3) for name in program.zero})
    devices = stages * dp * tp
    cluster = machine(
        random.choice([[devices], [1] * devices, [devices // 2, devices - devices // 2] if devices > 1 else [1]]),
        random.choice([1.0, 2.0]), random.choice([0.5, 1.0]), random.choice([0.0, 0.25]), random.choice([None, 1.0]),
    )  # fmt: skip
    seconds = durations(
        [random.randint(0, 5) for _ in range(stages)], [random.randint(0, 9) for _ in range(stages)],
        random.randint(0, 3), random.randint(0, 3),
    )  # fmt: skip
    sizes = {(f"{kind}{i}", what): random.randint(0, 6) for kind in "xw" for i in range(stages + 1)
             for what in ("value", "gradient", "parameter", "parameter_gradient")}  # fmt: skip
    return program, seconds, sizes, cluster


def unlike(random: Random, cluster: Cluster) -> Cluster:
    """The same nodes, each with links of its own."""
    speeds = [1.0, 2.0]
    kinds = [
        Kind(
            kind.device, Link(random.choice(speeds), random.choice([0.0, 0.5])),
            Link(random.choice(speeds) / 2, random.choice([0.0, 0.25])), random.choice([None, 0.5, 1.0]),
        )
        for kind in cluster.kinds
    ]  # fmt: skip
    return replace(cluster, kinds=tuple(kinds))


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_a_plain_simulation_agrees_on_200_random_programs(mixed):
    random = Random(5)
    shared = 0
    for _ in range(200):
        program, seconds, sizes, cluster = random_case(random)
        cluster = unlike(random, cluster) if mixed else cluster
        found = execute(program, seconds, lambda t, sizes=sizes: sizes[t.tensor, t.what], Fabric(cluster))
        plain = brute(
            program, seconds, lambda task, sizes=sizes: sizes[task.transfer.tensor, task.transfer.what], cluster
        )
        ends = {(device, place): end for device, timing in found.items() for place, end in enumerate(timing.ends)}
        assert ends.keys() == plain.keys()
        assert ends == pytest.approx({key: float(value) for key, value in plain.items()}, abs=1e-9)
        free = execute(
            program, seconds, lambda t, sizes=sizes: sizes[t.tensor, t.what], Fabric(machine(cluster.nodes, 1e9, 1e9))
        )
        shared += last(free) < last(found)
    assert shared > 50  # the cases are such that transfers matter


@pytest.mark.parametrize(
    ("cluster", "seconds"),
    [
        # Two copies of a two-stage pipeline: devices 0 and 1 send a message of 6 bytes each to 2 and 3.
        (machine([4]), 6.0),
        (machine([2, 2]), 6.0),
        (machine([2, 2], together=1.0), 12.0),
        (machine([2, 2], together=2.0), 6.0),
        (machine([2, 2], far=4.0, together=1.0), 12.0),
        (machine([2, 1, 1], together=1.0), 12.0),
        (machine([1, 1, 2], together=1.0), 12.0),
        (machine([1, 1, 1, 1], together=1.0), 6.0),
        (machine([2, 2], together=1.0, latency=1.0), 13.0),
    ],
)
def test_two_messages_over_one_uplink_take_twice_as_long(cluster, seconds):
    program = pipeline(2, 1, "gpipe", dp=2)
    timings = execute(program, durations([1, 1], [1, 1]), lambda t: 6.0 if t.what == "value" else 0.0, Fabric(cluster))
    for device in (2, 3):
        queue = program.queues[device]
        (place,) = (i for i, task in enumerate(queue) if task.kind == "receive")
        assert timings[device].starts[place] == 1.0
        assert timings[device].ends[place] - timings[device].starts[place] == seconds


def test_every_run_is_the_same():
    program, seconds, sizes, cluster = random_case(Random(1))
    runs = [execute(program, seconds, lambda t: sizes[t.tensor, t.what], Fabric(cluster)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_receives_are_posted_as_far_ahead_as_the_runtime_posts_them():
    program = pipeline(3, 5, skips=((0, 2),), tied=True)
    seconds = durations([1] * 3, [2] * 3, 1, 1)
    timings = execute(program, seconds, lambda t: 0.0, Fabric(machine([3])))
    for device, queue in program.queues.items():
        timing = timings[device]
        for place, task in enumerate(queue):
            if task.kind == "receive":
                # The first position whose horizon reaches the receive, and when the device was there.
                first = next(i for i in range(len(queue)) if ahead(queue, i) > place)
                before = [timing.ends[i] for i in range(first) if queue[i].kind not in ("send",)]
                assert timing.issued[place] == max(before, default=0.0)


def with_queue(program: Program, device: int, change) -> Program:
    queues = {**program.queues, device: tuple(change(list(program.queues[device])))}
    return replace(program, queues=queues)


def run(program: Program) -> None:
    stages = len(program.devices_of)
    devices = len(program.queues)
    execute(program, durations([1] * stages, [1] * stages), lambda t: 1.0, Fabric(machine([devices])))


def test_queues_that_wait_for_each_other_are_named():
    def backward_first(queue):
        turns = [place for place, task in enumerate(queue) if task.kind in TURNS]
        made = turns[0] + 2  # the forward turn and its send
        return [*queue[made : turns[1] + 1], *queue[:made], *queue[turns[1] + 1 :]]

    with pytest.raises(PlanError) as error:
        run(with_queue(pipeline(2, 1), 0, backward_first))
    assert str(error.value) == (
        'the queues come to a standstill: device 0 waits for "gradient of x1 from stage 1@0" from device 1, '
        'device 1 waits for "x1@0 to stage 1" from device 0'
    )


def test_a_message_that_is_not_the_next_is_named():
    def swapped(queue):
        places = [i for i, task in enumerate(queue) if task.kind == "send"][:2]
        queue[places[0]], queue[places[1]] = queue[places[1]], queue[places[0]]
        return queue

    said = 'device 0 sends "x1@1 to stage 1" where device 1 receives "x1@0 to stage 1": between two devices'
    with pytest.raises(PlanError, match=said):
        run(with_queue(pipeline(2, 2, "gpipe"), 0, swapped))


def test_a_group_that_does_not_meet_is_named():
    program = pipeline(1, 2, "gpipe", tp=2)

    def other(queue):
        queue[0], queue[1] = queue[1], queue[0]
        return queue

    with pytest.raises(PlanError, match=r"devices \[0, 1\] meet in a collective of different tasks"):
        run(with_queue(program, 1, other))
    with pytest.raises(PlanError, match=r"device 0 waits in forward of micro-batch 0 for device 1, device 1 has ended"):
        run(with_queue(program, 1, lambda queue: []))
