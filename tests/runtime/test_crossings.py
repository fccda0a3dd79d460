"""What crosses between stages: skips, tied weights, several values at once, values computed once and read by all."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace

import pytest

from partita.spacetime.program import Program, Transfer
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout, program
from tests.runtime.training import Outcome, capture, train

pytestmark = pytest.mark.slow


def transfers(lowered: Program, micro: int | None) -> list[Transfer]:
    """What one copy sends for a micro-batch, or (None) at the end of the step."""
    return [
        task.transfer
        for queue in lowered.queues.values()
        for task in queue
        if task.kind == "send" and task.micro == micro and task.transfer is not None
    ]


def run(pool: Pool, case: Case) -> list[Outcome]:
    outcomes = pool.run(train, case.layout.devices, case)
    assert_equal(case, outcomes)
    return outcomes


def scalar_gradients(outcomes: list[Outcome]) -> dict[str, float]:
    return {name: value for outcome in outcomes for name, (value,) in outcome.values.items()}


def test_c06_one_weight_on_two_stages(pool: Pool) -> None:
    case = Case("tied scalar", Layout(pp=3, micro_batches=1), dtype=None, optimizer="sgd")
    outcomes = run(pool, case)
    assert outcomes[0].losses[0] == 12.0
    assert scalar_gradients(outcomes) == {"first.weight": 12.0, "middle.weight": 4.0}
    copies = [outcome.shared["first.weight"] for outcome in (outcomes[0], outcomes[2])]
    # 2 − 0.1·12; 1.4 would mean that one of the two gradients of 6 was lost. Equal to the bit after each of 3 steps.
    assert struct.unpack("f", copies[0][0])[0] == pytest.approx(0.8, abs=1e-7)
    assert copies[0] == copies[1]
    assert len(set(copies[0])) == len(copies[0]) == 3
    graph = capture(case.model, None).graph
    assert graph.parameter_count == 2
    shared = [
        (edge.what, edge.source, edge.target, edge.bytes) for edge in transfers(program(graph, case.layout), None)
    ]
    assert sorted(shared) == [("parameter", 0, 2, 4), ("parameter_gradient", 2, 0, 4)]


def test_a_frozen_weight_on_two_stages_stays_where_it_is(pool: Pool) -> None:
    case = Case("tied scalar frozen", Layout(pp=3, micro_batches=1), dtype=None, optimizer="sgd")
    outcomes = run(pool, case)
    assert scalar_gradients(outcomes) == {"middle.weight": 4.0}
    assert transfers(program(capture(case.model, None).graph, case.layout), None) == []


def test_a_value_without_a_gradient_between_stages(pool: Pool) -> None:
    case = Case("zeros between", Layout(pp=2), dtype=None, optimizer="sgd")
    assert scalar_gradients(run(pool, case)) == {"make.scale.weight": 3.0, "read.scale.weight": 2.0}


def test_c20_skip_over_two_stages(pool: Pool) -> None:
    case = Case("skip", Layout(pp=4, micro_batches=1), dtype=None, optimizer="sgd", steps=1)
    outcomes = run(pool, case)
    assert outcomes[0].losses == [212.0]
    # 105 for w0 would mean that the skip's gradient was lost.
    gradients = {"w0.weight": 106.0, "w1.weight": 70.0, "w2.weight": 42.0, "w3.weight": 30.0}
    assert scalar_gradients(outcomes) == gradients
    sent = Counter(
        (e.what, e.source, e.target) for e in transfers(program(capture("skip", None).graph, case.layout), 0)
    )
    # Sent straight to the stage that reads it: 4 transfers, not the 6 of a relay.
    forward = [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert sent == Counter(
        [("value", source, target) for source, target in forward]
        + [("gradient", target, source) for source, target in forward]
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("micro_batches", [2, 5])
def test_c20_in_several_micro_batches(pool: Pool, schedule: str, micro_batches: int) -> None:
    layout = Layout(pp=4, micro_batches=micro_batches, schedule=schedule)
    assert scalar_gradients(run(pool, Case("skip", layout, dtype=None, steps=1)))["w0.weight"] == pytest.approx(106.0)


@pytest.mark.parametrize(("model", "forward_bytes"), [("three between", [128, 32, 128]), ("two between", [128, 128])])
def test_c22_several_values_between_stages(pool: Pool, model: str, forward_bytes: list[int]) -> None:
    # One micro-batch: float16 gradients that are added up in another order are not the same.
    case = Case(model, Layout(pp=2, micro_batches=1), dtype=None, optimizer="sgd")
    lowered = program(capture(model, None).graph, case.layout)
    values = [edge for edge in transfers(lowered, 0) if edge.what == "value"]
    assert sorted(edge.bytes for edge in values) == sorted(forward_bytes)
    shapes = [("float16", (2, 4, 8)), ("float32", (1, 4, 8)), ("bool", (2, 1, 4, 4))][: len(forward_bytes)]
    assert sorted((edge.dtype, edge.shape) for edge in values) == sorted(shapes)
    assert [edge.bytes for edge in transfers(lowered, 0) if edge.what == "gradient"] == [128]
    outcomes = run(pool, case)
    frozen = {"make.position"}
    assert not frozen & {*outcomes[0].names}
    assert {name for outcome in outcomes for name in outcome.gradients} == {
        "make.linear.weight", "make.linear.bias", "read.out.weight", "read.out.bias",
    }  # fmt: skip


def test_c30_computed_once_and_read_in_every_layer(pool: Pool) -> None:
    case = Case("llama of width 8", Layout(pp=2, sizes=(3, 3)))
    graph = capture(case.model, case.dtype).graph
    layers = [block.name for block in graph.blocks if block.name not in ("embedding", "head")]
    assert layers == [f"model.model.layers.{index}" for index in range(4)]
    lowered = program(graph, case.layout)
    # cos and sin need neither a parameter nor a gradient: each stage makes its own, and only the hidden state crosses.
    assert sorted((edge.what, edge.bytes) for edge in transfers(lowered, 0)) == [("gradient", 256), ("value", 256)]
    rotary = {op.name for op in graph.ops if op.kind in ("cos", "sin")}
    assert len(rotary) == 2
    for piece in lowered.pieces:
        assert rotary <= {local.op.name for local in piece.constants}
    assert {name for piece in lowered.pieces for name in piece.parameters} == {
        tensor.name for tensor in graph.tensors if tensor.role == "parameter"
    }
    run(pool, case)
    run(pool, replace(case, dtype="float64"))
