"""What must hold for the outcome of a case on all its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.runtime.engines import Case
from tests.runtime.training import Outcome


@dataclass(frozen=True)
class Tolerance:
    """``loss`` and ``gradient`` are relative (to the tensor's norm), ``weight`` is absolute.

    ``floor`` is added to what a gradient may differ by: where a gradient is nothing but rounding noise, so is its norm.
    """

    loss: float
    gradient: float
    floor: float
    weight: float


TOLERANCES = {
    "float32": Tolerance(loss=1e-5, gradient=1e-5, floor=1e-8, weight=float("inf")),
    "float64": Tolerance(loss=1e-13, gradient=1e-12, floor=1e-15, weight=1e-10),
    # One rounding is 2**-8 of a value; a gradient passes through dozens, and is rounded for each micro-batch alone.
    "bfloat16": Tolerance(loss=1e-4, gradient=2**-4, floor=0.0, weight=float("inf")),
    None: Tolerance(loss=1e-6, gradient=1e-6, floor=0.0, weight=1e-6),
}


def assert_equal(case: Case, outcomes: list[Outcome]) -> None:
    """Losses, gradients, weights and tied copies are those of one device; each rank ran its queue and nothing else."""
    allowed = TOLERANCES[case.dtype]
    first = outcomes[0]
    for outcome in outcomes:
        assert outcome.losses == first.losses
        assert outcome.dense_losses == first.dense_losses
        assert tuple(outcome.tasks) == outcome.queue
    for loss, wanted in zip(first.losses, first.dense_losses, strict=True):
        assert abs(loss - wanted) <= allowed.loss * abs(wanted)
    assert len(first.losses) == case.steps
    assert sorted({name for outcome in outcomes for name in outcome.gradients}) == sorted(first.names)
    wrong = {
        (rank, name): (error, norm)
        for rank, outcome in enumerate(outcomes)
        for name, (error, norm) in outcome.gradients.items()
        if not error <= allowed.gradient * norm + allowed.floor
    }
    assert wrong == {}
    weights = [(error, name) for outcome in outcomes for name, error in outcome.weights.items()]
    assert {name for _, name in weights} == {*first.names}
    assert [(error, name) for error, name in weights if not error <= allowed.weight] == []
    # A piece of a tied parameter is the same, to the bit, in every stage and copy that holds it.
    copies: dict[tuple[str, int], list[list[bytes]]] = {}
    for outcome in outcomes:
        for name, states in outcome.shared.items():
            copies.setdefault((name, outcome.tensor), []).append(states)
    for held in copies.values():
        assert len(held) > 1
        assert all(states == held[0] for states in held)
