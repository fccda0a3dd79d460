"""How long a step takes in an independent simulation: the formulas of the papers, and optima that a solver proved."""

from __future__ import annotations

from fractions import Fraction

import pytest

from partita.schedules import (
    breadth_first,
    forward_only,
    gpipe,
    interlaced,
    interleaved,
    one_f_one_b,
    three_f_one_b,
    zero_bubble,
)
from tests.schedules.play import play

F, B = 1, 2
UNITS = {"forward": F, "backward": B}
STAGES = (1, 2, 3, 4, 5, 8)


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize("units", [UNITS, {"forward": 3, "backward": 4}])
def test_gpipe_and_1f1b(schedule, p, units):
    for m in (1, 2, 3, 5, 8, 13):
        assert play(schedule(p, m), units) == (m + p - 1) * sum(units.values())


@pytest.mark.parametrize("depth", [1, 3])
def test_more_ahead_takes_no_more_and_no_less_time_where_nothing_takes_time_between_lanes(depth):
    for p in STAGES:
        for m in (1, 2, 5, 13):
            assert play(one_f_one_b(p, m, depth), UNITS) == (m + p - 1) * (F + B)


def test_forwards_alone():
    for p, m in ((1, 1), (4, 6), (6, 2)):
        assert play(forward_only(p, m), UNITS) == m + p - 1


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_interleaved_bubble_is_p_minus_1_over_v_m(p, v):
    for groups in range(1, 5):
        m = groups * p
        step, work = play(interleaved(p * v, m, lanes=p), UNITS), m * v * (F + B)
        assert Fraction(int(step) - work, work) == Fraction(p - 1, v * m)


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_breadth_first_fills_in_small_turns_whatever_the_number_of_micro_batches(p, v):
    for m in (1, 2, 3, 5, 8, 13):
        assert play(breadth_first(p * v, m, lanes=p), UNITS) == (v * max(m, p) + min(m, p) - 1) * (F + B)
    # Of one stage a lane it is GPipe.
    assert breadth_first(p, 3, lanes=p) == gpipe(p, 3)


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (3, 3, 2), (4, 5, 4), (5, 5, 4)])
def test_zero_bubble_h1(p, f, b, w):
    units = {"forward": f, "backward": b, "weight": w}
    for m in (p, p + 1, 2 * p - 1, 3 * p):
        assert play(zero_bubble(p, m), units) == m * (f + b + w) + (p - 1) * (f + b - w)
    for m in range(1, p):
        assert play(zero_bubble(p, m), units) <= (m + p - 1) * (f + b + w)


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("passes", [1, 2, 3, 4, 7])
def test_recycling_takes_the_work_of_the_last_lane_and_the_ways_to_and_from_it(p, passes):
    for m in (p, p + 1, 2 * p - 1, 2 * p, 3 * p + 1, 40):
        step = play(three_f_one_b(p * passes, m, passes=passes), UNITS)
        assert step == m * (passes * F + B) + (p - 1) * (F + B)


@pytest.mark.parametrize(("m", "optimum"), [(6, 39), (16, 89)])
def test_recycling_reaches_the_optimum_that_a_solver_proved(m, optimum):
    assert play(three_f_one_b(12, m, passes=3), UNITS) == optimum


@pytest.mark.parametrize("p", STAGES)
def test_recycling_with_one_micro_batch_goes_from_stage_to_stage(p):
    assert play(three_f_one_b(3 * p, 1, passes=3), UNITS) == 3 * p * F + p * B


def interlaced_step(p: int, m: int, extra: int, shared: int = 1) -> float:
    units = UNITS | {(stage, phase): shared for stage in (0, p + 1) for phase in UNITS}
    return play(interlaced(p + 2, m, extra=extra), units)


# A solver proved 55 for the in-flight micro-batches of 1F1B and 51 for any number.
@pytest.mark.parametrize(("extra", "step"), [(0, 55), (1, 53), (2, 51), (3, 51), (9, 51)])
def test_interlaced_on_four_devices_and_six_micro_batches(extra, step):
    assert interlaced_step(4, 6, extra) == step


@pytest.mark.parametrize("p", STAGES)
@pytest.mark.parametrize("shared", [1, 4])
def test_interlaced_waits_for_nothing_with_p_minus_1_more_in_flight(p, shared):
    for m in (1, 2, 3, 5, 8, 25):
        assert interlaced_step(p, m, p - 1, shared) == m * (F + B + 4 * shared) + (p - 1) * (F + B)


@pytest.mark.parametrize("p", STAGES[1:])
def test_interlaced_with_the_in_flight_of_1f1b_waits_one_unit_a_micro_batch(p):
    for m in (1, 2, 3, 5, 8, 25):
        assert interlaced_step(p, m, 0) == m * (F + B + 4) + (p - 1) * (F + B) + max(0, m - 2)
