"""The plan that a user gets: the fastest in simulation, of the best under both formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cli.options import problem
from partita.planner.joint.plan import solve
from partita.ranking import ranked
from partita.simulate.predict import predicted


@pytest.mark.slow
def test_a_deeper_warm_up_that_only_the_sharper_formula_sees_wins():
    asked = problem("gpt3-13b", "2x8xa100-80gb", None, 64, None, "bf16", "adam", 40 * 2**30, "partita", ())
    solved = solve(asked)
    stated = predicted(asked.graph, solved.plan(solved.best), asked.cluster)
    found = ranked(solved)
    assert found.predicted.step_seconds < 0.97 * stated.predicted.step_seconds
    assert found.order.arguments["depth"] > solved.best.table.depth == 0
    assert found.predicted == predicted(asked.graph, found, asked.cluster).predicted
    assert max(found.predicted.peak_bytes.values()) <= 40 * 2**30
    assert found.search.optimal
    assert "Under the formula the best takes 2.88 s and this one 2.91 s" in found.reasons[-1]


def test_no_schedule_is_tried_that_is_held_to_another():
    asked = problem("gpt3-13b", "2x8xa100-80gb", None, 64, None, "bf16", "adam", 40 * 2**30, "deepspeed", ())
    found = ranked(solve(replace(asked, fix={"schedule": "gpipe"})))
    assert found.schedule == "gpipe"
