"""Virtual devices: memory of their own, one at a time, and a standstill that is said at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.adapters.torch.groups import Groups
from partita.adapters.verify.devices import Cast
from partita.errors import InputError, PlanError
from partita.spacetime.program import Program
from tests.runtime.programs import Layout
from tests.runtime.programs import program as by_hand
from tests.simulate.pipelines import pipeline
from tests.verify.models import model


def two() -> Program:
    """Two devices that share a group."""
    return pipeline(1, 1, dp=2)


def test_collectives_are_those_of_a_group() -> None:
    def part(device: int, groups: Groups) -> dict[str, list[float]]:
        group, mine = groups.data[0], torch.tensor([1.0, 2.0]) * (device + 1)
        total, top = mine.clone(), mine.clone() * (-1) ** device
        group.sum(total)
        group.largest(top)
        pieces = list(mine.split(1))
        return {
            "sum": total.tolist(),
            "largest": top.tolist(),
            "gather": torch.cat(group.gather(mine)).tolist(),
            "scatter": group.scatter_sum(pieces).tolist(),
            "exchange": torch.cat(group.exchange(pieces)).tolist(),
            "objects": group.objects(float(device)),
        }

    found = Cast(two()).play(part)
    for device in (0, 1):
        assert found[device] == {
            "sum": [3.0, 6.0],
            "largest": [1.0, 2.0],
            "gather": [1.0, 2.0, 2.0, 4.0],
            "scatter": [[3.0], [6.0]][device],
            "exchange": [[1.0, 2.0], [2.0, 4.0]][device],
            "objects": [0.0, 1.0],
        }


def test_what_is_sent_is_a_copy_and_streams_are_in_order() -> None:
    def part(device: int, groups: Groups) -> list[float]:
        if device == 0:
            value = torch.tensor([1.0])
            groups.line.send(value, 1, False)
            value += 1
            groups.line.send(value, 1, False)
            value += 1
            groups.line.send(value, 1, True)
            value += 1
            return value.tolist()
        first, second, back = (torch.empty(1) for _ in range(3))
        one = groups.line.receive(first, 0, False)
        two = groups.line.receive(second, 0, False)
        # Waited for the other way round: each still gets its own.
        groups.line.receive(back, 0, True).wait()
        two.wait()
        one.wait()
        first += 10
        return [float(first), float(second), float(back)]

    cast = Cast(two())
    assert cast.play(part) == {0: [4.0], 1: [11.0, 2.0, 3.0]}
    assert cast.world.sent == {0: 12, 1: 0}


def test_devices_that_wait_for_each_other_are_named() -> None:
    def part(device: int, groups: Groups) -> None:
        groups.line.receive(torch.empty(1), 1 - device, False).wait()

    with pytest.raises(PlanError) as error:
        Cast(two()).play(part)
    assert str(error.value) == (
        "the devices wait for each other for ever: device 0 waits in the beginning of a step for device 1; "
        "device 1 waits in the beginning of a step for device 0"
    )


def test_a_device_that_waits_for_one_that_has_ended_is_named() -> None:
    def part(device: int, groups: Groups) -> None:
        if device == 0:
            groups.data[0].sum(torch.zeros(1))

    with pytest.raises(PlanError, match=r"device 0 waits in .* for device 1, whose queue has ended"):
        Cast(two()).play(part)


def test_collectives_that_do_not_meet_are_named() -> None:
    def part(device: int, groups: Groups) -> None:
        if device == 0:
            groups.data[0].sum(torch.zeros(2))
        else:
            groups.data[0].gather(torch.zeros(2))

    with pytest.raises(
        PlanError, match=r"device \d comes with .*sum of \[2\].* comes? ?.*with gather of \[2\]|gather of"
    ):
        Cast(two()).play(part)


def test_an_error_of_one_device_ends_all() -> None:
    def part(device: int, groups: Groups) -> None:
        if device == 1:
            raise InputError("no batch")
        groups.data[0].sum(torch.zeros(1))

    with pytest.raises(InputError, match=r"^no batch$"):
        Cast(two()).play(part)


def test_a_wait_cycle_in_a_queue_is_reported_when_it_runs() -> None:
    """The first stage wants the gradient of a value before it has sent the value."""
    found = model("skip")
    program = by_hand(found.captured.graph, Layout(pp=2, micro_batches=1))
    queue = list(program.queues[0])
    send = next(task for task in queue if task.kind == "send")
    back = next(task for task in queue if task.kind == "receive")
    queue.remove(send)
    queue.insert(queue.index(back) + 1, send)
    with pytest.raises(PlanError) as error:
        found.verify(replace(program, queues={**program.queues, 0: tuple(queue)}))
    assert "the devices wait for each other for ever: device 0 waits in receive of " in str(error.value)
    assert "; device 1 waits in receive of " in str(error.value)


def test_an_exception_in_a_task_names_device_and_task() -> None:
    found = model("skip")
    program = by_hand(found.captured.graph, Layout(pp=2, micro_batches=1))
    without = [task for task in program.queues[1] if task.kind != "receive"]
    with pytest.raises(PlanError, match="device 1, in forward of micro-batch 0: KeyError"):
        found.verify(replace(program, queues={**program.queues, 1: tuple(without)}))
