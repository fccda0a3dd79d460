"""Schedules whose devices serve several stages, or put weight gradients off, in the simulator: the papers' figures."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from partita.plan import Order
from partita.schedules import find
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import TURNS, Program, Share
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import BlockCode, StageCode, transform
from tests.simulate.pipelines import chain, machine, tensor


def program(schedule: str, stages: int, micro_batches: int, arguments: Mapping[str, int]) -> Program:
    """The queues of a chain; a device for each lane of the schedule."""
    graph = chain(stages)
    pieces = transform(graph, [StageCode((BlockCode(f"b{stage}", (), "none"),), ()) for stage in range(stages)])
    lanes = find(schedule).lanes(stages, arguments)
    devices_of = tuple(tuple(lane for lane, at in enumerate(lanes) if stage in at) for stage in range(stages))
    widths = tuple(map(len, devices_of))
    places = assign(devices_of, [1] * stages, widths)
    turns = order(Order(schedule, stages, micro_batches, dict(arguments)), places, [micro_batches] * stages, ())
    queues = preserve(Version(graph, pieces), places, devices_of, turns)
    return Program(
        pieces,
        queues,
        places,
        devices_of,
        (Share(1, micro_batches, 1),) * stages,
        tuple(map(tensor, widths)),
        {},
        graph.loss,
    )


def pipeline_seconds(found: Program, seconds: Mapping[tuple[int, str], float]) -> float:
    """Until the last turn has ended, where nothing takes time between devices."""
    every = {(stage, kind): 0.0 for stage in range(len(found.pieces)) for kind in ("reduce", "update")}
    timings = execute(found, {**every, **seconds}, lambda transfer: 0, Fabric(machine([len(found.queues)])))
    return max(
        end
        for device, timing in timings.items()
        for task, end in zip(found.queues[device], timing.ends, strict=True)
        if task.kind in TURNS
    )


@pytest.mark.parametrize(("lanes", "chunks", "rounds"), [(2, 2, 1), (2, 3, 4), (4, 2, 2), (4, 4, 1), (8, 2, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks(lanes: int, chunks: int, rounds: int) -> None:
    stages, count = lanes * chunks, lanes * rounds
    found = program("interleaved", stages, count, {"lanes": lanes})
    # All of a device's stages together take 1 forward and 2 backward.
    seconds = {(s, k): units / chunks for s in range(stages) for k, units in (("forward", 1), ("backward", 2))}
    ideal = 3 * count
    # Narayanan et al. (2021), section 2.2: the bubble is (p − 1) / (v · m) of the ideal time.
    assert pipeline_seconds(found, seconds) == pytest.approx(ideal * (1 + (lanes - 1) / (chunks * count)))


@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 6), (4, 4), (4, 9), (8, 12)])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (2, 2, 1), (2, 3, 2)])
def test_weight_turns_fill_the_bubble(stages: int, count: int, f: float, b: float, w: float) -> None:
    found = program("zb-h1", stages, count, {})
    kinds = {"forward": f, "backward": b, "weight": w}
    seconds = {(s, kind): units for s in range(stages) for kind, units in kinds.items()}
    # Qi et al. (2023), table 1: ZB-H1 idles (p − 1)(F + B − W), 1F1B (p − 1)(F + B + W).
    assert pipeline_seconds(found, seconds) == count * (f + b + w) + (stages - 1) * (f + b - w)
    plain = {(s, kind): units for s in range(stages) for kind, units in (("forward", f), ("backward", b + w))}
    assert pipeline_seconds(program("1f1b", stages, count, {}), plain) == (count + stages - 1) * (f + b + w)


@pytest.mark.parametrize(("stages", "count", "at_once"), [(2, 8, 31.0), (4, 16, 71.0), (8, 32, 151.0)])
def test_micro_batches_that_go_ahead_hide_transfers(stages: int, count: int, at_once: float) -> None:
    """Transfers take half a forward. Depth 1 hides all but one way there and back of them."""
    seconds = {(s, kind): 0.0 for s in range(stages) for kind in ("reduce", "update")}
    seconds |= {(s, kind): units for s in range(stages) for kind, units in (("forward", 1.0), ("backward", 2.0))}
    steps = []
    for depth in (0, 1, 2):
        found = program("1f1b", stages, count, {"depth": depth})
        timings = execute(found, seconds, lambda transfer: 0.5, Fabric(machine([stages])))
        steps.append(max(max(timing.ends) for timing in timings.values()))
    hidden = 3 * (count + stages - 1) + 2 * 0.5 * (stages - 1)
    assert steps == pytest.approx([at_once, hidden, hidden])


# Four devices, one stage each (forward 1, backward 2): what CP-SAT proves to be the least.
@pytest.mark.parametrize(("count", "units"), [(6, 39), (16, 89)])
def test_three_passes_and_one_backward_reach_the_optimum(count: int, units: int) -> None:
    found = program("3f1b", 12, count, {"passes": 3})
    seconds = {(s, k): u for s in range(12) for k, u in (("forward", 1.0), ("backward", 2.0))}
    assert pipeline_seconds(found, seconds) == units


# Embedding and head take 1 unit forward and 1 backward on all four devices at once. 55 is the least with as many
# micro-batches in flight as 1F1B has, 51 the least of all.
@pytest.mark.parametrize(("extra", "units"), [(0, 55), (1, 53), (2, 51), (3, 51)])
def test_interlaced_turns(extra: int, units: int) -> None:
    found = program("interlaced", 6, 6, {"extra": extra})
    inner = {(s, k): u for s in range(1, 5) for k, u in (("forward", 1.0), ("backward", 2.0))}
    shared = {(s, k): 1.0 for s in (0, 5) for k in ("forward", "backward")}
    assert pipeline_seconds(found, {**inner, **shared}) == units
