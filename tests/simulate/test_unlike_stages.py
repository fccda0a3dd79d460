"""Stages of unlike shares against the clock: what a step takes, what is sent, what is held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from partita.cluster import parse_cluster
from partita.graph import Graph
from partita.plugins.capture_huggingface import capture_config
from partita.simulate import simulate
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.predict import predicted
from partita.spacetime.lower import lower_to_time
from tests.simulate.pipelines import machine
from tests.spacetime.unlike import Case, Part, plan

SEQ, HIDDEN, BYTES = 8, 32, 4


def graph(samples: int) -> Graph:
    settings = {
        "model_type": "gpt2", "n_embd": HIDDEN, "n_layer": 4, "n_head": 4, "vocab_size": 128, "n_positions": SEQ,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return capture_config(settings, samples=samples, seq=SEQ, name="gpt2")


def parts(counts: Sequence[int]) -> tuple[Part, ...]:
    return tuple(Part(micro_batches=count) for count in counts)


@pytest.mark.parametrize(
    ("counts", "schedule", "wanted"),
    [
        # Forward turns take 1 second for 4 samples, backward turns 2; nothing takes time between devices.
        # 1F1B of two alike: (4 + 1) × 3.
        ((4, 4), "1f1b", 15.0),
        # 1: f0 f1 f2 f3 | 2: F0 2-4 B0 4-8, F1 8-10 B1 10-14 | 1: b0 8-10 b1 10-12, b2 14-16 b3 16-18.
        ((4, 2), "1f1b", 18.0),
        # 1: f0 0-2 f1 2-4 | 2: F0 2-3 B0 3-5 F1 5-6 B1 6-8, b0 8-12, F2 8-9 … B3 12-14 | 1: b1 14-18.
        ((2, 4), "1f1b", 18.0),
        # All forwards, 4, then the last stage's 4 of one turn; all backwards, 8 and 8.
        ((4, 1), "gpipe", 24.0),
    ],
)
def test_a_step_worked_out_by_hand(counts: tuple[int, ...], schedule: str, wanted: float) -> None:
    program = lower_to_time(graph(1), plan(graph, Case(parts(counts), batch=16, schedule=schedule)))
    seconds = {
        (stage, kind): factor * 4 / count
        for stage, count in enumerate(counts)
        for kind, factor in (("forward", 1), ("backward", 2), ("reduce", 0), ("update", 0))
    }
    timings = execute(program, seconds, lambda transfer: 0, Fabric(machine([len(program.queues)])))
    assert max(max(timing.ends) for timing in timings.values()) == pytest.approx(wanted)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        # Samples that each device sends: its own to each reader of them, and gradients of what it takes first.
        (Case((Part(dp=2), Part(tp=2))), {0: 8, 1: 8, 2: 4, 3: 4}),
        (Case((Part(tp=2), Part(dp=2))), {0: 4, 1: 4, 2: 8, 3: 8}),
        (Case((Part(dp=2), Part())), {0: 4, 1: 4, 2: 8}),
        (Case((Part(micro_batches=4), Part(micro_batches=2))), {0: 8, 1: 8}),
        (Case((Part(micro_batches=3), Part(micro_batches=2)), batch=6), {0: 6, 1: 6}),
        (Case((Part(micro_batches=2), Part(dp=2, micro_batches=4), Part(micro_batches=2))), {0: 8, 1: 8, 2: 8, 3: 8}),
    ],
)
def test_each_sample_of_a_value_is_sent_once_to_each_reader(case: Case, wanted: dict[int, int], samples: int) -> None:
    """Whatever number of samples the graph was captured with."""
    found = simulate(graph(samples), plan(graph, case, "fp32"), parse_cluster("cpu", case.devices))
    sent = {device: use.sent_bytes / (SEQ * HIDDEN * BYTES) for device, use in found.use.items()}
    assert sent == wanted
    assert all(found.peaks[device].total > 0 for device in sent)


def test_larger_turns_are_held_for_less_time() -> None:
    """In a stage of small micro-batches in front of larger ones a device holds less of the batch at a time."""
    cluster, held = parse_cluster("cpu", 2), {}
    for counts in ((8, 8), (8, 2), (2, 2)):
        found = predicted(graph(1), plan(graph, Case(parts(counts), batch=16), "fp32"), cluster)
        costs = found.predicted.breakdown.stages
        held[counts] = [cost.in_flight * 16 // count for cost, count in zip(costs, counts, strict=True)]
    assert held == {(8, 8): [4, 2], (8, 2): [16, 8], (2, 2): [16, 8]}
