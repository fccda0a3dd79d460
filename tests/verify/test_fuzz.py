"""Random plans are refused in words that have numbers or names, or compute what one device computes."""

from __future__ import annotations

import re

import pytest

from partita.adapters.verify.prove import verify_program
from partita.errors import PlanError
from partita.spacetime.lower import lower
from tests.verify import fuzz

# The largest models take seconds: few seeds of each.
SEEDS = {
    fuzz.SMALL: range(3000, 3024),
    ("gpt2", "gpt2 dropout", "gpt2 frozen start", "t5", "llama", "mixture"): range(3100, 3112),
    ("swin",): range(3200, 3203),
    ("alphafold2",): range(3300, 3301),
}


@pytest.mark.parametrize(
    "case", [pytest.param(fuzz.case(seed, names), id=str(seed)) for names, seeds in SEEDS.items() for seed in seeds]
)
def test_a_random_plan_is_equal_or_refused(case: fuzz.Case) -> None:
    captured = fuzz.captured(case.model, case.samples)
    try:
        program = lower(captured.graph, fuzz.plan(case))
    except PlanError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        # It names a number, and a block, a tensor or a task.
        assert re.search(r"\d", refusal), refusal
        assert re.search(r'"[^"]+"|device \d', refusal), refusal
        return
    verdict = verify_program(captured, program, *fuzz.module(case.model))
    assert verdict.equal, f"{case}: {verdict.difference}"
    assert verdict.errors.missing == ()
    assert verdict.errors.loss < 1e-10
    assert verdict.errors.largest("gradient") < 1e-10
    assert verdict.errors.largest("parameter") < 1e-10
