"""Handed cases: what people have met in other systems, shrunk until the right answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.adapters.verify.batch import Batches, wide
from tests.runtime.programs import Layout
from tests.runtime.programs import program as by_hand
from tests.verify.models import model, verified


def mean_input(name: str, samples: int) -> float:
    """The mean of the first step's inputs: the loss of a product of scalars is that times their product."""
    found = model(name)
    return float(Batches(found.captured, wide(found.example), samples, seed=0).batch(0)["x"].mean())


def test_c06_one_weight_in_two_stages() -> None:
    """loss = 2·3·2·x; the two gradients of the tied weight are added up, and both copies stay the same to the bit."""
    layout = Layout(pp=3, sizes=(1, 1, 1))
    verdict = verified("tied scalar", layout)
    assert verdict.equal
    assert verdict.losses[0] == pytest.approx(12 * mean_input("tied scalar", 2), rel=1e-14)
    parts = verdict.errors.parts
    assert {part.name for part in parts} == {"first.weight", "middle.weight"}
    # The owner and the copy are both compared with the one parameter that the model has.
    compared = [part for part in parts if part.what == "parameter" and part.name == "first.weight"]
    assert [(part.device, part.stage, part.wrong) for part in compared] == [(0, 0, False), (2, 2, False)]
    # Forgetting the copy's gradient leaves half of it.
    program = by_hand(model("tied scalar").captured.graph, layout)
    forgotten = {
        device: tuple(task for task in queue if task.transfer is None or task.transfer.what != "parameter_gradient")
        for device, queue in program.queues.items()
    }
    lost = model("tied scalar").verify(replace(program, queues=forgotten))
    assert not lost.equal
    assert lost.difference is not None
    assert (lost.difference.parameter, lost.difference.ratio) == ("first.weight", pytest.approx(0.5, rel=1e-9))


@pytest.mark.parametrize(("samples", "micro_batches"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_c09_the_mean_over_micro_batches(samples: int, micro_batches: int) -> None:
    name = f"product of {samples}"
    layout = Layout(micro_batches=micro_batches)
    assert verified(name, layout).equal
    # What only adds up is said, with its factor.
    found = model(name)
    program = by_hand(found.captured.graph, layout)
    assert program.loss is not None
    summed = found.verify(replace(program, loss=replace(program.loss, weighting="sum")))
    assert summed.equal == (micro_batches == 1)
    if summed.difference is not None:
        assert summed.difference.ratio == pytest.approx(micro_batches, rel=1e-9)


def test_c09_tokens_weigh_alike() -> None:
    """Micro-batches with unequal numbers of tokens: the mean is over tokens, not over micro-batches."""
    verdict = verified("two words", Layout(micro_batches=2))
    assert verdict.equal
    found = model("two words")
    program = by_hand(found.captured.graph, Layout(micro_batches=2))
    assert program.loss is not None
    averaged = replace(program.loss, weighting="samples")
    assert not found.verify(replace(program, loss=averaged)).equal


def test_c20_a_skip_over_several_stages() -> None:
    """loss = (7·5·3 + 1)·2·x in four stages: what the first makes goes to the second and straight to the last."""
    verdict = verified("skip", Layout(pp=4, micro_batches=1))
    assert verdict.equal
    assert verdict.losses[0] == pytest.approx(212 * mean_input("skip", 1), rel=1e-14)
    # Scalars of 8 bytes in three steps: 0 sends two values; 1 and 2 a value and a gradient; 3 two gradients.
    assert verdict.sent == {0: 3 * 16, 1: 3 * 16, 2: 3 * 16, 3: 3 * 16}


@pytest.mark.parametrize(("name", "values"), [("three between", 512 + 32 + 256), ("two between", 512 + 256)])
def test_c22_three_values_between_stages(name: str, values: int) -> None:
    """Hidden [2, 4, 8], mask [2, 1, 4, 4] of booleans (or None), positions [1, 4, 8]; only hidden has a gradient."""
    verdict = verified(name, Layout(pp=2, micro_batches=1))
    assert verdict.equal
    assert verdict.sent == {0: 3 * values, 1: 3 * 512}


@pytest.mark.slow
def test_c30_rotary_embeddings_are_computed_on_each_stage() -> None:
    """Cosine and sine, made once and read in every layer, need no parameter: they don't cross the stages."""
    verdict = verified("llama of width 8", Layout(pp=2, micro_batches=1))
    assert verdict.equal
    assert verdict.errors.missing == ()
    hidden = 2 * 4 * 8 * 8
    assert verdict.sent == {0: 3 * hidden, 1: 3 * hidden}
