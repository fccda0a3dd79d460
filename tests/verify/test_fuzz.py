"""Random plans are refused in words that have numbers and names, or compute what one device computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partita.adapters.torch.prepare import Lowered
from partita.adapters.verify.prove import verify_program
from partita.errors import PlanError
from partita.plan import load_plan, save_plan
from partita.spacetime.lower import lower
from partita.spacetime.program import Program
from tests.verify import fuzz

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

# The largest models take seconds: few seeds of each.
SEEDS = {
    fuzz.SMALL: range(3000, 3024),
    ("gpt2", "gpt2 dropout", "gpt2 frozen start", "t5", "llama", "mixture"): range(3100, 3112),
    ("swin",): range(3200, 3203),
    ("alphafold2",): range(3300, 3301),
}
CASES = {case.seed: case for names, seeds in SEEDS.items() for case in (fuzz.case(seed, names) for seed in seeds)}


def lowered(case: fuzz.Case) -> Program | str:
    """The program of a random plan, or why there is none."""
    try:
        return lower(fuzz.captured(case.model, case.samples).graph, fuzz.plan(case))
    except PlanError as error:
        return str(error)


@pytest.mark.parametrize("seed", CASES)
def test_a_random_plan_is_equal_or_refused(seed: int) -> None:
    case = CASES[seed]
    found = lowered(case)
    if isinstance(found, str):
        # It names a number, and a block, a tensor or a device.
        assert re.search(r"\d", found), found
        assert re.search(r'"[^"]+"|device \d', found), found
        return
    captured = fuzz.captured(case.model, case.samples)
    verdict = verify_program(Lowered(captured, found), *fuzz.module(case.model))
    assert verdict.equal, f"{case}: {verdict.difference}"
    assert verdict.errors.missing == ()
    assert verdict.errors.loss < 1e-10
    assert verdict.errors.largest("gradient") < 1e-10
    assert verdict.errors.largest("parameter") < 1e-10


def test_most_random_plans_can_be_run(tmp_path: Path) -> None:
    """Else the comparison above would say little. A plan's file says all of it."""
    small = [case for case in CASES.values() if case.model in fuzz.SMALL]
    runs = [case for case in small if isinstance(lowered(case), Program)]
    assert len(runs) > len(small) / 2
    for case in runs:
        plan = fuzz.plan(case)
        save_plan(plan, tmp_path / "plan.json")
        assert load_plan(tmp_path / "plan.json") == plan
