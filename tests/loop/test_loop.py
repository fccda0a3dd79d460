"""Loops of engine(x), engine.backward, engine.step under a plan against one process of plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.loop.play import PLANS, Case, Outcome, play
from tests.ranks.pool import Pool

if TYPE_CHECKING:
    from torch import Tensor

ACCUMULATION = {"gradient_accumulation_steps": 3}
# Where a model is divided no parameter of a stage may be left to train; how an optimizer is given matters to who takes
# it apart: each of copies, ZeRO, stages and pieces meets both; recomputation repeats what ranks say to one another.
SETTINGS = {
    "frozen": ("zero2", "zero3", "pp2 tp2"),
    "generator": ("dp2", "zero3", "pp2 tp2"),
    "json groups": ("zero2", "tp2", "pp2 dp2"),
    "recomputed": ("zero3", "pp2 tp2"),
}


def table() -> list[Case]:
    rows = [Case("whatever a loop may do", plan) for plan in ("dp2", "zero3", "pp2", "tp2", "pp2 dp2")]
    rows += [Case("calls of a step", plan, setting="groups", config=ACCUMULATION) for plan in PLANS]
    rows += [Case("plain", plan, setting=setting) for setting, plans in SETTINGS.items() for plan in plans]
    # Of an encoder and a decoder each shape takes longest to capture; tests/trainer has T5 with other shapes too.
    rows += [Case("plain", "pp2", "t5")]
    texts = [("llama", ("pp2",)), ("bert", ("pp2", "zero2"))]
    images = [("vit", ("pp2", "zero3")), ("swin", ("pp2",))]
    for loop, models in (("texts", texts), ("images", images)):
        rows += [Case(loop, plan, model) for model, plans in models for plan in plans]
    return rows


def name(case: Case) -> str:
    parts = (case.model, case.plan, case.loop, "" if case.setting == "sgd" else case.setting)
    return " ".join(part for part in parts if part)


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=name(case)) for case in table()])
def test_a_loop_is_that_of_one_process(pool: Pool, case: Case) -> None:
    outcomes = pool.run(play, case.ranks, case, timeout=200)
    assert {outcome.ran for outcome in outcomes} == {asked(case)}
    compare(outcomes)


def asked(case: Case) -> tuple[int, int, int, int, str]:
    """The plan by its name: pp, tp, dp, ZeRO stage, recomputation."""
    numbers = {word[:-1]: int(word[-1]) for word in case.plan.split()}
    pp, tp = numbers.get("pp", 1), numbers.get("tp", 1)
    dp = case.ranks // (pp * tp)
    assert numbers.get("dp", dp) == dp
    return pp, tp, dp, numbers.get("zero", 0), "full" if case.setting == "recomputed" else "none"


def compare(outcomes: list[Outcome]) -> None:
    first = outcomes[0]
    assert first.wanted
    wrong = []
    for label, wanted in first.wanted.items():
        for rank, outcome in enumerate(outcomes):
            # Of what belongs to ranks each has its own, one process has all.
            expected = wanted[rank] if len(wanted) > 1 else wanted[0]
            (found,) = outcome.numbers[label]
            if not near(found, expected, relative=1e-5):
                wrong.append((label, rank, found.flatten()[:3].tolist(), expected.flatten()[:3].tolist()))
    assert wrong == []
    assert list(first.weights) == list(first.wanted_weights)
    far = {}
    for key, wanted in first.wanted_weights.items():
        error = float((first.weights[key].double() - wanted).norm())
        change = float((wanted - first.before[key].double()).norm())
        # A part of what training changed, beside what storing a weight in 32 bits loses.
        if not error <= 3e-5 * change + 3e-7 * float(wanted.double().norm()) + 1e-8:
            far[key] = (error, change)
    assert far == {}


def near(found: Tensor, wanted: Tensor, relative: float) -> bool:
    if found.shape != wanted.shape:
        return False
    return float((found.double() - wanted.double()).norm()) <= relative * float(wanted.double().norm())
