"""The kinds of plans that people make by hand: each entry is the best of all ways of its kind, found one by one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from math import prod

import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.errors import divisors
from partita.plan import Plan
from partita.planner.joint.formula import stage_numbers, step_seconds
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way, cut
from partita.planner.words import gib
from partita.problem import Problem
from partita.simulate.grid import hand_made

MIB = 2**20
DEVICES, BATCH, BLOCKS = 8, 8, 6
# Of each kind: whether it has such pp, tp and dp, the ZeRO stages, the schedule.
KINDS = {
    "data parallel": ((0, 0, 1), (0,), "1f1b"),
    **{f"ZeRO-{zero}": ((0, 0, 1), (zero,), "1f1b") for zero in (1, 2, 3)},
    "tensor parallel": ((0, 1, 0), (0,), "1f1b"),
    "tensor × data": ((0, 1, 1), (0,), "1f1b"),
    "tensor × ZeRO": ((0, 1, 1), (1, 2, 3), "1f1b"),
    **{
        f"{name}{words}": ((1, tensor, data), (0, 1, 2, 3), schedule)
        for name, schedule in (("1F1B", "1f1b"), ("GPipe", "gpipe"))
        for words, tensor, data in (("", 0, 0), (" × data", 0, 1), (" × tensor", 1, 0), (" × tensor × data", 1, 1))
    },
}


def problem(memory_mib: int, **given) -> Problem:
    graph = load_model("gpt3-tiny", None, "bfloat16")
    cluster = parse_cluster("2x4xa100-80gb")
    return Problem(graph, cluster, BATCH, target="partita", memory_bytes=memory_mib * MIB, **given)


@cache
def ways(name: str) -> list[Way]:
    has, zeros, schedule = KINDS[name]
    asked = problem(1)
    pricing, found = Pricing(asked, alike(asked.graph)), []
    for sizes in ((pp, tp, DEVICES // pp // tp) for pp in (1, 2, 4) for tp in (1, 2, 4) if DEVICES % (pp * tp) == 0):
        if prod(sizes) == DEVICES and tuple(int(size > 1) for size in sizes) == has:
            pp, tp, dp = sizes
            found += [
                Way(pricing, Uniform(pp, tp, dp, zero, again, micro, BATCH // dp // micro), schedule)
                for zero in (zeros if dp > 1 else (0,))
                for again in ("none", "full")
                for micro in divisors(BATCH // dp)
            ]
    return found


def answers(name: str) -> Iterator[tuple[Way, tuple]]:
    for way in ways(name):
        for inner in combinations(range(1, BLOCKS), way.uniform.pp - 1):
            yield way, cut((0, *inner, BLOCKS))


def needs(way: Way, stages: tuple) -> float:
    return max(stage_numbers(way.table, stage, len(stages) - 1 - at).bytes for at, stage in enumerate(stages))


@pytest.mark.parametrize(
    "memory_mib", [2000, *(pytest.param(memory, marks=pytest.mark.slow) for memory in (1026, 1030, 1050))]
)
def test_each_entry_is_the_best_of_its_kind(memory_mib: int) -> None:
    limit, states = memory_mib * MIB, set()
    for entry in hand_made(problem(memory_mib)):
        all_of = list(answers(entry.name))
        inside = [step_seconds(way.table, stages) for way, stages in all_of if needs(way, stages) <= limit]
        states.add("none" if not all_of else "fits" if inside else "large")
        if inside:
            assert isinstance(entry.plan, Plan), entry
            assert entry.plan.predicted.step_seconds == pytest.approx(min(inside), rel=1e-8), entry.name
            assert max(entry.plan.predicted.peak_bytes.values()) <= limit
        elif all_of:
            least = min(needs(way, stages) for way, stages in all_of)
            assert entry.reason == f"does not fit: needs {gib(least)} a device or more, {gib(limit)} is there"
        else:
            assert entry.reason.startswith(f"none for {DEVICES} devices, {BLOCKS} blocks, global batch {BATCH} (")
    assert "none" in states  # 8 stages for 6 blocks
    assert len(states) > 1


def test_held_decisions_hold_for_every_entry() -> None:
    for entry in hand_made(problem(2000, fix={"schedule": "gpipe", "tp": 2, "micro_batches": 2})):
        if entry.plan is not None:
            assert {stage.tp for stage in entry.plan.stages} == {2}
            assert (entry.plan.order.generator, entry.plan.order.micro_batches) == ("gpipe", 2)
            assert entry.name.startswith(("GPipe", "tensor"))
